"""The arithmetic of a round between nodes, with as many anchors in this process as there are nodes."""

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from hogwild.optimizers import FTRL
from hogwild.parameters.anchor import BUFFER_SUMS, CHANGED, CHANGERS, MOMENTUM, RATE, Anchor
from hogwild.parameters.flat_layout import FlatLayout, plan_flats, region_name
from hogwild.parameters.shared_model import SharedModel
from hogwild.shared_memory.region import Region
from tests.shared_model import (
    attach,
    build,
    one_thread,  # noqa: F401 (a fixture for every test here)
)

ROWS, WIDTH = 50, 3


class TwoKinds(nn.Module):
    """A dense layer and a sparse table."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(40, 30)
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)


class NodeMemory:
    """One node: its flat and its anchor."""

    def __init__(self, layout: FlatLayout, initial: Tensor, outer: str) -> None:
        regions = {region_name(d): Region.allocate("flat", n * d.itemsize) for d, n in layout.sizes.items()}
        self.flat = regions[region_name(torch.float32)].tensor(torch.float32, (layout.sizes[torch.float32],))
        self.flat.copy_(initial)
        self.anchor = Anchor(layout, regions, outer)
        self.anchor.restart()

    @property
    def sums(self) -> Tensor:
        return self.anchor._words[0].sums

    @property
    def agreed(self) -> Tensor:
        return self.anchor._words[0].anchor


def nodes_of(count: int, outer: str = "average") -> tuple[FlatLayout, list[NodeMemory]]:
    torch.manual_seed(5)
    model = TwoKinds()
    layout = plan_flats(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    initial = torch.randn(layout.sizes[torch.float32])
    return layout, [NodeMemory(layout, initial, outer) for _ in range(count)]


def exchange(nodes: Sequence[NodeMemory], updates: Sequence[int]) -> None:
    """Do the communicators' part: sums over all nodes, and the number of nodes that set each bit."""
    for node, made in zip(nodes, updates, strict=True):
        node.anchor.offer(made)
    total = sum(node.sums.clone() for node in nodes)
    bits = sum(np.unpackbits(node.anchor.regions[CHANGED].array(np.uint8, (-(-ROWS // 8),))) for node in nodes)
    for node in nodes:
        node.sums.copy_(total)
        node.anchor.regions[CHANGERS].array(np.uint16, (ROWS,))[:] = bits[:ROWS]
        node.anchor.settle(sum(updates), len(nodes))


def round_of(nodes: Sequence[NodeMemory], updates: Sequence[int]) -> None:
    for node in nodes:
        assert node.anchor.cut()
    exchange(nodes, updates)
    for node in nodes:
        node.anchor.apply()


def place(layout: FlatLayout, name: str) -> slice:
    slot = next(slot for slot in layout.params if slot.name == name)
    return slice(slot.offset, slot.offset + int(np.prod(slot.shape)))


def test_dense_words_move_by_the_mean_weighted_by_updates_and_all_nodes_agree_to_the_bit() -> None:
    layout, nodes = nodes_of(3)
    dense, before = place(layout, "dense.weight"), nodes[0].flat.clone()
    moves = [torch.randn_like(before[dense]) for _ in nodes]
    for node, move in zip(nodes, moves, strict=True):
        node.flat[dense] += move
    round_of(nodes, [1, 2, 5])
    expected = before[dense] + (moves[0] + 2 * moves[1] + 5 * moves[2]) / 8
    torch.testing.assert_close(nodes[0].agreed[dense], expected)
    for node in nodes:
        assert torch.equal(node.agreed, nodes[0].agreed)
        assert torch.equal(node.flat[: len(node.agreed)], node.agreed)  # nobody trained meanwhile: the anchor's bits


def test_a_row_of_a_sparse_table_is_divided_by_the_nodes_that_changed_it() -> None:
    layout, nodes = nodes_of(3, "nesterov")
    table, before = place(layout, "table.weight"), nodes[0].flat.clone()
    rows = [node.flat[table].view(ROWS, WIDTH) for node in nodes]
    rows[0][7] += 1  # by one node
    rows[0][9] += 1
    rows[2][9] += 3  # by two
    round_of(nodes, [1000, 1, 1])
    moved = (nodes[1].agreed[table] - before[table]).view(ROWS, WIDTH)
    torch.testing.assert_close(moved[7], torch.ones(WIDTH))
    torch.testing.assert_close(moved[9], torch.full((WIDTH,), 2.0))
    assert moved.abs().sum(dim=1).count_nonzero() == 2


def test_what_a_node_trains_during_the_exchange_survives_it() -> None:
    layout, nodes = nodes_of(2)
    dense, table = place(layout, "dense.weight"), place(layout, "table.weight")
    for node in nodes:
        node.flat[dense] += 1
        assert node.anchor.cut()
    nodes[0].flat[dense] += 10
    nodes[0].flat[table][:WIDTH] += 5
    exchange(nodes, [1, 1])
    for node in nodes:
        node.anchor.apply()
    torch.testing.assert_close(nodes[0].flat[dense] - nodes[0].agreed[dense], torch.full((1200,), 10.0))
    torch.testing.assert_close(nodes[0].flat[table][:WIDTH] - nodes[0].agreed[table][:WIDTH], torch.full((WIDTH,), 5.0))
    round_of(nodes, [1, 1])  # and counts in the next round
    torch.testing.assert_close(nodes[1].agreed, nodes[0].agreed)
    torch.testing.assert_close(nodes[1].flat[: len(nodes[1].agreed)], nodes[1].agreed)


def test_nesterov_is_the_outer_rule_of_its_paper() -> None:
    layout, nodes = nodes_of(2, "nesterov")
    dense, expected = place(layout, "dense.weight"), nodes[0].flat.clone()
    momentum = torch.zeros(1200)
    for step in (0.5, -0.25, 1.0):
        for node in nodes:
            node.flat[dense] += step
        round_of(nodes, [3, 3])
        momentum = MOMENTUM * momentum + step
        expected[dense] += RATE * (step + MOMENTUM * momentum)
        torch.testing.assert_close(nodes[0].agreed[dense], expected[dense])
    saved = nodes[0].anchor.momentum()
    nodes[1].anchor.restore_momentum({name: torch.zeros_like(value) for name, value in saved.items()})
    nodes[1].anchor.restore_momentum(saved)
    assert torch.equal(nodes[1].anchor.momentum()["torch.float32"], saved["torch.float32"])


def test_a_node_alone_keeps_its_own_bits() -> None:
    _, nodes = nodes_of(1, "nesterov")
    nodes[0].flat += 0.1
    has = nodes[0].flat.clone()
    round_of(nodes, [7])
    assert torch.equal(nodes[0].flat, has)
    assert torch.equal(nodes[0].agreed, has[: len(nodes[0].agreed)])


def test_constant_increments_of_nodes_that_never_rest_keep_their_mean() -> None:
    layout, nodes = nodes_of(2)
    dense, before = place(layout, "dense.weight"), nodes[0].flat.clone().double()
    rounds, made = 20, [3, 1]
    for _ in range(rounds):
        for node, increments in zip(nodes, made, strict=True):
            node.flat[dense] += 0.125 * increments
            assert node.anchor.cut()
            node.flat[dense] += 0.125 * increments  # while the round is exchanged
        exchange(nodes, [1, 1])
        for node in nodes:
            node.anchor.apply()
    round_of(nodes, [1, 1])
    moved = nodes[0].agreed[dense].double() - before[dense]
    bound = rounds * 4 * torch.finfo(torch.float32).eps * nodes[0].agreed[dense].abs().max()
    assert float((moved - 0.125 * 2 * rounds * 2).abs().max()) <= float(bound)


def test_an_evaluation_sees_the_anchor_and_the_node_goes_on_with_what_it_had() -> None:
    layout, nodes = nodes_of(2)
    dense = place(layout, "dense.weight")
    first, other = nodes
    agreed = first.agreed.clone()
    first.flat[dense] += 1
    had = first.flat.clone()
    assert first.anchor.cut()
    first.anchor.hold()
    assert torch.equal(first.flat[: len(agreed)], agreed)
    first.anchor.release()
    assert torch.equal(first.flat, had)
    # A round is committed while it looks: it goes on from there.
    first.anchor.cut()
    first.anchor.hold()
    other.anchor.cut()
    exchange(nodes, [1, 1])
    for node in nodes:
        node.anchor.apply()
    assert torch.equal(first.flat[: len(agreed)], agreed)
    first.anchor.cut()  # another round during the same look: nothing new to offer
    first.anchor.offer(4)
    assert not first.sums.any()
    first.anchor.release()
    assert torch.equal(first.flat[: len(agreed)], first.agreed)
    torch.testing.assert_close(first.agreed[dense], agreed[dense] + 0.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_cut_that_is_not_finite_is_noticed(bad: float) -> None:
    _, nodes = nodes_of(1)
    nodes[0].flat[3] = bad
    assert not nodes[0].anchor.cut()
    nodes[0].anchor.take()
    assert nodes[0].anchor.cut()


def test_words_that_nobody_changed_are_not_written() -> None:
    layout, nodes = nodes_of(2)
    table = place(layout, "table.weight")
    for node in nodes:
        node.anchor.cut()
    nodes[1].flat[table][:WIDTH] += 1
    nodes[1].anchor.cut()
    exchange(nodes, [1, 1])
    nodes[0].flat[table][WIDTH:] = float("nan")  # if they were written, it would be read and added to
    nodes[0].anchor.apply()
    assert nodes[0].flat[table][WIDTH:].isnan().all()
    assert not nodes[0].flat[table][:WIDTH].isnan().any()


class Signs(nn.Module):
    """One weight for each feature, all 0."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, 1))


class FtrlNodes:
    """Nodes that train by FTRL, and one process that sees all their gradients in turn."""

    def __init__(self, nodes: int, features: int) -> None:
        models = [Signs(features) for _ in range(nodes)]
        self.shared = [build(model, FTRL(model.parameters(), lr=0.1, l1=1.0), state="shared") for model in models]
        self.anchors = [Anchor(s.layout.flats, s.regions, "nesterov", {"weight"}, None, s.sums()) for s in self.shared]
        self.workers, self.alone = [attach(each) for each in self.shared], Signs(features)
        self.rule = FTRL(self.alone.parameters(), lr=0.1, l1=1.0)
        self.was_0 = torch.ones(features, 1, dtype=torch.bool)  # at every moment, in every process

    def round(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Train by the gradients (features, 1) of each node, and exchange."""
        for worker, anchor, own in zip(self.workers, self.anchors, gradients, strict=True):
            for gradient in own:
                for param, rule in ((self.alone.weight, self.rule), (worker.params[0], worker.optimizer)):
                    param.grad = gradient.clone()
                    rule.step()
                    self.was_0 &= param == 0
            anchor.cut()
            anchor.offer(len(own))
        for words in zip(*(anchor._words for anchor in self.anchors), strict=True):
            total = torch.stack([each.sums for each in words]).sum(0)
            for each in words:
                each.sums.copy_(total)
        count = len(self.was_0)
        bits = [anchor.regions[CHANGED].array(np.uint8, (-(-count // 8),)) for anchor in self.anchors]
        changers = sum(np.unpackbits(each) for each in bits)
        for anchor in self.anchors:
            anchor.regions[CHANGERS].array(np.uint16, (count,))[:] = changers[:count]
            anchor.settle(sum(map(len, gradients)), len(self.anchors))
            anchor.apply()


@given(
    nodes=st.integers(2, 4),
    rounds=st.integers(1, 6),
    updates=st.integers(1, 5),
    drift=st.floats(-0.1, 0.1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_what_ftrl_remembers_of_a_weight_that_stays_0_is_the_sum_over_all_nodes(
    nodes: int, rounds: int, updates: int, drift: float, seed: int
) -> None:
    features, random = 6, torch.Generator().manual_seed(seed)
    cluster = FtrlNodes(nodes, features)
    for _ in range(rounds):
        cluster.round(list(drift + 0.1 * torch.randn(nodes, updates, features, 1, generator=random)))
    expected = cluster.rule.state[cluster.alone.weight]["z"]
    for shared in cluster.shared:
        [(z, _)] = shared.sums()
        torch.testing.assert_close(z[:features, None][cluster.was_0], expected[cluster.was_0])
        assert torch.equal(z, cluster.shared[0].sums()[0][0])
        assert torch.equal(shared.model.weight, cluster.shared[0].model.weight)


def test_l1_weighs_in_a_cluster_as_in_one_process_and_a_weight_at_0_stays_there() -> None:
    """With a z for each node, the weight would be 0 until every node alone has seen 10 gradients."""
    cluster, push = FtrlNodes(3, 1), torch.full((1, 1), -0.11)
    for _ in range(3):
        cluster.round([[push]] * 3)
    assert cluster.alone.weight == 0 and not any(shared.model.weight for shared in cluster.shared)
    cluster.round([[push]] * 3)  # more than 9 of these are more than l1
    assert cluster.alone.weight > 0 and all(shared.model.weight > 0 for shared in cluster.shared)
    cluster.round([[-2 * push] * 2] * 3)
    assert cluster.alone.weight == 0 and not any(shared.model.weight for shared in cluster.shared)
    cluster.round([[0 * push]] * 3)  # the outer momentum does not move it
    assert not any(shared.model.weight for shared in cluster.shared)


MEAN, VARIANCE = 3.0, 6e-4  # of the data: far from the start, which is 0 and 1


class Counted(nn.Module):
    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(2, momentum=momentum), nn.Linear(2, 1)
        self.register_buffer("rows", torch.tensor(5))
        self.register_buffer("has_trained", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        self.has_trained.fill_(True)
        return self.out(self.norm(x))


class Node:
    """Two workers of one node, and its side of the rounds."""

    def __init__(self, model: Counted) -> None:
        self.shared: SharedModel = build(model, optim.SGD(model.parameters(), 0.1), procs=2)
        layout = self.shared.layout
        self.anchor = Anchor(layout.flats, self.shared.regions, "average", (), (layout.buffers, 2))
        self.anchor.restart()
        self.model, self.workers = model, [attach(self.shared, k).model for k in range(2)]
        self.since = [0, 0]

    def train(self, batches: list[Tensor]) -> None:
        for number, batch in enumerate(batches):
            self.workers[number % 2](batch)
            self.since[number % 2] += 1

    def merge(self) -> None:
        self.shared.merge_buffers(self.since)
        self.since = [0, 0]

    def cut(self) -> None:
        self.merge()
        self.anchor.cut()

    @property
    def sums(self) -> Tensor:
        region = self.anchor.regions[BUFFER_SUMS]
        return region.tensor(torch.float64, (region.nbytes // 8,))


class Cluster:
    """Nodes, and the plain model that sees every batch in turn."""

    def __init__(self, count: int, momentum: float | None) -> None:
        torch.manual_seed(0)
        model = Counted(momentum)
        self.alone, self.seen = copy.deepcopy(model), list[Tensor]()
        self.nodes = [Node(copy.deepcopy(model)) for _ in range(count)]

    def train(self, counts: list[int]) -> None:
        for node, count in zip(self.nodes, counts, strict=True):
            batches = [MEAN + VARIANCE**0.5 * torch.randn(8, 2) for _ in range(count)]
            node.train(batches)
            self.seen += batches
            for batch in batches:
                self.alone(batch)

    def exchange(self) -> None:
        """Offer, sum and settle what the nodes have cut."""
        for node in self.nodes:
            node.anchor.offer(1)
        total = sum(node.sums.clone() for node in self.nodes)
        for node in self.nodes:
            node.sums.copy_(total)
            node.anchor.settle(len(self.nodes), len(self.nodes))
            node.anchor.apply()

    def cut(self) -> None:
        for node in self.nodes:
            node.cut()

    def take(self) -> None:
        for node in self.nodes:
            node.anchor.take()

    def assert_as_one_process(self) -> None:
        first = self.nodes[0].model
        for node in self.nodes:
            assert all(map(torch.equal, node.model.buffers(), first.buffers()))
        assert first.norm.num_batches_tracked == self.alone.norm.num_batches_tracked == len(self.seen)
        assert first.rows == self.alone.rows
        assert first.has_trained == bool(self.seen)
        if not self.seen:
            return
        for name, own in (
            ("running_mean", torch.stack([batch.mean(0) for batch in self.seen])),
            ("running_var", torch.stack([batch.var(0) for batch in self.seen])),
        ):
            difference = (getattr(first.norm, name) - getattr(self.alone.norm, name)).abs()
            assert (difference <= own.amax(0) - own.amin(0) + 1e-5).all(), name


@given(
    momentum=st.sampled_from([None, 0.01, 0.1, 1.0]),
    rounds=st.integers(2, 4).flatmap(
        lambda nodes: st.lists(
            st.tuples(*(st.lists(st.integers(0, 30), min_size=nodes, max_size=nodes) for _ in range(2))),
            min_size=1,
            max_size=4,
        )
    ),
)
@settings(max_examples=25, deadline=None)
def test_statistics_of_all_nodes_are_those_of_one_process(momentum: float | None, rounds: list) -> None:
    """Workers train while a round is on its way; a round that is given up is in the next one."""
    cluster = Cluster(len(rounds[0][0]), momentum)
    for number, (before, meanwhile) in enumerate(rounds):
        cluster.train(before)
        cluster.cut()
        cluster.train(meanwhile)
        if number % 3 != 1:
            cluster.exchange()
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()


def test_what_is_looked_at_is_the_committed_round_and_what_came_later_is_kept() -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.cut()
    cluster.exchange()
    committed = len(cluster.seen)
    cluster.train([10, 5])
    cluster.cut()
    first = cluster.nodes[0]
    first.anchor.hold()
    assert first.model.norm.num_batches_tracked == committed
    assert all(worker.norm.num_batches_tracked == committed for worker in first.workers)
    cluster.exchange()  # during the long look of the first node
    first.merge()
    first.anchor.release()
    assert first.model.norm.num_batches_tracked == len(cluster.seen)
    cluster.train([7, 3])
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()


def test_a_look_between_two_rounds_changes_nothing() -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.cut()
    for node in cluster.nodes:
        node.anchor.hold()
        node.anchor.release()
    cluster.train([20, 30])
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()


def test_a_node_with_statistics_that_are_not_finite_spoils_no_other() -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.nodes[0].merge()
    cluster.nodes[0].model.norm.running_mean.fill_(float("nan"))
    cluster.cut()
    cluster.exchange()
    cluster.take()
    assert all(torch.isfinite(node.model.norm.running_mean).all() for node in cluster.nodes)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node_takes_only_its_uncommitted_batches_with_it(lost: int) -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.cut()
    cluster.exchange()
    del cluster.nodes[lost]
    cluster.train([25])
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()
