"""The time in which a fault is seen and made good: `make bench-faults`. Needs the MNIST files (`HOGWILD_DATA`). Run
nothing else meanwhile.

A job is started as a user starts it and watched through its run directory, as any other program may; faults are
signals. Times are those of events.jsonl, so they include the supervisor's own work up to the record. The rows go to
benchmarks/results/faults.json, beside those of the campaigns (`make stress`)."""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import results
from benchmarks.bench import say
from benchmarks.bystander import bystander
from benchmarks.commands import MNIST, ROOT, job
from benchmarks.row import Row
from benchmarks.watched import ENDLESS, LOOK_S, PATIENCE_S, Running, running
from hogwild import host
from hogwild.chaos.inject import events_of

SUITE = "faults"
EVERY_S = 0.02  # between two status files, and so the resolution of a replacement's first commit
STALL_S = 2.0
KILL_EVERY_S = 5.0
TARGET = "evaluate.target.accuracy=0.98"


@dataclass(frozen=True, slots=True)
class Effort:
    """`deaths` in each run of a job; `parameters` of the model whose checkpoints are large."""

    runs: int = 3
    deaths: int = 40
    stalls: int = 5
    replacements: int = 5
    parameters: int = 1 << 28
    large_s: float = 20.0


FULL, QUICK = Effort(), Effort(1, 2, 1, 1, 1 << 20, 2.0)


# ---- seen ------------------------------------------------------------------------------------------------------------


def deaths(effort: Effort) -> list[tuple[float, float]]:
    """In a job of two workers under full load, milliseconds to the event of a death: from when the process is dead, as
    its pidfd says, and from SIGKILL. Between the two the kernel takes some hundred megabytes of a process apart."""
    found = []
    with running(MNIST, "--procs", "2", *ENDLESS, f"log.every_s={EVERY_S}") as now:
        for number in range(effort.deaths):
            victim = now.until_all_train(2)[number % 2]
            pidfd = os.dup(victim.pidfd)  # the watch closes its own
            killed = time.time()
            host.kill_by_pidfd(pidfd)
            host.wait_readable([pidfd], 1000 * PATIENCE_S)
            dead = time.time()
            os.close(pidfd)
            seen = now.event("exit", pid=victim.pid)["time"]
            found.append((1000 * max(0.0, seen - dead), 1000 * (seen - killed)))
    return found


def stalls(effort: Effort) -> list[float]:
    """Milliseconds from the deadline of a stopped worker to the event of its stall."""
    found = []
    stall = f"supervise.stall_timeout_s={STALL_S}"
    with running(MNIST, "--procs", "2", *ENDLESS, stall, f"log.every_s={EVERY_S}") as now:
        for number in range(effort.stalls):
            victim = now.until_all_train(2)[number % 2]
            stopped = time.time()
            victim.send(signal.SIGSTOP)
            event = now.event("stall", pid=victim.pid)
            limit = re.search(r"limit ([0-9.]+) s", event["why"])
            assert limit, event
            found.append(1000 * (event["time"] - stopped - float(limit[1])))
    return found


def replacements(effort: Effort) -> list[float]:
    """Seconds from SIGKILL to the replacement's first commit."""
    found = []
    with running(MNIST, "--procs", "2", *ENDLESS, f"log.every_s={EVERY_S}") as now:
        for number in range(effort.replacements):
            found.append(replaced_s(now, number % 2))
    return found


def replaced_s(now: Running, worker: int) -> float:
    """Seconds from SIGKILL of one of two workers to the first commit of its replacement."""
    victim = now.until_all_train(2)[worker]
    killed = time.monotonic()
    victim.send(signal.SIGKILL)
    now.event("exit", pid=victim.pid)
    now.until_all_train(2)
    return time.monotonic() - killed


def of_death(effort: Effort) -> list[Row]:
    of_deaths = [deaths(effort) for _ in range(effort.runs)]
    everybody = [one for run in of_deaths for one in run]
    since_dead, since_kill = (np.array(kind) for kind in zip(*everybody, strict=True))
    note = (
        f"{len(everybody)} deaths under full load, from dead to the event, median {np.median(since_dead):.1f} ms; from "
        f"SIGKILL median {np.median(since_kill):.0f}, p99 {np.percentile(since_kill, 99):.0f} ms"
    )
    p99 = [float(np.percentile([one for one, _ in run], 99)) for run in of_deaths]
    return [Row("detection: death, p99", "ms", 10.0, p99, note=note, smaller_is_better=True)]


