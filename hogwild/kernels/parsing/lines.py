"""Parsing of text lines into numbers: libsvm rows.

The input is a piece of a file, complete lines as bytes; the output is written into arrays. The file is not trusted:
every read is bounds-checked, and nothing is written outside of the arrays. So the worst result of any file content is a
line counted as `BAD`. For the first bad line of a piece, the broken rule and its place are kept in `found`
(`found.py`)."""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel
from hogwild.kernels.parsing.found import (
    BAD,
    FINITE,
    ITEMS,
    LABEL,
    LARGE,
    LEAST,
    LINE_AT,
    LINES,
    MOST,
    NEGATIVE,
    OVERFLOW,
    PAIR,
    ROWS,
    RULE,
    TOKEN_AT,
    UNSEEN,
    VALUE,
    ZERO,
)  # fmt: skip

LF, CR, TAB, SPACE, COLON, HASH, POINT, PLUS, MINUS = 10, 13, 9, 32, 58, 35, 46, 43, 45
NO_DIGIT = 1  # number parsing errors
NO_NUMBER = 2
LONG = np.int64(10**17)  # a mantissa below this can take one more digit
HIGHEST = np.int64(2**31 - 2)  # highest index: one more is still an int32
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
def line_end(text, at, end):  # type: ignore[no-untyped-def]
    while at < end and text[at] != LF:
        at += 1
    return at


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


@kernel
def count(text, mark, found):  # type: ignore[no-untyped-def]
    """Count line ends, with an unfinished last line, and bytes `mark`: upper bounds of a piece's rows and values."""
    lines, marks = np.int64(0), np.int64(0)
    for at in range(len(text)):
        lines += text[at] == LF
        marks += text[at] == mark
    if len(text) and text[len(text) - 1] != LF:
        lines += 1
    found[LINES], found[ITEMS] = lines, marks


# ---- libsvm ---------------------------------------------------------------------------------------------------------


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
def libsvm(text, least, most, leaves_out, lengths, indices, values, target, row, last_row, place, last_place, found):  # type: ignore[no-untyped-def]
    """Parse lines of `label index:value … # comment`, one row each. Rows go to [row, last_row) of `lengths` and
    `target`, their values to [place, last_place). `leaves_out`: an index past `most` is left out and counted, not an
    error. Lines with only a comment are skipped."""
    end, at = len(text), 0
    first_row, first_place = row, place
    lowest, highest, unseen = HIGHEST, np.int64(-1), np.int64(0)
    while at < end:
        line_at = at
        stop = line_end(text, at, end)
        at = blanks(text, at, stop)
        if at == stop or text[at] == HASH:
            at = stop + 1
            continue
        if row >= last_row:
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
            if place >= last_place:
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
    found[ROWS], found[ITEMS] = row - first_row, place - first_place
    found[LEAST], found[MOST], found[UNSEEN] = lowest, highest, unseen
