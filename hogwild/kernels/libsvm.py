"""Parsing of libsvm's lines into sparse rows, and the order of each row's features.

The input is a piece of a file, complete lines as bytes; the output is written into arrays. The file is not trusted:
every read is bounds-checked, and nothing is written outside of the arrays. So the worst result of any file content is a
line counted as `BAD`. For the first bad line of a piece, the broken rule and its place are kept in `found`."""

import logging
from functools import cache

import numpy as np

from hogwild.kernels import signatures
from hogwild.kernels.compiling import inlined, kernel
from hogwild.kernels.kernel_cache import make_ready

log = logging.getLogger(__name__)

# Indices into `found` (FOUND,) int64, the result of a piece.
ROWS, ITEMS, BAD, RULE, LINE_AT, TOKEN_AT, OVERFLOW, LEAST, MOST, UNSEEN = range(10)
FOUND = 10
# Rules that a line can break.
LABEL, PAIR, VALUE, FINITE, ZERO, LARGE, NEGATIVE = range(1, 8)

LF, CR, TAB, SPACE, COLON, HASH, POINT, PLUS, MINUS = 10, 13, 9, 32, 58, 35, 46, 43, 45
NO_DIGIT = 1  # number parsing errors
NO_NUMBER = 2
LONG = np.int64(10**17)  # a mantissa below this can take one more digit
HIGHEST = np.int64(2**31 - 2)  # highest index: one more is still an int32
FREQUENT = np.int64(2**31 - 1)  # higher counts are treated as this one
PLACE = np.int64(2**32)  # of a key: the count above, the index below
GREATEST = np.float64(np.finfo(np.float32).max)
POWERS = 10.0 ** np.arange(23)  # exact in float64


@inlined
def _is_not_finite(text, at, end):  # type: ignore[no-untyped-def]
    """Return whether nan, inf, Infinity, … begins there."""
    if end - at < 3:
        return False
    a, b, c = text[at] | 32, text[at + 1] | 32, text[at + 2] | 32
    return (a == 110 and b == 97 and c == 110) or (a == 105 and b == 110 and c == 102)


@inlined
def _exponent(text, at, end):  # type: ignore[no-untyped-def]
    """Return (exponent, place behind it) of `e-7`, from the letter on; (0, at) if it is no exponent."""
    here = at + 1
    negative = False
    if here < end and (text[here] == MINUS or text[here] == PLUS):
        negative = text[here] == MINUS
        here += 1
    if here >= end or text[here] < 48 or text[here] > 57:
        return np.int64(0), at
    value = np.int64(0)
    while here < end and 48 <= text[here] <= 57:
        if value < 100_000:
            value = value * 10 + (np.int64(text[here]) - 48)
        here += 1
    return (-value if negative else value), here


@inlined
def _scaled(mantissa, scale):  # type: ignore[no-untyped-def]
    """Return mantissa * 10^scale. Exact to float32's rounding up to 15 digits (Clinger, "How to read floating point
    numbers accurately", 1990), otherwise to a few units of float64."""
    value = np.float64(mantissa)
    if scale == 0 or mantissa == 0:
        return value
    if 0 < scale <= 22:
        return value * POWERS[scale]
    if -22 <= scale < 0:
        return value / POWERS[-scale]
    if scale > 400:
        return np.inf
    return 0.0 if scale < -400 else value * 10.0**scale


@inlined
def decimal(text, at, end):  # type: ignore[no-untyped-def]
    """Return (float64, place behind it, problem) of the decimal number at `at`."""
    negative = False
    if at < end and (text[at] == MINUS or text[at] == PLUS):
        negative = text[at] == MINUS
        at += 1
    mantissa, scale, digits = np.int64(0), np.int64(0), 0
    while at < end and 48 <= text[at] <= 57:
        if mantissa < LONG:
            mantissa = mantissa * 10 + (np.int64(text[at]) - 48)
        else:
            scale += 1
        digits += 1
        at += 1
    if at < end and text[at] == POINT:
        at += 1
        while at < end and 48 <= text[at] <= 57:
            if mantissa < LONG:
                mantissa = mantissa * 10 + (np.int64(text[at]) - 48)
                scale -= 1
            digits += 1
            at += 1
    if digits == 0:
        return 0.0, at, (NO_NUMBER if _is_not_finite(text, at, end) else NO_DIGIT)
    if at < end and (text[at] | 32) == 101:
        exponent, at = _exponent(text, at, end)
        scale += exponent
    value = _scaled(mantissa, scale)
    if value > GREATEST:
        return 0.0, at, NO_NUMBER
    return (-value if negative else value), at, 0


@inlined
def blanks(text, at, end):  # type: ignore[no-untyped-def]
    """Return the place behind spaces, tabs and carriage returns."""
    while at < end and (text[at] == SPACE or text[at] == TAB or text[at] == CR):
        at += 1
    return at


