"""Kernel of the knowledge graph models: triples in groups that share their negatives.

    a group      G triples of the chunk, K entities drawn at random; the rows they name are copied together, each once
    queries      two for each triple: head (op) relation asks for the tail, tail (op') relation' for the head
    scores       (2 G, K) of the queries and what was drawn; the right answer's apart
    weights      d loss / d score, in place of the scores
    gradients    of the queries: weights x drawn; of the drawn: weights' x queries
    apply        each row that the group named, once, with all that it got

With shared negatives the 2 G K scores are a product of two small matrices that stay in the cache: the idea of
PyTorch-BigGraph (Lerer et al., 2019, section 4.3). Only drawn entities are negatives. The heads and tails of the other
triples would be available too, but they appear by frequency, and pushing frequent entities down cost 0.03 MRR on
CoDEx-M.

A group is a batch: it reads its rows once and writes them once; then the next group, and other workers, see them. The
division of a chunk into groups decides which triples share negatives: the draws depend on the chunk's seed and the
group's place.

The products. A block of 4 x 2 vectors of sums stays in registers, of which 16 are enough: eight sums that do not wait
for each other keep both of a core's multipliers busy. With 512-bit vectors 90 to 130 GFLOP/s on one core (a BLAS, which
copies the rows first: 150), with 256-bit ones 55 to 70; LLVM's own loops have 45 to 70 with either. Queries and
candidates are padded to a multiple of BLOCK, the width with zeros to a multiple of 16; tables begin a cache line
(`zeros_on_lines`), or loads cross one."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.rng import STEP, below, mixed
from hogwild.kernels.simd import NATIVE, fused, load_native, padded, part, splat_native, store_native, totals

SOFTMAX, LOGISTIC, MARGIN = 0, 1, 2

_0, _1, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
_LOW = np.float32(-np.inf)
_LOG2E, _LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
_P2, _P3, _P4, _P5, _P6 = (np.float32(1.0 / n) for n in (2, 6, 24, 120, 720))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@inlined
def exp(x):  # type: ignore[no-untyped-def]
    """Return e^x in float32, to 1e-6 near 0 and 4e-6 at the ends, 0 below -86. A polynomial and an exponent, which are
    vectorised, unlike a library call. NaN is not preserved: the caller has checked."""
    t = min(max(x * _LOG2E, np.float32(-126.0)), np.float32(126.0))
    whole = np.floor(t + _HALF)
    f = (t - whole) * _LN2
    p = _1 + f * (_1 + f * (_P2 + f * (_P3 + f * (_P4 + f * (_P5 + f * _P6)))))
    power = np.int32((np.int32(whole) + _BIAS) << _MANTISSA).view(np.float32)
    return p * power if t > np.float32(-124.0) else _0


@inlined
def weigh(loss, margin, log_q, S, q, own, drawn, count, positive, right):  # type: ignore[no-untyped-def]
    """Return the loss of query q, whose right answer is row `own` with the score positive[q]. Its weight goes to
    `right` (queries,), the weights of the drawn entities to S[q]. A drawn entity that is the right answer is no
    negative, nor is a column past `count`. Returns NaN if a score is not finite; the weights are then meaningless."""
    p = positive[q]
    total, negatives, value = p, _0, _0
    for j in range(count):
        total += S[q, j]
    for j in range(count):
        is_negative = drawn[j] != own
        negatives += _1 if is_negative else _0
        S[q, j] = S[q, j] if is_negative else _LOW
    for j in range(count, S.shape[1]):
        S[q, j] = _LOW
    if not is_finite(total):
        return np.float32(np.nan)
    if loss == SOFTMAX:
        return weigh_softmax(S, q, p, right, log_q)
    each = _1 / max(negatives, _1)
    if loss == MARGIN:
        short = _0
        for j in range(S.shape[1]):
            lack = margin - p + S[q, j]
            value += max(lack, _0)
            w = each if lack > _0 else _0
            S[q, j] = w
            short += w
        right[q] = -short
        return value * each
    for first in range(0, S.shape[1], BLOCK):
        product = _1  # one logarithm for eight factors
        for j in range(first, first + BLOCK):
            s = S[q, j]
            e = exp(-abs(s))
            value += max(s, _0)
            product *= _1 + e
            S[q, j] = each * (_1 if s >= _0 else e) / (_1 + e)
        value += np.log(product)
    e = exp(-abs(p))
    right[q] = -(e if p >= _0 else _1) / (_1 + e)
    return each * value + max(-p, _0) + np.log1p(e)


@inlined
def weigh_softmax(S, q, p, right, log_q):  # type: ignore[no-untyped-def]
    """Return the cross-entropy of the right answer among all; `log_q` is subtracted from the scores of the others."""
    top = p
    for j in range(S.shape[1]):
        top = max(top, S[q, j] - log_q)
    own = exp(p - top)
    mass = own
    for j in range(S.shape[1]):
        e = exp(S[q, j] - log_q - top)
        S[q, j] = e
        mass += e
    share = _1 / mass
    others = _0
    for j in range(S.shape[1]):
        S[q, j] *= share
        others += S[q, j]
    right[q] = -others
    return np.log(mass) + top - p


COMPLEX, PRODUCT, TRANSLATION, ROTATION = 0, 1, 2, 3  # the effect of a relation on an entity
SGD, ADAGRAD, ROW_ADAGRAD = 0, 1, 2
NEAR = np.float32(1e-12)  # squared distance below which no direction is defined


# ---- relations; each loop writes one row: with two, LLVM could not prove that they differ


@inlined
def query(operator, sign, X, x, Y, y, Q, i, dim):  # type: ignore[no-untyped-def]
    """Set Q[i] = entity (op) relation. `sign` -1 applies the inverse: the conjugate, or the translation back."""
    half = dim // 2
    if operator == COMPLEX:
        for k in range(half):
            Q[i, k] = X[x, k] * Y[y, k] - sign * X[x, half + k] * Y[y, half + k]
        for k in range(half):
            Q[i, half + k] = sign * X[x, k] * Y[y, half + k] + X[x, half + k] * Y[y, k]
    elif operator == ROTATION:
        for k in range(half):
            share = _1 / np.sqrt(max(NEAR, Y[y, k] * Y[y, k] + Y[y, half + k] * Y[y, half + k]))
            Q[i, k] = share * (X[x, k] * Y[y, k] - sign * X[x, half + k] * Y[y, half + k])
        for k in range(half):
            share = _1 / np.sqrt(max(NEAR, Y[y, k] * Y[y, k] + Y[y, half + k] * Y[y, half + k]))
            Q[i, half + k] = share * (sign * X[x, k] * Y[y, half + k] + X[x, half + k] * Y[y, k])
    elif operator == PRODUCT:
        for k in range(dim):
            Q[i, k] = X[x, k] * Y[y, k]
    else:
        for k in range(dim):
            Q[i, k] = X[x, k] + sign * Y[y, k]


@inlined
def query_back(operator, sign, X, x, Y, y, G, i, GX, GY, dim):  # type: ignore[no-untyped-def]
    """Propagate the query's gradient G[i] to the entity and the relation."""
    half = dim // 2
    if operator == COMPLEX:
        for k in range(half):
            GX[x, k] += G[i, k] * Y[y, k] + sign * G[i, half + k] * Y[y, half + k]
        for k in range(half):
            GX[x, half + k] += G[i, half + k] * Y[y, k] - sign * G[i, k] * Y[y, half + k]
        for k in range(half):
            GY[y, k] += G[i, k] * X[x, k] + G[i, half + k] * X[x, half + k]
        for k in range(half):
            GY[y, half + k] += sign * (G[i, half + k] * X[x, k] - G[i, k] * X[x, half + k])
    elif operator == ROTATION:
        for k in range(half):
            share = _1 / np.sqrt(max(NEAR, Y[y, k] * Y[y, k] + Y[y, half + k] * Y[y, half + k]))
            u, v = share * Y[y, k], share * Y[y, half + k]
            a, b = G[i, k], G[i, half + k]
            GX[x, k] += a * u + sign * b * v
            GX[x, half + k] += b * u - sign * a * v
            du, dv = a * X[x, k] + b * X[x, half + k], sign * (b * X[x, k] - a * X[x, half + k])
            along = du * u + dv * v  # what would change the size only
            GY[y, k] += share * (du - along * u)
            GY[y, half + k] += share * (dv - along * v)
    elif operator == PRODUCT:
        for k in range(dim):
            GX[x, k] += G[i, k] * Y[y, k]
        for k in range(dim):
            GY[y, k] += G[i, k] * X[x, k]
    else:
        for k in range(dim):
            GX[x, k] += G[i, k]
        for k in range(dim):
            GY[y, k] += sign * G[i, k]


