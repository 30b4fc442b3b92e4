"""Schedulers of torch in a job, and rates that a callback assigns: each against the plain loop, which steps the real
scheduler on the real optimizer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import TensorDataset

import hogwild
from hogwild.config.load import load_job
from hogwild.errors import ConfigError, UsageError, UserCodeError
from hogwild.training.torch_schedule import SteppedScheduler

EPOCHS, BATCH, SAMPLES = 5, 8, 64
UPDATES = EPOCHS * SAMPLES // BATCH
torch.manual_seed(0)
INPUTS = torch.randn(SAMPLES, 4)
TARGETS = INPUTS @ torch.randn(4, 1) + 0.1 * torch.randn(SAMPLES, 1)
DATA = TensorDataset(INPUTS, TARGETS)
QUIET: dict[str, Any] = {"log": {"progress": False}, "shuffle": "none", "batch_size": BATCH}
PATH = "torch.optim.lr_scheduler."


def parts(rule: type[optim.Optimizer] = optim.SGD, **options: Any) -> tuple[nn.Linear, optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    return model, rule([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.02}], lr=0.1, **options)


def plainly(
    make: Callable[[optim.Optimizer], Any], unit: str, rule: type[optim.Optimizer] = optim.SGD, **options: Any
) -> nn.Linear:
    model, optimizer = parts(rule, **options)
    scheduler = make(optimizer)
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            rows = slice(start, start + BATCH)
            nn.functional.mse_loss(model(INPUTS[rows]), TARGETS[rows]).backward()
            optimizer.step()
            if unit == "update":
                scheduler.step()
        if unit == "epoch":
            scheduler.step()
    return model


def same(left: nn.Linear, right: nn.Linear) -> bool:
    return torch.equal(left.weight, right.weight) and torch.equal(left.bias, right.bias)


@pytest.mark.parametrize(
    ("make", "unit"),
    [
        (lambda o: schedulers.StepLR(o, 2, 0.5), "epoch"),
        (lambda o: schedulers.MultiStepLR(o, [1, 3]), "epoch"),
        (lambda o: schedulers.ExponentialLR(o, 0.8), "epoch"),
        (lambda o: schedulers.LambdaLR(o, [lambda e: 0.9**e, lambda e: 0.5**e]), "epoch"),
        (lambda o: schedulers.MultiplicativeLR(o, lambda e: 0.9), "epoch"),
        (lambda o: schedulers.LinearLR(o), "epoch"),
        (lambda o: schedulers.ConstantLR(o, 0.3, 2), "epoch"),
        (lambda o: schedulers.PolynomialLR(o, 5), "epoch"),
        (lambda o: schedulers.CosineAnnealingLR(o, 5), "epoch"),
        (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2), "epoch"),
        (
            lambda o: schedulers.SequentialLR(o, [schedulers.LinearLR(o), schedulers.ExponentialLR(o, 0.9)], [2]),
            "epoch",
        ),
        (
            lambda o: schedulers.ChainedScheduler([schedulers.LinearLR(o), schedulers.ExponentialLR(o, 0.9)], o),
            "epoch",
        ),
        (lambda o: schedulers.OneCycleLR(o, [0.1, 0.03], total_steps=UPDATES), "update"),
        (lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=5), "update"),
    ],
)
@pytest.mark.parametrize(("rule", "options"), [(optim.SGD, {"momentum": 0.5}), (optim.Adam, {})])
def test_one_process_equals_the_plain_loop_with_the_callers_scheduler(
    make: Callable[[optim.Optimizer], Any], unit: str, rule: type[optim.Optimizer], options: Any, tmp_path: Path
) -> None:
    model, optimizer = parts(rule, **options)
    scheduler = make(optimizer)
    hogwild.train(
        model, DATA, nn.MSELoss(), optimizer, procs=0, epochs=EPOCHS, lr_schedule=scheduler, run_dir=tmp_path / "run",
        **QUIET,
    )  # fmt: skip
    other = plainly(make, unit, rule, **options)
    if rule is optim.SGD:
        assert same(model, other)
    else:  # torch's fused Adam rounds differently in the last place
        assert torch.allclose(model.weight, other.weight, atol=1e-6) and torch.allclose(
            model.bias, other.bias, atol=1e-6
        )


def test_a_class_path_with_every_update_counts_updates(tmp_path: Path) -> None:
    model, optimizer = parts()
    schedule = {"class_path": f"{PATH}ExponentialLR", "init_args": {"gamma": 0.95}, "every": "update"}
    hogwild.train(
        model, DATA, nn.MSELoss(), optimizer, procs=0, epochs=EPOCHS, lr_schedule=schedule, run_dir=tmp_path, **QUIET
    )
    assert same(model, plainly(lambda o: schedulers.ExponentialLR(o, 0.95), "update"))


def loss_of(model: nn.Linear) -> float:
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(INPUTS), TARGETS))


def plateau(optimizer: optim.Optimizer) -> schedulers.ReduceLROnPlateau:
    """Reduces after each evaluation but the first: none is better by 10."""
    return schedulers.ReduceLROnPlateau(
        optimizer, patience=0, factor=0.5, threshold=10, threshold_mode="abs", min_lr=[0, 0.01]
    )


def reduced(epochs: int) -> nn.Linear:
    model, optimizer = parts()
    scheduler = plateau(optimizer)
    for _ in range(epochs):
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            rows = slice(start, start + BATCH)
            nn.functional.mse_loss(model(INPUTS[rows]), TARGETS[rows]).backward()
            optimizer.step()
        scheduler.step(loss_of(model))
    return model


def test_a_plateau_of_the_monitored_metric_reduces_each_groups_rate_also_after_a_resume(tmp_path: Path) -> None:
    given = {"procs": 0, "val": DATA, **QUIET}
    model, optimizer = parts()
    hogwild.train(
        model, DATA, nn.MSELoss(), optimizer, epochs=3, lr_schedule=plateau(optimizer), run_dir=tmp_path / "a", **given
    )
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.01]
    assert same(model, reduced(3))
    model, optimizer = parts()
    hogwild.train(
        model, DATA, nn.MSELoss(), optimizer, epochs=5, lr_schedule=plateau(optimizer), resume=tmp_path / "a", **given
    )
    assert same(model, reduced(5))
    assert [group["lr"] for group in optimizer.param_groups] == [0.00625, 0.01]


@pytest.mark.whole
@pytest.mark.processes
def test_workers_follow_a_plateau_and_the_rate_that_a_callback_assigns(tmp_path: Path) -> None:
    """At rate 0 nothing changes any more: the evaluations after the assignment are equal."""

    class Freezing:
        def on_evaluation(self, event: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] = 0.0

    model, optimizer = parts()
    result = hogwild.train(
        model, DATA, nn.MSELoss(), optimizer, procs=2, epochs=2000, val=DATA, callbacks=[Freezing()],
        lr_schedule=schedulers.ReduceLROnPlateau(optimizer, factor=0.9), evaluate={"every_epochs": 500},
        run_dir=tmp_path / "run", **QUIET,
    )  # fmt: skip
    losses = result.history["loss"]
    assert losses[-1] == losses[-2] and float(losses[-1]) == pytest.approx(loss_of(model), rel=1e-5)


@pytest.mark.parametrize(
    ("assign", "schedule", "said"),
    [
        (
            {"lr": 0.5},
            {"class_path": f"{PATH}StepLR", "init_args": {"step_size": 3}},
            r"lr_schedule \(StepLR\) sets it",
        ),
        ({"momentum": 0.5}, {}, "momentum was changed"),
    ],
)
def test_an_assignment_without_an_effect_is_an_error(
    assign: dict[str, float], schedule: dict[str, Any], said: str, tmp_path: Path
) -> None:
    class Assigning:
        def on_start(self, event: Any) -> None:
            optimizer.param_groups[0].update(assign)

    model, optimizer = parts()
    with pytest.raises(UserCodeError, match=said) as caught:
        hogwild.train(
            model, DATA, nn.MSELoss(), optimizer, procs=0, epochs=100_000, callbacks=[Assigning()],
            lr_schedule=schedule or {"name": "constant"}, run_dir=tmp_path / "run", **QUIET,
        )  # fmt: skip
    assert caught.value.code == "train/rates"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.sampled_from(
        [
            (schedulers.StepLR, {"step_size": 3}),
            (schedulers.CosineAnnealingWarmRestarts, {"T_0": 4, "T_mult": 2}),
            (schedulers.CyclicLR, {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3}),
            (schedulers.OneCycleLR, {"max_lr": 0.1, "total_steps": 50}),
        ]
    ),
)
def test_the_settings_depend_on_the_number_of_steps_alone(counts: list[int], kind: tuple[type, dict[str, Any]]) -> None:
    """Workers ask in any order, a rollback goes back, and a copy in another process begins anew."""
    import pickle

    cls, init_args = kind
    _, optimizer = parts(optim.AdamW)
    schedule = SteppedScheduler.build(f"{PATH}{cls.__name__}", init_args, optimizer)
    for count in counts:
        _, real = parts(optim.AdamW)
        scheduler = cls(real, **init_args)
        for _ in range(count):
            real.step()
            scheduler.step()
        expected = [(group["lr"], group["betas"]) for group in real.param_groups]
        for found in (schedule.after(count), pickle.loads(pickle.dumps(schedule)).after(count)):
            assert [(own["lr"], own["betas"]) for own in found] == expected


@pytest.mark.parametrize(
    ("schedule", "given", "said"),
    [
        ({"class_path": "torch.nn.Linear"}, {}, "missing 2 required positional arguments"),
        ({"class_path": f"{PATH}StepLR"}, {}, "cannot be built with"),
        ({"class_path": f"{PATH}StepLR", "init_args": {"step_size": 2, "gama": 1}}, {}, "gama"),
        ({"class_path": f"{PATH}ReduceLROnPlateau"}, {}, "needs data.val"),
        ({"class_path": f"{PATH}ReduceLROnPlateau", "every": "epoch"}, {"val": DATA}, "must be auto"),
        (
            {"class_path": f"{PATH}OneCycleLR", "init_args": {"max_lr": 0.1, "total_steps": 7}},
            {},
            "ends after total_steps=7, but the job makes 40 steps",
        ),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_before_anything_is_trained(
    schedule: dict[str, Any], given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    model, optimizer = parts()
    before = model.weight.clone()
    with pytest.raises(UsageError, match=said):
        hogwild.train(
            model, DATA, nn.MSELoss(), optimizer, procs=0, epochs=EPOCHS, lr_schedule=schedule,
            run_dir=tmp_path / "run", **given, **QUIET,
        )  # fmt: skip
    assert torch.equal(model.weight, before)


def test_a_scheduler_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    (model, optimizer), (_, other) = parts(), parts()
    with pytest.raises(UsageError, match="of another optimizer"):
        hogwild.train(
            model, DATA, nn.MSELoss(), optimizer, procs=0, lr_schedule=schedulers.StepLR(other, 2), run_dir=tmp_path,
            **QUIET,
        )  # fmt: skip


def test_a_job_file_names_a_scheduler_by_its_class() -> None:
    text = "model: {class_path: a.B}\ndata: {train: {class_path: a.C}}\nlr_schedule: "
    section = "{class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 2}, every: update}"
    job = load_job(Path("job.yaml"), source_text=f"{text}{section}\n")
    assert job.lr_schedule.name == f"{PATH}StepLR"
    assert load_job(Path("job.yaml"), source_text=job.to_yaml()) == job
    with pytest.raises(ConfigError, match="every"):
        load_job(Path("job.yaml"), source_text=f"{text}{section.replace('update', 'week')}\n")


def test_a_rate_that_is_no_number_is_an_error_of_the_scheduler() -> None:
    _, optimizer = parts()
    schedule = SteppedScheduler.copy_of(schedulers.LambdaLR(optimizer, lambda e: math.nan if e > 1 else 1.0), optimizer)
    schedule.after(1)
    with pytest.raises(UserCodeError, match="LambdaLR: step 2: the lr of group 0 is nan"):
        schedule.after(2)
