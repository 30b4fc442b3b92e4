"""The stacks of all processes of a job, taken when one of them does not move, and the call it is blocked in.

    supervisor's loop      take ─────────── advance … advance ─────────► then({worker: "in `time.sleep(60)` at …"})
    a thread of its own     '─ kernel's view of each ─ SIGUSR1 ─ faulthandler writes ─ read it, name the call ─'

The loop never waits here: a hanging file, perhaps the very cause of the stall, blocks only the thread, and after
STACKS_WAIT_S the loop continues with what is known. A process that cannot answer (stopped, or deaf to the signal) has
the kernel's part only.

    RUN/stacks/worker-K.txt      appended: time, process, reason; the kernel's view; Python's stacks; so for each role
    RUN/stacks/supervisor.txt    the same of the supervisor
    RUN/stacks/fork-server.txt   the kernel's view of it: it ignores the signal, as it must not be disturbed in a fork
    RUN/stacks/others.txt        the kernel's view of all other descendants: processes started by user code"""

import contextlib
import faulthandler
import linecache
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hogwild import host
from hogwild.errors import HogwildError
from hogwild.storage.files import file_bytes
from hogwild.storage.run_directory import RunDir
from hogwild.user_code import is_users
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.processes.handle import Handle

STACKS_WAIT_S = 1.0
LOOK_MS = 2  # between two checks for an answer, of the thread and of the loop
EVERYBODY_EVERY_S = 5.0  # several stalls in a row do not need the stacks of all others each time
DUMP_BYTES = 1 << 20  # of one process: faulthandler writes at most 100 threads with 100 frames each

_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$')
LONGEST_LINE = 80

Blocked = dict[int, str]
"""Process number -> the call it is blocked in, in words; "" where nothing is known."""
Then = Callable[[Blocked], HogwildError | None]


@dataclass(slots=True)
class Subject:
    """A process whose stacks are taken. Owns copies of the descriptors: the handle may be closed meanwhile, and its
    descriptor numbers reused."""

    name: str
    pid: int
    pidfd: int
    words: int  # output of a process that has no log yet
    file: Path
    deaf: frozenset[int] = frozenset()
    file_bytes: int = 0
    words_bytes: int = 0

    @classmethod
    def of(cls, handle: Handle, file: Path) -> "Subject":
        pidfd = os.dup(handle.pidfd)
        try:
            words = os.dup(handle.words)
        except OSError:
            os.close(pidfd)
            raise
        name = f"{handle.role} {handle.number}, incarnation {handle.incarnation}, pid {handle.pid}"
        return cls(name, handle.pid, pidfd, words, file)

    def ask(self, heading: str, threads: list[host.KernelThread]) -> str:
        """Append the kernel's view, `threads`, then send the signal if it can be answered: the answer follows in the
        file. Return the kernel's phrase about the main thread, which runs the training loop; "" if it is gone."""
        _append(self.file, f"{heading}: {self.name}", [thread.in_full() for thread in threads])
        self.file_bytes, self.words_bytes = file_bytes(self.file), os.fstat(self.words).st_size
        self.deaf = frozenset(thread.tid for thread in threads if thread.blocks)
        if host.can_write_stacks(threads) and host.process_status(self.pid) != "stopped":
            host.request_stack(self.pidfd)
        else:
            _append(self.file, "it cannot write its Python stacks", [])
            self.file_bytes = -1
        return str(threads[0]) if threads else ""

    def has_answered(self) -> bool:
        """Return True if it has written its stacks completely, or is dead."""
        has_begun = file_bytes(self.file) > self.file_bytes or os.fstat(self.words).st_size > self.words_bytes
        is_dead = host.process_status(self.pid) in (None, "zombie")
        return is_dead or (has_begun and not host.is_writing_stack(self.pid, self.deaf))

    def answer(self) -> str:
        """Return its stacks. If it has no log yet, copy them into the stacks file."""
        text = ""
        with contextlib.suppress(FileNotFoundError), open(self.file, "rb") as stream:
            stream.seek(self.file_bytes)
            text = stream.read(DUMP_BYTES).decode(errors="replace")
        early = os.pread(self.words, DUMP_BYTES, self.words_bytes).decode(errors="replace")
        if not text and early:
            _append(self.file, early, [])
        return text or early

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.words)


