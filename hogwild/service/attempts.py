"""Processes of jobs: start one, find it again after a restart of the service, signal it, learn how it ended. The only
file of the service that touches processes.

A job is `hogwild train --json`, or `hogwild search --json`, the leader of a session of its own, without stdin, with its
output in the attempt's files: a fork of the service's fork server, else a fresh interpreter; both are the same for all
that follows. Its *mark*, HOGWILD_JOB=..., is in the environment of all its processes, whoever their parent is by now. A
process is known by its number together with start time and boot; from then on by a pidfd."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hogwild import host
from hogwild.errors import headline
from hogwild.host import other_jobs
from hogwild.host.processes import python_child
from hogwild.monitoring.run_status import EXIT_STATUS
from hogwild.service.failpoints import reach
from hogwild.service.folders import MARK, JobFolder
from hogwild.service.states import KILLED, AttemptEnd, JobOrder, JobRecord
from hogwild.storage.files import object_of
from hogwild.storage.run_files import is_begun, read_json, status_file

GPUS = "CUDA_VISIBLE_DEVICES"
_COMMAND = """
from hogwild import user_code
user_code.look_for_data_in(sys.argv.pop(1))
from hogwild.__main__ import main
main()
"""
TAIL = 1 << 20  # bytes of an attempt's output in which its last line is looked for
MESSAGE_LINES = 20


@dataclass(slots=True)
class JobProcess:
    """A job's process. `reap` returns the exit status of the dead process, negative for a signal; None if an earlier
    service started it."""

    pid: int
    start_ticks: int
    pidfd: int
    reap: Callable[[], int | None] | None = None

    def is_dead(self) -> bool:
        return host.wait_readable([self.pidfd], 0)

    def send(self, number: int) -> None:
        """Send a signal; a stopped process receives it at once."""
        host.kill_by_pidfd(self.pidfd, number)
        host.kill_by_pidfd(self.pidfd, other_jobs.GO_ON)

    def cores(self) -> set[int]:
        """Return the logical CPUs on which it and its descendants may run; empty if it is dead."""
        found = host.cores_of_family(self.pid)
        return set() if self.is_dead() else found  # asked last: the number was still its own

    def close(self) -> int | None:
        """Reap the dead process, and kill what is left of its session, which may have lost its mark (`env -i`). Return
        its status as subprocess gives it, None if it was not our child: then its number may have another owner."""
        os.close(self.pidfd)
        if self.reap is None:
            return None
        other_jobs.kill_session(self.pid)
        return self.reap()


class JobForker(Protocol):
    """The service's fork server (`workers/processes/job_server.py`)."""

    why: str

    def is_starting(self, environment: Mapping[str, str]) -> bool: ...
    def descriptors(self) -> list[int]: ...
    def fork(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: str, standard: Sequence[int]
    ) -> tuple[int, Callable[[], int | None]] | None: ...
    def close(self) -> None: ...


def entry_of(order: JobOrder, home: str) -> str:
    """Return the entry of the environment that marks all processes of a job. `home`: identity of the state folder, so
    that a copied folder does not take the processes of its original for its own."""
    return f"{MARK}={order.mark}@{home}"


def prepare(job: JobRecord, folder: JobFolder) -> None:
    """Make what the next attempt needs, before it is booked. Raises OSError."""
    folder.files.stat()  # gone, if somebody removed the job's folder
    attempt = folder.attempt(job.attempt + 1)
    attempt.mkdir(parents=True, exist_ok=True)
    for name in ("stdout", "stderr"):
        (attempt / name).touch()


def environment_of(order: JobOrder, gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of the job's process, without its mark."""
    # Without any GPU, what CUDA is told does not matter.
    return {**order.environment, **({GPUS: ",".join(gpus)} if gpus or host.gpus() else {})}


def start(
    order: JobOrder, job: JobRecord, folder: JobFolder, entry: str, server: JobForker | None
) -> tuple[JobProcess, str]:
    """Start the job's process on its cores; return it, and why it is no fork of the server. Raises OSError; ValueError
    for what the system does not take."""
    attempt = folder.attempt(job.attempt)
    environment = environment_of(order, job.gpus) | {MARK: entry.partition("=")[2]}
    command = python_child(_COMMAND, order.job_folder, *_arguments(order, job, folder))
    before = host.affinity()
    with open(os.devnull, "rb") as null, open(attempt / "stdout", "wb") as out, open(attempt / "stderr", "wb") as err:
        reach("before-start")
        host.set_affinity(job.cores)  # of this thread, which the child inherits
        try:
            why = "jobs on a GPU are fresh interpreters" if job.gpus else ""
            standard = [stream.fileno() for stream in (null, out, err)]
            process, is_forked = spawn(command, environment, order.folder, standard, None if why else server)
            if server is not None and not why and not is_forked:
                why = server.why
        finally:
            host.set_affinity(before)
    reach("spawned")
    return process, why


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    standard: Sequence[int],
    server: JobForker | None,
    kept: Sequence[int] = (),
) -> tuple[JobProcess, bool]:
    """Start `command`, of `python_child`, as the leader of a session; return its process, and whether it is a fork of
    the server. `standard`: its descriptors 0, 1, 2; `kept`: further ones that it holds. Raises OSError; ValueError for
    what the system does not take."""
    made = server.fork(command[1:], environment, folder, [*standard, *kept]) if server is not None else None
    is_forked = made is not None
    if made is None:
        null, out, err = standard
        child = subprocess.Popen(
            command, stdin=null, stdout=out, stderr=err, cwd=folder, env=environment, pass_fds=kept,
            start_new_session=True,
        )  # fmt: skip
        made = child.pid, child.wait
    pid, reap = made
    ticks = host.start_ticks(pid)
    assert ticks is not None  # not reaped: it has its entry even when dead
    return JobProcess(pid, ticks, host.pidfd_open(pid), reap), is_forked


