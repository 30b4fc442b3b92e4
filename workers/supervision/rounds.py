"""The rounds of one node with the others of a cluster. Driven once per turn of the supervisor's loop; a pause makes the
cut (`supervisor.py`), a thread the arithmetic (`parameters/anchor.py`), the communicator the exchange.

    IDLE -- due: all park, cut --> OFFERING -- sums are there --> EXCHANGING -- committed --> SETTLING --> IDLE
      ^                               |                               |
      '------- the group failed and nobody has committed the round ---'     (the cut is thrown away; work goes on)

A batch counts for the cluster when its cut is in a committed round. After a failure the communicators agree on who is
left, and on a round that one of them has committed: then all have its sums, and settle it from them. The ledger
(`cluster/shares.py`) advances with each committed round, on every node in the same way.

Before its workers start a node joins: all compare what must be equal, everybody takes over the newest checkpoint that
any of them has, or the first node's initial values, and the work is shared out.

    communicator starts -> facts of all -> equal? -> one node's state -> restore -> first grants -> Rounds"""

import contextlib
import json
import os
import platform
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any

import torch

from hogwild import host
from hogwild.cluster.launch import Launch
from hogwild.cluster.members import WORDS, RoundWord, differences
from hogwild.errors import HogwildError, RunError, TrainingError, UsageError
from hogwild.formatting import counted
from hogwild.host.background_thread import Background
from hogwild.scheduling.batch_plan import how_cut
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Control
from hogwild.storage.run_files import read_json
from hogwild.version import __version__
from hogwild.workers.messages import CommunicateTask, ParentGone, Report, receive_parcels, send_parcel
from hogwild.workers.processes.group import ProcessGroup, Team, shortened
from hogwild.workers.processes.handle import POLL_MS, Handle
from hogwild.workers.processes.roster import Death, End, Role, Roster, RowReading, limits_of
from hogwild.workers.session.node import LEFT_OUT, Momentum, Node
from hogwild.workers.session.outcome import Outcome
from hogwild.workers.session.resume import restore_state
from hogwild.workers.session.session import Session

AUTO_S = 1.0  # `sync_every_s: auto`, unless a cut or an exchange takes long
CUTS_SHARE = 0.01  # of the time, at most, for `auto`
HURRY_S = 0.1  # after a round, until a node without work asks for the next one


ONLY = 0  # its number


class Communicators(Team):
    """The team of one: the process that exchanges with the other nodes (`child/communicator.py`). It holds nothing: a
    replacement goes on from the words and the sums in shared memory. `heard`: what it has said and nobody has read;
    `generation`, `members`: the group that a replacement belongs to (0: none yet)."""

    def __init__(self, group: ProcessGroup, launch: Launch, sums: Mapping[str, Region]) -> None:
        super().__init__(group, Roster(Role.COMMUNICATOR, limits_of(Role.COMMUNICATOR, group.supervise), 1))
        self._launch = launch
        words = Region.allocate("words", 8 * WORDS)
        self._words = words.array("i8", (WORDS,))
        self._regions = {"words": words, **sums}
        self.heard: deque[dict[str, Any]] = deque()
        self.generation, self.members, self.lives = 0, tuple[int, ...](), tuple[str, ...]()

    def prepare(self, number: int) -> tuple[CommunicateTask, Mapping[str, Region]]:
        launch = self._launch
        self._words[RoundWord.BEAT] = 0
        task = CommunicateTask(
            rank=launch.rank,
            world=launch.world,
            run_id=launch.run_id,
            address=launch.address,
            port=launch.port,
            generation=self.generation,
            members=self.members,
            lives=self.lives,
            committed=self.committed,
            buffered=int(self._words[RoundWord.BUFFERED]),
            store_within_s=0.0 if launch.store_of_agent or self.generation else JOIN_S,
        )
        return task, self._regions

    def beat(self) -> None:
        """Tell the process that the supervisor's loop runs: for a supervisor that is stopped it must not answer."""
        self._words[RoundWord.SUPERVISOR] += 1

    @property
    def committed(self) -> int:
        """The last round whose barrier it has passed. Of a live process only what it says counts."""
        return int(self._words[RoundWord.COMMITTED])

    @property
    def handle(self) -> Handle | None:
        """The process, if it is ready."""
        handle = self.handles.get(ONLY)
        return handle if handle is not None and handle.is_ready and not handle.killed_for else None

    def tell(self, do: str, descriptor: int | None = None, **values: Any) -> bool:
        """Send it a command; return False if there is no process, or it is dying: its pidfd will show that."""
        if (handle := self.handle) is None:
            return False
        try:
            send_parcel(handle.channel, {"do": do, **values}, descriptor)
        except OSError:
            return False
        return True

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        with contextlib.suppress(ParentGone):  # it has died: its pidfd says so
            for parcel in receive_parcels(handle.channel):
                kind = parcel["kind"]
                if kind == "error":
                    handle.error = Report(**parcel)
                elif kind == "ready":
                    handle.is_ready = True
                else:
                    self.heard.append(parcel)
        yield from ()

    def readings(self) -> dict[int, RowReading]:
        reading = RowReading(int(self._words[RoundWord.BEAT]), self.committed, 0.0, has_lease=False, idle=True)
        return dict.fromkeys(self.handles, reading)

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        error = handle.error if handle is not None else None
        said = error.detail if error is not None else how
        self.event("exit", number, kind=end.value, how=how, pid=handle.pid if handle else None)
        self.group.sink.show_message(f"communicator: {shortened(said)}; it is replaced, workers train on")
        return Death(how, error, batches=self.committed, end=end), []

    def has_left(self, handle: Handle) -> bool:
        return True

    def ask_to_leave(self, handle: Handle) -> None:
        self.tell("leave")


