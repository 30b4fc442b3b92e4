"""The invariants of a run that has ended: one function, `checks`, which uses only what any program can see.

    processes  shared-memory  open-files  temporary-files     nothing is left over
    checkpoint  checkpoint-ledger  parameters                 the training result is complete and usable
    ledger  ending  deaths                                    the records add up, and explain what happened

Imports no torch until a checkpoint is loaded, and starts nothing."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.chaos import schedule
from hogwild.chaos.inject import ORPHANS_S, SUMMARY, Hit, events_of
from hogwild.errors import HogwildError
from hogwild.host import other_jobs
from hogwild.scheduling.batch_plan import OPEN
from hogwild.storage.checkpoint_format import newest_good
from hogwild.storage.run_files import read_json

STATUS = {"succeeded": (0,), "failed": (1,), "stopped": (75,), "cancelled": (129, 130, 143)}
SETTLED = ("done", "skipped", "quarantined")
COUNTED = (*SETTLED, "indeterminate", "redone")
NOTICED_S = 60.0  # a death not noticed for so long before the job's end counts as overlooked
NOT_OURS = "torchinductor"  # torch makes this folder for its compiler with the first optimizer of any program

# The causes that the exit event of a worker hit by a deadly signal may give. All may also say that the supervisor ended
# the worker in the same moment. Workers ignore SIGINT: nobody may die of it.
CAUSES = {
    **dict.fromkeys((schedule.KILL, *schedule.OF_SERVER), "SIGKILL|out of memory"),
    schedule.TERMINATE: "SIGTERM",
    schedule.LOADER_KILL: "SIGKILL|out of memory",
}
ENDED_BY_SUPERVISOR = "stalled|could not start|did not"
NOT_RESUMED = "the supervisor was killed, and chaos ended before it was resumed"
OF_INTERRUPT = "SIGINT|KeyboardInterrupt"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The machine before a job. `mark`: NAME=VALUE in the environment of all processes of the job, '' if there is none.
    `temporary`: the job's own TMPDIR, if it has one."""

    shared_memory: frozenset[str]
    descriptors: int
    mark: str = ""
    temporary: Path | None = None
    temporary_names: frozenset[str] = frozenset()

    @classmethod
    def now(cls, *, mark: str = "", temporary: Path | None = None) -> "Baseline":
        names = frozenset(os.listdir(temporary)) if temporary is not None else frozenset[str]()
        return cls(other_jobs.shared_memory_names(), host.descriptor_count(), mark, temporary, names)


@dataclass(frozen=True, slots=True)
class Check:
    """One checked invariant. `holds` is None if it could not be checked; `words` say what was seen, or why not."""

    name: str
    holds: bool | None
    words: str


Answer = tuple[bool | None, str]


def checks(
    run_dir: Path,
    before: Baseline,
    *,
    status: int | None = None,
    hits: Sequence[Hit] = (),
    is_ended: bool = True,
) -> list[Check]:
    """Return every invariant of the run in `run_dir`; its last process has ended with `status` (None: unknown) after
    `hits`. Not `is_ended`: it was killed and not resumed, and has no end to look at. Changes nothing. A damaged run
    gives checks that do not hold, never an exception."""
    run = _Run(run_dir)
    looks: dict[str, Callable[[], Answer]] = {
        "open-files": partial(_open_files, before),  # first: torch, loaded for a checkpoint, keeps some open
        "processes": partial(_processes, run, before),
        "shared-memory": partial(_shared_memory, before),
        "temporary-files": partial(_temporary_files, before),
        "checkpoint": partial(_checkpoint, run),
        "checkpoint-ledger": partial(_checkpoint_ledger, run),
        "parameters": partial(_parameters, run),
        "ledger": partial(_ledger, run),
        "ending": partial(_ending, run, status),
        "deaths": partial(_deaths, run, hits),
    }
    if not is_ended:
        looks |= dict.fromkeys(("checkpoint-ledger", "ledger", "ending"), lambda: (None, NOT_RESUMED))
    found = []
    for name, look in looks.items():
        try:
            answer = look()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, HogwildError) as error:
            answer = False, f"{type(error).__name__}: {error}"  # the files are too damaged to read
        found.append(Check(name, *answer))
    return found


