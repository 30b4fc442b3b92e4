"""Metrics of a user's own: functions of all outputs and targets."""

import os
import signal
from pathlib import Path

from torch import Tensor

from tests.helpers.processes import in_worker


def gini(outputs: Tensor, targets: Tensor) -> float:
    """Return the unevenness of the largest outputs; only what every worker has seen gives the right number."""
    largest = outputs.max(1).values.sort().values.double()
    places = 2 * (1 + largest.argsort()) - len(largest) - 1
    return float((places * largest).sum() / (len(largest) * largest.sum()))


gini.higher_is_better = True  # type: ignore[attr-defined]


class Dying:
    """Kills the worker that computes it, the first time; later answers how many samples there were."""

    higher_is_better = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        note = Path(os.environ["JUDGING_DIARY"]) / "died"
        if in_worker() and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(len(targets))


def refuses(outputs: Tensor, targets: Tensor) -> float:
    raise ValueError("needs more than this")


def seconds(outputs: Tensor, targets: Tensor) -> float:
    return 0.0


def sideless(outputs: Tensor, targets: Tensor) -> float:
    return 0.0