@inlined
def is_blank(byte):  # type: ignore[no-untyped-def]
    return (byte == SPACE) | (byte == TAB) | (byte == CR)


@inlined
def spoilt(found, rule, line_at, token_at):  # type: ignore[no-untyped-def]
    if found[BAD] == 0:
        found[RULE], found[LINE_AT], found[TOKEN_AT] = rule, line_at, token_at
    found[BAD] += 1


@inlined
def _pair(text, at, end, least, most):  # type: ignore[no-untyped-def]
    """Return (index, value, place behind it, broken rule) of `7:0.5` at `at`. An index past `most` is `LARGE`; its
    value is checked too."""
    index, first = np.int64(0), at
    while at < end and 48 <= text[at] <= 57:
        if index <= HIGHEST:
            index = index * 10 + (np.int64(text[at]) - 48)
        at += 1
    if at < end and first == at and text[at] == MINUS:
        return index, 0.0, at, NEGATIVE
    if at == first or at >= end or text[at] != COLON:
        return index, 0.0, at, PAIR
    value, at, problem = decimal(text, at + 1, end)
    if problem == NO_NUMBER:
        return index, value, at, FINITE
    if problem or (at < end and not is_blank(text[at])):
        return index, value, at, VALUE
    if index < least:
        return index, value, at, ZERO
    return index, value, at, (LARGE if index > most else 0)


@kernel
def parse(text, least, most, leaves_out, lengths, indices, values, target, found):  # type: ignore[no-untyped-def]
    """Parse lines of `label index:value … # comment`, one row each. `leaves_out`: an index past `most` is left out and
    counted, not an error. Lines with only a comment are skipped."""
    end, at, row, place = len(text), 0, 0, 0
    lowest, highest, unseen = HIGHEST, np.int64(-1), np.int64(0)
    while at < end:
        line_at = stop = at
        while stop < end and text[stop] != LF:
            stop += 1
        at = blanks(text, at, stop)
        if at == stop or text[at] == HASH:
            at = stop + 1
            continue
        if row >= len(lengths):
            found[OVERFLOW] = 1
            break
        token_at = at
        label, at, problem = decimal(text, at, stop)
        rule = 0
        if problem or (at < stop and not is_blank(text[at])):
            rule = FINITE if problem == NO_NUMBER else LABEL
        begun, low, high, left_out = place, lowest, highest, np.int64(0)
        while rule == 0:
            at = blanks(text, at, stop)
            if at == stop or text[at] == HASH:
                break
            token_at = at
            index, value, at, rule = _pair(text, at, stop, least, most)
            if rule == LARGE and leaves_out:
                rule = 0
                left_out += 1
                continue
            if rule:
                break
            if place >= len(indices):
                found[OVERFLOW] = 1
                return
            low, high = min(low, index), max(high, index)
            indices[place], values[place] = index, value
            place += 1
        at = stop + 1
        if rule:
            place = begun
            spoilt(found, rule, line_at, token_at)
            continue
        lowest, highest, unseen = low, high, unseen + left_out
        lengths[row], target[row] = place - begun, label
        row += 1
    found[ROWS], found[ITEMS] = row, place
    found[LEAST], found[MOST], found[UNSEEN] = lowest, highest, unseen


@kernel
def by_frequency(  # type: ignore[no-untyped-def]
    lengths, raw_indices, raw_values, labels, base, counts, unit, indptr, indices, values, target, twice, to_row, at
):  # fmt: skip
    """Write rows from row `to_row` and place `at` on. `base` is subtracted from each index. A row's features are sorted
    most frequent first (`counts` (F,) int64, of the whole data), equally frequent ones by number. `unit`: each row is
    divided by its Euclidean length. `twice` (N,) marks rows that name a feature twice."""
    place = 0
    for row in range(len(lengths)):
        size, squares = lengths[row], 0.0
        keys = np.empty(size, np.int64)
        for i in range(size):
            index, value = np.int64(raw_indices[place + i]) - base, np.float64(raw_values[place + i])
            keys[i] = (FREQUENT - min(counts[index], FREQUENT)) * PLACE + index
            squares += value * value
        order = np.argsort(keys)
        scale = np.float32(1.0 / np.sqrt(squares)) if unit and squares > 0.0 else np.float32(1.0)
        twice[to_row] = 0
        for i in range(size):
            if i > 0 and keys[order[i]] == keys[order[i - 1]]:
                twice[to_row] = 1
            indices[at + i] = keys[order[i]] % PLACE
            values[at + i] = raw_values[place + order[i]] * scale
        place, at = place + size, at + size
        target[to_row] = labels[row]
        indptr[to_row + 1] = at
        to_row += 1


@cache
def ready() -> None:
    """Load or compile the kernels, once per process."""
    for kernels in signatures.libsvm():
        log.debug("%s: %s", kernels.module, make_ready(kernels))
