"""Skip-gram and CBOW with negative sampling (Mikolov et al., "Distributed Representations of Words and Phrases", 2013):
SGD, the negatives shared by all pairs of a centre word (Ji et al., "Parallelizing Word2Vec in Shared and Distributed
Memory", 2016) or drawn for each pair.

    centre word w, dropped by sub-sampling?     ──►  nothing
    b in [1, window]; up to b kept words to each side of it are its contexts (C)
    Y: the out-vectors of w and of K negatives        X: the in-vectors of the contexts         both gathered once
    Z = X Y^T  (C, 1+K)      g = rate (label - sigmoid(Z))
    in[contexts] += g Y      out[w, negatives] += g^T X                                         both written once

CBOW has one row of X, the mean of the contexts' in-vectors, and each of them gets its share of that row's step. With
subwords a context's row of X is the sum of its own row and those of its pieces, over the root of their number, and each
of them gets that part of its step.

So a centre word costs three small matrix products over data in the first-level cache. X and Y are copies with rows
padded to whole vectors and aligned to cache lines: a vector that crosses a line takes twice as long to read, and even
longer to write.

The race. Workers write the same rows without a lock. A row is read, and at the end the step is added: `row += step`
reads each number again just before writing it, so other workers' writes during our computation stay; writes between
that read and that write are lost, occasionally one step. Nothing is divided by shared values.

Words by id (`hogwild/models/named_words.py`) are dropped before they come here, and negatives are drawn from a list of
words: `keep` and `chance` are None then.

The draws depend only on (seed, place of the word), so two centres agree on which words between them are dropped, and
the division of an epoch into chunks does not matter."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.rng import STEP, below, mixed, unit
from hogwild.kernels.simd import WIDTH, ask_for, fused, least, load, load_part, most, splat, store, store_part, total

_0, _1, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
# tanh as a quotient of polynomials in x^2, within 3e-7 on [-7.905, 7.905]; beyond that it is 1 in float32. The minimax
# coefficients of Eigen (`ptanh_float`). No library call, so loops over it are vectorised.
_CLAMP = np.float32(7.90531110763549805)
_A1, _A3, _A5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
_A7, _A9 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11)
_A11, _A13 = np.float32(2.00018790482477e-13), np.float32(-2.76076847742355e-16)
_B0, _B2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
_B4, _B6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)
_FAR, _LIKELY_AT_FAR = np.float32(8.0), np.float32(1 / (1 + np.exp(8.0)))


@inlined
def sigmoid(z):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + exp(-z)) of 16 numbers, off by 3e-7 at most."""
    half = splat(_HALF)
    x = least(most(half * z, splat(-_CLAMP)), splat(_CLAMP))
    s = x * x
    p = fused(s, fused(s, splat(_A13), splat(_A11)), splat(_A9))
    p = fused(s, fused(s, fused(s, fused(s, p, splat(_A7)), splat(_A5)), splat(_A3)), splat(_A1))
    q = fused(s, fused(s, fused(s, splat(_B6), splat(_B4)), splat(_B2)), splat(_B0))
    return half + half * x * p / q


@inlined
def sentence_of(starts, place, near):  # type: ignore[no-untyped-def]
    """Return the sentence that contains `place`; fast if it is `near` or the next one."""
    low, high = np.int64(0), np.int64(len(starts) - 1)
    if place >= starts[near]:
        if place < starts[near + 1]:
            return near
        low = near + 1
        if place < starts[low + 1]:
            return low
    else:
        high = near
    while high - low > 1:
        middle = (low + high) >> 1
        if place < starts[middle]:
            high = middle
        else:
            low = middle
    return low


@inlined
def bits_of(seed, place):  # type: ignore[no-untyped-def]
    """Return 64 random bits for a place of the text."""
    return mixed(seed + STEP * np.uint64(place + 1))


@inlined
def is_kept(keep, word, bits):  # type: ignore[no-untyped-def]
    """Return whether sub-sampling keeps the word at a place with these random bits."""
    if keep is None:
        return True
    return unit(bits) < keep[np.uint64(word)]


