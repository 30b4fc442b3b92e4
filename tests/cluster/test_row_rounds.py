"""The rows of tables that travel in a round: real communicators and anchors, as many as there are nodes, in threads of
this process and over gloo. Dense rounds beside them, which add up everything, have the same bits."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hogwild.cluster.members import WORDS, RoundWord
from hogwild.parameters.anchor import CHANGED, CHANGERS, Anchor
from hogwild.parameters.flat_layout import FlatLayout, plan_flats, region_name
from hogwild.shared_memory.region import Region
from hogwild.workers.child import communicator
from hogwild.workers.child.communicator import Communicator
from hogwild.workers.messages import CommunicateTask, Leaving, Start, receive_parcels
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

BOUND = 3.0  # of the sums beside the parameters


class Tables(nn.Module):
    """A dense layer, tables with these (rows, columns), and a layer that is not trained."""

    def __init__(self, shapes: Sequence[tuple[int, int]], dense: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dense = nn.Parameter(torch.zeros(dense, dtype=dtype))
        self.tables = nn.ModuleList(nn.Embedding(*shape, sparse=True, dtype=dtype) for shape in shapes)
        self.frozen = nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)


class Memory:
    """A node's flat, a sum beside it, and its anchor."""

    def __init__(self, layout: FlatLayout, initial: Tensor, outer: str = "average") -> None:
        name = region_name(initial.dtype)
        regions = {name: Region.allocate("flat", initial.nbytes)}
        self.layout, self.flat = layout, regions[name].tensor(initial.dtype, initial.shape)
        self.flat.copy_(initial)
        self.beside = torch.zeros(77)
        self.anchor = Anchor(layout, regions, outer, beside=[(self.beside, BOUND)])
        self.anchor.restart()

    def tables(self) -> list[Tensor]:
        return [
            self.flat[slot.offset : slot.offset + int(np.prod(slot.shape))].view(slot.shape)
            for slot in self.layout.params
            if slot.sparse
        ]

    @property
    def dense(self) -> Tensor:
        slot = next(slot for slot in self.layout.params if slot.name == "dense")
        return self.flat[slot.offset : slot.offset + slot.shape[0]]

    def bits(self) -> bytes:
        """Return the anchor, bit by bit."""
        return b"".join(words.anchor.view(torch.uint8).numpy().tobytes() for words in self.anchor._words)


class Dead(RuntimeError):
    """The communicator of a node has died here."""


@dataclass
class Counted:
    """A group of gloo that counts the bytes of what it is given. `calls`: that it serves before its node dies."""

    group: Any
    size: int
    sent: float = 0.0
    calls: float = float("inf")

    def allreduce(self, values: list[Tensor], options: Any) -> Any:
        return self._counted(2 * (self.size - 1) / self.size * values[0].nbytes).allreduce(values, options)

    def allgather(self, found: list[list[Tensor]], own: list[Tensor]) -> Any:
        return self._counted((self.size - 1) * own[0].nbytes).allgather(found, own)

    def alltoall_base(self, found: Tensor, own: Tensor, *options: Any) -> Any:
        return self._counted((self.size - 1) / self.size * own.nbytes).alltoall_base(found, own, *options)

    def _counted(self, sent: float) -> Any:
        if not self.calls:
            raise Dead
        self.calls -= 1
        self.sent += sent
        return self.group


class Peer:
    """A node with its communicator."""

    def __init__(self, memory: Memory, rank: int, world: int, store: Any) -> None:
        self.memory, self.rank, self.sent = memory, rank, 0
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        lifeline, self._alive = os.pipe()
        self._open = [theirs, self._ours]
        self._pipe = [lifeline, self._alive]
        words = Region.allocate("words", 8 * WORDS)
        self.words = words.array("i8", (WORDS,))
        start = Start(0, -1, -1, theirs.fileno(), lifeline, 0, ())
        task = CommunicateTask(rank=rank, world=world, run_id="", address="127.0.0.1", port=0)
        regions = {"words": words, **memory.anchor.regions}
        self.communicator = Communicator(start, theirs, Leaving(), task, regions)
        self.communicator._store = store

    def form(self, generation: int, members: Sequence[int]) -> None:
        self.communicator._form(generation, members)
        self.communicator._group = Counted(self.communicator._group, len(members))

    def exchange(self, number: int) -> None:
        self.communicator._note = {"of": self.rank}
        self.communicator._exchange(number)
        heard = {parcel["kind"]: parcel for parcel in receive_parcels(self._ours)}
        assert heard["noted"]["notes"].keys() == {str(number) for number in self.communicator.members}
        self.sent = heard["committed"]["bytes"]

    def close(self) -> None:
        self.communicator._group = None
        for each in self._open:
            each.close()
        for descriptor in self._pipe:
            os.close(descriptor)


