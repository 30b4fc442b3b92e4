"""The row of each key in a table of keys that several processes share: found by open addressing, claimed by one
compare-and-swap; how such a table grows, and how rows are given back.

    keys  (capacity,) int64     FREE: nobody has had this place;  GONE: its key is given back
          [ part 0: first | part 1: first | part 2: 2 first | part 3: 4 first | … ]      each as long as all before it
    rows of a place             place + HEAD, in the table and in the optimizer's state
    tally (2,) int64            counts, in this process: rows claimed; ids that wanted one and found no room

A key is searched in part after part: in each from a place that its hash gives, to the first FREE one, or over at most
FEW places (MOST in the part that the table cannot outgrow). It is claimed in the first place without a key that this
search has found in the part that is opened for claims, else in another one. So a table grows by one more part: no row
moves, no search changes what it finds, and nobody waits.

The race. Processes search and claim at once, without a lock. Between two pauses a place is written once, from FREE or
GONE to a key, by a compare-and-swap: of two that want it one succeeds, and the other searches again. All walk the same
places, prefer them in the same order (another part is opened in a pause alone), and claim the best one without a key.
So a key is never in two places: a process that claims the second best has seen another key in the best, and that one
stays. A process that does not know of the newest part yet may find no room, and that is all. A place is the row itself,
and rows have their initial values before their part is shown (`open_part`): there is no second step, so a process that
is killed leaves a free place or a whole row.

Only in a pause, while nobody searches, does a place lose its key (`give_back`). It becomes GONE where a search for
another key must go on, and FREE where none comes by."""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from hogwild.kernels.compiling import exact, exact_kernel
from hogwild.kernels.signatures import FREE, GONE, HEAD
from hogwild.kernels.simd import LINE, _ask_to_read, _ask_to_write, instruction

BLOCK = 64  # ids whose places, then rows, are on their way from memory at once
NEAR = 1 << 19  # bytes of rows that are still in the second-level cache when they are used
MOST = 4096  # places of a search in the last part: it is as good as full
FEW = 64  # in a part that another one may follow: eight lines; with 7 of 10 places taken 6 of 100,000 keys go on
CLAIMED, REFUSED = 0, 1  # in the tally
ACTIVE, LOOKUPS, CLEARED, OPENED = 0, 1, 2, 3  # in `life`, see `hogwild/nn.py`
GOLDEN, EVEN = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x0000FFFF0000FFFF)
SPREAD = math.sqrt((2**32 - 1) / 3)  # standard deviation of a sum of four uniform 16-bit numbers


@instruction
def _seen(typing, array, index):  # type: ignore[no-untyped-def]
    """Return array[index], read whole and in some order with the writes of other processes."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = _place(context, builder, signature, arguments)
        return builder.load_atomic(place, ordering="acquire", align=8)

    return types.int64(array, types.int64), code


@instruction
def _exchanged(typing, array, index, was, key):  # type: ignore[no-untyped-def]
    """Write `key` to array[index] if `was` is there, in one step; return what was there before."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = _place(context, builder, signature, arguments)
        pair = builder.cmpxchg(place, arguments[2], arguments[3], ordering="acq_rel", failordering="acquire")
        return builder.extract_value(pair, 0)

    return types.int64(array, types.int64, types.int64, types.int64), code


@instruction
def _counted(typing, array, index):  # type: ignore[no-untyped-def]
    """Add 1 to array[index], in one step; return what was there before."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = _place(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(array, types.int64), code


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@exact
def _mixed(bits):  # type: ignore[no-untyped-def]
    """Return splitmix64's mixing of 64 bits (Steele, Lea and Flood 2014)."""
    bits = (bits ^ (bits >> types.uint64(30))) * types.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> types.uint64(27))) * types.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> types.uint64(31))


@exact
def _hash(key):  # type: ignore[no-untyped-def]
    """Return 32 bits of a key."""
    return types.int64(_mixed(types.uint64(key)) >> types.uint64(32))


