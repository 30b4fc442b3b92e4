"""A running job as its run directory shows it to another program: events.jsonl and status.json, and a pidfd of every
worker and loader, taken as soon as its number is known, so that no signal can meet a stranger."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.host import other_jobs

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
    """A live worker, or loader. Times are of the monotonic clock: `began_s` and `trains_since_s` are when its start and
    its first commit (a loader's first batch) were seen, `stopped_until_s` when it goes on. `is_doomed`: it was sent
    what ends it."""

    worker: int
    incarnation: int
    pid: int
    pidfd: int
    began_s: float
    trains_since_s: float | None = None
    is_doomed: bool = False
    stopped_until_s: float = 0.0

    @property
    def has_trained(self) -> bool:
        """This process has committed something."""
        return self.trains_since_s is not None

    def send(self, number: int) -> bool:
        """False when it was gone already."""
        return self.pidfd >= 0 and host.kill_by_pidfd(self.pidfd, number)

    def close(self) -> None:
        """It is gone: from now on its number may be somebody else's."""
        os.close(self.pidfd)
        self.pidfd = -1


class Watch:
    """One attempt of a job, whose supervisor is `pid`: what is in the records before its start, from the byte `offset`
    on, is another's. `look` often; a context, which gives the pidfds back."""

    def __init__(self, run_dir: Path, pid: int, offset: int = 0) -> None:
        self.run_dir, self.pid, self.offset = run_dir, pid, offset
        self.targets: dict[int, Target] = {}
        self.loaders: dict[int, Target] = {}
        self.exits: list[dict[str, Any]] = []  # the exit events so far
        self.has_started = False
        self.fruitless: dict[int, int] = {}  # worker -> its starts in a row that ended before it trained

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self.targets):
            self._forget(worker)
        for loader in list(self.loaders):
            self.loaders.pop(loader).close()

    @property
    def has_spawned(self) -> bool:
        return bool(self.targets) or bool(self.fruitless)

    @property
    def is_training(self) -> bool:
        return bool(self.training())

    def training(self) -> list[Target]:
        """Those that have committed something, by number."""
        return [self.targets[worker] for worker in sorted(self.targets) if self.targets[worker].has_trained]

    def look(self) -> None:
        """Takes in what was written since the last time."""
        for offset, event in events_of(self.run_dir, self.offset):
            self.offset = offset
            if event["event"] == "start":
                self.has_started = event.get("pid") == self.pid
            elif self.has_started and event["event"] == "spawn":
                self._meet(event)
            elif self.has_started and event["event"] == "exit":
                self.exits.append(event)
                self._forget(event["worker"])
            elif self.has_started and event["event"] in ("loader-spawn", "loader-exit"):
                self._follow_loader(event)
        self._see_who_trains()

    def fit(self, worker: int, *, early: bool) -> Target | None:
        """The worker, if it may be hit: it trains, or, `early`, it starts for the first time since one of it trained:
        starts that fail in a row end a job by its own rules."""
        target = self.targets.get(worker)
        if target is None or target.is_doomed:
            return None
        may_be_hit = target.has_trained or (early and not self.fruitless.get(worker))
        return target if may_be_hit else None

    def fit_loader(self, place: int) -> Target | None:
        """The one at that place among those that are there, as often as not fewer than were planned (one reads what
        cannot be divided); if it has filled a slot."""
        there = sorted(self.loaders)
        target = self.loaders[there[place % len(there)]] if there else None
        return target if target is not None and target.has_trained and not target.is_doomed else None

    def _follow_loader(self, event: dict[str, Any]) -> None:
        if (gone := self.loaders.pop(event["loader"], None)) is not None:
            gone.close()
        pidfd = other_jobs.open_child(event["pid"], self.pid) if event["event"] == "loader-spawn" else None
        if pidfd is not None:
            made = Target(event["loader"], event["incarnation"], event["pid"], pidfd, time.monotonic())
            self.loaders[event["loader"]] = made

    def _meet(self, event: dict[str, Any]) -> None:
        worker, pid = event["worker"], event["pid"]
        self._forget(worker)
        pidfd = other_jobs.open_child(pid, self.pid)
        if pidfd is None:  # it died before we looked, and its exit comes next
            self.fruitless[worker] = self.fruitless.get(worker, 0) + 1
        else:
            self.targets[worker] = Target(worker, event["incarnation"], pid, pidfd, time.monotonic())

    def _forget(self, worker: int) -> None:
        target = self.targets.pop(worker, None)
        if target is not None:
            target.close()
            self.fruitless[worker] = 0 if target.has_trained else self.fruitless.get(worker, 0) + 1

    def _see_who_trains(self) -> None:
        if all(target.has_trained for target in (*self.targets.values(), *self.loaders.values())):
            return
        status = read_json(self.run_dir / STATUS)
        for noun, targets in (("worker", self.targets), ("loader", self.loaders)):
            for row in status.get(f"{noun}s", ()):
                target = targets.get(row[noun])
                if target is not None and target.pid == row["pid"] and row["state"] == "training":
                    target.trains_since_s = target.trains_since_s or time.monotonic()
