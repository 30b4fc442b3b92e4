"""A running job as its run directory shows it to another program: events.jsonl and status.json, and a pidfd of every
worker, taken as soon as its number is known."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild import host_outside

EVENTS, STATUS, SUMMARY = "events.jsonl", "status.json", "summary.json"


def events_of(run_dir: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Whole lines of events.jsonl from the byte `offset` on, each with the offset after it. A torn last line, which a
    killed supervisor may leave and the next one cuts off, is none."""
    try:
        with open(run_dir / EVENTS, "rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            offset += len(line)
            yield offset, json.loads(line)


def read_json(file: Path) -> dict[str, Any]:
    """{} where there is none yet."""
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}


@dataclass(slots=True)
class Target:
    """A live worker. `has_trained`: this process has committed something. `is_doomed`: it was sent what ends it.
    `stopped_until_s`: on the monotonic clock, when it goes on."""

    pid: int
    incarnation: int
    pidfd: int
    has_trained: bool = False
    is_doomed: bool = False
    stopped_until_s: float = 0.0


class Watch:
    """One attempt of a job, whose supervisor is `pid`. `look` often; `close` gives the pidfds back."""

    def __init__(self, run_dir: Path, pid: int, offset: int = 0) -> None:
        self.run_dir, self.pid, self.offset = run_dir, pid, offset
        self.targets: dict[int, Target] = {}
        self.supervisor: Target | None = None
        self.has_started = False
        self.fruitless: dict[int, int] = {}  # worker -> its starts in a row that ended before it trained

    @property
    def has_spawned(self) -> bool:
        return bool(self.targets) or bool(self.fruitless)

    @property
    def is_training(self) -> bool:
        return any(target.has_trained for target in self.targets.values())

    def look(self) -> None:
        """Takes in what was written since the last time."""
        for offset, event in events_of(self.run_dir, self.offset):
            self.offset = offset
            if event["event"] == "start":
                self.has_started = event.get("pid") == self.pid
            elif event["event"] == "spawn":
                self._meet(event)
            elif event["event"] == "exit":
                self._forget(event["worker"])
        self._see_who_trains()

    def fit(self, worker: int, *, early: bool) -> Target | None:
        """The worker, if it may be hit: it trains, or, `early`, it starts for the first time since one of it trained:
        starts that fail in a row end a job by its own rules."""
        target = self.targets.get(worker)
        if target is None or target.is_doomed:
            return None
        may_be_hit = target.has_trained or (early and not self.fruitless.get(worker))
        return target if may_be_hit else None

    def close(self) -> None:
        for worker in list(self.targets):
            self._forget(worker)

    def _meet(self, event: dict[str, Any]) -> None:
        worker, pid = event["worker"], event["pid"]
        self._forget(worker)
        pidfd = host_outside.open_child(pid, self.pid)
        if pidfd is None:  # it died before we looked, and its exit comes next
            self.fruitless[worker] = self.fruitless.get(worker, 0) + 1
        else:
            self.targets[worker] = Target(pid, event["incarnation"], pidfd)

    def _forget(self, worker: int) -> None:
        target = self.targets.pop(worker, None)
        if target is not None:
            os.close(target.pidfd)
            self.fruitless[worker] = 0 if target.has_trained else self.fruitless.get(worker, 0) + 1

    def _see_who_trains(self) -> None:
        if all(target.has_trained for target in self.targets.values()):
            return
        for row in read_json(self.run_dir / STATUS).get("workers", ()):
            target = self.targets.get(row["worker"])
            if target is not None and target.pid == row["pid"] and row["state"] == "training":
                target.has_trained = True
