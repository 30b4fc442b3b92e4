"""Models over sparse rows, linear or with interactions of features, also of clicks: rows that have one feature of each
of some fields (`hogwild.data.Clicks`); and their compiled updates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.feeds.packed import WEIGHT
from hogwild.kernels import signatures
from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import ADAGRAD, FTRL, MOST, rule_of, step_numbers, why_not
from hogwild.kernels.signatures import Kernels
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.models.mlp import Mlp
from hogwild.models.named_rows import BiasedRows, any_ids, without_first
from hogwild.models.row_checks import ids_of, require_ids
from hogwild.nn import NamedEmbedding

SIGNS, PROBABILITIES, HINGE, SQUARED = 0, 1, 2, 3  # as in kernels/sparse_models.py, which needs numba
SOFTMAX = -1
SPREAD = 0.01  # initial standard deviation of the factors: at 0 they would have no gradient
_NAMES = {
    SIGNS: "logistic",
    PROBABILITIES: "logistic",
    HINGE: "hinge",
    SQUARED: "squared",
    SOFTMAX: "softmax",
}


class SparseRows(nn.Module):
    """Base class of models over sparse rows. `weight` (features, classes)."""

    weight: nn.Parameter

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError for other data, or for features without a
        row."""
        for arrays in (train, val):
            if arrays is not None and "indices" not in arrays:
                found = ", ".join(f"{key} {value.dtype} {value.shape}" for key, value in arrays.items())
                raise ModelError(
                    f"this model needs sparse rows (hogwild.data.LibSvm); the data has {found}",
                    code="model/unlike-data",
                )
            if arrays is not None:
                require_ids("features", arrays["indices"], len(self.weight))


class SparseLinear(SparseRows):
    """One weight per feature, or one per feature and class: logistic regression, a support vector machine, least
    squares or softmax regression, depending on the loss.

    Arguments:
        features: different features.
        classes: outputs; 1 for two classes, whose side is the sign of the output.
        bias: whether each output has a constant.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones."""

    def __init__(self, features: int, classes: int = 1, bias: bool = True, sparse: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, classes))
        self.bias = nn.Parameter(torch.zeros(classes)) if bias else None
        self.sparse = sparse

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) or (B, classes) for sparse rows as `bags` takes them."""
        indices, offsets, values = bags(indices, offsets, values)
        return scores(self.weight, self.bias, indices, offsets, values, self.sparse)

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update, or the reason for none: of logistic, hinge, squared loss and softmax, by SGD and
        Adagrad, with one output also by FTRL."""
        if self.weight.shape[1] > 1:
            return fused_by(SoftmaxUpdate, self, loss, optimizer, MOST)
        return fused_by(LinearUpdate, self, loss, optimizer, (*MOST, FTRL))


class FactorizationMachine(SparseRows):
    """A linear model plus the interaction of every two features, as the product of their learnt vectors (Rendle 2010).
    One output: a logit, a margin or a number, depending on the loss.

    Arguments:
        features: different features.
        factors: numbers of a feature's vector.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones."""

    def __init__(self, features: int, factors: int = 8, sparse: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(features, 1))
        self.factors = nn.Parameter(torch.randn(features, factors) * SPREAD)
        self.sparse = sparse

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) outputs of sparse rows as `bags` takes them."""
        indices, offsets, values = bags(indices, offsets, values)
        linear = scores(self.weight, self.bias, indices, offsets, values, self.sparse)
        return linear + interactions(F.embedding(indices, self.factors, sparse=self.sparse), offsets, values)

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared loss; SGD, Adagrad, FTRL), or the reason for none."""
        return fused_by(FactorizationMachineUpdate, self, loss, optimizer, (*MOST, FTRL))


