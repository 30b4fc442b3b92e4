"""A torch optimizer as a kernel needs it: its rule, and each parameter's hyper-parameters. No numba here."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

SGD, ADAGRAD = "SGD", "Adagrad"


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


def rule_of(optimizer: torch.optim.Optimizer) -> str:
    """Return SGD or ADAGRAD; "" if no per-sample kernel computes this optimizer's update (`why_not` tells why)."""
    return "" if why_not(optimizer) else SGD if type(optimizer) is torch.optim.SGD else ADAGRAD


def why_not(optimizer: torch.optim.Optimizer) -> str:
    """Return why a kernel of SGD or Adagrad cannot replace this optimizer, or "". Subclasses count as other rules."""
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


def parameter_view(param: torch.Tensor | None) -> np.ndarray:
    """Return a view of the parameter; without one, an unshared array of one number."""
    return np.zeros(1, np.float32) if param is None else param.detach().numpy()


def sums_of(optimizer: torch.optim.Optimizer, param: torch.Tensor | None) -> np.ndarray:
    """Return a view of Adagrad's sums for `param`, in its shape; without a parameter, or for SGD, an unshared array of
    one number."""
    state: Any = optimizer.state.get(param, {}) if param is not None else {}
    found: np.ndarray = state["sum"].numpy() if "sum" in state else np.zeros(1, np.float32)
    return found