@exact
def _within(hashed, length):  # type: ignore[no-untyped-def]
    """Return where a search begins in a part: the upper half of a product instead of a remainder, so that any length
    will do."""
    return types.int64((types.uint64(hashed) * types.uint64(length)) >> types.uint64(32))


@exact
def _looks(length, end, most):  # type: ignore[no-untyped-def]
    """Return how many places of a part a search reads at most. The same at all times: a part stays as it is when others
    follow."""
    return min(length, MOST if end == most else FEW)


@exact
def _next_part(keys, end, first):  # type: ignore[no-untyped-def]
    """Return the places [begin, end) of the part after the one that ends at `end`; of the first one if that is 0."""
    return end, min(max(2 * end, first), types.int64(len(keys)))


@exact
def _place_of(keys, key, hashed, first, most, opened, claims, tally):  # type: ignore[no-untyped-def]
    """Return the place of `key`; -1 if it has none."""
    while True:
        room, there, spare, seen_there = types.int64(-1), types.int64(FREE), types.int64(-1), types.int64(FREE)
        end = types.int64(0)
        while end < len(keys):
            begin, end = _next_part(keys, end, first)
            place = begin + _within(hashed, end - begin)
            for _ in range(_looks(end - begin, end, most)):
                seen = _seen(keys, place)
                if seen == key:
                    return place
                if seen <= GONE:
                    if begin == opened and room < 0:
                        room, there = place, seen
                    elif begin != opened and spare < 0:
                        spare, seen_there = place, seen
                    if seen == FREE:
                        break
                place += 1
                if place == end:
                    place = begin
        if room < 0:
            room, there = spare, seen_there
        if room < 0 or not claims:
            return types.int64(-1)
        seen = _exchanged(keys, room, there, key)
        if seen == there:
            tally[CLAIMED] += 1
            return room
        if seen == key:
            return room  # otherwise another key took it: search again


@exact
def _is_due(counts, key, least):  # type: ignore[no-untyped-def]
    """Count `key` in the sketch, and return whether it has been seen `least` times. Two cells by two hashes; only the
    smaller ones grow, which counts fewer others along (Estan and Varghese 2002)."""
    cells = len(counts)
    one, other = _within(_hash(key), cells), _within(_hash(key ^ types.int64(0x5851F42D4C957F2D)), cells)
    fewest = min(counts[one], counts[other]) + 1
    for cell in (one, other):
        if counts[cell] < fewest:
            counts[cell] = fewest  # a count that another process loses is seen once more
    return fewest >= least


@exact_kernel
def find(keys, ids, rows, table, counts, least, seen, life, unit, first, most, claims, tally):  # type: ignore[no-untyped-def]
    """Set rows[i] to the row of ids[i], 0, the default row, where it has none. `keys`: those in use, with parts of
    `first` places and more, which may become `most`; `ids`, `rows` (n,) int64; `table` (places + HEAD, dim): its rows
    are prefetched if they all fit into a near cache; `counts` int32: a sketch, used if `least` > 1: as often a key must
    be seen before it claims; `claims`: whether unknown keys claim a row, which counts the search in `life`; `seen`
    (places,) int64: when a place was last looked up so, in units of `unit` searches, or empty. Returns whether all ids
    have their row; False, with nothing claimed for that id and those after it, if an id is FREE or GONE."""
    now, opened = types.int64(0), life[OPENED]
    width = table.shape[1] if 4 * len(ids) * table.shape[1] <= NEAR else 0
    if claims and len(seen):
        now = _counted(life, LOOKUPS) // unit
    for start in range(0, len(ids), BLOCK):
        stop = min(start + BLOCK, len(ids))
        for i in range(start, stop):
            rows[i] = _hash(ids[i])
            end = types.int64(0)
            while end < len(keys):
                begin, end = _next_part(keys, end, first)
                _ask_to_read(keys, types.uint64(begin + _within(rows[i], end - begin)))  # type: ignore[call-arg]
        for i in range(start, stop):
            if ids[i] <= GONE:
                return False
            hashed, wants, place = rows[i], claims, types.int64(-1)
            if claims and least > 1:
                place = _place_of(keys, ids[i], hashed, first, most, opened, False, tally)
                wants = place < 0 and _is_due(counts, ids[i], least)
            if wants or least == 1 or not claims:
                place = _place_of(keys, ids[i], hashed, first, most, opened, wants, tally)
            tally[REFUSED] += wants and place < 0
            if claims and place >= 0 and len(seen) and seen[place] != now:
                seen[place] = now  # not each time: a line that all write would go from core to core
            rows[i] = place + HEAD if place >= 0 else 0
            for column in range(0, width, LINE):
                _ask_to_write(table, rows[i], column)  # type: ignore[call-arg]
    return True


