"""fastText's skip-gram (Bojanowski, Grave, Joulin and Mikolov, 2017), in C++ with threads of its own; without character
n-grams, so that it learns the model that we and gensim do.

Fair: the text is a file, as it wants it; its default rate of 0.05; a word is one of the vocabulary, as in gensim's
baseline. It answers only once, at the end, and counts words before it trains, so the time is that of the whole call
less the one of a call without an epoch. Version 0.9.3 builds with a C++ compiler and ends some calls, of the same
arguments as others, with `Encountered NaN`: such a call is made again, at most RETRIES times, and counted."""

import time
from importlib.metadata import version
from typing import Any

from benchmarks.baselines.gensim_skipgram import MINIMUM_COUNT, SUB_SAMPLING, spearman
from benchmarks.sparse_peers import Found, answer

RETRIES = 3


def measure(
    *,
    text: str,
    pairs: str,
    threads: int,
    epochs: int,
    dim: int = 100,
    negatives: int = 5,
    window: int = 5,
    seed: int = 1,
) -> Found:
    """As `gensim_skipgram.measure`; `seed` is not used: its binding has none."""
    began = time.perf_counter()
    import fasttext

    imported = time.perf_counter()

    def train(epochs: int) -> tuple[float, Any]:
        start = time.perf_counter()
        model = fasttext.train_unsupervised(
            text, model="skipgram", dim=dim, neg=negatives, ws=window, epoch=epochs, minCount=MINIMUM_COUNT,
            t=SUB_SAMPLING, maxn=0, thread=threads, lr=0.05, verbose=0,
        )  # fmt: skip
        return time.perf_counter() - start, model

    load_s, _ = train(0)
    failures = 0
    while True:
        try:
            whole_s, model = train(epochs)
            break
        except RuntimeError as error:
            failures += 1
            if "NaN" not in str(error) or failures > RETRIES:
                raise
    _, counts = model.get_words(include_freq=True)
    seconds = max(1e-9, whole_s - load_s)
    note = f"fastText {version('fasttext')}, {threads} threads, no n-grams; {failures} calls ended with NaN"
    curve = [(seconds, spearman(_Vectors(model), pairs))]
    return Found(int(counts.sum()) * epochs / seconds, curve, version("fasttext"), imported - began, load_s, note)


class _Vectors:
    """Its vectors as a mapping: it has a vector for words it has never seen, too."""

    def __init__(self, model: Any) -> None:
        self._words = set(model.get_words())
        self._vector = model.get_word_vector

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def __getitem__(self, word: str) -> Any:
        return self._vector(word)


if __name__ == "__main__":
    answer(measure)