def of_stall(effort: Effort) -> list[Row]:
    late = [one for _ in range(effort.runs) for one in stalls(effort)]
    return [Row("detection: stall, after its deadline", "ms", 100.0, late, smaller_is_better=True)]


def of_replacement(effort: Effort) -> list[Row]:
    found = [one for _ in range(effort.runs) for one in replacements(effort)]
    return [Row("replacement trains again", "s", 0.5, found, note="kill to first commit", smaller_is_better=True)]


# ---- the supervisor's loop -------------------------------------------------------------------------------------------

LARGE = str(ROOT / "benchmarks" / "jobs" / "large.yaml")


def longest_turns(effort: Effort) -> Row:
    """Measure the turns of the supervisor's loop, in a job that writes checkpoints of 1 GB of parameters again and
    again: their own time, without what they waited for a core. The baseline is what the same machine, in the same
    seconds, does to a process that has nothing to do with it, such waits included."""
    found, counts, beside = [], [], []
    for _ in range(effort.runs):
        size = [f"{part}.init_args.parameters={effort.parameters}" for part in ("model", "data.train")]
        with bystander() as longest_beside, running(LARGE, *size, f"train.max_time_s={effort.large_s}") as now:
            now.process.wait(PATIENCE_S)
            beside.append(longest_beside())
            events = [event for _, event in events_of(now.run_dir)]
        (end,) = (event for event in events if event["event"] == "end")
        counts.append(sum(event["event"] == "checkpoint" for event in events))
        found.append(float(end["loop_longest_ms"]))
        say(f"longest turn {found[-1]:.1f} ms, of a bystander {beside[-1]:.1f}, {counts[-1]} checkpoints")
    note = (
        f"{4 * effort.parameters / 2**30:.2g} GB of parameters, {counts} checkpoints; baseline: a bystander's longest "
        f"0.4 ms of work, in these runs {', '.join(f'{one:.0f}' for one in beside)}"
    )
    name = "supervisor's loop: longest wait, 1 GB of parameters"
    return Row(name, "ms", 20.0, found, float(np.median(beside)), note, smaller_is_better=True)


# ---- a job that goes on ----------------------------------------------------------------------------------------------


def under_fire(*more: str) -> tuple[float, int]:
    """Seconds of a job to its target while one of its two workers is killed every KILL_EVERY_S, in turn; kills."""
    began, kills = time.monotonic(), 0
    with running(MNIST, "--procs", "2", "train.epochs=100", TARGET, "train.exchange=direct", *more) as now:
        due = None
        while now.process.poll() is None:
            now.watch.look()
            if due is None and now.watch.is_training:
                due = time.monotonic() + KILL_EVERY_S
            victim = now.watch.targets.get(kills % 2)
            if due is not None and time.monotonic() >= due and victim is not None:
                kills += victim.send(signal.SIGKILL)
                due += KILL_EVERY_S
            time.sleep(LOOK_S)
        took = time.monotonic() - began
        if now.process.returncode:
            raise RuntimeError(f"exit status {now.process.returncode}: {now.words.read_text()[-2000:]}")
        (summary,) = (event for _, event in events_of(now.run_dir) if event["event"] == "end")
        assert summary["reason"] == "target", summary
    return took, kills


def to_target(effort: Effort) -> list[Row]:
    quiet, under, kills = [], [], 0
    for _ in range(effort.runs):
        quiet.append(job("train", MNIST, "--procs", "2", "train.epochs=100", TARGET, "train.exchange=direct")[0])
        took, killed = under_fire("supervise.max_restarts=1000000")
        under.append(took)
        kills += killed
        say(f"to 98 %: {quiet[-1]:.1f} s, under fire {took:.1f} s")
    figure = f"MNIST to 98 %, a worker killed every {KILL_EVERY_S:g} s: time over the fault-free"
    note = f"{kills} kills over all runs; baseline in seconds"
    ratios = [ours / plain for ours, plain in zip(under, quiet, strict=True)]
    return [Row(figure, "", 2.0, ratios, float(np.median(quiet)), note, smaller_is_better=True)]


PARTS: dict[str, Callable[[Effort], list[Row]]] = {
    "death": of_death,
    "stall": of_stall,
    "replacement": of_replacement,
    "loop": lambda effort: [longest_turns(effort)],
    "target": to_target,
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="only shows that it works; writes nothing")
    given = parser.parse_args(argv)
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = results.machine() if given.quick else results.begin()
    for name in given.parts or PARTS:
        rows = PARTS[name](QUICK if given.quick else FULL)
        if given.quick:
            print(results.table(rows))
        else:
            results.update(SUITE, rows, described)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
