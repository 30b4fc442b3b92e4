"""Where a worker's parameters lie, and what of them the others see: in this process, two workers in turn."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hogwild.errors import ModelError
from tests.helpers.members import Member, flats, one_of, same, two_of
from tests.shared_model import (
    Branches,
    ConvNet,
    Words,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    train,
    vectors,
)


def addresses(member: Member) -> list[int]:
    return [param.data_ptr() for param in member.model.params]


# ---- binding --------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A language model in small: the last layer's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(7, 5), nn.Linear(5, 7)
        self.out.weight = self.words.weight

    def forward(self, numbers: Tensor) -> Tensor:
        return self.out(self.words(numbers))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x.unsqueeze(1))[0][:, 0])


class HalfFrozen(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 4), nn.Linear(4, 2))
        self[0].weight.requires_grad_(False)


@pytest.mark.parametrize("make", [ConvNet, Tied, Recurrent, HalfFrozen, Words, Branches])
def test_binding_moves_the_memory_and_keeps_everything_else(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    shared, member = one_of(make())
    module, params = member.model.model, member.model.params
    in_flats = [slot.view(shared.regions).data_ptr() for slot in shared.layout.flats.params]
    before, strides = flats(shared), [param.stride() for param in params]
    for delta in (True, False, True, False):
        member.model.bind(delta=delta)
        assert all(one is other for one, other in zip(params, module.parameters(), strict=True))
        assert [param.stride() for param in params] == strides and same(member.values(), before)
        for slot, address, here in zip(shared.layout.flats.params, in_flats, addresses(member), strict=True):
            assert (here == address) == (not delta or slot.group is None), slot.name
        member.model.check_bound()


def test_a_convolution_stays_channels_last_in_the_copy() -> None:
    _, member = one_of(ConvNet())
    assert member.model.exchange.is_delta
    assert all(
        param.is_contiguous(memory_format=torch.channels_last) for param in member.model.params if param.dim() == 4
    )
    assert not member.model.params[2].is_contiguous()


def test_tied_weights_move_together() -> None:
    torch.manual_seed(0)
    shared, member = one_of(Tied())
    module = member.model.model
    train(member.update, [(torch.tensor([1, 2]), torch.tensor([2, 3]))])
    assert module.out.weight is module.words.weight
    member.model.exchange.flush()
    assert torch.equal(flats(shared)[0], module.out.weight)


def test_a_recurrent_net_computes_with_the_copy() -> None:
    torch.manual_seed(0)
    _, member = one_of(Recurrent())
    module = member.model.model
    x, _ = vectors(1)[0]
    before = module(x).detach()
    assert all(one is other for one, other in zip(module.cell._flat_weights, module.cell.parameters(), strict=True))
    with torch.no_grad():
        module.cell.weight_ih_l0.mul_(2.0)
    assert not torch.equal(module(x), before)
    member.model.exchange.refresh()
    assert torch.equal(module(x), before)


def test_what_is_frozen_is_read_where_it_lies() -> None:
    shared, member = one_of(HalfFrozen())
    slot = shared.layout.flats.params[0]
    assert slot.name == "0.weight"
    slot.view(shared.regions).fill_(3.0)
    assert (member.model.model[0].weight == 3.0).all()


def test_a_replaced_parameter_is_found_before_and_after_binding() -> None:
    _, member = one_of(ConvNet())
    member.model.check_bound()
    module = member.model.model
    module.out.bias = nn.Parameter(torch.zeros(4))
    for look in (member.model.check_bound, functools.partial(member.model.bind, delta=False)):
        with pytest.raises(ModelError, match=r"parameter out\.bias was replaced"):
            look()


def test_a_parameter_taken_out_of_the_copy_is_found() -> None:
    _, member = one_of(ConvNet())
    member.model.model.out.bias.data = torch.zeros(4)
    with pytest.raises(ModelError, match=r"memory of parameter out\.bias was replaced"):
        member.model.check_bound()


# ---- what the others see ------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_a_flush_and_all_of_it_after() -> None:
    shared, one, other = two_of(ConvNet)
    before = flats(shared)
    train(one.update, images(5))
    assert same(flats(shared), before) and same(other.values(), before)
    assert not any(torch.equal(new, old) for new, old in zip(one.values(), before, strict=True))
    one.model.exchange.flush()
    assert same(flats(shared), one.values())
    assert same(other.values(), before), "it looks at its own copy until it flushes or refreshes"
    other.model.exchange.refresh()
    assert same(other.values(), flats(shared))


def test_what_two_workers_learnt_at_the_same_time_both_survives() -> None:
    shared, one, other = two_of(ConvNet)
    before = flats(shared)
    train(one.update, images(5, seed=1))
    train(other.update, images(3, seed=2))
    first, second = one.values(), other.values()
    one.model.exchange.flush()
    other.model.exchange.flush()
    sums = [old + (mine - old) + (its - old) for old, mine, its in zip(before, first, second, strict=True)]
    assert same(flats(shared), sums) and same(other.values(), sums)


def test_a_flush_adds_what_changed_since_the_last_one_and_no_more() -> None:
    shared, one, other = two_of(ConvNet)
    train(one.update, images(2))
    one.model.exchange.flush()
    after = flats(shared)
    for member in (one, other, one):
        member.model.exchange.flush()
    assert same(flats(shared), after)


def test_a_refresh_forgets_what_was_not_flushed() -> None:
    shared, one, _ = two_of(ConvNet)
    before = flats(shared)
    train(one.update, images(3))
    one.model.exchange.refresh()
    one.model.exchange.flush()
    assert same(one.values(), before) and same(flats(shared), before)


def test_binding_to_the_copy_begins_with_what_the_flats_are() -> None:
    shared, one, other = two_of(ConvNet)
    other.model.bind(delta=False)
    train(other.update, images(3))
    one.model.bind(delta=False)
    assert same(one.values(), flats(shared))
    train(other.update, images(3))
    one.model.bind(delta=True)
    assert same(one.values(), flats(shared))


def test_autograd_notices_that_a_flush_wrote_the_parameters() -> None:
    _, one, _ = two_of(ConvNet)
    x, y = images(1)[0]
    loss = nn.functional.cross_entropy(one.model.model(x), y)
    one.model.exchange.flush()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_flush_allocates_nothing() -> None:
    _, one, _ = two_of(ConvNet)
    places = addresses(one)
    one.model.exchange.flush()
    with torch.profiler.profile(profile_memory=True) as profile:
        one.model.exchange.flush()
    events = profile.key_averages()
    assert any(event.key == "aten::copy_" for event in events)
    assert [event.key for event in events if event.self_cpu_memory_usage > 0] == []
    train(one.update, images(3))
    assert addresses(one) == places


class TwoWidths(nn.Module):
    """A hidden layer in half precision between two in full."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 2)
        self.narrow = nn.Linear(6, 6, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.narrow(torch.relu(self.first(x)).to(torch.bfloat16))
        return self.last(torch.tanh(hidden.float()))


def test_parameters_of_two_widths_are_flushed_together() -> None:
    shared, one, other = two_of(TwoWidths)
    before = flats(shared)
    assert {value.dtype for value in before} == {torch.float32, torch.bfloat16}
    train(one.update, vectors(6))
    assert same(flats(shared), before)
    learnt = one.values()
    one.model.exchange.flush()
    other.model.exchange.refresh()
    for old, mine, now in zip(before, learnt, flats(shared), strict=True):
        last_place = torch.finfo(now.dtype).eps * float(mine.abs().max())
        assert not torch.equal(old, now) and float((now - mine).abs().max()) <= 1.5 * last_place
    assert same(one.values(), flats(shared)) and same(other.values(), flats(shared))
