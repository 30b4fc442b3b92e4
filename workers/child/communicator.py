"""The communicator of a node: exchanges notes and sums with those of the other nodes. The only file that imports
torch.distributed. It maps no parameter: killed anywhere, it leaves nothing half done (`cluster/members.py`).

    supervisor  join, share, round, leave           ->         parcels over its socket
                <-  missing, joined, shared, noted, committed, wanted, formed, out, lost

    idle     a small collective (tick) several times a second: the round that each node is ready for. So a node that is
             gone is noticed although it owes nothing, and one whose batch is slow is not taken for a dead one
    ready    all are ready for the same: notes of all, sums over all, BUFFERED, barrier, COMMITTED
             sums: every dense word; of tables each node's bits of changed rows, then the rows that anybody changed.
             All choose them from the same bits, so nobody can send what another does not expect
    failed   a collective raises: `agree` with the nodes that are left, by keys in the store, then a new group

gloo's groups are made by hand, one per generation: that takes milliseconds, and leaves no global state behind."""

import contextlib
import json
import os
import queue
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from hogwild.cluster.members import RoundWord, Standing, decide
from hogwild.host import answers, own_address
from hogwild.parameters.anchor import CHANGED, CHANGERS, SUMS, outside, tables_of
from hogwild.shared_memory.region import ALIGNMENT, Region
from hogwild.workers.child.trainer import Loop
from hogwild.workers.messages import CommunicateTask, Leaving, ParentGone, Start, receive_parcels, send_parcel

TICK_S = 0.2  # between two ticks of an idle group
TICK_TIMEOUT_S = 10.0  # of every collective: a node that does not answer is out
FORM_S = 12.0  # for a new group: gloo itself gives up after TICK_TIMEOUT_S
GATHER_S = 2.5  # after our own standing, for nodes of which nothing is heard
REPLACED_S = 40.0  # for a node that lives: its communicator is being replaced, which imports torch
PROBE_S = 0.5  # between two looks whether a node lives, and for the answer
STORE_S = 10.0
STOPPED_S = 15.0  # a supervisor whose loop stands still for so long is stopped: its node cannot go on
CALL_S = 2.0  # between two calls of the first node to join
MISSING_S = 10.0  # between two reports of nodes that have not come
LEAVE_S = 1.0  # for the last word to the store
PIECE = 1 << 19  # bytes of a collective: 10 s are enough for one at 1 Mbit/s
SHARE = 1 << 40  # a tick's number for "ready to share a state": no round has it

Answer = TypeVar("Answer")


class _StoreLost(Exception):
    """The store on the first node cannot be reached."""


class _Leave(Exception):
    """Told to leave, or the supervisor of this node is stopped."""


class _LeftOut(Exception):
    """The others have formed a group without this node."""