class NamedFeatures(nn.Module):
    """Base class of models over sparse rows of a stream, whose features are asked for by any int64. `features`: a row
    for each that training has met."""

    features: NamedEmbedding

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Raise ModelError: packed data has numbered its features."""
        raise ModelError(
            f"{type(self).__name__} takes ids of a stream, such as hogwild.data.Follow; this data has numbered its "
            f"features: use {type(self).__name__.replace('Named', '').replace('Linear', 'SparseLinear')}, or set "
            "data.feed: stream",
            code="model/unlike-data",
        )


class NamedLinear(NamedFeatures):
    """A `SparseLinear` with one output whose features are asked for by id: any int64, such as `Follow` makes of
    `features`. An id gets its weight in the first training batch that has it; see `hogwild.nn.NamedEmbedding`.

    Arguments:
        capacity: features that have a weight of their own at first.
        min_count: a feature gets its own weight when training sees it for the so-manieth time.
        bias: whether the output has a constant.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        max_capacity: features that have a weight of their own at most; null: `capacity`.
        expire_after: a feature that is not in so many training batches loses its weight; null: never."""

    def __init__(
        self,
        capacity: int,
        min_count: int = 1,
        bias: bool = True,
        sparse: bool = True,
        max_capacity: int | None = None,
        expire_after: int | None = None,
    ) -> None:
        super().__init__()
        life: Any = {"max_capacity": max_capacity, "expire_after": expire_after}
        self.features = NamedEmbedding(1, capacity, min_count=min_count, sparse=sparse, std=0.0, **life)
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) for sparse rows as `bags` takes them, with any int64 as indices."""
        indices, offsets, values = bags(indices, offsets, values)
        rows = self.features.rows_of(indices.long(), claim=self.training)
        return scores(self.features.weight, self.bias, rows, offsets.long(), values, self.features.sparse)

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared loss; SGD, Adagrad, FTRL), or the reason for none."""
        return fused_by(NamedLinearUpdate, self, loss, optimizer, (*MOST, FTRL))


class NamedFactorizationMachine(NamedFeatures):
    """A `FactorizationMachine` whose features are asked for by id: any int64, such as `Follow` makes of `features`. An
    id gets its row in the first training batch that has it; see `hogwild.nn.NamedEmbedding`. A row of `features` is the
    weight, then the factors.

    Arguments:
        capacity: features that have a row of their own at first.
        factors: numbers of a feature's vector.
        min_count: a feature gets its own row when training sees it for the so-manieth time.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        max_capacity: features that have a row of their own at most; null: `capacity`.
        expire_after: a feature that is not in so many training batches loses its row; null: never."""

    def __init__(
        self,
        capacity: int,
        factors: int = 8,
        min_count: int = 1,
        sparse: bool = True,
        max_capacity: int | None = None,
        expire_after: int | None = None,
    ) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        life: Any = {"max_capacity": max_capacity, "expire_after": expire_after}
        self.features = BiasedRows(factors, capacity, min_count=min_count, sparse=sparse, std=SPREAD, **life)

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) outputs of sparse rows as `bags` takes them, with any int64 as indices."""
        indices, offsets, values = bags(indices, offsets, values)
        found = self.features(indices.long())
        owner = owners(offsets, len(indices))
        linear = found.new_zeros(len(offsets)).index_add(0, owner, found[:, 0] * values)
        output: Tensor = self.bias + linear + interactions(found[:, 1:], offsets, values)
        return output

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared loss; SGD, Adagrad, FTRL), or the reason for none."""
        return fused_by(NamedMachineUpdate, self, loss, optimizer, (*MOST, FTRL))


def owners(offsets: Tensor, count: int) -> Tensor:
    """Return the row (nnz,) int64 of each of `count` entries."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([count])])
    return torch.repeat_interleave(torch.arange(len(offsets)), (ends - offsets).long())


