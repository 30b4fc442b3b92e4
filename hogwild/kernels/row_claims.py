"""The row of each key in a table of keys that several processes share: found by open addressing, claimed by one
compare-and-swap.

    keys  (capacity,) int64, FREE in places that nobody has             row = place
    find(keys, ids, rows, …)           rows[i] = the row of ids[i]; `capacity`, the default row, where it has none

The race. Processes search and claim at once, without a lock. A place is written once, from FREE to a key, by a
compare-and-swap: of two that want it one succeeds, and the other reads whose it is now: its own key's, or it goes on to
the next place. A place is the row itself, and rows have their initial values from the beginning: there is no second
step, so a process that is killed leaves a free place or a whole row. A key is never in two places: all walk the same
places in the same order, and no place becomes free again."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from hogwild.kernels.compiling import exact, exact_kernel
from hogwild.kernels.signatures import FREE
from hogwild.kernels.simd import LINE, _ask_to_read, _ask_to_write, instruction

BLOCK = 64  # ids whose places, then rows, are on their way from memory at once
MOST_PLACES = 4096  # a search ends here: the table is as good as full
RESERVED = -1  # answer of `find`: one of the ids is FREE


@instruction
def _seen(typing, array, index):  # type: ignore[no-untyped-def]
    """Return array[index], read whole and in some order with the writes of other processes."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = _place(context, builder, signature, arguments)
        return builder.load_atomic(place, ordering="acquire", align=8)

    return types.int64(array, types.int64), code


@instruction
def _claimed(typing, array, index, key):  # type: ignore[no-untyped-def]
    """Write `key` to array[index] if it is FREE, in one step; return what was there before."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = _place(context, builder, signature, arguments)
        free = ir.Constant(ir.IntType(64), FREE)
        pair = builder.cmpxchg(place, free, arguments[2], ordering="acq_rel", failordering="acquire")
        return builder.extract_value(pair, 0)

    return types.int64(array, types.int64, types.int64), code


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@exact
def _first_place(key, capacity):  # type: ignore[no-untyped-def]
    """Return where the search for `key` begins: splitmix64's mixing (Steele, Lea and Flood 2014), then the upper half
    of a product instead of a remainder, so that any capacity will do."""
    mixed = types.uint64(key)
    mixed = (mixed ^ (mixed >> types.uint64(30))) * types.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> types.uint64(27))) * types.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> types.uint64(31)
    return types.int64(((mixed >> types.uint64(32)) * types.uint64(capacity)) >> types.uint64(32))


@exact
def _row_of(keys, key, place, claims):  # type: ignore[no-untyped-def]
    """Return the row of `key`, whose search begins at `place`; the capacity if it has none."""
    capacity = len(keys)
    for _ in range(min(capacity, MOST_PLACES)):
        seen = _seen(keys, place)
        if seen == FREE and claims:
            seen = _claimed(keys, place, key)
            if seen == FREE:
                return place
        if seen == key:
            return place
        if seen == FREE:
            return capacity
        place += 1
        if place == capacity:
            place = 0
    return capacity


@exact
def _is_due(counts, key, least):  # type: ignore[no-untyped-def]
    """Count `key` in the sketch, and return whether it has been seen `least` times. Two cells by two hashes; only the
    smaller ones grow, which counts fewer others along (Estan and Varghese 2002)."""
    cells = len(counts)
    one, other = _first_place(key, cells), _first_place(key ^ types.int64(0x5851F42D4C957F2D), cells)
    fewest = min(counts[one], counts[other]) + 1
    for cell in (one, other):
        if counts[cell] < fewest:
            counts[cell] = fewest  # a count that another process loses is seen once more
    return fewest >= least


@exact_kernel
def find(keys, ids, rows, table, counts, least, claims):  # type: ignore[no-untyped-def]
    """See the file's head. `ids`, `rows` (n,) int64; `table` (capacity + 1, dim): its rows are prefetched; `counts`
    int32: a sketch, used if `least` > 1: as often a key must be seen before it claims; `claims`: whether unknown keys
    claim a row. Returns how many ids wanted a row and got the default one, as the table is full; RESERVED, with nothing
    claimed for that id and those after it, if an id is FREE."""
    capacity, refused = len(keys), 0
    for begin in range(0, len(ids), BLOCK):
        end = min(begin + BLOCK, len(ids))
        for i in range(begin, end):
            rows[i] = _first_place(ids[i], capacity)
            _ask_to_read(keys, types.uint64(rows[i]))  # type: ignore[call-arg]
        for i in range(begin, end):
            if ids[i] == FREE:
                return RESERVED
            place, wants = rows[i], claims
            if claims and least > 1:
                rows[i] = _row_of(keys, ids[i], place, False)
                wants = rows[i] == capacity and _is_due(counts, ids[i], least)
            if wants or least == 1 or not claims:
                rows[i] = _row_of(keys, ids[i], place, wants)
            refused += wants and rows[i] == capacity
            for column in range(0, table.shape[1], LINE):
                _ask_to_write(table, rows[i], column)  # type: ignore[call-arg]
    return refused
