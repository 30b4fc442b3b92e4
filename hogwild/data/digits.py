"""The bundled data set: real handwritten digits, small enough to ship, so that the first run needs no download."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from hogwild.data.locate import choice

FILE = Path(__file__).with_name("digits.npz")  # description and licence: digits.txt beside it


class Digits(TensorDataset):
    """Optical digits (UCI): x (N, 64) float32 in [0, 1], 8x8 pixels row by row; y (N,) int64 in 0..9.

    The division is fixed and stratified: sorted by digit, and by place in the file within a digit, every fifth sample
    beginning with the first is test. The same people wrote both parts, so test accuracy is slightly higher than for a
    new writer. Raises UsageError for another split.

    Arguments:
        split: train (1,437 samples), test (360) or all (1,797)."""

    sizes: ClassVar[Mapping[str, int]] = {"features": 64, "classes": 10}

    def __init__(self, split: str = "train") -> None:
        choice("Digits", "split", split, ("train", "test", "all"))
        with np.load(FILE, allow_pickle=False) as arrays:
            pixels, digits = arrays["x"], arrays["y"]
        is_test = np.zeros(len(digits), dtype=bool)
        is_test[np.argsort(digits, kind="stable")[::5]] = True
        rows = np.flatnonzero({"train": ~is_test, "test": is_test, "all": np.ones_like(is_test)}[split])
        x = torch.from_numpy(pixels[rows].astype(np.float32) / 16)
        super().__init__(x, torch.from_numpy(digits[rows].astype(np.int64)))
