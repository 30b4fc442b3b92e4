"""State that a training forward changes: named, or merged by a rule that is measured."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.job.changed_state import find_changed_state
from hogwild.parameters.buffers import SUM, UNKNOWN, MergeRule


class Meter:
    def __init__(self) -> None:
        self.count = 0


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(2, 1), nn.BatchNorm1d(2)
        self.steps, self.name, self.losses, self.meter = 0, "a", list[float](), Meter()
        self.mean, self.sums = torch.zeros(2), np.zeros(2)
        self.last: Tensor | None = None
        for name in ("slow", "halved", "annealed", "total", "largest", "fixed"):
            self.register_buffer(name, torch.zeros(2))
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.detach().mean(0)
            self.steps += 1
            self.losses.append(0.5)
            self.meter.count += 1
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.sums += mean.numpy()
            self.updates += 1
            self.slow.mul_(0.9999).add_(mean, alpha=1e-4)
            self.halved = 0.5 * self.halved + 0.5 * mean
            self.annealed.lerp_(mean, float(1 / self.updates))
            self.total += mean
            self.largest = torch.maximum(self.largest, mean)
        self.last = self.fc(self.norm(x))
        return self.last


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("beta", torch.tensor(0.0))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        self.beta += 0.1
        return self.beta * ((output - target) ** 2).mean()


X = 1 + torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).abs()


def found(model: nn.Module, loss: Any) -> tuple[dict[str, MergeRule], str]:
    changed = find_changed_state(model, loss, lambda: loss(model(X), torch.zeros(3, 1)))
    return changed.rules, "\n".join(changed.notes)


def test_attributes_and_tensors_that_a_forward_changes_are_named_with_the_cure_and_caches_are_not() -> None:
    _, notes = found(Stateful(), nn.MSELoss())
    for name in ("steps", "losses", "meter", "mean"):
        assert f"Stateful.{name}" in notes
    assert "and 1 more: each worker changes its own" in notes and "register_buffer" in notes
    assert "Stateful.last" not in notes and "Stateful.name" not in notes


def test_state_of_a_loss_is_named_with_its_buffers_unless_it_is_in_the_model() -> None:
    loss, model = Annealed(), Stateful()
    _, notes = found(nn.Sequential(nn.Linear(2, 1)), loss)
    assert "Annealed.calls" in notes and "Annealed (the loss, not in the model).beta" in notes
    model.loss = loss
    rules, notes = found(model, loss)
    assert rules["loss.beta"] == SUM
    assert "not in the model" not in notes


def test_the_rules_of_buffers_are_measured() -> None:
    rules, notes = found(Stateful(), nn.MSELoss())
    rules.pop("norm.num_batches_tracked")
    expected = {"halved": MergeRule(0.5), "annealed": UNKNOWN, "total": SUM, "largest": UNKNOWN, "updates": SUM}
    assert {name: rule for name, rule in rules.items() if name != "slow"} == expected
    assert abs(rules["slow"].momentum - 1e-4) < 2e-6  # type: ignore[operator]
    assert "halved is a moving average of momentum 0.5" in notes and "total is a sum" in notes


def test_a_look_leaves_no_trace() -> None:
    model, loss = Stateful(), Annealed()
    before, random = copy.deepcopy(model), torch.get_rng_state()
    found(model, loss)
    assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))
    assert (model.steps, model.losses, model.meter.count, model.last) == (0, [], 0, None)
    assert model.mean.tolist() == model.sums.tolist() == [0, 0]
    assert (loss.calls, float(loss.beta)) == (0, 0.0)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_without_such_state_has_nothing_to_say() -> None:
    rules, notes = found(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), nn.MSELoss())
    assert rules == {"0.num_batches_tracked": SUM} and notes == ""


def test_a_buffer_that_a_training_forward_adds_is_not_there_afterwards() -> None:
    class Adding(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.register_buffer("late", torch.zeros(1))
            return super().forward(x)

    model = Adding(2, 1)
    found(model, nn.MSELoss())
    assert dict(model.named_buffers()) == {}
