"""The census table a9a as clicks are: a feature for each column, by FTRL-proximal and by a field-aware factorisation
machine, beside Vowpal Wabbit."""

import statistics

from benchmarks import sparse_data
from benchmarks import sparse_figures as asked
from benchmarks.bench import in_turn
from benchmarks.row import Row
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import Suite, speeds, starts

CONFIG = "templates/clicks"
SETTINGS = {
    "ftrl": (
        "model={class_path: hogwild.models.SparseLinear}",
        "optimizer={class_path: hogwild.optimizers.FTRL, init_args: {lr: 0.05, l1: 0.3}}",
    ),
    "ffm": ("optimizer.init_args={lr: 0.02, weight_decay: 2.e-5}",),
}
EPOCHS = {"ftrl": 6, "ffm": 8}
LONG = ("train.epochs=100",)  # seconds, of which the worker's start is little


def clicks(suite: Suite) -> list[Row]:
    """About 5 minutes, most of them Vowpal Wabbit's."""
    rows: list[Row] = []
    for model in SETTINGS:
        rows += _beside_vowpal(suite, model)
    return rows


def _beside_vowpal(suite: Suite, model: str) -> list[Row]:
    effort, ours = suite.effort, suite.ours
    parts = sparse_data.census(suite.folder)
    train, val = (f"data.{part}={{class_path: hogwild.data.Clicks, init_args: {{path: {file}, target: income}}}}"
                  for part, file in (("train", parts.train), ("val", parts.test)))  # fmt: skip
    settings = (*SETTINGS[model], train, val, "data.batch_size=1024")
    runs: list[Trained] = []
    peers: list[Found] = []

    def we() -> float:
        epochs = f"train.epochs={min(EPOCHS[model], effort.sgd_epochs)}"
        runs.append(ours.train(CONFIG, 1, *settings, epochs, f"seed={len(runs) + 1}", metric="log_loss"))
        return ours.speed(CONFIG, 1, *settings, *LONG)

    def they() -> float:
        how = {"train": str(parts.train), "test": str(parts.test), "epochs": effort.sgd_epochs, "seed": len(peers) + 1}
        peers.append(suite.peer("vowpal_clicks", 2, model=model, **how))
        return peers[-1].per_s

    mine, theirs = in_turn(effort.runs, we, they)
    found, best = [run.curve[-1][1] for run in runs], [peer.best(smaller_is_better=True) for peer in peers]
    note = f"ours {statistics.fmean(found):.4f} after {EPOCHS[model]} epochs; baseline: the best of its 1, 3 and 6"
    lost = asked.LOG_LOSS_LOST[model].row(
        [a - b for a, b in zip(found, best, strict=True)], statistics.fmean(best), note
    )
    return [
        asked.over(asked.ROWS_OVER_VOWPAL[model], mine, theirs, "Vowpal Wabbit"), lost,
        *speeds(f"a9a, {model}", "rows/s", [peers]), *starts(f"a9a, {model}", runs, [peers[0]]),
    ]  # fmt: skip
