"""Calls to the predictor of a running job, over the Unix socket RUN/predictor.sock. No torch, no numpy.

    frame    "HWP1", length of the header (u32), length of the content (u32), header (JSON), content
    request  {"do": "predict", "form": "tensors", "inputs": [[dtype, shape], …], "consistent": false}   their bytes
             "nesting": …, if inputs are nested, as torch writes a TreeSpec
             {"do": "predict", "form": "json", "consistent": false}     {"inputs": […], "dtypes": […]} or {"text": …}
             {"do": "similar"}       {"names": […], "minus": […], "kind": …, "top": …} -> [[name, cosine], …]
             {"do": "describe"}                                         -> {"inputs": names of the model's inputs}
    answer   {"updates": …, "output": [dtype, shape]} and its bytes, or of several tensors "outputs": [[name, dtype,
             shape], …] and theirs, or JSON; {"error", "kind", "code"} if refused

Whoever calls first asks the supervisor for a predictor; it stays until the job ends. A call changes nothing, so it is
repeated when the predictor dies under it."""

import json
import socket
import struct
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hogwild import errors, host
from hogwild.errors import HogwildError, RunEndedError, RunError, UsageError
from hogwild.formatting import size
from hogwild.monitoring.run_status import ALIVE, read_status
from hogwild.storage.files import object_of
from hogwild.storage.run_files import answer_to, size_of_events, withdraw, write_request

SOCKET = "predictor.sock"
MAGIC = b"HWP1"
HEAD = struct.Struct("<4sII")
MOST_HEADER = 64 << 10
MOST_CONTENT = 64 << 20
START_S = 120.0  # for a predictor to start: it imports torch, on a busy machine
ANSWER_S = 120.0  # for an answer that waits for no pause
LOOK_S = 0.05
ASK_S = 5.0  # between two requests for a predictor that does not come
ATTEMPTS = 3  # of a call under which predictors die
STARTS = ("building", "running")  # states in which a predictor starts; one that was there may answer to the end
KINDS = ("UsageError", "DataError", "ModelError", "RunError", "NotFoundError")  # errors that travel


def frame(header: Mapping[str, Any], content: bytes | memoryview = b"") -> bytes:
    """Return a message. Raises UsageError for one that is too large."""
    return b"".join((beginning(header, len(content)), content))


def beginning(header: Mapping[str, Any], content: int) -> bytes:
    """Return a message up to its content, of so many bytes. Raises UsageError for one that is too large."""
    described = json.dumps(header).encode()
    if content > MOST_CONTENT:
        raise UsageError(
            f"the message has {size(content)}, more than {size(MOST_CONTENT)}; send fewer rows in one call",
            code="predict/too-large",
        )
    if len(described) > MOST_HEADER:
        raise UsageError(f"the message's header has {size(len(described))}", code="predict/bad-message")
    return HEAD.pack(MAGIC, len(described), content) + described


