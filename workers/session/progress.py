"""The figures of a job: its progress, once per `log.every_s`, as a snapshot that the journal shows and records (on a
terminal also when something happens, with the rates of the last full one); and summary.json, its result, written at
every end, good or bad."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hogwild import host
from hogwild.errors import code_of
from hogwild.job.build import schedule_of
from hogwild.monitoring.run_status import JobSnapshot, WorkerSnapshot, cluster_of, workers_record
from hogwild.monitoring.stream_figures import ALIVE, about_waiting, stream_snapshot, waiting_of
from hogwild.shared_memory.scoreboard import STALENESS_BINS, Phase, Word, idle_share
from hogwild.training import loss_scaler
from hogwild.training.lr_schedule import NAMED
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.session.outcome import Clock, Outcome
from hogwild.workers.session.session import Session

Rows = Callable[[], Sequence[Mapping[str, Any]]]
WORKERS_EVERY_S = 30.0  # between per-worker figures in metrics.jsonl: 2.8 kB for 64 workers; 240 MB a day every second
DENSE = 20  # but in a young job about this many records over its run time, so that its report has something to show


@dataclass(slots=True)
class _Rates:
    """Rates over the interval that ended with the last full snapshot."""

    samples_per_s: float = 0.0
    loss: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    shares: Sequence[float] = ()  # (procs,) share of all samples
    phases: Sequence[Mapping[str, float]] = ()  # (procs,)
    pids: Sequence[int | None] = ()  # (procs,) process of each row
    cpu: Mapping[int, float] = field(default_factory=dict)  # by pid


def workers_gap_s(ran_s: float) -> float:
    """Return the time between two records with per-worker figures, in a job that has run for `ran_s`."""
    return min(WORKERS_EVERY_S, ran_s / DENSE)


class SampleRate:
    """Samples per second since the last record. If that is less than `least_s` ago, as at the end of a job, since the
    one before it: a tiny interval would show a peak or a dip."""

    def __init__(self, now: float, samples: int, least_s: float) -> None:
        self._least_s = least_s
        self._before = self._last = (now, samples)

    def at(self, now: float, samples: int) -> float:
        then, had = self._last if now - self._last[0] >= self._least_s else self._before
        self._before, self._last = self._last, (now, samples)
        return max(0, samples - had) / (now - then) if now > then else 0.0  # a rollback removes samples


class _Meter:
    """Measures the rates between two calls of `measured`."""

    def __init__(self, session: Session, now: float) -> None:
        self._session = session
        self._loss_mark: tuple[float, int] = (0.0, 0)
        self._further = session.board.further()
        self._speed = SampleRate(now, session.samples_here, least_s=session.journal.every_s / 2)
        self._measured_at = now
        self._batches = np.array(session.board.batches(), dtype=np.int64)
        self._phase_s = session.board.phase_s(time.monotonic_ns())
        self._cpu_s: dict[int, float] = {}

    def measured(self, now: float, rows: Sequence[Mapping[str, Any]]) -> _Rates:
        """Return the rates since the last call. A worker's samples are its share of the batches times all samples, so
        that their sum is the job's, or a node's."""
        session = self._session
        elapsed_s, self._measured_at = now - self._measured_at, now
        loss, self._loss_mark = session.board.mean_loss_since(self._loss_mark)
        batches = np.array(session.board.batches(), dtype=np.int64)
        fresh, self._batches = np.maximum(batches - self._batches, 0), batches
        spent = session.board.phase_s(time.monotonic_ns())
        lasted, self._phase_s = np.maximum(spent - self._phase_s, 0.0), spent
        before = self._cpu_s
        pids = [row["pid"] for row in rows]
        self._cpu_s = {pid: used_s for pid in pids if pid is not None and (used_s := host.cpu_s(pid)) is not None}
        return _Rates(
            samples_per_s=self._speed.at(now, session.samples_here),
            loss=loss,
            losses=self._further_since(),
            shares=(fresh / max(1, int(fresh.sum()))).tolist(),
            phases=[
                {phase.name.lower(): row[phase] / sum(row) for phase in Phase if row[phase] > 0.0}
                for row in lasted.tolist()
            ],
            pids=pids,
            cpu={
                pid: (used_s - before[pid]) / elapsed_s
                for pid, used_s in self._cpu_s.items()
                if pid in before and elapsed_s > 0
            },
        )

    def _further_since(self) -> dict[str, float]:
        """Return the means of the further losses of a training_step since the last call, and the metrics of batches
        scored before they were learnt."""
        sums, counts = (found := self._session.board.further()) - self._further
        self._further = found
        parts = self._session.parts
        names = parts.found.loss_names
        means = {name: float(sums[k] / counts[k]) for k, name in enumerate(names) if counts[k] > 0}
        if not self._session.job.evaluate.progressive:
            return means
        scored = slice(len(names), len(names) + len(parts.panel.progressive))
        return means | parts.panel.progressive_values(sums[scored].tolist(), counts[scored].tolist())


class ProgressRecords:
    """The records of one attempt; speeds refer to the time since the last record. Call `record` every turn."""

    def __init__(self, session: Session, now: float) -> None:
        self._session = session
        self._began_at = self._workers_due_at = now
        self._meter, self._workers_meter = _Meter(session, now), _Meter(session, now)
        self._rates = _Rates()
        # A user's function is not called in the supervisor's loop.
        is_ours = session.job.lr_schedule.name in NAMED or session.parts.stepped is not None
        self._curve = schedule_of(session.job, session.queue.plan) if is_ours else None
        self._shows_lr = is_ours  # the first group's
        self._evaluated_at = session.evaluating.evaluated_at
        self._lane_restarts = session.before.lane_restarts

    def record(
        self,
        now: float,
        workers: Rows,
        memory: Mapping[int, int] | None = None,
        loaders: Rows = tuple,
        *,
        is_last: bool = False,
    ) -> None:
        """Write a record if due. `workers`, `loaders`: return their rows for status.json. `memory`: PSS by pid, in
        bytes, as last measured. `is_last`: write in any case, so that the last training is recorded, too."""
        session, journal = self._session, self._session.journal
        is_due = journal.is_status_due(now) or is_last
        if not is_due and not journal.wants_snapshot(now):
            return
        rows, reading = workers(), loaders()
        if is_due:
            self._rates = self._meter.measured(now, rows)
        snapshot = self.snapshot(now, rows, memory or {})
        if session.streamed is not None:
            stream = stream_snapshot(session.streamed.schedule, reading, snapshot.workers, session.loader_deaths or 0)
            snapshot = replace(snapshot, stream=stream)
        if is_due:
            more: dict[str, Any] = {"lane_restarts": session.lane_restarts}
            if snapshot.stream is not None and session.streamed is not None:
                ring: dict[str, Any] = session.streamed.ring.spec.record()
                ring |= {"filled": snapshot.stream.filled, "waits": snapshot.stream.waits}
                more |= {"loaders": list(reading), "loader_deaths": snapshot.stream.deaths, "ring": ring}
            of_workers = None
            if is_last or (now >= self._workers_due_at and self._rates.loss is not None):  # anything was trained
                self._workers_due_at = now + workers_gap_s(now - self._began_at)
                rates = self._workers_meter.measured(now, rows)
                stale = _percentiles(session.board.staleness_counts())
                if rates.loss is not None:
                    of_workers = workers_record(self._workers(rows, rates, stale, memory or {}))
            stands = snapshot.loss is None and snapshot.state != "starting" and not is_last
            journal.record(now, snapshot, more, of_workers, stands=stands)
            if session.evaluating.evaluated_at != self._evaluated_at:  # after each evaluation
                self._evaluated_at = session.evaluating.evaluated_at
                journal.staleness(session.queue.updates, session.board.staleness_counts().sum(axis=0))
            restarts = session.lane_restarts
            if restarts is not None and restarts > self._lane_restarts:
                fresh, self._lane_restarts = restarts - self._lane_restarts, restarts
                journal.event("lane-restarts", fresh=fresh, lane_restarts=restarts)
                lanes = "lane continues" if fresh == 1 else "lanes continue"
                journal.show_message(f"{fresh} {lanes} from a zero state")
        else:
            journal.show(now, replace(snapshot, is_between=True))

    def snapshot(self, now: float, rows: Sequence[Mapping[str, Any]], memory: Mapping[int, int]) -> JobSnapshot:
        """Return the job as it is now, with the rates of the last interval."""
        session, queue = self._session, self._session.queue
        rate = session.rates.shown(queue.epoch) if self._shows_lr else None
        if rate is not None:
            factor = 1.0 if self._curve is None else self._curve(queue.updates)
            rate = float(rate * factor * 0.5**session.divergence.rollbacks)
        counts = session.board.staleness_counts()
        p50, p99 = _percentiles(counts.sum(axis=0, keepdims=True))[0]
        return JobSnapshot(
            name=session.job.name,
            run_dir=str(session.rundir.path),
            state=self._doing(),
            wall_s=session.wall_s(now),
            left_s=session.left_s(now) or None,
            epoch=queue.epoch,
            epochs=queue.limits.epochs,
            position=session.epochs_done,
            updates=queue.updates,
            planned_updates=session.planned_updates,
            samples=queue.samples,
            progress=session.progress,
            samples_per_s=self._rates.samples_per_s,
            loss=self._rates.loss,
            train_loss=session.train_loss,
            losses=self._rates.losses,
            lr=rate,
            metrics=dict(session.evaluating.values),
            popularity=session.evaluating.popularity,
            evaluated_at=session.evaluating.evaluated_at,
            best=session.best,
            stale_p50=p50,
            stale_p99=p99,
            skipped=queue.ledger.skipped,
            quarantined=queue.ledger.quarantined,
            restarts=session.before.restarts + session.restarts,
            rollbacks=session.divergence.rollbacks,
            pss_bytes=sum(memory.values()) or None,
            workers=self._workers(rows, self._rates, _percentiles(counts), memory),
            server=SERVER.snapshot(memory),
            cluster=None if session.node is None else cluster_of(session.node.record()),
            news=session.journal.news,
        )

    def _workers(
        self,
        rows: Sequence[Mapping[str, Any]],
        rates: _Rates,
        stale: Sequence[tuple[int, int]],
        memory: Mapping[int, int],
    ) -> tuple[WorkerSnapshot, ...]:
        words = self._session.board.words
        found = []
        for row in rows:
            worker, pid = row["worker"], row["pid"]
            snapshot = WorkerSnapshot(
                worker=worker,
                state=row["state"],
                phase=Phase(int(words[worker, Word.PHASE])).name.lower(),
                pid=pid,
                incarnation=row["incarnation"],
                updates=int(words[worker, Word.UPDATES]),
                stale_p50=stale[worker][0],
                stale_p99=stale[worker][1],
                pss_bytes=memory.get(pid),
                silent_s=row.get("silent_s", 0.0),
                limit_s=row.get("limit_s"),
            )
            if row["state"] in ALIVE and rates.pids[worker : worker + 1] == [pid]:
                phases = rates.phases[worker]
                snapshot = replace(
                    snapshot,
                    share=rates.shares[worker],
                    samples_per_s=rates.shares[worker] * rates.samples_per_s,
                    phases=phases,
                    phase=max(phases, key=phases.__getitem__, default=snapshot.phase),
                    cpu=rates.cpu.get(pid),
                )
            found.append(snapshot)
        return tuple(found)

    def _doing(self) -> str:
        session = self._session
        if session.stop is not None:
            return "stopping"
        if session.evaluating.current is not None:
            return "evaluating"
        if session.saving.is_copying:
            return "saving"
        if session.clock.paused_since_s is not None:
            return "paused"
        return "running" if session.board.first_commit_s() is not None else "starting"


def _percentiles(counts: np.ndarray) -> list[tuple[int, int]]:
    """Return (p50, p99) of each row of histograms, (rows, STALENESS_BINS) int64; zeros for an empty row."""
    sums = np.cumsum(counts, axis=1)
    whole = sums[:, -1:]
    at = [(sums < np.ceil(part * whole)).sum(axis=1) for part in (0.5, 0.99)]
    return [(int(p50), int(p99)) for p50, p99 in np.minimum(np.stack(at, axis=1), STALENESS_BINS - 1)]


SKIPPED_SHARE = 0.05


def summarise(session: Session, outcome: Outcome, now: float, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the summary. After a resume, samples, updates and leases describe the surviving history; wall_s and
    restarts are sums over the attempts; startup_s, train_s, paused_s and samples_per_s are the last attempt's. In a
    cluster samples, updates and leases are all nodes'; times, restarts and samples_per_s are this node's."""
    queue, board, clock = session.queue, session.board, session.clock
    train_s = board.training_span_s()
    first_s = board.first_commit_s()
    active_s = train_s - clock.paused_s
    samples = session.samples_here
    written = session.rundir.latest
    spent = board.phase_s(time.monotonic_ns())
    summary = {
        "state": outcome.state,
        "reason": outcome.reason,
        "name": session.job.name,
        "run_dir": str(session.rundir.path),
        "wall_s": round(session.wall_s(now), 3),
        "train_s": round(train_s, 3),
        "paused_s": round(clock.paused_s, 3),
        "startup_s": round(first_s - clock.command_began_s, 3) if first_s is not None else None,
        "startup": _startup(clock, first_s),
        "compiling_s": round(float(spent[:, Phase.COMPILING].max()), 3),
        "idle": round(idle_share(spent), 4),
        "samples": queue.samples,
        "updates": queue.updates,
        "samples_per_s": round(samples / active_s, 1) if active_s > 0 else None,
        "procs": session.plan.procs,
        "threads": session.plan.threads,
        "device": ", ".join(dict.fromkeys(session.plan.devices)) or "cpu",
        "placement": session.plan.placement,
        "update": session.plan.update,
        "update_why": session.plan.why,
        "exchange": session.plan.exchange,
        "metrics": session.evaluating.values,
        "popularity": session.evaluating.popularity,
        "train_loss": session.train_loss,
        "best": None if session.best is None else asdict(session.best),
        "weights": session.weights,
        "overflows": loss_scaler.overflows(board),
        "restarts": session.before.restarts + session.restarts,
        "rollbacks": session.divergence.rollbacks,
        "lane_restarts": session.lane_restarts,
        "loader_deaths": session.loader_deaths,
        "ring": None if session.streamed is None else session.streamed.ring.spec.record(),
        "cluster": _cluster(session, active_s),
        "leases": {"total": queue.total, **asdict(queue.ledger)},
        "staleness": asdict(board.staleness()),
        "peak_pss_bytes": session.peak_pss_bytes,
        "checkpoint": written.resolve().name if written.is_symlink() else None,
        "warnings": [*warnings],
        "advice": _advice(session),
    }
    if outcome.error is not None:
        summary["error"] = str(outcome.error)
        summary["error_code"] = code_of(outcome.error)
    if outcome.exit_status is not None:
        summary["exit_status"] = outcome.exit_status
    return summary