@dataclass(slots=True)
class StackRequest:
    """One request for stacks. `awaited`: process numbers whose answer the caller waits for; the others only write."""

    awaited: set[int]
    until_s: float
    then: Then
    is_done: bool = False
    settled: set[int] = field(default_factory=set)  # answered, or never will
    kernel: Blocked = field(default_factory=dict)
    python: Blocked = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        return self.awaited <= self.settled or self.is_done or now >= self.until_s

    def blocked(self) -> Blocked:
        """Return `in CALL at PLACE, in the kernel's FUNCTION` per process, as far as known."""
        kernel, python = dict(self.kernel), dict(self.python)
        return {pid: ", ".join(filter(None, (python.get(pid), words))) for pid, words in kernel.items()}


class Stacks:
    """The stacks of one job, in the supervisor. `collect` starts; `advance` (once per turn) delivers the result.
    `rundir`: where they are written; may come later."""

    def __init__(self, rundir: RunDir | None = None) -> None:
        self.rundir = rundir
        self._pending: list[StackRequest] = []
        self._errors: list[HogwildError] = []
        self._threads: list[threading.Thread] = []
        self._everybody_s = -math.inf
        self._views: dict[int, tuple[float, list[host.KernelThread]]] = {}
        self._views_lock = threading.Lock()

    @property
    def is_waiting(self) -> bool:
        return bool(self._pending)

    def collect(
        self,
        suspects: Iterable[Handle],
        everybody: Iterable[Handle],
        why: str,
        still_s: float,
        then: Then,
    ) -> None:
        """Take the stacks of the `suspects`, which have not moved for `still_s` seconds, and, unless that was done
        recently, of `everybody`, the supervisor and every other descendant. `advance` or `leave_out` calls `then`
        within STACKS_WAIT_S."""
        now, handles = time.monotonic(), {handle.pid: handle for handle in suspects}
        awaited = set(handles)
        with_all = now - self._everybody_s >= EVERYBODY_EVERY_S
        if with_all:
            self._everybody_s = now
            handles |= {handle.pid: handle for handle in everybody if handle.pid not in awaited}
        subjects: list[Subject] = []
        request = StackRequest(awaited, now + STACKS_WAIT_S, then)
        self._pending.append(request)
        thread = threading.Thread(target=self._examine, args=(request, subjects, still_s, why, with_all), daemon=True)
        # Without a descriptor or thread nothing is known, but the stalled worker is still handled.
        with contextlib.suppress(OSError, RuntimeError):
            for handle in handles.values():
                subjects.append(Subject.of(handle, self._file(f"{handle.role}-{handle.number}")))
            thread.start()
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            return
        request.is_done = True
        for subject in subjects:
            subject.close()

    def advance(self, now: float) -> list[HogwildError]:
        """Deliver finished requests; return the errors that they mean. Never waits."""
        self._deliver(now)
        errors, self._errors = self._errors, []
        return errors

    def leave_out(self, handle: Handle) -> None:
        """Stop waiting for a dead process that is about to be buried."""
        for request in self._pending:
            request.awaited.discard(handle.pid)
        self._deliver(-math.inf)

    def _deliver(self, now: float) -> None:
        for request in [one for one in self._pending if one.is_over(now)]:
            self._pending.remove(request)
            if (error := request.then(request.blocked())) is not None:
                self._errors.append(error)

    def _file(self, name: str) -> Path:
        """Return the file of the stacks `name`; without a run directory nothing is kept."""
        return Path(os.devnull) if self.rundir is None else self.rundir.stacks / f"{name}.txt"

    def close(self) -> None:
        """Let writing finish at the end of the job, unless it hangs."""
        until = time.monotonic() + STACKS_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _examine(
        self, request: StackRequest, subjects: list[Subject], still_s: float, why: str, with_all: bool
    ) -> None:
        heading = f"=== {time.strftime('%Y-%m-%d %H:%M:%S')} {why}"
        try:
            for subject in subjects:
                request.kernel[subject.pid] = subject.ask(heading, self._view(subject.pid, still_s))
            known = {subject.pid for subject in subjects}
            if (server := SERVER.pid) is not None:
                known.add(server)
                request.kernel[server] = self._note(heading, "fork-server", server, f"the fork server, pid {server}")
            if with_all:
                own, file = os.getpid(), self._file("supervisor")
                self._note(heading, "supervisor", own, f"the supervisor, pid {own}")
                with contextlib.suppress(OSError), open(file, "a", encoding="utf-8") as stream:
                    faulthandler.dump_traceback(stream, all_threads=True)
                for pid in host.children(own, recursive=True):
                    if pid not in known:
                        name = f"process {pid}, {host.process_name(pid)}: {host.command_line(pid)}"
                        self._note(heading, "others", pid, name)
            asked = [subject for subject in subjects if subject.file_bytes >= 0]
            request.settled |= {subject.pid for subject in subjects if subject not in asked}
            _hear(request, asked)
        finally:
            request.is_done = True
            for subject in subjects:
                subject.close()

    def _view(self, pid: int, still_s: float) -> list[host.KernelThread]:
        """Return the threads as they were before any signal: an earlier request may have asked the process to write,
        and it may be busy with that now. A view from the last `still_s` seconds is still valid."""
        with self._views_lock:
            now = time.monotonic()
            seen_s, threads = self._views.get(pid, (-math.inf, []))
            if now - seen_s > min(still_s, EVERYBODY_EVERY_S):
                threads = host.kernel_threads(pid)
                self._views[pid] = (now, threads)
            return threads

    def _note(self, heading: str, file: str, pid: int, name: str) -> str:
        """Append the kernel's view of a process; return its phrase about the main thread, "" if it is gone."""
        threads = host.kernel_threads(pid)
        _append(self._file(file), f"{heading}: {name}", [thread.in_full() for thread in threads])
        return str(threads[0]) if threads else ""


