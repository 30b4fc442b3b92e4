"""The messages between the supervisor and one worker: pipe records and socket datagrams.

    lease pipe   supervisor -> worker   (sequence u32, item id u32)
                                        (pause u32, 0)             read the control row; if not 0, this pause is over
                              loader    (0, slot + 1 or range u32); (0, 0) ends it
    ack pipe     worker -> supervisor   (skipped u32, item id u32)
                                        (pause u32, 0)             read my row: ready, or parked in this pause
                 loader                 (answer u32, slot + 1 or range u32)
    socket       supervisor -> child    one datagram per task, as JSON, with descriptors of regions
                 worker -> supervisor   datagrams: Report as JSON

A reader of a record sees all earlier stores of its writer to shared memory: the pipe's lock orders them, on every
machine. A word of shared memory alone says nothing about another.

Records are 8 bytes, far below PIPE_BUF: a write is all or nothing, so a reader never sees half of one.
"""

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hogwild.errors import RunError
from hogwild.formatting import size

RECORD = struct.Struct("<II")
LOOK = 0  # no item has this id
MAX_DATAGRAM = 64 * 1024
MAX_DESCRIPTORS = 64


class ParentGone(Exception):
    """The supervisor is gone: end-of-file on one of its pipes or its socket."""


def write_record(descriptor: int, first: int, item: int) -> bool:
    """Write one record; return False if the pipe is full or its reader is gone. With a few dozen leases per worker a
    pipe of 64 KiB cannot fill up with leases and acks; a doorbell that does not fit follows an unread one; and a pidfd
    shows that the reader is gone."""
    try:
        return os.write(descriptor, RECORD.pack(first & 0xFFFFFFFF, item)) == RECORD.size
    except (BlockingIOError, BrokenPipeError):
        return False


