"""State that all workers share: a lost write may cost a little progress, and never makes an update that no gradient
asked for. With one worker the bits are those of torch's own rule."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

from hogwild.optimizers import RowWiseAdagrad
from hogwild.parameters.flat_layout import plan_flats
from hogwild.parameters.optimizer_state import plan_state
from hogwild.parameters.shared_model import SharedModel
from hogwild.training.autograd_update import AutogradUpdate
from hogwild.training.flat_rule import GROWING, least_ratio
from tests.helpers.processes import IS_THOROUGH
from tests.shared_model import (
    attach,
    one_thread,  # noqa: F401 (a fixture for every test here)
)

pytestmark = pytest.mark.slow

SIZE, LR = 48, 1e-3  # three cache lines of parameters
BLOCK = slice(8, 24)  # what comes back is a piece of the array, across a line
NO_TARGET = torch.zeros(())


class Straight(nn.Module):
    """The loss's gradient is the input: what the rule sees is what the test says."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZE, dtype=dtype))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def output(value: Tensor, _: Tensor) -> Tensor:
    return value


def updates(rule: Callable[..., optim.Optimizer], state: str, workers: int = 1, **model: Any) -> list[AutogradUpdate]:
    """Workers over one flat, in this process. Their state exists before the first update, private or shared, so that
    all of them go over the flat."""
    straight = Straight(**model)
    optimizer = rule(straight.parameters())
    _, initial = plan_state(straight, plan_flats(straight, optimizer), optimizer, shared=True)
    optimizer.state[straight.weight] = {key: value.clone() for key, value in initial[0].items()}
    shared = SharedModel.build(straight, output, optimizer, procs=workers, state=state)
    return [AutogradUpdate(attach(shared, k), grad_clip=None) for k in range(workers)]


def feed(update: AutogradUpdate, gradient: Tensor) -> None:
    update.backward((gradient,), NO_TARGET)
    update.apply(None)


def weight(update: AutogradUpdate) -> Tensor:
    return next(update._model.parameters()).detach()


def arrays(update: AutogradUpdate) -> dict[str, Tensor]:
    """The state as it lies in shared memory."""
    return {piece.key: update._state.array(piece) for piece in update._state.layout.arrays}


# ---- the lost write -------------------------------------------------------------------------------------------------


class LostWrite(TorchDispatchMode):
    """Another worker, which read some accumulators at the start and was not scheduled for a while, writes what it had:
    a block of them comes back, just before operation `at` of whatever runs under this mode."""

    def __init__(self, at: int, old: dict[str, Tensor], now: dict[str, Tensor]) -> None:
        super().__init__()
        self.at, self.old, self.now, self.operations = at, old, now, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.operations == self.at:
            for key, value in self.old.items():
                self.now[key][BLOCK] = value[BLOCK]
        self.operations += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Case:
    """`bound`: the largest update, in units of the rate, that any sequence of gradients may make of this rule from
    states one worker can reach. `steps` is no array to be reverted in a block."""

    rule: Callable[..., optim.Optimizer]
    bound: float


def adam_bound(beta1: float = 0.9, beta2: float = 0.999) -> float:
    correction = max(math.sqrt(1 - beta2**t) / (1 - beta1**t) for t in range(1, 20_000))
    return correction / math.sqrt(least_ratio(beta1, beta2, 0.0))


def no_decay(rule: type[optim.Optimizer], **options: Any) -> Callable[..., optim.Optimizer]:
    return functools.partial(rule, lr=LR, **options)


CASES = {
    "adagrad": Case(no_decay(optim.Adagrad, fused=False), 1),
    "adagrad foreach": Case(no_decay(optim.Adagrad, foreach=True), 1),
    "rmsprop": Case(no_decay(optim.RMSprop), 10),
    "rmsprop foreach, maximize": Case(no_decay(optim.RMSprop, foreach=True, maximize=True), 10),
    "rmsprop momentum": Case(no_decay(optim.RMSprop, momentum=0.5), 20),
    "rmsprop centered": Case(no_decay(optim.RMSprop, centered=True), math.sqrt(2 / (0.99 * 0.01))),
    "adam": Case(no_decay(optim.Adam), adam_bound()),
    "adam unfused": Case(no_decay(optim.Adam, fused=False), adam_bound()),
    "adam, rate in a tensor": Case(functools.partial(optim.Adam, lr=torch.tensor(LR)), adam_bound()),
    "adamw": Case(no_decay(optim.AdamW, weight_decay=0.0), adam_bound()),
    "adam, short memory": Case(no_decay(optim.Adam, betas=(0.5, 0.9)), adam_bound(0.5, 0.9)),
}
QUIET, LOUD = 1e-3, 1.0
GRADIENTS = [QUIET] * 5 + [LOUD] * 3 + [QUIET] * 4
HIT = 7  # the update in which the write is lost: the last loud one
SEEN = 5  # updates the other worker had seen


