"""Schedules against torch's own, update by update, and the rules that torch does not have."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from hogwild.errors import ClassPathError, UsageError, UserCodeError
from hogwild.training.lr_schedule import Factor, is_of_torch, schedule_factor

PLANNED = 50
LR = 0.4


@dataclass(frozen=True)
class Config:
    """The part of a schedule that hogwild/config/load.py offers."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    warmup_updates: int = 0


def factors(config: Config, planned: int = PLANNED) -> list[float]:
    factor = schedule_factor(config, planned)
    assert factor is not None
    return [factor(update) for update in range(planned)]


def torch_factors(make: Callable[[torch.optim.Optimizer], Any], count: int = PLANNED) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = make(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"] / LR)
        optimizer.step()
        scheduler.step()
    return rates


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=LR, total_steps=PLANNED + 1, pct_start=0.4, cycle_momentum=False)


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (Config("step", {"every_updates": 7, "gamma": 0.5}), lambda o: lr_scheduler.StepLR(o, 7, 0.5)),
        (Config("linear", {"final_factor": 0.1}), lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, PLANNED)),
        (Config("linear"), lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, PLANNED)),
        (
            Config("cosine", {"final_factor": 0.05}),
            lambda o: lr_scheduler.CosineAnnealingLR(o, PLANNED, eta_min=0.05 * LR),
        ),
    ],
)
def test_a_schedule_is_torchs_own_as_a_function_of_the_update(config: Config, make: Callable[..., Any]) -> None:
    assert factors(config) == pytest.approx(torch_factors(make), rel=1e-9, abs=1e-12)


def test_one_cycle_is_torchs_own() -> None:
    # torch's scheduler steps once more than it is asked for a rate, so it is made for one update more.
    ours = factors(Config("one_cycle", {"peak_fraction": 0.4}), PLANNED + 1)
    assert ours[:PLANNED] == pytest.approx(torch_factors(one_cycle), rel=1e-9, abs=1e-12)


def test_constant_without_warmup_costs_nothing() -> None:
    assert schedule_factor(Config("constant"), PLANNED) is None


def test_warmup_is_a_straight_line_that_ends_at_the_curves_beginning() -> None:
    assert factors(Config("constant", warmup_updates=4), 8) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["linear", "cosine", "step"])
def test_after_the_warmup_the_curve_is_the_one_of_the_updates_left(name: str) -> None:
    options = {"every_updates": 5} if name == "step" else {"final_factor": 0.1}
    with_warmup = factors(Config(name, options, warmup_updates=10))
    assert with_warmup[10:] == factors(Config(name, options), PLANNED - 10)
    assert with_warmup[:10] == [(update + 1) / 10 for update in range(10)]


def test_a_warmup_longer_than_the_job_is_a_ramp_that_never_arrives() -> None:
    assert factors(Config("cosine", warmup_updates=100), 50) == [(update + 1) / 100 for update in range(50)]


@pytest.mark.parametrize("name", ["linear", "cosine", "one_cycle"])
@given(planned=st.integers(1, 400), warmup=st.integers(0, 500), update=st.integers(0, 2000))
def test_a_factor_is_always_between_zero_and_one(name: str, planned: int, warmup: int, update: int) -> None:
    factor = schedule_factor(Config(name, warmup_updates=warmup), planned)
    assert factor is not None and 0 <= factor(update) <= 1 + 1e-12


@pytest.mark.parametrize(("name", "end"), [("linear", 0.2), ("cosine", 0.2)])
def test_beyond_the_planned_updates_the_factor_stays(name: str, end: float) -> None:
    factor = schedule_factor(Config(name, {"final_factor": 0.2}), PLANNED)
    assert factor is not None
    assert [factor(PLANNED), factor(PLANNED + 1), factor(10 * PLANNED)] == pytest.approx([end] * 3)


def every_third(update: int) -> float:
    return 1.0 if update % 3 == 0 else 0.5


class Power:
    """A user's schedule class, built from init_args."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def __call__(self, update: int) -> float:
        return float((update + 1) ** -self.exponent)


def scaled(update: int, scale: float) -> float:
    return scale * update


def nowhere_to_go(update: int) -> float:
    return float("nan")


def own(name: str, warmup: int = 0, **init_args: Any) -> Factor:
    factor = schedule_factor(Config(f"{__name__}.{name}", {"init_args": init_args}, warmup), PLANNED)
    assert factor is not None
    return factor


def test_a_class_path_may_name_a_function_or_a_class() -> None:
    assert [own("every_third")(u) for u in range(4)] == [1.0, 0.5, 0.5, 1.0]
    assert own("Power", exponent=0.5)(3) == 0.5
    assert own("scaled", scale=0.5)(6) == 3.0


@dataclass(frozen=True)
class AsClassPath(Config):
    """A section with `class_path`, which names a scheduler of torch or a function."""

    @property
    def class_path(self) -> str:
        return self.name


class Halving(lr_scheduler.StepLR):
    """A user's own scheduler of torch."""


def test_a_class_path_names_a_scheduler_of_torch_or_a_function_of_the_number_of_updates() -> None:
    config = AsClassPath(f"{__name__}.every_third", {"every": "auto"})
    factor = schedule_factor(config, PLANNED)
    assert factor is not None and [factor(u) for u in range(4)] == [1.0, 0.5, 0.5, 1.0]
    assert not is_of_torch(config) and is_of_torch(AsClassPath(f"{__name__}.Halving"))
    with pytest.raises(UsageError, match=r"lr_schedule\.every: must be auto for a function"):
        schedule_factor(AsClassPath(config.name, {"every": "epoch"}), PLANNED)


def test_an_own_schedule_sees_the_global_update_count_during_warmup_too() -> None:
    factor = own("every_third", warmup=4)
    assert [factor(u) for u in range(6)] == [0.25, 0.25, 0.375, 1.0, 0.5, 0.5]


def test_an_own_schedule_that_answers_nan_is_an_error_naming_the_update() -> None:
    with pytest.raises(UserCodeError, match=r"nowhere_to_go: update 5: must be a finite factor >= 0, got nan"):
        own("nowhere_to_go")(5)


def test_a_class_path_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ClassPathError):
        own("no_such_schedule")


def test_options_that_do_not_fit_are_named() -> None:
    with pytest.raises(UsageError, match=r"lr_schedule: step: .*every_updates"):
        schedule_factor(Config("step", {"gamma": 0.1}), PLANNED)


@pytest.mark.parametrize(
    "config",
    [
        Config("constant", warmup_updates=3),
        Config("step", {"every_updates": 5}, 2),
        Config("linear"),
        Config("cosine", warmup_updates=7),
        Config("one_cycle"),
    ],
)
def test_a_schedule_travels_to_workers_unchanged(config: Config) -> None:
    factor = schedule_factor(config, PLANNED)
    assert factor is not None
    copy = cloudpickle.loads(cloudpickle.dumps(factor))
    assert [copy(update) for update in range(PLANNED)] == [factor(update) for update in range(PLANNED)]
