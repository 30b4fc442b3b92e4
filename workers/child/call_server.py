"""The clients of a predictor: their connections, one thread, no torch. A client that is slow, silent or gone costs the
others nothing; each has one call at a time.

    connected ── a whole message ──► `calls` yields it ──► `reply` ──► sent ──► the next one
        '── no frame, too large ──► an error, then closed
        '── half a message, or an answer not taken, for PATIENCE_S ──► closed"""

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.errors import HogwildError, RunError, UsageError
from hogwild.monitoring.live_calls import HEAD, SOCKET, error_record, frame, header_of, lengths

MOST_CLIENTS = 64
MOST_WAITING = 256 << 20  # bytes of unfinished messages of all clients
PATIENCE_S = 30.0
RECEIVED = 1 << 20  # bytes at once


@dataclass(slots=True, eq=False)
class Caller:
    """One connection. `since_s`: when it last moved; `is_called`: its call is not answered yet."""

    socket: socket.socket
    since_s: float
    received: bytearray = field(default_factory=bytearray)
    sizes: tuple[int, int] | None = None
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    is_called: bool = False
    is_closing: bool = False

    @property
    def is_idle(self) -> bool:
        return not (self.received or self.unsent or self.is_called)

    @property
    def promised(self) -> int:
        return 0 if self.sizes is None or self.is_called else sum(self.sizes)


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

    def calls(self, wait_s: float) -> Iterator[tuple[Caller, dict[str, Any], bytearray] | int]:
        """Wait; yield the calls that have arrived, (client, header, content), and readable `watched` descriptors."""
        for key, _ in self._selector.select(wait_s):
            client = key.data
            if key.fileobj is self._listener:
                self._accept()
            elif client is None:
                yield key.fd
            elif client in self.clients:
                call = self._moved(client)
                if call is not None:
                    yield client, *call
        self._drop_late()

    def reply(self, client: Caller, header: Mapping[str, Any], content: bytes = b"") -> None:
        """Answer the call of a client, which may be gone."""
        if client not in self.clients:
            return
        try:
            answer = frame(header, content)
        except UsageError as error:  # the answer is too large
            answer = frame(error_record(error))
        client.unsent, client.is_called, client.since_s = memoryview(answer), False, time.monotonic()
        self._send(client)

    # ---- one client

    def _moved(self, client: Caller) -> tuple[dict[str, Any], bytearray] | None:
        client.since_s = time.monotonic()
        if client.unsent:
            self._send(client)
            return None
        try:
            chunk = client.socket.recv(RECEIVED)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            chunk = b""
        if not chunk or client.is_called:  # gone, or it does not wait for its answer
            self._drop(client)
            return None
        client.received += chunk
        try:
            return self._taken(client)
        except HogwildError as error:
            client.is_closing = True  # what follows has no beginning
            self.reply(client, error_record(error))
            return None

    def _taken(self, client: Caller) -> tuple[dict[str, Any], bytearray] | None:
        """Return the message of a client, once it is whole."""
        if client.sizes is None:
            if len(client.received) < HEAD.size:
                return None
            client.sizes = lengths(client.received[: HEAD.size])
            if sum(one.promised for one in self.clients) > MOST_WAITING:
                raise RunError("the predictor waits for too much of others; call again", code="predict/busy")
        header, content = client.sizes
        whole = HEAD.size + header + content
        if len(client.received) < whole:
            return None
        if len(client.received) > whole:
            raise UsageError("a second message came before the first was answered", code="predict/bad-message")
        message, client.received, client.sizes = client.received, bytearray(), None
        found = header_of(message[HEAD.size : HEAD.size + header])
        client.is_called = True
        return found, message[HEAD.size + header :]

    def _send(self, client: Caller) -> None:
        try:
            while client.unsent:
                client.unsent = client.unsent[client.socket.send(client.unsent) :]
        except (BlockingIOError, InterruptedError):
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
            return
        except OSError:
            self._drop(client)
            return
        if client.is_closing:
            self._drop(client)
        else:
            self._selector.modify(client.socket, selectors.EVENT_READ, client)

    def _drop(self, client: Caller) -> None:
        self.clients.remove(client)
        self._selector.unregister(client.socket)
        client.socket.close()

    # ---- all clients

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone, or no descriptor is left
            made, _ = self._listener.accept()
            made.setblocking(False)
            client = Caller(made, time.monotonic())
            self.clients.add(client)
            self._selector.register(made, selectors.EVENT_READ, client)
            if len(self.clients) > MOST_CLIENTS:
                self._make_room(client)

    def _make_room(self, newest: Caller) -> None:
        """Close the connection that has been idle longest; if all are at work, refuse the newest."""
        if idle := [one for one in self.clients if one.is_idle and one is not newest]:
            self._drop(min(idle, key=lambda one: one.since_s))
            return
        newest.is_closing = True
        words = f"the predictor has {MOST_CLIENTS} clients; call again"
        self.reply(newest, error_record(RunError(words, code="predict/busy")))

    def _drop_late(self) -> None:
        late_s = time.monotonic() - PATIENCE_S
        for client in list(self.clients):
            if client.since_s < late_s and (client.received or client.unsent):
                self._drop(client)


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
