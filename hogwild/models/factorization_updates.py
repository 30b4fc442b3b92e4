"""The fused updates of the factorisations: which losses and rules they know, and what they hand to the kernels. numba
is imported when one is made."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adagrad

from hogwild.kernels import rules
from hogwild.kernels.fused import Chunk, Side, Tally
from hogwild.models.matrix_factorization import BprFactorization, BprLoss, MatrixFactorization, check_arrays
from hogwild.optimizers import RowWiseAdagrad

if TYPE_CHECKING:
    from hogwild.kernels.hot import HotRows

TABLES = ("user.weight", "item.weight", "user_bias.weight", "item_bias.weight")  # in the order of kernels' `rates`
RULES = {SGD: "SGD", Adagrad: "Adagrad", RowWiseAdagrad: "row-wise Adagrad"}


def explicit(model: MatrixFactorization, loss: Any, optimizer: torch.optim.Optimizer) -> "RatingsUpdate | str":
    """The update, or why there is none."""
    if loss is not F.mse_loss and not (type(loss) is nn.MSELoss and loss.reduction == "mean"):
        return f"its fused update is for torch.nn.MSELoss, not for {_name(loss)}"
    return why_not(model, optimizer, [*RULES]) or RatingsUpdate(type(optimizer))


def implicit(model: BprFactorization, loss: Any, optimizer: torch.optim.Optimizer) -> "RankingUpdate | str":
    """The update, or why there is none."""
    if type(loss) is not BprLoss:
        return f"its fused update is for hogwild.models.matrix_factorization.BprLoss, not for {_name(loss)}"
    return why_not(model, optimizer, [SGD, Adagrad]) or RankingUpdate(type(optimizer))


def why_not(model: nn.Module, optimizer: torch.optim.Optimizer, known: list[Any]) -> str | None:
    """Why kernels cannot do what this optimizer would, in words for the log."""
    name = type(optimizer).__qualname__
    if type(optimizer) not in known:
        return f"its fused update knows {', '.join(rule.__qualname__ for rule in known)}, not {name}"
    if type(optimizer) is not RowWiseAdagrad and (reason := rules.why_not(optimizer)):
        return reason
    if any(not group.get("eps", 1.0) > 0 for group in optimizer.param_groups):
        return f"{name} with eps=0 may divide by 0"
    wide = [key for key, param in model.named_parameters() if param.dtype != torch.float32]
    return f"its fused update is for float32, and {wide[0]} is {model.get_parameter(wide[0]).dtype}" if wide else None


def _name(loss: Any) -> str:
    return getattr(loss, "__qualname__", type(loss).__qualname__)


class FactorizationUpdate:
    """What both updates share: views of the tables and of the optimizer's sums, and a rate, a decay and an epsilon for
    each table.

    `hot`: a table of which all rows are hot is read and written in its private copy, and so are its sums; of a table
    with fewer hot rows all are written directly, as if none was (two-sided data has one small side, or a grid). A
    frozen table has rate 0."""

    implements = frozenset({"lr_schedule", "freeze"})
    name = ""
    sides: tuple[Side, ...] = ()

    def __init__(self, rule: type) -> None:
        self._rule = rule
        self._arrays: Mapping[str, np.ndarray] = {}
        self._tables: list[np.ndarray] = []
        self._sums: list[np.ndarray] = []

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        arrays: Mapping[str, np.ndarray],
        hot: "Mapping[str, HotRows]",
    ) -> None:
        """As FusedUpdate says. Raises ModelError where the data names rows that the tables have not."""
        assert isinstance(model, MatrixFactorization | BprFactorization)
        check_arrays(arrays, model.user.num_embeddings, model.item.num_embeddings)
        self._arrays = arrays
        groups = {param: group for group in optimizer.param_groups for param in group["params"]}
        self._rates, self._decays = np.zeros(len(TABLES), np.float32), np.zeros(len(TABLES), np.float32)
        self._epsilons = np.ones(len(TABLES), np.float32)  # of a table that stays as it is: 0 / 1, not 0 / 0
        self._tables, self._sums = [], []
        for place, name in enumerate(TABLES):
            self._take(place, name, model, optimizer, groups, hot)
        rows = len(self._tables[0]), len(self._tables[1])
        self._tables = [_column(table, rows[place % 2], place) for place, table in enumerate(self._tables)]
        self._sums = [_column(sums, rows[place % 2], place) for place, sums in enumerate(self._sums)]

    def _take(
        self,
        place: int,
        name: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        groups: Mapping[nn.Parameter, Mapping[str, Any]],
        hot: "Mapping[str, HotRows]",
    ) -> None:
        param = dict(model.named_parameters()).get(name)
        if param is None:  # a model without biases, or without this one
            self._tables.append(np.zeros(0, np.float32))
            self._sums.append(np.zeros(0, np.float32))
            return
        self._tables.append(_private(hot, name, param.detach().numpy()))
        group = groups.get(param, {})
        if group and param.requires_grad:
            l2: float = model.l2  # type: ignore[assignment]
            self._rates[place] = float(group["lr"])
            self._decays[place] = l2 + float(group["weight_decay"])
            self._epsilons[place] = float(group.get("eps", 1.0))
        sums = optimizer.state.get(param, {}).get("sum")
        shape = (len(param),) if self._rule is RowWiseAdagrad else param.shape
        own = np.ones(shape, np.float32) if sums is None else sums.numpy()  # of a frozen one: its rate is 0
        self._sums.append(_private(hot, f"{name}.sum", own))


def _private(hot: "Mapping[str, HotRows]", name: str, shared: np.ndarray) -> np.ndarray:
    found = hot.get(name)
    if found is None or len(found.rows) != len(shared) or not np.array_equal(found.rows, np.arange(len(shared))):
        return shared
    return found.local


def _column(array: np.ndarray, rows: int, place: int) -> np.ndarray:
    """Of a bias a view (rows,); of one that is not there zeros, which a rate of 0 leaves as they are."""
    if place < 2:
        return array
    return array.reshape(-1) if len(array) else np.zeros(rows, np.float32)


class RatingsUpdate(FactorizationUpdate):
    """MatrixFactorization, rating by rating."""

    sides = (Side("user", (TABLES[0], TABLES[2])), Side("item", (TABLES[1], TABLES[3])))

    def __init__(self, rule: type) -> None:
        super().__init__(rule)
        from hogwild.kernels import factorization

        kernels: Any = factorization
        self.name = f"matrix factorisation, {RULES[rule]}"
        self._sgd = kernels.sgd
        self._adagrad = {Adagrad: kernels.adagrad, RowWiseAdagrad: kernels.row_adagrad}.get(rule)

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        arrays: Mapping[str, np.ndarray],
        hot: "Mapping[str, HotRows]",
    ) -> None:
        """As FusedUpdate says. Raises ModelError where the data names rows that the tables have not."""
        super().bind(model, optimizer, arrays, hot)
        self._mean = np.float32(model.mean.item())  # type: ignore[operator]

    def run(self, chunk: Chunk) -> Tally:
        """Ratings whose slope is NaN or infinite are counted, and not applied."""
        data = (self._arrays["user"], self._arrays["item"], self._arrays["rating"])
        rates = self._rates * np.float32(chunk.rate)
        if self._adagrad is None:
            loss, applied = self._sgd(chunk.rows, *data, *self._tables, self._mean, rates, self._decays)
        else:
            loss, applied = self._adagrad(
                chunk.rows, *data, *self._tables, *self._sums, self._mean, rates, self._decays, self._epsilons
            )
        return Tally(loss, applied, len(chunk.rows) - applied)


class RankingUpdate(FactorizationUpdate):
    """BprFactorization, pair by pair. A sample of a user who has every item makes no pair: it is neither applied nor
    counted as not finite.

    Each worker keeps which items a user has: the data itself where it is sorted by user and item, as
    hogwild.data.Ratings is, and 8 bytes per user; otherwise a sorted copy, 4 bytes per sample more."""

    sides = (Side("user", (TABLES[0],)), Side("item", (TABLES[1], TABLES[3])))

    def __init__(self, rule: type) -> None:
        super().__init__(rule)
        from hogwild.kernels import ranking

        self.name = f"Bayesian personalised ranking, {RULES[rule]}"
        self._kernels: Any = ranking

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        arrays: Mapping[str, np.ndarray],
        hot: "Mapping[str, HotRows]",
    ) -> None:
        """As FusedUpdate says. Raises ModelError where the data names rows that the tables have not."""
        super().bind(model, optimizer, arrays, hot)
        user, item = arrays["user"], arrays["item"]
        self._bounds = np.zeros(len(self._tables[0]) + 1, np.int64)
        np.cumsum(np.bincount(user, minlength=len(self._tables[0])), out=self._bounds[1:])
        self._had = item if self._kernels.is_in_order(user, item) else item[np.lexsort((item, user))]
        del self._tables[2], self._sums[2]  # there is no bias of users: it is the same for both items of a pair

    def run(self, chunk: Chunk) -> Tally:
        """Pairs whose margin is NaN or infinite are counted, and not applied."""
        data = (self._arrays["user"], self._arrays["item"], self._bounds, self._had, np.uint64(chunk.seed))
        rates = self._rates * np.float32(chunk.rate)
        if self._rule is SGD:
            loss, applied, alone = self._kernels.sgd(chunk.rows, *data, *self._tables, rates, self._decays)
        else:
            loss, applied, alone = self._kernels.adagrad(
                chunk.rows, *data, *self._tables, *self._sums, rates, self._decays, self._epsilons
            )
        return Tally(loss, applied, len(chunk.rows) - applied - alone)
