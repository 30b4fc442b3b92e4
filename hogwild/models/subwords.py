"""Pieces of words: their character n-grams, hashed to a fixed number of rows (Bojanowski, Grave, Joulin and Mikolov,
"Enriching Word Vectors with Subword Information", 2017).

    where, 3 to 4 characters      <wh whe her ere re> <whe wher here ere>     ──FNV-1a, as fastText──►  [0, buckets)"""

from collections.abc import Sequence

import numpy as np

_OFFSET, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_LONGEST = 4  # bytes of a character in UTF-8


def pieces_of(words: Sequence[str], min_n: int, max_n: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts (V + 1,) int64, pieces (n,) int32): word w has the rows pieces[starts[w]:starts[w + 1]]. Its
    n-grams are those of `<word>`, of min_n to max_n characters, but not < or > alone; one that occurs twice counts
    twice."""
    text = np.frombuffer("".join(f"<{word}>" for word in words).encode(), np.uint8)
    lengths = np.fromiter((len(word) + 2 for word in words), np.int64, len(words))
    owner = np.repeat(np.arange(len(words)), lengths)  # of each character
    stop = np.cumsum(lengths)[owner]
    begins = np.append(np.flatnonzero(text & 0xC0 != 0x80), len(text))  # bytes of characters, and the end
    at = np.arange(len(owner))
    is_edge = (at == stop - lengths[owner]) | (at == stop - 1)
    hashes, found = np.full(len(owner), _OFFSET, np.uint32), list[tuple[np.ndarray, np.ndarray]]()
    for size in range(1, max_n + 1):
        at = at[at + size <= stop[at]]
        last = at + size - 1
        for byte in range(_LONGEST):
            places = begins[last] + byte
            there = places < begins[last + 1]
            # fastText's bytes are signed, as its published vectors need.
            signed = text[places[there]].view(np.int8).astype(np.int32).view(np.uint32)
            hashes[at[there]] = (hashes[at[there]] ^ signed) * _PRIME
        if size >= min_n:
            whole = at[~is_edge[at]] if size == 1 else at
            found.append((owner[whole], (hashes[whole] % np.uint32(buckets)).astype(np.int32)))
    owners, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=len(words)), out=starts[1:])
    return starts, rows[np.argsort(owners, kind="stable")]