class Communicator(Loop):
    """One node's part; runs as a worker's loop does. `members`: original ranks of the group; `generation`: its number,
    0 before there is one."""

    def __init__(
        self,
        start: Start,
        channel: socket.socket,
        leaving: Leaving,
        task: CommunicateTask,
        regions: dict[str, Region],
    ) -> None:
        self._channel, self._leaving, self._place = channel, leaving, task
        self._words = regions["words"].array("i8", (regions["words"].nbytes // 8,))
        names = sorted(name for name in regions if name.startswith(SUMS))
        self._dense: list[Tensor] = []  # words outside the tables
        self._tables: list[list[tuple[Tensor, int]]] = []  # (rows, width) and the first bit of each, by region
        for name, tables in zip(names, tables_of(regions, names), strict=True):
            sums = _numbers(name, regions[name])
            ranges = outside(len(sums), tables, ALIGNMENT // sums.element_size())
            self._dense += [sums[start:stop] for start, stop in ranges]
            self._tables.append([(table.of(sums), table.bit) for table in tables])
        self._changed, self._changers = (
            regions[name].array(kind, (regions[name].nbytes // np.dtype(kind).itemsize,))
            if name in regions
            else np.zeros(0, kind)
            for name, kind in ((CHANGED, "u1"), (CHANGERS, "u2"))
        )
        self.generation, self.members = task.generation, tuple(task.members)
        self._committed, self._buffered = task.committed, task.buffered
        self._group: Any = None
        self._ready, self._has_wanted = 0, False
        self._has_begun = task.generation > 0  # the supervisor's loop runs
        self._beat, self._beat_s, self._looked_s = 0, time.monotonic(), time.monotonic()  # of the supervisor
        self._seen: dict[int, tuple[float, bool | None]] = {}  # when it was looked whether a node lives
        self._note: dict[str, Any] = {}
        self._state: int | None = None
        self._source = -1
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(start.lifeline, select.POLLIN)
        self._lifeline = start.lifeline
        self._commands: list[dict[str, Any]] = []

    def run(self) -> None:
        """Serve until told to leave. Raises ParentGone."""
        try:
            self._connect()
            if self.generation:
                self._agree("its communicator was replaced")
            else:
                self._join()
            while True:
                if why := self._failure_of_step():
                    self._agree(why)
        except _Leave:
            self._write_standing(is_gone=True)
        except _StoreLost as lost:
            self._end("lost", str(lost))
        except _LeftOut as out:
            self._end("out", str(out))

    def _failure_of_step(self) -> str:
        """Return why a collective has failed, or "". The exception would keep the group's connections open."""
        try:
            self._step()
        except (RuntimeError, dist.DistError) as failure:
            return str(failure) or type(failure).__name__
        return ""

    # ---- the supervisor

    def _tell(self, kind: str, descriptor: int | None = None, **values: Any) -> None:
        try:
            send_parcel(self._channel, {"kind": kind, **values}, descriptor)
        except ConnectionError as error:
            raise ParentGone from error

    def _listen(self, wait_s: float) -> None:
        """Take up commands; wait up to `wait_s` for one. Raises _Leave, ParentGone."""
        self._words[RoundWord.BEAT] += 1
        beat, now = int(self._words[RoundWord.SUPERVISOR]), time.monotonic()
        were_we = now - self._looked_s > STOPPED_S / 2  # stopped, or in a long exchange
        if beat != self._beat or not self._has_begun or were_we:
            self._beat, self._beat_s = beat, now
        self._looked_s = now
        if now - self._beat_s > STOPPED_S:
            raise _Leave
        for descriptor, _ in self._poll.poll(1000 * wait_s):
            if descriptor == self._lifeline:
                raise ParentGone
            for command in receive_parcels(self._channel):
                self._take(command)
        if self._leaving.asked:
            raise _Leave

    def _take(self, command: dict[str, Any]) -> None:
        self._has_begun |= command["do"] == "round"
        match command["do"]:
            case "round":
                if command["generation"] == self.generation:  # else its group has failed: the supervisor will hear
                    self._ready, self._note, self._has_wanted = command["round"], command["note"], False
            case "share":
                self._ready, self._source, self._state = SHARE, command["source"], command.get("descriptor")
            case "leave":
                raise _Leave
            case _:
                self._commands.append(command)

    def _end(self, kind: str, why: str) -> None:
        """Tell why this node cannot go on, and wait to be told to leave."""
        self._group = None
        self._tell(kind, why=why)
        with contextlib.suppress(_Leave):
            while True:
                self._listen(1.0)

    # ---- the store

    def _connect(self) -> None:
        """Connect to the store. Raises _StoreLost if it does not come in time."""
        place, until_s = self._place, time.monotonic() + self._place.store_within_s
        while True:
            try:
                store = self._of_store(lambda: store_at(place.address, place.port, is_host=False))
                self._store = c10d.PrefixStore(f"hogwild/{place.run_id}", store)
                return
            except _StoreLost:
                if time.monotonic() > until_s:
                    raise
            self._listen(TICK_S)

    def _of_store(self, call: Callable[[], Answer]) -> Answer:
        """Return what a call of the store answers. Raises _StoreLost, also if its host is stopped."""
        try:
            return self._within(STORE_S + 1, call)
        except (RuntimeError, dist.DistError, OSError) as error:
            raise _StoreLost(str(error).partition("\n")[0][:300]) from error

    def _within(self, limit_s: float, call: Callable[[], Answer]) -> Answer:
        """Return what a call answers that may wait for ever: in a thread, which then ends with the process. Raises
        RuntimeError after `limit_s`, and what it raises."""
        answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put(call())
            except (RuntimeError, dist.DistError, OSError) as error:
                answers.put(error)

        threading.Thread(target=work, daemon=True).start()
        until_s = time.monotonic() + limit_s
        while True:
            self._words[RoundWord.BEAT] += 1
            try:
                answer = answers.get(timeout=min(1.0, limit_s))
                break
            except queue.Empty:
                if time.monotonic() > until_s:
                    raise RuntimeError(f"no answer within {limit_s:g} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _has(self, *keys: str) -> bool:
        return bool(self._of_store(lambda: self._store.check(list(keys))))

    def _get(self, key: str) -> str:
        return str(self._of_store(lambda: self._store.get(key)).decode())

    def _set(self, key: str, value: str) -> None:
        self._of_store(lambda: self._store.set(key, value))

    def _set_first(self, key: str, value: str) -> None:
        """Set a key, unless another node has set it before."""
        self._of_store(lambda: self._store.compare_set(key, "", value))

    # ---- joining

    def _join(self) -> None:
        """Join with all nodes that torchrun has started. Keys of earlier attempts lie in the store: a call has a new
        number, and only a node that lives answers it."""
        facts = self._facts()
        rank, world = self._place.rank, self._place.world
        answered, called, next_call_s = 0, 0, 0.0
        next_word_s = time.monotonic() + MISSING_S
        while True:
            if rank == 0 and time.monotonic() >= next_call_s:
                called = int(self._of_store(lambda: self._store.add("generation", 1)))
                self._set("call", str(called))
                next_call_s = time.monotonic() + CALL_S
            if self._has("call") and (call := int(self._get("call"))) != answered:
                if rank == 0 and call != called:
                    raise _LeftOut("another process has taken the place of the first node")
                self._set(f"here/{call}/{rank}", json.dumps(facts))
                answered = call
            here = [f"here/{answered}/{number}" for number in range(world)]
            if rank == 0 and answered and self._has(*here):
                lives = [json.loads(self._get(key))["life"] for key in here]
                self._set_first(f"joined/{answered}", json.dumps(lives))
            # An earlier process of this node may have answered the call: the others would connect to that one.
            if answered and self._has(f"joined/{answered}"):
                lives = json.loads(self._get(f"joined/{answered}"))
                if lives[rank] == facts["life"]:
                    break
            if time.monotonic() >= next_word_s:
                next_word_s = time.monotonic() + MISSING_S
                self._tell("missing", nodes=[number for number, key in enumerate(here) if not self._has(key)])
            self._listen(TICK_S)
        found = {number: json.loads(self._get(key)) for number, key in enumerate(here)}
        try:
            self._form(answered, range(world))
        except (RuntimeError, dist.DistError) as error:
            raise _StoreLost(f"the nodes could not connect to each other: {error}") from error
        self._place = replace(self._place, lives=tuple(found[number]["life"] for number in range(world)))
        self._tell("joined", generation=answered, members=list(self.members), facts=found)

    def _facts(self) -> dict[str, str]:
        while True:
            for command in self._commands:
                if command["do"] == "join":
                    self._commands.remove(command)
                    facts: dict[str, str] = command["facts"]
                    return facts
            self._listen(1.0)

    def _form(self, generation: int, members: Sequence[int]) -> None:
        """Connect to the other members. Raises RuntimeError if one of them does not come."""
        self.generation, self.members = generation, tuple(members)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_address(self._place.address))]
        options._timeout = timedelta(seconds=TICK_TIMEOUT_S)
        rank, size = self.members.index(self._place.rank), len(self.members)
        store = c10d.PrefixStore(f"gloo/{generation}", self._store)
        self._group = None  # closes the old one's connections
        self._group = self._within(FORM_S, lambda: dist.ProcessGroupGloo(store, rank, size, options))

    # ---- a failure

    def _agree(self, why: str) -> None:
        """Form the next group with the nodes that are left. Raises _LeftOut, _StoreLost."""
        self._group = None  # at once: nodes that do not talk to the lost one notice it by this
        while True:
            before = self.members
            self._write_standing()
            generation = self.generation
            proposal = self._proposed(generation)
            if self._place.rank not in proposal["members"]:
                raise _LeftOut(f"the others go on as generation {proposal['generation']}: {why[:300]}")
            try:
                self._form(proposal["generation"], proposal["members"])
                self._group.barrier().wait()
            except (RuntimeError, dist.DistError) as error:
                why = str(error)
                continue
            break
        self._ready, self._has_wanted = 0, False
        self._committed = max(self._committed, proposal["take"])
        self._words[RoundWord.COMMITTED] = self._committed
        lost = [number for number in before if number not in self.members]
        self._tell(
            "formed", generation=self.generation, members=list(self.members), take=proposal["take"], lost=lost, why=why
        )

    def _write_standing(self, *, is_gone: bool = False) -> None:
        """Write how far this node is: from now on it has given its generation up."""
        if not self.generation:
            return
        standing = {"committed": self._committed, "buffered": self._buffered, "is_gone": is_gone}
        if is_gone:
            self._store.set_timeout(timedelta(seconds=LEAVE_S))
        with contextlib.suppress(*[_StoreLost] * is_gone):
            self._set(f"g{self.generation}/{self._place.rank}", json.dumps(standing))

    def _proposed(self, generation: int) -> dict[str, Any]:
        """Return the proposal that counts for the end of `generation`, of this node or another."""
        began_s, key = time.monotonic(), f"g{generation}/next"
        while not self._has(key):
            standings = {
                number: Standing(**json.loads(self._get(f"g{generation}/{number}")))
                for number in self.members
                if self._has(f"g{generation}/{number}")
            }
            # The standing of a missing node may still come, unless it is known to be dead.
            waited_s = time.monotonic() - began_s
            lives = [self._lives(number) for number in self.members if number not in standings]
            is_expected = True in lives or (None in lives and waited_s <= GATHER_S)
            if not is_expected or waited_s > REPLACED_S:
                found = decide(self.members, standings)
                number = int(self._of_store(lambda: self._store.add("generation", 1)))
                proposal = {"generation": number, "members": list(found.members), "take": found.take}
                self._set_first(key, json.dumps(proposal))
                break
            self._listen(0.02)
        answer: dict[str, Any] = json.loads(self._get(key))
        return answer

    def _lives(self, number: int) -> bool | None:
        """Return whether the supervisor of a node lives (`host.answers`)."""
        looked_s, lives = self._seen.get(number, (0.0, None))
        if time.monotonic() - looked_s >= PROBE_S:
            lives = answers(self._place.lives[number], PROBE_S)
            self._seen[number] = time.monotonic(), lives
        return lives

    # ---- the work

    def _step(self) -> None:
        """Wait for a command, then compare what the nodes are ready for, and do it if all are."""
        self._listen(0.0 if self._ready else TICK_S)
        ready = torch.tensor([self._ready, -self._ready])  # 0: for nothing
        self._reduce(ready, dist.ReduceOp.MIN)
        lowest, negative = ready.tolist()
        highest = -negative
        if lowest != highest or not lowest:
            if highest and not self._ready and not self._has_wanted:
                self._has_wanted = True
                self._tell("wanted")
            return
        if lowest == SHARE:
            self._share()
        else:
            self._exchange(lowest)
        self._ready = 0

    def _reduce(self, values: Tensor, by: Any = dist.ReduceOp.SUM) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = by
        self._group.allreduce([values], options).wait()
        self._words[RoundWord.BEAT] += 1

    def _gather(self, own: Tensor) -> list[Tensor]:
        """Return every member's `own`, of equal sizes, in the order of their ranks."""
        found = [torch.empty_like(own) for _ in self.members]
        self._group.allgather([found], [own]).wait()
        self._words[RoundWord.BEAT] += 1
        return found

    def _exchange(self, number: int) -> None:
        """Exchange one round."""
        began_s = time.monotonic()
        notes, sent = self._gathered(json.dumps(self._note).encode())
        generation = self.generation
        self._tell("noted", generation=generation, notes={k: json.loads(note) for k, note in notes.items()})
        across = 2 * (len(self.members) - 1) / len(self.members)
        for words in self._dense:
            for piece in words.split(PIECE // words.element_size()):
                self._reduce(piece)
            sent += int(across * words.nbytes)
        if len(self.members) > 1:
            sent += self._add_rows()
        self._buffered = self._words[RoundWord.BUFFERED] = number
        self._reduce(torch.ones(1))  # the barrier
        self._committed = self._words[RoundWord.COMMITTED] = number
        self._tell("committed", generation=generation, bytes=sent, seconds=time.monotonic() - began_s)

    def _gathered(self, own: bytes) -> tuple[dict[int, bytes], int]:
        """Return the bytes of every member, by number, and how many bytes were sent."""
        sizes = [int(size) for size in self._gather(torch.tensor([len(own)]))]
        longest = max(sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        parts = [bytearray() for _ in sizes]
        for piece in padded.split(PIECE):
            for part, found in zip(parts, self._gather(piece), strict=True):
                part += found.numpy().tobytes()
        whole = zip(self.members, parts, sizes, strict=True)
        return {number: bytes(part[:size]) for number, part, size in whole}, longest * (len(sizes) - 1)

    def _add_rows(self) -> int:
        """Add up the rows of tables that any member has changed, and count for each row the members that did. Return
        the bytes sent. A row that nobody changed is zeros at every member, which are its sum."""
        sent = 0
        for start in range(0, len(self._changed), PIECE):
            bits = self._changed[start : start + PIECE]
            first, last = 8 * start, 8 * (start + len(bits))
            of_all, cost = self._gathered(zlib.compress(bits.tobytes(), 1))  # mostly zeros: shorter than a list of rows
            counts = np.zeros(last - first, np.uint16)
            for packed in of_all.values():
                counts += np.unpackbits(np.frombuffer(zlib.decompress(packed), np.uint8))
            changers = self._changers[first:last]
            changers[:] = counts[: len(changers)]
            sent += cost
            for tables in self._tables:
                chosen = []
                for table, bit in tables:
                    low, high = max(first, bit), min(last, bit + len(table))
                    rows = np.flatnonzero(counts[low - first : max(low, high) - first]) + (low - bit)
                    chosen.append((table, torch.from_numpy(rows)))
                for piece in _pieces(chosen):
                    sent += self._add(piece)
        return sent

    def _add(self, piece: Sequence[tuple[Tensor, Tensor]]) -> int:
        """Replace rows of tables by their sums over all members; return the bytes sent. Each member adds up a part, in
        the order of their ranks: so a sum does not depend on which other rows travel, as it would in a ring."""
        own = torch.cat([table[rows].flatten() for table, rows in piece])
        size = len(self.members)
        part = -(-len(own) // size)
        offered = torch.zeros(size, part, dtype=own.dtype)
        offered.view(-1)[: len(own)] = own
        parts = torch.empty_like(offered)
        self._group.alltoall_base(parts, offered, [], [], dist.AllToAllOptions()).wait()
        total = parts[0]
        for other in parts[1:]:
            total += other
        added, at = torch.cat(self._gather(total)), 0
        for table, rows in piece:
            words = len(rows) * table.shape[1]
            table[rows] = added[at : at + words].view(len(rows), -1)
            at += words
        return 2 * (size - 1) * total.nbytes

    def _share(self) -> None:
        """Give all members the state that one of them has, in a memory file."""
        is_ours = self._source == self._place.rank
        size = torch.tensor([os.fstat(self._state).st_size if is_ours and self._state is not None else 0])
        self._broadcast(size)
        descriptor = os.dup(self._state) if is_ours and self._state is not None else os.memfd_create("hogwild-state")
        try:
            for start in range(0, int(size), PIECE):
                content = os.pread(descriptor, PIECE, start) if is_ours else bytes(min(PIECE, int(size) - start))
                piece = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                self._broadcast(piece)
                if not is_ours:
                    os.pwrite(descriptor, piece.numpy().tobytes(), start)
            self._tell("shared", None if is_ours else descriptor)
        finally:
            os.close(descriptor)
            if self._state is not None:
                os.close(self._state)
                self._state = None

    def _broadcast(self, values: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = self.members.index(self._source)
        self._group.broadcast([values], options).wait()
        self._words[RoundWord.BEAT] += 1


def store_at(address: str, port: int, *, is_host: bool) -> Any:
    """Return the store of all nodes. `is_host`: this process serves it, as long as the store lives."""
    limit = timedelta(seconds=STORE_S)
    return dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=is_host, wait_for_workers=False, timeout=limit
    )


def _pieces(chosen: Iterable[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Cut rows of tables of one dtype into pieces that one collective may move; a row may be wider than a piece."""
    piece: list[tuple[Tensor, Tensor]] = []
    left = PIECE
    for table, rows in chosen:
        for columns in table.split(PIECE // table.element_size(), dim=1) if len(rows) else ():
            width, at = columns.shape[1] * columns.element_size(), 0
            while at < len(rows):
                if width > left:
                    yield piece
                    piece, left = [], PIECE
                some = rows[at : at + left // width]
                piece.append((columns, some))
                at, left = at + len(some), left - len(some) * width
    if piece:
        yield piece


def _numbers(name: str, region: Region) -> Tensor:
    """Return all numbers of a region of sums, in one dimension."""
    dtype: torch.dtype = getattr(torch, name.rpartition("-")[2])
    return region.tensor(dtype, (region.nbytes // dtype.itemsize,))
