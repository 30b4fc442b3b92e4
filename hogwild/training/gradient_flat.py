"""The private gradient flat: one per dtype, at the offsets of the parameter flat, so that gradient and parameter spans
match.

autograd adds a gradient in place into `param.grad` if there is one, and otherwise stores its own tensor there. We rely
on both: after its first dense gradient a parameter's `grad` stays bound to a view of the flat, and a gradient in a
separate tensor (first use; user code set it to None) is copied in and bound. Each view is made with `.data`, so it has
its own version counter, which every accumulation increments: if it has not changed since the last `clear`, this batch
did not use the parameter. Sparse gradients stay where autograd puts them, outside the flat, and are never written:
autograd gives two embeddings that are added the same memory for the values of both.
"""

import math
from collections.abc import Callable
from operator import eq

import torch
from torch import Tensor, nn

from hogwild.parameters.flat_layout import FlatLayout

_NARROW = (torch.float16, torch.bfloat16)  # dot products overflow or lose precision: summed in float32


class Gradients:
    """Gradients of the optimised parameters of one worker. Order: `backward` (any number), `collect`, use, `clear`."""

    def __init__(self, layout: FlatLayout, params: list[nn.Parameter], device: torch.device) -> None:
        sizes = layout.gradient_sizes.items()
        self.flats = {dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes}
        # For the fast norm: each flat, and a preallocated tensor for its square. Empty for types that need care.
        self._squares = [(flat, flat.new_empty(())) for flat in self.flats.values() if flat.numel()]
        if any(flat.is_complex() or flat.dtype in _NARROW for flat, _ in self._squares):
            self._squares = []
        dense = [i for span in layout.spans if span.is_dense for i in span.params]
        self._params = [params[i] for i in dense]
        places = ((self.flats[slot.dtype], slot) for slot in (layout.params[i] for i in dense))
        self._views = [torch.as_strided(flat, slot.shape, slot.strides, slot.offset).data for flat, slot in places]
        self._clean = self._versions()
        self._seen = self._clean  # as of the last `collect`
        self._loose = [params[i] for span in layout.spans if span.sparse for i in span.params]
        # autograd fills these too, and nothing else would clear them
        named = zip(params, layout.params, strict=True)
        self._strays = [param for param, slot in named if slot.requires_grad and slot.group is None]
        self._collected = False
        self._idle: list[int] = []  # bound, not used in this batch
        self.outside: list[nn.Parameter] = []  # parameters with gradients outside the flat, in this batch
        self.complete = False  # every parameter with a place in the flat got a dense gradient in this batch

    def collect(self) -> None:
        """Find out which parameters this batch used. Does nothing the second time before `clear`."""
        if self._collected:
            return
        self._collected = True
        self._idle, self.outside = [], [p for p in self._loose if p.grad is not None]
        self.complete = True
        self._seen = self._versions()
        if any(map(eq, self._seen, self._clean)):
            for i, version in enumerate(self._seen):
                if version == self._clean[i]:
                    self._collect(i)
            self._seen = self._versions()

    def _versions(self) -> list[int]:
        """Return the views' versions, which zeroing or scaling the whole flat does not change."""
        return [view._version for view in self._views]

    def _collect(self, i: int) -> None:
        """Handle view `i`, which was not written: its parameter is unused, or has its gradient elsewhere."""
        grad, view = self._params[i].grad, self._views[i]
        if grad is None or grad is view:
            self._idle.append(i)
            self.complete = False
        elif grad.layout != torch.strided:
            self.outside.append(self._params[i])
            self.complete = False
        else:
            view.copy_(grad)
            self._params[i].grad = view

    def hide_unused(self) -> None:
        """Set the gradients of unused parameters to None, as in stock torch, until `clear`."""
        for i in self._idle:
            self._params[i].grad = None

    def clear(self, *, were_touched: bool = False) -> None:
        """Reset for the next batch. `were_touched`: other code has had the gradients since `collect`, and may have
        written into them."""
        self.collect()
        for flat in self.flats.values():
            flat.zero_()
        if not self.complete:
            for param, view in zip(self._params, self._views, strict=True):
                if param.grad is not view:
                    param.grad = None
        for param in (*self._loose, *self._strays):
            param.grad = None
        self._clean = self._versions() if were_touched else self._seen
        self._collected = False

    def is_finite(self) -> bool:
        """Return whether all gradients are finite. Sparse rows are not summed: if the sum of all squares is finite, the
        sums of rows are, too."""
        self.collect()
        total = self._dense_square()
        for param in self.outside:
            grad = _grad(param)
            total += _square(grad if grad.layout == torch.strided else grad._values())
        return math.isfinite(total) or math.isfinite(self._careful_norm())

    def norm(self, squares: Callable[[nn.Parameter], float | None] = lambda param: None) -> float:
        """Return the 2-norm of all gradients; not finite exactly if one of them is not. `squares` may know the square
        for a parameter outside the flat.

        One dot product per flat. In float32 it overflows above a norm of 1.8e19, and only then is a slower method used:
        `isfinite().all()` costs ten times as much."""
        self.collect()
        total = self._dense_square()
        for param in self.outside:
            known = squares(param)
            total += _square(_stored(_grad(param))) if known is None else known
        return math.sqrt(total) if math.isfinite(total) else self._careful_norm()

    def _dense_square(self) -> float:
        if not self._squares:
            return sum(_square(flat) for flat in self.flats.values() if flat.numel())
        total = 0.0
        for flat, square in self._squares:
            total += _dot(flat, out=square).item()
        return total

    def add_squares(self, total: Tensor) -> None:
        """Add the squares of all gradients in the flats to `total` (), on their device, without waiting."""
        self.collect()
        for flat, square in self._squares:
            total.add_(_dot(flat, out=square))
        for flat in self.flats.values() if not self._squares else ():
            if flat.numel():
                part = torch.view_as_real(flat) if flat.is_complex() else flat
                wide = torch.float32 if part.dtype in _NARROW else part.dtype
                total.add_(torch.linalg.vector_norm(part, dtype=wide).square())

    def _careful_norm(self) -> float:
        self.collect()
        total = 0.0
        for part in (*self.flats.values(), *(_stored(_grad(param)) for param in self.outside)):
            if not part.numel():
                continue
            if not torch.isfinite(part).all():
                return math.nan
            biggest = float(part.abs().max()) or 1.0
            wide = torch.complex128 if part.is_complex() else torch.float64
            total = math.hypot(total, biggest * float(torch.linalg.vector_norm(part.to(wide) / biggest)))
        return total

    def scale(self, factor: float) -> None:
        """Multiply all gradients in place."""
        self.collect()
        for flat in self.flats.values():
            flat.mul_(factor)
        for param in self.outside:
            param.grad = _grad(param) * factor

    def let_go(self, param: nn.Parameter) -> None:
        """Drop the gradient of `param`, which is outside the flat and was applied."""
        param.grad = None
        self.outside = [other for other in self.outside if other is not param]


def _grad(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def _stored(grad: Tensor) -> Tensor:
    """Return a gradient's values; rows that occur twice in a sparse one are summed, for a correct norm."""
    return grad if grad.layout == torch.strided else grad.coalesce().values()


def _dot(flat: Tensor, out: Tensor) -> Tensor:
    if flat.is_cuda:  # there `torch.dot` takes a new block for its result, in spite of `out`
        torch.mv(flat.view(1, -1), flat, out=out.view(1))
        return out
    return torch.dot(flat, flat, out=out)


def _square(part: Tensor) -> float:
    if part.is_complex():
        part = torch.view_as_real(part)
    if part.dtype in _NARROW:
        return float(torch.linalg.vector_norm(part, dtype=torch.float32)) ** 2
    flat = part.reshape(-1)
    return float(torch.dot(flat, flat))