def _cluster(session: Session, active_s: float) -> dict[str, Any] | None:
    """Return the nodes and rounds, with mean speeds instead of those of the last, short round; None on one machine, or
    if the nodes never met."""
    node = session.node
    if node is None or not node.members:
        return None

    def speed(samples: int | None) -> float | None:
        return round(samples / active_s, 1) if samples is not None and active_s > 0 else None

    made = {number: note["counts"]["samples"] for number, note in node.notes.items()}
    rows = [{**row, "samples_per_s": speed(made.get(row["node"]))} for row in node.rows()]
    in_all = speed(session.queue.samples - session.before.samples)
    return {**node.record(), "of_nodes": rows, "samples_per_s": in_all}


def _startup(clock: Clock, first_s: float | None) -> dict[str, float] | None:
    """Return the seconds until torch was imported, until model and data were built, until they lay in shared memory,
    and until a worker, which imported torch meanwhile, made the first update. They add up to startup_s."""
    if first_s is None:
        return None
    marks = (clock.command_began_s, clock.imported_s, clock.built_s, clock.shared_s, first_s)
    names = ("import_s", "build_s", "share_s", "workers_s")
    return {name: round(end - start, 3) for name, (start, end) in zip(names, pairwise(marks), strict=True)}


def _advice(session: Session) -> str | None:
    """Return one line for a job that did less than it seems, or whose workers waited for batches."""
    if session.queue.ledger.skipped > SKIPPED_SHARE * session.queue.total:
        return session.about_skipped
    if session.streamed is None or not session.plan.procs:
        return None
    active_s = session.board.training_span_s() - session.clock.paused_s
    share, waited_s = waiting_of(session.board.phase_s(time.monotonic_ns()), active_s)
    if session.streamed.paused_s > waited_s / 2:  # for records that nobody has written yet
        return None
    cores, procs = session.plan.usable_cores, session.plan.procs
    return about_waiting(share, waited_s, session.streamed.loaders, cores=cores, workers=procs)
