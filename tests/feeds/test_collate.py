"""Records made into batches in a slot: stacked, padded, collated by the user's own function; and what cannot be."""

import os
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hogwild.errors import DataError
from hogwild.feeds import stream_reader
from hogwild.feeds.batch import Batch
from hogwild.feeds.ring import BatchForm, Leaf, Ring, RingFeed, RingSpec, SlotWord, TooLarge
from hogwild.feeds.stream_reader import BadBatch, Collator, PaddingRule
from hogwild.shared_memory.region import Region

FORM = BatchForm(((0, {"x": 1}), 2), (Leaf(torch.float32), Leaf(torch.uint8), Leaf(torch.int64)))
SPEC = RingSpec(FORM, slots=3, loaders=2, data_bytes=4096, state_bytes=32)
SHAPES = ((2, 5), (2, 3, 1), (2,))


def filled(ring: Ring, slot: int, epoch: int, batch: int, value: float = 1.0) -> None:
    for view in ring.reserve(slot, SHAPES):
        view.fill_(value)
    ring.seal(slot, 2, SHAPES)
    ring.table[slot, SlotWord.EPOCH], ring.table[slot, SlotWord.BATCH], ring.table[slot, SlotWord.FILLED] = (
        epoch,
        batch,
        1,
    )


def other(ring: Ring) -> Ring:
    """The same ring as another process maps it."""
    return Ring(Region.attach(os.dup(ring.region.descriptor), ring.region.nbytes), SPEC)


def test_what_one_writes_the_other_reads_in_place() -> None:
    ring = Ring.allocate("test", SPEC)
    seen = other(ring)
    for slot in range(3):
        filled(ring, slot, epoch=4, batch=10 + slot, value=slot)
    batch = RingFeed(seen, batch_size=2).gather(4, 11)
    (dense, nested), target = batch.inputs[0], batch.target
    assert dense.tolist() == [[1.0] * 5] * 2 and nested["x"].dtype == torch.uint8 and target.tolist() == [1, 1]
    assert (batch.first_position, batch.size) == (22, 2)
    dense.fill_(9)
    assert ring.leaves(1)[0][0, 0] == 9, "the very words"
    assert ring.leaves(0)[0][0, 0] == 0 and ring.leaves(2)[0][0, 0] == 2, "and nobody else's"


def test_a_slot_is_at_the_same_addresses_for_ever_and_its_tensors_are_the_same_objects() -> None:
    ring = Ring.allocate("test", SPEC)
    feed = RingFeed(ring, 2)
    before = feed.addresses()
    filled(ring, 0, 0, 0)
    first = feed.gather(0, 0).inputs[0][0]
    filled(ring, 0, 0, 7)
    again = feed.gather(0, 7).inputs[0][0]
    assert again is first
    assert feed.addresses() == before and first.data_ptr() == before[0]


def test_a_copy_leaves_the_slot_as_it_was() -> None:
    ring = Ring.allocate("test", SPEC)
    filled(ring, 2, 0, 5)
    feed = RingFeed(ring, 2, copies=True)
    feed.gather(0, 5).inputs[0][0].fill_(7)
    assert feed.gather(0, 5).inputs[0][0][0, 0] == 1


def test_only_what_the_parent_has_heard_of_is_found() -> None:
    ring = Ring.allocate("test", SPEC)
    filled(ring, 0, 0, 3)
    filled(ring, 1, 0, 3)
    ring.table[0, SlotWord.FILLED] = 0  # an answer that nobody waits for any more
    assert ring.find(0, 3) == 1


def test_shapes_may_vary_up_to_the_size_of_a_slot() -> None:
    ring = Ring.allocate("test", SPEC)
    small = ((1, 2), (1,), (1,))
    ring.reserve(0, small)[0].fill_(3)
    ring.seal(0, 1, small)
    assert [tuple(leaf.shape) for leaf in ring.leaves(0)] == [(1, 2), (1,), (1,)]
    with pytest.raises(TooLarge) as caught:
        ring.reserve(0, ((32, 32), (1,), (1,)))
    assert caught.value.args[0] > SPEC.data_bytes


def test_views_of_many_shapes_are_not_kept_for_ever() -> None:
    ring = Ring.allocate("test", SPEC)
    for width in range(1, 200):
        ring.reserve(0, ((1, width), (1,), (1,)))
    assert len(ring._views) <= 4 * SPEC.slots


def test_states_lie_beside_the_batch_and_one_that_outgrows_its_place_is_an_error() -> None:
    ring = Ring.allocate("test", SPEC)
    ring.reserve(1, SHAPES)[0].fill_(5)
    ring.seal(1, 2, SHAPES, b"before", b"after")
    assert (ring.read_state(1, is_after=False), ring.read_state(1, is_after=True)) == (b"before", b"after")
    assert ring.leaves(1)[0][0, 0] == 5
    with pytest.raises(DataError, match="has grown to 33 bytes"):
        ring.seal(1, 2, SHAPES, b"", b"x" * 33)


