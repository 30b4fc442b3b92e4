"""A search for the best matrix factorisation of a table of ratings as it is written without hogwild's: a loop of
Optuna's own, TPE and Hyperband, in one process.

    torch    a model of two embeddings and two biases, Adam, minibatches, both cores in torch's threads
    train    hogwild.train for each trial
    libmf    libmf.mf for each trial: it cannot be stopped in between, so nothing is pruned

Fair: the same sampler, pruner, seed, number of trials, factors to choose from and most epochs as our search; rates and
penalties in a range around those that suit the program. The whole program is measured, imports and reading included."""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sparse_peers import Found, answer

FACTORS = [8, 16, 32, 64]
BATCH = 512
COLUMNS = {"user": "int64", "item": "int64", "rating": "float32"}
RANGES = {
    "torch": ((1e-3, 3e-2), (1e-6, 1e-3)), "train": ((0.02, 0.5), (5e-3, 0.3)), "libmf": ((0.01, 0.3), (5e-3, 0.3)),
}  # fmt: skip


def measure(*, how: str, train: str, test: str, trials: int, epochs: int, threads: int, seed: int = 1) -> Found:
    """`train`, `test`: files of `sparse_data.synthetic`. The quality is the best RMSE of the test part."""
    began = time.perf_counter()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    run = {"torch": _torch, "train": _train, "libmf": _libmf}[how](train, test, epochs, threads)
    rates, penalties = RANGES[how]

    def trial(one: Any) -> float:
        return run(
            one,
            one.suggest_float("lr", *rates, log=True),
            one.suggest_float("l2", *penalties, log=True),
            one.suggest_categorical("factors", FACTORS),
        )

    pruner = optuna.pruners.HyperbandPruner(1, epochs)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    study.optimize(trial, trials, catch=())
    seconds = time.perf_counter() - began
    pruned = sum(one.state.name == "PRUNED" for one in study.trials)
    note = f"Optuna {version('optuna')} around {how}, {trials} trials; {pruned} pruned, best {study.best_params}"
    return Found(trials / seconds, [(seconds, study.best_value)], version("optuna"), note=note)


Trial = Callable[[Any, float, float, int], float]


def _torch(train: str, test: str, epochs: int, threads: int) -> Trial:
    import optuna
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    (user, item, rating), (test_user, test_item, test_rating) = _tensors(train), _tensors(test)
    users, items, mean = int(user.max()) + 1, int(item.max()) + 1, float(rating.mean())

    def run(trial: Any, lr: float, l2: float, factors: int) -> float:
        torch.manual_seed(trial.number)
        tables = nn.ModuleList(nn.Embedding(count, 1 + factors) for count in (users, items))
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)
        rule = torch.optim.Adam(tables.parameters(), lr=lr, weight_decay=l2)

        def rated(users: Any, items: Any) -> Any:
            left, right = tables[0](users), tables[1](items)
            return mean + left[:, 0] + right[:, 0] + (left[:, 1:] * right[:, 1:]).sum(1)

        best = float("inf")
        for epoch in range(epochs):
            for rows in torch.randperm(len(rating)).split(BATCH):
                rule.zero_grad()
                nn.functional.mse_loss(rated(user[rows], item[rows]), rating[rows]).backward()
                rule.step()
            with torch.no_grad():
                value = float(nn.functional.mse_loss(rated(test_user, test_item), test_rating).sqrt())
            best = min(best, value)
            trial.report(value, epoch + 1)
            if trial.should_prune():
                raise optuna.TrialPruned
        return best

    return run


def _tensors(file: str) -> tuple[Any, ...]:
    """Return users, items and ratings of a part."""
    import numpy as np
    import torch

    with np.load(file) as table:
        return tuple(torch.from_numpy(table[name].astype(kind)) for name, kind in COLUMNS.items())


class _Reports:
    """Tells a trial each evaluation of its job, and ends the job that is pruned."""

    def __init__(self, trial: Any) -> None:
        self.trial, self.count, self.is_pruned = trial, 0, False

    def on_evaluation(self, event: Any) -> None:
        self.count += 1
        self.trial.report(event.metrics["rmse"], self.count)
        if self.trial.should_prune():
            self.is_pruned = True
            event.stop()


def _train(train: str, test: str, epochs: int, threads: int) -> Trial:
    import os
    import tempfile

    import optuna
    import torch

    import hogwild
    from hogwild.data import Ratings
    from hogwild.models import MatrixFactorization
    from hogwild.optimizers import RowWiseAdagrad

    os.chdir(tempfile.mkdtemp())
    table, held = (Ratings(Path(part).with_suffix(".csv")) for part in (train, test))  # kept packed beside the runs
    user, item, rating = _tensors(train)
    shape = len(user.unique()), len(item.unique())

    def run(trial: Any, lr: float, l2: float, factors: int) -> float:
        torch.manual_seed(trial.number)
        model, reports = MatrixFactorization(*shape, factors, mean=float(rating.mean()), l2=l2), _Reports(trial)
        ended = hogwild.train(
            model, table, torch.nn.MSELoss(), RowWiseAdagrad(model.parameters(), lr=lr), val=held,
            epochs=epochs, batch_size=1024, evaluate={"metrics": ["rmse"], "monitor": "rmse"}, callbacks=[reports],
        )  # fmt: skip
        if reports.is_pruned:
            raise optuna.TrialPruned
        assert ended.best is not None
        return float(ended.best["value"])

    return run


def _libmf(train: str, test: str, epochs: int, threads: int) -> Trial:
    import numpy as np
    from libmf import mf

    from benchmarks.sparse_data import rmse

    parts = [{name: one.numpy() for name, one in zip(COLUMNS, _tensors(file), strict=True)} for file in (train, test)]
    stacked = np.stack([one.astype(np.float32) for one in parts[0].values()], axis=1)

    def run(trial: Any, lr: float, l2: float, factors: int) -> float:
        made = mf.MF(
            k=factors, nr_threads=threads, nr_iters=epochs, nr_bins=max(26, 2 * threads + 1), eta=lr, quiet=True,
            lambda_p2=l2, lambda_q2=l2, lambda_p1=0.0, lambda_q1=0.0,
        )  # fmt: skip
        made.fit(stacked)
        return rmse(made.p_factors(), made.q_factors(), parts[1])

    return run


if __name__ == "__main__":
    answer(measure)
