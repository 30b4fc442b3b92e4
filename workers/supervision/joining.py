"""A node joins the cluster, before its workers start: all compare what must be equal, everybody takes over the newest
checkpoint that any of them has, or the first node's initial values, and the work is shared out.

    communicator starts -> facts of all -> equal? -> one node's state -> restore -> first grants -> Rounds"""

import json
import os
import platform
import time
import uuid
from collections.abc import Mapping
from typing import Any

import torch

from hogwild import host
from hogwild.cluster.members import differences
from hogwild.errors import RunError, UsageError
from hogwild.scheduling.batch_plan import how_cut
from hogwild.version import __version__
from hogwild.workers.processes.communicator import Communicators
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.processes.handle import POLL_MS, Handle
from hogwild.workers.session.node import Node
from hogwild.workers.session.outcome import Outcome
from hogwild.workers.session.resume import restore_state
from hogwild.workers.session.session import Session
from hogwild.workers.supervision.rounds import Rounds

JOIN_S = 600.0  # as long as torchrun waits for a node
# Settings in which nodes may differ: of a machine and its people.
MAY_DIFFER = (
    "name",
    "train.procs",
    "train.procs_max",
    "train.threads",
    "train.device",
    "train.device_per_worker",
    "train.pin",
    "data.loaders",
    "data.slots",
    "log.",
    "resources.",
    "queue.",
    "checkpoint.",
    "supervise.spares",
)
GROUP_FILE = "cluster.json"  # of the first node: tells the others whether they share its disk


def join(session: Session, node: Node, group: ProcessGroup, watch: host.SignalWatch) -> Rounds | Outcome:
    """Join; return the driver of the rounds, or the outcome if a signal comes first. Raises UsageError if this node's
    job or data differ from the others', RunError if they do not come."""
    team = Communicators(group, node.launch, node.anchor.regions)
    group.teams.append(team)
    joining = _Joining(session, node, group, watch, team)
    try:
        joined = joining.join()
    except BaseException:
        group.dismiss([team], in_order=True)
        raise
    if isinstance(joined, Outcome):
        group.dismiss([team], in_order=True)
    return joined


class _Stopped(Exception):
    """A signal to stop has come."""


