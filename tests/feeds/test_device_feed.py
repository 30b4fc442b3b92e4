"""Batches on a device, through one that is simulated: its copies are done when somebody waits for them, so whoever
forgets to reads poison, or old numbers."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hogwild.devices.accelerator import PAGE, Pins
from hogwild.feeds.batch import Batch, Feed, TransformedFeed
from hogwild.feeds.device_feed import KEPT_VIEWS, SLOTS, DeviceFeed, DeviceSlots
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.scheduling.batch_plan import BatchPlan
from tests.feeds.test_allocations import allocated
from tests.helpers.simulated_gpu import Simulated, SimulatedError
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

SAMPLES, BATCH = 52, 8
PLAN = BatchPlan(SAMPLES, BATCH)


@pytest.fixture
def device() -> Simulated:
    return Simulated(0)


@pytest.fixture(scope="module")
def data() -> ResidentData:
    random = torch.Generator().manual_seed(0)
    images, labels = torch.rand(SAMPLES, 3, 5, 4, generator=random), torch.randint(4, (SAMPLES,), generator=random)
    return ResidentData.from_tensors("data", [images, labels], channels_last=True)


def host_feed(data: ResidentData) -> ResidentFeed:
    return ResidentFeed(data, PLAN, seed=1, order="full")


def noisy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + torch.rand(()), y


def slotted(data: ResidentData, pins: Pins) -> list[Feed]:
    plain = host_feed(data)
    return [plain.into(pins.empty(plain.slot_nbytes)) for _ in range(SLOTS)]


KINDS: dict[str, Callable[[ResidentData, Pins], Sequence[Feed]]] = {
    "a slot each": slotted,
    "one pinned slot": lambda data, pins: slotted(data, pins)[:1],
    "pageable": lambda data, pins: [host_feed(data)],
    "transformed": lambda data, pins: [TransformedFeed(feed, noisy, 3) for feed in slotted(data, pins)],
}


def expected(data: ResidentData, kind: str, epoch: int, batch: int) -> Batch:
    plain: Feed = host_feed(data)
    return (TransformedFeed(plain, noisy, 3) if kind == "transformed" else plain).gather(epoch, batch)


def same(one: Batch, other: Batch) -> bool:
    pairs = zip((*one.inputs, one.target), (*other.inputs, other.target), strict=True)
    return (one.first_position, one.size) == (other.first_position, other.size) and all(
        torch.equal(mine, theirs) and mine.stride() == theirs.stride() for mine, theirs in pairs
    )


@pytest.mark.parametrize("looks_ahead", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_on_the_device_is_that_of_the_host(
    data: ResidentData, device: Simulated, kind: str, looks_ahead: bool
) -> None:
    pins = Pins(device)
    feed = DeviceFeed(KINDS[kind](data, pins), device, pins, draws=kind == "transformed")
    for epoch in range(2):
        for batch in range(PLAN.batches):
            found = feed.gather(epoch, batch)
            if looks_ahead and batch + 1 < PLAN.batches:
                feed.prefetch(epoch, batch + 1)
            assert same(found, expected(data, kind, epoch, batch)), (epoch, batch)
    assert device.pageable == 0
    device.drain()
    pins.close()
    assert not device.registered and device.calls["register"] == device.calls["unregister"] > 0


def test_what_was_looked_ahead_for_nothing_is_forgotten(data: ResidentData, device: Simulated) -> None:
    pins = Pins(device)
    feed = DeviceFeed(slotted(data, pins), device, pins)
    feed.gather(0, 0)
    feed.prefetch(0, 1)
    feed.prefetch(0, 1)
    assert device.calls["upload"] == 2
    assert same(feed.gather(1, 4), expected(data, "a slot each", 1, 4))
    assert same(feed.gather(0, 1), expected(data, "a slot each", 0, 1))


def test_a_batch_is_one_copy_and_waits_for_what_used_its_slot(data: ResidentData, device: Simulated) -> None:
    pins = Pins(device)
    feed = DeviceFeed(slotted(data, pins), device, pins)
    for batch in range(3):
        feed.gather(0, batch)
        feed.prefetch(0, batch + 1)
    device.log = []
    feed.gather(0, 3)
    feed.prefetch(0, 4)
    took = ["record", "wait"]  # the batch before has been launched; this one waits for its copy
    filled = ["synchronize", "wait", "upload", "record"]  # the host memory is free; the slot's last use; the copy; it
    assert device.log == took + filled


def test_after_the_first_epoch_nothing_is_allocated_and_everything_stays_where_it_is(
    data: ResidentData, device: Simulated
) -> None:
    pins = Pins(device)
    feed = DeviceFeed(slotted(data, pins), device, pins)

    def epoch(number: int) -> None:
        for batch in range(PLAN.batches):
            feed.gather(number, batch)
            feed.prefetch(number, (batch + 1) % PLAN.batches)

    epoch(0)
    places, taken = feed.addresses(), device.allocations()
    assert allocated(lambda: epoch(0)) == 0
    assert (feed.addresses(), device.allocations(), device.calls["register"]) == (places, taken, SLOTS)


def test_who_does_not_wait_reads_poison(device: Simulated) -> None:
    pins = Pins(device)
    slots = DeviceSlots(device, pins)
    x, y = slots.send(slots.slots[0], (torch.ones(4, 2), torch.ones(4, dtype=torch.int64)))
    assert x.isnan().all() and (y == -1).all()
    slots.wait_for(slots.slots[0])
    assert (x == 1).all() and (y == 1).all()


def test_host_memory_that_is_written_before_its_copy_is_done_arrives_changed(device: Simulated) -> None:
    pins = Pins(device)
    slots = DeviceSlots(device, pins)
    host = pins.empty(64).view(torch.float32).fill_(1.0)
    (early,) = slots.send(slots.slots[0], (host,))
    (late,) = slots.send(slots.slots[1], (host,))
    slots.sent(slots.slots[0])
    host.fill_(2.0)
    slots.wait_for(slots.slots[1])
    assert (early == 1).all() and (late == 2).all()


def test_what_is_kept_of_batches_of_any_shape_has_an_end(device: Simulated) -> None:
    pins = Pins(device)
    slots = DeviceSlots(device, pins)
    slot = slots.slots[0]
    for length in [40, *range(1, 3 * KEPT_VIEWS)]:
        sent = torch.arange(length)
        (found,) = slots.send(slot, (sent,))
        slots.wait_for(slot)
        assert torch.equal(found, sent) and len(slot.views) <= KEPT_VIEWS
        slots.leave(slot)
    pins.close()


def test_slots_grow_with_their_batches_and_stop_growing(device: Simulated) -> None:
    """Sentences of any length: a slot is as large as the longest so far, and half as much again."""
    pins = Pins(device)
    slots, taken = DeviceSlots(device, pins), 0
    for k, length in enumerate((3, 40, 5, 41, 44, 7, 50, 8, 3, 40, 51, 43)):
        slot = slots.slots[k % 2]
        sent = torch.arange(2 * length).view(2, length)
        (found,) = slots.send(slot, (sent,))
        slots.wait_for(slot)
        assert torch.equal(found, sent)
        slots.leave(slot)
        taken = taken or (device.allocations() if length == 50 else 0)
    assert device.allocations() == taken
    pins.close()
    assert not device.registered


class Failing:
    """A feed that cannot read batch 2, the first time or always."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.asked = feed, 0

    def gather(self, epoch: int, batch: int) -> Batch:
        self.asked += batch == 2
        if batch == 2:
            raise ValueError("sample 16 cannot be read")
        return self.feed.gather(epoch, batch)


