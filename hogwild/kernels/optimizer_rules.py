"""A torch optimizer as a kernel needs it: its rule, and each parameter's hyper-parameters. No numba here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hogwild.optimizers import FTRL as FtrlProximal

SGD, ADAGRAD, FTRL = "SGD", "Adagrad", "FTRL"
_NAMES = {torch.optim.SGD: SGD, torch.optim.Adagrad: ADAGRAD, FtrlProximal: FTRL}
MOST = (SGD, ADAGRAD)  # what most kernels compute


@dataclass(frozen=True, slots=True)
class Numbers:
    """Hyper-parameters of one parameter as float32. `eps` is 0 for SGD."""

    rate: np.float32
    decay: np.float32
    eps: np.float32

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, param: torch.Tensor | None, factor: float) -> "Numbers":
        """Return the numbers of `param`'s group, its rate times `factor`; a rate of 0 if no group has it."""
        for group in optimizer.param_groups:
            if any(member is param for member in group["params"]):
                return cls(
                    np.float32(float(group["lr"]) * factor),
                    np.float32(group["weight_decay"]),
                    np.float32(group.get("eps", 0.0)),
                )
        return cls(np.float32(0.0), np.float32(0.0), np.float32(1.0))


def ftrl_numbers(optimizer: torch.optim.Optimizer, param: torch.Tensor | None, factor: float) -> tuple[np.float32, ...]:
    """Return (rate, beta + rate l2, l1) of `param`'s group, its rate times `factor`; (0, 1, 0) if no group has it."""
    for group in optimizer.param_groups:
        if any(member is param for member in group["params"]):
            rate = float(group["lr"]) * factor
            return np.float32(rate), np.float32(group["beta"] + rate * group["l2"]), np.float32(group["l1"])
    return np.float32(0.0), np.float32(1.0), np.float32(0.0)


def step_numbers(
    optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor | None], factor: float
) -> list[tuple[np.float32, ...]]:
    """Return the `numbers` of kernels/steps.py of each parameter, its rate times `factor`."""
    if rule_of(optimizer) == FTRL:
        return [ftrl_numbers(optimizer, param, factor) for param in params]
    numbers = [Numbers.of(optimizer, param, factor) for param in params]
    return [(each.rate, each.decay, each.eps) for each in numbers]


def rule_of(optimizer: torch.optim.Optimizer) -> str:
    """Return SGD, ADAGRAD or FTRL, "" for another rule. Subclasses count as other rules."""
    return _NAMES.get(type(optimizer), "")


def why_not(optimizer: torch.optim.Optimizer, known: Sequence[str] = MOST) -> str:
    """Return why a kernel of the known rules cannot replace this optimizer, or ""."""
    name = type(optimizer).__name__
    if rule_of(optimizer) not in known:
        return f"the kernel's rules are {', '.join(known)}, not {name}"
    for group in optimizer.param_groups:
        for option in ("momentum", "dampening", "nesterov", "lr_decay", "maximize", "differentiable"):
            if group.get(option):
                return f"{name} with {option}={group[option]} has no kernel"
        if not group.get("eps", 1.0) > 0:
            return f"{name} with eps={group['eps']} may divide by 0"
        if not math.isfinite(float(group["lr"])):
            return f"{name} with lr={group['lr']}"
    return ""
