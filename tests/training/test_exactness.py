"""One worker is the plain loop: the same parameters and the same optimizer state as the loop that anybody would write
with stock torch.optim, bit for bit where the arithmetic is done in the same order, else within a stated bound.

`procs: 0` is the trainer of a worker in this process, so a job costs milliseconds; test_exactness_workers.py shows that
a worker process gives the same bits. Sizes are odd: vectorised kernels have a rest that they round in their own way."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from hogwild.training.lr_schedule import Factor, schedule_factor
from tests.helpers.plain_loop import Both, Curve, PlainLoop, Rule, Samples, by_factor, train_both, ulps
from tests.helpers.processes import IS_THOROUGH
from tests.shared_model import (
    one_thread,  # noqa: F401 (a fixture for every test here)
)

pytestmark = pytest.mark.slow

SAMPLES, FEATURES, HIDDEN, CLASSES = 203, 13, 17, 5
BATCHES = 26  # of 8 samples, the last of 3
LONG = PlainLoop(epochs=8)  # 208 updates
SHORT = PlainLoop(max_updates=20)
# Where the order of the arithmetic differs, an update is rounded differently in the last place: one unit for each of
# the 20. Measured on AVX-512: at most 3 with any rule and setting here.
ULPS = 20


def network() -> nn.Module:
    """tanh rather than ReLU: no unit dies, so no momentum decays to numbers that a worker may flush to zero."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Dropout(0.3), nn.Linear(HIDDEN, CLASSES))


def samples() -> Samples:
    random = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, FEATURES, generator=random), torch.randint(CLASSES, (SAMPLES,), generator=random)


UNFUSED: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": functools.partial(optim.SGD, lr=0.1),
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.9),
    "Nesterov": functools.partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": functools.partial(optim.Adam, lr=0.01, fused=False),
    "AdamW": functools.partial(optim.AdamW, lr=0.01, fused=False),
    "Adagrad": functools.partial(optim.Adagrad, lr=0.01, fused=False),
    "RMSprop": functools.partial(optim.RMSprop, lr=1e-3),
    "dampening": functools.partial(optim.SGD, lr=0.05, momentum=0.9, dampening=0.2),
    "maximised": functools.partial(optim.SGD, lr=1e-3, momentum=0.9, maximize=True),
    "AMSGrad, foreach": functools.partial(optim.Adam, amsgrad=True, foreach=True),
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Adamax": optim.Adamax,
    "Adadelta": optim.Adadelta,
    "RMSprop, centred": functools.partial(optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
}
# Left to choose, we take torch's fused kernel over the flat; stock takes its loop over parameters.
FUSED: dict[str, Callable[..., optim.Optimizer]] = {
    "Adam": functools.partial(optim.Adam, lr=0.01),
    "AdamW": functools.partial(optim.AdamW, lr=0.01),
    "Adagrad": functools.partial(optim.Adagrad, lr=0.01),
}
DECAY = 1e-3


def in_two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Weights with a decay of their own, biases with a rate of their own."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if name.endswith("weight")], "weight_decay": 5e-3},
        {"params": [p for name, p in named if name.endswith("bias")], "lr": 0.02},
    ]


@dataclass(frozen=True)
class Setting:
    """The use of a rule. `factor`: what a named schedule of ours multiplies the rates by, through torch's LambdaLR."""

    options: dict[str, Any] = field(default_factory=dict)
    groups: bool = False
    loop: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)

    def rule(self, make: Callable[..., optim.Optimizer]) -> Rule:
        return lambda model: make(in_two_groups(model) if self.groups else model.parameters(), **self.options)


SETTINGS = {
    "plain": Setting(),
    "groups": Setting(groups=True),
    "weight decay": Setting({"weight_decay": DECAY}),
    "a limit that clips nothing": Setting(loop={"grad_clip": 1e6}),
    "accumulation": Setting(loop={"accumulate": 4}),  # 26 batches: the last of an epoch accumulates 2
    "chunked": Setting(loop={"shuffle": "chunked"}),
    "a schedule": Setting(schedule={"name": "cosine", "final_factor": 0.1, "warmup_updates": 7}),
    "all of them": Setting(
        {"weight_decay": DECAY},
        groups=True,
        loop={"grad_clip": 1e6, "accumulate": 3},
        schedule={"name": "linear", "final_factor": 0.1},
    ),
}
CLIPPED = {
    "clipping": Setting(loop={"grad_clip": 0.05}),
    "clipping, groups, weight decay and accumulation": Setting(
        {"weight_decay": DECAY}, groups=True, loop={"grad_clip": 0.05, "accumulate": 3}
    ),
}


def in_both(
    make: Callable[..., optim.Optimizer], setting: Setting, loop: PlainLoop, run_dir: Path, **more: Any
) -> Both:
    numbers = {name: getattr(loop, name) for name in ("epochs", "max_updates")} | setting.loop
    if "accumulate" in setting.loop:
        numbers["epochs"] *= setting.loop["accumulate"]  # as many updates
    loop = PlainLoop(**numbers)
    ours = more | ({"lr_schedule": setting.schedule} if setting.schedule else {})
    curve = by_factor(factor_of(setting.schedule, loop)) if setting.schedule else None
    return train_both(network, setting.rule(make), samples(), loop, run_dir / "run", curve=curve, **ours)


@dataclass(frozen=True)
class Config:
    """A section `lr_schedule`, as `schedule_factor` takes it."""

    name: str
    options: dict[str, Any]
    warmup_updates: int = 0


def factor_of(schedule: dict[str, Any], loop: PlainLoop) -> Factor:
    own = {key: value for key, value in schedule.items() if key not in ("name", "warmup_updates")}
    config = Config(schedule["name"], own, schedule.get("warmup_updates", 0))
    factor = schedule_factor(config, loop.planned_updates(SAMPLES))
    assert factor is not None
    return factor