def _arguments(order: JobOrder, job: JobRecord, folder: JobFolder) -> Sequence[str]:
    fixed = ("search" if order.is_search else "train", "--json", "--no-progress")
    more = ["--data-dir", order.data_dir] if order.data_dir else []
    if order.elastic is not None and job.procs is not None and not order.is_search:
        most = max(job.procs, order.elastic.procs(order.elastic.most))
        more += [f"train.procs={job.procs}", f"train.procs_max={most}"]
    if is_begun(folder.run):
        return (*fixed, "--resume", str(folder.run), *order.changes, *more)
    if order.is_search:
        shutil.rmtree(folder.run, ignore_errors=True)  # of a process that was killed while it made the folder
    return (*fixed, str(folder.files / order.copied), *order.overrides, "--run-dir", str(folder.run), *more)


def adopt(job: JobRecord, entry: str) -> JobProcess | None:
    """Return the process that a record names, if it still is the same one, is the job's, and not dead."""
    if job.pid is None or job.start_ticks is None or job.boot_id != host.boot_id():
        return None
    try:
        pidfd = host.pidfd_open(job.pid)
    except OSError:
        return None
    found = JobProcess(job.pid, job.start_ticks, pidfd)
    is_same = host.start_ticks(job.pid) == job.start_ticks and other_jobs.is_marked(job.pid, entry)
    if not is_same or found.is_dead():
        os.close(pidfd)
        return None
    return found


def find(job: JobRecord, folder: JobFolder, entry: str) -> JobProcess | None:
    """Return the job's process by its mark: the one that trains the run, or is about to; None if there is none. For an
    attempt whose process number was not written down. What user code started carries the mark, too: it leads no
    session with the run's path on its command line, or began later."""
    leaders = []
    for pid, command in other_jobs.marked(entry).items():
        ticks = host.start_ticks(pid)
        if ticks is not None and str(folder.run) in command and other_jobs.leads_session(pid):
            leaders.append((ticks, pid))
    for ticks, pid in sorted(leaders):
        named = JobRecord(job.id, pid=pid, start_ticks=ticks, boot_id=host.boot_id())
        if (process := adopt(named, entry)) is not None:
            return process
    return None


def sweep(entry: str) -> bool:
    """Kill what a job without a process has left; return whether nothing was found."""
    left = other_jobs.marked(entry)
    for pid in left:
        other_jobs.kill_if_marked(pid, entry)
    return not left


def end_of(job: JobRecord, folder: JobFolder, status: int | None) -> AttemptEnd:
    """Return how a dead attempt ended: by the run's status file, if this process wrote its end there; by the last line
    of its output, unless a signal killed it; else by its exit status."""
    can_go_on = is_begun(folder.run)
    attempt = folder.attempt(job.attempt)
    answer = read_json(folder.run, status_file(folder.run).name)
    is_its = answer.get("pid") == job.pid and answer.get("start_ticks") == job.start_ticks
    if not is_its or answer.get("state") not in tuple(EXIT_STATUS):
        said = _tail(attempt / "stdout", most=1) if status is None or status >= 0 else ""
        answer = object_of(said) or {}
        is_summary = answer.get("run_dir") == str(folder.run) and answer.get("state") in tuple(EXIT_STATUS)
        if not is_summary and (answer.get("error_code") is None or "state" in answer):
            answer = {}
    if answer:
        error, told = answer.get("error"), answer.get("exit_status")
        told = told if isinstance(told, int) else EXIT_STATUS.get(str(answer.get("state")))
        return AttemptEnd(
            state=_text(answer.get("state")) or "failed",  # an error before the run began has no state
            reason=_text(answer.get("reason")) or (headline(error) if error else None),
            error=_text(error),
            error_code=_text(answer.get("error_code")),
            exit_status=told if status is None else status,
            is_begun=can_go_on,
        )
    if job.boot_id != host.boot_id():
        return AttemptEnd(is_begun=can_go_on, is_reboot=True)
    if status in (128 + other_jobs.TERMINATE, 128 + other_jobs.INTERRUPT):
        return AttemptEnd(state="cancelled", exit_status=status, is_begun=can_go_on)
    if status is not None and status > 0:
        words = _tail(attempt / "stderr") or f"it ended with exit status {status} and printed nothing"
        first = words.splitlines()[-1]
        return AttemptEnd("failed", first, words, "run/unexpected", status, can_go_on)
    how = host.describe_exit(status) if status is not None else KILLED
    return AttemptEnd(exit_status=status, is_begun=can_go_on, how=how)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _tail(file: Path, most: int = MESSAGE_LINES) -> str:
    """Return the last lines of a file; "" if it cannot be read."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            return "\n".join(stream.read().decode(errors="replace").splitlines()[-most:])
    except OSError:
        return ""


def is_of(record: Mapping[str, Any], process: JobProcess) -> bool:
    """Return whether a run's status file was written by this process."""
    return record.get("pid") == process.pid and record.get("start_ticks") == process.start_ticks
