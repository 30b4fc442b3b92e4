"""Implicit data: a ranking loss takes every pair as a like, so what is none is left out, counted and said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from torch.utils.data import IterableDataset, TensorDataset

import hogwild
from hogwild.config.load import job_from_mapping
from hogwild.errors import DataError
from hogwild.job.build import build
from hogwild.job.parts import Parts
from hogwild.losses import BprLoss, WarpLoss
from hogwild.models import BprFactorization, WarpFactorization
from hogwild.planning.device_placement import planned

PAIRS = [(f"u{n}", f"i{k}", (n + k) % 4) for n in range(8) for k in range(8)]


def parts_of(folder: Path, pairs: list[tuple[str, str, float]], kind: str, val: Any = None) -> Parts:
    file = folder / f"{len(pairs)}.csv"
    file.write_text("user,item,rating\n" + "".join(f"{user},{item},{value}\n" for user, item, value in pairs))
    whole = {"class_path": "hogwild.data.Ratings", "init_args": {"path": str(file)}}
    sections: dict[str, Any] = {
        "name": "likes",
        "model": {"class_path": f"hogwild.models.{kind}Factorization", "init_args": {"factors": 2}},
        "loss": {"class_path": f"hogwild.losses.{kind}Loss"},
        "data": {"train": whole, "val": val or whole, "batch_size": 8},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "train": {"procs": 0},
    }
    return build(planned(job_from_mapping(sections, "test")), None)


def rows(parts: Parts, side: str = "train") -> list[list[float]]:
    packed = getattr(parts, side).packed
    return [values.tolist() for values in packed.arrays().values()]


@pytest.mark.parametrize("kind", ["Bpr", "Warp"])
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_pairs_without_a_value_above_0_are_left_out_of_both_parts(tmp_path: Path, kind: str, low: float) -> None:
    pairs = [(user, item, 1.0 if value else low) for user, item, value in PAIRS if user != "u0" and item != "i0"]
    likes = [pair for pair in pairs if pair[2] > 0]
    found, wanted = parts_of(tmp_path, pairs, kind), parts_of(tmp_path, likes, kind)
    assert rows(found) == rows(wanted) and rows(found, "val") == rows(wanted, "val")
    less = len(pairs) - len(likes)
    for what in ("data.train", "data.val"):
        words = f"{what}: {less} of {len(pairs)} pairs are left out: a value of 0 or less is no like"
        assert words in found.notes and not any("no like" in note for note in wanted.notes)
    divided = parts_of(tmp_path, pairs, kind, {"fraction": 0.3})
    assert divided.val is not None
    assert divided.train.plan.samples + divided.val.plan.samples == len(likes)


def test_ratings_of_other_losses_keep_their_zeros_and_likes_of_many_values_are_said(tmp_path: Path) -> None:
    likes = [pair for pair in PAIRS if pair[2]]
    notes = parts_of(tmp_path, likes, "Bpr").notes
    assert "data.train: each pair is a like, with any value from 1 to 3" in notes
    with pytest.raises(DataError, match=r"data\.train: no pair has a value above 0") as error:
        parts_of(tmp_path, [(user, item, 0) for user, item, _ in PAIRS], "Bpr")
    assert error.value.code == "data/empty"


@pytest.mark.parametrize(("kind", "loss"), [(BprFactorization, BprLoss), (WarpFactorization, WarpLoss)])
def test_a_data_set_of_ones_own_is_trained_on_its_likes(kind: Any, loss: Any, tmp_path: Path) -> None:
    user, item = (torch.from_numpy(array) for array in np.divmod(np.arange(64), 8))
    value = torch.tensor([float(pair[2] > 1) for pair in PAIRS])
    tables: list[torch.Tensor] = []
    for name, data in (
        ("all", TensorDataset(user, item, value)),
        ("likes", TensorDataset(user[value > 0], item[value > 0], value[value > 0])),
    ):
        torch.manual_seed(0)
        model = kind(8, 8, 2)
        rule = torch.optim.SGD(model.parameters(), lr=0.5)
        hogwild.train(model, data, loss(), rule, procs=0, epochs=2, batch_size=4, run_dir=tmp_path / name)
        tables.append(model.item.weight.detach())
    assert torch.equal(*tables)


class Stream(IterableDataset[tuple[Any, ...]]):
    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for place, value in enumerate(self.values):
            yield torch.tensor(place % 8), torch.tensor(place % 5), torch.tensor(value)


@pytest.mark.parametrize("first", [0.0, -2.0])
def test_a_stream_with_another_value_is_refused(first: float, tmp_path: Path) -> None:
    model = BprFactorization(8, 8, 2)
    rule = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(
        DataError, match=rf"is {first:g}; BprLoss takes numbers above 0: each sample is a like"
    ) as error:
        hogwild.train(model, Stream([first] + [1.0] * 15), BprLoss(), rule, procs=0, batch_size=4, epochs=1)
    assert error.value.code == "data/labels"


@pytest.mark.parametrize("kind", ["Bpr", "Warp"])
def test_likes_of_everything_rank_nothing_and_are_refused(tmp_path: Path, kind: str) -> None:
    """The mean over no items is NaN: every batch was skipped, and the advice was another learning rate."""
    with pytest.raises(DataError, match="each of the 8 users has each of the 8 items") as error:
        parts_of(tmp_path, [(user, item, 1 + value) for user, item, value in PAIRS], kind)
    assert error.value.code == "data/empty"
    parts_of(tmp_path, [(user, item, 1 + value) for user, item, value in PAIRS[1:]], kind)
