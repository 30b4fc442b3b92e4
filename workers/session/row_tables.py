"""Tables that are asked for by id (`hogwild.nn.NamedEmbedding`) while a job trains: they grow, and rows of ids that
nobody asks for any more are given back.

    growing     70 % are taken -> [thread: memory, initial values] -> shown in a turn of the loop, unless all are parked
                -> a short pause, or one for something else: ids claim their rows in the new part first
    expiry      an eighth of `expire_after` has passed, or a full table makes room -> a pause: rows, state, then keys

No worker waits for a table to grow, and nothing of it moves: the new rows lie behind the others, and each process sees
from one word that they may be used (`hogwild/kernels/row_claims.py`). Not in a pause: a checkpoint is of one size. A
row is given back only in one, when no batch is between its lookup and its update."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hogwild.errors import CheckpointError, MemoryShortError
from hogwild.feeds.ring import Ring
from hogwild.host.background_thread import Background
from hogwild.nn import EXPIRED_AT_ONCE, SHORT, NamedEmbedding, tables_in
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage.checkpoint import tensors_of
from hogwild.storage.checkpoint_format import newest_first
from hogwild.storage.files import explained, replace
from hogwild.storage.run_directory import ALL_TEXTS, RunDir
from hogwild.storage.run_files import answer_file
from hogwild.workers.session.journal import Journal

LOOK_S = 0.1  # between two looks at how full the tables are
EXPIRY_SHARE = 8  # a pause for expiry comes so many times in `expire_after` lookups, at most
EXPIRY_S = 1.0  # and no sooner after the last one


@dataclass(slots=True)
class RowTables:
    """The tables of one attempt. `thread` prepares rows."""

    shared: SharedModel
    journal: Journal
    thread: Background = field(default_factory=lambda: Background("rows"))
    tables: dict[str, NamedEmbedding] = field(init=False)
    asked: list[str] = field(default_factory=list)  # requests `ids` (hogwild/data/text_keys.py)
    _growing: dict[str, NamedEmbedding] = field(init=False)
    _prepared: tuple[str, int, int] | None = None  # a table, its capacity before and then
    _began_s: float = 0.0
    _looked_s: float = 0.0
    _has_grown: bool = False  # since the last pause
    _swept_s: float = 0.0
    _swept_at: dict[str, int] = field(init=False)  # lookups

    def __post_init__(self) -> None:
        self.tables = tables_in(self.shared.model)
        self._growing = {path: one for path, one in self.tables.items() if one.max_capacity > one.first}
        self._swept_at = {path: 0 for path, one in self.tables.items() if one.forgets}

    # ---- growing

    def look(self, now: float, *, is_paused: bool) -> None:
        """Show rows that are ready, and have the next ones prepared for a table that is short of them."""
        if not self._growing:
            return
        self.thread.finish()
        if self._prepared is not None and not is_paused:
            self._show(now)
        if self.thread.is_busy or self._prepared is not None or now < self._looked_s + LOOK_S:
            return
        self._looked_s = now
        for path, table in self._growing.items():
            if table.next_capacity is not None and table.share_taken >= SHORT:
                self._began_s = now
                self.thread.submit(partial(self._prepare, path), partial(self._ready, path, table.capacity))
                return

    def _prepare(self, path: str) -> int | MemoryShortError:
        try:
            return self.shared.prepare_growth(path)
        except MemoryShortError as error:
            return error

    def _ready(self, path: str, before: int, then: int | MemoryShortError) -> None:
        if isinstance(then, int):
            self._prepared = path, before, then
            return
        del self._growing[path]
        self.journal.event("rows-short", table=path, capacity=before, why=str(then))
        self.journal.show_message(f"warning: {path or 'the table'} stays at {before:,} rows by id: {then}")

    def _show(self, now: float) -> None:
        assert self._prepared is not None
        path, before, then = self._prepared
        self._prepared = None
        if not self.tables[path].show(before, then):  # a rollback has made it smaller meanwhile
            return
        self._has_grown, seconds = True, now - self._began_s
        self.journal.event("rows-grown", table=path, before=before, capacity=then, seconds=round(seconds, 4))
        self.journal.show_message(f"{path or 'the table'}: {then:,} rows by id, until now {before:,}")

    # ---- expiry

    def is_pause_due(self, now: float) -> bool:
        return self._has_grown or self.is_expiry_due(now)

    def settle(self) -> None:
        """Have ids claim their rows where most are free. All workers are parked."""
        self._has_grown = False
        for table in self.tables.values():
            table.open_emptiest()

    def is_expiry_due(self, now: float) -> bool:
        """Return whether a pause should give back rows."""
        if not self._swept_at or now < self._swept_s + EXPIRY_S:
            return False
        return any(self._is_expiry_due(self.tables[path], at) for path, at in self._swept_at.items())

    @staticmethod
    def _is_expiry_due(table: NamedEmbedding, swept_at: int) -> bool:
        limit = table.expire_after
        has_passed = limit is not None and table.lookups - swept_at >= max(1, limit // EXPIRY_SHARE)
        return has_passed or table.is_crowded

    def expired(self, found: dict[str, int]) -> None:
        """Note the rows that `SharedModel.give_back` has given back, by table. All workers are parked."""
        for path, count in found.items():
            self.journal.event("rows-expired", table=path, count=count)
        self._swept_s = time.monotonic()
        for path in self._swept_at:  # the rest of a bounded number comes with the next pause
            if found.get(path, 0) < EXPIRED_AT_ONCE:
                self._swept_at[path] = self.tables[path].lookups

    # ---- names

    def forget_names(self, rundir: RunDir) -> None:
        """Leave only names of ids that have a row, here or in a checkpoint, in the run's files of names, before a
        loader opens them. Others are noted again when they come again. Raises RunDirError."""
        if self._swept_at:
            from hogwild.data.text_keys import KnownKeys, keep_names  # with its parsers, of which other jobs need none

            known, keys = KnownKeys(), self._keys_with_rows(rundir)
            known.add(keys, keys)
            with explained(f"cannot write the names in {rundir.path}"):
                for file in rundir.path.glob(ALL_TEXTS):
                    keep_names(file, known)

    def answering(self, rundir: RunDir, ring: Ring | None) -> Callable[[], None]:
        """Return the work that answers requests `ids` once this pause's checkpoint is on disk, for a thread."""
        if not self.asked:
            return lambda: None
        in_ring = np.zeros(0, np.int64) if ring is None else ring.words()
        return partial(self._answer, rundir, tuple(self.asked), in_ring)

    def _answer(self, rundir: RunDir, asked: Sequence[str], in_ring: np.ndarray) -> None:
        with suppress(OSError, CheckpointError):  # then the next checkpoint answers
            keys = np.union1d(self._keys_with_rows(rundir), in_ring[in_ring < 0])
            for name in asked:
                replace(answer_file(rundir.path, name), keys.tobytes(), sync=False)
                self.asked.remove(name)

    def _keys_with_rows(self, rundir: RunDir) -> np.ndarray:
        """Return the negative keys that have a row, here or in a checkpoint on disk, each once."""
        found = np.concatenate([table.in_use()["keys"].numpy() for table in self.tables.values()])
        for checkpoint in newest_first(rundir.checkpoints):
            for keys in tensors_of(checkpoint, [f"{path}.keys".lstrip(".") for path in self.tables]):
                found = np.union1d(found, keys.numpy())
        return np.unique(found[found < 0])

    def close(self) -> None:
        """Wait for what is being prepared: the memory is about to be given up."""
        self.thread.wait()
        self.thread.close()