# Every rule plainly and with all settings at once, and every setting with two rules; `make stress`: every pair.
PAIRS = [
    (rule, setting)
    for rule in UNFUSED
    for setting in SETTINGS
    if IS_THOROUGH or setting in ("plain", "all of them") or rule in ("momentum", "AdamW")
]


@pytest.mark.parametrize(("rule", "setting"), PAIRS)
def test_hundreds_of_updates_give_the_bits_of_the_plain_loop(rule: str, setting: str, tmp_path: Path) -> None:
    both = in_both(UNFUSED[rule], SETTINGS[setting], LONG, tmp_path)
    assert both.result.updates == both.plain_updates > 200
    assert both.differing() == []


@pytest.mark.parametrize("setting", ["plain", "all of them"])
@pytest.mark.parametrize(
    "rule", [rule for rule in UNFUSED if rule != "dampening"]
)  # which scales the first gradient (test_autograd_update)
def test_state_that_only_one_worker_shares_gives_the_bits_of_the_plain_loop(
    rule: str, setting: str, tmp_path: Path
) -> None:
    """No bound that protects shared state against lost writes ever binds where nothing is lost."""
    both = in_both(UNFUSED[rule], SETTINGS[setting], LONG, tmp_path, optimizer_state="shared")
    assert both.differing() == []


FUSED_PAIRS = [
    (rule, setting)
    for rule in FUSED
    for setting in SETTINGS | CLIPPED
    if IS_THOROUGH or setting in ("plain", "all of them") or rule == "AdamW"
]


@pytest.mark.parametrize(("rule", "setting"), FUSED_PAIRS)
def test_twenty_updates_of_a_fused_kernel_stay_within_20_ulps(rule: str, setting: str, tmp_path: Path) -> None:
    """A fused kernel multiplies and adds in one rounding where the loop over parameters rounds twice."""
    both = in_both(FUSED[rule], (SETTINGS | CLIPPED)[setting], SHORT, tmp_path)
    assert both.result.updates == both.plain_updates == 20
    assert both.ulps() <= ULPS


@pytest.mark.parametrize("setting", CLIPPED)
@pytest.mark.parametrize("rule", UNFUSED)
def test_twenty_updates_that_are_clipped_stay_within_20_ulps(rule: str, setting: str, tmp_path: Path) -> None:
    """One dot product over the flat instead of a norm of norms: the factor differs in the last places."""
    both = in_both(UNFUSED[rule], CLIPPED[setting], SHORT, tmp_path)
    assert both.result.updates == both.plain_updates == 20
    assert both.ulps() <= ULPS
    unlimited = replace(CLIPPED[setting], loop=CLIPPED[setting].loop | {"grad_clip": None})
    assert ulps(both.ours, in_both(UNFUSED[rule], unlimited, SHORT, tmp_path / "unlimited").ours) > ULPS


# ---- schedules -------------------------------------------------------------------------------------------------------


def slower_and_slower(update: int) -> float:
    """A schedule of the user's own."""
    return 1.0 / (1.0 + 0.01 * update)


SCHEDULES: dict[str, dict[str, Any]] = {
    "constant with a warm-up": {"name": "constant", "warmup_updates": 9},
    "step": {"name": "step", "every_updates": 50, "gamma": 0.5},
    "linear": {"name": "linear", "final_factor": 0.01},
    "cosine": {"name": "cosine", "final_factor": 0.01, "warmup_updates": 9},
    "one cycle": {"name": "one_cycle", "peak_fraction": 0.3},
    "one of the user's own": {"name": f"{__name__}.slower_and_slower", "init_args": {}},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rule", ["SGD", "momentum", "AdamW"])
def test_a_schedule_gives_every_update_its_own_rate_to_the_bit(rule: str, schedule: str, tmp_path: Path) -> None:
    setting = Setting(groups=True, schedule=SCHEDULES[schedule])
    both = in_both(UNFUSED[rule], setting, LONG, tmp_path)
    assert both.result.updates == 208
    assert both.differing() == []
    assert [group["lr"] for group in both.our_rule.param_groups] == [
        group["initial_lr"] for group in both.plain_rule.param_groups
    ]


STOCK: dict[str, tuple[dict[str, Any], Curve]] = {
    "StepLR": (
        {"name": "step", "every_updates": 6, "gamma": 0.5},
        lambda rule: lr_scheduler.StepLR(rule, step_size=6, gamma=0.5),
    ),
    "LinearLR": (
        {"name": "linear", "final_factor": 0.1},
        lambda rule: lr_scheduler.LinearLR(rule, start_factor=1.0, end_factor=0.1, total_iters=20),
    ),
    "CosineAnnealingLR": ({"name": "cosine"}, lambda rule: lr_scheduler.CosineAnnealingLR(rule, T_max=20)),
    "OneCycleLR": (
        {"name": "one_cycle", "peak_fraction": 0.3},
        lambda rule: lr_scheduler.OneCycleLR(
            rule, max_lr=[g["lr"] for g in rule.param_groups], total_steps=20, pct_start=0.3, cycle_momentum=False
        ),
    ),
}


@pytest.mark.parametrize("scheduler", STOCK)
def test_twenty_updates_under_a_stock_scheduler_stay_within_20_ulps(scheduler: str, tmp_path: Path) -> None:
    """torch computes each rate from the one before it, we from the number of the update: another last place."""
    schedule, curve = STOCK[scheduler]
    rule = Setting(groups=True).rule(UNFUSED["momentum"])
    both = train_both(network, rule, samples(), SHORT, tmp_path / "run", curve=curve, lr_schedule=schedule)
    assert both.result.updates == both.plain_updates == 20
    assert both.ulps() <= ULPS
