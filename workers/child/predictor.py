"""The predictor: answers calls with the model that is being trained, over parameters that it may only read.

    flats, buffers, scoreboard   mapped with PROT_READ: a store would kill this process, never change a parameter
    own buffers                  private copies, before each call merged from those of all workers, as in a pause

No process waits for it, and it waits for none. It reads while workers write: each parameter is whole (aligned words),
but neighbouring ones, in a row, too, may come from before and after an update. A call that asks for `consistent` is
computed inside a pause, and again in the next one if that ended first.

Its clients have one thread, and each has one call at a time; one that is slow, silent or gone costs the others nothing:

    connected ── a whole message ──► `calls` yields it ──► `reply` ──► sent ──► the next one
        '── no frame, too large ──► an error, then closed
        '── half a message, or an answer not taken, for PATIENCE_S ──► closed"""

import contextlib
import inspect
import json
import math
import os
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_unflatten, treespec_loads

from hogwild import host
from hogwild.data.input_rows import InputRows
from hogwild.data.text_file import TextStream
from hogwild.errors import HogwildError, ModelError, RunError, UsageError
from hogwild.inference.predict import Scores, Several, outputs_of, row_outputs
from hogwild.inference.trained_model import Trained
from hogwild.monitoring.live_calls import HEAD, SOCKET, error_record, frame, header_of, lengths
from hogwild.monitoring.live_model import bytes_of, described, tensor_of
from hogwild.parameters import buffers
from hogwild.parameters.structure_file import load_structure
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Control, Scoreboard
from hogwild.storage.files import object_of
from hogwild.training.model_steps import forward_of
from hogwild.training.outputs import leaves_of
from hogwild.user_code import raised_text
from hogwild.workers.child.trainer import Loop
from hogwild.workers.messages import Leaving, ParentGone, PredictTask, Start

MOST_CLIENTS = 64
MOST_WAITING = 256 << 20  # bytes of unfinished messages of all clients
PATIENCE_S = 30.0
UNREAD = 1 << 20  # bytes after what is no message


@dataclass(slots=True, eq=False)
class Caller:
    """One connection. `since_s`: when it last moved; `received`: bytes of the message that comes, which is received
    where it stays: `parts` are its header, its content and one byte more, which must not come; `is_called`: its call is
    not answered yet."""

    socket: socket.socket
    since_s: float
    received: int = 0
    head: bytearray = field(default_factory=lambda: bytearray(HEAD.size))
    sizes: tuple[int, int] | None = None
    parts: tuple[memoryview, ...] = ()
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    is_called: bool = False
    is_closing: bool = False
    is_full: bool = False  # its socket takes no more of the answer now

    def receive(self) -> int:
        """Receive what is there; return the number of bytes, 0 at the end of the stream. Raises OSError."""
        if self.is_called:
            return len(self.socket.recv(1))
        if self.sizes is None:
            count = self.socket.recv_into(memoryview(self.head)[self.received :])
        else:
            left, begin = [], self.received - HEAD.size
            for part in self.parts:
                left.append(part[begin:])
                begin = max(0, begin - len(part))
            count = self.socket.recvmsg_into(left)[0]
        self.received += count
        return count


