"""gensim's Word2Vec (Řehůřek and Sojka, 2010): skip-gram with negative sampling, in Cython over BLAS, its worker
threads fed by one reader.

Fair: texts come from a file of one sentence a line (`corpus_file`), which it reads in every worker, without its Python
queue: the faster of its two ways; a word is one of the vocabulary, whether sub-sampling drops it or not; the building
of the vocabulary is `load_s`. Its rate falls from 0.025 to 0.0001 over the epochs asked for."""

import time
from typing import Any

from benchmarks.sparse_peers import Found, answer

MINIMUM_COUNT = 5
SUB_SAMPLING = 1e-3


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
    """`text`: one sentence a line. `pairs`: wordsim353.tsv; the quality is Spearman's rank correlation with it."""
    began = time.perf_counter()
    import gensim
    from gensim.models import Word2Vec

    imported = time.perf_counter()
    model = Word2Vec(
        sg=1, hs=0, vector_size=dim, negative=negatives, window=window, min_count=MINIMUM_COUNT, sample=SUB_SAMPLING,
        workers=threads, seed=seed, epochs=epochs,
    )  # fmt: skip
    model.build_vocab(corpus_file=text)
    loaded = time.perf_counter()
    model.train(
        corpus_file=text, total_examples=model.corpus_count, total_words=model.corpus_total_words, epochs=epochs
    )
    seconds = time.perf_counter() - loaded
    quality = spearman(model.wv, pairs)
    note = f"gensim {gensim.__version__}, {threads} threads, {len(model.wv):,} words, corpus_file"
    version = str(gensim.__version__)
    words = int(model.wv.expandos["count"].sum()) * epochs
    return Found(words / seconds, [(seconds, quality)], version, imported - began, loaded - imported, note)


def spearman(vectors: Any, pairs: str) -> float:
    """Between cosines and human scores, pairs with an unknown word left out. `vectors`: a mapping of words to
    arrays."""
    import numpy as np
    from scipy.stats import spearmanr

    ours: list[float] = []
    humans: list[float] = []
    with open(pairs) as lines:
        for line in lines:
            first, second, score, *_ = [*line.lower().split("\t"), "", ""]
            if line.startswith("#") or first not in vectors or second not in vectors:
                continue
            a, b = vectors[first], vectors[second]
            ours.append(float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))))
            humans.append(float(score))
    return float(spearmanr(ours, humans).statistic)


if __name__ == "__main__":
    answer(measure)
