"""Knowledge graph models: vectors for entities and relations, so that true triples (head, relation, tail) score high.

    ComplEx   Re <h, r, conj t>      Trouillon et al., "Complex Embeddings for Simple Link Prediction", 2016
    DistMult  <h, r, t>              Yang et al., "Embedding Entities and Relations for Learning and Inference", 2015
    TransE    -|h + r - t|           Bordes et al., "Translating Embeddings for Modeling Multi-relational Data", 2013
    RotatE    -|h r/|r| - t|         Sun et al., "RotatE: Knowledge Graph Embedding by Relational Rotation", 2019

Each triple gives two questions: the tail for (head, relation), and the head for (tail, relation). With `reciprocal`
(Lacroix et al., "Canonical Tensor Decomposition for Knowledge Base Completion", 2018; PyTorch-BigGraph's dynamic
relations) a relation has one vector per question; otherwise the second question uses the inverse of the first.

In training the right answer is scored against `negatives` entities drawn at random, the same for the whole batch (in
the kernel: for a group of 64 triples), or against all entities, as one product of matrices, by autograd: the best
quality where they fit. `n3` and `dropout` keep vectors from fitting the training triples alone.

In eval mode the right answer is ranked among all entities, except other known right answers
("filtered", Bordes et al.); all triples passed to `on_data` are known. Ties get the mean of their possible ranks
("realistic", Berrendorf et al., "On the Ambiguity of Rank-Based Evaluation", 2020)."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from hogwild.errors import ModelError
from hogwild.kernels import signatures
from hogwild.kernels.fused import Arrays, Chunk, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import Numbers
from hogwild.losses import CandidateLogisticLoss, CandidateLoss, MarginLoss, SoftmaxLoss
from hogwild.metrics.built_in import OF_RANKS
from hogwild.models.matrix_factorization import RULES, why_not
from hogwild.models.row_checks import require_ids
from hogwild.optimizers import RowWiseAdagrad

NEAR = 1e-12  # squared distance below which no direction is defined


class KnowledgeGraph(nn.Module):
    """Base class of the four models. Relations start as the identity, with n3 or all negatives at random.

    Arguments:
        entities: different heads and tails.
        relations: different relations.
        dim: real numbers of a vector; in ComplEx half of them are imaginary parts.
        negatives: entities drawn as wrong answers, for a batch (in the kernel: for 64 triples); all: every entity.
        reciprocal: a relation has a vector for each of its two questions, the tail and the head.
        init_scale: initial standard deviation of an entity's numbers, where they start at random also of a relation's.
        n3: weight of the cubed magnitudes of a question's and its answer's numbers (Lacroix et al., 2018), as a
            gradient; it is not in the reported loss.
        dropout: share of a query's numbers that are left out in training.
        subtract_log_q: for SoftmaxLoss: each drawn entity stands for entities / negatives of them, whose logarithm is
            added to its score in training (sampled softmax, Bengio and Senecal 2008).
        sparse: autograd gradients hold only the touched rows."""

    metrics = OF_RANKS
    operator: ClassVar[str]  # one of OPERATORS
    is_complex: ClassVar[bool] = False  # a row's first half are real parts, its second half imaginary ones
    is_distance: ClassVar[bool] = False
    in_blocks = ("relations",)  # all relations, then all inverses: the rows are not interleaved

    def __init__(
        self,
        entities: int,
        relations: int,
        dim: int = 200,
        negatives: int | Literal["all"] = 192,
        reciprocal: bool = True,
        init_scale: float = 1e-3,
        sparse: bool = True,
        n3: float = 0.0,
        dropout: float = 0.0,
        subtract_log_q: bool = False,
    ) -> None:
        super().__init__()
        drawn = entities if negatives == "all" else negatives
        for name, value in {"entities": entities, "relations": relations, "dim": dim, "negatives": drawn}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{type(self).__name__}: {name} is {value!r}; it must be at least 1")
        if not n3 >= 0 or not 0 <= dropout < 1:
            raise ValueError(f"{type(self).__name__}: n3 is {n3}, dropout {dropout}; at least 0, and dropout below 1")
        if negatives == "all" and sparse:
            raise ValueError(f"{type(self).__name__}: negatives: all gives every entity a gradient; set sparse: false")
        if self.is_complex and dim % 2:
            raise ValueError(f"{type(self).__name__}: dim is {dim}; half of it are imaginary parts, so it must be even")
        self.negatives, self.reciprocal, self._relations = negatives, reciprocal, relations
        self.n3, self.dropout = n3, dropout
        self.log_q = math.log(drawn / entities) if subtract_log_q else 0.0
        kinds = relations * (2 if reciprocal else 1)
        self.entities = nn.Embedding(entities, dim, sparse=sparse)
        self.relations = nn.Embedding(kinds, dim, sparse=sparse)
        nn.init.normal_(self.entities.weight, std=init_scale)
        with torch.no_grad():
            self.relations.weight.zero_()
            if negatives == "all" or n3:
                nn.init.normal_(self.relations.weight, std=init_scale)
            elif self.operator != "translation":
                self.relations.weight[:, : dim // 2 if self.is_complex else dim] = 1.0
        self.register_buffer("known", torch.zeros(0, dtype=torch.int64), persistent=False)
        self.known: Tensor

    # ---- known triples

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None = None) -> None:
        """Add triples (N, 3) in `triple` to the known true ones: no rank counts them as wrong answers. `train` and
        `val` are data sets in packed form. Raises ModelError for other data, or for ids without a row."""
        if "triple" not in train:
            raise ModelError("data.train has no triples (hogwild.data.Triples)", code="model/unlike-data")
        self.add_known(np.concatenate([part["triple"] for part in (train, val) if part is not None]))

    def add_known(self, triples: np.ndarray) -> None:
        """Add triples (N, 3) int to the known true ones. Raises ModelError for ids without a row."""
        self.check_ids(triples)
        found = known_answers(triples, self.entities.num_embeddings, self._relations)
        self.known = torch.from_numpy(np.union1d(self.known.numpy(), found))

    def check_ids(self, triples: np.ndarray) -> None:
        """Raise ModelError for ids in `triples` (N, 3) without a row."""
        require_ids("entities", triples[:, ::2], self.entities.num_embeddings)
        require_ids("relations", triples[:, 1], self._relations)

    # ---- scores

    def forward(self, triples: Tensor) -> Tensor:
        """Return, for triples (B, 3) int, training scores (B, 2, 1 + negatives) for tail and head: the right answer
        first, -inf for a drawn right answer; with all as negatives (B, 2, entities). In eval mode return their ranks
        (B, 2) float32, 1 is best."""
        triples = triples.long()
        if not self.training:
            return self.ranks(triples)
        if self.negatives == "all":
            queries = torch.stack([self.queries(triples, side) for side in (0, 1)], 1).flatten(0, 1)
            answers = triples[:, [2, 0]].flatten()
            scores: Tensor = _AnswerFirst.apply(self.score_all(queries, self.entities.weight), answers)
            return scores.view(-1, 2, scores.shape[1])
        drawn = torch.randint(self.entities.num_embeddings, (self.negatives,), device=triples.device)
        return self.scores(triples, drawn)

    def scores(self, triples: Tensor, drawn: Tensor) -> Tensor:
        """Return scores (B, 2, 1 + K) of triples (B, 3) and negatives (K,), int64."""
        others = self.entities(drawn)
        sides = []
        for side in (0, 1):
            queries, answers = self.queries(triples, side), triples[:, 2 - 2 * side]
            own = self.score_each(queries, self.entities(answers))
            among = self.score_all(queries, others) - self.log_q
            among = among.masked_fill(drawn == answers[:, None], -torch.inf)
            sides.append(torch.cat([own[:, None], among], 1))
        return torch.stack(sides, 1)

    def queries(self, triples: Tensor, side: int) -> Tensor:
        """Return query vectors (B, dim): side 0 asks for the tail, 1 for the head."""
        relations = triples[:, 1] + (self._relations if side and self.reciprocal else 0)
        sign = -1.0 if side and not self.reciprocal else 1.0
        asked, related = self.entities(triples[:, 2 * side]), self.relations(relations)
        # Each entity is also the answer of the other question, for which it is not looked up again.
        of_relations = self.n3 if self.operator != "rotation" else 0.0  # whose sizes do not count
        found = self.relate(self._kept_small(asked, 2 * self.n3), self._kept_small(related, of_relations), sign)
        return F.dropout(found, self.dropout, self.training) if self.dropout else found

    def _kept_small(self, rows: Tensor, weight: float) -> Tensor:
        """Return the rows (B, dim), whose gradient gets that of `weight` times their cubed magnitudes."""
        if not weight or not self.training:
            return rows
        found: Tensor = _CubedNorm.apply(rows, weight, self.is_complex)
        return found

    def relate(self, entities: Tensor, relations: Tensor, sign: float) -> Tensor:
        """Apply relations to entities, (B, dim) each -> (B, dim); sign -1 applies the inverse relations."""
        if self.operator == "product":
            return entities * relations
        if self.operator == "translation":
            return entities + sign * relations
        (x, y), (u, v) = entities.chunk(2, 1), relations.chunk(2, 1)
        if self.operator == "rotation":
            size = (u.square() + v.square()).clamp_min(NEAR).sqrt()
            u, v = u / size, v / size
        return torch.cat([x * u - sign * y * v, sign * x * v + y * u], 1)

    def score_each(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Return the scores (B,) of queries (B, dim) and entities (B, dim), row by row."""
        if self.is_distance:
            return -(queries - entities).square().sum(1).clamp_min(NEAR).sqrt()
        return (queries * entities).sum(1)

    def score_all(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Return the scores (B, K) of queries (B, dim) and entities (K, dim), all pairs."""
        products = queries @ entities.T
        if not self.is_distance:
            return products
        squares = queries.square().sum(1)[:, None] + entities.square().sum(1) - 2 * products
        return -squares.clamp_min(NEAR).sqrt()

    @torch.no_grad()
    def answer_scores(self, triples: Tensor, side: int) -> Tensor:
        """Return the scores (B, entities) of every entity as the tail (side 0) or the head (1) of triples (B, 3), whose
        own answers do not matter."""
        return self.score_all(self.queries(triples, side), self.entities.weight)

    def vectors(self, kind: str = "entities") -> Tensor:
        """Return the vectors of all `entities`, or of all `relations` from head to tail, (n, dim)."""
        return self.entities.weight if kind == "entities" else self.relations.weight[: self._relations]

    @torch.no_grad()
    def ranks(self, triples: Tensor) -> Tensor:
        """Return ranks (B, 2) float32 of triples (B, 3) int64, in parts: memory is a few times 16 MB."""
        part = max(1, 2**22 // self.entities.num_embeddings)
        found = torch.empty(len(triples), 2)
        for first in range(0, len(triples), part):
            some = triples[first : first + part]
            for side in (0, 1):
                scores = self.answer_scores(some, side)
                found[first : first + part, side] = filtered_ranks(scores, some, side, self.known, self._relations)
        return found

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        """Return the compiled update for SoftmaxLoss, CandidateLogisticLoss and MarginLoss, with SGD, Adagrad and
        RowWiseAdagrad; or the reason why there is none."""
        if self.negatives == "all" or self.dropout:
            return "its fused update draws negatives, and has no dropout"
        if self.log_q and type(loss) is not SoftmaxLoss:
            raise ModelError(
                f"subtract_log_q is for SoftmaxLoss, not for {type(loss).__qualname__}", code="model/bad-loss"
            )
        if type(loss) not in LOSSES:
            known = ", ".join(kind.__name__ for kind in LOSSES)
            return f"its fused update is for {known}, not for {type(loss).__qualname__}"
        if not self.entities.weight.is_cpu:
            return f"its fused update is for the CPU, but the model is on {self.entities.weight.device}"
        return why_not(self, optimizer, [*RULES]) or GraphUpdate(self, loss, optimizer)


class _AnswerFirst(torch.autograd.Function):
    """Scores (n, E) with each row's right answer, column answers[n], and the first column in each other's place; in
    place, as a copy would take as long as the product."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, answers: Tensor) -> Tensor:
        ctx.mark_dirty(scores)
        ctx.save_for_backward(answers)
        return _exchanged(scores, answers)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (answers,) = ctx.saved_tensors
        return _exchanged(grads[0].clone(), answers), None


def _exchanged(scores: Tensor, answers: Tensor) -> Tensor:
    """Exchange, in place, column 0 and column answers[n] of each row."""
    own, first = scores.gather(1, answers[:, None]), scores[:, :1].clone()
    scores.scatter_(1, answers[:, None], first)
    scores[:, :1] = own
    return scores


class _CubedNorm(torch.autograd.Function):
    """Identity on rows (B, k); the backward pass adds the gradient of `weight` times the sum of their cubed magnitudes,
    as a mean over the batch. A magnitude is that of a number, or of a complex number of both halves."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: float, is_complex: bool) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.weight, ctx.is_complex = weight, is_complex
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        size = torch.hypot(*rows.chunk(2, 1)).repeat(1, 2) if ctx.is_complex else rows.abs()
        return torch.addcmul(grads[0], size, rows, value=3 * ctx.weight / max(1, len(rows))), None, None


class ComplEx(KnowledgeGraph):
    """A knowledge graph: a relation rotates and scales each of an entity's dim / 2 complex numbers."""

    operator = "complex"
    is_complex = True


class DistMult(KnowledgeGraph):
    """A knowledge graph: a relation scales each number. Without `reciprocal` it cannot distinguish head from tail."""

    operator = "product"


class TransE(KnowledgeGraph):
    """A knowledge graph: a relation is a step from head to tail; Euclidean distance."""

    operator = "translation"
    is_distance = True


class RotatE(KnowledgeGraph):
    """A knowledge graph: a relation turns each of an entity's dim / 2 complex numbers; Euclidean distance. Its
    phases are kept as complex numbers of any size."""

    operator = "rotation"
    is_distance = True
    is_complex = True


LOSSES = (SoftmaxLoss, CandidateLogisticLoss, MarginLoss)  # in the order of kernels/knowledge_graph.py
OPERATORS = ("complex", "product", "translation", "rotation")
GROUP = 64  # triples; fewer share negatives with too few, more learn too little from each other


class GraphUpdate:
    """Fused update of triples in groups of 64; see kernels/knowledge_graph.py. Frozen parameters have a rate of 0.

    It has no sides, so nothing is hot: a group writes each of its rows once in 0.3 to 5 ms, even the relations, which
    all workers write, and two workers are twice as fast as one. Private copies of the relations changed nothing."""

    implements = frozenset({"lr_schedule", "freeze"})
    kernels = signatures.graph()  # one for all models, losses and rules
    sides: tuple[Side, ...] = ()

    def __init__(self, model: KnowledgeGraph, loss: CandidateLoss, optimizer: torch.optim.Optimizer) -> None:
        self._loss, self._rule = loss, type(optimizer)
        self.name = f"{type(model).__name__} with {loss.kind} loss, {RULES[self._rule]}"

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind as FusedUpdate says. Raises ModelError if the data names rows that the model lacks."""
        from hogwild.kernels import knowledge_graph

        assert isinstance(model, KnowledgeGraph) and isinstance(model.negatives, int)
        self._train = knowledge_graph.train
        self._model, self._optimizer, self._triples = model, optimizer, arrays.get("triple", np.zeros(0))
        if self._triples.ndim != 2 or self._triples.shape[1] != 3 or self._triples.dtype != np.int32:
            raise ModelError(
                f"{type(model).__name__} needs an array `triple` (N, 3) int32 (see hogwild.data.Triples); the data "
                f"has {self._triples.dtype} {self._triples.shape}",
                code="model/unlike-data",
            )
        model.check_ids(self._triples)
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
            return np.zeros((1, 1), np.float32)  # never read
        if not param.requires_grad:
            return np.zeros(len(param) if self._rule is RowWiseAdagrad else param.shape, np.float32)  # unused
        return self._optimizer.state[param]["sum"].numpy()  # type: ignore[no-any-return]

    def run(self, chunk: Chunk) -> Tally:
        """Update the triples; those with a NaN or infinite score are counted and not applied."""
        params = (self._model.entities.weight, self._model.relations.weight)
        numbers = [Numbers.of(self._optimizer, param if param.requires_grad else None, chunk.rate) for param in params]
        given = [self._loss.margin, *(value for each in numbers for value in (each.rate, each.eps, each.decay))]
        given += [self._model.n3, self._model.log_q]
        loss, applied, refused = (
            self._train(
                self._triples, chunk.rows, np.uint64(chunk.seed), self._shape, np.array(given, np.float32),
                self._tables, self._sums, self._slots, self._scratch,
            )
        )  # fmt: skip
        return Tally(loss, applied, refused)


def _scratch(group: int, negatives: int, dim: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return the kernel's working memory, in the order of its `scratch`. The last row of X stays zero: unused entries
    of `drawn` point to it; `every` counts from 0 on."""
    from hogwild.kernels.knowledge_graph import BLOCK
    from hogwild.kernels.simd import WIDTH, padded, zeros_on_lines

    queries, columns, rows = -(-2 * group // BLOCK) * BLOCK, -(-negatives // BLOCK) * BLOCK, 2 * group + negatives + 1
    names = np.zeros(rows, np.int64), np.zeros(2 * group, np.int64)
    drawn, every = np.full(columns, rows - 1, np.int64), np.arange(max(queries, columns))
    places = [np.zeros(queries, np.int64) for _ in range(3)]
    shapes = [(rows, dim)] * 2 + [(2 * group, dim)] * 2 + [(queries, dim)] * 2 + [(queries, columns)] * 2
    # An odd number of cache lines: what lies below each other is not in the same few places of the cache.
    tables = [zeros_on_lines(count, padded(length) | WIDTH) for count, length in shapes]
    lists = [np.zeros(rows, np.float32)] + [np.zeros(queries, np.float32) for _ in range(4)]
    return (*names, drawn, every, *places), tuple(tables), tuple(lists)


def known_answers(triples: np.ndarray, entities: int, relations: int) -> np.ndarray:
    """Return the sorted unique answers (M,) int64 to triples (N, 3), each as question * entities + answer; a question
    is entity * 2 * relations + relation, + relations for head questions. Raises ValueError if that exceeds 64 bits."""
    if entities * entities * 2 * relations >= 2**63:
        raise ValueError(f"{entities:,} entities and {relations:,} relations are too many to be filtered")
    h, r, t = (triples[:, k].astype(np.int64) for k in range(3))
    tails = (h * (2 * relations) + r) * entities + t
    heads = (t * (2 * relations) + r + relations) * entities + h
    return np.unique(np.concatenate([tails, heads]))


def filtered_ranks(scores: Tensor, triples: Tensor, side: int, known: Tensor, relations: int) -> Tensor:
    """Return ranks (B,) float32 from scores (B, entities), which are overwritten, of the tails (side 0) or heads (1) of
    triples (B, 3). `known` comes from `known_answers`. A NaN score ranks worst for the right answer and best for any
    other: no model gains from NaN."""
    entities = scores.shape[1]
    answers = triples[:, 2 - 2 * side]
    own = scores.gather(1, answers[:, None])
    questions = (triples[:, 2 * side] * (2 * relations) + triples[:, 1] + relations * side) * entities
    first, stop = torch.searchsorted(known, questions), torch.searchsorted(known, questions + entities)
    counts = stop - first
    rows = torch.repeat_interleave(torch.arange(len(triples), device=known.device), counts)
    begins = counts.cumsum(0) - counts
    places = torch.arange(len(rows), device=known.device) - begins[rows] + first[rows]
    scores[rows, known[places] - questions[rows]] = -torch.inf
    scores.scatter_(1, answers[:, None], -torch.inf)
    tied = (scores == own).sum(1)
    above = (~(scores <= own)).sum(1)
    return 1.0 + above.float() + 0.5 * tied.float()
