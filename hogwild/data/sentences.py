"""The words of texts as keys, in records of one length: what `Follow` and `Kafka` make of texts.

lines ──► words between white space ──► their keys (`text_keys.py`) ──► (P, longest), a long line in several"""

import numpy as np

from hogwild.data.csv.parse import MISSING_CODE, Words
from hogwild.data.text import words_in
from hogwild.data.text_keys import Keys, NameFile
from hogwild.data.text_parsing import begins_of, numpy_of


def sentences_in(content: bytes, longest: int, names: NameFile | None) -> tuple[np.ndarray, np.ndarray]:
    """Return records of the words in whole lines: their keys (P, longest) int64, -1 behind the last one, and the number
    of the line of each record, (P,) int64. A line without a word has none. `names`: where new words are kept. Raises
    UnicodeDecodeError."""
    import pyarrow

    content.decode()
    found, ends = words_in(content)
    keys, texts = Keys(0, texts=names), found.dictionary.cast(pyarrow.string())
    codes, _ = keys.of_words(Words(texts, numpy_of(found.indices)), keys.code, np.int64, is_utf8=True)
    words = codes[numpy_of(found.indices)]
    lines = np.repeat(np.arange(len(ends) + 1), np.diff(ends, prepend=0, append=len(words)))
    is_word = words != MISSING_CODE  # not one of other white space than ASCII's
    words, lines = words[is_word], lines[is_word]
    counts = np.bincount(lines, minlength=len(ends) + 1)
    records = -(-counts // longest)  # of each line
    place = np.arange(len(words)) - begins_of(counts)[lines]
    made = np.full((records.sum(), longest), MISSING_CODE, np.int64)
    made[begins_of(records)[lines] + place // longest, place % longest] = words
    return made, np.repeat(np.arange(len(records)), records)
