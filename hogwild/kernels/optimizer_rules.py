"""What a kernel takes from a torch optimizer: which rule it is, and the numbers of each parameter. No numba here."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

SGD, ADAGRAD = "SGD", "Adagrad"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one parameter, float32, as a kernel takes them. `eps` is 0 for SGD."""

    rate: np.float32
    decay: np.float32
    eps: np.float32

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, param: torch.Tensor | None, factor: float) -> "Numbers":
        """Of the group that holds `param`, its rate times `factor`; of no parameter, a rate of 0."""
        for group in optimizer.param_groups:
            if any(member is param for member in group["params"]):
                return cls(
                    np.float32(float(group["lr"]) * factor),
                    np.float32(group["weight_decay"]),
                    np.float32(group.get("eps", 0.0)),
                )
        return cls(np.float32(0.0), np.float32(0.0), np.float32(1.0))


def rule_of(optimizer: torch.optim.Optimizer) -> str:
    """SGD or ADAGRAD; nothing where a per-sample kernel does not compute what this optimizer would, `why_not` says."""
    return "" if why_not(optimizer) else SGD if type(optimizer) is torch.optim.SGD else ADAGRAD


def why_not(optimizer: torch.optim.Optimizer) -> str:
    """Why a kernel of SGD or Adagrad cannot stand for this optimizer, or nothing. Subclasses are other rules."""
    name = type(optimizer).__name__
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adagrad):
        return f"the kernel's rules are torch's SGD and Adagrad, not {name}"
    for group in optimizer.param_groups:
        for option in ("momentum", "dampening", "nesterov", "lr_decay", "maximize", "differentiable"):
            if group.get(option):
                return f"{name} with {option}={group[option]} has no kernel"
        if not group.get("eps", 1.0) > 0:
            return f"{name} with eps={group['eps']} may divide by 0"
        if not math.isfinite(float(group["lr"])):
            return f"{name} with lr={group['lr']}"
    return ""


def words(param: torch.Tensor | None) -> np.ndarray:
    """A view of the parameter; without one, a word that nobody else has."""
    return np.zeros(1, np.float32) if param is None else param.detach().numpy()


def sums_of(optimizer: torch.optim.Optimizer, param: torch.Tensor | None) -> np.ndarray:
    """A view of what Adagrad keeps of `param`, of its shape; of no parameter, or for SGD, a word of its own."""
    state: Any = optimizer.state.get(param, {}) if param is not None else {}
    found: np.ndarray = state["sum"].numpy() if "sum" in state else np.zeros(1, np.float32)
    return found
