"""The fused update of knowledge graphs: which losses and rules it knows, and what it hands to the kernel. numba is
imported when one is made."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Adagrad

from hogwild.errors import ModelError
from hogwild.kernels.fused import Chunk, Side, Tally
from hogwild.kernels.rules import Numbers
from hogwild.models.factorization_updates import why_not
from hogwild.models.knowledge_graph import KnowledgeGraph
from hogwild.models.knowledge_graph_ranking import CandidateLoss, LogisticLoss, MarginLoss, SoftmaxLoss
from hogwild.optimizers import RowWiseAdagrad

if TYPE_CHECKING:
    from hogwild.kernels.hot import HotRows

LOSSES = (SoftmaxLoss, LogisticLoss, MarginLoss)  # in the order of kernels/candidates.py
RULES = {SGD: "SGD", Adagrad: "Adagrad", RowWiseAdagrad: "row-wise Adagrad"}  # of kernels/graph.py
OPERATORS = ("complex", "product", "translation")
GROUP = 64  # triples: fewer share what was drawn with too few, more learn too little from each other
WIDTH = 16  # floats: a row in the kernel's memory is a multiple of it


def offer(model: KnowledgeGraph, loss: Any, optimizer: torch.optim.Optimizer) -> "GraphUpdate | str":
    """The update, or why there is none."""
    if type(loss) not in LOSSES:
        return (
            f"its fused update is for {', '.join(kind.__name__ for kind in LOSSES)}, not for {type(loss).__qualname__}"
        )
    if not model.entities.weight.is_cpu:
        return f"its fused update is for the CPU, and the model is on {model.entities.weight.device}"
    return why_not(model, optimizer, [*RULES]) or GraphUpdate(model, loss, optimizer)


class GraphUpdate:
    """Triples in groups of 64; see kernels/graph.py. What is frozen has a rate of 0.

    No sides, so nothing is hot: a group writes each of its rows once in 600 us, the relations' too, which everybody
    writes, and two workers are twice as fast as one. Private copies of the relations changed nothing."""

    implements = frozenset({"lr_schedule", "freeze"})
    sides: tuple[Side, ...] = ()

    def __init__(self, model: KnowledgeGraph, loss: CandidateLoss, optimizer: torch.optim.Optimizer) -> None:
        from hogwild.kernels import graph

        self._train, self._loss, self._rule = graph.train, loss, type(optimizer)
        self.name = f"{type(model).__name__} with {loss.kind} loss, {RULES[self._rule]}"

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        arrays: Mapping[str, np.ndarray],
        hot: "Mapping[str, HotRows]",
    ) -> None:
        """As FusedUpdate says. Raises ModelError where the data names rows that the model has not."""
        assert isinstance(model, KnowledgeGraph)
        self._model, self._optimizer, self._triples = model, optimizer, arrays.get("triple", np.zeros(0))
        _check(self._triples, model)
        params = (model.entities.weight, model.relations.weight)
        self._tables = tuple(param.detach().numpy() for param in params)
        self._slots = tuple(np.full(len(table), -1, np.int64) for table in self._tables)
        self._sums = tuple(sums.reshape(len(sums), -1) for sums in (self._sums_of(param) for param in params))
        offset = len(self._tables[1]) // 2 if model.reciprocal else 0
        self._shape = np.array(
            [
                OPERATORS.index(model.operator), model.is_distance, LOSSES.index(type(self._loss)),
                [*RULES].index(self._rule), GROUP, model.negatives, offset, not model.reciprocal,
            ],
            np.int64,
        )  # fmt: skip
        self._scratch = _scratch(GROUP, model.negatives, params[0].shape[1])

    def _sums_of(self, param: torch.Tensor) -> np.ndarray:
        if self._rule is SGD:
            return np.zeros((1, 1), np.float32)  # never looked at
        if not param.requires_grad:
            return np.zeros(len(param) if self._rule is RowWiseAdagrad else param.shape, np.float32)  # nobody's
        return self._optimizer.state[param]["sum"].numpy()  # type: ignore[no-any-return]

    def run(self, chunk: Chunk) -> Tally:
        """Triples of which a score is NaN or infinite are counted, and not applied."""
        params = (self._model.entities.weight, self._model.relations.weight)
        numbers = [Numbers.of(self._optimizer, param if param.requires_grad else None, chunk.rate) for param in params]
        given = [self._loss.margin, *(value for each in numbers for value in (each.rate, each.eps, each.decay))]
        loss, applied, refused = (
            self._train(
                self._triples, chunk.rows, np.uint64(chunk.seed), self._shape, np.array(given, np.float32),
                self._tables, self._sums, self._slots, self._scratch,
            )
        )  # fmt: skip
        return Tally(loss, applied, refused)


def _check(triples: np.ndarray, model: KnowledgeGraph) -> None:
    if triples.ndim != 2 or triples.shape[1] != 3 or triples.dtype != np.int32:
        raise ModelError(
            f"{type(model).__name__} learns from triples: an array `triple` (N, 3) int32; the data has "
            f"{triples.dtype} {triples.shape}: see hogwild.data.Triples",
            code="model/unlike-data",
        )
    relations = len(model.relations.weight) // (2 if model.reciprocal else 1)
    sizes = {"heads": model.entities.num_embeddings, "relations": relations, "tails": model.entities.num_embeddings}
    for column, (what, size) in enumerate(sizes.items()):
        if len(triples) and not (triples[:, column].min() >= 0 and triples[:, column].max() < size):
            raise ModelError(
                f"{type(model).__name__} has {size:,} rows for {what}, and the data names "
                f"{triples[:, column].min():,} to {triples[:, column].max():,}; leave model.init_args.entities and "
                "relations out, and they follow from the data",
                code="model/unlike-data",
            )


def _scratch(group: int, negatives: int, dim: int) -> tuple[np.ndarray, ...]:
    """The kernel's own memory, in the order of its `scratch`. The last row of X stays zero: what fills up `drawn` is
    there."""
    from hogwild.kernels.products import BLOCK

    queries, columns, width = -(-2 * group // BLOCK) * BLOCK, -(-negatives // BLOCK) * BLOCK, -(-dim // WIDTH) * WIDTH
    rows = 2 * group + negatives + 1
    names = [np.zeros(rows, np.int64), np.zeros(2 * group, np.int64)]
    drawn = np.full(columns, rows - 1, np.int64)
    places = [np.zeros(queries, np.int64) for _ in range(3)]
    shapes = [(rows, width)] * 2 + [(2 * group, width)] * 2 + [(queries, width)] * 2 + [(queries, columns)] * 2
    tables = [np.zeros(shape, np.float32) for shape in shapes]
    lists = [np.zeros(rows, np.float32)] + [np.zeros(queries, np.float32) for _ in range(4)]
    return (*names, drawn, *places, *tables, *lists)