@inlined
def keep_small(operator, weight, X, x, GX, dim):  # type: ignore[no-untyped-def]
    """Add the gradient of `weight` times the row's cubed magnitudes, those of its numbers or complex numbers (N3)."""
    factor, half = np.float32(3.0) * weight, dim // 2
    if operator in (COMPLEX, ROTATION):
        for k in range(half):
            size = factor * np.sqrt(X[x, k] * X[x, k] + X[x, half + k] * X[x, half + k])
            GX[x, k] += size * X[x, k]
            GX[x, half + k] += size * X[x, half + k]
    else:
        for k in range(dim):
            GX[x, k] += factor * abs(X[x, k]) * X[x, k]


# ---- distances instead of products


@inlined
def to_distances(S, F, Q2, X2, drawn, queries, count):  # type: ignore[no-untyped-def]
    """Turn products into -|q - x|; F stores 1 / |q - x|, or 0 if no direction is defined. NaN stays NaN."""
    for q in range(queries):
        for j in range(count):
            square = Q2[q] + X2[drawn[j]] - (S[q, j] + S[q, j])
            root = np.sqrt(NEAR if square < NEAR else square)
            S[q, j] = -root
            F[q, j] = _1 / root if square > NEAR else _0


@inlined
def pull(S, F, Q, X, drawn, DQ, GX, queries, count, width):  # type: ignore[no-untyped-def]
    """Turn weights of distances into weights of vectors, and add the terms of the query and of the entity themselves:
    d(-|q - x|)/dq = (x - q) / |q - x|."""
    for q in range(queries):
        total = _0
        for j in range(count):
            S[q, j] *= F[q, j]
            total += S[q, j]
        for d in range(width):
            DQ[q, d] -= total * Q[q, d]
    for j in range(count):
        total = _0
        for q in range(queries):
            total += S[q, j]
        k = drawn[j]
        for d in range(width):
            GX[k, d] -= total * X[k, d]


