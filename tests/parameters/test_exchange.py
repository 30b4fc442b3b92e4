"""Where a worker's parameters lie, and what of them the others see: in this process, two workers in turn."""

import copy
import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn, optim

from hogwild.errors import ModelError
from tests.helpers.members import SGD, Member, flats, flushing, one_of, same, two_of
from tests.shared_model import (
    Batch,
    Branches,
    ConvNet,
    Rule,
    Words,
    images,
    largest_difference,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    train,
    train_plainly,
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


# ---- one worker is the plain loop -----------------------------------------------------------------------------------


SMOOTH: dict[str, Rule] = {
    "sgd": SGD,
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.9),
    "nesterov with decay": functools.partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 4, 16])
@pytest.mark.parametrize("rule", SMOOTH.values(), ids=SMOOTH.keys())
def test_one_worker_with_delta_is_the_plain_loop_but_for_the_last_places(rule: Rule, every: int) -> None:
    torch.manual_seed(0)
    ours = ConvNet()
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _, member = one_of(ours, rule)
    flushing(member, images(20), every)
    train_plainly(plain, rule(plain.parameters()), images(20))
    # A flush rounds local - snapshot (exact unless a value more than doubled, or changed its sign) and the sum once
    # each: less than two last places of a number below 1, which are 6e-8 each.
    flushes = -(-20 // every)
    assert largest_difference(ours, plain) <= flushes * 2 * 6e-8


def words(count: int) -> list[Batch]:
    torch.manual_seed(1)
    return [(torch.randint(30, (6, 5)), torch.randint(3, (6,))) for _ in range(count)]


GOING_ON: dict[str, tuple[Callable[[], nn.Module], Rule, Sequence[Batch], str]] = {
    "momentum over the flat": (ConvNet, SMOOTH["momentum"], images(18), "flat: SGD"),
    "adam over the flat": (ConvNet, functools.partial(optim.Adam, lr=1e-3), images(18), "flat: Adam"),
    "unused parameters": (Branches, SMOOTH["momentum"], vectors(18), "flat: SGD"),
    "a sparse embedding": (
        Words,
        functools.partial(optim.SGD, lr=0.1),
        words(18),
        "rows: SGD in compiled rows, 1 parameter; flat: SGD",
    ),
    "a rule that is not elementwise": (
        ConvNet,
        optim.Adafactor,
        images(18),
        "stock: Adafactor is not on the list of elementwise rules",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", GOING_ON)
def test_the_optimizers_state_goes_on_from_delta_to_direct_and_back(case: str) -> None:
    make, rule, batches, path = GOING_ON[case]
    torch.manual_seed(0)
    ours = make()
    plain = copy.deepcopy(ours)
    shared, member = one_of(ours, rule)
    if shared.uses_channels_last:
        plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert member.update.path == path
    flushing(member, batches[:6], 3)
    places = state_addresses(member)
    member.model.bind(delta=False)
    train(member.update, batches[6:12])
    member.model.bind(delta=True)
    flushing(member, batches[12:], 3)
    assert state_addresses(member) == places, "the state stays where a replacement finds it"
    train_plainly(plain, rule(plain.parameters()), batches)
    # Four flushes as above. A step of Adam or Adafactor is about lr = 1e-2 long, however small the gradient, and
    # the kernels over the flat round a step's last places (1e-9) differently.
    assert largest_difference(ours, plain) <= 5e-6


def state_addresses(member: Member) -> list[int]:
    own = member.model.optimizer.state
    return [
        value.data_ptr()
        for param in member.model.params
        for _, value in sorted(own.get(param, {}).items())
        if isinstance(value, Tensor)
    ]


def test_a_replacement_goes_on_from_what_was_flushed_with_its_predecessors_state() -> None:
    torch.manual_seed(0)
    ours = ConvNet()
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shared, member = one_of(ours, SMOOTH["momentum"])
    flushing(member, images(12)[:6], 3)
    flushing(Member.of(shared), images(12)[6:], 3)
    train_plainly(plain, SMOOTH["momentum"](plain.parameters()), images(12))
    assert largest_difference(ours, plain) <= 4 * 2 * 6e-8 and not same_bits(ours, ConvNet())