def test_images_are_shown_in_their_logical_shape() -> None:
    form = BatchForm((0, 1), (Leaf(torch.float32, channels_last=True), Leaf(torch.int64)))
    ring = Ring.allocate("test", RingSpec(form, 1, 1, 4096))
    image, _ = ring.reserve(0, ((2, 3, 4, 5), (2,)))
    assert image.shape == (2, 3, 4, 5) and image.is_contiguous(memory_format=torch.channels_last)


Pair = namedtuple("Pair", ["first", "second"])


def batch_of(records: list[Any], collator: Collator | None = None, more: list[list[Any]] | None = None) -> Batch:
    """The last of these batches, through one slot of a ring whose form the first one decides."""
    collator = (collator or Collator()).with_padding_of(records)
    form, shapes = collator.form(records)
    ring = Ring.allocate("test", RingSpec(form, 1, 0, 4 * form.nbytes(shapes)))
    for batch in [records, *(more or [])]:
        rows, shapes = collator.put(batch, ring, 0)
        ring.seal(0, rows, shapes)
    return form.batch(ring.leaves(0), 0, ring.rows(0))


def test_tensors_arrays_and_numbers_are_stacked_as_torch_would() -> None:
    records = [(torch.full((2, 3), k), np.arange(4) + k, k % 2 == 0, 0.5 * k, k) for k in range(5)]
    batch = batch_of(records)
    wanted = torch.utils.data.default_collate(records)
    for ours, theirs in zip((*batch.inputs, batch.target), wanted, strict=True):
        assert torch.equal(ours, theirs.float() if theirs.dtype == torch.float64 else theirs)
    assert batch.inputs[3].dtype == torch.float32, "a Python float is what models compute in"
    assert batch.size == 5


def test_any_nesting_comes_back_as_it_was() -> None:
    records = [({"a": torch.tensor([k]), "b": [k, Pair(k, k + 1)]}, (k, 2 * k)) for k in range(3)]
    batch = batch_of(records)
    assert batch.inputs[0]["a"].tolist() == [[0], [1], [2]]
    assert batch.inputs[0]["b"][1].second.tolist() == [1, 2, 3]
    assert isinstance(batch.inputs[0]["b"][1], Pair)
    assert batch.target[1].tolist() == [0, 2, 4]


def test_sequences_are_padded_to_the_longest_of_their_batch_with_their_lengths_beside() -> None:
    records = [(torch.arange(1, n + 1), n % 2) for n in (3, 1, 2)]
    batch = batch_of(records, Collator(padding=PaddingRule(value=-1)), more=[[(torch.tensor([7, 8]), 1)]])
    padded, lengths = batch.inputs
    assert padded.tolist() == [[7, 8]] and lengths.tolist() == [2], "a slot holds no more than its batch"
    whole = batch_of(records, Collator(padding=PaddingRule(value=-1)))
    assert whole.inputs[0].tolist() == [[1, 2, 3], [1, -1, -1], [1, 2, -1]]
    assert whole.inputs[1].tolist() == [3, 1, 2]


def test_a_target_that_varies_is_padded_with_what_losses_ignore_and_stays_the_target() -> None:
    records = [(torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])), (torch.tensor([7]), torch.tensor([8]))]
    batch = batch_of(records, Collator(padding=PaddingRule()))
    padded, lengths = batch.inputs
    assert padded.tolist() == [[1, 2, 3], [7, 0, 0]] and lengths.tolist() == [3, 1]
    assert batch.target.tolist() == [[4, 5, 6], [8, -100, -100]]


def test_which_fields_are_padded_is_decided_by_what_varies() -> None:
    records = [(torch.zeros(3), torch.ones(n, 2), 1) for n in (2, 4)]
    collator = Collator(padding=PaddingRule()).with_padding_of(records)
    assert collator.padding is not None and collator.padding.fields == (1,)
    batch = batch_of(records, Collator(padding=PaddingRule()))
    assert [tuple(one.shape) for one in batch.inputs] == [(2, 3), (2, 4, 2), (2,)]


def test_a_collate_function_is_called_with_the_list_of_records() -> None:
    def letters(records: list[tuple[str, int]]) -> tuple[dict[str, Tensor], Tensor]:
        words = torch.tensor([[ord(letter) for letter in word] for word, _ in records])
        return {"words": words}, torch.tensor([label for _, label in records])

    batch = batch_of([("ab", 1), ("cd", 0)], Collator(letters))
    assert batch.inputs[0]["words"].tolist() == [[97, 98], [99, 100]]


