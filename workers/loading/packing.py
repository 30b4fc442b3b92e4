"""Parsing text into packed arrays, in the parent, before training: mapped from the cache, or parsed in passes
(`hogwild/data/text_parsing/passes.py`). If a pass takes more than a second, the workers that wait for their set-up do
the rest, piece by piece, straight into the memory that training uses.

    key ──► in the cache ──► mapped
       '──► pass after pass: here, while less than a second is left  ──► all ──► into the cache
                                '─► pieces, leased to readers ──► all
                                        '─► the rest, if readers cannot do it, is done here"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cloudpickle

from hogwild.data.text_parsing.passes import Parsed, Parsing, Pass
from hogwild.scheduling.row_ranges import RowRanges
from workers.child.recipes import PassRecipe
from workers.loading.readers import Readers
from workers.processes.group import Group

if TYPE_CHECKING:
    from hogwild.data.cache import DatasetCache

SHORT_S = 1.0  # a rest shorter than this is done here: waking readers does not pay
PROBE_S = 0.05
PIECE = ("piece {row} of the file", "Read it with train.procs=0 to find the cause")  # as `readers.ITEM`


@dataclass(slots=True)
class Packer:
    """Packs one data set. `tell(what, pieces done, pieces in all)` reports progress; `say` gets a sentence."""

    group: Group
    cache: "DatasetCache | None"
    say: Callable[[str], object]
    tell: Callable[[str, int, int], object]
    readers: int = 0  # most readers that took part
    deaths: int = 0
    is_cached: bool = False
    kept_s: float = 0.0
    hash_s: float = 0.0
    compiling_s: float = 0.0  # or loading compiled code

    def pack(self, parsing: Parsing) -> Parsed:
        """Return the parsed data, from the cache if possible. Raises DataError, MemoryShortError."""
        from hogwild.data import packed_cache

        if self.cache is None:
            return parsing.parse(self.run)
        began_s = time.monotonic()
        key = parsing.key()
        self.hash_s = time.monotonic() - began_s
        found = packed_cache.load(self.cache, key)
        if found is not None:
            self.is_cached = True
            return found
        parsed = parsing.parse(self.run)
        began_s = time.monotonic()
        packed_cache.store(self.cache, key, parsed)
        self.kept_s = time.monotonic() - began_s
        return parsed

    def run(self, work: Pass) -> None:
        """Run one pass. The time of compiling is measured separately: it happens once, and the result is kept."""
        asked_s = time.monotonic()
        work.step.ready()
        began_s, done = time.monotonic(), 0
        self.compiling_s += began_s - asked_s
        while done < work.count and not self._is_long(time.monotonic() - began_s, done, work.count):
            work.step.do(done, work.regions)
            done += 1
            self.tell(work.what, done, work.count)
        if done < work.count:
            self._share(work, done)

    def _is_long(self, seconds: float, done: int, count: int) -> bool:
        is_known = done > 0 and seconds > PROBE_S
        return is_known and seconds / done * (count - done) > SHORT_S and len(self.group.pool) > 0

    def _share(self, work: Pass, done: int) -> None:
        ranges = RowRanges(done, work.count, 1)
        readers = Readers(self.group, work.what, ranges, PIECE)
        self.readers = max(self.readers, readers.count)
        readers.start(cloudpickle.dumps(PassRecipe(work.step, work.count, done)), work.regions)
        if not readers.run(lambda pieces: self.tell(work.what, done + pieces, work.count)):
            self.say(readers.why_unread)
        self.deaths += readers.deaths
        for piece in ranges.unread:  # a piece that failed in a worker raises here, unless only that process failed
            work.step.do(ranges.rows(piece)[0], work.regions)
            self.tell(work.what, work.count - 1, work.count)
