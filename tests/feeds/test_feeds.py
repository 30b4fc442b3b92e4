"""The resident feed against fancy indexing, and what becomes of a user's data set on its way into shared memory."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from hogwild.errors import DataError
from hogwild.feeds import row_reader, sample_order
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.feeds.row_reader import materialise
from hogwild.feeds.sample_order import make_order
from hogwild.job.source import Source
from hogwild.scheduling.batch_plan import BatchPlan

SAMPLES = 41
TYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def tensors_of(samples: int = SAMPLES) -> tuple[Tensor, Tensor, Tensor]:
    """An image, a vector and a target; every number says which sample it is of."""
    number = torch.arange(samples)
    image = number.view(-1, 1, 1, 1) * 1000 + torch.arange(2 * 3 * 4).view(1, 2, 3, 4)
    return image.float(), (number.view(-1, 1) * 10 + torch.arange(5)).to(torch.int32), number


def feed_of(
    data: ResidentData | None = None, *, batch_size: int = 8, order: str = "full", **plan: bool
) -> ResidentFeed:
    data = data or ResidentData.from_tensors("test", tensors_of())
    return ResidentFeed(data, BatchPlan(data.samples, batch_size, **plan), seed=3, order=order)


def positions_of(data: ResidentData, order: str, epoch: int) -> Tensor:
    """(N,) int64: which sample stands where, by the order itself."""
    row_bytes = sum(spec.row_bytes for spec in data.fields)
    indices = make_order(order, data.samples, seed=3, row_bytes=row_bytes).indices(epoch, 0, data.samples)
    return torch.from_numpy(indices.copy())


# ---- the feed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("order", ["auto", "full", "chunked", "none"])
@pytest.mark.parametrize("plan", [{}, {"drop_last": True}, {"merge_single": True}])
def test_a_gathered_batch_is_the_data_indexed_by_the_order(
    monkeypatch: pytest.MonkeyPatch, channels_last: bool, order: str, plan: dict[str, bool]
) -> None:
    monkeypatch.setattr(sample_order, "CHUNK_ROWS", 5)  # batches hold pieces of several
    image, vector, target = tensors_of()
    data = ResidentData.from_tensors("test", (image, vector, target), channels_last=channels_last)
    feed = feed_of(data, order=order, **plan)
    sizes = []
    for epoch in (0, 1, 0):
        places = positions_of(data, order, epoch)
        for number in range(BatchPlan(SAMPLES, 8, **plan).batches):
            batch = feed.gather(epoch, number)
            chosen = places[8 * number : 8 * number + batch.size]
            assert len(batch.target) == batch.size
            assert batch.first_position == 8 * number
            assert torch.equal(batch.inputs[0], image[chosen])
            assert torch.equal(batch.inputs[1], vector[chosen])
            assert torch.equal(batch.target, target[chosen])
            sizes.append(batch.size)
    last = {"drop_last": [8], "merge_single": [9]}.get(next(iter(plan), ""), [8, 1])
    assert sizes == 3 * [8, 8, 8, 8, *last]


def test_the_buffers_stay_where_they_are_for_the_whole_job() -> None:
    feed = feed_of(merge_single=True)
    addresses = feed.addresses()
    assert len(set(addresses)) == 3
    for epoch in range(4):
        for number in range(5):
            batch = feed.gather(epoch, number)
            assert (*(field.data_ptr() for field in batch.inputs), batch.target.data_ptr()) == addresses
    assert feed.addresses() == addresses


def test_a_batch_of_a_size_seen_before_makes_no_new_tensor() -> None:
    feed = feed_of()
    whole, short = feed.gather(0, 0), feed.gather(0, 5)
    again = feed.gather(1, 3)
    assert (whole.size, short.size) == (8, 1)
    assert all(new is old for new, old in zip(again.inputs, whole.inputs, strict=True))
    assert again.target is whole.target
    assert feed.gather(1, 5).target is short.target


def test_channels_last_rows_lie_so_in_memory_and_only_images_do() -> None:
    image, vector, target = tensors_of()
    data = ResidentData.from_tensors("test", (image, vector, target), channels_last=True)
    batch = feed_of(data).gather(0, 0)
    assert batch.inputs[0].shape == (8, 2, 3, 4)
    assert batch.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert [spec.channels_last for spec in data.fields] == [True, False, False]
    views = data.views()
    assert views[0].is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(view, tensor) for view, tensor in zip(views, (image, vector, target), strict=True))


def test_rows_that_were_read_channels_last_are_laid_out_anew_for_a_model_that_fails_in_it() -> None:
    image, _, target = tensors_of()
    data = ResidentData.from_tensors("test", (image, target), channels_last=True)
    source = Source(data.views(), BatchPlan(len(image), 8), data)
    source.lay_contiguous()
    assert not source.is_there_already, "its memory is asked for again"
    again = ResidentData.from_tensors("test", source.tensors)
    assert all(
        torch.equal(*pair) and pair[0].is_contiguous() for pair in zip(again.views(), (image, target), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_target_that_looks_like_an_image_and_whole_numbers_keep_their_layout(dtype: torch.dtype) -> None:
    image = torch.zeros(6, 2, 3, 4, dtype=dtype)
    mask = torch.zeros(6, 1, 3, 4)
    data = ResidentData.from_tensors("test", (image, mask), channels_last=True)
    assert [spec.channels_last for spec in data.fields] == [dtype.is_floating_point, False]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_a_data_set_may_have_is_gathered(dtype: torch.dtype) -> None:
    field = (torch.arange(SAMPLES) % 2).to(dtype)
    data = ResidentData.from_tensors("test", (field, torch.arange(SAMPLES)))
    batch = feed_of(data).gather(0, 0)
    assert batch.inputs[0].dtype == dtype
    assert torch.equal(batch.inputs[0], field[batch.target])


def test_the_data_is_shared_and_the_copies_do_not_depend_on_the_original() -> None:
    image, vector, target = tensors_of()
    data = ResidentData.from_tensors("test", (image, vector, target))
    expected = image.clone()
    image.zero_()
    assert torch.equal(data.views()[0], expected)
    assert all(view.is_shared() for view in data.views())
    assert all(spec.offset % 64 == 0 for spec in data.fields)


@pytest.mark.parametrize("batch_size", [SAMPLES, SAMPLES + 1, 1000])
def test_a_batch_larger_than_the_data_is_the_whole_data(batch_size: int) -> None:
    feed = feed_of(batch_size=batch_size)
    batch = feed.gather(0, 0)
    assert batch.size == SAMPLES
    assert sorted(batch.target.tolist()) == list(range(SAMPLES))


def test_rows_of_no_bytes_are_gathered_too() -> None:
    data = ResidentData.from_tensors("test", (torch.empty(SAMPLES, 0, 3), torch.arange(SAMPLES)))
    batch = feed_of(data).gather(0, 0)
    assert batch.inputs[0].shape == (8, 0, 3)


@pytest.mark.parametrize("order", ["full", "chunked"])
def test_a_buffer_is_aligned_as_vector_instructions_want_it_and_holds_nothing_but_the_batch(order: str) -> None:
    feed = feed_of(order=order)
    assert all(address % 64 == 0 for address in feed.addresses())
    batch = feed.gather(0, 0)
    assert all(field.is_contiguous() for field in (*batch.inputs, batch.target))


# ---- from a data set to tensors -------------------------------------------------------------------------------------


class Items(Dataset):
    """A map-style data set of whatever is in a list; counts how often it is read."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