@inlined
def gather_contexts(tokens, keep, seed, place, first, last, most_aside, contexts):  # type: ignore[no-untyped-def]
    """Fill `contexts` with up to `most_aside` kept words on each side of `place`, in [first, last); return how many."""
    found = 0
    for side in range(2):
        p, step, end = (place - 1, -1, first - 1) if side == 0 else (place + 1, 1, last)
        wanted = found + most_aside
        while p != end and found < wanted:
            word = tokens[np.uint64(p)]
            if is_kept(keep, word, bits_of(seed, p)):
                contexts[np.uint64(found)] = word
                found += 1
            p += step
    return found


@inlined
def draw_targets(state, centre, chance, other, targets, signs):  # type: ignore[no-untyped-def]
    """Draw the negatives by Walker's alias method, one draw and one table place each; targets[0] is the centre word. A
    negative equal to the centre word has sign 0 and does not count. Return the new state."""
    targets[0], signs[0, 0] = centre, _1
    for k in range(1, len(targets)):
        state += STEP
        word = negative(state, chance, other)
        targets[k], signs[0, k] = word, _0 if word == centre else -_1
    return state


@inlined
def negative(state, chance, other):  # type: ignore[no-untyped-def]
    """Return the word that is drawn with this state: without `chance` any of `other`."""
    bits = mixed(state)
    column = np.uint64(below(bits, len(other)))
    if chance is None:
        return other[column]
    # `below` used the upper half; the lower half is equally random.
    return np.int32(column) if unit(bits << np.uint64(32)) < chance[column] else other[column]


@inlined
def ask_for_targets(tokens, keep, seed, place, chance, other, outputs, width):  # type: ignore[no-untyped-def]
    """Prefetch the first `width` rows of `outputs` that the centre word at `place` will have as targets."""
    centre, bits = tokens[np.uint64(place)], bits_of(seed, place)
    if is_kept(keep, centre, bits):
        ask_for(outputs, centre)
        state = bits + STEP
        for _ in range(1, width):
            state += STEP
            ask_for(outputs, negative(state, chance, other))


@inlined
def copy_rows(weight, rows, first, last, local):  # type: ignore[no-untyped-def]
    """Set local[r] = weight[rows[r]] for r in [first, last)."""
    dim = weight.shape[1]
    whole = dim - dim % WIDTH
    for r in range(first, last):
        for d in range(0, whole, WIDTH):
            store(local, r, d, load(weight, rows[r], d))
        if whole < dim:
            store(local, r, whole, load_part(weight, rows[r], whole, dim - whole))


@inlined
def add_rows(weight, rows, first, last, steps):  # type: ignore[no-untyped-def]
    """Add steps[r] to weight[rows[r]] for r in [first, last); other workers' writes since the copy stay."""
    for r in range(first, last):
        add_row(weight, rows[r], steps, r, _1)


@inlined
def add_row(weight, row, steps, r, factor):  # type: ignore[no-untyped-def]
    """Add factor * steps[r] to weight[row]."""
    dim, scale = weight.shape[1], splat(factor)
    whole = dim - dim % WIDTH
    for d in range(0, whole, WIDTH):
        store(weight, row, d, fused(scale, load(steps, r, d), load(weight, row, d)))
    if whole < dim:
        rest = dim - whole
        step = fused(scale, load(steps, r, whole), load_part(weight, row, whole, rest))
        store_part(weight, row, whole, rest, step)


@inlined
def pieces_in(piece_starts, word):  # type: ignore[no-untyped-def]
    """Return (first, last, factor) of the word's pieces: it is its own row and they, times the factor."""
    first, last = piece_starts[np.uint64(word)], piece_starts[np.uint64(word) + np.uint64(1)]
    return first, last, _1 / np.sqrt(np.float32(1 + last - first))