@inlined
def answer(is_distance, Q, q, X, x, width):  # type: ignore[no-untyped-def]
    """Return the score of one entity."""
    total = _0
    if not is_distance:
        for d in range(width):
            total += Q[q, d] * X[x, d]
        return total
    for d in range(width):
        total += (Q[q, d] - X[x, d]) * (Q[q, d] - X[x, d])
    return -np.sqrt(NEAR if total < NEAR else total)


@inlined
def answer_back(is_distance, w, score, Q, q, X, x, DQ, GX, width):  # type: ignore[no-untyped-def]
    """Add the gradients of one entity's score, for the weight w."""
    if is_distance:
        w = w / -score if score * score > NEAR else _0
        for d in range(width):
            DQ[q, d] -= w * Q[q, d]
        for d in range(width):
            GX[x, d] -= w * X[x, d]
    for d in range(width):
        DQ[q, d] += w * X[x, d]
    for d in range(width):
        GX[x, d] += w * Q[q, d]


# ---- writing


@inlined
def apply(rule, rate, eps, decay, P, sums, row, G, g, dim):  # type: ignore[no-untyped-def]
    """Update P[row] with the gradient G[g] (dim). Return whether it was finite; otherwise it is not applied.

    The race: another worker may write sums[row] between our read and our write, and one of the two additions is lost.
    Therefore the accumulator is read once, into a local that includes our own square: whatever others do, the step
    divides by at least the size of our own gradient, and is never longer than rate * sqrt(dim)."""
    if decay != _0:
        for d in range(dim):
            G[g, d] += decay * P[row, d]
    square = _0
    for d in range(dim):
        square += G[g, d] * G[g, d]
    if not is_finite(square):
        return False
    if rule == ADAGRAD:
        for d in range(dim):
            mine = G[g, d]
            total = sums[row, d] + mine * mine
            sums[row, d] = total
            P[row, d] -= rate * mine / (np.sqrt(total) + eps)
        return True
    step = rate
    if rule == ROW_ADAGRAD:
        total = sums[row, 0] + square / np.float32(dim)
        sums[row, 0] = total
        step = rate / (np.sqrt(total) + eps)
    for d in range(dim):
        P[row, d] -= step * G[g, d]
    return True


@inlined
def local(name, slot, names, count, P, X, GX, dim):  # type: ignore[no-untyped-def]
    """Copy row `name` on its first use in the group. Return (its place, rows copied so far)."""
    place = slot[name]
    if place >= 0:
        return place, count
    slot[name] = count
    names[count] = name
    for d in range(dim):
        X[count, d] = P[name, d]
    for d in range(X.shape[1]):
        GX[count, d] = _0
    return count, count + 1


