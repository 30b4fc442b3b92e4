"""The ring as the parent knows it: which batch goes into which slot, and where the iterators of a stream stand, in
memory, in a checkpoint, and when a run goes back to one."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hogwild.errors import DataError
from hogwild.feeds.ring import Ring, SlotWord
from hogwild.feeds.stream_reader import Stream, read_state
from hogwild.scheduling.stream_epoch import SlotRequest
from hogwild.scheduling.stream_schedule import StreamSchedule

Key = tuple[int, int]  # epoch, shard


@dataclass(slots=True)
class RingState:
    """One per attempt, of a job whose training data is streamed."""

    ring: Ring
    schedule: StreamSchedule
    stream: Stream
    deaths: int = 0  # of loaders, in this attempt
    _kept: dict[int, bytes] = field(default_factory=dict)  # by shard: the state after its newest batch
    _bases: dict[Key, tuple[int, bytes]] = field(default_factory=dict)  # where the attempt before stood

    def __post_init__(self) -> None:
        kept, ring = self._kept, self.ring  # not self: the ring is given back with the job, not by a garbage collection

        def keep(shard: int, slot: int) -> None:
            kept[shard] = ring.read_state(slot, is_after=True)

        self.schedule.note_newest = keep

    @property
    def loaders(self) -> int:
        """Those that are needed: one per shard, where there are shards."""
        return self.schedule.shards if self.schedule.is_sharded else self.ring.spec.loaders

    def write(self, request: SlotRequest) -> None:
        """Into the slot's row of the table, before its number is sent; with it, where an iterator that has to begin
        anew goes on from."""
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
        """`loader` says that the slot is filled; whether anybody wants to know."""
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
        """For a checkpoint, with every worker parked: where each shard of each open epoch goes on."""
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
        """After the queue took over its ledger; `saved` is empty where the data was still read in memory. Raises
        ValueError where the stream was read by another number of loaders, CheckpointError for the state of an iterator
        that could not be read without running code."""
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
                if state:  # before a loader needs it
                    read_state(state)

    def check(self) -> DataError | None:
        """What is wrong with the data as a whole."""
        epoch = self.schedule.empty_epoch
        if epoch is None:
            return None
        return DataError(
            f"{self.stream.what}: epoch {epoch} gave no record, and the one before did: an iterator that can be read "
            "only "
            "once? Give a class whose __iter__ begins anew",
            code="data/empty",
        )