def interactions(vectors: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
    """Return (B,): the sum over pairs of each row's features of the products of their `vectors` (nnz, K)."""
    row, parts = owners(offsets, len(vectors)), vectors * values[:, None]
    none = parts.new_zeros(len(offsets), parts.shape[1])
    sums, squares = none.index_add(0, row, parts), none.index_add(0, row, parts.square())
    return 0.5 * (sums.square() - squares).sum(1)


def bags(indices: Tensor, offsets: Tensor | None, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return sparse rows in the form of `nn.EmbeddingBag`: indices (nnz,) and offsets (B,) of one integer type, values
    (nnz,) of the weights' type. Given like that, or as indices (B, F) alone: F features of value 1 in each row."""
    if offsets is not None and values is not None:
        return indices, offsets, values
    if offsets is not None or values is not None or indices.dim() != 2:
        raise ValueError(f"rows are indices (nnz,), offsets and values, or indices (B, F) alone, not {indices.shape}")
    rows, width = indices.shape
    offsets = width * torch.arange(rows, dtype=indices.dtype)
    return indices.reshape(-1), offsets, torch.ones(rows * width)


def scores(
    weight: Tensor, bias: Tensor | None, indices: Tensor, offsets: Tensor, values: Tensor, sparse: bool
) -> Tensor:
    """Return (B,) or (B, classes): the weighted sum of each row's features, plus the bias."""
    summed = F.embedding_bag(indices, weight, offsets, mode="sum", sparse=sparse, per_sample_weights=values)
    summed = summed if bias is None else summed + bias
    return summed.squeeze(1) if weight.shape[1] == 1 else summed


def kind_of(loss: Any, classes: int) -> int | str:
    """Return the kernels' number of this loss, or why it has none. Exact classes only: a subclass may differ."""
    if type(loss) is nn.CrossEntropyLoss:
        if classes < 2:
            return "CrossEntropyLoss needs a model of two classes or more"
        plain = loss.label_smoothing == 0 and loss.ignore_index < 0
        return SOFTMAX if plain else "CrossEntropyLoss with label_smoothing or an ignored class has no kernel"
    if classes > 1:
        return f"{type(loss).__name__} of {classes} outputs has no kernel"
    if type(loss) in (LogisticLoss, HingeLoss, nn.MSELoss):
        return {LogisticLoss: SIGNS, HingeLoss: HINGE, nn.MSELoss: SQUARED}[type(loss)]
    if type(loss) is nn.BCEWithLogitsLoss:
        is_plain = loss.weight is None and loss.pos_weight is None
        return PROBABILITIES if is_plain else "BCEWithLogitsLoss with weight or pos_weight has no kernel"
    return f"{type(loss).__name__} has no kernel"


def fused_by(
    update: Callable[[int, str, "SampleCounts"], FusedUpdate],
    model: SparseRows | NamedFeatures,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    known: Sequence[str] = MOST,
) -> FusedUpdate | str:
    """Return the model's compiled update for this loss and optimizer, or the reason for none."""
    loss = loss.loss if isinstance(loss, WeightedLoss) else loss
    kind = kind_of(loss, model.weight.shape[1] if isinstance(model, SparseRows) else 1)
    if isinstance(kind, str):
        return kind
    classes = loss.weight.detach().numpy() if kind == SOFTMAX and loss.weight is not None else None
    counts = SampleCounts(float(getattr(loss, "positive_weight", 1.0)), classes)
    return why_not(optimizer, known) or unsuitable(model) or update(kind, rule_of(optimizer), counts)


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """Weights of samples. `positive`: of those above 0; `classes` (C,): of each class. Weights of the data, and those
    of classes, are divided by their mean over the data (of a stream: over the batch, as in torch): the rate suits
    any."""

    positive: float = 1.0
    classes: np.ndarray | None = None

    def of(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return (N,) float32; (0,) if all are 1."""
        factors = [arrays[WEIGHT].astype(np.float64)] if WEIGHT in arrays else []
        factors += [self.classes.take(arrays["target"], mode="clip")] if self.classes is not None else []
        counts = np.prod(factors, axis=0) if factors else np.ones(0)
        counts = counts / (counts.mean() or 1.0) if factors else counts  # a batch of a stream may have only zeros
        if self.positive != 1:
            counts = (counts if factors else 1.0) * np.where(arrays["target"] > 0, self.positive, 1.0)
        return counts.astype(np.float32)


PLAIN = SampleCounts()


def unsuitable(model: nn.Module) -> str:
    """Return why a kernel cannot read these parameters, or ""."""
    for name, param in model.named_parameters():
        if isinstance(model, NamedFeatures) and not param.is_floating_point():  # the ids
            continue
        if param.dtype != torch.float32 or param.device.type != "cpu" or not param.is_contiguous():
            return f"{name} is not contiguous float32 memory of the CPU"
        if not param.requires_grad:
            return f"{name} is frozen"
    return ""


Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # a parameter, its sums, its z


class RowsUpdate:
    """Fused update of a `SparseRows`, sample by sample, as if the batch size were 1: `data.batch_size` has no effect.
    Weight decay is lazy: a feature decays by rate x weight_decay in each sample that has it, the bias in every sample.

    `hot` may name the parameters of `sides`, and for Adagrad also their sums (`weight.sum`), all with the same rows;
    with FTRL nothing is hot. The bias never is: each call of `run` keeps its own copy."""

    implements: frozenset[str] = frozenset({"lr_schedule"})
    sides: tuple[Side, ...] = ()
    family = ""  # the name of the kernel
    label = ""  # of the family in the log; "": that of the loss
    params: tuple[str, ...] = ("weight", "bias")  # in the order of the kernel's numbers

    def __init__(self, kind: int, rule: str, counts: SampleCounts = PLAIN) -> None:
        self.name = f"{self.label or _NAMES[kind]}, {rule}"
        self.kernels: Kernels = signatures.sparse(self.family, rule)
        self._kind, self._rule, self._counts = kind, rule, counts
        self._kinds = () if kind == SOFTMAX else (kind,)  # what the kernel is told of the loss
        if rule == FTRL:
            self.sides = ()

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and the data. Raises ValueError if the arrays of a hot row are not all hot."""
        from hogwild.kernels import sparse_models

        self._kernel = getattr(sparse_models, self.family)
        self._optimizer, self._params = optimizer, [attrgetter(name)(model) for name in self.params]
        target = arrays["target"].astype(np.int64 if self._kind == SOFTMAX else np.float32, copy=False)
        # Unsigned: numba checks every signed index for counting from the end.
        indptr, indices = arrays["indptr"].view(np.uint64), arrays["indices"].view(np.uint32)
        self._data = indptr, indices, arrays["values"], target, self._counts.of(arrays)
        *tables, bias = (table_of(optimizer, param) for param in self._params)
        self._views = self._views_of(model, tuple(tables), bias, hot)

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        """Return the kernel's `tables`, `bias` and `private`."""
        raise NotImplementedError

    def run(self, chunk: Chunk) -> Tally:
        """Update sample by sample; each sees the updates of those before it."""
        rule, numbers = signatures.RULES[self._rule], step_numbers(self._optimizer, self._params, chunk.rate)
        loss, applied = self._kernel(chunk.rows, self._data, *self._kinds, *self._views, rule, tuple(numbers))
        return Tally(loss, applied, len(chunk.rows) - applied)

    def arrays_of(self, model: Any, inputs: Sequence[Tensor], target: Tensor) -> Arrays:
        """Return the CSR arrays of a batch: inputs as `bags` takes them, target (B,)."""
        if len(inputs) > 3:
            raise ValueError(f"a batch must be (indices, offsets, values), target, and has {len(inputs)} inputs")
        indices, offsets, values = bags(*inputs, *[None] * (3 - len(inputs)))
        if values.dtype != torch.float32 or values.shape != indices.shape or not values.is_contiguous():
            raise ValueError(f"values must be {tuple(indices.shape)} float32, not {tuple(values.shape)} {values.dtype}")
        if target.shape != offsets.shape or target.is_complex():
            raise ValueError(f"the target must be {tuple(offsets.shape)}, not {tuple(target.shape)} {target.dtype}")
        features = self._features_of(model, indices)
        indptr = np.empty(len(offsets) + 1, np.int64)
        indptr[:-1], indptr[-1] = ids_of("offsets", offsets, len(features) + 1), len(features)
        lengths = np.diff(indptr)
        if len(lengths) and (indptr[0] != 0 or (lengths < 0).any()):
            raise IndexError("a batch has offsets that do not begin with 0 and ascend")
        if (fields := getattr(model, "fields", None)) is not None and (lengths != fields).any():
            raise IndexError(
                f"a batch has rows of {lengths.min()} to {lengths.max()} features, but the model has {fields} fields"
            )
        is_softmax = self._kind == SOFTMAX
        wanted = ids_of("labels", target, model.weight.shape[1]) if is_softmax else target.float().numpy()
        return {"indptr": indptr, "indices": features, "values": values.numpy(), "target": wanted}

    def _features_of(self, model: Any, indices: Tensor) -> np.ndarray:
        """Return the features (nnz,) of a batch, copied and checked."""
        return ids_of("features", indices, len(model.weight))


class LinearUpdate(RowsUpdate):
    """Fused update of a SparseLinear with one output."""

    sides = (Side("indices", ("weight",)),)
    family = "linear"

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        from hogwild.kernels.sparse_models import BLOCK

        private = hot_table(hot, "weight", self._rule, tables[0])
        flat, mine = (tuple(array.reshape(-1) for array in table) for table in (tables[0], private))
        return (flat,), bias, (mine, np.zeros((2, int(BLOCK)), np.float32))


class SoftmaxUpdate(RowsUpdate):
    """Fused update of a SparseLinear with an output per class."""

    sides = (Side("indices", ("weight",)),)
    family = "softmax"

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        classes = model.weight.shape[1]
        if model.bias is None:
            bias = np.zeros(classes, np.float32), np.zeros(classes, np.float32), np.zeros(classes, np.float32)
        private = hot_table(hot, "weight", self._rule, none_of(tables[0]))
        return tables, bias, (private, slots(hot, "weight"), np.zeros((5, classes), np.float32))


class FactorizationMachineUpdate(RowsUpdate):
    """Fused update of a FactorizationMachine."""

    sides = (Side("indices", ("weight", "factors")),)
    family = "factorization_machine"
    label = "factorisation machine"
    params = ("weight", "factors", "bias")

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        weights, factors = tables
        if hot and not (
            {"factors", "weight"} <= hot.keys() and np.array_equal(hot["weight"].rows, hot["factors"].rows)
        ):
            raise ValueError("weight and factors do not have the same hot rows")
        mine = hot_table(hot, "weight", self._rule, weights)
        local = hot_table(hot, "factors", self._rule, none_of(factors))
        return tables, bias, (mine, slots(hot, "factors"), local, np.zeros(factors[0].shape[1], np.float32))


class NamedUpdate(RowsUpdate):
    """Fused update of a `NamedFeatures`: ids become rows as their batch is learnt, so one that is only looked at, or
    scored beforehand, has none yet."""

    sides = (Side("indices", ("features.weight",)),)
    params: tuple[str, ...] = ("features.weight", "bias")

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and a batch, as `arrays_of` returns it."""
        self._unplaced: tuple[NamedEmbedding, Tensor] | None = model.features, torch.from_numpy(arrays["indices"])  # type: ignore[assignment]
        super().bind(model, optimizer, {**arrays, "indices": np.zeros(len(arrays["indices"]), np.int32)}, hot)

    def run(self, chunk: Chunk) -> Tally:
        """Update sample by sample; each sees the updates of those before it."""
        if self._unplaced is not None and len(chunk.rows):
            table, ids = self._unplaced
            self._data[1][:] = table.rows_of(ids, claim=True).numpy()
            self._unplaced = None
        return super().run(chunk)

    def _features_of(self, model: Any, indices: Tensor) -> np.ndarray:
        return any_ids("features", indices)


class NamedLinearUpdate(NamedUpdate, LinearUpdate):
    """Fused update of a NamedLinear."""


class NamedMachineUpdate(NamedUpdate, FactorizationMachineUpdate):
    """Fused update of a NamedFactorizationMachine."""

    params = ("features.weight", "features.weight", "bias")  # of the weights, and of the factors

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        weights, both = tables
        factors: Table = tuple(map(without_first, both))  # type: ignore[assignment]
        work = np.zeros(model.features.embedding_dim - 1, np.float32)
        return (weights, factors), bias, (weights, np.zeros(0, np.uint32), none_of(factors), work)


def table_of(optimizer: torch.optim.Optimizer, param: nn.Parameter | None) -> Table:
    """Return views of a parameter, of its sums and of its z; for a state that the rule does not have zeros, of a table
    one number. Without a parameter three arrays of one number."""
    if param is None:
        return tuple(np.zeros(1, np.float32) for _ in range(3))  # type: ignore[return-value]
    state = optimizer.state.get(param, {})
    shape = tuple(param.shape) if param.dim() == 1 else (1,) * param.dim()
    views = (state[key].numpy() if key in state else np.zeros(shape, np.float32) for key in ("sum", "z"))
    return param.detach().numpy(), *views  # type: ignore[return-value]


def none_of(table: Table) -> Table:
    """Return a table with no rows of the same width."""
    return tuple(array[:0] for array in table)  # type: ignore[return-value]


def slots(hot: Hot, name: str) -> np.ndarray:
    """Return the place of each row of a parameter in its private copy, above all of them if it is not hot; (0,) if none
    is."""
    found: np.ndarray = hot[name].slot.view(np.uint32) if name in hot else np.zeros(0, np.uint32)
    return found


def hot_table(hot: Hot, name: str, rule: str, table: Table) -> Table:
    """Return the private copies of parameter `name` and of its sums; `table` if nothing is hot."""
    if name not in hot:
        return table
    if rule != ADAGRAD:
        return hot[name].local, *table[1:]
    beside = hot.get(f"{name}.sum")
    if beside is None or not np.array_equal(beside.rows, hot[name].rows):
        raise ValueError(f"{name} has hot rows, and {name}.sum has not the same ones")
    return hot[name].local, beside.local, table[2]


class _FieldRows(SparseRows):
    """Base class of both models."""

    in_runs = ("fields",)  # the numbers of a field are adjacent

    def __init__(self, features: int, fields: int, sparse: bool) -> None:
        super().__init__()
        self.fields, self.sparse = fields, sparse
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(features, 1))

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError for other data, for features without a
        row, and for rows that have not one feature of each field."""
        super().on_data(train, val)
        for arrays in (train, val):
            if arrays is not None and not (np.diff(arrays["indptr"]) == self.fields).all():
                lengths = np.diff(arrays["indptr"])
                raise ModelError(
                    f"this model needs rows with one feature of each of {self.fields} fields (hogwild.data.Clicks); "
                    f"the data has rows with {lengths.min()} to {lengths.max()}",
                    code="model/unlike-data",
                )

    def _linear(self, indices: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
        return scores(self.weight, self.bias, indices, offsets, values, self.sparse)

    def _vectors(self, factors: Tensor, indices: Tensor, values: Tensor) -> Tensor:
        """Return (B, fields, width): the rows of `factors`, times the values."""
        found = F.embedding(indices, factors, sparse=self.sparse) * values[:, None]
        return found.reshape(-1, self.fields, factors.shape[1])


class FieldFactorizationMachine(_FieldRows):
    """A linear model plus the interaction of every two features, as the product of two vectors: a feature has another
    vector for each field that it meets (field-aware factorisation machine, Juan et al. 2016). One output: a logit, a
    margin or a number, depending on the loss.

    Arguments:
        features: different features.
        fields: features of a row, one of each field.
        factors: numbers of each vector; a feature has `fields` vectors.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones."""

    def __init__(self, features: int, fields: int, factors: int = 4, sparse: bool = True) -> None:
        super().__init__(features, fields, sparse)
        # As in LIBFFM, from 0 on: Adagrad's first steps are as large as its rate whatever the gradient.
        self.factors = nn.Parameter(torch.rand(features, fields * factors) / factors**0.5)

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) outputs of sparse rows as `bags` takes them, with `fields` features each."""
        indices, offsets, values = bags(indices, offsets, values)
        met = self._vectors(self.factors, indices, values).unflatten(2, (self.fields, -1))  # (B, own, other field, K)
        products = (met * met.transpose(1, 2)).sum(3)
        output: Tensor = self._linear(indices, offsets, values) + products.triu(1).sum((1, 2))
        return output

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared loss; SGD, Adagrad, FTRL), or the reason for none."""
        return fused_by(FieldMachineUpdate, self, loss, optimizer, (*MOST, FTRL))


class DeepFm(_FieldRows):
    """A factorisation machine and, over the vectors of a row's features side by side, a network of fully connected
    layers; their outputs are added (Guo et al., "DeepFM", 2017). One output: a logit, a margin or a number, depending
    on the loss.

    Arguments:
        features: different features.
        fields: features of a row, one of each field.
        factors: numbers of a feature's vector.
        hidden: width of each hidden layer.
        dropout: probability of dropping a hidden value during training.
        sparse: gradients of the features hold only the touched rows; false for optimizers that need dense ones."""

    def __init__(
        self,
        features: int,
        fields: int,
        factors: int = 8,
        hidden: Sequence[int] = (64, 64),
        dropout: float = 0.0,
        sparse: bool = True,
    ) -> None:
        super().__init__(features, fields, sparse)
        self.factors = nn.Parameter(torch.randn(features, factors) * SPREAD)
        self.layers = Mlp(fields * factors, hidden, 1, dropout)

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) outputs of sparse rows as `bags` takes them, with `fields` features each."""
        indices, offsets, values = bags(indices, offsets, values)
        vectors = self._vectors(self.factors, indices, values)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        deep: Tensor = self.layers(vectors)
        return self._linear(indices, offsets, values) + pairs + deep.squeeze(1)


class FieldMachineUpdate(RowsUpdate):
    """Fused update of a FieldFactorizationMachine. Nothing is private to a worker."""

    family = "field_factorization_machine"
    label = "field-aware factorisation machine"
    params = ("weight", "factors", "bias")

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        return tables, bias, model.fields