def test_images_lie_as_the_model_wants_them() -> None:
    records = [(torch.rand(3, 4, 5), k) for k in range(2)]
    image = batch_of(records, Collator(channels_last=True)).inputs[0]
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(image, torch.stack([record[0] for record in records]))


THREE = torch.arange(3.0)
PLAIN: dict[str, list[Any]] = {
    "tensors": [(THREE + n, torch.tensor(n)) for n in range(4)],
    "lists among tuples": [(THREE, torch.tensor(0)), [THREE + 1, torch.tensor(1)]],
    "named tuples": [Pair(THREE + n, n) for n in range(4)],
    "arrays": [(np.arange(3, dtype=np.int16) + n, n) for n in range(4)],
    "numbers": [(n, n + 0.5) for n in range(4)],
    "whole and broken numbers": [(THREE, 1), (THREE, 1.5)],
    "numpy's numbers": [(np.float64(n), np.int32(n), True) for n in range(4)],
    "gradients": [(THREE.clone().requires_grad_(), n) for n in range(4)],
}


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_records_are_collated_as_nested_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field by field, as most records are, and one by one, as nested ones are."""
    quick = batch_of(PLAIN[kind])
    assert quick.size == len(PLAIN[kind]) and not any(field.requires_grad for field in quick.inputs)
    monkeypatch.setattr(stream_reader, "_plain_fields", lambda records: None)
    slow = batch_of(PLAIN[kind])
    for mine, its in zip((*quick.inputs, quick.target), (*slow.inputs, slow.target), strict=True):
        assert mine.dtype == its.dtype and torch.equal(mine, its)


UNLIKE: dict[str, tuple[Any, str]] = {
    "another shape": ((torch.zeros(4), 1), r"field 0 is \(4,\) float32"),
    "another type": ((THREE.double(), 1), r"field 0 is \(3,\) float64"),
    "an array among tensors": ((THREE.numpy(), 1), "field 0 is"),
    "a text": ((THREE, "1"), "field 1 is a str"),
    "a field more": ((THREE, 1, 2), "is nested as"),
    "nested": (((THREE, THREE), 1), "is nested as"),
    "no tuple": (THREE, "is a Tensor; a record is a tuple"),
    "a single field": ((THREE,), "is a tuple; a record is a tuple"),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_record_unlike_the_first_of_its_batch_is_named(kind: str) -> None:
    record, words = UNLIKE[kind]
    with pytest.raises(BadBatch, match=words) as caught:
        batch_of([(THREE, 0)], more=[[(THREE, 0), (THREE, 1), record, (THREE, 3)]])
    assert caught.value.record == 2


def test_a_sparse_tensor_is_named() -> None:
    with pytest.raises(BadBatch, match="use dense ones") as caught:
        batch_of([(torch.zeros(2).to_sparse(), 1)])
    assert caught.value.record == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (torch.zeros(2), "a batch is a tuple"),
        ((torch.zeros(2), ["a", "b"]), "a str inside"),
        ((torch.zeros(2).to_sparse(), torch.zeros(2)), "dense"),
        ((torch.zeros([1] * 9), torch.zeros(1)), "tensor 0 has 9 dimensions; a streamed batch has at most 8"),
    ],
    ids=["one tensor", "texts", "sparse", "nine dimensions"],
)
def test_what_a_collate_function_may_not_answer(answer: Any, words: str) -> None:
    with pytest.raises(BadBatch, match=words):
        batch_of([(1, 1)], Collator(lambda records: answer))


@pytest.mark.parametrize(
    ("later", "words", "code"),
    [
        ([(torch.zeros(2).double(), 1)], "float64, in the first batch float32", "data/unlike-items"),
        ([({"x": torch.zeros(2)}, 1)], "nested as", "data/unlike-items"),
        ([(torch.zeros(2), 1)] * 100, "a slot has", "data/batch-too-large"),
        ([(torch.zeros([1] * 8), 1)], "tensor 0 has 9 dimensions", "data/bad-batch"),
    ],
    ids=["type", "nesting", "too large", "nine dimensions"],
)
def test_a_later_batch_that_is_unlike_the_first(later: list[Any], words: str, code: str) -> None:
    with pytest.raises(BadBatch, match=words) as caught:
        batch_of([(torch.zeros(2), 1)], more=[later])
    assert caught.value.code == code


def test_a_sequence_longer_than_the_longest_there_can_be() -> None:
    with pytest.raises(BadBatch, match=r"more than data\.padding\.longest 3"):
        batch_of([(torch.zeros(2), 1), (torch.zeros(4), 1)], Collator(padding=PaddingRule(longest=3)))