# ---- the rounds


class RoundStage(Enum):
    IDLE = "idle"
    OFFERING = "offering"
    EXCHANGING = "exchanging"
    SETTLING = "settling"


class Rounds:
    """The rounds of one attempt. Main thread only."""

    def __init__(self, session: Session, node: Node, team: Communicators) -> None:
        self._session, self._node, self.team = session, node, team
        self.thread = Background("round")
        self._stage = RoundStage.IDLE
        self.is_over = self._is_wanted = self._is_alone = False
        self._is_in_pause = False  # the pause's thread works on the flats; whoever set it has a follow-up
        self._last_s = time.monotonic()
        self._next_s = self._last_s + AUTO_S
        self._speed: float | None = None
        self._note: dict[str, Any] = {}  # of the cut
        node.before = node.queue.note()
        self._cut_at_s = 0.0  # of the last committed cut
        self._cut_s = self._began_s = 0.0
        self._notes: Mapping[int, dict[str, Any]] | None = None  # of all, in this round
        self._formed: dict[str, Any] | None = None  # not yet processed
        self._agent = os.getppid()  # torchrun's process on this node

    def close(self) -> None:
        """End the thread; at the end of the job it may still be preparing a round that nobody needs."""
        self.thread.wait()
        self.thread.close()

    # ---- for the pauses

    @property
    def is_settling(self) -> bool:
        """True while a thread writes anchor and flats."""
        return self._stage is RoundStage.SETTLING

    @property
    def is_idle(self) -> bool:
        """True if a cut may be made now."""
        return self._stage is RoundStage.IDLE and self.team.generation > 0

    @property
    def is_held(self) -> bool:
        """True while the flats hold the anchor of a committed round, and the ledger stands still with it."""
        return self._node.anchor.is_held

    def is_due(self, now: float) -> bool:
        """Return whether all should park for a cut."""
        if not self.is_idle or self.is_over or self._is_alone or self.team.handle is None:
            return False
        is_dry = self._node.queue.is_dry
        hurries = (is_dry or self._node.wish is not None) and now >= self._last_s + HURRY_S
        return now >= self._next_s or self._is_wanted or hurries

    def copy(self, merge: Callable[[], None] | None, *, hold: bool) -> Callable[[], tuple[bool, float, Momentum]]:
        """Return the work of a cut, for a thread, while all are parked and booked; its answer is for `was_cut`.
        `merge`: the buffers, first."""
        anchor, self._is_in_pause = self._node.anchor, True

        def work() -> tuple[bool, float, Momentum]:
            began_s = time.monotonic()
            if merge is not None:
                merge()
            is_finite = anchor.cut()
            if not is_finite:  # this node goes on from the anchor
                anchor.take()
                anchor.cut()
            if hold:
                anchor.hold()
            return is_finite, time.monotonic() - began_s, anchor.momentum() if hold else {}

        return work

    def was_cut(self, answer: tuple[bool, float, Momentum]) -> None:
        """Note what has been settled at the cut, and prepare the exchange; workers may go on."""
        (is_finite, self._cut_s, momentum), self._is_in_pause = answer, False
        node, queue = self._node, self._node.queue
        if self.is_held:
            node.committed.hold()
            node.held = node.round, momentum
        if not is_finite:
            queue.skip_since(self._node.before)
            node.traffic.skipped += 1
            words = (
                "parameters are NaN or infinite: this node goes on from the last round's, and skips its batches since"
            )
            self._session.journal.event("round-refused", round=node.round + 1)
            self._session.journal.show_message(f"warning: {words}")
        self._begin(node.anchor.offer)

    def _begin(self, offer: Callable[[int], tuple[float, int]]) -> None:
        """Begin a round with what is settled now; `offer` prepares the sums, in a thread."""
        self._note = self._written(time.monotonic())
        self._stage, self._node.is_in_round, self._is_wanted = RoundStage.OFFERING, True, False
        self.thread.submit(partial(offer, self._note["updates"]), self._offered)

    def _written(self, now: float) -> dict[str, Any]:
        """Return this node's note: what it has done and holds, and what others should know."""
        node, session, queue = self._node, self._session, self._node.queue
        note = queue.note()
        before, counts = self._node.before["counts"], note["counts"]
        since_s = self._cut_at_s or session.board.first_commit_s()
        elapsed_s = max(now - since_s, 1e-6) if since_s else None
        fresh = _settled(counts) - _settled(before)
        if elapsed_s is not None and fresh > 0:
            self._speed = fresh / elapsed_s
        rate = (counts["samples"] - before["samples"]) / elapsed_s if elapsed_s else 0.0
        note |= {
            "at_s": now,
            "updates": max(0, counts["updates"] - before["updates"]),
            "speed": self._speed,
            "weight": session.queue.limits.procs,
            "period_s": elapsed_s if elapsed_s is not None else self._interval_s(),
            "dry": queue.is_dry,
            "host": platform.node(),
            "samples_per_s": rate,
        }
        if node.wish is not None:
            note["wish"] = [node.wish.state, node.wish.reason]
        if node.is_first:
            note["evaluations"] = session.evaluating.state()
        return note

    def releasing(self) -> Callable[[], None]:
        """Return the work that gives the flats what this node has, for a thread; then `was_released`."""
        self._is_in_pause = True
        return self._node.anchor.release

    def was_released(self, _: object) -> None:
        self._is_in_pause = False
        self._node.committed.release()

    def taking(self) -> Callable[[], None]:
        """Return the work that sets the flats to the anchor for the end of the job, for a thread; then `end`."""
        self._is_in_pause = True
        return self._node.anchor.take

    def end(self, _: object) -> None:
        """Note that no round follows: flats and ledger are those of the last committed one."""
        self.is_over, self._is_in_pause = True, False
        self._node.end()

    # ---- one turn

    def advance(self, now: float) -> None:
        """Process what the communicator has said."""
        self.thread.finish()
        if self.is_over or self._is_alone:
            return
        self._node.forget_callers()
        self.team.beat()
        if os.getppid() != self._agent:
            self._end("lost", "torchrun has ended on this node")
            return
        if self._is_in_pause:  # what is heard meanwhile would change anchor, flats or ledger under it
            return
        heard = list(self.team.heard)
        self.team.heard.clear()
        for parcel in heard:
            kind = parcel["kind"]
            is_begun = self._stage is RoundStage.EXCHANGING and parcel.get("generation") == self.team.generation
            if kind in ("noted", "committed") and not is_begun:  # of a round that was given up
                continue
            if kind == "wanted":  # else the round that is wanted has begun
                self._is_wanted = self._stage in (RoundStage.IDLE, RoundStage.SETTLING)
            elif kind == "noted":
                self._notes = {int(number): note for number, note in parcel["notes"].items()}
            elif kind == "committed":
                self._node.traffic.nbytes += parcel["bytes"]
                self._settle()
            elif kind == "formed":
                self._formed = parcel
            elif kind in ("out", "lost"):
                self._end(kind, parcel["why"])
        if self._formed is not None and self._stage in (RoundStage.IDLE, RoundStage.EXCHANGING):
            self._reform(self._formed)
        if self.is_held and self.is_due(now):
            anchor = self._node.anchor  # a long evaluation: all are parked, and little has changed
            self._begin(lambda updates: anchor.offer(updates) if anchor.cut() else (0.0, 0))

    def _offered(self, answer: tuple[float, int]) -> None:
        """Begin the exchange, unless the group has changed since the cut."""
        drift, self._note["anchor"] = answer
        self._note["drift"] = self._node.traffic.drift = drift
        self._began_s, self._notes = time.monotonic(), None
        told: dict[str, Any] = {"generation": self.team.generation, "round": self._node.round + 1, "note": self._note}
        if self._formed is not None or not self.team.tell("round", **told):
            self._give_up()
            return
        self._stage = RoundStage.EXCHANGING

    def _give_up(self) -> None:
        """Throw the cut away: the next one has all of it."""
        self._stage, self._node.is_in_round = RoundStage.IDLE, False
        self._next_s = 0.0

    def _settle(self) -> None:
        assert self._notes is not None, "notes come before their round is committed"
        sums = {number: note["anchor"] for number, note in sorted(self._notes.items())}
        if len(set(sums.values())) > 1:
            raise TrainingError(
                f"round {self._node.round + 1}: the nodes' parameters of the last round differ (checksums {sums}); "
                "their processors round differently, or this is a bug in hogwild. Resume from the last checkpoint",
                code="cluster/apart",
            )
        self._stage, node = RoundStage.SETTLING, self._node
        updates, nodes = sum(note["updates"] for note in self._notes.values()), len(self._notes)

        def work() -> None:
            node.anchor.settle(updates, nodes)
            node.anchor.apply()

        self.thread.submit(work, lambda _: self._settled())

    def _settled(self) -> None:
        """Advance the ledger by the committed round."""
        node, now, notes = self._node, time.monotonic(), self._notes
        assert notes is not None
        node.traffic.seconds, node.traffic.cut_s = now - self._began_s, self._cut_s
        node.traffic.rounds += 1
        node.round += 1
        node.before, node.notes = self._note, {**node.notes, **notes}
        node.queue.committed()
        self._deal(node.shares.commit(notes))
        node.queue.withdraw(node.shares.keep_of(node.number))
        self._stage, node.is_in_round = RoundStage.IDLE, False
        self._last_s, self._next_s = now, now + self._interval_s()
        self._cut_at_s = self._note["at_s"]
        session = self._session
        for number, note in sorted(notes.items()):  # other nodes' evaluations, and the end that a node wishes
            if "evaluations" in note and number != node.number:
                session.evaluating.restore(note["evaluations"])
            if "wish" in note and session.stop is None:
                state, reason = note["wish"]
                session.stop = Outcome(state, reason, exit_status=0)

    def _deal(self, grants: Mapping[int, list[Any]]) -> None:
        """Take this node's share of new work, and see how far all are."""
        node, board = self._node, self._session.board
        node.queue.grant(grants.get(node.number, []))
        node.queue.note_elsewhere(node.shares.others_of(node.number))
        board.control[Control.ELSEWHERE] = max(0, node.queue.updates - board.updates())

    def _reform(self, formed: Mapping[str, Any]) -> None:
        """Go on with the nodes that are left; first with the round that one of them had committed."""
        node, members = self._node, tuple(formed["members"])
        if formed["take"] == node.round + 1 and self._stage is RoundStage.EXCHANGING:
            self._settle()
            return  # again, when it is settled
        self._formed = None
        if self._stage is RoundStage.EXCHANGING:
            self._give_up()
        self.team.generation, self.team.members = formed["generation"], members
        gone = [number for number in node.members if number not in members]
        node.members, node.generation = members, formed["generation"]
        self._is_wanted = True
        if not gone:
            self._session.journal.event("cluster-formed", generation=node.generation, nodes=list(members))
            return
        node.traffic.lost += len(gone)
        names = ", ".join(map(str, gone))
        self._session.journal.event("node-lost", nodes=gone, generation=node.generation, left=list(members))
        left = counted(len(members), "node")
        self._session.journal.show_message(f"node {names} is lost; {left} left, with its unfinished batches")
        node.shares.lose(members)
        self._deal({})

    def _end(self, kind: str, why: str) -> None:
        """End this node with the last committed round: it cannot go on with the others."""
        reason = "left out by the other nodes" if kind == "out" else "torchrun or its store is lost"
        self._session.journal.event(f"cluster-{kind}", why=why)
        self._session.journal.show_message(f"{reason}: {why}")
        if self._session.stop is None:
            self._session.stop = Outcome("stopped", reason, exit_status=LEFT_OUT)
        self._is_alone = self._node.is_alone = True

    def _interval_s(self) -> float:
        wanted = self._session.job.cluster.sync_every_s
        if wanted != "auto":
            return float(wanted)
        return max(AUTO_S, self._cut_s / CUTS_SHARE, self._node.traffic.seconds)