class Doubling(TensorDataset):
    """Its tensors are not what its items are."""

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        image, target = super().__getitem__(index)
        return 2 * image, target


X, Y = torch.arange(12.0).view(6, 2), torch.arange(6)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (TensorDataset(X, Y), (X, Y)),
        (TensorDataset(X, X + 1, Y), (X, X + 1, Y)),
        (Subset(TensorDataset(X, Y), [4, 0, 4]), (X[[4, 0, 4]], Y[[4, 0, 4]])),
        (Subset(TensorDataset(X, Y), range(1, 4)), (X[1:4], Y[1:4])),
        (Subset(Subset(TensorDataset(X, Y), [5, 3, 1]), [2, 0]), (X[[1, 5]], Y[[1, 5]])),
        (Subset(TensorDataset(X, Y), [-1, 0]), (X[[5, 0]], Y[[5, 0]])),
        (Doubling(X, Y), (2 * X, Y)),
        (Subset(Doubling(X, Y), [1, 2]), (2 * X[1:3], Y[1:3])),
        (Items([(X[k], Y[k]) for k in range(6)]), (X, Y)),
        (Items([[X[k].numpy(), int(Y[k])] for k in range(6)]), (X, Y)),
        ([(X[k], Y[k]) for k in range(6)], (X, Y)),  # a list has len and [i]
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (Dataset, list)) else "",
)
def test_a_data_set_becomes_the_tensors_of_its_items(dataset: Any, expected: tuple[Tensor, ...]) -> None:
    found = materialise(dataset, "data.train")
    assert len(found) == len(expected)
    for field, wanted in zip(found, expected, strict=True):
        assert field.dtype == wanted.dtype
        assert torch.equal(field, wanted)


