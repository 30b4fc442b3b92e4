"""All output of a running job: records, events, the status file, Prometheus metrics, TensorBoard files, the
supervisor's log, and messages and pictures on standard error.

A full disk or a lost terminal must not stop training, so nothing here raises: a failed write is reported once, on
standard error if possible. A slow disk or a terminal that does not read must not, either: threads write the replaced
files (slow on a file system busy with a checkpoint), standard error and TensorBoard's files; a line is only appended to
the kernel's page cache.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hogwild.config.load import Job
from hogwild.formatting import flat
from hogwild.host.background_thread import Background
from hogwild.job.update_choice import ConflictEstimate, UpdateChoice
from hogwild.monitoring import prometheus
from hogwild.monitoring.callbacks import Callbacks
from hogwild.monitoring.run_status import ClusterSnapshot, JobSnapshot, record_of, standing
from hogwild.monitoring.tensorboard import Curves, is_installed
from hogwild.monitoring.terminal_writer import Look
from hogwild.monitoring.words import event_in_words
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage.files import Records, tried
from hogwild.storage.run_directory import STATUS, RunDir
from hogwild.workers.session.startup import StartUp

LAST_STATUS_S = 10.0
NEWS = 8  # number of latest events in a snapshot
NEWS_EVERY_S = 0.1  # least time between two pictures for events: a crash loop has many
# Shown in another form, or of no interest.
NOT_NEWS = ("start", "spawn", "loader-spawn", "communicator-spawn", "update", "pause", "evaluation", "end")


class Journal:
    """The journal of one job, in the supervisor. Its first record ends the `startup`, whose screen it writes to."""

    def __init__(
        self,
        rundir: RunDir,
        job: Job,
        startup: StartUp,
        curves: Curves | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.rundir = rundir
        self.every_s = job.log.every_s
        self._jsonl = job.log.jsonl
        self._startup, self._screen = startup, startup.screen
        self._curves = curves
        self.callbacks = callbacks or Callbacks()
        self._log = Records(rundir.supervisor_log)
        self._news: deque[str] = deque(maxlen=NEWS)
        self._has_news = False
        self._snapshot = JobSnapshot(job.name, str(rundir.path), "starting")
        self._complained = False
        self._next_status = 0.0
        self._next_snapshot = 0.0
        self._status = Background("status")

    def start(self) -> None:
        """Start the threads early, before a loop that must not wait for that."""
        self._status.start()
        self._screen.start()

    def update(self, choice: UpdateChoice, conflicts: ConflictEstimate) -> None:
        """Report the path of updates and the shared parameters, if there was a choice."""
        if choice.is_worth_saying:
            self.show_message(f"update: {choice.why}")
        for sentence in conflicts.words:
            self.show_message(f"  {sentence}")
        self.event("update", kind=choice.kind, why=choice.why, meetings=list(conflicts.words))

    @property
    def news(self) -> tuple[str, ...]:
        """The latest events, each with its time of day."""
        return tuple(self._news)

    # ---- events ------------------------------------------------------------------------------------------

    def event(self, kind: str, /, **values: Any) -> None:
        """Write one line to events.jsonl and to the supervisor's log, and tell the callbacks."""
        self._kept(self.rundir.events.try_append({"time": time.time(), "event": kind, **values}))
        words = " ".join(f"{key}={value}" for key, value in values.items() if value not in ("", None))
        line = f"{kind} {words}".rstrip()
        self._kept(self._log.try_append_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}"))
        if kind not in NOT_NEWS:
            title, detail = event_in_words({"event": kind, **values})
            self._news.append(f"{time.strftime('%H:%M:%S')}  {title}{': ' * bool(detail)}{detail}")
            self._has_news = True
        self.callbacks.tell(kind, self.rundir.path, values)
        if kind == "signal":
            self._next_status = 0.0  # status.json says so at once
        if kind in ("resume", "rollback") and self._curves is not None:
            self._curves.go_on_from(values.get("samples", 0))

    def metrics(self, kind: str, **values: Any) -> None:
        """Write one line to metrics.jsonl; `values` always include `updates`, so that a resume can cut lost records."""
        record = {"time": round(time.time(), 3), "kind": kind, **values}
        if self._jsonl:
            self._kept(self.rundir.metrics.try_append(record))
        if self._curves is not None:
            self._curves.write(record)
            self._look_at(self._curves)

    def show_message(self, message: str) -> None:
        """Show a message on the terminal, and log it."""
        self._screen.show_message(message)
        self._kept(self._log.try_append_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}"))

    def rejected(self, reasons: Iterable[str]) -> None:
        """Report checkpoints that were rejected for an older one."""
        for reason in reasons:
            self.show_message(f"warning: {reason}")
            self.event("checkpoint-rejected", reason=reason)

    # ---- the job at one moment ---------------------------------------------------------------------------------

    def is_status_due(self, now: float) -> bool:
        if now < self._next_status:
            return False
        self._next_status = now + self.every_s
        return True

    def wants_snapshot(self, now: float) -> bool:
        """Return whether there is news that a watching person should see at once."""
        return self._screen.look is Look.LIVE and self._has_news and now >= self._next_snapshot

    def show(self, now: float, snapshot: JobSnapshot) -> None:
        """Show the snapshot, on the terminal only."""
        self._has_news, self._next_snapshot = False, now + NEWS_EVERY_S
        self._screen.show(snapshot)

    def record(
        self,
        now: float,
        snapshot: JobSnapshot,
        more: Mapping[str, Any],
        workers: Mapping[str, Any] | None = None,
        *,
        stands: bool = False,
    ) -> None:
        """Write the snapshot everywhere: metrics.jsonl and the curves, if something was trained since the last time or
        the job `stands` (0 samples/s); status.json, with `more`, and metrics.prom; the terminal. `workers`: their part
        of the record, when due."""
        self._startup.end()
        self._snapshot = snapshot
        if snapshot.loss is not None or workers is not None or stands:
            self.metrics(
                "train",
                epoch=snapshot.epoch,
                updates=snapshot.updates,
                samples=snapshot.samples,
                loss=_short(snapshot.loss),
                samples_per_s=_short(snapshot.samples_per_s),
                lr=_short(snapshot.lr),
                pss_bytes=snapshot.pss_bytes,
                **(
                    {"losses": {name: _short(loss) for name, loss in snapshot.losses.items()}}
                    if snapshot.losses
                    else {}
                ),
                **({"cluster": _rounds(snapshot.cluster)} if snapshot.cluster is not None else {}),
                **({"workers": workers} if workers is not None else {}),
            )
        self._replace(snapshot, "stopping" if snapshot.state == "stopping" else "running", more)
        self.show(now, snapshot)

    def staleness(self, updates: int, counts: Iterable[int]) -> None:
        """Record the histogram so far, without trailing empty bins."""
        found = [int(count) for count in counts]
        while found and not found[-1]:
            found.pop()
        self.metrics("staleness", updates=updates, counts=found)

    def last_status(self, state: str, samples_per_s: float | None, known: Mapping[str, Any], **more: Any) -> None:
        """Write the final status; it is on disk when this returns, unless the disk does not answer. `known`: fields of
        the snapshot. `samples_per_s`, of the whole attempt, is shown last: that since the last record says little."""
        self._startup.end()
        self._status.wait(LAST_STATUS_S)
        idle: dict[str, Any] = {"left_s": None, "server": None, "workers": ()}
        last = self._snapshot = replace(standing(self._snapshot), state=state, **known, **idle, news=self.news)
        if self._screen.look in (Look.LIVE, Look.NOTEBOOK):
            self._screen.show(replace(last, samples_per_s=samples_per_s or 0.0, is_between=True))
        self._replace(last, state, {"samples_per_s": samples_per_s, **more})
        self._status.wait(LAST_STATUS_S)

    def _replace(self, snapshot: JobSnapshot, state: str, more: Mapping[str, Any]) -> None:
        """Replace status.json and metrics.prom in a thread; skip this if the last replacement is still running."""
        self._status.finish()
        if self._status.is_busy:
            return
        attempt, rundir = self._startup.attempt, self.rundir

        def write() -> bool:
            is_kept = rundir.try_write_json(STATUS, record_of(attempt, state, snapshot, more))
            return tried(lambda: rundir.write_text(prometheus.FILE, prometheus.exposition(snapshot))) and is_kept

        self._status.submit(write, self._kept)

    def close(self) -> None:
        if self._curves is not None:
            self._curves.close()
            self._look_at(self._curves)
        self._screen.close()
        self._log.close()
        self._status.close()

    def _look_at(self, curves: Curves) -> None:
        if curves.failure is not None:
            self._curves = None
            self.show_message(
                f"warning: TensorBoard files can no longer be written: {curves.failure}; all other records are complete"
            )

    def _kept(self, written: bool) -> None:
        if not written and not self._complained:
            self._complained = True
            self._screen.show_message(
                f"warning: records of {self.rundir.path} cannot be written (disk full?); training goes on"
            )


def _rounds(cluster: ClusterSnapshot) -> dict[str, Any]:
    """Return the cluster's part of a training record."""
    counts = {"round": cluster.round, "nodes": cluster.nodes, "nbytes": cluster.nbytes}
    return counts | {name: _short(getattr(cluster, name)) for name in ("seconds", "drift", "samples_per_s")}


def _short(value: float | None) -> float | None:
    """Return six digits: there are 86,400 records a day."""
    return None if value is None else float(f"{value:.6g}")


def curves_for(job: Job, rundir: RunDir, shared: SharedModel) -> Curves | None:
    """Make the TensorBoard curves; with `auto`, for a job long enough to have a curve, if the package is installed."""
    setting = job.log.tensorboard
    if setting is False or (setting == "auto" and not is_installed()):
        return None
    values = job.model_dump(mode="json")
    return Curves(
        rundir.tensorboard,
        {key: ", ".join(map(str, one)) if isinstance(one, list) else one for key, one in flat(values)},
        at_once=setting is True,
        tensors=shared.model.named_parameters,
        histograms_every=job.log.histograms_every,
    )
