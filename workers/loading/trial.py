"""The trial of a job's code (`hogwild/job/trial.py`) in a process of its own, as the parent sees it: a crash or an
endless loop of the user's code ends that process, not the job's.

    parent                                        the process of the trial
    trial, written by torch.save ── socket ──►    "trying" ──► maps it, runs ──► findings in `answer`; it ends

    it is killed (SIGKILL), or ends before "trying"     tried again in another one, max_item_attempts times in all
    it ends in any other way                            ModelError with the user's line
    no answer for start_timeout_s                       ModelError with the user's line, from its stacks (SIGABRT)
    the trial cannot be written or read                 the caller runs it here
    forward made buffers or modules                     the same: the job is laid out with them"""

import os
import pickle
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from torch.nn.parameter import is_lazy

from hogwild import host
from hogwild.errors import HogwildError, ModelError
from hogwild.job.trial import Findings, Trial
from hogwild.shared_memory.region import Region
from hogwild.user_code import is_users
from hogwild.workers.loading.loaders import region_of
from hogwild.workers.messages import TrialTask
from hogwild.workers.processes.group import ProcessGroup, Team
from hogwild.workers.processes.handle import POLL_MS, REAP_S, Handle
from hogwild.workers.processes.roles import Role, limits_of
from hogwild.workers.processes.roster import Roster
from hogwild.workers.processes.stacks import training_thread

TURN_S = 1.0  # most that one turn adds to a silence: a parent that was itself stopped must not kill anybody
OUTPUT_KEPT = 32 << 10  # characters
STACKS = "Fatal Python error: "  # the first words of the stacks that a crash writes
RESERVE = 64 << 20  # bytes of memory that a copy of the model must leave free


@dataclass(frozen=True, slots=True)
class _End:
    """The end of one attempt. `status`: None if its process survives SIGKILL."""

    status: int | None = None
    has_begun: bool = False
    is_stalled: bool = False


def try_in_worker(group: ProcessGroup, trial: Trial) -> Findings | None:
    """Return the findings; None if the trial cannot run in another process. Each process that was replaced is told.
    Raises ModelError if the trial ends its process or does not end."""
    if not group.readers or (content := _written(trial)) is None:
        return None
    say, start_s = group.sink.show_message, group.supervise.start_timeout_s
    regions = {"trial": content, "answer": Region.allocate("answer", 1)}  # written, not mapped
    end, output = _End(), ""
    for _ in range(group.supervise.max_item_attempts):
        team = _Trying(group, regions)
        group.teams.append(team)
        group.step(time.monotonic(), [team])
        if (handle := team.handles.get(0)) is None:
            return None
        end = _awaited(handle, start_s)
        said, output = handle.last_output(), handle.first_output()
        group.end(team)
        answer = regions["answer"].descriptor
        written = os.pread(answer, os.fstat(answer).st_size, 0)
        if written[0]:  # else it ended before; its status may be unknown, where a host application reaps it
            found: Findings | None = pickle.loads(written[1:])
            if found is not None and found.error is not None:
                _note_output(found.error, output)
            return found
        if end.status is None:
            say(f"a worker {handle.describe_undead()}")
            continue
        is_killed = end.status < 0 and host.signal_name(-end.status) == "SIGKILL"
        if end.has_begun and not is_killed:
            break
        say(
            f"a worker ended before training: {host.describe_exit(end.status)}" + (f"; it said: {said}" if said else "")
        )
    if not end.has_begun or end.status is None:
        return None
    error = _error(trial, end, output, start_s)
    _note_output(error, output)
    raise error


class _Trying(Team):
    """The team of the one process that tries."""

    is_loud = False

    def __init__(self, group: ProcessGroup, regions: Mapping[str, Region]) -> None:
        super().__init__(group, Roster(Role.TRIAL, limits_of(Role.TRIAL, group.supervise), 1))
        self._regions = regions

    def prepare(self, number: int) -> tuple[TrialTask, Mapping[str, Region]]:
        return TrialTask(), self._regions


def _written(trial: Trial) -> Region | None:
    """Return the trial in shared memory; None if it cannot be pickled, or memory is short: the layout of the job will
    say so. None also for lazy parameters: the trial gives them their shapes."""
    tensors = [*trial.model.parameters(), *trial.model.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        return None
    if sum(tensor.nbytes for tensor in tensors) + RESERVE > host.available_memory().bytes:
        return None
    try:
        with warnings.catch_warnings():  # that hooks of tensors are left out: here they do not matter
            warnings.simplefilter("ignore")
            return region_of("trial", trial)
    except (Exception, SystemExit):
        return None


def _awaited(handle: Handle, limit_s: float) -> _End:
    """Wait for the end of an attempt, at most `limit_s` for its begin and again for its end."""
    has_begun, silent_s, last_s = False, 0.0, time.monotonic()
    while True:
        host.wait_readable(handle.descriptors(), POLL_MS)
        status = handle.reap()
        handle.listen()  # also what a dead process has said
        if handle.pop_said():
            has_begun, silent_s = True, 0.0
        if status is not None:
            return _End(status=status, has_begun=has_begun)
        now_s = time.monotonic()
        silent_s, last_s = silent_s + min(TURN_S, now_s - last_s), now_s
        if silent_s > limit_s:
            return _End(status=_aborted(handle), has_begun=has_begun, is_stalled=True)


def _aborted(handle: Handle) -> int | None:
    """End a silent process: by SIGABRT, at which it writes its stacks, or else by SIGKILL. None if it survives both."""
    for end in (host.abort_by_pidfd, host.kill_by_pidfd):
        end(handle.pidfd)
        host.wait_readable([handle.pidfd], REAP_S * 1000)
        if (status := handle.reap()) is not None:
            return status
    return None


def _note_output(error: HogwildError, output: str) -> None:
    """Add the end of what the process wrote, such as prints of the user's code: a refused job has no log."""
    if kept := output[-OUTPUT_KEPT:].strip():
        error.add_note(f"The process of the trial wrote:\n{kept}")


def _error(trial: Trial, end: _End, output: str, limit_s: float) -> ModelError:
    """Return the error, with the user's line from the stacks in the process's `output`, if it wrote them."""
    assert end.status is not None
    what = f"{type(trial.model).__name__}: the trial on the first samples, before training,"
    users = (frame for frame in training_thread(output) if is_users(frame.file))
    place = next((f" ({frame.file}:{frame.line})" for frame in users), "")
    if end.is_stalled:
        return ModelError(
            f"{what} has not ended for {limit_s:g} s{place}; if the model needs longer, raise "
            "supervise.start_timeout_s",
            code="model/trial-stalled",
        )
    lines = output.partition(STACKS)[0].strip().splitlines()  # perhaps the reason that a library gave
    said = f"; it said: {lines[-1].strip()}" if lines else ""
    return ModelError(
        f"{what} ended its process: {host.describe_exit(end.status)}{place}{said}; train.procs=0 runs it in this "
        "process, under a debugger if you like",
        code="model/trial-crashed",
    )