class CallServer:
    """Listens on the run's socket. Raises RunError if it cannot. `watched`: further descriptors that end a wait."""

    def __init__(self, run: Path, *watched: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = _listening(run)
        self._selector.register(self._listener, selectors.EVENT_READ)
        for descriptor in watched:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self.clients: set[Caller] = set()

    def close(self) -> None:
        for client in list(self.clients):
            self._drop(client)
        self._selector.close()
        self._listener.close()

    def calls(self, wait_s: float) -> Iterator[tuple[Caller, dict[str, Any], memoryview] | int]:
        """Wait; yield the calls that have arrived, (client, header, content), and readable `watched` descriptors. The
        content is aligned, and the caller's."""
        for key, _ in self._selector.select(wait_s):
            client = key.data
            if key.fileobj is self._listener:
                with contextlib.suppress(OSError):  # it has gone, or no descriptor is left
                    self._add(self._listener.accept()[0])
            elif client is None:
                yield key.fd
            elif client in self.clients:
                call = self._moved(client)
                if call is not None:
                    yield client, *call
        late_s = time.monotonic() - PATIENCE_S
        for client in list(self.clients):
            if client.since_s < late_s and (client.received or client.unsent):
                self._drop(client)

    def reply(self, client: Caller, header: Mapping[str, Any], content: bytes | memoryview = b"") -> None:
        """Answer the call of a client, which may be gone."""
        if client not in self.clients:
            return
        try:
            answer = frame(header, content)
        except UsageError as error:  # the answer is too large
            answer = frame(error_record(error))
        client.unsent, client.is_called, client.since_s = memoryview(answer), False, time.monotonic()
        self._send(client)

    def _add(self, connection: socket.socket) -> None:
        """Serve one more client. If there are too many, close the connection that has been idle longest; if all are at
        work, refuse the newest."""
        connection.setblocking(False)
        newest = Caller(connection, time.monotonic())
        self.clients.add(newest)
        self._selector.register(connection, selectors.EVENT_READ, newest)
        if len(self.clients) <= MOST_CLIENTS:
            return
        others = self.clients - {newest}
        if idle := [one for one in others if not (one.received or one.unsent or one.is_called)]:
            self._drop(min(idle, key=lambda one: one.since_s))
            return
        newest.is_closing = True
        words = f"the predictor has {MOST_CLIENTS} clients; call again"
        self.reply(newest, error_record(RunError(words, code="predict/busy")))

    def _moved(self, client: Caller) -> tuple[dict[str, Any], memoryview] | None:
        client.since_s = time.monotonic()
        if client.unsent:
            self._send(client)
            return None
        try:
            for _ in range(2):  # the head, and what follows it; then it is another's turn
                if not client.receive() or client.is_called:  # gone, or it does not wait for its answer
                    self._drop(client)
                    break
                if (call := self._taken(client)) is not None:
                    return call
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(client)
        except HogwildError as error:
            client.is_closing = True  # what follows has no beginning
            with suppress(OSError):  # read, or the client would see a reset
                client.socket.recv(UNREAD)
            self.reply(client, error_record(error))
        return None

    def _taken(self, client: Caller) -> tuple[dict[str, Any], memoryview] | None:
        """Return the message of a client, once it is whole."""
        if client.sizes is None:
            if client.received < HEAD.size:
                return None
            client.sizes = lengths(client.head)
            promised = sum(sum(one.sizes) for one in self.clients if one.sizes is not None and not one.is_called)
            if promised > MOST_WAITING:
                raise RunError("the predictor waits for too much of others; call again", code="predict/busy")
            header, nbytes = client.sizes
            aligned = torch.empty(nbytes, dtype=torch.uint8).numpy().data
            client.parts = memoryview(bytearray(header)), aligned, memoryview(bytearray(1))
        whole = HEAD.size + sum(client.sizes)
        if client.received < whole:
            return None
        if client.received > whole:
            raise UsageError("a second message came before the first was answered", code="predict/bad-message")
        text, content, _ = client.parts
        client.received, client.sizes, client.parts = 0, None, ()
        found = header_of(bytes(text))
        client.is_called = True
        return found, content

    def _send(self, client: Caller) -> None:
        try:
            while client.unsent:
                client.unsent = client.unsent[client.socket.send(client.unsent) :]
        except (BlockingIOError, InterruptedError):
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
            client.is_full = True
            return
        except OSError:
            self._drop(client)
            return
        if client.is_closing:
            self._drop(client)
        elif client.is_full:
            self._selector.modify(client.socket, selectors.EVENT_READ, client)
            client.is_full = False

    def _drop(self, client: Caller) -> None:
        self.clients.remove(client)
        self._selector.unregister(client.socket)
        client.socket.close()


def _listening(run: Path) -> socket.socket:
    """Return the listening socket. The file of an earlier predictor is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with host.socket_address(run, SOCKET) as address:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            listener.bind(address)
            os.chmod(address, 0o600)  # before it listens
            listener.listen(MOST_CLIENTS)
    except OSError as error:
        listener.close()
        raise RunError(
            f"the predictor cannot listen on {run / SOCKET}: {error.strerror or error}; the file system of the run "
            "directory may have no sockets",
            code="predict/no-socket",
        ) from error
    listener.setblocking(False)
    return listener


WAIT_S = 0.2  # between two beats
STILL_S = 0.001  # between two looks for a pause, while a call waits for one
OWN = 0  # its place among the buffers' copies in its private memory
BEAT, CALLS = 0, 1  # words that the supervisor reads
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


class PredictorLoop(Loop):
    """The work of a predictor. Its first regions are writable: `beats` alone is shared and written."""

    def __init__(
        self, start: Start, channel: socket.socket, leaving: Leaving, task: PredictTask, regions: dict[str, Region]
    ) -> None:
        self._leaving = leaving
        self._words = regions["beats"].array("i8", (2,))
        self._board = Scoreboard(regions["scoreboard"], task.rows)
        self._theirs = regions.get(buffers.REGION)
        if self._theirs is not None:
            regions[buffers.REGION] = Region.private(self._theirs.nbytes)
        structure = regions["structure"].array("u1", (task.structure_nbytes,)).data
        self._layout, (model, _, _), _ = load_structure(structure, regions, OWN)
        self._own = regions.get(buffers.REGION)
        self._model = model.eval()
        self._forward = forward_of(self._model)
        self._trained = Trained.live(Path(task.run), self._model)
        self._waiting: list[tuple[Caller, dict[str, Any], memoryview]] = []
        self._ends = channel.fileno(), start.lifeline
        self._server = CallServer(Path(task.run), *self._ends)

    def run(self) -> None:
        """Answer calls until told to leave, by SIGTERM or the end of the supervisor."""
        while not self._leaving.asked:
            self._words[BEAT] += 1
            for call in self._server.calls(STILL_S if self._waiting else WAIT_S):
                if isinstance(call, int):
                    raise ParentGone("the supervisor is gone")
                if call[1].get("consistent"):
                    self._waiting.append(call)
                else:
                    self._answer(*call)
            waiting = [call for call in self._waiting if call[0] in self._server.clients]
            # Answered, if everything that it reads is read inside one pause; outside one its number is 0.
            self._waiting = [call for call in waiting if not ((pause := self._still()) and self._answer(*call, pause))]

    def close(self) -> None:
        self._server.close()

    def _still(self) -> int:
        """Return the number of the present pause in which nobody writes; 0 outside one."""
        return int(self._board.control_words[Control.STILL])

    def _answer(self, client: Caller, header: Mapping[str, Any], content: memoryview, pause: int = 0) -> bool:
        """Answer a call; return False if it must be computed again, because `pause` has ended."""
        updates = self._board.updates()
        try:
            answer, payload = self._computed(header, content)
        except HogwildError as error:
            answer, payload = {"error": str(error), "kind": type(error).__name__, "code": error.code}, b""
        except Exception as error:  # of user code that reads the rows
            said = ModelError(f"the rows cannot be predicted: {raised_text(error)}", code="model/forward-failed")
            answer, payload = {"error": str(said), "kind": "ModelError", "code": said.code}, b""
        if pause and self._still() != pause:
            return False
        self._words[CALLS] += 1
        self._server.reply(client, {"updates": updates, **answer}, payload)
        return True

    def _computed(self, header: Mapping[str, Any], content: memoryview) -> tuple[dict[str, Any], bytes | memoryview]:
        if self._theirs is not None and self._own is not None:
            layout, ahead = self._layout.buffers, max(1, int(self._board.control_words[Control.SYNC_EVERY]))
            batches = [count + ahead for count in self._board.applied_batches()]
            buffers.read_live(layout, self._theirs, batches, layout.block(self._own, buffers.block_of(OWN)))
        match header.get("do"), header.get("form"):
            case "describe", _:
                return {"inputs": input_names(self._model)}, b""
            case "predict", "tensors":
                # A call that is computed again, in another pause, must not find what the model has made of its inputs.
                own = memoryview(bytearray(content)) if header.get("consistent") else content
                inputs = nested(tensors_of(header.get("inputs"), own), header.get("nesting"))
                output = outputs_of(self._model, inputs, self._forward)
                leaves = {name: one.contiguous() for name, one in leaves_of(output).items()}
                if isinstance(output, Tensor):
                    return {"output": described(leaves[""])}, bytes_of(leaves[""])
                listing = [[name, *described(one)] for name, one in leaves.items()]
                return {"outputs": listing}, b"".join(map(bytes_of, leaves.values()))
            case "predict", "json":
                if (found := object_of(bytes(content))) is None:
                    raise UsageError("the call's content is no JSON object", code="predict/bad-message")
                return {}, json.dumps(self._columns(found)).encode()
            case "similar", _:
                asked = object_of(bytes(content)) or {}
                names, minus = asked.get("names") or [], asked.get("minus") or []
                near = self._trained.similar(names, minus, kind=asked.get("kind"), top=asked.get("top", 10))
                return {}, json.dumps(near).encode()
        words = f"a call must do describe, predict or similar, got {header!r:.200}"
        raise UsageError(words, code="predict/bad-message")

    # ---- rows as JSON

    def _columns(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer's columns, by name. Raises UsageError, DataError, ModelError."""
        raw = given.get("raw") is True
        if isinstance(text := given.get("text"), str):
            found: dict[str, list[Any]] = {}
            for scores in self._of_text(text, raw):
                for name, values in scores.columns():
                    found.setdefault(name, []).extend(values.tolist())
        else:
            inputs = self._listed(given.get("inputs"), given.get("dtypes"))
            meaning = self._trained.meaning(raw=raw)
            block = InputRows({}, inputs)
            columns = meaning.scores(block, row_outputs(self._model, block)).columns()
            found = {name: values.tolist() for name, values in columns}
        return {
            name: [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
            for name, values in found.items()
        }

    def _listed(self, inputs: Any, dtypes: Any) -> tuple[Any, ...]:
        """Return the model's inputs from nested lists; those of a job that pads may have rows of their own lengths, and
        then lack the lengths. Raises UsageError, DataError."""
        given = len(inputs) if isinstance(inputs, list) else 0
        lengths = sum(field < given for field in self._trained.padded)
        if not lengths or given + lengths != len(input_names(self._model)):
            return listed(inputs, dtypes)
        return self._trained.inputs_of([*zip(*listed(inputs, dtypes, by_row=True), strict=True)])

    def _of_text(self, text: str, raw: bool) -> Iterator[Scores | Several]:
        descriptor = os.memfd_create("hogwild-rows", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(text.encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            stream = TextStream(Path("the call's text"), descriptor)
            yield from self._trained.stream_predictor(stream, raw=raw).scores()
        finally:
            os.close(descriptor)


def input_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the model's inputs; [] if it does not tell."""
    with suppress(TypeError, ValueError):
        return [name for name in inspect.signature(model.forward).parameters if name != "state"]
    return []


def tensors_of(given: Any, content: memoryview) -> tuple[Tensor, ...]:
    """Return the tensors in the bytes of a call. Raises UsageError if they are not as described."""
    made, at = [], 0
    try:
        for name, shape in given:
            if name not in DTYPES or not all(type(one) is int and one >= 0 for one in shape):
                raise ValueError(f"{name} {shape}")
            dtype = getattr(torch, name)
            nbytes = math.prod(shape) * dtype.itemsize
            if at + nbytes > len(content):
                raise ValueError(f"{name} {shape} is more than came")
            made.append(tensor_of(dtype, shape, content[at : at + nbytes]))
            at += nbytes
        if not made or at != len(content):
            raise ValueError(f"{len(content)} bytes came, {at} are described")
    except (TypeError, ValueError) as error:
        raise UsageError(f"the call's inputs are not as it says: {error}", code="predict/bad-message") from error
    return tuple(made)


def nested(inputs: tuple[Tensor, ...], nesting: Any) -> tuple[Any, ...]:
    """Return the tensors nested as a call says. Raises UsageError."""
    if nesting is None:
        return inputs
    try:
        found = tree_unflatten(inputs, treespec_loads(nesting))
        if not isinstance(found, tuple):
            raise ValueError("no tuple of inputs")
    except Exception as error:
        raise UsageError(f"the call's inputs are not nested as it says: {error}", code="predict/bad-message") from error
    return found


def listed(inputs: Any, dtypes: Any, *, by_row: bool = False) -> tuple[Any, ...]:
    """Return the model's inputs from nested lists, and one that is a dict from a list for each name; `by_row`: each as
    a list of tensors, of rows that may have any length. Raises UsageError."""
    if not isinstance(inputs, list) or not inputs:
        raise UsageError("a call needs `text`, or `inputs`: a list for each input of the model", code="usage/no-input")
    given: Sequence[Any] = dtypes if dtypes is not None else [None] * len(inputs)
    try:
        if len(given) != len(inputs) or not set(given) <= {*DTYPES, None}:
            raise ValueError(f"dtypes must name one of {', '.join(DTYPES)} for each input")
        pairs = zip(inputs, given, strict=True)
        made = [_tensors(one, None if name is None else getattr(torch, name), by_row) for one, name in pairs]
        rows = [*map(len, made)] if by_row else [len(one) if one.dim() else -1 for one in tree_leaves(made)]
        if -1 in rows or len({*rows}) != 1:
            raise ValueError("each must have the same number of rows")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError(f"inputs: {raised_text(error)}", code="usage/bad-value") from error
    return tuple(made)


def _tensors(rows: Any, dtype: torch.dtype | None, by_row: bool) -> Any:
    if isinstance(rows, dict):
        return {name: _tensors(one, dtype, by_row) for name, one in rows.items()}
    return [torch.tensor(row, dtype=dtype) for row in rows] if by_row else torch.tensor(rows, dtype=dtype)