class _Run:
    """The records of a run directory, read on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, event in events_of(self.folder)]

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.folder, SUMMARY)

    @cached_property
    def newest(self) -> tuple[Path | None, list[str]]:
        return newest_good(self.folder / "checkpoints")

    @cached_property
    def state(self) -> dict[str, Any] | None:
        """Content of the newest good checkpoint."""
        from hogwild.storage.checkpoint import load

        path, _ = self.newest
        return None if path is None else load(path)

    @cached_property
    def resolved(self) -> dict[str, Any]:
        from hogwild.config.load import load_job

        return load_job(self.folder / "resolved.yaml").model_dump()


# ---- nothing is left over -------------------------------------------------------------------------------------------


def _processes(run: _Run, before: Baseline) -> Answer:
    """Check that no process of the job is left: processes with the mark (including the resource tracker), workers and
    loaders by number with their groups, and supervisors. Supervisors count without their group, which is their
    caller's, and never this process itself."""
    kinds = ("spawn", "loader-spawn", "start")
    spoken_of = {kind: {e["pid"]: e["time"] for e in run.events if e["event"] == kind} for kind in kinds}
    workers, supervisors = spoken_of["spawn"] | spoken_of["loader-spawn"], spoken_of["start"]
    supervisors.pop(os.getpid(), None)

    def alive() -> dict[int, str]:
        marked = other_jobs.marked(before.mark) if before.mark else {}
        known = other_jobs.of_workers(workers) | other_jobs.of_workers(supervisors, with_groups=False)
        return known | marked

    _, left = other_jobs.wait_until_gone(alive, ORPHANS_S)
    listed = "; ".join(f"{pid}: {command}" for pid, command in sorted(left.items()))
    none = f"none of {len(workers) + len(supervisors)} is alive"
    return not left, f"{len(left)} still alive: {listed}" if left else none


def _shared_memory(before: Baseline) -> Answer:
    left = other_jobs.left_in_shared_memory(before.shared_memory)
    return not left, f"left in shared memory: {', '.join(left)}" if left else "nothing left"


def _open_files(before: Baseline) -> Answer:
    now = host.descriptor_count()
    return now == before.descriptors, f"{before.descriptors} before, {now} now"


def _temporary_files(before: Baseline) -> Answer:
    if before.temporary is None:
        return None, "the job had no separate folder for temporary files"
    left = sorted(name for name in {*os.listdir(before.temporary)} - before.temporary_names if NOT_OURS not in name)
    return not left, f"left in {before.temporary}: {', '.join(left)}" if left else "nothing left"


# ---- the training result --------------------------------------------------------------------------------------------


def _checkpoint(run: _Run) -> Answer:
    path, rejected = run.newest
    if rejected:
        return False, "; ".join(rejected)
    if path is None:
        is_due = run.summary.get("state") == "succeeded"
        return (False, "there is no checkpoint") if is_due else (None, "no checkpoint was written before the job ended")
    latest = (run.folder / "checkpoints" / "latest").resolve().name
    if latest != path.name:
        return False, f"`latest` points to {latest}, the newest is {path.name}"
    return True, f"{path.name} verifies"


def _checkpoint_ledger(run: _Run) -> Answer:
    """Compare the ledgers of checkpoint and summary: equal after an orderly end, otherwise the checkpoint may be
    older."""
    if run.state is None:
        return None, "there is no checkpoint"
    summary, saved = run.summary, run.state["ledger"]
    there = {name: saved["ledger"][name] for name in COUNTED} | {key: saved[key] for key in ("updates", "samples")}
    here = {name: summary["leases"][name] for name in COUNTED} | {key: summary[key] for key in ("updates", "samples")}
    is_final = summary["state"] == "succeeded" or (
        summary["state"] == "stopped" and run.resolved["checkpoint"]["on_signal"]
    )
    wrong = "; ".join(
        f"{name}: {there[name]} in the checkpoint, {here[name]} in the summary"
        for name in here
        if there[name] > here[name] or (is_final and there[name] != here[name])
    )
    if is_final:
        return not wrong, wrong or f"{here['updates']} updates, {here['samples']} samples in both"
    return not wrong, wrong or f"{there['updates']} of {here['updates']} updates are in the checkpoint"


def _parameters(run: _Run) -> Answer:
    if run.state is None:
        return None, "there is no checkpoint"
    import torch

    tensors = {name: value for name, value in run.state["model"].items() if isinstance(value, torch.Tensor)}
    floating = {name: value for name, value in tensors.items() if value.is_floating_point() or value.is_complex()}
    bad = [name for name, value in floating.items() if not bool(torch.isfinite(value).all())]
    return not bad, f"NaN or infinite: {', '.join(bad)}" if bad else f"{len(floating)} tensors are finite"


