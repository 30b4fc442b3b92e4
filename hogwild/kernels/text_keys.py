"""Keys of many texts at once: what `hogwild.data.ids.key_of_text` and `digest_of` (BLAKE2b, RFC 7693) give for each.

A text that perhaps has another spelling, or is empty, is left to `hogwild.data.ids`: its key is UNSURE. White space
around a text is looked for by the first bytes of such characters, a little too often."""

import numpy as np

from hogwild.kernels.compiling import exact, exact_kernel

UNSURE = np.int64(-(2**63))  # no text has this key
BLOCK = 128  # bytes that BLAKE2b compresses at once
START = np.uint64(0x01010008)  # a digest of 8 bytes, without a key, in one piece
WHITE, POINT, ZERO, NINE, LETTER_E, LETTER_F, LETTER_T = 32, 46, 48, 57, 101, 102, 116
MOST_DIGITS = 19
MOST_KEY = np.uint64(2**63 - 1)
# fmt: off
FRACTIONS = np.array([
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
], np.uint64)
ROUNDS = np.array([
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
], np.uint8)
# fmt: on
CRC = np.arange(256, dtype=np.uint32)  # of each byte, as zlib has it
for _ in range(8):
    CRC = np.where(CRC & 1, (CRC >> np.uint32(1)) ^ np.uint32(0xEDB88320), CRC >> np.uint32(1)).astype(np.uint32)


@exact
def _turned(word, bits):  # type: ignore[no-untyped-def]
    return (word >> np.uint64(bits)) | (word << np.uint64(64 - bits))


@exact
def _mix(state, a, b, c, d, first, second):  # type: ignore[no-untyped-def]
    p = state[a] + state[b] + first
    s = _turned(state[d] ^ p, 32)
    r = state[c] + s
    q = _turned(state[b] ^ r, 24)
    p = p + q + second
    s = _turned(s ^ p, 16)
    r = r + s
    state[a], state[b], state[c], state[d] = p, _turned(q ^ r, 63), r, s


@exact
def _compress(digest, state, words, count, is_last):  # type: ignore[no-untyped-def]
    """Add a block of 16 words to the digest (8,). `count`: bytes up to its end."""
    for i in range(8):
        state[i], state[8 + i] = digest[i], FRACTIONS[i]
    state[12] ^= np.uint64(count)
    if is_last:
        state[14] = ~state[14]
    for turn in range(12):
        for i in range(4):
            _mix(state, i, 4 + i, 8 + i, 12 + i, words[ROUNDS[turn, 2 * i]], words[ROUNDS[turn, 2 * i + 1]])
        for i in range(4):
            b, c, d = 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4
            _mix(state, i, b, c, d, words[ROUNDS[turn, 8 + 2 * i]], words[ROUNDS[turn, 9 + 2 * i]])
    for i in range(8):
        digest[i] ^= state[i] ^ state[8 + i]


@exact
def _is_white(first, second):  # type: ignore[no-untyped-def]
    """Return whether a character that begins with these two bytes may be white space."""
    return (
        first <= WHITE
        or (first == 0xC2 and (second == 0x85 or second == 0xA0))
        or (first == 0xE1 and second == 0x9A)
        or (first == 0xE2 and (second == 0x80 or second == 0x81))
        or (first == 0xE3 and second == 0x80)
    )


@exact
def _is_unsure(text, begin, end, is_utf8):  # type: ignore[no-untyped-def]
    """Return whether the text may have another spelling, or is no text. `is_utf8`: its file is, so it is one."""
    size = end - begin
    if size == 0 or text[end - 1] <= WHITE or _is_white(text[begin], text[begin + 1] if size > 1 else 0):
        return True
    if size > 1 and _is_white(text[end - 2], text[end - 1]) and text[end - 2] > WHITE:
        return True
    if size > 2 and _is_white(text[end - 3], text[end - 2]) and text[end - 3] > WHITE:
        return True
    last = text[end - 1] | 32
    if last == LETTER_E and (
        (size == 4 and text[begin] | 32 == LETTER_T) or (size == 5 and text[begin] | 32 == LETTER_F)
    ):
        return True
    if text[end - 1] == ZERO:
        for at in range(begin, end):
            if text[at] == POINT:
                return True
    if not is_utf8:
        for at in range(begin, end):
            if text[at] >= 128:
                return True
    return False


@exact
def _number(text, begin, end):  # type: ignore[no-untyped-def]
    """Return (the whole number that the text is, True), or (0, False)."""
    value = np.uint64(0)
    if end - begin > MOST_DIGITS or (text[begin] == ZERO and end - begin > 1):
        return value, False
    for at in range(begin, end):
        if text[at] < ZERO or text[at] > NINE:
            return np.uint64(0), False
        value = value * np.uint64(10) + np.uint64(text[at] - ZERO)
    return value, value <= MOST_KEY


@exact_kernel
def keys_of(text, ends, prefix, size, is_utf8, keys, checks):  # type: ignore[no-untyped-def]
    """Fill `keys` (n,) with the key of `prefix` and each text, or, if `size` > 0, with its number below that; and
    `checks` (n,) with their CRC-32. The texts, in UTF-8, lie between `ends` (n + 1,) in `text`."""
    digest, state, words = np.empty(8, np.uint64), np.empty(16, np.uint64), np.empty(16, np.uint64)
    block = words.view(np.uint8)
    lead = len(prefix)
    for row in range(len(keys)):
        begin, end = np.int64(ends[row]), np.int64(ends[row + 1])
        if _is_unsure(text, begin, end, is_utf8):
            keys[row] = UNSURE
            continue
        if lead == 0 and size == 0:
            number, is_number = _number(text, begin, end)
            if is_number:
                keys[row] = np.int64(number)
                continue
        for i in range(8):
            digest[i] = FRACTIONS[i]
        digest[0] ^= START
        total, count, check = lead + end - begin, np.int64(0), np.uint32(0xFFFFFFFF)
        while count < total:
            for i in range(16):
                words[i] = 0
            stop = total if total < count + BLOCK else count + BLOCK
            for i in range(stop - count):
                at = count + i
                byte = prefix[at] if at < lead else text[begin + at - lead]
                block[i] = byte
                check = CRC[np.uint8(check) ^ byte] ^ (check >> np.uint32(8))
            count = stop
            _compress(digest, state, words, count, count == total)
        found = np.uint64(0)
        for i in range(8):  # the first byte is the highest
            found = (found << np.uint64(8)) | ((digest[0] >> np.uint64(8 * i)) & np.uint64(255))
        if size > 0:
            keys[row] = np.int64(found % np.uint64(size))
        else:
            keys[row] = -2 - np.int64(found % (MOST_KEY - np.uint64(2)))
        checks[row] = np.int64(check ^ np.uint32(0xFFFFFFFF))
