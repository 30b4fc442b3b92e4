"""ComplEx on the knowledge graph CoDEx-M, beside PyTorch-BigGraph with as many processes and epochs."""

from benchmarks import sparse_figures as asked
from benchmarks.bench import in_turn
from benchmarks.row import Row
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import Suite, lost, speeds, starts

DIM = 200
NEGATIVES = 1000
FEW_NEGATIVES = 50


def graph(suite: Suite) -> list[Row]:
    """About 9 minutes, of which the peer takes 8."""
    effort, ours = suite.effort, suite.ours
    settings = (f"model.init_args.dim={DIM}", f"train.epochs={effort.graph_epochs}")
    theirs: list[Found] = []
    runs: list[Trained] = []

    def we() -> float:
        runs.append(ours.train("codex", 2, *settings, f"seed={len(runs) + 1}", metric="mrr"))
        return runs[-1].per_s

    def they() -> float:
        # One thread for each of its two processes.
        found = suite.peer(
            "codex_big_graph", 1, procs=2, epochs=effort.graph_epochs, dim=DIM, drawn=NEGATIVES, share=effort.share
        )
        theirs.append(found)
        return found.per_s

    def we_at_equal() -> float:
        return ours.speed("codex", 2, *settings, f"model.init_args.negatives={NEGATIVES}")

    mine, others, equal = in_turn(effort.runs, we, they, we_at_equal)
    # Its own default: several times faster, and far from as good.
    few = suite.peer(
        "codex_big_graph", 1, procs=2, epochs=effort.graph_epochs, dim=DIM, drawn=FEW_NEGATIVES, share=effort.share
    )
    alone = ours.speed("codex", 1, *settings)
    return [
        asked.over(asked.TRIPLES_OVER_BIG_GRAPH, mine, others, asked.BIG_GRAPH),
        asked.over(asked.TRIPLES_AT_EQUAL, equal, others, asked.BIG_GRAPH),
        lost(asked.MRR_LOST, [run.curve[-1][1] for run in runs], [found.quality for found in theirs]),
        Row("ComplEx, CoDEx-M: 1 worker", "triples/s", None, [alone]),
        *speeds("ComplEx, CoDEx-M", "triples/s", [theirs, [few]]),
        *starts("ComplEx, CoDEx-M", runs, [theirs[0]]),
    ]
