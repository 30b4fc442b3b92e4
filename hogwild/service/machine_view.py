"""The machine as the page shows it: cores and GPUs by job, memory, and the moves of cores between jobs."""

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from hogwild import host
from hogwild.service.rows import Snapshot
from hogwild.service.schedule import Machine
from hogwild.service.states import LIVE

MOST_MOVES = 200
MEMORY_S = 1.0  # between two looks at the free memory
MEMORY_STEPS = 100  # of the whole memory: a smaller change of the free part is not worth an event


class MachineView:
    """Cores and memory by job, from the rows of each snapshot. `update` in one thread."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._total_bytes = host.machine_memory().bytes
        self._seen = 0  # version of the last snapshot
        self._live: dict[str, Mapping[str, Any]] = {}  # rows of live jobs
        self._owners: dict[int, str] = {}  # first logical CPU of a core -> job
        self._moves: deque[dict[str, Any]] = deque(maxlen=MOST_MOVES)
        self._text, self._until_s = "", 0.0

    def update(self, snapshot: Snapshot) -> str:
        """Return the machine as JSON; the same text while nothing worth an event has changed."""
        if snapshot.version == self._seen and time.monotonic() < self._until_s:
            return self._text
        self.look(snapshot)
        self._until_s = time.monotonic() + MEMORY_S
        step = max(1, int(self._total_bytes) // MEMORY_STEPS)
        shown = {
            "cores": [{"cpus": list(cpus), "job": self._owners.get(cpus[0])} for cpus in self._machine.cores],
            "gpus": [{"name": name, "job": self._job_with(name)} for name in self._machine.gpus],
            "memory": {
                "total_bytes": int(self._total_bytes),
                "free_bytes": int(host.available_memory().bytes) // step * step,
                "reserved_bytes": sum(row["memory"] for row in self._live.values()),
            },
            "moves": list(self._moves),
        }
        self._text = json.dumps(shown, separators=(",", ":"))
        return self._text

    def look(self, snapshot: Snapshot) -> None:
        """Note the changes since the last snapshot."""
        if snapshot.version == self._seen:
            return
        is_first = not self._seen
        for name, (version, text) in snapshot.rows.items():
            if version > self._seen:
                row = json.loads(text)
                if row["state"] in LIVE:
                    self._live[name] = row
                else:
                    self._live.pop(name, None)
        for name in self._live.keys() - snapshot.rows.keys():
            del self._live[name]
        self._seen = snapshot.version
        owner_of = {cpu: name for name, row in self._live.items() for cpu in row["cores"]}
        owners = {cpus[0]: owner_of[cpus[0]] for cpus in self._machine.cores if cpus[0] in owner_of}
        if not is_first:
            self._note(owners)
        self._owners = owners

    def _note(self, owners: Mapping[int, str]) -> None:
        """Add a move for each two jobs between which cores have changed."""
        moved: dict[tuple[str | None, str | None], list[int]] = {}
        for cpus in self._machine.cores:
            before, after = self._owners.get(cpus[0]), owners.get(cpus[0])
            if before != after:
                moved.setdefault((before, after), []).extend(cpus)
        for (before, after), cpus_of in moved.items():
            had, has = set(self._owners.values()), set(owners.values())
            if before in self._live and after is not None:
                why = "lent"
            elif after is not None:
                why = "grows" if after in had else "starts"
            else:
                why = "shrinks" if before in has else "ends"
            self._moves.append({"at": time.time(), "cpus": cpus_of, "from": before, "to": after, "why": why})

    def _job_with(self, gpu: str) -> str | None:
        return next((name for name, row in self._live.items() if gpu in row["gpus"]), None)


def live_and_newest(snapshot: Snapshot, count: int) -> Iterable[tuple[str, str]]:
    """Return (id, run directory) of all live jobs and of the newest `count` others."""
    found, others = [], 0
    for name, (_, text) in reversed(snapshot.rows.items()):
        row = json.loads(text)
        is_live = row["state"] in LIVE
        others += not is_live
        if is_live or others <= count:
            found.append((name, row["run_dir"]))
    return found
