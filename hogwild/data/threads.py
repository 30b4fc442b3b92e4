"""Pieces of a file, parsed by threads of this process: pyarrow and compiled kernels work without the GIL."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from hogwild import host

AHEAD = 3  # pieces per thread that are read and parsed before their turn
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


def in_threads(parse: Callable[[_Piece], _Result], pieces: Iterable[_Piece]) -> Iterator[_Result]:
    """Yield parse(piece) for each piece, in their order. The calling thread takes the pieces one by one, so they may
    come from a file. An error is raised in its piece's turn."""
    threads = max(1, int(host.usable_cores().usable))
    pool = ThreadPoolExecutor(threads, "parse", initializer=host.leave_signals_to_main)
    waiting: deque[Future[_Result]] = deque()
    try:
        for piece in pieces:
            waiting.append(pool.submit(parse, piece))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
