"""A custom autograd function, and an extended module around it. Plain torch: nothing here knows hogwild.

    Bump       y = x / sqrt(1 + (s x)^2): a smooth bump between -1/s and 1/s, with its derivatives by hand
    Limited    a module with a learnable sharpness s per channel, which remembers how often it was called
    Classifier an MLP with Limited between its layers

To see `check --gradcheck` find a mistake, leave out a factor in `Bump.backward`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Bump(torch.autograd.Function):
    """x (B, C), s (C,) -> (B, C)."""

    @staticmethod
    def forward(x: Tensor, s: Tensor) -> Tensor:
        """No `ctx` here: what backward needs is said in `setup_context`, so that torch.func can use the function."""
        return x * torch.rsqrt(1 + (s * x).square())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Only inputs and outputs go into `save_for_backward`: what is kept on ctx itself escapes the check for changes
        in place."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """`once_differentiable`: these lines compute numbers, not a graph, so a second derivative would be silently
        wrong. With it torch raises instead. Leave it out where every line is differentiable and you need one."""
        x, s = ctx.saved_tensors
        inverse = torch.rsqrt(1 + (s * x).square())
        cubed = inverse * inverse * inverse
        wants_x, wants_s = ctx.needs_input_grad  # False for what is frozen: no work for nobody
        grad_x = upstream * cubed if wants_x else None
        # s was broadcast over the batch, so its gradient is the sum over it.
        grad_s = (-upstream * s * x**3 * cubed).sum(0) if wants_s else None
        return grad_x, grad_s


class Limited(nn.Module):
    """Bump with a sharpness per channel. `calls` is a state that is no tensor: it is in the state_dict, and so in every
    checkpoint, through `get_extra_state`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.full((channels,), 0.5))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        bumped: Tensor = Bump.apply(x, self.sharpness)
        return bumped

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]

    def extra_repr(self) -> str:
        return f"{len(self.sharpness)}"


class Classifier(nn.Module):
    """x (B, features) -> logits (B, classes)."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.limited, self.last = nn.Linear(features, hidden), Limited(hidden), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.limited(self.first(x.flatten(1))))
        return logits