@inlined
def spell(inputs, subwords, piece_starts, pieces, contexts, count, x):  # type: ignore[no-untyped-def]
    """Set x[c] to the vector of word contexts[c], for c in [0, count)."""
    dim = inputs.shape[1]
    whole = dim - dim % WIDTH
    for c in range(count):
        word = contexts[np.uint64(c)]
        first, last, factor = pieces_in(piece_starts, word)
        scale = splat(factor)
        for d in range(0, whole, WIDTH):
            a = load(inputs, word, d)
            for p in range(first, last):
                a = a + load(subwords, pieces[np.uint64(p)], d)
            store(x, c, d, scale * a)
        if whole < dim:
            a = load_part(inputs, word, whole, dim - whole)
            for p in range(first, last):
                a = a + load_part(subwords, pieces[np.uint64(p)], whole, dim - whole)
            store(x, c, whole, scale * a)


@inlined
def add_spelled(  # type: ignore[no-untyped-def]
    inputs, subwords, piece_starts, pieces, word, steps, r, input_rate, subword_rate
):
    """Add steps[r], without a rate, to the word's row and its pieces."""
    first, last, factor = pieces_in(piece_starts, word)
    add_row(inputs, word, steps, r, input_rate * factor)
    for p in range(first, last):
        add_row(subwords, pieces[np.uint64(p)], steps, r, subword_rate * factor)


@inlined
def average(x, count):  # type: ignore[no-untyped-def]
    """Set x[0] to the mean of the rows [0, count)."""
    share = splat(_1 / np.float32(count))
    for d in range(0, x.shape[1], WIDTH):
        a = load(x, 0, d)
        for c in range(1, count):
            a = a + load(x, c, d)
        store(x, 0, d, share * a)


@inlined
def products(x, y, first, last, z):  # type: ignore[no-untyped-def]
    """Set z[c, k] = x[c] . y[k] for the contexts [first, last), two rows of x and three of y at a time: six independent
    sums hide the latency of additions. An odd last row writes an extra row of z that nobody reads."""
    for c in range(first, last, 2):
        for k in range(0, y.shape[0], 3):
            a0 = a1 = a2 = b0 = b1 = b2 = splat(_0)
            for d in range(0, x.shape[1], WIDTH):
                xa, xb = load(x, c, d), load(x, c + 1, d)
                y0, y1, y2 = load(y, k, d), load(y, k + 1, d), load(y, k + 2, d)
                a0, a1, a2 = fused(xa, y0, a0), fused(xa, y1, a1), fused(xa, y2, a2)
                b0, b1, b2 = fused(xb, y0, b0), fused(xb, y1, b1), fused(xb, y2, b2)
            z[c, k], z[c, k + 1], z[c, k + 2] = total(a0), total(a1), total(a2)
            z[c + 1, k], z[c + 1, k + 1], z[c + 1, k + 2] = total(b0), total(b1), total(b2)


@inlined
def slopes(z, first, last, signs, likely):  # type: ignore[no-untyped-def]
    """Replace z by label - sigmoid(z), and return the loss; it is not finite if any z is not. `signs` (1, width): 1 for
    label 1, -1 for label 0, 0 for entries that do not count. `likely` (1, width) holds products of likelihoods: one
    logarithm for several pairs."""
    loss, size = 0.0, splat(_0)
    one, far, least_right = splat(_1), splat(-_FAR), splat(_LIKELY_AT_FAR)
    beyond = splat(_0)
    for d in range(0, z.shape[1], WIDTH):
        sign = load(signs, 0, d)
        counts = sign * sign
        product = one
        for c in range(first, last):
            score = load(z, c, d)
            size = fused(score, score, size)
            right = sigmoid(sign * score)
            store(z, c, d, sign * (one - right))
            # Below -8 the logarithm of the likelihood is taken to be the score itself: products stay in float32.
            beyond = beyond + counts * most(far - sign * score, splat(_0))
            product = product * fused(counts, most(right, least_right), one - counts)
            if (c - first) % 8 == 7:
                store(likely, 0, d, product)
                loss -= logarithm(likely, d)
                product = one
        store(likely, 0, d, product)
        loss -= logarithm(likely, d)
    return loss + total(beyond) + _0 * total(size)


