"""A search for the best ranking of what people like as it is written without hogwild's: a loop of Optuna's own, TPE and
Hyperband, in one process, around implicit's BPR or LightFM's WARP, until the time is up.

Fair: the same sampler, pruner, seed, seconds, factors and most epochs as our search, both cores; the first trial has
the values of the program's own suite, as ours has those of the shipped config, and the best epoch counts. Rates and
penalties lie around those that were best of a few tried."""

import time
from importlib.metadata import version
from typing import Any

from benchmarks.baselines import implicit_bpr, light_fm
from benchmarks.baselines.ratings_search import FACTORS
from benchmarks.sparse_peers import Found, answer

RANGES = {
    "ours": ((5e-3, 0.5), (2e-3, 0.2)),
    "implicit_bpr": ((2e-3, 0.2), (1e-3, 0.1)),
    "light_fm": ((2e-3, 0.2), (1e-7, 1e-3)),
}
FIRST = {
    "implicit_bpr": {"rate": 0.02, "l2": 0.01, "factors": 16},
    "light_fm": {"rate": 0.02, "l2": 1e-7, "factors": 16},
}
PEERS = {"implicit_bpr": implicit_bpr.measure, "light_fm": light_fm.measure}


def measure(*, how: str, train: str, test: str, seconds: float, epochs: int, threads: int, seed: int = 1) -> Found:
    """`train`, `test`: files of `sparse_data.liked`. The quality is the best NDCG@10 of the test part."""
    began = time.perf_counter()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rates, penalties = RANGES[how]

    def trial(one: Any) -> float:
        qualities: list[float] = []

        def report(quality: float) -> None:
            qualities.append(quality)
            one.report(quality, len(qualities))
            if one.should_prune():
                raise optuna.TrialPruned

        found = PEERS[how](
            train=train, test=test, threads=threads, epochs=epochs, seed=one.number + 1, report=report,
            rate=one.suggest_float("rate", *rates, log=True), l2=one.suggest_float("l2", *penalties, log=True),
            factors=one.suggest_categorical("factors", FACTORS),
        )  # fmt: skip
        return found.best()

    pruner = optuna.pruners.HyperbandPruner(1, epochs)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner, direction="maximize")
    study.enqueue_trial(FIRST[how])
    while (left := seconds - (time.perf_counter() - began)) > 0:
        study.optimize(trial, timeout=left)
    took = time.perf_counter() - began
    trials = len(study.trials)
    note = f"Optuna {version('optuna')} around {how}, {trials} trials in {took:.0f} s, best {study.best_params}"
    return Found(trials / took, [(took, study.best_value)], version("optuna"), note=note)


if __name__ == "__main__":
    answer(measure)