def test_an_error_of_the_next_batch_is_that_batchs_own(data: ResidentData, device: Simulated) -> None:
    failing = Failing(host_feed(data))
    feed = DeviceFeed([failing], device, Pins(device))
    feed.gather(0, 1)
    feed.prefetch(0, 2)
    with pytest.raises(ValueError, match="sample 16"):
        feed.gather(0, 2)
    assert failing.asked == 2
    assert same(feed.gather(0, 3), expected(data, "pageable", 0, 3))


def test_looking_ahead_leaves_the_random_state_alone(data: ResidentData, device: Simulated) -> None:
    feed = DeviceFeed([TransformedFeed(host_feed(data), noisy, 3)], device, Pins(device), draws=True)
    feed.gather(0, 0)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    feed.prefetch(0, 1)
    assert torch.equal(before, torch.get_rng_state())


# ---- pins -----------------------------------------------------------------------------------------------------------


def test_private_memory_is_pinned_in_pages_of_its_own(device: Simulated) -> None:
    pins = Pins(device)
    pieces = [pins.empty(nbytes) for nbytes in (1, 100, PAGE, PAGE + 1)]
    assert all(start % PAGE == 0 and size % PAGE == 0 for start, size in device.registered.items())
    assert all(pins.covers(piece.data_ptr(), piece.numel()) for piece in pieces)
    assert not pins.covers(pieces[0].data_ptr(), PAGE + 1)
    pins.give_up(pieces[1])
    pins.close()
    assert not device.registered


def test_memory_is_pinned_once(data: ResidentData, device: Simulated) -> None:
    pins = Pins(device)
    pins.region(data.region)
    pins.region(data.region)
    assert device.calls["register"] == 1
    with pytest.raises(SimulatedError, match="registered already"):
        Pins(device).region(data.region)


# ---- the simulated device keeps what a driver promises ---------------------------------------------------------------


def test_a_stream_waits_for_another_one_where_it_is_told_to(device: Simulated) -> None:
    first, second, event, end = device.stream(), device.stream(), device.event(), device.event()
    host, between, last = torch.ones(4), torch.zeros(4), torch.zeros(4)
    device.upload(between, host, first)
    device.record(event, first)
    device.wait(event, second)
    device.download(last, between, second)
    device.record(end, second)
    assert between.isnan().all() and not last.any()
    device.synchronize(end)
    assert (last == 1).all()


def test_a_download_has_what_was_there_when_it_was_begun(device: Simulated) -> None:
    there, host, event = torch.ones(4), torch.zeros(4), device.event()
    device.download(host, there, None)
    device.record(event, None)
    there.fill_(2.0)  # a kernel that is launched afterwards
    assert not host.any()
    device.synchronize(event)
    assert (host == 1).all()


def test_a_broken_context_refuses_everything_but_to_be_left(device: Simulated) -> None:
    pins = Pins(device)
    pins.empty(8)
    device.break_context()
    for call in (device.event, device.stream, lambda: device.empty(8), lambda: pins.empty(8)):
        with pytest.raises(SimulatedError, match="broken"):
            call()
    device.drain()
    pins.close()
    assert not device.registered
