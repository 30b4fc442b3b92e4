"""Data sets whose items change from reading to reading."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from hogwild.feeds.row_reader import RowSource
from hogwild.feeds.stream_reader import _set_epoch


class Items(Dataset):
    def __init__(self, noise=lambda index: 0.0, count=40):
        self.noise, self.count, self.epoch = noise, count, -1

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([float(index), self.noise(index)]), torch.tensor(float("nan") if index == 3 else 0.0)


class Epochs(Items):
    def set_epoch(self, epoch):
        self.epoch = epoch


own = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("noise", "changes"),
    [
        (lambda index: 0.0, False),
        (lambda index: float(np.random.default_rng(index).random()), False),
        (lambda index: float(torch.rand(())), True),
        (lambda index: random.random(), True),
        (lambda index: float(np.random.rand()), True),
        (lambda index: float(own.random()), True),
        (lambda index: float(torch.rand(())) if index == 39 else 0.0, True),
        (lambda index: float(random.random() < 0.5), True),
    ],
    ids=["fixed", "seeded by item", "torch", "python", "numpy", "own generator", "last item", "flip"],
)
def test_an_item_that_changes_is_seen_and_random_states_stay(noise, changes):
    rows = RowSource.of(Items(noise), "data.train", 0)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    found = rows.changing_row()
    assert (found is not None) == changes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


def test_set_epoch_reaches_the_data_set_under_a_subset():
    data = Epochs()
    _set_epoch(Subset(Subset(data, [1, 2]), [0]), 4)
    assert data.epoch == 4