@inlined
def logarithm(likely, column):  # type: ignore[no-untyped-def]
    """Return the logarithm of the product of 16 numbers above 1e-30, in two halves that each fit a double."""
    low, high = 1.0, 1.0
    for k in range(WIDTH // 2):
        low *= likely[0, column + k]
        high *= likely[0, column + WIDTH // 2 + k]
    return np.log(low) + np.log(high)


@inlined
def spread(x, y, g, first, last, input_rate, output_rate, dx, dy):  # type: ignore[no-untyped-def]
    """Set dx = rate * g y and dy = rate * g^T x for the contexts [first, last). An odd last row writes an extra row of
    dx that nobody reads."""
    to_x, to_y = splat(input_rate), splat(output_rate)
    for c in range(first, last, 2):
        for d in range(0, x.shape[1], WIDTH):
            a = b = splat(_0)
            for k in range(y.shape[0]):
                v = load(y, k, d)
                a, b = fused(v, splat(g[c, k]), a), fused(v, splat(g[c + 1, k]), b)
            store(dx, c, d, to_x * a)
            store(dx, c + 1, d, to_x * b)
    for k in range(0, y.shape[0], 2):
        for d in range(0, x.shape[1], WIDTH):
            a = b = splat(_0)
            for c in range(first, last):
                v = load(x, c, d)
                a, b = fused(v, splat(g[c, k]), a), fused(v, splat(g[c, k + 1]), b)
            store(dy, k, d, to_y * a)
            store(dy, k + 1, d, to_y * b)


@kernel
def sgd(  # type: ignore[no-untyped-def]
    rows, tokens, starts, keep, chance, other, inputs, outputs, subwords, piece_starts, pieces, window, reach,
    is_shared, is_cbow, seed, input_rate, output_rate, subword_rate, contexts, targets, signs, x, y, dx, dy, z, likely,
):  # fmt: skip
    """Train on the words at the places `rows` (n,) as centres, one by one; return (loss, applied, not finite)."""
    loss, applied, not_finite = 0.0, 0, 0
    near, is_spelled = np.int64(0), len(pieces) > 0
    for n in range(len(rows)):
        place = rows[n]
        centre = tokens[np.uint64(place)]
        bits = bits_of(seed, place)
        count = 0
        if is_kept(keep, centre, bits):
            near = sentence_of(starts, place, near)
            first, last = max(starts[near], place - reach), min(starts[near + 1], place + reach + 1)
            b = 1 + below(mixed(bits + STEP), window)
            count = gather_contexts(tokens, keep, seed, place, first, last, b, contexts)
        state = bits + STEP
        is_applied = True
        rate = input_rate
        if is_spelled:
            spell(inputs, subwords, piece_starts, pieces, contexts, count, x)
            rate = _1
        else:
            copy_rows(inputs, contexts, 0, count, x)
        if is_cbow and count > 0:
            average(x, count)
            rate = rate / np.float32(count)
        at_once = is_shared or is_cbow
        for c in range(min(count, 1) if at_once else count):
            begin, end = (0, 1 if is_cbow else count) if at_once else (c, c + 1)
            state = draw_targets(state, centre, chance, other, targets, signs)
            copy_rows(outputs, targets, 0, len(targets), y)
            if c == 0 and n + 1 < len(rows):
                ask_for_targets(tokens, keep, seed, rows[n + 1], chance, other, outputs, len(targets))
            products(x, y, begin, end, z)
            lost = slopes(z, begin, end, signs, likely)
            if not is_finite(lost):
                is_applied = False
                continue
            loss += lost
            spread(x, y, z, begin, end, rate, output_rate, dx, dy)
            add_rows(outputs, targets, 0, len(targets), dy)
            for k in range(0 if is_cbow else begin, count if is_cbow else end):
                r = 0 if is_cbow else k
                if is_spelled:
                    add_spelled(inputs, subwords, piece_starts, pieces, contexts[k], dx, r, input_rate, subword_rate)
                else:
                    add_row(inputs, contexts[k], dx, r, _1)
        if is_applied:
            applied += 1
        else:
            not_finite += 1
    return loss, applied, not_finite