class _Joining:
    def __init__(
        self, session: Session, node: Node, group: ProcessGroup, watch: host.SignalWatch, team: Communicators
    ) -> None:
        self._session, self._node, self._group, self._watch, self._team = session, node, group, watch, team
        self._until_s = time.monotonic() + JOIN_S
        self._missing = ""

    def join(self) -> Rounds | Outcome:
        session, node, team = self._session, self._node, self._team
        journal = session.journal
        try:
            while team.handle is None:
                self._turn("its communicator")
            journal.show_message(f"node {node.number} of {node.launch.world}: waiting for the others")
            token = self._token()
            joined = self._answer("joined", "the other nodes", join=self._facts(token))
            facts = {int(number): of_one for number, of_one in joined["facts"].items()}
            self._compare(facts)
            team.generation, team.members = joined["generation"], tuple(joined["members"])
            team.lives = node.lives = tuple(facts[number]["life"] for number in sorted(facts))
            node.generation, node.members = team.generation, team.members
            node.shares_disk = node.number > 0 and self._sees(facts[min(facts)]["token"])
            self._take_over(facts)
        except _Stopped:
            session.note_signal(self._watch.received[0])
            assert session.stop is not None
            return session.stop
        self._begin(facts)
        journal.event("cluster-joined", generation=node.generation, nodes=list(node.members), disk=node.shares_disk)
        hosts = ", ".join(f"{number} on {of_one['host']}" for number, of_one in sorted(facts.items()))
        journal.show_message(f"cluster: {len(facts)} nodes: {hosts}")
        return Rounds(session, node, team)

    # ---- waiting

    def _turn(self, what: str) -> None:
        self._watch.drain()
        if self._watch.received:
            raise _Stopped
        if time.monotonic() > self._until_s:
            raise RunError(
                f"node {self._node.number}: {what} did not come within {JOIN_S:g} s{self._missing}; look at what "
                "they say",
                code="cluster/nobody",
            )
        self._group.wait(POLL_MS, self._watch.fileno())
        for error in self._group.step(time.monotonic(), [self._team]):
            raise error

    def _answer(self, kind: str, what: str, join: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the communicator's answer. `join`: the facts to join with, told again to one that replaces another."""
        told: Handle | None = None
        while True:
            if join is not None and (handle := self._team.handle) is not None and handle is not told:
                told = handle
                self._team.tell("join", facts=join)
            while self._team.heard:
                parcel = self._team.heard.popleft()
                if parcel["kind"] == kind:
                    return parcel
                if parcel["kind"] == "missing":
                    self._missing = f" (missing: node {', '.join(map(str, parcel['nodes']))})"
                    self._session.journal.show_message(f"still waiting{self._missing}")
                if parcel["kind"] in ("lost", "out", "formed"):
                    raise RunError(
                        f"node {self._node.number}: the other nodes were lost while they joined: "
                        f"{parcel.get('why', 'a node has gone')}",
                        code="cluster/lost-early",
                    )
            self._turn(what)

    # ---- what must be equal

    def _facts(self, token: str) -> dict[str, str]:
        session, node = self._session, self._node
        layout = session.shared.layout
        kept = [(slot.name, slot.dtype, slot.shape) for slot in layout.flats.params]
        kept += [(slot.name, slot.dtype, slot.shape) for slot in layout.buffers.slots if slot.moves]
        return {
            "version": f"hogwild {__version__}, torch {torch.__version__}",
            "job": json.dumps(_comparable(session.job.model_dump()), sort_keys=True),
            "parameters": "\n".join(f"{name}: {dtype} {list(shape)}" for name, dtype, shape in kept),
            "batches": json.dumps(how_cut(session.queue.plan), sort_keys=True),
            "data": json.dumps(session.parts.identity, sort_keys=True, default=str),
            # not compared:
            "procs": str(session.plan.procs),
            "updates": str(node.shares.updates if session.saving.has_saved else -1),
            "host": platform.node(),
            "token": token,
            "life": node.open_life(),
        }

    def _compare(self, facts: Mapping[int, Mapping[str, str]]) -> None:
        named = ("version", "job", "parameters", "batches", "data")
        found = differences({number: {name: of_one[name] for name in named} for number, of_one in facts.items()})
        if found:
            raise UsageError("the nodes do not train the same:\n  " + "\n  ".join(found), code="cluster/other-job")

    def _token(self) -> str:
        """Return a word that the first node writes into its run directory; "" for others."""
        if self._node.number:
            return ""
        token = uuid.uuid4().hex
        self._session.rundir.write_json(GROUP_FILE, {"token": token, "nodes": self._node.launch.world})
        return token

    def _sees(self, token: str) -> bool:
        try:
            found = json.loads((self._session.rundir.path.parent / GROUP_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            return False
        return bool(found.get("token") == token)

    # ---- what all take over

    def _take_over(self, facts: Mapping[int, Mapping[str, str]]) -> None:
        """Restore the state of the node with the newest checkpoint, the first of equal ones."""
        session, node = self._session, self._node
        source = min(facts, key=lambda number: (-int(facts[number]["updates"]), number))
        descriptor = _written(session.state()) if source == node.number else None
        try:
            self._team.tell("share", descriptor, source=source)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        shared = self._answer("shared", f"the state of node {source}")
        if source != node.number:
            with open(shared["descriptor"], "rb") as file:
                restore_state(session, torch.load(file, map_location="cpu", weights_only=True))
            session.saving.is_elsewhere |= facts[source]["updates"] != facts[node.number]["updates"]
            session.journal.show_message(f"parameters and ledger are those of node {source}")
        elif "descriptor" in shared:
            os.close(shared["descriptor"])
        node.anchor.restart()

    def _begin(self, facts: Mapping[int, Mapping[str, str]]) -> None:
        """Share out the first work."""
        node = self._node
        own = node.queue.note()
        note = {**own, "updates": 0, "speed": None, "period_s": 1.0, "dry": True}
        notes = {number: {**note, "weight": int(of_one["procs"])} for number, of_one in facts.items()}
        node.queue.grant(node.shares.commit(notes).get(node.number, []))
        node.queue.note_elsewhere(node.shares.others_of(node.number))


def _comparable(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the job's settings that must be equal on all nodes, by their paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        here = f"{path}{name}"
        if here in MAY_DIFFER or f"{here}." in MAY_DIFFER:
            continue
        if isinstance(value, Mapping) and value:
            found |= _comparable(value, f"{here}.")
        else:
            found[here] = value
    return found


def _written(state: Mapping[str, Any]) -> int:
    """Return a memory file with the state."""
    descriptor = os.memfd_create("hogwild-state", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        torch.save(dict(state), file)
    return descriptor