@kernel
def train(triples, rows, seed, shape, numbers, tables, sums, slots, scratch):  # type: ignore[no-untyped-def]
    """Train on one chunk. `shape`: operator, is_distance, loss, rule, group, negatives, offset of the head questions'
    relations, inverse. `numbers`: margin; rate, eps, decay of entities, then of relations; weight of N3; log q.
    `tables`, `sums`, `slots`: of (entities, relations); a slot is -1 between groups. Returns (loss, applied, not
    finite)."""
    (E, R), (e_sums, r_sums), (e_slot, r_slot) = tables, sums, slots
    operator, is_distance, loss, rule = shape[0], shape[1], shape[2], shape[3]
    group, negatives, offset = shape[4], shape[5], shape[6]
    inverse, n3 = np.float32(-1.0) if shape[7] else _1, numbers[7]
    (e_names, r_names, drawn, every, source, goal, relation), (X, GX, Y, GY, Q, DQ, S, F), lists = scratch
    X2, Q2, positive, right, losses = lists
    dim, width, columns = E.shape[1], padded(E.shape[1]), len(drawn)
    state = np.uint64(seed)
    loss_sum, applied, refused = 0.0, 0, 0
    for first in range(0, len(rows), group):
        g = min(group, len(rows) - first)
        queries = (2 * g + BLOCK - 1) // BLOCK * BLOCK
        xs, ys = 0, 0
        for i in range(g):
            row, q = rows[first + i], 2 * i
            h, xs = local(triples[row, 0], e_slot, e_names, xs, E, X, GX, dim)
            t, xs = local(triples[row, 2], e_slot, e_names, xs, E, X, GX, dim)
            source[q], goal[q], source[q + 1], goal[q + 1] = h, t, t, h
            relation[q], ys = local(triples[row, 1], r_slot, r_names, ys, R, Y, GY, dim)
            relation[q + 1], ys = local(triples[row, 1] + offset, r_slot, r_names, ys, R, Y, GY, dim)
        for j in range(negatives):
            state += STEP
            drawn[j], xs = local(below(mixed(state), len(E)), e_slot, e_names, xs, E, X, GX, dim)
        clear(Q, queries, width)
        clear(DQ, queries, width)
        for q in range(2 * g):
            query(operator, inverse if q % 2 else _1, X, source[q], Y, relation[q], Q, q, dim)
            positive[q] = answer(is_distance, Q, q, X, goal[q], width)
        dots(Q, X, drawn, S, queries, columns, width)
        if is_distance:
            squares(X, xs, X2, width)
            squares(Q, queries, Q2, width)
            to_distances(S, F, Q2, X2, drawn, queries, negatives)
        for q in range(2 * g):
            losses[q] = weigh(loss, numbers[0], numbers[8], S, q, goal[q], drawn, negatives, positive, right)
        for q in range(0, 2 * g, 2):
            if is_finite(losses[q]) and is_finite(losses[q + 1]):
                loss_sum += losses[q] + losses[q + 1]
                applied += 1
                continue
            losses[q] = np.float32(np.nan)  # neither question of the triple is applied
            refused += 1
            clear(S[q : q + 2], 2, columns)
            clear(F[q : q + 2], 2, columns)
            clear(Q[q : q + 2], 2, width)
        clear(S[2 * g :], queries - 2 * g, columns)
        clear(F[2 * g :], queries - 2 * g, columns)
        if is_distance:
            pull(S, F, Q, X, drawn, DQ, GX, queries, negatives, width)
        mix(S, X, drawn, DQ, every, queries, columns, width)
        mix(S.T, Q, every, GX, drawn, columns, queries, width)
        for q in range(2 * g):
            if not is_finite(losses[q - q % 2]):
                continue
            answer_back(is_distance, right[q], positive[q], Q, q, X, goal[q], DQ, GX, width)
            query_back(operator, inverse if q % 2 else _1, X, source[q], Y, relation[q], DQ, q, GX, GY, dim)
            if n3 != _0:  # each entity is also the answer of the triple's other question, where it is not counted again
                keep_small(operator, n3 + n3, X, source[q], GX, dim)
                if operator != ROTATION:  # where a relation's size does not count
                    keep_small(operator, n3, Y, relation[q], GY, dim)
        lost = 0
        for k in range(xs):
            lost += not apply(rule, numbers[1], numbers[2], numbers[3], E, e_sums, e_names[k], GX, k, dim)
            e_slot[e_names[k]] = -1
        for k in range(ys):
            lost += not apply(rule, numbers[4], numbers[5], numbers[6], R, r_sums, r_names[k], GY, k, dim)
            r_slot[r_names[k]] = -1
        if lost and applied:  # the squares overflowed; the sample that caused it is unknown
            applied, refused = applied - 1, refused + 1
    return loss_sum, applied, refused


BLOCK = 8
TILE = 128


