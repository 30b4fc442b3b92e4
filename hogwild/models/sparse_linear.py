"""Linear models over sparse rows, and their compiled update."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import ADAGRAD, Numbers, rule_of, sums_of, why_not, words
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.models.row_checks import require_csr

SIGNS, PROBABILITIES, HINGE, SQUARED = 0, 1, 2, 3  # as in kernels/linear.py, which needs numba
SOFTMAX = -1
_NAMES = {SIGNS: "logistic", PROBABILITIES: "logistic", HINGE: "hinge", SQUARED: "squared", SOFTMAX: "softmax"}


class SparseLinear(nn.Module):
    """One weight per feature, or one per feature and class: logistic regression, a support vector machine, least
    squares or softmax regression, depending on the loss.

    `sparse=False` gives dense gradients, for optimizers that need them."""

    def __init__(self, features: int, classes: int = 1, bias: bool = True, sparse: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, classes))
        self.bias = nn.Parameter(torch.zeros(classes)) if bias else None
        self.sparse = sparse

    def forward(self, indices: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
        """Return (B,) or (B, classes) for sparse rows in the form of `nn.EmbeddingBag`: indices (nnz,) and offsets (B,)
        of one integer type, values (nnz,) of the weights' type."""
        return scores(self.weight, self.bias, indices, offsets, values, self.sparse)

    def see(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError for other data, or for features without a
        row."""
        for arrays in (train, val):
            if arrays is not None:
                require_csr(arrays, len(self.weight))

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared, softmax; SGD, Adagrad), or the reason for none."""
        kind = kind_of(loss, self.weight.shape[1])
        if isinstance(kind, str):
            return kind
        problem = why_not(optimizer) or unsuitable(self)
        return problem or LinearUpdate(kind, rule_of(optimizer))


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
        plain = loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0
        return SOFTMAX if plain else "CrossEntropyLoss with weight, label_smoothing or an ignored class has no kernel"
    if classes > 1:
        return f"{type(loss).__name__} of {classes} outputs has no kernel"
    if type(loss) in (LogisticLoss, HingeLoss, nn.MSELoss):
        return {LogisticLoss: SIGNS, HingeLoss: HINGE, nn.MSELoss: SQUARED}[type(loss)]
    if type(loss) is nn.BCEWithLogitsLoss:
        is_plain = loss.weight is None and loss.pos_weight is None
        return PROBABILITIES if is_plain else "BCEWithLogitsLoss with weight or pos_weight has no kernel"
    return f"{type(loss).__name__} has no kernel"


def unsuitable(model: nn.Module) -> str:
    """Return why a kernel cannot read these parameters, or ""."""
    for name, param in model.named_parameters():
        if param.dtype != torch.float32 or param.device.type != "cpu" or not param.is_contiguous():
            return f"{name} is not contiguous float32 memory of the CPU"
        if not param.requires_grad:
            return f"{name} is frozen"
    return ""


class LinearUpdate:
    """Fused update, sample by sample, as if the batch size were 1: `data.batch_size` has no effect. Weight decay is
    lazy: a feature decays by rate x weight_decay in each sample that has it, the bias in every sample.

    `hot` may name `weight`, and for Adagrad also `weight.sum` with the same rows. The bias is never hot: each call of
    `run` keeps its own copy."""

    implements: frozenset[str] = frozenset({"lr_schedule"})
    sides: tuple[Side, ...] = (Side("indices", ("weight",)),)

    def __init__(self, kind: int, rule: str) -> None:
        self.name = f"{_NAMES[kind]}, {rule}"
        self._kind, self._rule = kind, rule

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind model, optimizer and data. Raises ValueError if `weight` is hot and Adagrad's sums are not."""
        from hogwild.kernels import linear

        assert isinstance(model, SparseLinear)
        self._optimizer, self._weight, self._bias = optimizer, model.weight, model.bias
        is_softmax = self._kind == SOFTMAX
        self._data = csr_views(arrays, np.int64 if is_softmax else np.float32)
        weight, bias, classes = words(model.weight), words(model.bias), model.weight.shape[1]
        sums, bias_sums = sums_of(optimizer, model.weight), sums_of(optimizer, model.bias)
        mine, my_sums = hot_copies(hot, "weight", self._rule, weight, sums)
        if is_softmax:
            bias = bias if model.bias is not None else np.zeros(classes, np.float32)
            bias_sums = bias_sums if len(bias_sums) == classes else np.zeros(classes, np.float32)
            sums = sums if sums.ndim == 2 else np.zeros((1, classes), np.float32)
            none: np.ndarray = np.zeros((0, classes), np.float32)
            slot, local, local_sums = np.zeros(0, np.uint32), none, none
            if "weight" in hot:
                slot, local = hot["weight"].slot.view(np.uint32), hot["weight"].local
                local_sums = my_sums if self._rule == ADAGRAD else none
            work = np.zeros((5, classes), np.float32)
            self._views: tuple[np.ndarray, ...] = (weight, sums, slot, local, local_sums, bias, bias_sums, work)
        elif self._rule == ADAGRAD:
            work = np.zeros((2, int(linear.BLOCK)), np.float32)
            self._views = (*map(np.ravel, (weight, sums, mine, my_sums)), bias, bias_sums, work)
        else:
            self._views = (*map(np.ravel, (weight, mine)), bias)

    def run(self, chunk: Chunk) -> Tally:
        """Update sample by sample; each sees the updates of those before it."""
        from hogwild.kernels import linear

        kernels: Any = linear
        numbers: tuple[Any, ...]
        own, bias = (Numbers.of(self._optimizer, param, chunk.rate) for param in (self._weight, self._bias))
        if self._kind == SOFTMAX:
            is_adagrad = self._rule == ADAGRAD
            numbers = (is_adagrad, own.rate, own.decay, own.eps, bias.rate, bias.decay, bias.eps)
            loss, applied = kernels.softmax(chunk.rows, *self._data, *self._views, *numbers)
        elif self._rule == ADAGRAD:
            numbers = (own.rate, own.decay, own.eps, bias.rate, bias.decay, bias.eps)
            loss, applied = kernels.adagrad(chunk.rows, *self._data, self._kind, *self._views, *numbers)
        else:
            numbers = (own.rate, own.decay, bias.rate, bias.decay)
            loss, applied = kernels.sgd(chunk.rows, *self._data, self._kind, *self._views, *numbers)
        return Tally(loss, applied, len(chunk.rows) - applied)


def csr_views(arrays: Mapping[str, np.ndarray], target: type) -> tuple[np.ndarray, ...]:
    """Return indptr (N+1,) uint64, indices (nnz,) uint32, values (nnz,), target (N,), as views; only a target of
    another type is copied. Unsigned, because numba checks every signed index for counting from the end."""
    indptr, indices = arrays["indptr"].view(np.uint64), arrays["indices"].view(np.uint32)
    return indptr, indices, arrays["values"], arrays["target"].astype(target, copy=False)


def hot_copies(
    hot: Mapping[str, Any], name: str, rule: str, flat: np.ndarray, sums: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the private copies of parameter `name` and of its sums, or the shared arrays if nothing is hot."""
    if name not in hot:
        return flat, sums
    if rule != ADAGRAD:
        return hot[name].local, sums
    beside = hot.get(f"{name}.sum")
    if beside is None or not np.array_equal(beside.rows, hot[name].rows):
        raise ValueError(f"{name} has hot rows, and {name}.sum has not the same ones")
    return hot[name].local, beside.local