def read_records(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield every record available now; the descriptor is non-blocking. Ends at end-of-file, too."""
    while True:
        try:
            chunk = os.read(descriptor, RECORD.size * 512)
        except BlockingIOError:
            return
        if not chunk:
            return
        yield from RECORD.iter_unpack(chunk)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a process, with what only torch and Python know of the supervisor. The descriptors of its `regions`
    travel with it, in this order."""

    log: str = field(default="", kw_only=True)  # "": none; its output stays in memory
    stacks: str = field(default="", kw_only=True)
    regions: tuple[tuple[str, int], ...] = field(default=(), kw_only=True)  # (name, bytes)
    sys_path: tuple[str, ...] = field(default=(), kw_only=True)
    torch_settings: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def send(self, channel: socket.socket, descriptors: Sequence[int]) -> None:
        payload = json.dumps({"task": type(self).__name__, **asdict(self)}).encode()
        if len(payload) >= MAX_DATAGRAM:
            raise RunError(
                f"sys.path takes {size(len(payload))}, too much to send to a worker",
                code="run/environment-too-large",
            )
        assert len(descriptors) < MAX_DESCRIPTORS
        socket.send_fds(channel, [payload], list(descriptors))


@dataclass(frozen=True, slots=True)
class Setup(Task):
    """The set-up of a worker for training."""

    worker: int
    rows: int  # of the scoreboard
    threads: int
    flush_denormal: bool
    structure_nbytes: int
    cores: tuple[int, ...] = ()  # its own logical CPUs; empty: all that the supervisor may use


@dataclass(frozen=True, slots=True)
class TrialTask(Task):
    """A task to try the job's code; regions: `trial`, a `hogwild.job.parts.Trial` written by torch.save, and `answer`,
    for the pickled findings, None if the parent must run it. Afterwards the process ends."""


@dataclass(frozen=True, slots=True)
class LoadTask(Task):
    """A task that makes a process a loader, of what the region `recipe` says; its row of the region `beats` is
    its number. Records (0, number) ask it for slots or ranges; (0, `LOOK`) ends it. A reader has no `log`."""

    loader: int


@dataclass(frozen=True, slots=True)
class OwnTask(Task):
    """A task that makes a process the owner of its regions, the flats, on `device` (`gpu_owner.py`)."""

    device: str


@dataclass(frozen=True, slots=True)
class CommunicateTask(Task):
    """A task that makes a process the communicator of a node (`communicator.py`). `generation`, `members`: of
    the group it goes on with; 0 and none: it joins. `committed`, `buffered`: rounds, as the region `words` says."""

    rank: int
    world: int
    run_id: str
    address: str  # of the store
    port: int
    generation: int = 0
    members: tuple[int, ...] = ()
    committed: int = 0
    buffered: int = 0
    lives: tuple[str, ...] = ()  # address:port of each node's supervisor, which answers as long as it lives
    store_within_s: float = 0.0  # the store may come so late


@dataclass(frozen=True, slots=True)
class PredictTask(Task):
    """A task that makes a process the predictor of a run (`predictor.py`); it writes its region `beats` alone.
    `rows`: of the scoreboard."""

    run: str
    rows: int
    structure_nbytes: int


KINDS = (Setup, TrialTask, LoadTask, OwnTask, CommunicateTask, PredictTask)
TASKS: Mapping[str, Any] = {kind.__name__: kind for kind in KINDS}


def send_parcel(channel: socket.socket, content: Mapping[str, Any], attached: int | None = None) -> None:
    """Send a JSON map of any size, and a descriptor: in one datagram, with a memory file for what is too large."""
    payload, descriptors = json.dumps(content).encode(), [attached] if attached is not None else []
    if len(payload) <= MAX_DATAGRAM // 2:
        socket.send_fds(channel, [b"\0", payload], descriptors)
        return
    large = os.memfd_create("hogwild-parcel", os.MFD_CLOEXEC)
    try:
        with open(large, "wb", closefd=False) as file:
            file.write(payload)
        socket.send_fds(channel, [b"\1"], [large, *descriptors])
    finally:
        os.close(large)


def receive_parcels(channel: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield every parcel and report available now; an attached descriptor, under the key `descriptor`, is the caller's.
    Raises ParentGone at end-of-file."""
    while True:
        try:
            # Not recv_fds: CPython 3.11 ignores its flags.
            payload, ancillary, _, _ = channel.recvmsg(MAX_DATAGRAM, socket.CMSG_LEN(8), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:  # comes once, before queued parcels: it died with unread data of ours
            continue
        descriptors = [number for *_, content in ancillary for (number,) in struct.iter_unpack("i", content)]
        if not payload:
            raise ParentGone("the other end of the socket is closed")
        if payload[:1] == b"\1":
            with open(descriptors.pop(0), "rb") as file:
                file.seek(0)
                parcel = json.loads(file.read())
        else:
            parcel = json.loads(payload.removeprefix(b"\0"))
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            parcel["descriptor"] = descriptor
        yield parcel


def receive_task(channel: socket.socket) -> tuple[Task, list[int]]:
    """Wait, without a limit, for a task; return it with its descriptors. Raises ParentGone, and RunError if not all
    descriptors fit."""
    payload, descriptors, flags, _ = socket.recv_fds(channel, MAX_DATAGRAM, MAX_DESCRIPTORS)
    if not payload:
        raise ParentGone("the supervisor closed the socket before the set-up was sent")
    if flags & socket.MSG_CTRUNC:  # the kernel drops descriptors beyond the limit and delivers the rest
        raise RunError(
            f"only {len(descriptors)} descriptors of shared memory arrived; raise the limit on open files (ulimit -n)",
            code="run/open-files",
        )
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # CPython 3.11 does not set close-on-exec here
    values = json.loads(payload)
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    lists["regions"] = tuple((name, nbytes) for name, nbytes in values["regions"])
    return TASKS[values.pop("task")](**values | lists), descriptors


@dataclass(frozen=True, slots=True)
class Report:
    """A message of a child: `ready` (detail: the update path), `warning` (detail: its text; place) or `error` (an
    exception that ends it). Of a loader: `bad-batch` (item: slot or range; detail: why). Of a reader: `unreadable`
    (detail: why its recipe cannot be opened in another process). Of a trial: `trying`."""

    kind: str
    detail: str = ""
    error_type: str = ""
    place: str = ""
    hopeless: bool = False  # it would come again in any worker
    traceback: str = ""
    code: str = ""  # of our own errors
    item: int = 0

    def send(self, channel: socket.socket) -> None:
        """Send, cut to one datagram: of a traceback the end is kept, which names the exception, of other fields the
        beginning. A character may need 12 bytes of JSON, so lengths are tried. Raises ParentGone."""
        whole, keep = asdict(self), MAX_DATAGRAM // 2
        while True:
            short = {name: whole[name][: keep // 4] for name in ("kind", "detail", "error_type", "place")}
            payload = json.dumps({**whole, **short, "traceback": self.traceback[-keep:]}).encode()
            if len(payload) <= MAX_DATAGRAM:
                break
            keep //= 2
        try:
            channel.send(payload)
        except ConnectionError as error:
            raise ParentGone("the supervisor's end of the socket is closed") from error

    @classmethod
    def receive_all(cls, channel: socket.socket) -> Iterator["Report"]:
        """Yield every report available now, up to the end of the socket."""
        with contextlib.suppress(ParentGone):
            yield from (cls(**parcel) for parcel in receive_parcels(channel))


@dataclass(frozen=True, slots=True)
class Start:
    """The arguments of `Process.start`: numbers and short names only, never a tensor (unpickling one would import torch
    before our first line). Descriptors are inherited under the same numbers."""

    parent_pid: int
    lease_read: int
    ack_write: int
    channel: int
    lifeline: int
    words: int
    environment: tuple[tuple[str, str], ...]


class Leases:
    """A child's end of its lease pipe. Every wait watches the lifeline, too."""

    def __init__(self, start: Start) -> None:
        self._lifeline = start.lifeline
        self._poll = select.poll()
        self._poll.register(start.lease_read, select.POLLIN)
        self._poll.register(start.lifeline, select.POLLIN)

    def pull(self, wait_ms: int) -> Iterator[tuple[int, int]]:
        """Yield the records that have arrived; wait up to `wait_ms` for one. Raises ParentGone."""
        for descriptor, events in self._poll.poll(wait_ms):
            if descriptor == self._lifeline or events & (select.POLLHUP | select.POLLERR):
                raise ParentGone
            yield from read_records(descriptor)


class Leaving:
    """A flag set by SIGTERM: the worker finishes the current exchange and leaves."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True
