"""The ring in the parent: which batch goes into which slot, the positions of a stream's iterators in memory, in a
checkpoint and at a rollback, and its figures: live loaders, filled slots, and who waits for whom."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hogwild.errors import DataError
from hogwild.feeds.ring import Ring, SlotWord
from hogwild.feeds.stream_reader import Stream, read_state
from hogwild.monitoring.job_view import StreamGlance, WorkerGlance
from hogwild.planning.job_plan import JobPlan
from hogwild.scheduling.stream_schedule import SlotRequest, StreamSchedule
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Phase

Key = tuple[int, int]  # epoch, shard
ALIVE = ("starting", "ready", "training")
WAITED = 0.2  # of the workers' time since the last record: a smaller share is just the latency through the parent
MOST = 0.5  # of the workers' training time: above this share the stream was the bottleneck
LEAST_S = 5.0  # least waiting time of a worker worth a message


@dataclass(slots=True)
class RingState:
    """The ring of one attempt, for a job with streamed training data."""

    ring: Ring
    schedule: StreamSchedule
    stream: Stream
    deaths: int = 0  # of loaders, in this attempt
    _kept: dict[int, bytes] = field(default_factory=dict)  # shard -> iterator state after its newest batch
    _bases: dict[Key, tuple[int, bytes]] = field(default_factory=dict)  # positions at the end of the earlier attempt

    def __post_init__(self) -> None:
        kept, ring = self._kept, self.ring  # not self: a reference cycle would keep the ring until garbage collection

        def keep(shard: int, slot: int) -> None:
            kept[shard] = ring.read_state(slot, is_after=True)

        self.schedule.note_newest = keep

    @classmethod
    def of(cls, plan: JobPlan, stream: Stream, region: Region) -> "RingState":
        assert plan.ring is not None
        slots, loaders, epoch, train = plan.ring.slots, plan.ring.loaders, stream.plan, plan.job.train
        update = min(train.accumulate, epoch.batches)
        schedule = StreamSchedule(epoch, slots, loaders, update, train.epochs, in_order=plan.rows < 2)
        return cls(Ring(region, plan.ring), schedule, stream)

    @property
    def loaders(self) -> int:
        """Number of loaders needed: one per shard, if there are shards."""
        return self.schedule.shards if self.schedule.is_sharded else self.ring.spec.loaders

    def write(self, request: SlotRequest) -> None:
        """Write the request into the slot's row of the table, before its number is sent, with the position from which a
        restarted iterator continues."""
        place, state = self._base(request) if self.schedule.is_sharded else (0, b"")
        if state:
            self.ring.write_state(request.slot, state, is_after=False)
        row = self.ring.table[request.slot]
        row[SlotWord.FILLED] = 0
        row[SlotWord.FROM] = place if state else 0
        row[SlotWord.STATE_BYTES] = len(state)
        row[SlotWord.SHARD], row[SlotWord.PLACE] = request.shard, request.place
        row[SlotWord.EPOCH], row[SlotWord.BATCH] = request.epoch, request.batch

    def filled(self, loader: int, slot: int) -> bool:
        """Note that `loader` has filled the slot; return whether the batch is still wanted."""
        if self.schedule.filled(loader, slot, self.ring.rows(slot)) is None:
            return False
        self.ring.table[slot, SlotWord.FILLED] = 1
        return True

    def _base(self, request: SlotRequest) -> tuple[int, bytes]:
        newest = self.schedule.newest(request.shard)
        if newest is not None and newest[0] == request.epoch:
            _, place, slot = newest
            state = self._kept.get(request.shard, b"") if slot < 0 else self.ring.read_state(slot, is_after=True)
            return place + 1, state
        return self._bases.get((request.epoch, request.shard), (0, b""))

    def state(self) -> dict[str, Any]:
        """Return the position of each shard of each open epoch, for a checkpoint, with every worker parked."""
        epochs = []
        for epoch, shards in self.schedule.positions().items():
            rows = []
            for number, shard in enumerate(shards):
                place, slot = shard["place"], shard["slot"]
                if slot is not None:
                    state = self.ring.read_state(slot, is_after=False)
                else:
                    request = SlotRequest(-1, epoch, 0, number, place)
                    at, state = self._base(request)
                    place = at if state else place
                rows.append([shard["end"], place, base64.b64encode(state).decode()])
            epochs.append([epoch, rows])
        return {"shards": self.schedule.shards, "epochs": epochs}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the positions, after the queue restored its ledger; `saved` is empty if the data was not streamed
        then. Raises ValueError if the number of loaders differs, CheckpointError if an iterator's state cannot be read
        without running code."""
        if saved.get("shards", self.schedule.shards) != self.schedule.shards:
            raise ValueError(
                f"the stream was divided into {saved['shards']} shards, now {self.schedule.shards}; set "
                f"data.loaders to {saved['shards']}"
            )
        self._kept.clear()
        self._bases.clear()
        self.ring.table[:, SlotWord.FILLED] = 0
        for epoch, rows in saved.get("epochs", ()):
            self.schedule.reopen(epoch, [(end, place) for end, place, _ in rows])
            for number, (_, place, encoded) in enumerate(rows):
                state = base64.b64decode(encoded)
                self._bases[epoch, number] = (place, state)
                if state:  # check it now, before a loader needs it
                    read_state(state)

    def check(self) -> DataError | None:
        """Return an error if the data as a whole is wrong."""
        epoch = self.schedule.empty_epoch
        if epoch is None:
            return None
        return DataError(
            f"{self.stream.what}: epoch {epoch} gave no record, but the epoch before did. Perhaps the iterator can be "
            "read only once: use a class whose __iter__ starts again",
            code="data/empty",
        )


