"""Results of parsing a piece of a text, and the rules that its lines can break. Imports no numba."""

# Indices into `found` (FOUND,) int64, the result of a piece.
LINES, ITEMS, ROWS, BAD, RULE, LINE_AT, TOKEN_AT, LEAST, MOST, UNSEEN, OVERFLOW = range(11)
FOUND = 16

# Rules that a line can break.
LABEL, PAIR, VALUE, FINITE, ZERO, LARGE, FIELDS, EMPTY, QUOTE, NEGATIVE, COMMENTED = range(1, 12)