def at_once(peers: Sequence[Peer], call: Callable[[Peer], object]) -> list[object]:
    """Let each peer do this, at the same time; return what each returned, or raised: then its connections close, as
    those of a communicator that forms the next group."""

    def one(peer: Peer) -> object:
        try:
            return call(peer)
        except RuntimeError as error:
            peer.communicator._group = None
            return error.with_traceback(None)  # it would keep the group's connections open

    with ThreadPoolExecutor(len(peers)) as threads:
        return list(threads.map(one, peers))


@contextlib.contextmanager
def connected(memories: Sequence[Memory]) -> Iterator[list[Peer]]:
    store = dist.HashStore()
    peers = [Peer(memory, rank, len(memories), store) for rank, memory in enumerate(memories)]
    try:
        assert at_once(peers, lambda peer: peer.form(1, range(len(peers)))) == [None] * len(peers)
        yield peers
    finally:
        for peer in peers:
            peer.close()


def nodes_of(count: int, model: nn.Module, outer: str = "average", zeros: bool = False) -> list[Memory]:
    layout = plan_flats(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    dtype = next(model.parameters()).dtype
    initial = torch.zeros(layout.sizes[dtype], dtype=dtype) if zeros else torch.randn(layout.sizes[dtype]).to(dtype)
    initial[::5] = -0.0
    return [Memory(layout, initial, outer) for _ in range(count)]


def change(memories: Sequence[Memory], shares: Sequence[float], seed: int) -> None:
    """Let node k change this share of all rows, all nodes the first row of each table, and node 0 every dense word."""
    for number, (memory, share) in enumerate(zip(memories, shares, strict=True)):
        random = torch.Generator().manual_seed(1000 * seed + number)
        for table in memory.tables():
            rows = torch.rand(len(table), generator=random) < share
            rows[0] |= share > 0
            step = torch.randn(table.shape, generator=random).to(table.dtype)
            step[:, 1:] *= torch.rand(step[:, 1:].shape, generator=random) < 0.5  # words of a row that stay as they are
            table[rows] += step[rows]
        some = torch.rand(len(memory.beside), generator=random) < share
        memory.beside[some] += torch.randn(int(some.sum()), generator=random)
        if not number:
            memory.dense.add_(torch.randn(len(memory.dense), generator=random).to(memory.dense.dtype))


def add_up_densely(plain: Sequence[Memory], sparse: Sequence[Memory]) -> None:
    """Add up every word of all nodes in their order, and count the nodes that changed a row. The dense words are those
    of the communicators: where three nodes or more add up, gloo's order is its own."""
    for mine, theirs in zip(
        zip(*(memory.anchor._words for memory in plain), strict=True),
        zip(*(memory.anchor._words for memory in sparse), strict=True),
        strict=True,
    ):
        total = mine[0].sums.clone()
        for words in mine[1:]:
            total += words.sums
        for words in mine:
            words.sums.copy_(total)
            for start, stop in words.dense if len(mine) > 2 else ():
                words.sums[start:stop] = theirs[0].sums[start:stop]
    changed = [memory.anchor.regions[CHANGED] for memory in plain]
    counts = sum(np.unpackbits(region.array("u1", (region.nbytes,))).astype("u2") for region in changed)
    for memory in plain:
        rows = memory.anchor._rows
        memory.anchor.regions[CHANGERS].array("u2", (rows,))[:] = counts[:rows]


def round_of(peers: Sequence[Peer], plain: Sequence[Memory], updates: Sequence[int], number: int) -> None:
    both = [*(peer.memory for peer in peers), *plain]
    for memory, made in zip(both, [*updates, *updates], strict=True):
        assert memory.anchor.cut()
        memory.anchor.offer(made)
    assert at_once(peers, lambda peer: peer.exchange(number)) == [None] * len(peers)
    add_up_densely(plain, [peer.memory for peer in peers])
    for memory in both:
        memory.anchor.settle(sum(updates), len(plain))
        memory.anchor.apply()


SHARES = st.sampled_from([0.0, 0.02, 0.3, 1.0])


@given(
    shapes=st.lists(st.tuples(st.integers(1, 90), st.sampled_from([1, 2, 3, 16, 70])), min_size=1, max_size=3),
    rounds=st.integers(2, 4).flatmap(
        lambda nodes: st.lists(
            st.lists(st.tuples(SHARES, st.integers(0, 9)), min_size=nodes, max_size=nodes), min_size=1, max_size=3
        )
    ),
    outer=st.sampled_from(["average", "nesterov"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    piece=st.sampled_from([64, 200, 1 << 19]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_a_round_in_which_only_changed_rows_travel_has_the_bits_of_a_dense_one(
    shapes: list[tuple[int, int]],
    rounds: list[list[tuple[float, int]]],
    outer: str,
    dtype: torch.dtype,
    piece: int,
    seed: int,
) -> None:
    """Hot rows that all change, rows of one node, tables that nobody or everybody changes whole, nodes that have made
    no update, sums beside the parameters; pieces that cut a row."""
    torch.manual_seed(seed)
    count = len(rounds[0])
    model = Tables(shapes, dense=20, dtype=dtype)
    state = torch.get_rng_state()
    ours = nodes_of(count, model, outer)
    torch.set_rng_state(state)
    plain = nodes_of(count, model, outer)
    with pytest.MonkeyPatch.context() as patch, connected(ours) as peers:
        patch.setattr(communicator, "PIECE", piece)
        for number, made in enumerate(rounds, 1):
            shares, updates = zip(*made, strict=True)
            change(ours, shares, seed + number)
            change(plain, shares, seed + number)
            round_of(peers, plain, updates, number)
            assert [memory.bits() for memory in ours] == [memory.bits() for memory in plain]
            assert len({memory.bits() for memory in ours}) == 1
            for peer in peers:
                assert peer.words[RoundWord.COMMITTED] == peer.words[RoundWord.BUFFERED] == number


@pytest.mark.parametrize(("nodes", "width"), [(2, 1), (2, 16), (4, 4)])
def test_a_round_with_1_percent_of_a_million_rows_sends_at_most_a_twentieth_of_all_rows(nodes: int, width: int) -> None:
    rows = 1_000_000
    memories = nodes_of(nodes, Tables([(rows, width)], dense=10), zeros=True)
    for number, memory in enumerate(memories):
        random = torch.Generator().manual_seed(number)
        memory.tables()[0][torch.randperm(rows, generator=random)[: rows // (100 * nodes)]] += 1
        memory.anchor.cut()
        memory.anchor.offer(1)
    with connected(memories) as peers:
        before = peers[0].communicator._group.sent
        assert at_once(peers, lambda peer: peer.exchange(1)) == [None] * nodes
        sent = peers[0].communicator._group.sent - before
    dense = 2 * (nodes - 1) / nodes * 4 * rows * width + rows / 8 * (nodes - 1)  # every word, and a bit of each row
    assert sent <= 0.05 * dense
    assert peers[0].sent == pytest.approx(sent, abs=1000)  # what the summary counts; ticks and sizes are not in it


def test_a_round_in_which_all_rows_changed_sends_no_more_than_all_rows() -> None:
    memories = nodes_of(2, Tables([(20_000, 8)], dense=10), zeros=True)
    for memory in memories:
        memory.tables()[0].add_(1)
        memory.anchor.cut()
        memory.anchor.offer(1)
    with connected(memories) as peers:
        assert at_once(peers, lambda peer: peer.exchange(1)) == [None] * 2
    assert peers[0].sent <= 1.01 * 4 * 20_000 * 8


@pytest.mark.parametrize("calls", range(8))
def test_a_node_that_dies_in_a_round_leaves_no_half_sum_and_the_others_make_the_round_without_it(
    monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """`calls`: collectives that the last node takes part in, before it is gone."""
    monkeypatch.setattr(communicator, "PIECE", 400)
    torch.manual_seed(3)
    model = Tables([(60, 4)], dense=20)
    memories = nodes_of(3, model)
    initial = memories[0].flat.clone()
    shares = [0.5, 0.2, 1.0]
    change(memories, shares, 1)
    for memory in memories:
        memory.anchor.cut()
        memory.anchor.offer(1)
    with connected(memories) as peers:
        peers[2].communicator._group.calls = calls
        ends = at_once(peers, lambda peer: peer.exchange(1))
        assert isinstance(ends[2], Dead)
        assert all(isinstance(end, RuntimeError) for end in ends[:2]), ends
        for peer in peers[:2]:
            assert peer.words[RoundWord.COMMITTED] == peer.words[RoundWord.BUFFERED] == 0
        assert at_once(peers[:2], lambda peer: peer.form(2, (0, 1))) == [None, None]
        plain = [Memory(memories[0].layout, initial) for _ in range(2)]
        change(plain, shares[:2], 1)
        round_of(peers[:2], plain, [2, 5], 1)
    assert [memory.bits() for memory in memories[:2]] == [memory.bits() for memory in plain]
