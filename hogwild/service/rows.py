"""The rows of all jobs, as readers see them: each made again only if its record, its run or its wait has changed. Used
by the loop's thread; any thread may read `snapshot`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hogwild.errors import headline
from hogwild.monitoring.run_status import snapshot_of
from hogwild.service.folders import JobFolder, StateFolder
from hogwild.service.states import JobOrder, JobRecord
from hogwild.service.store import Store
from hogwild.storage.files import to_json
from hogwild.storage.run_files import read_json, status_file

Row = dict[str, Any]
OF_JOB = (
    *("id", "state", "error", "error_code", "exit_status", "attempt", "pid", "started", "ended", "moves", "fixed"),
    "code_at",
)
OF_ORDER = ("number", "name", "job_file", "submitted", "priority", "cpus", "memory", "is_search")
SNAPSHOT = (
    "progress",
    "left_s",
    "epoch",
    "epochs",
    "updates",
    "samples",
    "samples_per_s",
    "loss",
    "metrics",
    "restarts",
)


def row_of(job: JobRecord, order: JobOrder, folder: JobFolder, record: Mapping[str, Any], waits: str | None) -> Row:
    """Return the row of a job. `record`: its run's status.json; `waits`: why a queued job waits."""
    snapshot = snapshot_of({"name": order.name, "run_dir": "", **record}) if record else None
    figures = {name: getattr(snapshot, name) for name in SNAPSHOT} if snapshot else dict.fromkeys(SNAPSHOT)
    if snapshot and snapshot.loss is None:  # nothing was trained since the last record
        figures["loss"] = snapshot.train_loss
    is_training = job.state in ("running", "stopping")
    if not is_training:
        figures.update(left_s=None, samples_per_s=None if snapshot is None else snapshot.samples_per_s)
    return {
        **{name: getattr(job, name) for name in OF_JOB},
        **{name: getattr(order, name) for name in OF_ORDER},
        "doing": snapshot.state if snapshot and is_training else None,
        "reason": waits if job.state == "queued" and waits else _reason(job),
        "run_dir": str(folder.run),
        "folder": None if order.job_folder == str(folder.files) else order.job_folder,
        "overrides": [*order.overrides, *order.changes],
        "tags": list(order.tags),
        "gpus": list(job.gpus),
        "cores": list(job.cores),
        "elastic": {"min": order.elastic.least, "max": order.elastic.most} if order.elastic else None,
        "moving_to": list(job.move.cores) if job.move else None,
        "best": to_json(asdict(snapshot.best)) if snapshot and snapshot.best else None,
        "trials": record.get("trials"),
        "workers": len(snapshot.workers) if snapshot else None,
        **to_json(figures),
    }


def _reason(job: JobRecord) -> str | None:
    """Return why a job is in its state. A run of an earlier version has its error's code there."""
    return headline(job.error) if job.error and job.reason == job.error_code else job.reason


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All jobs at one moment. `rows`: id -> (version at which the row changed last, row as JSON); oldest job first."""

    version: int = 0
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)


class JobRows:
    """The present rows and the last snapshot of them."""

    def __init__(self, state: StateFolder, store: Store) -> None:
        self._state, self._store = state, store
        self.snapshot = Snapshot()
        self._looked: dict[str, tuple[Any, dict[str, Any]]] = {}  # (identity of status.json, content)
        self._rows: dict[str, tuple[tuple[Any, ...], Row]] = {}  # (what a row was made from, row)
        self._shown: dict[str, Row] = {}  # rows of the snapshot

    def record(self, name: str) -> dict[str, Any]:
        """Return the run's status.json, read again only if it was replaced."""
        file = status_file(self._state.job(name).run)
        try:
            found = file.stat()
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            identity = None
        before = self._looked.get(name)
        if before is None or before[0] != identity:
            self._looked[name] = before = (identity, read_json(file.parent, file.name) if identity else {})
        return before[1]

    def row(self, name: str, waits: str | None) -> Row:
        """Return a job's row. `waits`: why it waits."""
        job = self._store.jobs[name]
        # A run that no process writes does not change: its file is looked at once.
        record = self.record(name) if job.is_live or name not in self._looked else self._looked[name][1]
        made_from = (job, self._looked[name][0], waits)
        known = self._rows.get(name)
        if known is None or known[0] != made_from:
            row = row_of(job, self._store.orders[name], self._state.job(name), record, waits)
            self._rows[name] = known = (made_from, row)
        return known[1]

    def publish(self, waits: Mapping[str, str]) -> bool:
        """Make a new snapshot if anything changed; return whether it did."""
        before, version = self.snapshot.rows, self.snapshot.version + 1
        rows = {}
        for name in self._store.jobs:
            row = self.row(name, waits.get(name))
            known = before.get(name)
            if known is not None and self._shown.get(name) is row:
                rows[name] = known
                continue
            text = json.dumps(row, separators=(",", ":"))
            self._shown[name] = row
            rows[name] = known if known is not None and known[1] == text else (version, text)
        if rows == before:
            return False
        self.snapshot = Snapshot(version, rows)
        return True

    def look_again(self, name: str) -> None:
        """Read the run's status.json again: its process has ended."""
        self._looked.pop(name, None)

    def forget(self, name: str) -> None:
        """Forget a removed job."""
        for table in (self._looked, self._rows, self._shown):
            table.pop(name, None)
