"""Knowledge graphs: the kernel against autograd, the race at its accumulator, filtered ranks, and what is refused."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adagrad, Adam

from hogwild.errors import ModelError
from hogwild.kernels.fused import Chunk
from hogwild.losses import CandidateLogisticLoss, MarginLoss, SoftmaxLoss
from hogwild.metrics.built_in import hits_1, hits_3, hits_10, mrr
from hogwild.models.knowledge_graph import (
    GROUP,
    ComplEx,
    DistMult,
    GraphUpdate,
    KnowledgeGraph,
    RotatE,
    TransE,
)
from hogwild.optimizers import RowWiseAdagrad

pytest.importorskip("numba")
from hogwild.kernels import knowledge_graph

pytestmark = pytest.mark.slow

MODELS = (ComplEx, DistMult, TransE, RotatE)
LOSSES = (SoftmaxLoss(), CandidateLogisticLoss(), MarginLoss(2.0))
ENTITIES, RELATIONS, DRAWN = 30, 4, 13


def triples(count: int = 200, entities: int = ENTITIES) -> np.ndarray:
    """(count, 3) int32, at random."""
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, size, count) for size in (entities, RELATIONS, entities)]
    return np.stack(columns, 1).astype(np.int32)


def made(kind: type[KnowledgeGraph], reciprocal: bool = True) -> KnowledgeGraph:
    torch.manual_seed(0)
    model = kind(ENTITIES, RELATIONS, dim=22, negatives=DRAWN, reciprocal=reciprocal, init_scale=0.5, sparse=False)
    torch.nn.init.normal_(model.relations.weight)
    return model


def bound(
    model: KnowledgeGraph, loss: torch.nn.Module, optimizer: torch.optim.Optimizer, data: np.ndarray
) -> GraphUpdate:
    update = model.fused(loss, optimizer)
    assert isinstance(update, GraphUpdate), update
    update.bind(model, optimizer, {"triple": data}, {})
    return update


def drawn_by(update: GraphUpdate) -> torch.Tensor:
    """The entities that the last group was compared with."""
    names, _, places, *_ = update._scratch[0]
    return torch.from_numpy(names[places[:DRAWN]].copy())


# ---- kernel and autograd


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_the_kernel_does_to_one_triple_what_autograd_does(kind: type[KnowledgeGraph], reciprocal: bool) -> None:
    for loss, rule in itertools.product(LOSSES, (SGD, Adagrad, RowWiseAdagrad)):
        model = made(kind, reciprocal)
        plain = copy.deepcopy(model)
        update = bound(model, loss, rule(model.parameters(), lr=0.1), triples())
        tally = update.run(Chunk(np.array([5]), seed=77))
        optimizer = rule(plain.parameters(), lr=0.1)
        value = loss(plain.scores(torch.from_numpy(triples()[5:6]).long(), drawn_by(update)), torch.ones(1))
        value.backward()
        optimizer.step()
        assert tally.applied == 1
        assert tally.loss == pytest.approx(value.item(), abs=1e-5)
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6), f"{loss.kind}, {rule.__name__}"


@pytest.mark.parametrize("kind", MODELS)
def test_a_group_is_a_batch_that_shares_its_negatives_and_each_row_is_written_once(kind: type[KnowledgeGraph]) -> None:
    """37 triples of 30 entities: heads, tails and negatives meet, and negatives are right answers of some."""
    for loss, n3 in itertools.product(LOSSES, (0.0, 0.2)):
        model, rows = made(kind), np.arange(37)
        model.n3, model.log_q = n3, -1.5 if n3 and isinstance(loss, SoftmaxLoss) else 0.0
        plain = copy.deepcopy(model)
        plain.n3 = 37 * n3  # beside the loss, which is multiplied below
        update = bound(model, loss, RowWiseAdagrad(model.parameters(), lr=0.1), triples())
        tally = update.run(Chunk(rows, seed=3))
        optimizer = RowWiseAdagrad(plain.parameters(), lr=0.1)
        value = 37 * loss(plain.scores(torch.from_numpy(triples()[:37]).long(), drawn_by(update)), torch.ones(37))
        value.backward()
        optimizer.step()
        assert tally.loss == pytest.approx(value.item(), rel=1e-5)
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=2e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_autograd_itself_is_right(kind: type[KnowledgeGraph]) -> None:
    torch.manual_seed(0)
    model = kind(5, 2, dim=4, negatives=3, init_scale=0.5, sparse=False).double()
    some, drawn = torch.tensor([[0, 1, 2], [3, 0, 0]]), torch.tensor([0, 1, 4])
    for loss in LOSSES:
        scored = _Scored(model, loss)

        def value(entities: torch.Tensor, relations: torch.Tensor, scored: "_Scored" = scored) -> torch.Tensor:
            params = {"model.entities.weight": entities, "model.relations.weight": relations}
            found: torch.Tensor = torch.func.functional_call(scored, params, (some, drawn))
            return found

        assert torch.autograd.gradcheck(value, tuple(model.parameters()))


class _Scored(torch.nn.Module):
    def __init__(self, model: KnowledgeGraph, loss: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, some: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.loss(self.model.scores(some, drawn), torch.ones(len(some)))
        return value


def test_kernel_and_autograd_learn_the_same_graph_equally_well() -> None:
    """48 entities on a ring, relation k is k + 1 steps on: after 30 epochs both find most answers, from any of five
    initial values."""
    at, steps = np.divmod(np.arange(48 * RELATIONS), RELATIONS)
    data = np.stack([at, steps, (at + steps + 1) % 48], 1).astype(np.int32)
    found: dict[str, list[float]] = {"kernel": [], "autograd": []}
    for name, seed in itertools.product(found, range(5)):
        torch.manual_seed(seed)
        model = ComplEx(48, RELATIONS, dim=32, negatives=24)
        model.on_data({"triple": data})
        optimizer = RowWiseAdagrad(model.parameters(), lr=0.1)
        update = bound(model, SoftmaxLoss(), optimizer, data)
        for epoch in range(30):
            order = np.random.default_rng(epoch).permutation(len(data))
            if name == "kernel":
                update.run(Chunk(order, seed=epoch))
                continue
            for part in np.split(order, range(GROUP, len(order), GROUP)):
                optimizer.zero_grad()
                (len(part) * SoftmaxLoss()(model(torch.from_numpy(data[part])), torch.ones(len(part)))).backward()
                optimizer.step()
        found[name].append(mrr(model.eval()(torch.from_numpy(data)), torch.ones(len(data))))
    kernel, autograd = (float(np.mean(ranks)) for ranks in found.values())
    assert min(kernel, autograd) > 0.72
    assert kernel == pytest.approx(autograd, abs=0.03)


# ---- what a kernel promises


def test_an_empty_chunk_compiles_and_changes_nothing() -> None:
    model = made(ComplEx)
    before = copy.deepcopy(model.state_dict())
    update = bound(model, SoftmaxLoss(), RowWiseAdagrad(model.parameters()), triples())
    assert update.run(Chunk(np.zeros(0, np.int64), seed=1)).applied == 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_what_is_drawn_follows_from_the_seed_and_the_rate_is_the_chunks() -> None:
    ends = []
    for seed, rate in ((1, 1.0), (1, 1.0), (2, 1.0), (1, 0.0)):
        model = made(ComplEx)
        bound(model, SoftmaxLoss(), SGD(model.parameters(), lr=0.1), triples()).run(Chunk(np.arange(200), seed, rate))
        ends.append(model.entities.weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    assert torch.equal(ends[3], made(ComplEx).entities.weight)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_triple_that_is_not_finite_is_counted_and_leaves_the_others_alone(
    kind: type[KnowledgeGraph], poison: float
) -> None:
    data = triples()
    data[:, 1] %= RELATIONS - 1
    data[7, 1] = RELATIONS - 1
    for loss in LOSSES:
        model = made(kind)
        with torch.no_grad():
            model.relations.weight[RELATIONS - 1, 3] = poison
        clean = copy.deepcopy(model)
        optimizer = RowWiseAdagrad(model.parameters(), lr=0.1)
        tally = bound(model, loss, optimizer, data).run(Chunk(np.arange(64), seed=1))
        assert (tally.applied, tally.not_finite) == (63, 1)
        assert np.isfinite(tally.loss)
        assert model.entities.weight.isfinite().all()
        assert optimizer.state[model.entities.weight]["sum"].isfinite().all()
        row, last = clean.relations.weight[RELATIONS - 1], model.relations.weight[RELATIONS - 1]
        assert torch.equal(row.nan_to_num(9.0), last.nan_to_num(9.0))
        twice = RELATIONS + RELATIONS - 1  # the same triple's other question was finite, and is not asked either
        assert torch.equal(clean.relations.weight[twice], model.relations.weight[twice])


def test_weight_decay_is_of_the_rows_that_were_touched() -> None:
    model, rate = made(DistMult), 0.5
    data = np.zeros((1, 3), np.int32)
    optimizer = SGD(model.parameters(), lr=rate, weight_decay=0.25)
    plain, without = copy.deepcopy(model), copy.deepcopy(model)
    update = bound(model, SoftmaxLoss(), optimizer, data)
    update.run(Chunk(np.zeros(1, np.int64), seed=1))
    bound(without, SoftmaxLoss(), SGD(without.parameters(), lr=rate), data).run(Chunk(np.zeros(1, np.int64), seed=1))
    touched = torch.zeros(ENTITIES, 1)
    touched[drawn_by(update)] = touched[0] = 1.0
    decayed = without.entities.weight - rate * 0.25 * touched * plain.entities.weight
    assert torch.allclose(model.entities.weight, decayed, atol=1e-6)


class Overwritten(np.ndarray):
    """Sums into which another worker writes its older value right after each of our writes: ours is lost."""

    def __setitem__(self, place: object, value: object) -> None:
        """Nothing of it stays."""


def naive(rate: float, params: np.ndarray, sums: np.ndarray, gradient: np.ndarray) -> None:
    """Row-wise Adagrad as it is written without workers in mind: adds, and divides by what is there."""
    sums[0, 0] += np.mean(gradient**2)
    params[0] -= rate * gradient / (np.sqrt(sums[0, 0]) + 1e-10)


@pytest.mark.parametrize("rule", [knowledge_graph.ADAGRAD, knowledge_graph.ROW_ADAGRAD])
def test_a_lost_write_of_the_accumulator_never_makes_a_long_step(rule: int) -> None:
    rate, dim = 0.1, 8
    gradient = np.linspace(-0.5, 0.5, dim, dtype=np.float32)[None]
    params = np.zeros((1, dim), np.float32)
    sums = np.zeros((1, dim), np.float32).view(Overwritten)
    numbers = (np.float32(rate), np.float32(1e-10), np.float32(0.0))
    assert knowledge_graph.apply.py_func(rule, *numbers, params, sums, 0, gradient.copy(), 0, dim)
    assert sums.sum() == 0.0  # the write was lost indeed
    longest = rate * dim**0.5
    assert 0.0 < np.linalg.norm(params) <= longest * 1.001
    blown = np.zeros((1, dim), np.float32)
    naive(rate, blown, sums, gradient[0])
    assert np.linalg.norm(blown) > 1e6 * longest


# ---- ranks


def by_hand(model: KnowledgeGraph, known: np.ndarray, asked: np.ndarray) -> list[list[float]]:
    """One score at a time: 1 + those above + half of those that tie, without the other right answers."""
    truth = {tuple(triple) for triple in known.tolist()}
    found = []
    for h, r, t in asked.tolist():
        ranks = []
        for side, place in ((0, 2), (1, 0)):
            scores = model.score_all(model.queries(torch.tensor([[h, r, t]]), side), model.entities.weight)[0]
            own = scores[(h, r, t)[place]]
            others = [e for e in range(ENTITIES) if e != (h, r, t)[place]]
            wrong = [e for e in others if ((h, r, e) if side == 0 else (e, r, t)) not in truth]
            above, tied = sum(scores[e] > own for e in wrong), sum(scores[e] == own for e in wrong)
            ranks.append(1.0 + float(above) + 0.5 * float(tied))
        found.append(ranks)
    return found


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_ranks_are_filtered_and_ties_count_half(kind: type[KnowledgeGraph], reciprocal: bool) -> None:
    model, known = made(kind, reciprocal).eval(), triples(400)
    with torch.no_grad():
        model.entities.weight[10:20] = model.entities.weight[:10]  # ties
        model.entities.weight.mul_(4).round_()
        model.relations.weight.mul_(4).round_()
    asked = np.concatenate([known[:20], triples(410)[400:]])
    model.on_data({"triple": known[:250]}, {"triple": known[250:]})
    ranks = model(torch.from_numpy(asked))
    assert ranks.dtype == torch.float32
    assert ranks.tolist() == by_hand(model, known, asked)
    assert any(rank % 1 for pair in ranks.tolist() for rank in pair)


def test_a_model_that_diverged_is_ranked_last() -> None:
    model = made(ComplEx).eval()
    with torch.no_grad():
        model.entities.weight.fill_(float("nan"))
    assert (model(torch.from_numpy(triples(5))) >= ENTITIES).all()


def test_an_evaluation_says_one_minus_mrr_and_the_share_of_hits() -> None:
    ranks, targets = torch.tensor([[1.0, 2.0], [4.0, 20.0]]), torch.ones(2)
    assert mrr(ranks, targets) == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 20) / 4)
    assert [hits(ranks, targets) for hits in (hits_1, hits_3, hits_10)] == [0.25, 0.5, 0.75]
    assert SoftmaxLoss()(ranks, targets).item() == pytest.approx(1 - mrr(ranks, targets))
    assert [metric.__name__ for metric in ComplEx.metrics] == ["mrr", "hits_1", "hits_3", "hits_10"]
    assert all(metric.higher_is_better for metric in ComplEx.metrics)


# ---- what is refused


def test_what_the_kernel_does_not_know_is_left_to_autograd_in_words() -> None:
    model = made(ComplEx)
    sgd = SGD(model.parameters(), lr=0.1)
    for loss, optimizer, words in (
        (torch.nn.MSELoss(), sgd, "not for MSELoss"),
        (SoftmaxLoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), "momentum"),
        (SoftmaxLoss(), Adam(model.parameters()), "not Adam"),
        (SoftmaxLoss(), Adagrad(model.parameters(), lr_decay=0.1), "lr_decay"),
    ):
        assert words in model.fused(loss, optimizer)
    assert "float64" in made(ComplEx).double().fused(SoftmaxLoss(), sgd)


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("value", [-1, ENTITIES])
def test_data_that_names_rows_the_model_has_not_is_refused(column: int, value: int) -> None:
    data = triples()
    data[3, column] = value
    model = made(ComplEx)
    with pytest.raises(ModelError, match=f"{value}"):
        bound(model, SoftmaxLoss(), SGD(model.parameters(), lr=0.1), data)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 3}, "even"),
        ({"negatives": 0}, "negatives is 0"),
        ({"negatives": "many"}, "negatives is 'many'"),
        ({"negatives": "all"}, "set sparse: false"),
        ({"n3": -0.1}, "n3 is -0.1"),
        ({"dropout": 1.0}, "dropout below 1"),
    ],
)
def test_arguments_that_make_no_model_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ComplEx(5, 2, **arguments)


# ---- all entities as negatives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_every_entity_is_a_candidate_once_and_n3_is_in_the_gradient(kind: type[KnowledgeGraph]) -> None:
    """Against the definition: cross-entropy over all entities, and the cubed magnitudes of head, relation and tail of
    both questions, as means over the batch."""
    torch.manual_seed(0)
    n3 = 0.3
    model = kind(ENTITIES, RELATIONS, dim=8, negatives="all", sparse=False, n3=n3, init_scale=0.5).double()
    torch.nn.init.normal_(model.relations.weight)
    some = torch.from_numpy(triples(17)).long()
    some[0, 2], some[1, 0] = 0, 0  # the first column is the right answer itself
    SoftmaxLoss()(model(some), torch.ones(len(some))).backward()

    entities, relations = (
        table.weight.detach().clone().requires_grad_() for table in (model.entities, model.relations)
    )
    loss = torch.zeros((), dtype=torch.float64)
    for side in (0, 1):
        asked, related = entities[some[:, 2 * side]], relations[some[:, 1] + RELATIONS * side]
        scores = model.score_all(model.relate(asked, related, 1.0), entities)
        loss = loss + F.cross_entropy(scores, some[:, 2 - 2 * side])
        answers = entities[some[:, 2 - 2 * side]]
        for rows in (asked, answers) if kind is RotatE else (asked, related, answers):
            size = torch.hypot(*rows.chunk(2, 1)) if kind.is_complex else rows.abs()
            loss = loss + n3 * size.pow(3).sum() / len(some)
    loss.backward()
    assert torch.allclose(model.entities.weight.grad, entities.grad, atol=1e-12)
    assert torch.allclose(model.relations.weight.grad, relations.grad, atol=1e-12)


def test_dropout_leaves_numbers_of_queries_out_in_training_only() -> None:
    model = ComplEx(ENTITIES, RELATIONS, dim=40, negatives="all", sparse=False, dropout=0.5, init_scale=0.5)
    some = torch.from_numpy(triples(5)).long()
    queries = model.queries(some, 0)
    assert 0.2 < (queries == 0).float().mean() < 0.8
    assert not torch.equal(queries, model.queries(some, 0))
    model.eval()
    assert torch.equal(model.queries(some, 0), model.queries(some, 0))


def test_drawn_entities_stand_for_all_in_the_softmax() -> None:
    """Each entity drawn once, half of them: the loss is that of all if the other half has the same scores."""
    model = ComplEx(ENTITIES, RELATIONS, dim=8, negatives=ENTITIES // 2, init_scale=0.5, subtract_log_q=True)
    torch.nn.init.normal_(model.relations.weight)
    with torch.no_grad():
        model.entities.weight[ENTITIES // 2 :] = model.entities.weight[: ENTITIES // 2]
    some = torch.tensor([[3, 1, ENTITIES - 2]])  # the right answer is none of the drawn ones
    found = SoftmaxLoss().each(model.scores(some, torch.arange(ENTITIES // 2)))[0, 0]
    scores = model.score_all(model.queries(some, 0), model.entities.weight)
    own = scores[0, ENTITIES - 2]
    expected = torch.logaddexp(own, scores.logsumexp(1)[0]) - own
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ModelError, match="for SoftmaxLoss, not for MarginLoss"):
        model.fused(MarginLoss(), SGD(model.parameters()))


@pytest.mark.parametrize("arguments", [{"negatives": "all", "sparse": False}, {"dropout": 0.1}])
def test_what_the_kernel_has_not_is_trained_by_autograd(arguments: dict[str, Any]) -> None:
    model = ComplEx(ENTITIES, RELATIONS, dim=8, **arguments)
    reason = model.fused(SoftmaxLoss(), SGD(model.parameters(), lr=0.1))
    assert isinstance(reason, str) and "dropout" in reason


def test_what_is_frozen_stays_as_it_is() -> None:
    model = made(ComplEx)
    model.relations.weight.requires_grad_(False)
    before = model.relations.weight.clone()
    optimizer = RowWiseAdagrad([model.entities.weight], lr=0.1)
    bound(model, SoftmaxLoss(), optimizer, triples()).run(Chunk(np.arange(200), seed=1))
    assert torch.equal(model.relations.weight, before)
    assert not torch.equal(model.entities.weight, made(ComplEx).entities.weight)
