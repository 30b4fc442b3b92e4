"""The live workers of a running job, seen from outside as a person would: events.jsonl says who was started and who is
gone, status.json who has committed something. A worker is held by a pidfd from the moment it is seen, so that no signal
can meet a stranger."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from hogwild import host_outside
from hogwild.chaos.watch import events_of
from tests.helpers.jobs import Job


@dataclass(slots=True)
class Member:
    """One incarnation of a worker. Times are of the monotonic clock, when it was seen: `began_s` its start,
    `trains_since_s` its first commit."""

    worker: int
    incarnation: int
    pid: int
    pidfd: int
    began_s: float
    trains_since_s: float | None = None

    def send(self, number: int) -> bool:
        """False when it was gone already."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """It is gone: from now on its number may be somebody else's."""
        os.close(self.pidfd)
        self.pidfd = -1


class Roll:
    """Of one attempt of a job: call `look` often. `exits` are the exit events of that attempt; `updates` what
    status.json says. A context: at its end the pidfds are closed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.alive: dict[int, Member] = {}
        self.exits: list[dict[str, Any]] = []
        self.died_starting: set[int] = set()  # workers whose last incarnation never committed anything
        self.updates = 0
        self._offset = 0  # bytes of events.jsonl taken in
        self._is_ours = False  # since the start event of this attempt

    def __enter__(self) -> "Roll":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.alive.values():
            member.close()
        self.alive.clear()

    @property
    def is_over(self) -> bool:
        return self.job.process.poll() is not None

    def look(self) -> None:
        """Takes in what was written since the last look."""
        for offset, event in events_of(self.job.run_dir, self._offset):
            self._offset = offset
            if event["event"] == "start":
                self._is_ours = event["pid"] == self.job.process.pid
            elif self._is_ours and event["event"] == "spawn":
                self._enter(event)
            elif self._is_ours and event["event"] == "exit":
                self._leave(event)
        status = self.job.status() if self._is_ours else {}
        self.updates = max(self.updates, int(status.get("updates", 0)))
        for row in status.get("workers", []):
            member = self.alive.get(row["worker"])
            if member is not None and member.pid == row["pid"] and row["state"] == "training":
                member.trains_since_s = member.trains_since_s or time.monotonic()

    def _enter(self, event: dict[str, Any]) -> None:
        pidfd = host_outside.open_child(event["pid"], self.job.process.pid)
        if pidfd is not None:  # else it died before we looked
            member = Member(event["worker"], event["incarnation"], event["pid"], pidfd, time.monotonic())
            self.alive[member.worker] = member

    def _leave(self, event: dict[str, Any]) -> None:
        self.exits.append(event)
        member = self.alive.pop(event["worker"], None)
        if member is not None:
            member.close()
            (self.died_starting.add if member.trains_since_s is None else self.died_starting.discard)(member.worker)

    def training(self) -> list[Member]:
        """Those that have committed something, by number."""
        return [self.alive[worker] for worker in sorted(self.alive) if self.alive[worker].trains_since_s is not None]
