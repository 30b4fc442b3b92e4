"""Optimizers beside those of `torch.optim`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["FTRL", "RowWiseAdagrad"]

State = dict[str, Tensor]
LEAST = 1e-10  # FTRL's divisor: with beta 0, and no gradient yet


class _RowRule(torch.optim.Optimizer):
    """Base class: state from the beginning, dense gradients, and sparse ones that update only the rows they name. A row
    is an element of a parameter's first dimension. Raises ValueError for a negative option."""

    def __init__(self, params: Any, defaults: dict[str, float]) -> None:
        for name, value in defaults.items():
            if not value >= 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; it must not be negative")
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = self._initial(param, group)

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
                    self._step(param, param.grad, self.state[param], group)
        return loss

    def _step(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        rows: Any = ...  # all of them
        if grad.layout == torch.sparse_coo:
            grad = grad.coalesce()  # the square of a row's total gradient is needed, not the sum of squares
            rows, grad = grad.indices()[0], grad.values()
        if grad.numel():
            self._update(param, rows, grad, state, group)

    @staticmethod
    def _initial(param: Tensor, group: dict[str, Any]) -> State:
        raise NotImplementedError

    @staticmethod
    def _update(param: Tensor, rows: Any, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Update `param[rows]` by its gradient, and its state. The state is read once: if it is shared, another worker
        may write at any time."""
        raise NotImplementedError


class RowWiseAdagrad(_RowRule):
    """Adagrad with one accumulator per row instead of one per number: an embedding table needs a few bytes of state per
    row, and each update of a row reads and writes only one more word.

        sum[row] += mean(g[row]^2);   p[row] -= lr * g[row] / (sqrt(sum[row]) + eps)

    Used in recommendation models and knowledge graphs: Naumov et al., "Deep Learning Recommendation Model" (2019) and
    its `RWSAdagrad`; TorchRec's EXACT_ROWWISE_ADAGRAD; Lerer et al., "PyTorch-BigGraph" (2019), section 3.1.

    `state[p]["sum"]` is (len(p),). `weight_decay` is the L2 term of the gradient, in sparse gradients only for the rows
    they name. Raises ValueError for a negative option."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        start = {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay} | start)

    @staticmethod
    def _initial(param: Tensor, group: dict[str, Any]) -> State:
        start = float(group["initial_accumulator_value"])
        return {"sum": torch.full(param.shape[:1], start, dtype=param.dtype, device=param.device)}

    @staticmethod
    def _update(param: Tensor, rows: Any, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            grad = grad.add(param[rows], alpha=group["weight_decay"])
        mean = grad.reshape(*grad.shape[:1], -1).square().mean(-1)
        total = mean.add_(state["sum"][rows])
        state["sum"][rows] = total
        step = grad / total.sqrt().add_(group["eps"]).reshape(total.shape + (1,) * (grad.dim() - total.dim()))
        if rows is ...:
            param.add_(step, alpha=-group["lr"])
        else:
            param.index_add_(0, rows, step, alpha=-group["lr"])


class FTRL(_RowRule):
    """FTRL-proximal, for linear models of clicks and words: a rate for each weight, as Adagrad's, and with `l1` most
    weights exactly 0 (McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, algorithm 1).

        n += g^2;   rate = lr / (beta + sqrt(n) + lr l2)
        w != 0     w - rate g, unless that crosses 0:
                   beyond -2 l1 rate it goes on with l1's push, else w becomes 0 and z remembers how far it was
        w == 0     z += g;   w = rate (sign(z) l1 - z) where |z| > l1

    It is the paper's rule, written so that a weight that is not 0 is its own memory: where the paper computes each
    weight from a sum z of all gradients that only one process has seen, this one goes on from the weight it reads, as
    other workers left it, and can begin anywhere. `l1` and `l2` weigh against the sum of all gradients, not each. An
    update of one gradient is at most `lr`, whatever workers lose of each other's state.

    State: `sum` is n, `z` is the paper's for weights that are 0; both in the shape of p. Raises ValueError for a
    negative option."""

    def __init__(self, params: Any, lr: float = 0.1, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "l1": l1, "l2": l2})

    @staticmethod
    def _initial(param: Tensor, group: dict[str, Any]) -> State:
        return {key: torch.zeros_like(param, memory_format=torch.preserve_format) for key in ("sum", "z")}

    @staticmethod
    def _update(param: Tensor, rows: Any, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        lr, l1 = float(group["lr"]), group["l1"]
        total = grad.square().add_(state["sum"][rows])
        state["sum"][rows] = total
        if lr == 0:
            return
        weight, far = param[rows].clone(), state["z"][rows].clone()
        rate = lr / (total.sqrt() + (group["beta"] + lr * group["l2"] + LEAST))
        # The paper's -z, after this gradient: of a weight that is not 0 it follows from the weight.
        pull = torch.where(weight == 0, -far.clamp(-l1, l1), weight / rate + weight.sign() * l1).sub_(grad)
        left = pull.sign() * (pull.abs() - l1).clamp_min_(0) * rate
        ahead = weight - rate * grad  # the same where the sign stays, and exact
        keeps_sign = weight * ahead > 0
        state["z"][rows] = torch.where(keeps_sign, far, pull.neg().clamp_(-l1, l1))
        param[rows] = torch.where(keeps_sign, ahead, left)
