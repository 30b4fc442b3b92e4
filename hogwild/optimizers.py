"""Optimizers beside those of `torch.optim`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["RowWiseAdagrad"]


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per row instead of one per number: an embedding table needs a few bytes of state per
    row, and each update of a row reads and writes only one more word.

        sum[row] += mean(g[row]^2);   p[row] -= lr * g[row] / (sqrt(sum[row]) + eps)

    Used in recommendation models and knowledge graphs: Naumov et al., "Deep Learning Recommendation Model" (2019) and
    its `RWSAdagrad`; TorchRec's EXACT_ROWWISE_ADAGRAD; Lerer et al., "PyTorch-BigGraph" (2019), section 3.1.

    A row is an element of a parameter's first dimension. `state[p]["sum"]` is (len(p),), there from the beginning.
    Gradients are dense or sparse; a sparse gradient updates only the rows it names, and `weight_decay` (the L2 term of
    the gradient) decays only those. Raises ValueError for a negative option."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
        }
        for name, value in defaults.items():
            if not value >= 0:
                raise ValueError(f"RowWiseAdagrad: {name} is {value}; it must not be negative")
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = self._initial(param, group)

    @staticmethod
    def _initial(param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        start = float(group["initial_accumulator_value"])
        return {"sum": torch.full(param.shape[:1], start, dtype=param.dtype, device=param.device)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    if not self.state[param]:  # in a group added later
                        self.state[param] = self._initial(param, group)
                    _update(param, param.grad, self.state[param]["sum"], group)
        return loss


def _update(param: Tensor, grad: Tensor, sums: Tensor, group: dict[str, Any]) -> None:
    rows: Any = ...  # all of them
    if grad.layout == torch.sparse_coo:
        grad = grad.coalesce()  # the square of a row's total gradient is needed, not the sum of squares
        rows, grad = grad.indices()[0], grad.values()
        if not len(rows):
            return
    if group["weight_decay"]:
        grad = grad.add(param[rows], alpha=group["weight_decay"])
    mean = grad.reshape(*grad.shape[:1], -1).square().mean(-1)
    total = mean.add_(sums[rows])  # read once: if it is shared, another worker may write now
    sums[rows] = total
    step = grad / total.sqrt().add_(group["eps"]).reshape(total.shape + (1,) * (grad.dim() - total.dim()))
    if rows is ...:
        param.add_(step, alpha=-group["lr"])
    else:
        param.index_add_(0, rows, step, alpha=-group["lr"])