# --- figures, for records, the summary and its advice


def stream_glance(
    state: RingState, rows: Sequence[Mapping[str, Any]], workers: Sequence[WorkerGlance], deaths: int
) -> StreamGlance:
    """Return the figures for a glance. `rows`: of the loaders, as in status.json; `deaths`: of all attempts."""
    schedule = state.schedule
    return StreamGlance(
        loaders=sum(row["state"] in ALIVE for row in rows),
        wanted=len(rows),
        filled=schedule.filled_slots,
        slots=schedule.slots,
        deaths=deaths,
        waits=_who_waits(state, rows, workers),
    )


def _who_waits(state: RingState, rows: Sequence[Mapping[str, Any]], workers: Sequence[WorkerGlance]) -> str:
    shares = [worker.phases.get("waiting", 0.0) for worker in workers if worker.phases]
    if shares and sum(shares) / len(shares) > WAITED:
        return "workers wait for loaders"
    is_full = rows and state.schedule.is_full
    return "loaders wait for workers" if is_full else ""


def ring_record(state: RingState) -> dict[str, int]:
    """Return the ring's slots and bytes, for records."""
    return {"slots": state.ring.spec.slots, "bytes": state.ring.spec.nbytes}


def waiting_of(phase_s: np.ndarray, active_s: float) -> tuple[float, float]:
    """Return (share, seconds) that a worker waited on average between the first update and the last, without pauses
    (`active_s`). Waiting before the first update belongs to the start, not to the stream. `phase_s` (procs, phases)
    float64, from `Scoreboard.phase_s`."""
    waiting, working = (float(phase_s[:, phase].mean()) for phase in (Phase.WAITING, Phase.WORKING))
    waited_s = min(waiting, max(0.0, active_s - working))
    return (waited_s / active_s if active_s > 0 else 0.0), waited_s


def about_waiting(idle: float, waited_s: float, loaders: int, *, cores: float, workers: int) -> str | None:
    """Return a sentence for a job whose workers mostly waited for streamed data, or None. `idle`: share of the possible
    training time spent waiting; `waited_s`: average per worker."""
    if idle < MOST or waited_s < LEAST_S:
        return None
    now = "1 loader" if loaders == 1 else f"{loaders} loaders"
    more = f"more data.loaders ({now} now" + (f", {cores:g} usable cores)" if loaders + workers > cores else ")")
    return (
        f"workers waited {100 * idle:.0f} % of the time for streamed batches: use {more}, less work per record, or "
        "data.feed: resident if the data fits into memory"
    )
