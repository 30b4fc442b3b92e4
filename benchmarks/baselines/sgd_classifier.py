"""scikit-learn on sparse rows: SGDClassifier with the logistic loss, and LogisticRegression by saga (Defazio, Bach and
Lacoste-Julien, 2014). Both use one thread for two classes, whatever they are given.

Fair: float32 values and 32-bit indices, as it likes them; rows of length one (`load_s`), with which it gets furthest
(0.8821; 0.875 with counts), and so does saga; the strength of the regularisation is the best of those we tried."""

import time
from dataclasses import dataclass
from typing import Any

from benchmarks.sparse_peers import Curve, Found, answer

ALPHA = 3e-6
PREPARATION = "l2"
SAGA_C = 30.0
SAGA_EPOCHS = (2, 3, 4, 6, 8, 12, 16, 24)


@dataclass(frozen=True, slots=True)
class Rows:
    """Both parts, as scikit-learn wants them: matrices (N, features), targets (N,) of -1 and 1."""

    inputs: Any
    target: Any
    test_inputs: Any
    test_target: Any


def measure(
    *, train: str, test: str, features: int, threads: int, epochs: int, seed: int = 1, share: float = 1.0,
    preparation: str = PREPARATION, alpha: float = ALPHA, c: float = SAGA_C, is_saga: bool = False,
) -> Found:  # fmt: skip
    """`train`, `test`: files of `sparse_data.bag_of_words`. `share`: of the training rows, to try it out."""
    began = time.perf_counter()
    import sklearn
    import sklearn.linear_model

    imported = time.perf_counter()
    inputs, target = _read(train, features, preparation, seed, share)
    rows = Rows(inputs, target, *_read(test, features, preparation, seed, 1.0))
    loaded = time.perf_counter()
    if is_saga:
        trained, curve = _saga(rows, c, epochs, seed)
    else:
        trained, curve = _sgd(rows, alpha, epochs, seed)
    note = f"{'saga' if is_saga else 'SGDClassifier'} of scikit-learn {sklearn.__version__}, one thread"
    return Found(trained / curve[-1][0], curve, sklearn.__version__, imported - began, loaded - imported, note)


def _read(path: str, features: int, preparation: str, seed: int, share: float) -> tuple[Any, Any]:
    """(matrix, target), shuffled."""
    import numpy as np
    from scipy.sparse import csr_matrix

    from benchmarks.sparse_data import prepared

    with np.load(path) as kept:
        indptr, indices, values, target = (kept[name] for name in ("indptr", "indices", "values", "target"))
    order = np.random.default_rng(seed).permutation(len(target))[: int(share * len(target))]
    matrix = csr_matrix((prepared(values, indptr, preparation), indices, indptr), shape=(len(target), features))
    return matrix[order], target[order]


def _sgd(rows: Rows, alpha: float, epochs: int, seed: int) -> tuple[int, Curve]:
    """(rows trained, the curve), epoch by epoch."""
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(loss="log_loss", alpha=alpha, random_state=seed)
    curve: list[tuple[float, float]] = []
    seconds = 0.0
    for _ in range(epochs):
        start = time.perf_counter()
        model.partial_fit(rows.inputs, rows.target, classes=[-1, 1])
        seconds += time.perf_counter() - start
        curve.append((seconds, model.score(rows.test_inputs, rows.test_target)))
    return epochs * len(rows.target), curve


def _saga(rows: Rows, c: float, epochs: int, seed: int) -> tuple[int, Curve]:
    """(rows trained in the last fit, the curve): a fit for each point, for it cannot go on where it was."""
    from sklearn.linear_model import LogisticRegression

    curve: list[tuple[float, float]] = []
    for count in (number for number in SAGA_EPOCHS if number <= max(SAGA_EPOCHS[0], epochs)):
        model = LogisticRegression(solver="saga", C=c, max_iter=count, tol=0.0, random_state=seed)
        start = time.perf_counter()
        model.fit(rows.inputs, rows.target)
        curve.append((time.perf_counter() - start, model.score(rows.test_inputs, rows.test_target)))
    return count * len(rows.target), curve


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message="The max_iter was reached")  # as many epochs as asked for
    answer(measure)