def largest_update(case: Case, state: str, at: int, keys: tuple[str, ...]) -> tuple[float, int]:
    """In units of the rate, NaN as infinity, from the hit on; and how many operations the hit update has."""
    (update,) = updates(case.rule, state)
    old: dict[str, Tensor] = {}
    largest, operations = 0.0, 0
    for number, size in enumerate(GRADIENTS):
        if number == SEEN:
            old = {key: arrays(update)[key].clone() for key in keys}
        before = weight(update).clone()
        gradient = torch.full((SIZE,), size)
        if number == HIT:
            update.backward((gradient,), NO_TARGET)
            with LostWrite(at, old, arrays(update)) as lost:
                update.apply(None)
            operations = lost.operations
        else:
            feed(update, gradient)
        if number >= HIT:
            change = float((weight(update) - before).abs().max()) / LR
            largest = max(largest, math.inf if math.isnan(change) else change)
    return largest, operations


def worst(case: Case, state: str) -> float:
    """Over every moment of the update, and every choice of accumulators that come back."""
    (update,) = updates(case.rule, state)
    names = [key for key in arrays(update) if key != "step"]
    found = []
    for keys in itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(1, len(names) + 1)):
        _, operations = largest_update(case, state, -1, keys)
        found += [largest_update(case, state, at, keys)[0] for at in range(operations)]
    return max(found)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_lost_write_makes_no_update_larger_than_gradients_can(case):
    assert worst(case, "shared") <= case.bound * 1.001


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_same_lost_write_makes_torchs_own_rule_jump(case):
    """Torch's rule in place over the same flat, which private state still is: otherwise the test above shows
    nothing."""
    assert worst(case, "private") > 10 * case.bound


def test_a_lost_write_of_row_wise_adagrad_makes_no_update_larger_than_the_rate():
    """It divides by what it has computed from its one reading, as the compiled rows do."""
    assert worst(Case(no_decay(RowWiseAdagrad), 1), "shared") <= 1.001


@pytest.mark.parametrize(("steps", "square"), [(2000, 0.5), (10, 0.9999)], ids=["far below", "just below, early"])
def test_a_square_below_the_square_of_the_mean_gives_the_centered_rule_no_nan(steps, square):
    """With a gradient like the mean nothing else keeps the variance from 0, and on the bound rounding decides."""
    case = CASES["rmsprop centered"]
    (update,) = updates(case.rule, "shared")
    for key, value in {"step": steps, "grad_avg": 1.0, "square_avg": square}.items():
        arrays(update)[key].fill_(value)
    before = weight(update).clone()
    feed(update, torch.ones(SIZE))
    assert float((weight(update) - before).abs().max()) / LR <= case.bound


@pytest.mark.parametrize(("state", "is_bounded"), [("shared", True), ("private", False)])
def test_a_square_that_came_back_as_it_was_is_raised_to_what_the_mean_of_radam_allows(state, is_bounded):
    """Late: before its rate has grown, RAdam's steps are short whatever it divides by."""
    (update,) = updates(functools.partial(optim.RAdam, lr=LR), state)
    for key, value in {"step": 5000, "exp_avg": LOUD, "exp_avg_sq": QUIET**2}.items():
        arrays(update)[key].fill_(value)
    before = weight(update).clone()
    feed(update, torch.full((SIZE,), QUIET))
    assert (float((weight(update) - before).abs().max()) / LR <= adam_bound()) == is_bounded


def test_a_reverted_buffer_of_momentum_is_a_sum_of_gradients_that_were():
    case = Case(no_decay(optim.SGD, momentum=0.9, fused=False), LOUD / (1 - 0.9))
    assert worst(case, "shared") <= case.bound


