"""Slots of shared memory: written in place, read in place, at the same addresses for ever."""

import os

import pytest
import torch

from hogwild.errors import DataError
from hogwild.feeds.ring import BatchForm, Leaf, Ring, RingFeed, RingSpec, SlotWord, TooLarge
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
