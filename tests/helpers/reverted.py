"""Arrays that another worker sets back to nothing as soon as they were written: the worst that a lost write can do."""

from typing import Any

import numpy as np


class Reverted(np.ndarray):
    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(at, 0.0)


def reverted(shape: Any) -> np.ndarray:
    return np.zeros(shape, np.float32).view(Reverted)
