"""The best items of each user out of all, and how they meet the held-out ones: what the metrics of recommenders need.

The score of an item is users[u] . items[i] + offsets[i]. A block of USERS users meets a tile of TILE items at a time, a
few users after the other, whose scores stay in the first-level cache; nothing of size users x items exists. The tile
lies there by columns, so that a vector holds the same number of several items, and no sum goes across a vector. Of a
tile a user takes what is above the k-th best so far. No row is sorted, and there are few branches, as none of them
could be predicted:

    a tile with a few such scores    each is inserted into the list of the best
    with more, as the first one      the list and these become k new best by their ranks, counted in vectors; before,
                                     the k-th largest of the tile's WIDTH interleaved maxima excludes most of them

    known items (training)     score -inf: never taken, and no negatives
    ties                       the lower item number first, as in a stable sort
    a score of NaN, +inf       the worst of a held-out item, the best of any other: no model gains from NaN

The area under a user's ROC curve counts, for each of r held-out items, the items above it and half of those that tie.
Among the held-out ones, each with itself included, that is r^2 / 2, which is taken off. For the area the scores of
held-out items are computed before all others."""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel
from hogwild.kernels.simd import (
    NATIVE,
    WIDTH,
    exceeds,
    fused,
    least,
    load,
    load_native,
    most,
    padded,
    reaches,
    splat,
    splat_native,
    store,
    store_native,
    total,
    zeros_on_lines,
)

USERS = 512  # of a block, for which a tile is packed once
FEW = 32  # users whose scores of a tile are 16 KiB
TILE = 128
STEP = 32  # items: two vectors of today's widest
_INF, _0 = np.float32(np.inf), np.float32(0.0)
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


def scratch_of(width: int, k: int, held: int) -> tuple[np.ndarray, ...]:
    """Return the kernel's working memory for vectors of `width` numbers, k best items and `held` held-out ones."""
    # An odd number of cache lines in a row, so that rows are not in the same places of the cache.
    tables = zeros_on_lines(USERS, width), zeros_on_lines(width, TILE + WIDTH), zeros_on_lines(1, TILE)
    scores, best = zeros_on_lines(FEW, TILE + WIDTH), np.zeros((USERS, k), np.float32)
    merged = zeros_on_lines(2, padded(k + TILE)), np.zeros((2, padded(k + TILE)), np.int32)
    return (*tables, scores, best, *merged, np.zeros(held, np.float32), np.zeros((3, USERS), np.int64))


@inlined
def _put_column(table, row, X, column):  # type: ignore[no-untyped-def]
    """Copy a row of a table (R, f) into a column of X (f, TILE)."""
    at, to = np.uint64(row), np.uint64(column)
    for f in range(np.uint64(table.shape[1])):
        X[f, to] = table[at, f]


@inlined
def _multiply(Q, first, many, X, S, count):  # type: ignore[no-untyped-def]
    """Set S[i, j] = Q[first + i] . X[:, j] for `many` users, a multiple of 4, and `count` items, one of STEP. Eight
    sums stay in registers, and keep both of a core's multipliers busy; their order is the same for every item."""
    for j in range(0, count, 2 * NATIVE):
        for i in range(0, many, 4):
            u = np.uint64(first + i)
            a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = splat_native(_0)
            for f in range(Q.shape[1]):
                x0, x1, place = load_native(X, f, j), load_native(X, f, j + NATIVE), np.uint64(f)
                q0, q1 = splat_native(Q[u, place]), splat_native(Q[u + _1, place])
                q2, q3 = splat_native(Q[u + _2, place]), splat_native(Q[u + _3, place])
                a0, a1 = fused(q0, x0, a0), fused(q0, x1, a1)
                b0, b1 = fused(q1, x0, b0), fused(q1, x1, b1)
                c0, c1 = fused(q2, x0, c0), fused(q2, x1, c1)
                d0, d1 = fused(q3, x0, d0), fused(q3, x1, d1)
            store_native(S, i, j, a0)
            store_native(S, i, j + NATIVE, a1)
            store_native(S, i + 1, j, b0)
            store_native(S, i + 1, j + NATIVE, b1)
            store_native(S, i + 2, j, c0)
            store_native(S, i + 2, j + NATIVE, c1)
            store_native(S, i + 3, j, d0)
            store_native(S, i + 3, j + NATIVE, d1)


@inlined
def _if_finite(score):  # type: ignore[no-untyped-def]
    """Return a held-out item's score; -inf for NaN and +inf."""
    return score if score < _INF else -_INF


@inlined
def _is_among(item, items, first, stop):  # type: ignore[no-untyped-def]
    """Return whether an item is in items[first:stop], which are sorted."""
    end = stop
    while first < stop:
        middle = (first + stop) >> 1
        if items[middle] < item:
            first = middle + 1
        else:
            stop = middle
    return first < end and items[first] == item


