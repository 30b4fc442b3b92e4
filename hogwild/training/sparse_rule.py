"""Sparse gradients of a user's model (`nn.Embedding(sparse=True)`, `EmbeddingBag`), applied row by row directly to the
flats by compiled code (`kernels/sparse_rows.py`): SGD, Adagrad, RowWiseAdagrad,
SparseAdam, FTRL.

torch's sparse path builds half a dozen sparse tensors per parameter and update, and sorts the rows each time; a kernel
reads the same gradient once. The result is torch's, for SGD to the bit, for the others up to rounding. State has
torch's layout, and is created by the user's optimizer in its own first step, so the first update of SparseAdam is a
stock one.

A parameter is updated here if its gradient is sparse and its state exists; all others stay with the optimizer. numba is
imported on the first use of `kernels`, not before."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, SparseAdam

from hogwild.kernels.optimizer_rules import ftrl_numbers
from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.parameters.optimizer_state import StateSlot, parameters_of
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.flat_rule import least_ratio, lost_squares

EPSILON, TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).smallest_normal)
_ONE = np.float32(1)
_NO_INDICES, _NO_VALUES = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)


class NoRows:
    """No sparse parameters, or all of them stay with the optimizer."""

    path = ""

    def squares(self, param: nn.Parameter) -> float | None:
        """Return None: no parameter belongs here."""
        return None

    stored_squares = squares

    def apply(self, param: nn.Parameter, factor: float) -> bool:
        """Return False."""
        return False

    def clear(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class SparseTable:
    """One sparse parameter (R, D), its group, and its state: pieces by torch's name, arrays over shared memory."""

    param: nn.Parameter
    group: dict[str, Any]
    slots: Mapping[str, StateSlot]
    state: dict[str, np.ndarray] = field(default_factory=dict)
    least_ratio: float = math.inf  # of SparseAdam's v to m^2, for all betas that a scheduler has set
    indices: np.ndarray = field(default_factory=lambda: _NO_INDICES)  # (n,) int64, as `read` found them
    values: np.ndarray = field(default_factory=lambda: _NO_VALUES)  # (n, D)
    _gradient: Tensor | None = None  # the one that was read
    _version: int = 0
    _rows: np.ndarray | None = None
    _address: int = 0

    def read(self) -> bool:
        """Set `indices` and `values` to the gradient's, as autograd left them: a row may occur more than once.
        Read-only: two parameters may have been given the same memory. Return False for a gradient that is not sparse
        with one index per row, as embeddings make it; a hook may have changed that. A second call finds the
        arrays of the first, unless the gradient was changed since: autograd adds a second backward's in place."""
        gradient = self.param.grad
        if gradient is None:
            return False
        if gradient is self._gradient and gradient._version == self._version:
            return True
        is_of_rows = gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1
        if not is_of_rows or gradient.dtype is not self.param.dtype:
            return False
        self._gradient, self._version = gradient, gradient._version
        self.indices = np.ascontiguousarray(gradient._indices().numpy()[0])
        self.values = np.ascontiguousarray(gradient._values().numpy())
        return True

    def clear(self) -> None:
        """Drop the gradient, so that the next one can have its memory, which is still in the cache."""
        self._gradient, self.indices, self.values = None, _NO_INDICES, _NO_VALUES

    def rows(self) -> np.ndarray:
        """Return the parameter as it is bound at present; delta rebinds it."""
        if self._rows is None or self.param.data_ptr() != self._address:
            self._rows, self._address = self.param.detach().numpy(), self.param.data_ptr()
        return self._rows


