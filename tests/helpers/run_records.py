"""A run directory as a job would have left it, of any size, without a job: records and events of a made-up training
with kills, stalls, a rollback and a resume. The formats are those of docs/architecture.md."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGAN = 1_790_000_000.0
SAMPLES_PER_UPDATE = 32
JOB = """version: 1
name: made-up
model: {class_path: hogwild.models.Mlp, init_args: {features: 64, hidden: [128], classes: 10}}
loss: {class_path: torch.nn.CrossEntropyLoss}
data:
  train: {class_path: hogwild.data.Digits, init_args: {split: train}}
  val: {class_path: hogwild.data.Digits, init_args: {split: test}}
  batch_size: 32
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 1e-3}}
train: {epochs: 3}
"""
RESOLVED = JOB.replace("1e-3", "0.001").replace("{epochs: 3}", "{epochs: 30, procs: 4, grad_clip: null}")


@dataclass(frozen=True)
class Story:
    """The shape of a run. `records`: of training, one every `every_s`; `deaths`: spread over workers and time, every
    fourth after a stall; `rollback`, `resume`: whether there was one; `state`: as its end says, '' for a run that was
    killed and `running` for one that goes on."""

    records: int = 300
    workers: int = 4
    deaths: int = 6
    evaluations: int = 10
    checkpoints: int = 5
    every_s: float = 1.0
    rollback: bool = True
    resume: bool = True
    state: str = "succeeded"
    name: str = "made-up"
    per_worker: bool = True
    seed: int = 1


def write_run(folder: Path, story: Story = Story()) -> Path:
    """Makes `folder` a run directory; answers it."""
    folder.mkdir(parents=True)
    times = _times(story)
    (folder / "job.yaml").write_text(JOB)
    (folder / "resolved.yaml").write_text(RESOLVED)
    _write_json(folder / "env.json", _environment(story))
    add_lines(folder / "metrics.jsonl", *_metrics(story, times))
    add_lines(folder / "events.jsonl", *sorted(_events(story, times), key=lambda event: event["time"]))
    evaluations = [line for line in _metrics(story, times) if line["kind"] == "evaluation"]
    best = {"best": _best(evaluations, story)} if evaluations else {}
    _write_json(folder / "status.json", _status(story, times) | best)
    if story.state not in ("", "running"):
        _write_json(folder / "summary.json", _summary(story, times) | best)
    for number in range(1, story.checkpoints + 1):
        _checkpoint(folder / "checkpoints", number * story.records // max(1, story.checkpoints) * 10)
    return folder


def add_lines(file: Path, *lines: Any) -> None:
    """More records at the end of a file, as JSON."""
    with file.open("a") as stream:
        stream.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def _times(story: Story) -> list[float]:
    """Return the times of the records; after 60 % of them the job was left alone for a day, where there is a resume."""
    pause = 86_400.0 if story.resume else 0.0
    return [
        BEGAN + 3 + story.every_s * (number + 1) + (pause if number > 0.6 * story.records else 0.0)
        for number in range(story.records)
    ]


def _metrics(story: Story, times: list[float]) -> list[dict[str, Any]]:
    chance = random.Random(story.seed)
    lines: list[dict[str, Any]] = []
    every = max(1, story.records // max(1, story.evaluations))
    for number, time in enumerate(times, 1):
        position = {"epoch": number // 20, "updates": 10 * number, "samples": 10 * SAMPLES_PER_UPDATE * number}
        done = number / story.records
        loss = 2.3 * math.exp(-4 * done) + 0.02 + chance.gauss(0, 0.02 + 0.05 * math.exp(-4 * done))
        record = {"time": time, "kind": "train", **position, "loss": abs(loss)}
        if story.per_worker:
            record |= _of_workers(story, chance, number)
        lines.append(record)
        if story.evaluations and number % every == 0:
            accuracy = 0.98 - 0.85 * math.exp(-5 * done) + chance.gauss(0, 0.004)
            values = {"loss": 2.3 * math.exp(-3.6 * done) + 0.06 + 0.05 * done, "accuracy": accuracy, "seconds": 0.2}
            lines.append({"time": time + 0.1, "kind": "evaluation", **position, **values})
    if story.per_worker and times:
        counts = [int(2e5 * math.exp(-age / 3)) for age in range(30)] + [0] * 97 + [3]
        lines.append({"time": times[-1], "kind": "staleness", "updates": 10 * len(times), "counts": counts})
    return lines


def _of_workers(story: Story, chance: random.Random, number: int) -> dict[str, Any]:
    """Worker 1 is slow; every fiftieth record fell into a pause."""
    many = range(story.workers)
    speeds = [(300 if worker == 1 else 900) + chance.gauss(0, 40) for worker in many]
    usual = [chance.choices(("working", "waiting", "parked"), (9, 4 if worker == 1 else 1, 0.3))[0] for worker in many]
    own = [120_000_000 + 400 * number + 5_000_000 * worker for worker in many]
    return {
        "samples_per_s": sum(speeds),
        "lr": 0.05 * (0.5 ** (number * 4 // story.records)),
        "pss_bytes": 400_000_000 + sum(own),
        "workers": {
            "updates": [number * 3] * story.workers,
            "samples_per_s": [round(speed, 1) for speed in speeds],
            "phase": ["evaluating"] * story.workers if number % 50 == 0 else usual,
            "cpu": [round(0.9 + chance.gauss(0, 0.03), 2) for _ in many],
            "pss_bytes": own,
        },
    }


def _events(story: Story, times: list[float]) -> list[dict[str, Any]]:
    chance = random.Random(story.seed + 1)
    last = times[-1] if times else BEGAN + 3
    begins = [BEGAN, *([times[int(0.6 * len(times)) + 1] - story.every_s] if story.resume and len(times) > 9 else [])]
    events: list[dict[str, Any]] = []
    for attempt, begin in enumerate(begins):
        if attempt:  # a job records its resume before its start
            updates = 10 * int(0.6 * len(times))
            resume = {"time": begin - 0.01, "event": "resume", "checkpoint": f"update-{updates:09d}"}
            events.append(resume | {"updates": updates, "samples": updates * SAMPLES_PER_UPDATE, "records_cut": 1})
        events.append({"time": begin, "event": "start", "pid": 100, "plan": "procs 4 (as given)"})
        for worker in range(story.workers):
            place = {"worker": worker, "incarnation": 1}
            events.append({"time": begin + 0.1, "event": "spawn", **place, "pid": 200 + worker})
            events.append({"time": begin + 2.0 + 0.1 * worker, "event": "ready", **place, "update": "flat: SGD"})
    for number in range(story.deaths):
        events += _death(story, number, chance.choice(times), chance.randrange(story.workers))
    every = max(1, len(times) // max(1, story.checkpoints))
    for number in range(every, len(times) + 1, every):
        at = times[number - 1]
        events.append({"time": at + 0.2, "event": "pause", "seconds": 0.2 * story.every_s, "for": "checkpoint"})
        events.append({"time": at + 0.3, "event": "checkpoint", "name": f"update-{10 * number:09d}"})
    if story.rollback and len(times) > 9:
        at = len(times) // 3
        back = {"from_updates": 10 * at, "updates": 9 * at, "samples": 9 * at * SAMPLES_PER_UPDATE, "lr_factor": 0.5}
        why = "32 batches in a row were not finite"
        events.append({"time": times[at], "event": "rollback", "checkpoint": "update-000000900", **back, "reason": why})
    if story.state not in ("", "running"):
        events.append({"time": last + 0.5, "event": "end", "state": story.state, "reason": "epochs"})
    return events


def _death(story: Story, number: int, at: float, worker: int) -> list[dict[str, Any]]:
    place = {"worker": worker, "incarnation": 2 + number}
    stalled = number % 4 == 3
    kind, how = ("stalled", "silent for 61 s") if stalled else ("died", "SIGKILL: perhaps out of memory")
    gone = {
        "time": at + 1,
        "event": "exit",
        "worker": worker,
        "pid": 300 + number,
        "kind": kind,
        "how": how,
        "freed": 3,
    }
    stall = {"time": at, "event": "stall", "worker": worker, "why": "is silent for 61 s (supervise.stall_timeout_s)"}
    return [
        *([stall] if stalled else []),
        gone,
        {"time": at + 1.01, "event": "restart", **place},
        {"time": at + 1.02, "event": "spawn", **place, "pid": 400 + number},
        {"time": at + 1.02 + 2 * story.every_s, "event": "ready", **place},
    ]


def _environment(story: Story) -> dict[str, Any]:
    return {
        "hogwild": "0.1.0",
        "caller": "command line",
        "host": {"cpu": "a processor", "cores": 4, "memory_bytes": 2**34},
        "plan": {"procs": story.workers, "threads": 1, "reason": f"procs {story.workers} (as given)", "cores": []},
        "argv": ["hogwild", "train"],
    }


def _position(story: Story) -> dict[str, Any]:
    return {"updates": 10 * story.records, "samples": 10 * SAMPLES_PER_UPDATE * story.records}


def _status(story: Story, times: list[float]) -> dict[str, Any]:
    state = story.state or "running"
    position = {**_position(story), "planned_updates": 12 * story.records, "wall_s": story.every_s * len(times)}
    return {"time": times[-1] if times else BEGAN, "state": state, **position, "restarts": story.deaths, "pid": 100}


def _summary(story: Story, times: list[float]) -> dict[str, Any]:
    return {
        "state": story.state,
        "reason": "epochs",
        "name": story.name,
        "wall_s": story.every_s * len(times),
        **_position(story),
        "samples_per_s": 3000.0,
        "procs": story.workers,
        "metrics": {"loss": 0.11, "accuracy": 0.974},
        "restarts": story.deaths,
        "staleness": {"p50": 2, "p99": 13, "max": 140},
        "peak_pss_bytes": 2**30,
        "advice": "4 workers trained 1.05 times as fast as one: they share 2 usable cores",
    }


def _best(evaluations: list[dict[str, Any]], story: Story) -> dict[str, Any]:
    best = min(evaluations, key=lambda line: line["loss"])
    checkpoint = "update-000000100" if story.checkpoints else None
    return {**{name: best[name] for name in ("updates", "epoch")}, "metric": "loss", "value": best["loss"]} | {
        "checkpoint": checkpoint
    }


def _checkpoint(folder: Path, update: int) -> None:
    one = folder / f"update-{update:09d}"
    one.mkdir(parents=True, exist_ok=True)
    files = {"model.safetensors": {"size": 38_784}, "state.pt": {"size": 120_000}}
    manifest = {"created": "2026-09-21T14:13:20+00:00", "files": files, "update": update, "name": one.name}
    _write_json(one / "manifest.json", manifest | {"meta": {"metrics": {"loss": 0.2}}})


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value))
