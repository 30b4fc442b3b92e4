"""Packed data: named arrays in one region, read by kernels as they are and by autograd in batches."""

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from hogwild.feeds.packed import Packed, attach, csr_rows
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.sample_order import make_order
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.shared_memory.region import Region

RATINGS = {
    "user": np.array([0, 0, 1, 2, 2], np.int32),
    "item": np.array([3, 1, 0, 2, 3], np.int32),
    "rating": np.array([1.0, 2, 3, 4, 5], np.float32),
}
ROWS = {
    "indptr": np.array([0, 2, 2, 5], np.int64),
    "indices": np.array([4, 0, 1, 2, 3], np.int32),
    "values": np.array([1.0, 2, 3, 4, 5], np.float32),
    "target": np.array([1.0, -1, 1], np.float32),
}


def table() -> Packed:
    return Packed.of("ratings", "table", RATINGS, {"users": 3, "items": 4}, {"users": ["a", "b", "c"]})


def sparse() -> Packed:
    return Packed.of("rows", "csr", ROWS, {"features": 5})


@pytest.mark.parametrize(("packed", "arrays"), [(table(), RATINGS), (sparse(), ROWS)])
def test_arrays_are_what_was_packed_each_on_cache_lines_of_its_own(packed: Packed, arrays: dict) -> None:
    assert packed.arrays().keys() == arrays.keys()
    for name, view in packed.arrays().items():
        np.testing.assert_array_equal(view, arrays[name])
        assert view.dtype == arrays[name].dtype
        assert view.ctypes.data % 64 == 0
    assert packed.samples == len(packed.targets())
    assert packed.targets().tolist() == [*arrays.values()][-1].tolist()


def test_a_worker_finds_the_same_memory() -> None:
    packed = table()
    spec = cloudpickle.loads(cloudpickle.dumps(packed.spec))
    import os

    there = attach(spec, Region.attach(os.dup(packed.region.descriptor), packed.region.nbytes))
    assert isinstance(there, Packed)
    packed.arrays()["rating"][2] = 9.0
    assert there.arrays()["rating"][2] == 9.0
    assert there.spec.sizes == {"users": 3, "items": 4}


def test_resident_data_is_attached_by_its_fields() -> None:
    data = ResidentData.from_tensors("data", (torch.arange(6.0).view(3, 2), torch.arange(3)))
    there = attach(data.fields, data.region)
    assert isinstance(there, ResidentData) and isinstance(there.fields[0], FieldSpec)
    assert there.targets().tolist() == [0, 1, 2]
    assert there.feed(BatchPlan(3, 2), seed=1, order="none").gather(0, 1).target.tolist() == [2]


def test_batches_of_a_table_are_the_fields_of_its_rows_in_buffers_that_stay() -> None:
    feed = table().feed(BatchPlan(5, 2), seed=1, order="none")
    first = feed.gather(0, 0)
    address = first.inputs[0].data_ptr()
    assert [part.tolist() for part in (*first.inputs, first.target)] == [[0, 0], [3, 1], [1.0, 2.0]]
    last = feed.gather(0, 2)
    assert [part.tolist() for part in (*last.inputs, last.target)] == [[2], [3], [5.0]]
    assert (last.first_position, last.size) == (4, 1) and last.inputs[0].data_ptr() == address


def test_batches_of_sparse_rows_are_what_an_embedding_bag_takes() -> None:
    packed = sparse()
    batch = packed.feed(BatchPlan(3, 3), seed=1, order="none").gather(0, 0)
    bag = nn.EmbeddingBag(5, 1, mode="sum", include_last_offset=False)
    with torch.no_grad():
        bag.weight.copy_(torch.tensor([[1.0], [10], [100], [1000], [10000]]))
        indices, offsets, values = batch.inputs
        answer = bag(indices, offsets, per_sample_weights=values)
    assert answer[:, 0].tolist() == [10002.0, 0.0, 3 * 10 + 4 * 100 + 5 * 1000]
    assert batch.target.tolist() == [1, -1, 1]


def test_rows_are_chosen_with_all_that_belongs_to_them() -> None:
    taken = csr_rows(ROWS, np.array([2, 1, 0]))
    assert taken["indptr"].tolist() == [0, 3, 3, 5]
    assert taken["indices"].tolist() == [1, 2, 3, 4, 0]
    assert taken["target"].tolist() == [1, -1, 1]
    assert csr_rows(ROWS, np.empty(0, np.int64))["indptr"].tolist() == [0]


def test_a_part_for_validation_is_a_copy_of_its_rows() -> None:
    part = table().copy_rows("held", np.array([4, 0]))
    assert part.arrays()["rating"].tolist() == [5.0, 1.0] and part.samples == 2
    assert part.names == {"users": ["a", "b", "c"]} and part.spec.sizes == {"users": 3, "items": 4}
    assert sparse().copy_rows("held", np.array([2])).arrays()["values"].tolist() == [3, 4, 5]


def test_a_text_is_not_divided_by_places() -> None:
    arrays = {"tokens": np.zeros(4, np.int32), "starts": np.zeros(2, np.int64), "counts": np.ones(1, np.int64)}
    with pytest.raises(ValueError, match="not divided"):
        Packed.of("text", "tokens", arrays, {"words": 1, "context": 2}).copy_rows("held", np.array([1]))


def test_samples_are_picked_by_number() -> None:
    batch = sparse().pick(np.array([2, 0]))
    assert batch.inputs[0].tolist() == [1, 2, 3, 4, 0] and batch.inputs[1].tolist() == [0, 3]


@pytest.mark.parametrize("form", ["table", "csr", "tokens"])
@pytest.mark.parametrize("shuffle", ["auto", "chunked"])
def test_by_default_samples_come_in_any_order_and_a_text_in_runs(form: str, shuffle: str) -> None:
    """Neighbours are faster to read, but in many files they are alike."""
    samples = 20_000
    arrays = {"tokens": np.zeros(samples, np.int32), "indptr": np.zeros(samples + 1, np.int64)}
    arrays["target"] = np.zeros(samples, np.float32)
    order = Packed.of("data", form, arrays, {}).order(shuffle, seed=3)
    epochs = [
        np.concatenate([order.indices(e, at, at + 1000).copy() for at in range(0, samples, 1000)]) for e in (0, 1)
    ]
    for rows in epochs:
        assert sorted(rows) == list(range(samples))
        is_mixed = shuffle == "auto" and form != "tokens"
        assert (np.median(np.abs(np.diff(rows))) > samples // 10) == is_mixed
        assert (np.mean(np.diff(rows) == 1) > 0.99) == (not is_mixed and form != "csr")
    assert not np.array_equal(*epochs)


def test_runs_of_little_data_are_more_than_one() -> None:
    order = make_order("runs", 10, seed=1, row_bytes=4)
    assert len({tuple(order.indices(epoch, 0, 10).copy()) for epoch in range(8)}) > 1


def test_a_target_called_weight_is_no_weight_of_samples() -> None:
    """Triples have one."""
    arrays = {"triple": np.zeros((2, 3), np.int32), "weight": np.ones(2, np.float32)}
    assert not Packed.of("data.train", "table", arrays, {}).has_sample_weights