def _settled(counts: Mapping[str, int]) -> int:
    return counts["done"] + counts["skipped"] + counts["quarantined"]


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
EQUAL = ("version", "job", "parameters", "batches", "data")  # of the facts, on all nodes
GROUP_FILE = "cluster.json"  # of the first node: tells the others whether they share its disk


def join(session: Session, node: Node, group: ProcessGroup, watch: host.SignalWatch) -> Rounds | Outcome:
    """Join; return the driver of the rounds, or the outcome if a signal comes first. Raises UsageError if this node's
    job or data differ from the others', RunError if they do not come."""
    if node.number == 0 and not node.launch.store_of_agent:
        from hogwild.workers.child.communicator import store_at  # torch.distributed

        address, port = node.launch.address, node.launch.port
        try:
            node.store = store_at(address, port, is_host=True)
        except (RuntimeError, OSError) as error:
            why = str(error).partition("\n")[0]
            text = f"node 0 cannot serve the store of all nodes at {address}:{port}: {why}; start torchrun again"
            raise RunError(text, code="cluster/lost-early") from error
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
            token = "" if node.number else uuid.uuid4().hex
            if token:  # whether the others see it tells them if they share the first node's disk
                session.rundir.write_json(GROUP_FILE, {"token": token, "nodes": node.launch.world})
            joined = self._answer("joined", "the other nodes", join=self._facts(token))
            facts = {int(number): of_one for number, of_one in joined["facts"].items()}
            if found := differences(
                {number: {name: of_one[name] for name in EQUAL} for number, of_one in facts.items()}
            ):
                raise UsageError("the nodes do not train the same:\n  " + "\n  ".join(found), code="cluster/other-job")
            team.generation, team.members = joined["generation"], tuple(joined["members"])
            team.lives = node.lives = tuple(facts[number]["life"] for number in sorted(facts))
            node.generation, node.members = team.generation, team.members
            seen = read_json(session.rundir.path.parent, GROUP_FILE)
            node.shares_disk = node.number > 0 and seen.get("token") == facts[min(facts)]["token"]
            self._take_over(facts)
        except _Stopped:
            session.note_signal(self._watch.received[0])
            assert session.stop is not None
            return session.stop
        note = {**node.queue.note(), "updates": 0, "speed": None, "period_s": 1.0, "dry": True}
        first = node.shares.commit({number: {**note, "weight": int(one["procs"])} for number, one in facts.items()})
        node.queue.grant(first.get(node.number, []))
        node.queue.note_elsewhere(node.shares.others_of(node.number))
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
        by_rows = dict.fromkeys(node.anchor.by_rows, ", trained row by row")  # a node may lack the kernel
        kept = [(slot.name, slot.dtype, slot.shape) for slot in layout.flats.params]
        kept += [(slot.name, slot.dtype, slot.shape) for slot in layout.buffers.slots if slot.moves]
        return {
            "version": f"hogwild {__version__}, torch {torch.__version__}",
            "job": json.dumps(_comparable(session.job.model_dump()), sort_keys=True),
            "parameters": "\n".join(
                f"{name}: {dtype} {list(shape)}{by_rows.get(name, '')}" for name, dtype, shape in kept
            ),
            "batches": json.dumps(how_cut(session.queue.plan), sort_keys=True),
            "data": json.dumps(session.parts.identity, sort_keys=True, default=str),
            # not EQUAL:
            "procs": str(session.plan.procs),
            "updates": str(node.shares.updates if session.saving.has_saved else -1),
            "host": platform.node(),
            "token": token,
            "life": node.open_life(),
        }

    # ---- what all take over

    def _take_over(self, facts: Mapping[int, Mapping[str, str]]) -> None:
        """Restore the state of the node with the newest checkpoint, the first of equal ones."""
        session, node = self._session, self._node
        source = min(facts, key=lambda number: (-int(facts[number]["updates"]), number))
        descriptor = None
        try:
            if source == node.number:
                descriptor = os.memfd_create("hogwild-state", os.MFD_CLOEXEC)
                with open(descriptor, "wb", closefd=False) as file:
                    torch.save(dict(session.state()), file)
            self._team.tell("share", descriptor, source=source)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        shared = self._answer("shared", f"the state of node {source}")
        if source != node.number:
            with open(shared["descriptor"], "rb") as state:
                restore_state(session, torch.load(state, map_location="cpu", weights_only=True))
            session.saving.is_elsewhere |= facts[source]["updates"] != facts[node.number]["updates"]
            session.journal.show_message(f"parameters and ledger are those of node {source}")
        elif "descriptor" in shared:
            os.close(shared["descriptor"])
        node.anchor.restart()


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
