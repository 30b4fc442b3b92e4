"""The service is killed at random moments and at its failpoints, while jobs of no, short and long length are submitted
and run. In the end every accepted job has run once, and no process is left."""

import contextlib
import json
import os
import time
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file

from hogwild.errors import ServiceError
from hogwild.service import client
from hogwild.service.failpoints import POINTS
from tests.faults.tally import Tally, chance
from tests.helpers.jobs import HOME, JOBS
from tests.helpers.processes import NeverHappened, wait_for
from tests.helpers.service import Service, serving

NAME = "service"
KILLS_A_JOB = 2.5
EVERY_S = 1.0  # between a start and a kill, on average
LATEST_S = 4.0  # for a failpoint that is perhaps never reached
SAMPLES = 200
ENDED = ("succeeded", "failed", "cancelled")
COUNTING = JOBS / "counting.yaml"
KINDS = {
    "none": ("model.class_path=nowhere.Net",),
    "short": ("train.procs=0",),
    "long": ("train.procs=1", "model.init_args.pace_s=0.04"),
    "elastic": ("train.procs=auto", "model.init_args.pace_s=0.04"),
}


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` kills."""
    os.environ["PYTHONPATH"] = str(HOME)
    client.AGAIN_S = 0.0  # the next service comes when we start it
    folder.mkdir(parents=True, exist_ok=True)
    tally, dice = Tally(), chance(NAME, seed)
    with serving(folder) as service:
        accepted: dict[str, str] = {}
        try:
            for _ in range(count):
                _life(service, dice, accepted, int(count / KILLS_A_JOB))
            tally.injected = count
            service.start()
            wait_for("the end of all jobs", lambda: all(row["state"] in ENDED for row in service.client.jobs()))
            _judge(service, accepted, tally)
            wait_for("the end of all processes", lambda: not service.processes(), 30.0)
        except (AssertionError, NeverHappened, ServiceError) as error:
            tally.hangs += isinstance(error, NeverHappened)
            tally.violations.append(f"{error!r}\n{service.log()[-2000:]}")
    tally.survived = 0 if tally.violations or tally.lost or tally.duplicated else tally.injected
    tally.violations = [f"seed {seed}: {found}" for found in tally.violations]
    tally.note("jobs", len(accepted))
    return tally


def _life(service: Service, dice: Random, accepted: dict[str, str], most: int) -> None:
    """Start a service, submit jobs, and kill it."""
    point = f"{dice.choice(POINTS)}:{dice.randint(1, 4)}" if dice.random() < 0.5 else ""
    service.start(failpoint=point)
    for _ in range(dice.randint(0, 2)):
        if len(accepted) < most:
            kind = dice.choice(list(KINDS))
            with contextlib.suppress(ServiceError):
                accepted[_submit(service, kind)["id"]] = kind
    if accepted and dice.random() < 0.2:
        with contextlib.suppress(ServiceError):
            service.client.jobs()
    until = time.monotonic() + (LATEST_S if point else dice.expovariate(1 / EVERY_S))
    wait_for("its moment", lambda: service.has_ended or time.monotonic() >= until)
    service.kill()


def _submit(service: Service, kind: str) -> dict[str, Any]:
    shared = ("train.threads=1", f"model.init_args.samples={SAMPLES}", f"data.train.init_args.samples={SAMPLES}")
    return service.client.submit(COUNTING, (*shared, f"model.init_args.diary={service.folder}", *KINDS[kind]))


def _judge(service: Service, accepted: dict[str, str], tally: Tally) -> None:
    """Count jobs that are lost, and those that ran twice. A job of a client that got no answer may exist, too."""
    rows = {row["id"]: row for row in service.client.jobs()}
    tally.lost = len(accepted.keys() - rows.keys())
    for name, row in rows.items():
        if accepted.get(name) == "none" or row["error_code"] == "config/no-such-module":
            tally.lost += row["state"] != "failed"
            continue
        if row["state"] != "succeeded":
            tally.lost += 1
            tally.violations.append(f"job {name}: {row}")
            continue
        run = service.state.job(name).run
        effects = load_file(run / "checkpoints" / "latest" / "model.safetensors")["effects.weight"].flatten()
        starts = (run / "events.jsonl").read_text().count('"event":"start"')
        is_once = bool((effects == 1).all()) and starts == 1
        tally.duplicated += not is_once
        assert json.loads((run / "summary.json").read_text())["leases"]["total"] == SAMPLES // 4
