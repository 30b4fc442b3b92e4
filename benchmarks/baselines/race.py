"""Processes that start together: each makes itself ready, all begin on the same word, each says what it measured."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch.multiprocessing

from hogwild.planning.cpu_plan import VARIABLES


class RunnerDied(Exception):
    """A process of a baseline ended before it had answered; its own words are on stderr."""


class Line:
    """A runner's end of the line."""

    def __init__(self, talk: Connection) -> None:
        self._talk = talk

    def ready(self) -> None:
        """Returns when every runner is ready."""
        self.ask("ready")

    def ask(self, news: Any) -> Any:
        """Tells the parent, waits for its answer."""
        self._talk.send(news)
        return self._talk.recv()

    def answer(self, result: Any) -> None:
        self._talk.send(result)


def race(run: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Runs `run(line, *arguments[k])` in a spawned process for each k; it calls `line.ready()` and then
    `line.answer(result)`. Raises RunnerDied."""
    with runners(run, arguments) as lines:
        for line in lines:
            hear(line)
        for line in lines:
            line.send("go")
        return [hear(line) for line in lines]


@contextlib.contextmanager
def runners(run: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> Iterator[list[Connection]]:
    """The parent's ends of their lines. Leaving ends the processes: at once if it is an error, or if they still run."""
    context = torch.multiprocessing.get_context("spawn")
    lines: list[Connection] = []
    children = []
    try:
        with one_thread():
            for own in arguments:
                ours, theirs = context.Pipe()
                child = context.Process(target=_run, args=(run, theirs, own), daemon=True)
                child.start()
                theirs.close()  # so that a death is an end-of-file
                children.append(child)
                lines.append(ours)
        yield lines
        for child in children:
            child.join()
    finally:
        for child in children:
            child.kill()
            child.join()
        for line in lines:
            line.close()


def hear(line: Connection) -> Any:
    """Return a runner's next line. Raises RunnerDied."""
    try:
        return line.recv()
    except EOFError as error:
        raise RunnerDied("a process of a baseline ended before it had answered; see above") from error


def rate(update: Callable[[], None], updates: int, batch_size: int) -> float:
    """Samples a second of so many calls."""
    began = time.monotonic()
    for _ in range(updates):
        update()
    return updates * batch_size / (time.monotonic() - began)


def total(rates: Sequence[float]) -> float:
    """Return the samples a second of all runners together."""
    return math.fsum(rates)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Children started meanwhile read it when they load torch."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _run(run: Callable[..., None], talk: Connection, own: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)  # as our workers: slow numbers are nobody's fault here
    run(Line(talk), *own)