class CompiledRows:
    """The sparse parameters of one worker. Call from one thread."""

    def __init__(self, worker_model: WorkerModel) -> None:
        optimizer = worker_model.optimizer
        self._optimizer, self._state = optimizer, worker_model.state
        self._tables = {id(table.param): table for table in _tables(worker_model)}
        widest = max(table.param.shape[1] for table in self._tables.values())
        self._total = np.zeros(widest, np.float32)  # one row's gradient
        self._totals = {t.param.shape[1]: self._total[: t.param.shape[1]] for t in self._tables.values()}
        self._links = np.zeros((4, 8), np.int32)
        name, count = type(optimizer).__qualname__, len(self._tables)
        self.name = f"rows-{name}"  # name in the kernel cache
        self.path = f"rows: {name} in compiled rows, {count} parameter{'s' if count > 1 else ''}"
        if self._state.layout.shared and type(optimizer) is not SGD:
            self.path += ", shared state hardened"
        cls = type(self)  # not bound methods: the cycle would keep shared memory until garbage collection
        self._apply: Callable[[CompiledRows, SparseTable, np.ndarray, np.ndarray, np.float32], None] = {
            SGD: cls._sgd,
            Adagrad: cls._adagrad,
            RowWiseAdagrad: cls._row_adagrad,
            SparseAdam: cls._lazy_adam,
            FTRL: cls._ftrl,
        }[type(optimizer)]

    @cached_property
    def kernels(self) -> ModuleType:
        """The kernels. The first use imports numba, which takes 0.4 s."""
        from hogwild.kernels import sparse_rows

        return sparse_rows

    def warm_up(self) -> None:
        """Call every kernel that this worker uses with no rows: nothing is changed."""
        table, total = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
        indices, values, zero = np.zeros(0, np.int64), np.zeros((0, 1), np.float32), np.float32(0)
        rule = type(self._optimizer)
        chains = self._chained(indices, 1)
        self.kernels.squared_norm(values, *chains, total)
        self.kernels.square(values)
        if rule is SGD:
            self.kernels.sgd(table, indices, values, zero, zero)
        elif rule is Adagrad:
            self.kernels.adagrad(table, table, indices, values, zero, *chains, total, zero, zero)
        elif rule is RowWiseAdagrad:
            self.kernels.row_adagrad(table, total, indices, values, zero, *chains, total, zero, zero, zero)
        elif rule is FTRL:
            self.kernels.ftrl(table, table, table, indices, values, zero, *chains, total, zero, zero, zero)
        else:
            self.kernels.lazy_adam(table, table, table, indices, values, zero, *chains, total, *(zero,) * 6)

    def stored_squares(self, param: nn.Parameter) -> float | None:
        """Return the sum of squares of what its gradient stores; None if this class does not update it."""
        table = self._tables.get(id(param))
        return float(self.kernels.square(table.values)) if table is not None and table.read() else None

    def squares(self, param: nn.Parameter) -> float | None:
        """Return the squared norm of its gradient, duplicate rows summed; None if this class does not update it."""
        table = self._tables.get(id(param))
        if table is None or not table.read():
            return None
        chains = self._chained(table.indices, len(param))
        return float(self.kernels.squared_norm(table.values, *chains, self._totals[table.values.shape[1]]))

    def apply(self, param: nn.Parameter, factor: float) -> bool:
        """Apply `factor` x its gradient to the rows it names. Returns False, and changes nothing, if this class cannot.
        Raises IndexError for a row outside the parameter."""
        table = self._tables.get(id(param))
        if table is None or not table.read() or not self._has_state(table):
            return False
        if table.group.get("maximize"):
            factor = -factor
        self._apply(self, table, table.indices, table.values, np.float32(factor))
        return True

    def clear(self) -> None:
        """Drop the gradients."""
        for table in self._tables.values():
            table.clear()

    def _has_state(self, table: SparseTable) -> bool:
        if not table.slots:
            return True
        if not all(self._state.is_present(slot) for slot in table.slots.values()):
            return False
        if not table.state:
            table.state = {key: self._state.view(s).numpy() for key, s in table.slots.items() if not s.is_number}
        return True

    def _chained(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, int]:
        """Return the linked occurrences of each row, and the number of distinct rows."""
        if self._links.shape[1] < 2 * len(indices):
            self._links = np.zeros((4, 1 << (2 * len(indices) - 1).bit_length()), np.int32)
        count = self.kernels.linked(indices, size, self._links)
        if count < 0:
            raise _outside(size)
        return self._links, count

    # ---- the rules

    def _sgd(self, table: SparseTable, indices: np.ndarray, values: np.ndarray, factor: np.float32) -> None:
        rate = np.float32(float(table.group["lr"]))
        if not self.kernels.sgd(table.rows(), indices, values, factor, rate):
            raise _outside(len(table.param))

    def _adagrad(self, table: SparseTable, indices: np.ndarray, values: np.ndarray, factor: np.float32) -> None:
        group, state, chains = table.group, table.state, self._chained(indices, len(table.param))
        state["step"] += _ONE
        rate = float(group["lr"]) / (1 + (float(state["step"]) - 1) * group["lr_decay"])
        total, scalars = self._totals[values.shape[1]], map(np.float32, (rate, group["eps"]))
        self.kernels.adagrad(table.rows(), state["sum"], indices, values, factor, *chains, total, *scalars)

    def _row_adagrad(self, table: SparseTable, indices: np.ndarray, values: np.ndarray, factor: np.float32) -> None:
        group, sums, chains = table.group, table.state["sum"], self._chained(indices, len(table.param))
        scalars = map(np.float32, (float(group["lr"]), group["eps"], group["weight_decay"]))
        total = self._totals[values.shape[1]]
        self.kernels.row_adagrad(table.rows(), sums, indices, values, factor, *chains, total, *scalars)

    def _ftrl(self, table: SparseTable, indices: np.ndarray, values: np.ndarray, factor: np.float32) -> None:
        state, chains = table.state, self._chained(indices, len(table.param))
        scalars = ftrl_numbers(self._optimizer, table.param, 1.0)
        arrays = table.rows(), state["sum"], state["z"], indices, values, factor, *chains
        self.kernels.ftrl(*arrays, self._totals[values.shape[1]], *scalars)

    def _lazy_adam(self, table: SparseTable, indices: np.ndarray, values: np.ndarray, factor: np.float32) -> None:
        group, state, chains = table.group, table.state, self._chained(indices, len(table.param))
        beta1, beta2 = group["betas"]
        own = self._optimizer.state[table.param]  # counted in a Python number, which is copied to its word in the block
        own["step"] += 1
        step = int(own["step"])
        self._state.set_number(table.slots["step"], step)
        rate = float(group["lr"]) * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        ratio, lost = _bound(beta1, beta2)
        table.least_ratio = min(table.least_ratio, ratio)
        scalars = map(np.float32, (rate, group["eps"], 1 - beta1, 1 - beta2, table.least_ratio, lost))
        arrays = table.rows(), state["exp_avg"], state["exp_avg_sq"], indices, values, factor, *chains
        self.kernels.lazy_adam(*arrays, self._totals[values.shape[1]], *scalars)


@lru_cache
def _bound(beta1: float, beta2: float) -> tuple[float, float]:
    """Return c, and the amount subtracted from the bound, of v >= c m^2."""
    return least_ratio(beta1, beta2, EPSILON), lost_squares(beta2, TINY)


def _tables(worker_model: WorkerModel) -> list[SparseTable]:
    groups = worker_model.optimizer.param_groups
    index = {id(param): i for i, param in enumerate(parameters_of(worker_model.optimizer))}
    tables = []
    for param, slot in zip(worker_model.params, worker_model.layout.flats.params, strict=True):
        if slot.group is not None and slot.sparse:
            own = {s.key: s for s in worker_model.state.layout.slots if s.index == index[id(param)] and not s.in_group}
            tables.append(SparseTable(param, groups[slot.group], own))
    return tables


def _outside(size: int) -> IndexError:
    return IndexError(f"a sparse gradient of a parameter with {size} rows has an index outside")
