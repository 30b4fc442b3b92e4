"""Skip-gram with negative sampling on the text of imdb's reviews, beside gensim and fastText."""

from benchmarks import sparse_data
from benchmarks import sparse_figures as asked
from benchmarks.bench import in_turn
from benchmarks.row import Row
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import Suite, lost, speeds, starts

SETTINGS = ("model.init_args.dim=100", "model.init_args.negatives=5")


def words(suite: Suite) -> list[Row]:
    """The speeds, of one epoch. About 6 minutes, of which gensim takes 5."""
    text, pairs = _files(suite)

    def they() -> float:
        return suite.peer("gensim_skipgram", 2, text=text, pairs=pairs, epochs=1).per_s

    mine, theirs = in_turn(suite.effort.runs, lambda: _speed(suite, 2), they)
    row = asked.over(asked.WORDS_OVER_GENSIM, mine, theirs, asked.GENSIM)
    return [row, Row("skip-gram: 1 worker", "words/s", None, [_speed(suite, 1)])]


def _speed(suite: Suite, procs: int) -> float:
    return suite.ours.speed("skipgram", procs, *SETTINGS, "train.epochs=1")


def _files(suite: Suite) -> tuple[str, str]:
    """Return the text and the pairs of words."""
    pairs = str(sparse_data.data_folder() / "word-similarity" / "wordsim353.tsv")
    return str(sparse_data.words(suite.folder, suite.effort.reviews)), pairs


def skip_gram(suite: Suite) -> list[Row]:
    """The quality, after equal epochs. About 11 minutes, of which gensim takes 7 and fastText 2."""
    effort, ours = suite.effort, suite.ours
    text, pairs = _files(suite)
    gensim: list[Found] = []
    runs: list[Trained] = []
    settings = (*SETTINGS, f"train.epochs={effort.word_epochs}")
    for seed in range(1, effort.runs + 1):
        runs.append(ours.train("skipgram", 2, *settings, f"seed={seed}", metric="spearman"))
        gensim.append(suite.peer("gensim_skipgram", 2, text=text, pairs=pairs, epochs=effort.word_epochs, seed=seed))
    others = [
        suite.peer("gensim_skipgram", 1, text=text, pairs=pairs, epochs=1),
        suite.peer("fast_text", 2, text=text, pairs=pairs, epochs=1),
    ]
    return [
        lost(asked.SPEARMAN_LOST, [run.curve[-1][1] for run in runs], [found.quality for found in gensim]),
        *speeds("skip-gram", "words/s", [gensim, *([other] for other in others)]),
        *starts("skip-gram", runs, [gensim[0]]),
    ]