@inlined
def dots(Q, X, c, S, queries, candidates, width):  # type: ignore[no-untyped-def]
    """Set S[i, j] = Q[i] . X[c[j]]. The rows of TILE candidates stay in the second-level cache."""
    for first in range(0, candidates, TILE):
        last = min(candidates, first + TILE)
        for i in range(0, queries, 4):
            for j in range(first, last, 2):
                k0, k1 = c[j], c[j + 1]
                a0 = a1 = b0 = b1 = e0 = e1 = f0 = f1 = splat_native(_0)
                for d in range(0, width, NATIVE):
                    x0, x1 = load_native(X, k0, d), load_native(X, k1, d)
                    q0, q1 = load_native(Q, i, d), load_native(Q, i + 1, d)
                    q2, q3 = load_native(Q, i + 2, d), load_native(Q, i + 3, d)
                    a0, a1 = fused(q0, x0, a0), fused(q0, x1, a1)
                    b0, b1 = fused(q1, x0, b0), fused(q1, x1, b1)
                    e0, e1 = fused(q2, x0, e0), fused(q2, x1, e1)
                    f0, f1 = fused(q3, x0, f0), fused(q3, x1, f1)
                s0, s1 = totals(a0, b0, e0, f0), totals(a1, b1, e1, f1)
                S[i, j], S[i, j + 1] = part(s0, 0), part(s1, 0)
                S[i + 1, j], S[i + 1, j + 1] = part(s0, 1), part(s1, 1)
                S[i + 2, j], S[i + 2, j + 1] = part(s0, 2), part(s1, 2)
                S[i + 3, j], S[i + 3, j + 1] = part(s0, 3), part(s1, 3)


@inlined
def mix(W, X, chosen, out, targets, rows, terms, width):  # type: ignore[no-untyped-def]
    """Add the sum over j of W[i, j] X[chosen[j]] to out[targets[i]], for `rows` i and `terms` j. A target may be named
    more than once. A strip of TILE rows of X stays in the first-level cache."""
    for first in range(0, terms, TILE):
        last = min(terms, first + TILE)
        for d in range(0, width - NATIVE, 2 * NATIVE):
            e = d + NATIVE
            for i in range(0, rows, 4):
                a0 = a1 = b0 = b1 = e0 = e1 = f0 = f1 = splat_native(_0)
                for place in range(first, last):
                    j = np.uint64(place)  # which cannot mean a place from the end
                    x0, x1 = load_native(X, chosen[j], d), load_native(X, chosen[j], e)
                    w0, w1 = splat_native(W[i, j]), splat_native(W[i + 1, j])
                    w2, w3 = splat_native(W[i + 2, j]), splat_native(W[i + 3, j])
                    a0, a1 = fused(w0, x0, a0), fused(w0, x1, a1)
                    b0, b1 = fused(w1, x0, b0), fused(w1, x1, b1)
                    e0, e1 = fused(w2, x0, e0), fused(w2, x1, e1)
                    f0, f1 = fused(w3, x0, f0), fused(w3, x1, f1)
                _add(out, targets, i, d, a0, b0, e0, f0)
                _add(out, targets, i, e, a1, b1, e1, f1)
        if width % (2 * NATIVE):
            d = width - NATIVE
            for i in range(0, rows, 4):
                a0 = b0 = e0 = f0 = splat_native(_0)
                for place in range(first, last):
                    j = np.uint64(place)  # which cannot mean a place from the end
                    x0 = load_native(X, chosen[j], d)
                    a0, b0 = fused(splat_native(W[i, j]), x0, a0), fused(splat_native(W[i + 1, j]), x0, b0)
                    e0, f0 = fused(splat_native(W[i + 2, j]), x0, e0), fused(splat_native(W[i + 3, j]), x0, f0)
                _add(out, targets, i, d, a0, b0, e0, f0)


@inlined
def _add(out, targets, i, d, v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    """Add four vectors to the rows targets[i], targets[i + 1], ..., one after the other: two may be the same."""
    k0, k1, k2, k3 = targets[i], targets[i + 1], targets[i + 2], targets[i + 3]
    store_native(out, k0, d, load_native(out, k0, d) + v0)
    store_native(out, k1, d, load_native(out, k1, d) + v1)
    store_native(out, k2, d, load_native(out, k2, d) + v2)
    store_native(out, k3, d, load_native(out, k3, d) + v3)


@inlined
def clear(A, rows, width):  # type: ignore[no-untyped-def]
    """Set A[:rows, :width] = 0."""
    for k in range(rows):
        for d in range(width):
            A[k, d] = _0


@inlined
def squares(X, rows, out, width):  # type: ignore[no-untyped-def]
    """Set out[u] = |X[u]|^2."""
    for u in range(rows):
        total = _0
        for d in range(width):
            total += X[u, d] * X[u, d]
        out[u] = total