def _hear(request: StackRequest, pending: list[Subject]) -> None:
    """Read the answers until all are there or time is up; then use what is there."""
    while pending:
        is_last = time.monotonic() >= request.until_s
        answered = [subject for subject in pending if is_last or subject.has_answered()]
        for subject in answered:
            with contextlib.suppress(OSError):  # no file: on a full disk it could not write
                request.python[subject.pid] = blocked_in(subject.answer())
            request.settled.add(subject.pid)
        pending = [subject for subject in pending if subject not in answered]
        if pending:
            host.wait_readable([subject.pidfd for subject in pending], LOOK_MS)


def _append(file: Path, heading: str, lines: list[str]) -> None:
    """Append in one write. On a full disk, or without the folder, the job continues without it."""
    with contextlib.suppress(OSError), open(file, "ab", buffering=0) as stream:
        stream.write("\n".join([heading, *lines, ""]).encode())


# ---- the call that a process is blocked in, from the output of faulthandler


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a faulthandler dump."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} ({self.function})"


def blocked_in(dump: str) -> str:
    """Return `in CALL at FILE:LINE (FUNCTION), called at FILE:LINE (FUNCTION)`: the innermost frame of the training
    thread, and the user's frame that led there, if different; "" if the dump has no such thread. Reads a source file:
    do not call it where a hanging file system must not block the caller.

    Thread 0x00007f… (most recent call first):             a user's thread, perhaps
      …
    Current thread 0x00007f… (most recent call first):
      File "…/mymodel.py", line 31 in forward       -> in `self.event.wait()` at mymodel.py:31 (forward)
      …
      File "<string>", line 1 in <module>                   the training thread: the one that began at a module
    """
    frames = training_thread(dump)
    if not frames:
        return ""
    innermost = frames[0]
    source = linecache.getline(innermost.file, innermost.line).strip()
    quoted = f"`{source[:LONGEST_LINE]}` at " if source else ""
    users = next((frame for frame in frames if is_users(frame.file)), innermost)
    return f"in {quoted}{innermost}" + (f", called at {users}" if users is not innermost else "")


def training_thread(dump: str) -> list[Frame]:
    """Return the frames, innermost first, of the training thread in `dump`. It is the main thread, the only one that
    began at a module; if too many frames are left out to see that, the thread that took the signal; if the dump is cut
    off, an empty list."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in dump.splitlines():
        if head := _HEAD.match(line):
            threads.append((head[1] == "Current thread", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append(Frame(frame[1], int(frame[2]), frame[3]))
    begun_at_a_module = [frames for _, frames in threads if frames and frames[-1].function == "<module>"]
    took_the_signal = [frames for is_current, frames in threads if is_current]
    return next(iter(begun_at_a_module[-1:] or took_the_signal[-1:]), [])
