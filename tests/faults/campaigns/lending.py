"""Jobs of one service get other numbers of workers, by requests and because they lend and borrow cores, while workers
are killed. In the end every batch took effect as the ledger says, and real models are as accurate as without any of it.

    counting   every sample's effects, exactly
    digits     the test accuracy; seeds of the same job without trouble are beside it"""

import contextlib
import json
import os
import signal
import statistics
import time
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file

from hogwild import host
from hogwild.errors import HogwildError
from hogwild.host import other_jobs
from hogwild.storage.run_files import write_request
from tests.faults.invariants import Counted, miscount
from tests.faults.tally import Tally, chance
from tests.helpers.jobs import HOME, JOBS
from tests.helpers.processes import NeverHappened, shared_memory_names, wait_for
from tests.helpers.service import Service, serving

NAME = "lending"
SAMPLES, BATCH = 2000, 4
EVERY_S = 0.4  # between two moments, on average
RESIZES, KILLS = 0.6, 0.3  # parts of the moments; the rest: a job is submitted, if few are there
MOST_JOBS, MOST_PROCS = 3, 4
PATIENT = (
    *("train.procs=auto", f"queue.elastic.max={MOST_PROCS}", "train.threads=1", "supervise.max_restarts=100000"),
    *("supervise.max_item_attempts=100000", "supervise.stall_timeout_s=900", "supervise.deadlock_timeout_s=900"),
)
COUNTING = (
    *(f"model.init_args.samples={SAMPLES}", f"data.train.init_args.samples={SAMPLES}", "model.init_args.pace_s=0.02"),
    "log.every_s=1",
)
DIGITS = ("train.epochs=600", "evaluate.every_epochs=100", "evaluate.metrics=[accuracy]")
ENDED = ("succeeded", "failed", "cancelled")


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` resizes by request; kills and moves of cores beside them."""
    os.environ["PYTHONPATH"] = str(HOME)
    folder.mkdir(parents=True, exist_ok=True)
    before = shared_memory_names()
    with serving(folder) as service:
        tally = _Troubled(service, chance(NAME, seed)).judged(count)
        service.stop()
    tally.violations += [f"left in shared memory: {name}" for name in shared_memory_names() - before]
    tally.injected = count
    tally.survived = 0 if tally.violations or tally.lost or tally.duplicated or tally.hangs else count
    tally.violations = [f"seed {seed}: {found}" for found in tally.violations]
    return tally


class _Troubled:
    """One service with its jobs. `kinds`: id -> what kind of job it is."""

    def __init__(self, service: Service, dice: Random) -> None:
        self._service, self._dice = service.start(), dice
        self._kinds: dict[str, str] = {}
        self._resizes = self._kills = 0

    def judged(self, count: int) -> Tally:
        tally = Tally()
        try:
            while self._resizes < count:
                self._strike()
            self._submit("calm")
            (self._service.folder / "hurry").touch()
            wait_for("the end of all jobs", lambda: all(row["state"] in ENDED for row in self._rows()), 300.0)
            self._judge(tally)
            wait_for("the end of all processes", lambda: not self._service.processes(), 30.0)
        except (AssertionError, NeverHappened, HogwildError) as error:
            tally.hangs += isinstance(error, NeverHappened)
            tally.violations.append(f"{error!r}\n{self._service.log()[-2000:]}")
        tally.note("kills", self._kills)
        return tally

    def _rows(self) -> list[dict[str, Any]]:
        return self._service.client.jobs()

    def _strike(self) -> None:
        until = time.monotonic() + self._dice.expovariate(1 / EVERY_S)
        wait_for("its moment", lambda: time.monotonic() >= until)
        live = [row for row in self._rows() if row["state"] not in ENDED]
        running = [row for row in live if row["state"] == "running"]
        moment = self._dice.random()
        if running and moment < RESIZES:
            row = self._dice.choice(running)
            write_request(Path(row["run_dir"]), {"ask": "resize", "procs": self._dice.randint(1, MOST_PROCS)})
            self._resizes += 1
        elif running and moment < RESIZES + KILLS:
            self._kill(self._dice.choice(running))
        elif len(live) < MOST_JOBS:
            self._submit(self._dice.choice(["counting", "counting", "digits"]))

    def _submit(self, kind: str) -> None:
        if kind == "counting":
            overrides = (*COUNTING, f"model.init_args.diary={self._service.folder}", *PATIENT)
            row = self._service.client.submit(JOBS / "counting.yaml", overrides)
        else:
            row = self._service.client.submit(None, (*DIGITS, f"seed={len(self._kinds) + 1}", *PATIENT))
        self._kinds[row["id"]] = kind

    def _kill(self, row: dict[str, Any]) -> None:
        """Kill a worker that has become ready: three starts that fail in a row would end the job by its own rules."""
        with contextlib.suppress(OSError, ValueError):
            workers = json.loads((Path(row["run_dir"]) / "status.json").read_text())["workers"]
            ready = [one["pid"] for one in workers if one["state"] in ("ready", "training") and one["pid"]]
            pidfd = other_jobs.open_child(self._dice.choice(ready), row["pid"]) if ready else None
            if pidfd is not None:
                self._kills += host.kill_by_pidfd(pidfd, signal.SIGKILL)
                os.close(pidfd)

    def _judge(self, tally: Tally) -> None:
        accuracies: dict[str, list[float]] = {"digits": [], "calm": []}
        moves = 0
        for row in self._rows():
            kind, run = self._kinds[row["id"]], Path(row["run_dir"])
            moves += sum(event["event"] == "moved" for event in self._service.events(row["id"]))
            if (row["state"], row["attempt"]) != ("succeeded", 1):
                tally.violations.append(f"{kind}: {row}")
                continue
            summary = json.loads((run / "summary.json").read_text())
            if kind != "counting":
                accuracies[kind].append(summary["metrics"]["accuracy"])
                continue
            effects = load_file(run / "checkpoints" / "latest" / "model.safetensors")["effects.weight"].flatten()
            wrong = miscount(effects, summary["leases"], summary["samples"], Counted.all_of(1, BATCH))
            tally.lost += wrong.lost
            tally.duplicated += wrong.duplicated
            tally.indeterminate += summary["leases"]["indeterminate"]
        tally.note("moves of cores", moves)
        tally.note("jobs", len(self._kinds))
        for kind, found in accuracies.items():
            if found:
                tally.note(f"accuracy, {kind}", statistics.fmean(found))
