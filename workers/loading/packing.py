"""Parsing text into packed arrays, in the parent, before training: mapped from the cache, or parsed
(`hogwild/data/text_parsing/parsing.py`)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hogwild.data.text_parsing.parsing import Parsed, Parsing

if TYPE_CHECKING:
    from hogwild.data.cache import DatasetCache


@dataclass(slots=True)
class Packer:
    """Packs one data set. `tell(what, bytes read, bytes in all)` reports progress."""

    cache: "DatasetCache | None"
    tell: Callable[[str, int, int], object]
    is_cached: bool = False
    kept_s: float = 0.0
    hash_s: float = 0.0
    compiling_s: float = 0.0  # or loading compiled code

    def pack(self, parsing: Parsing) -> Parsed:
        """Return the parsed data, from the cache if possible. Raises DataError, MemoryShortError."""
        from hogwild.data import packed_cache

        if self.cache is None:
            return self._parse(parsing)
        began_s = time.monotonic()
        key = parsing.key()
        self.hash_s = time.monotonic() - began_s
        found = packed_cache.load(self.cache, key)
        if found is not None:
            self.is_cached = True
            return found
        parsed = self._parse(parsing)
        began_s = time.monotonic()
        packed_cache.store(self.cache, key, parsed)
        self.kept_s = time.monotonic() - began_s
        return parsed

    def _parse(self, parsing: Parsing) -> Parsed:
        """Parse. The time of compiling is measured separately: it happens once, and the result is kept."""
        parsed = parsing.parse(lambda done, size: self.tell(parsing.what, done, size))
        self.compiling_s = parsing.compiling_s
        return parsed