@pytest.mark.parametrize(
    ("rule", "key"),
    [(optim.Adam, "step"), (optim.Adagrad, "sum"), (functools.partial(optim.Adam, amsgrad=True), "max_exp_avg_sq")],
)
def test_what_only_grows_never_falls_for_the_worker_that_wrote_it(rule, key):
    assert key in GROWING
    (update,) = updates(functools.partial(rule, lr=LR), "shared")
    for _ in range(5):
        feed(update, torch.full((SIZE,), LOUD))
    grown = arrays(update)[key].clone()
    arrays(update)[key].zero_()
    feed(update, torch.full((SIZE,), QUIET))
    assert (arrays(update)[key] >= grown).all()


def test_a_worker_that_counts_from_a_lost_increment_still_counts_from_one():
    """Bias correction divides by 1 - b^t."""
    first, second = updates(functools.partial(optim.Adam, lr=LR), "shared", workers=2)
    feed(first, torch.full((SIZE,), LOUD))
    arrays(first)["step"].zero_()
    before = weight(second).clone()
    feed(second, torch.full((SIZE,), QUIET))
    assert arrays(second)["step"].tolist() == [1.0]
    assert float((weight(second) - before).abs().max()) <= LR * adam_bound()


# ---- one worker -----------------------------------------------------------------------------------------------------

RULES = {
    "adagrad": optim.Adagrad,
    "adagrad with decay": functools.partial(optim.Adagrad, lr_decay=0.1, weight_decay=0.01, maximize=True),
    "rmsprop": functools.partial(optim.RMSprop, momentum=0.9, weight_decay=0.01),
    "rmsprop centered": functools.partial(optim.RMSprop, centered=True),
    "adam": optim.Adam,
    "adam unfused": functools.partial(optim.Adam, fused=False),
    "amsgrad foreach": functools.partial(optim.Adam, amsgrad=True, foreach=True, maximize=True),
    "adamw": functools.partial(optim.AdamW, weight_decay=0.1),
    "radam": functools.partial(optim.RAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "adam, long memory of g": functools.partial(optim.Adam, betas=(0.99, 0.985)),
    "adam, no memory": functools.partial(optim.Adam, betas=(0.0, 0.0)),
    "momentum": functools.partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
}


def worst_sequence(count: int, growth: float, start: float, ceiling: float = 1e18) -> list[Tensor]:
    """Gradients that grow by b2/b1 per update bring v / m^2 to its bound; the elements grow at rates around that."""
    rates = growth ** torch.linspace(0.0, 2.0, SIZE, dtype=torch.float64)
    return [(start * rates**t).clamp(max=ceiling) for t in range(count)]


def random_sequence(count: int, seed: int, start: float) -> list[Tensor]:
    """Walks over many orders of magnitude, with zeros and both signs."""
    random = torch.Generator().manual_seed(seed)
    size = torch.randn(count, SIZE, generator=random, dtype=torch.float64).cumsum(0).mul(0.3).exp() * start
    keep = torch.rand(count, SIZE, generator=random) < 0.9
    sign = torch.randint(-1, 2, (count, SIZE), generator=random)
    return list((size * keep * sign).clamp(-1e18, 1e18))


def differences(rule: Callable[..., optim.Optimizer], gradients: list[Tensor], dtype: torch.dtype) -> list[str]:
    """Return the differences, in any bit, between shared state and torch's own rule over the same flat, one worker
    each."""
    (ours,), (torchs,) = (updates(rule, state, dtype=dtype) for state in ("shared", "private"))
    for gradient in gradients:
        feed(ours, gradient.to(dtype))
        feed(torchs, gradient.to(dtype))
    pairs = {"weight": (weight(ours), weight(torchs))}
    pairs |= {key: (value, arrays(torchs)[key]) for key, value in arrays(ours).items()}
    return [key for key, (one, other) in pairs.items() if not torch.equal(one.nan_to_num(7), other.nan_to_num(7))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_one_worker_with_shared_state_gives_the_bits_of_torchs_rule(rule, dtype):
    count = 300 if IS_THOROUGH or dtype == torch.float32 else 100
    for gradients in (
        random_sequence(count, 1, 1e-2),
        worst_sequence(count, 0.999 / 0.9, 1e-9 if count == 300 else 1e9),  # up to the ceiling
        [torch.full((SIZE,), 0.1)] * count,  # a variance of nothing, for the centered rule
        [torch.full((SIZE,), 5e-22)] * 50,  # its square has no bits left in float32
    ):
        assert differences(rule, gradients, dtype) == []


@pytest.mark.parametrize("rule", [optim.Adam, optim.AdamW])
def test_one_worker_whose_betas_cycle_gives_the_bits_of_torchs_rule(rule):
    """As OneCycleLR and CyclicLR do: the bound of one beta does not hold for what smaller ones have left."""
    ours, torchs = (updates(functools.partial(rule, betas=(0.95, 0.999)), state)[0] for state in ("shared", "private"))
    gradients = worst_sequence(200, 0.999 / 0.85, 1e-9)
    for number, gradient in enumerate(gradients):
        for update in (ours, torchs):
            update._optimizer.param_groups[0]["betas"] = (0.95 if number % 100 > 90 else 0.85, 0.999)
            feed(update, gradient)
        assert torch.equal(weight(ours), weight(torchs)), number


@settings(max_examples=40, deadline=None)
@given(
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.01, 0.9999),
    seed=st.integers(0, 2**31),
    start=st.floats(-25, 5).map(lambda power: 10.0**power),
    is_worst=st.booleans(),
)
@example(beta1=0.9, beta2=0.999, seed=0, start=1e-20, is_worst=True)
@example(beta1=0.9, beta2=0.82, seed=0, start=1e-6, is_worst=True)  # r is nearly 1
@example(beta1=0.0, beta2=0.5, seed=0, start=1e-10, is_worst=True)
def test_rounding_never_makes_a_bound_bind(beta1, beta2, seed, start, is_worst):
    if is_worst:
        growth = min(max(beta2 / max(beta1, 1e-3), 1.001), 1e3)
        gradients = worst_sequence(150, growth, start)
    else:
        gradients = random_sequence(150, seed, start)
    assert differences(functools.partial(optim.Adam, betas=(beta1, beta2)), gradients, torch.float32) == []


@settings(max_examples=100, deadline=None)
@given(
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.01, 0.9999),
    gradients=st.lists(st.floats(-100, 100), min_size=1, max_size=60),
)
def test_the_ratio_is_a_lower_bound_after_every_number_of_steps(beta1, beta2, gradients):
    m = v = 0.0
    for steps, gradient in enumerate(gradients, 1):
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        for bound in (least_ratio(beta1, beta2, 0.0, steps), least_ratio(beta1, beta2, 0.0)):
            assert v >= bound * m * m * (1 - 1e-9) - 1e-12


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.5, 0.9), (0.99, 0.99)])
@pytest.mark.parametrize("steps", [1, 7, 4000])
def test_the_ratio_is_reached_by_the_worst_gradients(beta1, beta2, steps):
    """A larger bound would bind with one worker."""
    m = v = 0.0
    for step in range(steps):
        gradient = (beta2 / beta1) ** (step - steps)
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
    assert v / m**2 == pytest.approx(least_ratio(beta1, beta2, 0.0, steps), rel=1e-6)