def test_the_tensors_of_a_tensor_data_set_are_taken_as_they_are() -> None:
    found = materialise(TensorDataset(X, Y), "data.train")
    assert [field.data_ptr() for field in found] == [X.data_ptr(), Y.data_ptr()]


def test_every_item_is_read_once() -> None:
    dataset = Items([(X[k], Y[k]) for k in range(6)])
    materialise(dataset, "data.train")
    assert dataset.reads == 6


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, torch.float32),  # what models compute in; torch's own collation would make it float64
        (np.float64(0.5), torch.float32),  # a number read out of a float64 array is a Python float
        (np.float32(0.5), torch.float32),
        (np.array(0.5), torch.float64),  # an array says what it is
        (1, torch.int64),
        (True, torch.bool),
        ([0.5, 1.5], torch.float32),
        (np.ones(3, dtype=np.uint8), torch.uint8),
        (torch.ones(3, dtype=torch.bfloat16), torch.bfloat16),
    ],
)
def test_numbers_and_arrays_become_tensors_of_their_type(value: Any, dtype: torch.dtype) -> None:
    inputs, target = materialise(Items([(value, value)] * 3), "data.train")
    assert inputs.dtype == target.dtype == dtype
    assert inputs.shape == (3, *np.shape(torch.as_tensor(value)))


def test_read_only_arrays_are_read_without_a_warning() -> None:
    """An array as a memory-mapped file gives it; torch would warn of every item, and here warnings are errors."""
    array = np.arange(4.0, dtype=np.float32)
    array.flags.writeable = False
    inputs, _ = materialise(Items([(array, 0)] * 2), "data.train")
    assert inputs.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_tensors_that_require_gradients_are_data_all_the_same() -> None:
    wanting = X.clone().requires_grad_()
    for dataset in (TensorDataset(wanting, Y), Items([(wanting[k], Y[k]) for k in range(6)])):
        inputs, target = materialise(dataset, "data.train")
        assert not inputs.requires_grad
        data = ResidentData.from_tensors("test", (inputs, target))
        assert not feed_of(data, batch_size=2).gather(0, 0).inputs[0].requires_grad


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield X[0], 0


class Unmeasured(Dataset):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index], 0


class Unwilling(Unmeasured):
    def __len__(self) -> int:
        raise NotImplementedError


