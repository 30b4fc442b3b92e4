"""An optimizer that makes a system call before and after it writes: inside an apply, where there would be none."""

import os

import torch
from torch.optim import Optimizer


class Stepping(Optimizer):
    """Plain gradient descent, dense or sparse. Its step is its own: torch's ones import the compiler the first time."""

    def __init__(self, params, lr: float) -> None:  # type: ignore[no-untyped-def]
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[no-untyped-def, override]
        os.stat("/")
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.add_(param.grad, alpha=-group["lr"])
        os.stat("/")
