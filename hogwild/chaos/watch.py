"""A running job as seen by another program through its run directory: events.jsonl and status.json. A pidfd of every
worker and loader is opened as soon as its number is known, so that no signal can hit another process."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.host import other_jobs
from hogwild.storage.run_files import read_json

EVENTS, STATUS, SUMMARY = "events.jsonl", "status.json", "summary.json"
PREFIX = {"worker": "", "loader": "loader-"}  # role -> how the names of its events begin


def events_of(run_dir: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete lines of events.jsonl from the byte `offset` on, each with the offset after it. An incomplete
    last line, which a killed supervisor may leave and the next one cuts off, is skipped."""
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


@dataclass(slots=True)
class Target:
    """A live worker or loader. Times are on the monotonic clock: `began_s` and `trains_since_s` are when its start and
    its first commit (a loader's first batch) were seen, `stopped_until_s` is when it continues. `is_doomed`: it got a
    deadly signal."""

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
        """True if this process has committed something."""
        return self.trains_since_s is not None

    def send(self, number: int) -> bool:
        """Send a signal; return False if the process was gone already."""
        return self.pidfd >= 0 and host.kill_by_pidfd(self.pidfd, number)

    def close(self) -> None:
        """Close the pidfd of a dead process: its number may be reused from now on."""
        os.close(self.pidfd)
        self.pidfd = -1


class Watch:
    """One attempt of a job, whose supervisor is `pid`. Records before its start, from the byte `offset` on, belong to
    another attempt. Call `look` often. A context manager, which closes the pidfds."""

    def __init__(self, run_dir: Path, pid: int, offset: int = 0) -> None:
        self.run_dir, self.pid, self.offset = run_dir, pid, offset
        self.of: dict[str, dict[int, Target]] = {role: {} for role in PREFIX}
        self.targets = self.of["worker"]
        self.exits: list[dict[str, Any]] = []  # the exit events so far
        self.has_started = False
        self.fruitless: dict[int, int] = {}  # worker -> its consecutive starts that ended before it trained

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        for role, targets in self.of.items():
            for number in list(targets):
                self._drop(role, number)

    @property
    def has_spawned(self) -> bool:
        return bool(self.targets) or bool(self.fruitless)

    @property
    def is_training(self) -> bool:
        return bool(self.training())

    def training(self) -> list[Target]:
        """Return the workers that have committed something, by number."""
        return [self.targets[worker] for worker in sorted(self.targets) if self.targets[worker].has_trained]

    def look(self) -> None:
        """Read the events written since the last call."""
        for offset, event in events_of(self.run_dir, self.offset):
            self.offset = offset
            if event["event"] == "start":
                self.has_started = event.get("pid") == self.pid
            elif self.has_started:
                self._follow(event)
        self._see_who_trains()

    def _follow(self, event: dict[str, Any]) -> None:
        for role, prefix in PREFIX.items():
            if event["event"] == f"{prefix}spawn":
                self._record(role, event)
            elif event["event"] == f"{prefix}exit":
                self._drop(role, event[role])
                if role == "worker":
                    self.exits.append(event)

    def fit(self, role: str, place: int, *, early: bool) -> Target | None:
        """Return the process of a role that may be hit: it trains or, with `early`, it is in the first start since this
        worker last trained. Starts that fail in a row would end the job by its own rules. `place`: among the existing
        loaders, of which there are often fewer than planned (one reads data that cannot be divided); a worker's
        number."""
        there = self.of[role]
        number = place if role == "worker" or not there else sorted(there)[place % len(there)]
        target = there.get(number)
        if target is None or target.is_doomed:
            return None
        may_be_hit = target.has_trained or (early and not self.fruitless.get(number))
        return target if may_be_hit else None

    def strike_server(self, number: int) -> None:
        """Send a signal to the fork server, if there is one. A stopped one ends with the job, or at the next start."""
        server = read_json(self.run_dir, STATUS).get("server")
        pidfd = other_jobs.open_child(server["pid"], self.pid) if server else None
        if pidfd is not None:
            host.kill_by_pidfd(pidfd, number)
            os.close(pidfd)

    def _record(self, role: str, event: dict[str, Any]) -> None:
        number, pid = event[role], event["pid"]
        self._drop(role, number)
        pidfd = other_jobs.open_child(pid, self.pid)
        if pidfd is not None:
            self.of[role][number] = Target(number, event["incarnation"], pid, pidfd, time.monotonic())
        elif role == "worker":  # it died before we looked; its exit event comes next
            self.fruitless[number] = self.fruitless.get(number, 0) + 1

    def _drop(self, role: str, number: int) -> None:
        if (target := self.of[role].pop(number, None)) is None:
            return
        target.close()
        if role == "worker":
            self.fruitless[number] = 0 if target.has_trained else self.fruitless.get(number, 0) + 1

    def _see_who_trains(self) -> None:
        if all(target.has_trained for targets in self.of.values() for target in targets.values()):
            return
        status = read_json(self.run_dir, STATUS)
        for role, targets in self.of.items():
            for row in status.get(f"{role}s", ()):
                target = targets.get(row[role])
                if target is not None and target.pid == row["pid"] and row["state"] == "training":
                    target.trains_since_s = target.trains_since_s or time.monotonic()
