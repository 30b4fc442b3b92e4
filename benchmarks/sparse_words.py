"""Skip-gram with negative sampling on the text of imdb's reviews, beside gensim and fastText."""

from benchmarks import sparse_data
from benchmarks import sparse_figures as asked
from benchmarks.bench import in_turn
from benchmarks.row import Row
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import Suite, lost, speeds, starts


def skip_gram(suite: Suite) -> list[Row]:
    """About 11 minutes, of which gensim takes 7 and fastText 2."""
    effort, ours = suite.effort, suite.ours
    pairs = str(sparse_data.data_folder() / "word-similarity" / "wordsim353.tsv")
    text = str(sparse_data.words(suite.folder, effort.reviews))
    gensim: list[Found] = []
    runs: list[Trained] = []
    settings = ("model.init_args.dim=100", "model.init_args.negatives=5", f"train.epochs={effort.word_epochs}")

    def we() -> float:
        runs.append(ours.train("skipgram", 2, *settings, f"seed={len(runs) + 1}", metric="spearman"))
        return ours.speed("skipgram", 2, *settings)

    def they() -> float:
        seed = len(gensim) + 1
        gensim.append(suite.peer("gensim_skipgram", 2, text=text, pairs=pairs, epochs=effort.word_epochs, seed=seed))
        return gensim[-1].per_s

    mine, theirs = in_turn(effort.runs, we, they)
    others = [
        suite.peer("gensim_skipgram", 1, text=text, pairs=pairs, epochs=1),
        suite.peer("fast_text", 2, text=text, pairs=pairs, epochs=1),
    ]
    alone = [ours.speed("skipgram", 1, *settings[:2], "train.epochs=1")]
    row = lost(asked.SPEARMAN_LOST, [run.curve[-1][1] for run in runs], [found.quality for found in gensim])
    return [
        asked.over(asked.WORDS_OVER_GENSIM, mine, theirs, asked.GENSIM), row,
        Row("skip-gram: 1 worker", "words/s", None, alone),
        *speeds("skip-gram", "words/s", [gensim, *([other] for other in others)]),
        *starts("skip-gram", runs, [gensim[0]]),
    ]  # fmt: skip
