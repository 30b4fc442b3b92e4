"""Words as bytes: the distinct words of a text, their counts, and the text as word numbers.

A word of a text is a run of bytes above 32: ASCII white space and control characters separate words. An open-addressing
table finds a word by a 64-bit hash (FNV-1a, Fowler, Noll and Vo) and then compares its bytes, so two words with the
same hash stay separate.

    slots (2^k,) int32   entry of a word, -1: free; at most half are used, so that every search ends
    keys, ends           of each entry: the hash (uint64), and the end of its bytes in `pool` (int64)
    sizes (2,) int64     number of known words, number of their bytes"""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel
from hogwild.kernels.rng import mixed

LINE_END = -1  # appears among the word numbers
SPACE, NEW_LINE = np.uint8(32), np.uint8(10)
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
ENTRIES, USED = 0, 1  # indices into `sizes`


@inlined
def place_of(content, begin, end, key, slots, keys, ends, pool):  # type: ignore[no-untyped-def]
    """Return (slot, entry) of the word content[begin:end] with the hash `key`; entry -1: unknown, to be added there."""
    mask = np.uint64(len(slots) - 1)
    slot = mixed(key) & mask
    while slots[slot] >= 0:
        entry = slots[slot]
        if keys[entry] == key:
            start = ends[entry - 1] if entry > 0 else 0
            if ends[entry] - start == end - begin:
                k = 0
                while k < end - begin and pool[start + k] == content[begin + k]:
                    k += 1
                if k == end - begin:
                    return slot, entry
        slot = (slot + np.uint64(1)) & mask
    return slot, np.int32(-1)


@inlined
def added(content, begin, end, key, slot, slots, keys, ends, pool, sizes):  # type: ignore[no-untyped-def]
    """Add the word; return its entry, or -1 if the table has no room for it."""
    entry, used = np.int32(sizes[ENTRIES]), sizes[USED]
    if entry == len(keys) or used + end - begin > len(pool):
        return np.int32(-1)
    for k in range(end - begin):
        pool[used + k] = content[begin + k]
    slots[slot], keys[entry], ends[entry] = entry, key, used + end - begin
    sizes[ENTRIES], sizes[USED] = entry + 1, used + end - begin
    return entry


@kernel
def number(content, at, slots, keys, ends, pool, sizes, counts, raw):  # type: ignore[no-untyped-def]
    """Read content (n,) uint8 from `at` on, add new words to the table, and write their numbers, in order of first
    appearance, and LINE_END to raw. Return (where it stopped, how many numbers). It stops at the end, when `raw` is
    full, and before a word that does not fit into the table."""
    written = 0
    while at < len(content) and written < len(raw):
        if content[at] <= SPACE:
            if content[at] == NEW_LINE:
                raw[written] = LINE_END
                written += 1
            at += 1
            continue
        begin, key = at, _BASIS
        while at < len(content) and content[at] > SPACE:
            key = (key ^ np.uint64(content[at])) * _PRIME
            at += 1
        slot, entry = place_of(content, begin, at, key, slots, keys, ends, pool)
        if entry < 0:
            entry = added(content, begin, at, key, slot, slots, keys, ends, pool, sizes)
            if entry < 0:
                return begin, written
        counts[entry] += 1
        raw[written] = entry
        written += 1
    return at, written


@kernel
def fill_slots(keys, entries, slots):  # type: ignore[no-untyped-def]
    """Fill a larger table with the same words. `slots`: all -1, a power of two."""
    mask = np.uint64(len(slots) - 1)
    for entry in range(entries):
        slot = mixed(keys[entry]) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = entry


@kernel
def encode(raw, rank, longest, tokens, at, starts, sentences):  # type: ignore[no-untyped-def]
    """Write rank[word] for the output of `number` to `tokens` from `at` on; words of rank -1 are left out. `starts`
    gets the place where each sentence begins; a sentence ends with its line, and after `longest` words. Return (at,
    sentences)."""
    for n in range(len(raw)):
        begun = starts[sentences]
        if raw[n] == LINE_END:
            if at > begun:
                sentences += 1
                starts[sentences] = at
            continue
        word = rank[raw[n]]
        if word < 0:
            continue
        tokens[at] = word
        at += 1
        if at - begun == longest:
            sentences += 1
            starts[sentences] = at
    return at, sentences
