"""The ring in the parent: which batch goes into which slot, the positions of a stream's iterators in memory, in a
checkpoint and at a rollback."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hogwild.config.schema import Train
from hogwild.errors import DataError
from hogwild.feeds.ring import Ring, RingSpec, SlotWord
from hogwild.feeds.stream_reader import Stream, read_state
from hogwild.scheduling.batch_plan import Bounds
from hogwild.scheduling.stream_schedule import SlotRequest, StreamSchedule
from hogwild.shared_memory.region import Region

Key = tuple[int, int]  # epoch, shard


@dataclass(slots=True)
class RingState:
    """The ring of one attempt, for a job with streamed training data."""

    ring: Ring
    schedule: StreamSchedule
    stream: Stream
    deaths: int = 0  # of loaders, in this attempt
    paused_s: float = 0.0  # that the data had nothing yet
    _kept: dict[int, bytes] = field(default_factory=dict)  # shard -> iterator state after its newest batch
    _begun: dict[tuple[int, int, int], tuple[int, bytes]] = field(default_factory=dict)  # (epoch, shard, place) -> base
    _bases: dict[Key, tuple[int, bytes]] = field(default_factory=dict)  # positions at the end of the earlier attempt

    def __post_init__(self) -> None:
        kept, ring = self._kept, self.ring  # not self: a reference cycle would keep the ring until garbage collection

        def keep(shard: int, slot: int) -> None:
            kept[shard] = ring.read_state(slot, is_after=True)

        self.schedule.note_newest = keep

    @classmethod
    def of(
        cls,
        spec: RingSpec,
        stream: Stream,
        region: Region,
        train: Train,
        *,
        in_order: bool,
        bounds: Callable[[int], Bounds | None] | None = None,
    ) -> "RingState":
        """`bounds`: of the epochs that a sampler draws."""
        update = min(train.accumulate, stream.plan.batches)
        schedule = StreamSchedule(
            stream.plan, spec.slots, spec.loaders, update, train.epochs, in_order=in_order, bounds=bounds
        )
        return cls(Ring(region, spec), schedule, stream)

    @property
    def loaders(self) -> int:
        """Number of loaders needed: one per shard, if there are shards."""
        return self.schedule.shards if self.schedule.is_sharded else self.ring.spec.loaders

    def write(self, request: SlotRequest) -> None:
        """Write the request into the slot's row of the table, before its number is sent, with the position from which a
        restarted iterator continues."""
        place, state = self._base(request) if self.schedule.is_sharded else (0, b"")
        if self.schedule.is_sharded:
            if request.place == 0:  # an epoch leaves what was asked for behind its end
                known = self.schedule.open_epochs
                self._begun = {key: base for key, base in self._begun.items() if key[0] in known}
            self._begun[request.epoch, request.shard, request.place] = place, state
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
        request = self.schedule.filled(loader, slot, self.ring.rows(slot))
        if request is None:
            return False
        epoch, shard, place = request.epoch, request.shard, request.place
        self._begun.pop((epoch, shard, place), None)
        if (epoch, shard, place + 1) in self._begun:
            self._begun[epoch, shard, place + 1] = place + 1, self.ring.read_state(slot, is_after=True)
        self.ring.table[slot, SlotWord.FILLED] = 1
        return True

    def _base(self, request: SlotRequest) -> tuple[int, bytes]:
        """Return a place, and the state of the iterator there, from which the requested one can be read: behind the
        newest batch. Of one that could not be read, while later ones were, it is that of the first try."""
        newest = self.schedule.newest(request.shard)
        if newest is not None and newest[0] == request.epoch and newest[1] < request.place:
            _, place, slot = newest
            state = self._kept.get(request.shard, b"") if slot < 0 else self.ring.read_state(slot, is_after=True)
            return place + 1, state
        begun = self._begun.get((request.epoch, request.shard, request.place))
        return begun or self._bases.get((request.epoch, request.shard), (0, b""))

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
        self._begun.clear()
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
