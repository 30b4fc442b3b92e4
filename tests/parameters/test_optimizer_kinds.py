"""Optimizers that cannot be shared say why before anything is trained: modes, wrappers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import OptimizerError


class ScheduleFree(optim.SGD):
    """The interface of schedule-free rules: the parameters are other weights in each mode."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class Lookahead(optim.Optimizer):
    """A wrapper as they are written: no state of its own, the inner one's groups."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups


class Sam(optim.Optimizer):
    """A wrapper that is an optimizer itself."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.base_optimizer = optim.SGD(self.param_groups, lr=0.1)


class Proxy:
    """A wrapper that is no torch.optim.Optimizer at all."""

    def __init__(self, base: optim.Optimizer) -> None:
        self.base = base


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda p: ScheduleFree(p, lr=0.1), "optimizer/modes", r"ScheduleFree has the modes train\(\) and eval\(\)"),
        (lambda p: Lookahead(optim.Adam(p)), "optimizer/wrapper", r"Lookahead wraps another optimizer \(inner: Adam\)"),
        (Sam, "optimizer/wrapper", r"Sam wraps another optimizer \(base_optimizer: SGD\)"),
        (lambda p: Proxy(optim.SGD(p)), "optimizer/wrapper", r"Proxy wraps another optimizer \(base: SGD\)"),
        (lambda p: "sgd", "optimizer/not-one", "the optimizer is a str"),
    ],
)
def test_an_optimizer_that_cannot_be_shared_says_why_and_nothing_is_trained(
    make: Any, code: str, said: str, tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.clone()
    data = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
    with pytest.raises(OptimizerError, match=said) as caught:
        hogwild.train(model, data, nn.MSELoss(), make(list(model.parameters())), procs=0, run_dir=tmp_path / "run")
    assert caught.value.code == code and torch.equal(model.weight, before)
    assert not (tmp_path / "run" / "summary.json").exists()