def test_the_ratio_is_the_published_one_for_many_steps():
    expected = (1 - 0.999) * (1 - 0.9**2 / 0.999) / (1 - 0.9) ** 2
    assert least_ratio(0.9, 0.999, 0.0) == pytest.approx(expected)
    assert least_ratio(0.9, 0.999, 2.0**-23) == pytest.approx(expected, rel=2e-5)
    assert least_ratio(0.9, 0.999, 2.0**-23) < expected
    assert least_ratio(0.99, 0.9, 0.0) == 0.0  # any ratio is reached by a long sequence


# ---- in words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "state", "path"),
    [
        (optim.Adam, "private", "flat: Adam"),
        (optim.Adam, "shared", "flat: Adam, shared state hardened"),
        (optim.RMSprop, "shared", "flat: RMSprop, shared state hardened"),
        (functools.partial(optim.SGD, lr=LR, momentum=0.9), "shared", "flat: SGD"),
        (
            RowWiseAdagrad,
            "shared",
            "stock: RowWiseAdagrad is not on the list of elementwise rules, shared state hardened",
        ),
        (optim.NAdam, "shared", "flat: NAdam, shared state as torch has it, not hardened"),
        (
            optim.Rprop,
            "shared",
            "stock: Rprop is not on the list of elementwise rules, shared state as torch has it, not hardened",
        ),
    ],
)
def test_the_path_says_what_a_lost_write_can_do(rule, state, path):
    (update,) = updates(rule, state)
    assert update.path == path
