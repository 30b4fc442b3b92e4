"""The structure of a sample is kept as it is given, on every feed: numbers in a tuple are inputs of their own, of their
own types, and never one tensor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import hogwild
from hogwild.errors import DataError
from hogwild.feeds.row_reader import RowSource
from hogwild.feeds.stream_reader import Collator
from hogwild.job.source import as_batch, has_nested

LARGE = 2**24 + 1  # no float32
SHAPES: dict[str, Any] = {
    "a tuple": lambda user, price: (user, price),
    "a list": lambda user, price: [user, price],
    "a dict": lambda user, price: {"user": user, "price": price},
    "deeper": lambda user, price: (user, {"price": (price,)}),
}


class Visits(Dataset[Any]):
    def __init__(self, shape: str) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        return SHAPES[self.shape](LARGE + row, row / 4), float(row)


class Arriving(IterableDataset[Any]):
    def __init__(self, shape: str) -> None:
        self.visits = Visits(shape)

    def __iter__(self) -> Iterator[Any]:
        return (self.visits[row] for row in range(8))


class Model(nn.Module):
    """Refuses inputs of another structure or type than the samples'."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape, self.scale = shape, nn.Parameter(torch.ones(1))

    def forward(self, visit: Any) -> Tensor:
        user, price = torch.utils._pytree.tree_leaves(visit)
        assert type(visit) is type(SHAPES[self.shape](0, 0))
        assert (user.dtype, price.dtype) == (torch.int64, torch.float32)
        rows = (user - LARGE).float()
        assert torch.equal(rows / 4, price)
        return self.scale * rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("feed", ["auto", "stream", "iterable"])
def test_numbers_in_a_tuple_are_inputs_of_their_own(shape: str, feed: str, tmp_path: Path) -> None:
    model = Model(shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Arriving(shape) if feed == "iterable" else Visits(shape)
    given: dict[str, Any] = {"procs": 0, "batch_size": 3, "feed": "stream" if feed == "stream" else "auto"}
    result = hogwild.train(model, data, nn.MSELoss(), optimizer, val=data, run_dir=tmp_path / "run", **given)
    assert (result.samples, result.metrics["loss"]) == (8, 0.0)
    if feed == "auto":
        trained = hogwild.load(tmp_path / "run", model=Model(shape))
        assert trained.predict(Visits(shape)).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("role", ["train", "val"])
def test_data_in_memory_have_one_tensor_per_field_and_others_are_refused(shape: str, role: str, tmp_path: Path) -> None:
    model = Model(shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    flat = torch.utils.data.TensorDataset(torch.zeros(8), torch.zeros(8))
    train, val = (Visits(shape), None) if role == "train" else (flat, Visits(shape))
    with pytest.raises(
        DataError, match=rf"data.{role}: item 0 cannot be .* holds a (tuple|list|dict).*feed: stream"
    ) as failed:
        hogwild.train(
            model, train, nn.MSELoss(), optimizer, val=val, procs=0, feed="resident", run_dir=tmp_path / "run"
        )
    assert failed.value.code == "data/bad-item"
    assert not (tmp_path / "run").exists()


def test_a_list_of_numbers_of_one_type_is_an_array_on_every_feed() -> None:
    class Records(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, _: int) -> Any:
            return [0.5, 1.5, 2.5], [[1, 2], [3, 4]], 1

    held, streamed = RowSource.of(Records(), "data.train", 0).read_here(0, 2), as_batch(Collator(), [Records()[0]] * 2)
    assert [(field.dtype, *field.shape) for field in held] == [
        (torch.float32, 2, 3), (torch.int64, 2, 2, 2), (torch.int64, 2)
    ]  # fmt: skip
    assert all(torch.equal(mine, its) and mine.dtype == its.dtype for mine, its in zip(held, streamed, strict=True))


LEAF = st.one_of(st.integers(-(2**40), 2**40), st.floats(-4, 4, width=32), st.booleans())
NESTS = st.recursive(LEAF, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=5)


@settings(max_examples=60, deadline=None)
@given(NESTS, LEAF)
def test_a_sample_of_any_nesting_has_the_same_inputs_in_memory_and_in_a_stream(inputs: Any, target: Any) -> None:
    record = (inputs, target)
    streamed = as_batch(Collator(), [record, record])
    assert torch.utils._pytree.tree_structure(tuple(streamed)) == torch.utils._pytree.tree_structure(record)

    class Records(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, _: int) -> Any:
            return record

    if has_nested(Records()):
        with pytest.raises(DataError, match="one tensor per field"):
            RowSource.of(Records(), "data.train", 0)
        return
    held = RowSource.of(Records(), "data.train", 0).read_here(0, 2)
    assert [field.dtype for field in held] == [field.dtype for field in streamed]
    assert all(torch.equal(mine, its) for mine, its in zip(held, streamed, strict=True))