def spoilt(position: int, value: float) -> Tensor:
    field = torch.zeros(6, 2)
    field[position, 1] = value
    return field


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TensorDataset(X[:0], Y[:0]), "the data set is empty; there is nothing to train on"),
        (lambda: Subset(TensorDataset(X, Y), []), "the data set is empty; there is nothing to train on"),
        (lambda: Items([]), "the data set is empty; there is nothing to train on"),
        (lambda: TensorDataset(X), "samples have only one field; they need an input and a target"),
        (lambda: Items([(X[0],)] * 2), "item 0 is a tuple of 1; a sample is a tuple (input, …, target)"),
        (lambda: Items([X[0]] * 2), "item 0 is a Tensor; a sample is a tuple (input, …, target)"),
        (lambda: Items([{"x": 1, "y": 2}] * 2), "item 0 is a dict; a sample is a tuple (input, …, target)"),
        (lambda: Items([(X[0], 0), X[0]]), "item 1 is a Tensor; a sample is a tuple"),
        (lambda: Items([(X[0], 0), (X[0], X[0], 0)]), "item 1 has 3 fields, item 0 has 2; all items must have"),
        (lambda: Items([(X[0], 0), (X, 0)]), "item 1, field 0 has shape (6, 2), item 0 has (2,); all items must"),
        (lambda: Items([(X[0], 0), (X[0, :1], 0)]), "item 1, field 0 has shape (1,), item 0 has (2,)"),
        (lambda: Items([(X[0], 0)] * 3 + [(X[0], 0.7)]), "item 3, field 1 is torch.float32, item 0 has torch.int64"),
        (lambda: Items([(X[0], 0), KeyError("row 1")]), "reading item 1 raised KeyError: 'row 1'"),
        (lambda: Items([(X[0], "cat")]), "item 0 cannot be converted to tensors"),
        (lambda: Items([((X[0], X[1]), 0)]), "item 0 cannot be converted to tensors"),
        (lambda: Items([(X[0].to_sparse(), 0)]), "item 0 cannot be converted to tensors: it holds a torch.sparse_coo"),
        (lambda: TensorDataset(X.to_sparse(), Y), "field 0 is torch.sparse_coo; only dense tensors can be resident"),
        (lambda: Subset(TensorDataset(X.to_sparse(), Y), [0, 1]), "it holds a torch.sparse_coo tensor; only dense"),
        (lambda: Subset(TensorDataset(X, Y), [0, 6]), "reading item 1 raised IndexError"),
        (lambda: TensorDataset(spoilt(4, float("nan")), Y), "input 0 of sample 4 is NaN or infinite; clean the data"),
        (lambda: TensorDataset(spoilt(0, float("inf")), Y), "input 0 of sample 0 is NaN or infinite"),
        (lambda: TensorDataset(X, spoilt(5, -float("inf")), Y), "input 1 of sample 5 is NaN or infinite"),
        (lambda: TensorDataset(X, spoilt(3, float("nan"))), "the target of sample 3 is NaN or infinite"),
        (lambda: TensorDataset(spoilt(2, float("nan")).half(), Y), "input 0 of sample 2 is NaN or infinite"),
        (lambda: Items([(X[0], 0.5), (X[1], float("nan"))]), "the target of sample 1 is NaN or infinite"),
        (Endless, "an IterableDataset cannot be resident; set data.feed: stream"),
        (Unmeasured, "Unmeasured has no len(); use a map-style Dataset"),
        (Unwilling, "Unwilling has no len(); use a map-style Dataset"),
    ],
)
def test_a_data_set_that_cannot_be_trained_on_is_told_what_is_wrong_and_where(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(DataError) as error:
        materialise(make(), "data.val")
    assert str(error.value).startswith("data.val: ")
    assert words in str(error.value)
    assert error.value.exit_status == 1


@pytest.mark.parametrize("look_at", [1, 3, 7, 12, 1 << 24])
@pytest.mark.parametrize("bad", [0, 1, 4, 5])
def test_the_first_sample_that_is_not_finite_is_named_however_many_are_looked_at_in_one_go(
    monkeypatch: pytest.MonkeyPatch, look_at: int, bad: int
) -> None:
    monkeypatch.setattr(row_reader, "CHECK_NUMBERS", look_at)
    field = spoilt(bad, float("nan"))
    field[5, 0] = float("inf")
    with pytest.raises(DataError, match=f"input 0 of sample {bad} is NaN"):
        materialise(TensorDataset(field, Y), "data.train")


def test_large_finite_numbers_whose_sum_overflows_are_fine() -> None:
    large = torch.full((6, 2), torch.finfo(torch.float32).max)
    assert torch.equal(materialise(TensorDataset(large, Y), "data.train")[0], large)


def test_fields_without_any_number_in_them_are_fine() -> None:
    inputs, _ = materialise(TensorDataset(torch.empty(6, 0, 3), Y), "data.train")
    assert inputs.shape == (6, 0, 3)