# ---- the records ----------------------------------------------------------------------------------------------------


def _ledger(run: _Run) -> Answer:
    """Check done + skipped + quarantined = total; for a complete job, total must be every batch of every epoch."""
    leases = run.summary["leases"]
    settled, total = sum(leases[name] for name in SETTLED), leases["total"]
    words = " + ".join(f"{leases[name]} {name}" for name in SETTLED)
    if settled != total:
        return False, f"{words} are {settled}, not {total}"
    if (run.summary["state"], run.summary["reason"]) != ("succeeded", "epochs") or run.state is None:
        return True, f"{words} = {total}"
    epochs, batches = run.resolved["train"]["epochs"], run.state["ledger"]["plan"]["batches"]
    of_sampler = "drawn" in run.state
    if batches == OPEN or of_sampler:  # a stream, whose end the loaders find, or epochs of any length
        return True, f"{words} = {total}, in {epochs} epochs of a {'sampler' if of_sampler else 'stream'}"
    if total != epochs * batches:
        return False, f"{words} = {total}, but {epochs} epochs of {batches} batches are {epochs * batches}"
    return True, f"{words} = {total}, all batches of {epochs} epochs"


def _ending(run: _Run, status: int | None) -> Answer:
    """Check that exit status, summary.json and the last event agree."""
    summary = run.summary
    if not summary:
        return False, f"there is no {SUMMARY}"
    state, reason = summary["state"], summary["reason"]
    said = f"{state}: {reason}"
    last = run.events[-1] if run.events else {}
    if last.get("event") != "end" or (last["state"], last["reason"]) != (state, reason):
        return False, f"{SUMMARY} says {said}, the last event is {json.dumps(last)}"
    if status is not None and status not in STATUS[state]:
        return False, f"{SUMMARY} says {said}, the exit status is {host.describe_exit(status)}"
    if state == "failed" and not summary.get("error"):
        return False, f"{said}, without an error message"
    return True, said + ("" if status is None else f", exit status {status}")


def _deaths(run: _Run, hits: Sequence[Hit]) -> Answer:
    """Check that every worker and loader that was killed has an exit event with a matching cause."""
    victims: dict[tuple[int, int], list[Hit]] = {}
    for hit in hits:
        if hit.fault.role != schedule.SUPERVISOR:
            victims.setdefault((hit.attempt, hit.pid), []).append(hit)
    exits = {
        (attempt, event["pid"]): event
        for attempt, event in attempts_of(run.events)
        if event["event"] in ("exit", "loader-exit") and "pid" in event
    }
    wrong = [
        words for key, done in victims.items() if (words := _misfit(done, exits.get(key), _end_of(run.events, key[0])))
    ]
    died = sum(key in exits for key in victims)
    fine = f"{len(victims)} processes were hit, {died} died, each with its cause recorded"
    return not wrong, "; ".join(wrong) or fine


def _misfit(done: Sequence[Hit], event: Mapping[str, Any] | None, end: float) -> str:
    """Return the problem in the record of one worker; '' if there is none."""
    what = ", ".join(str(hit.fault) for hit in done) + f" (pid {done[0].pid})"
    deadly = [hit for hit in done if hit.fault.kind in CAUSES]
    if event is None:
        is_overlooked = bool(deadly) and end - deadly[0].time > NOTICED_S
        return f"{what}: there is no exit event" if is_overlooked else ""
    words = f"{event['how']} {event.get('error', '')}"
    causes = "|".join([CAUSES[hit.fault.kind] for hit in deadly] + [ENDED_BY_SUPERVISOR])
    if re.search(OF_INTERRUPT, words) or (deadly and not re.search(causes, words)):
        return f"{what}: its exit event says {words.strip()!r}"
    return ""


def attempts_of(events: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each event with its attempt, from 1. An attempt begins with `resume` and `start`, the first with
    `start`."""
    attempt, is_announced = 0, False
    for event in events:
        kind = event["event"]
        attempt += kind == "resume" or (kind == "start" and not is_announced)
        is_announced = kind == "resume" or (is_announced and kind != "start")
        yield attempt, event


def _end_of(events: Sequence[dict[str, Any]], attempt: int) -> float:
    """Return the wall time of the attempt's last event."""
    return max((float(event["time"]) for number, event in attempts_of(events) if number == attempt), default=0.0)
