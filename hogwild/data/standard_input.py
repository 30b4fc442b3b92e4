"""Standard input as a file that grows, because a pipe cannot be read twice: `path: "-"` of `Follow`.

    producer ──pipe──► thread of the command ──► RUN/stdin/000002 ──► loader, as of any followed file
                                                 RUN/stdin/000001     of the attempt before: read first
                                                 RUN/stdin/end        written after the last byte

Each attempt has a file of its own, and so a CSV header of its own. `end` holds the error that ended the input, or
nothing. A kill keeps what was copied; it loses what was in the pipe and a line that was copied in part. The files are
never removed: the disk must have room for all that arrives. Imports no numpy: the command checks before it forks."""

import contextlib
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hogwild.errors import UsageError
from hogwild.formatting import counted
from hogwild.host.signals import leave_signals_to_main
from hogwild.storage.files import Records, explained, replace
from hogwild.storage.run_directory import STDIN

BLOCK = 1 << 18  # bytes
RETRY_S = 1.0  # between two writes to a full disk
LEAVE_S = 1.0  # limit of the wait for the thread; it only waits for input, or writes a block
END = "end"
log = logging.getLogger(__name__)
_run: Path | None = None  # of the job whose standard input this process keeps


def refuse(why: str) -> UsageError:
    """Return the error that standard input cannot be trained on."""
    return UsageError(f'data.train: path: "-" is standard input, {why}', code="data/standard-input")


def check_standard_input() -> None:
    """Raise UsageError if nothing can come from standard input: it is closed, or a terminal."""
    if sys.stdin is None:
        raise refuse("which is closed; start the job behind a producer: producer | hogwild train JOB.yaml")
    if os.isatty(0):
        raise refuse(
            "which is a terminal; start the job behind a producer: producer | hogwild train JOB.yaml. To train what a "
            "run has kept, and no more: hogwild train --resume RUN < /dev/null"
        )


@contextlib.contextmanager
def keeping(run: Path) -> Iterator[None]:
    """Copy descriptor 0 of this process into the run directory, in a thread, until its end or that of the context."""
    global _run
    folder, stop = run / STDIN, os.eventfd(0, os.EFD_CLOEXEC)
    with explained(f"cannot write to {folder}"):
        folder.mkdir(exist_ok=True)
        (folder / END).unlink(missing_ok=True)
        earlier = kept_files(folder)
        if earlier:
            _cut_half_line(earlier[-1])
        file = os.open(kept_file(folder, len(earlier) + 1), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    thread = threading.Thread(target=_copy, args=(file, folder / END, stop), name="stdin", daemon=True)
    thread.start()
    _run = run
    try:
        yield
    finally:
        _run = None
        os.eventfd_write(stop, 1)
        thread.join(LEAVE_S)
        if not thread.is_alive():
            os.close(stop)


def kept_files(folder: Path) -> list[Path]:
    """Return the files of all attempts, in order."""
    return sorted(folder.glob("[0-9]*"))


def kept_file(folder: Path, attempt: int) -> Path:
    return folder / f"{attempt:06d}"


def folder_of(run: str | None) -> Path:
    """Return the folder of what is kept. `run`: the run directory; None: of the job of this process. Raises UsageError
    if it keeps nothing."""
    if run is None and _run is None:
        raise refuse("which only `hogwild train` reads, as data.train of a job file")
    return Path(run or str(_run)) / STDIN


def _copy(file: int, end: Path, stop: int) -> None:
    leave_signals_to_main()
    last = b"\n"
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(stop, select.POLLIN)
    why = ""
    try:
        while not any(descriptor == stop for descriptor, _ in poll.poll()):
            try:
                content = os.read(0, BLOCK)
            except OSError as error:
                content, why = b"", f"cannot be read: {error.strerror or error}"
            if content and _write(file, content, stop):
                last = content[-1:]
                continue
            # The last line may lack its line end: it is whole, as nothing follows.
            if not content and (last == b"\n" or why or _write(file, b"\n", stop)):
                _retry(partial(replace, end, why.encode(), sync=False), stop)
            return
    finally:
        os.close(file)


def _write(file: int, content: bytes, stop: int) -> bool:
    rest = memoryview(content)

    def write() -> None:
        nonlocal rest
        while rest:
            rest = rest[os.write(file, rest) :]

    return _retry(write, stop)


def _retry(action: Callable[[], None], stop: int) -> bool:
    """Repeat it while the disk is full: the producer waits. Return False if told to stop."""
    is_told = False
    while True:
        try:
            action()
            return True
        except OSError as error:
            if not is_told:
                log.warning("standard input cannot be kept: %s; trying again until it can", error.strerror or error)
                is_told = True
        if select.select([stop], [], [], RETRY_S)[0]:
            return False


def _cut_half_line(path: Path) -> None:
    """Remove what a killed command has copied of a line: its rest was lost with the pipe."""
    records = Records(path)
    begin, last = next(records.backwards(), (0, b"\n"))
    if not last.endswith(b"\n"):
        records.cut(begin)
        log.warning(
            "standard input: %s of a last line without its end are left out; the command was killed there",
            counted(len(last), "byte"),
        )