def lengths(head: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the lengths of header and content. Raises UsageError for what is no frame, or too large."""
    magic, header, content = HEAD.unpack(head)
    if magic != MAGIC:
        raise UsageError(f"the message begins with {magic!r}, not with {MAGIC!r}", code="predict/bad-message")
    if header > MOST_HEADER or content > MOST_CONTENT:
        raise UsageError(
            f"the message has {size(header)} of header and {size(content)} of content, more than {size(MOST_HEADER)} "
            f"and {size(MOST_CONTENT)}; send fewer rows in one call",
            code="predict/too-large",
        )
    return header, content


def header_of(text: bytes | bytearray) -> dict[str, Any]:
    """Return the header. Raises UsageError for anything but a JSON object."""
    if (found := object_of(text)) is None:
        raise UsageError("the message's header is no JSON object", code="predict/bad-message")
    return found


def error_record(error: HogwildError) -> dict[str, Any]:
    return {"error": str(error), "kind": type(error).__name__, "code": error.code}


class LiveCalls:
    """A connection to a running job's predictor, for one thread. `close` it, or use it as a context. `start_s`: time
    for a predictor to start."""

    def __init__(self, run: Path, *, start_s: float = START_S) -> None:
        self.run, self._start_s = run, start_s
        self._socket: socket.socket | None = None

    def __enter__(self) -> "LiveCalls":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(
        self, header: Mapping[str, Any], content: bytes | memoryview = b"", *, limit_s: float | None = ANSWER_S
    ) -> tuple[dict[str, Any], bytearray]:
        """Return the answer (header, content), within `limit_s` of the call (None: any time). Raises RunEndedError if
        the run does not run, or ends before the answer, RunError without a predictor, and the predictor's errors."""
        message = beginning(header, len(content))
        for _ in range(ATTEMPTS):
            connected = self._socket or self._connected()
            self._socket = connected
            connected.settimeout(limit_s)
            try:
                _send(connected, message, content)
                sizes = lengths(_exactly(connected, HEAD.size))
                answer = header_of(_exactly(connected, sizes[0])), _exactly(connected, sizes[1])
            except TimeoutError:
                self.close()
                words = f"{self.run}: no answer from its predictor within {limit_s:g} s"
                paused = "; no pause came: they come with evaluations and checkpoints"
                raise RunError(words + paused * bool(header.get("consistent")), code="run/no-answer") from None
            except OSError:
                self.close()
                self._check_alive("ended in the middle of a call")
                continue
            except BaseException:  # of a signal, perhaps between two halves of a message
                self.close()
                raise
            if "error" in answer[0]:
                record = answer[0]
                kind = record.get("kind") if record.get("kind") in KINDS else "RunError"
                raise getattr(errors, str(kind))(str(record["error"]), code=str(record.get("code")))
            return answer
        raise RunError(
            f"{self.run}: its predictor died under this call {ATTEMPTS} times; see logs/predictor-0.log in the run "
            "directory. A model that writes into its parameters while it predicts is killed by a SIGSEGV there: the "
            "predictor may only read them",
            code="predict/died",
        )

    def _connected(self) -> socket.socket:
        """Connect, and have a predictor started if there is none."""
        until, ask_s, name, begin = time.monotonic() + self._start_s, 0.0, "", 0
        try:
            while True:
                made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    with host.socket_address(self.run, SOCKET) as address:
                        made.settimeout(ANSWER_S)
                        made.connect(address)
                    return made
                except OSError:  # nobody listens there yet
                    made.close()
                except BaseException:
                    made.close()
                    raise
                self._check_alive("does not run any more" if name else "does not run", STARTS)
                if name and (answer := answer_to(self.run, name, begin)) is not None:
                    if answer["answer"] != "done":
                        raise RunError(
                            f"{self.run} has no live predictor: {answer['answer']}", code="predict/no-predictor"
                        )
                    name = ""
                if time.monotonic() > until:
                    raise RunError(
                        f"{self.run}: no predictor within {self._start_s:g} s: the job is being built, or stopped? "
                        f"hogwild status {self.run}",
                        code="run/no-answer",
                    )
                if not name and time.monotonic() > ask_s:
                    ask_s = time.monotonic() + ASK_S
                    begin = size_of_events(self.run)
                    name = write_request(self.run, {"ask": "predictor"})
                time.sleep(LOOK_S)
        finally:
            if name:
                withdraw(self.run, name)

    def _check_alive(self, what: str, states: Collection[str] = ALIVE) -> None:
        status = read_status(self.run)
        if status.state not in states:
            raise RunEndedError(
                f"{self.run} {what} ({status.ending}): only a running job has a live predictor; its last checkpoint "
                "answers without --live",
                code="run/ended",
            )


def _send(connected: socket.socket, message: bytes, content: bytes | memoryview) -> None:
    """Send both, without a copy that joins them."""
    sent = connected.sendmsg([message, content])
    connected.sendall(message[sent:])
    connected.sendall(memoryview(content)[max(0, sent - len(message)) :])


def _exactly(connected: socket.socket, count: int) -> bytearray:
    """Receive `count` bytes. Raises ConnectionError at the end of the stream, TimeoutError."""
    content = bytearray(count)
    view, at = memoryview(content), 0
    while at < count:
        if not (got := connected.recv_into(view[at:])):
            raise ConnectionResetError("the predictor closed the connection")
        at += got
    return content