@exact
def _draw(table, row, seed, std, zeros):  # type: ignore[no-untyped-def]
    """Set a row to its initial values, which follow from the seed and the row alone: sums of four uniform numbers, near
    a normal one of mean 0. Logarithm and cosine would take ten times as long, and differ between machines."""
    start = _mixed(types.uint64(seed) ^ _mixed(types.uint64(row) + GOLDEN))
    scale = types.float32(std / SPREAD)
    for column in range(table.shape[1]):
        bits = _mixed(start + types.uint64(column + 1) * GOLDEN)
        pairs = (bits & EVEN) + ((bits >> types.uint64(16)) & EVEN)  # two sums of two, in one addition
        total = (pairs & types.uint64(0xFFFFFFFF)) + (pairs >> types.uint64(32))
        table[row, column] = 0 if column < zeros else scale * types.float32(types.int64(total) - 2 * 0xFFFF)


@exact_kernel
def draw(table, rows, seed, std, zeros):  # type: ignore[no-untyped-def]
    """Set the rows `rows` (n,) int64 of a table to their initial values, the first `zeros` numbers of each to 0."""
    for row in rows:
        _draw(table, row, seed, std, zeros)


@exact_kernel
def open_part(keys, table, seen, begin, end, seed, std, zeros):  # type: ignore[no-untyped-def]
    """Prepare the places [begin, end), which nobody uses yet: rows and keys."""
    for place in range(begin, end):
        _draw(table, place + HEAD, seed, std, zeros)
        keys[place] = FREE
        if len(seen):
            seen[place] = 0


@exact_kernel
def show(life, before, active):  # type: ignore[no-untyped-def]
    """Let all processes use the first `active` places, if they use `before` now; return whether. In order: who reads
    the new number reads what was written before."""
    return _exchanged(life, ACTIVE, before, active) == before


@exact_kernel
def unseen(keys, seen, oldest, places):  # type: ignore[no-untyped-def]
    """Find places with a key that were last looked up before `oldest`, as many as `places` holds; return the number."""
    count = 0
    for place in range(len(keys)):
        if keys[place] > GONE and seen[place] < oldest:
            if count == len(places):
                break
            places[count] = place
            count += 1
    return count


@exact_kernel
def give_back(keys, places, first, most):  # type: ignore[no-untyped-def]
    """Take the keys of `places` (n,) int64 away. Nobody may search meanwhile. A place stays GONE only where the search
    for a key comes by: each part is read from its end backwards, with `need` the first place that is read in a search
    for one of the keys so far. Counted on beyond the end, for keys whose search goes on at the beginning."""
    for place in places:
        keys[place] = GONE
    end = types.int64(0)
    while end < len(keys):
        begin, end = _next_part(keys, end, first)
        length = end - begin
        need = 2 * length
        for far in range(length + _looks(length, end, most) - 1, -1, -1):
            place = begin + far % length
            key = keys[place]
            if key > GONE:
                home = _within(_hash(key), length)
                if home > place - begin:
                    home -= length
                need = min(need, far - (place - begin) + home)
            elif key == GONE and far < length and need > far:
                keys[place] = FREE