@kernel
def keep_new(starts, items, known_starts, known, are_kept):  # type: ignore[no-untyped-def]
    """Clear are_kept[n] of a user's items that are among the known ones, or kept before. starts, known_starts (U + 1,)
    int64: where each user's items begin in `items` and `known`, sorted."""
    for u in range(len(starts) - 1):
        last = -1
        for n in range(starts[u], starts[u + 1]):
            is_again = items[n] == last or _is_among(items[n], known, known_starts[u], known_starts[u + 1])
            are_kept[n] = are_kept[n] and not is_again
            last = items[n] if are_kept[n] else last


@inlined
def _held_heights(size, first_user, held_starts, held, items, offsets, Q, X, S, heights):  # type: ignore[no-untyped-def]
    """Compute the scores `heights` of the block's held-out items, by the product that all scores come from, so that
    equal rows tie."""
    for n in range(size):
        fours, stop = n & ~3, held_starts[first_user + n + 1]
        for first in range(held_starts[first_user + n], stop, TILE):
            count = min(TILE, stop - first)
            for j in range(count):
                _put_column(items, held[first + j], X, j)
            _multiply(Q, fours, 4, X, S, -(-count // STEP) * STEP)
            for j in range(count):
                heights[first + j] = _if_finite(S[n & 3, j] + offsets[held[first + j]])


@inlined
def _add_offsets(S, n, width, B, bound):  # type: ignore[no-untyped-def]
    """Complete a user's scores of a tile, +inf instead of NaN; return how many exceed the bound."""
    limit, largest, above = splat(bound), splat(_INF), splat(_0)
    for j in range(0, width, WIDTH):
        score = least(load(S, n, j) + load(B, 0, j), largest)
        store(S, n, j, score)
        above = above + exceeds(score, limit)
    return np.int64(total(above))


@inlined
def _exclude_known(S, n, first, count, known, place, stop, start):  # type: ignore[no-untyped-def]
    """Exclude the known items [place, stop) of this tile. Return (place of the next one, different ones)."""
    different = 0
    while place < stop and known[place] < first + count:
        different += place == start or known[place] != known[place - 1]
        S[n, known[place] - first] = -_INF
        place += 1
    return place, different


@inlined
def _put_held(S, n, first, count, held, place, stop, heights, has_areas):  # type: ignore[no-untyped-def]
    """Put in the scores of held-out items [place, stop) of this tile. Return the place of the next one."""
    while place < stop and held[place] < first + count:
        j = held[place] - first
        S[n, j] = heights[place] if has_areas else _if_finite(S[n, j])
        place += 1
    return place


@inlined
def _among_largest(S, n, width, k, lanes):  # type: ignore[no-untyped-def]
    """Return a number that at least k of the scores reach, k <= WIDTH: the k-th largest of their maxima by lane.
    `lanes`: scratch, a row of WIDTH or more."""
    largest = load(S, n, 0)
    for begin in range(WIDTH, width, WIDTH):
        largest = most(largest, load(S, n, begin))
    store(lanes, 0, 0, largest)
    found = -_INF
    for i in range(WIDTH):
        found = lanes[0, np.uint64(i)] if _rank(lanes, i, WIDTH) == k - 1 else found
    return found


@inlined
def _rank(scores, i, count):  # type: ignore[no-untyped-def]
    """Return the place, from 0 on, of scores[0, i] among the first `count`, a multiple of WIDTH, in falling order;
    equal ones stay in their order."""
    own = splat(scores[0, np.uint64(i)])
    first = load(scores, 0, 0)
    above, at_least = exceeds(first, own), reaches(first, own)
    for begin in range(WIDTH, count, WIDTH):
        other = load(scores, 0, begin)
        above, at_least = above + exceeds(other, own), at_least + reaches(other, own)
    rank, ties = np.int64(total(above)), np.int64(total(at_least))
    if ties > rank + 1:
        for j in range(np.uint64(i)):
            rank += scores[0, j] == scores[0, np.uint64(i)]
    return rank


@inlined
def _take_best(S, s, n, first, width, new, best, top, u, k, merged, merged_items):  # type: ignore[no-untyped-def]
    """Take the scores in row s, of items `first` on, that are among the best k of user n now: `new` at most."""
    row, user, line, bound = np.uint64(s), np.uint64(n), np.uint64(u), best[n, k - 1]
    is_few = new <= 4 + k // 8  # where moving the list takes as long as counting ranks
    lowest = _among_largest(S, s, width, k, merged) if not is_few and k <= WIDTH else -_INF
    filled = 0
    if not is_few:
        while filled < k and best[user, np.uint64(filled)] > -_INF:
            merged[0, np.uint64(filled)] = best[user, np.uint64(filled)]
            merged_items[0, np.uint64(filled)] = top[line, np.uint64(filled)]
            filled += 1
    count = np.uint64(filled)
    for j in range(np.uint64(width)):
        merged[0, count], merged_items[0, count] = S[row, j], first + np.int64(j)
        count += np.uint64((S[row, j] > bound) & (S[row, j] >= lowest))
    if is_few:
        for i in range(count):
            score, place = merged[0, i], k - 1
            if score > best[n, place]:
                while place > 0 and best[n, place - 1] < score:
                    best[n, place], top[u, place] = best[n, place - 1], top[u, place - 1]
                    place -= 1
                best[n, place], top[u, place] = score, merged_items[0, i]
        return
    whole = -(-np.int64(count) // WIDTH) * WIDTH
    for i in range(count, np.uint64(whole)):
        merged[0, i] = -_INF
    for i in range(np.int64(count)):
        rank = np.uint64(_rank(merged, i, whole))
        merged[1, rank], merged_items[1, rank] = merged[0, np.uint64(i)], merged_items[0, np.uint64(i)]
    for i in range(np.uint64(min(k, np.int64(count)))):
        best[user, i], top[line, i] = merged[1, i], merged_items[1, i]


@inlined
def _count_above(S, n, width, heights, start, stop):  # type: ignore[no-untyped-def]
    """Return, over the held-out items [start, stop), how many scores are above theirs, and half of those that tie."""
    found = 0.0
    for place in range(start, stop):
        if heights[place] > -_INF:
            height = splat(heights[place])
            twice = splat(_0)
            for begin in range(0, width, WIDTH):
                score = load(S, n, begin)
                twice = twice + exceeds(score, height) + reaches(score, height)
            found += 0.5 * total(twice)
    return found


@inlined
def _area(above, others, heights, start, stop):  # type: ignore[no-untyped-def]
    """Return the area under the ROC curve, from the sum of `_count_above` over all tiles and the number of other
    items; an excluded held-out item is below all of these."""
    held = finite = 0
    for place in range(start, stop):
        held += 1
        finite += heights[place] > -_INF
    if not others:
        return np.nan
    wrong = above - 0.5 * finite * finite + np.float64(held - finite) * others
    return 1.0 - wrong / (np.float64(held) * others)


@kernel
def rank(  # type: ignore[no-untyped-def]
    numbers, users, items, offsets, known_starts, known, held_starts, held, has_areas, scratch, top, hits, areas
):  # fmt: skip
    """For each of the users `numbers` (n,) int64: `top` (n, k) int32 becomes the best items, the best one first, -1
    behind the last; `hits` (n, k) uint8 whether they are held out; `areas` (n,) float64 the area under the ROC curve,
    NaN if there are no other items, only with `has_areas`. users (U, f), items (I, f), offsets (I,) float32.
    known_starts (U + 1,), held_starts (n + 1,) int64: where each user's items begin in known, held int32, sorted; no
    held-out item is known, or there twice."""
    Q, X, B, S, best, merged, merged_items, heights, state = scratch
    at_known, at_held, others = state
    many, k = len(items), top.shape[1]
    for begin in range(0, len(numbers), USERS):
        size = min(USERS, len(numbers) - begin)
        for n in range(size):
            number, u = np.uint64(numbers[begin + n]), begin + n
            for f in range(np.uint64(users.shape[1])):
                Q[np.uint64(n), f] = users[number, f]
            at_known[n], at_held[n] = known_starts[number], held_starts[u]
            others[n], areas[u] = many - (held_starts[u + 1] - held_starts[u]), 0.0
            for place in range(k):
                best[n, place], top[u, place] = -_INF, -1
        if has_areas:
            _held_heights(size, begin, held_starts, held, items, offsets, Q, X, S, heights)
        for first in range(0, many, TILE):
            count = min(TILE, many - first)
            whole = -(-count // STEP) * STEP
            for j in range(count):
                _put_column(items, first + j, X, j)
                B[0, j] = offsets[first + j]
            for j in range(count, whole):
                B[0, j] = -_INF
                for f in range(X.shape[0]):
                    X[f, j] = _0
            for part in range(0, size, FEW):
                stop = min(size, part + FEW)
                _multiply(Q, part, (stop - part + 3) & ~3, X, S, whole)
                for n in range(part, stop):
                    u, s, number = begin + n, n - part, numbers[begin + n]
                    new = _add_offsets(S, s, whole, B, best[n, k - 1])
                    at_known[n], different = _exclude_known(
                        S, s, first, count, known, at_known[n], known_starts[number + 1], known_starts[number]
                    )
                    others[n] -= different
                    at_held[n] = _put_held(S, s, first, count, held, at_held[n], held_starts[u + 1], heights, has_areas)
                    if new:
                        _take_best(S, s, n, first, whole, new, best, top, u, k, merged, merged_items)
                    if has_areas:
                        areas[u] += _count_above(S, s, whole, heights, held_starts[u], held_starts[u + 1])
        for n in range(size):
            u = begin + n
            start, stop = held_starts[u], held_starts[u + 1]
            for place in range(k):
                hits[u, place] = 0
            for at in range(start, stop):
                for place in range(np.uint64(k)):
                    hits[u, place] |= top[u, place] == held[at]
            if has_areas:
                areas[u] = _area(areas[u], others[n], heights, start, stop)
