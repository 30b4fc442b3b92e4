"""One worker with delta against the plain loop, and the optimizer's state across changes of the exchange."""

import copy
import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn, optim

from tests.helpers.members import SGD, Member, flushing, one_of
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
