"""This node of a cluster: the anchor, the ledger over all nodes, and what it knows of the others. The driver of the
rounds (`supervision/rounds.py`) changes it; the session asks it.

    queue       what this node may lease; its counts of the whole job are live for itself, of the last round for others
    committed   the ledger of the last committed round: what evaluations and checkpoints are of
"""

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from hogwild import host
from hogwild.cluster.launch import Launch
from hogwild.cluster.shares import NodeQueue, Shares
from hogwild.parameters.anchor import Anchor
from hogwild.scheduling.work_queue import Limits, WorkQueue
from hogwild.workers.session.outcome import Outcome

Momentum = dict[str, Tensor]  # of the outer rule, by dtype
PROBE_S = 0.5  # for an answer of another node
OTHERS_S = 5.0  # for the others to end, if this process serves their store
LOOK_MS = 100
LEFT_OUT = 75  # exit status of a node that cannot go on with the others, and may be started again


@dataclass(frozen=True, slots=True)
class _Moment:
    """The committed ledger at one moment."""

    updates: int
    samples: int
    epoch: int
    next_epoch: int
    state: dict[str, Any]


class Committed:
    """The ledger of the last committed round, with the names of a work queue. While the anchor is held it stands still,
    as the parameters do."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._held: _Moment | None = None
        self.open_until = shares.limits.epochs

    def hold(self) -> None:
        shares = self._shares
        self._held = _Moment(shares.updates, shares.samples, shares.epoch, shares.next_epoch, shares.state())

    def release(self) -> None:
        self._held = None

    @property
    def limits(self) -> Limits:
        return self._shares.limits

    @property
    def updates(self) -> int:
        return (self._held or self._shares).updates

    @property
    def samples(self) -> int:
        return (self._held or self._shares).samples

    @property
    def epoch(self) -> int:
        return (self._held or self._shares).epoch

    def is_epoch_settled(self, epoch: int) -> bool:
        return epoch < self.epoch

    def is_begun(self, epoch: int) -> bool:
        return epoch < (self._held or self._shares).next_epoch

    def state(self) -> dict[str, Any]:
        return self._shares.state() if self._held is None else self._held.state


Ledger = WorkQueue | Committed
"""The ledger that evaluations and checkpoints are of."""


@dataclass(slots=True)
class Traffic:
    """Cost of the rounds at this node, for people."""

    rounds: int = 0
    nbytes: int = 0
    seconds: float = 0.0  # of the last exchange
    cut_s: float = 0.0  # of the last cut: workers were parked
    drift: float = 0.0  # of the last cut: norm of the difference over that of the anchor
    lost: int = 0  # nodes
    skipped: int = 0  # differences that were not finite


@dataclass(slots=True)
class Node:
    """One node. `is_in_round`: its cut is on its way to the others."""

    launch: Launch
    anchor: Anchor
    shares: Shares
    queue: NodeQueue
    committed: Committed
    members: tuple[int, ...] = ()
    lives: tuple[str, ...] = ()  # of all nodes, where each answers while it lives
    generation: int = 0
    round: int = 0
    is_in_round: bool = False
    shares_disk: bool = False  # with the first node, whose checkpoints are then enough
    wish: Outcome | None = None  # how this node wants the job to end, for all
    traffic: Traffic = field(default_factory=Traffic)
    notes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of all nodes, from the last round
    before: dict[str, Any] = field(default_factory=dict)  # this node's note in the last committed round
    held: tuple[int, Momentum] = (0, {})  # the round that is held, and its momentum
    is_alone: bool = False  # it cannot go on with the others
    store: object = None  # of all nodes, if this process serves it
    _life: socket.socket | None = None

    @property
    def number(self) -> int:
        return self.launch.rank

    @property
    def is_first(self) -> bool:
        """True for the node that evaluates, of those that are left."""
        return self.number == min(self.members, default=0)

    @property
    def writes(self) -> bool:
        """True if it writes checkpoints."""
        return self.is_first or not self.shares_disk or self.is_alone

    def look_for_first(self) -> None:
        """Write the checkpoint of a stop here if the first node is dead: torchrun, which has lost it, stops the others
        with the signal that a person sends to all."""
        if self.lives and not self.writes:
            self.is_alone = host.answers(self.lives[min(self.members)], PROBE_S, itself=True) is not True

    # ---- its life, as others see it

    def open_life(self) -> str:
        """Listen; return the address. A connection tells others that this process lives, and nothing else."""
        own = host.own_address(self.launch.address)
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        self._life = socket.create_server((own, 0), family=family, backlog=socket.SOMAXCONN)
        self._life.setblocking(False)
        address, port = self._life.getsockname()[:2]
        return f"{address}:{port}"

    def forget_callers(self) -> None:
        """Close the connections of nodes that have looked."""
        with contextlib.suppress(BlockingIOError):
            while self._life is not None:
                self._life.accept()[0].close()

    # ---- the end

    def end(self) -> None:
        """Go back to the ledger of the last committed round, as the flats did (`Anchor.take`): what came after it is
        in no ledger. Workers are parked or gone."""
        self.committed.release()
        if self.before:
            self.queue.back_to(self.before)
            self.queue.note_elsewhere(self.shares.others_of(self.number))
        self.forget_callers()
        if self._life is not None:
            self._life.close()
            self._life = None

    def keep_store(self) -> None:
        """Serve the store until the other nodes have ended, too: without it they could not agree that this one left."""
        others, until_s = [number for number in self.members if number != self.number], time.monotonic() + OTHERS_S
        while self.store is not None and time.monotonic() < until_s:
            if not any(host.answers(self.lives[number], PROBE_S) for number in others):
                self.store = None
            else:
                host.wait_readable([], LOOK_MS)

    def restore(self, ledger: Mapping[str, Any]) -> None:
        """Restore a ledger of all nodes, or of one machine. Raises ValueError for another batch plan."""
        self.shares.restore(ledger)
        self.queue.note_elsewhere(self.shares.others_of(self.number))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per node, for people and programs."""
        found = []
        for number in range(self.launch.world):
            note = self.notes.get(number, {})
            state = "running" if number in self.members else "lost"
            figures = {name: note.get(name) for name in ("host", "samples_per_s", "drift")}
            made = note.get("counts", {}).get("updates")
            found.append({"node": number, "state": state, "updates": made, **figures})
        return found

    def record(self) -> dict[str, Any]:
        """Return the cluster's part of status.json and summary.json."""
        own = {"node": self.number, "nodes": len(self.members), "generation": self.generation, "round": self.round}
        return {**own, **asdict(self.traffic), "of_nodes": self.rows()}

    def state(self) -> dict[str, Any]:
        """Return the cluster's part of a checkpoint."""
        number, momentum = self.held if self.anchor.is_held else (self.round, self.anchor.momentum())
        return {"round": number, "nodes": len(self.members), "momentum": momentum}
