"""The protocol of a predictor against hostile clients: a server in a thread of this process sends back what came."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from hogwild import host
from hogwild.errors import RunError, UsageError
from hogwild.monitoring import live_calls
from hogwild.monitoring.live_calls import HEAD, MAGIC, SOCKET, LiveCalls, frame, header_of, lengths
from hogwild.monitoring.live_model import ALIGNED, bytes_of, described
from hogwild.workers.child import predictor
from hogwild.workers.child.predictor import CallServer, tensors_of
from tests.helpers.processes import PATIENCE_S, wait_for


@dataclass
class Echo:
    """Answers each call with its content."""

    run: Path
    server: CallServer = field(init=False)
    is_over: bool = False
    addresses: list[int] = field(default_factory=list)  # of contents

    def __post_init__(self) -> None:
        self.server = CallServer(self.run)

    def work(self) -> None:
        while not self.is_over:
            for call in self.server.calls(0.01):
                assert not isinstance(call, int)
                client, header, content = call
                self.addresses.append(torch.frombuffer(content, dtype=torch.uint8).data_ptr() if content else 0)
                self.server.reply(client, {"is": header.get("do")}, bytes(content))
        self.server.close()


@contextlib.contextmanager
def echoing(run: Path) -> Iterator[Echo]:
    echo = Echo(run)
    thread = threading.Thread(target=echo.work)
    thread.start()
    try:
        yield echo
    finally:
        echo.is_over = True
        thread.join()


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    with echoing(tmp_path) as made:
        yield made


def raw(run: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    with host.socket_address(run, SOCKET) as address:
        made.connect(address)
    return made


def received(connected: socket.socket) -> tuple[dict[str, object], bytes]:
    with connected.makefile("rb") as stream:
        header, content = lengths(stream.read(HEAD.size))
        return header_of(stream.read(header)), stream.read(content)


def is_well(run: Path) -> bool:
    with LiveCalls(run) as calls:
        return calls.call({"do": "this"}, b"rows") == ({"is": "this"}, b"rows")


def test_calls_of_one_connection_are_answered_in_turn(echo: Echo) -> None:
    with LiveCalls(echo.run) as calls:
        for size in (0, 1, 5 << 20):  # the last one is more than a socket's buffer
            content = os.urandom(size)
            assert calls.call({"do": size}, content) == ({"is": size}, content)
    assert not any(address % ALIGNED for address in echo.addresses), "a model would see other bits than in training"


def test_tensors_are_read_where_they_were_received_if_they_are_aligned_there() -> None:
    values = [
        torch.arange(16, dtype=torch.float32),
        torch.tensor([1.5, -2.0], dtype=torch.float64),
        torch.tensor([True]),
    ]
    content = torch.frombuffer(bytearray(b"".join(map(bytes_of, values))), dtype=torch.uint8).clone().numpy().data
    found = tensors_of([described(one) for one in values], content)
    assert all(
        torch.equal(one, other) and one.data_ptr() % ALIGNED == 0 for one, other in zip(found, values, strict=True)
    )
    content[0:4], content[64:72] = b"\0\0\x80\x3f", bytes(8)
    assert found[0][0] == 1.0
    assert found[1][0] == 0.0, "the second begins at byte 64"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "predict/bad-message"),
        (HEAD.pack(MAGIC, 2, 0) + b"[]", "predict/bad-message"),
        (HEAD.pack(MAGIC, 4, 0) + b"\xff\xfe{}", "predict/bad-message"),
        (HEAD.pack(MAGIC, 60_000, 0) + b"[" * 60_000, "predict/bad-message"),
        (HEAD.pack(MAGIC, 1 << 31, 0), "predict/too-large"),
        (HEAD.pack(MAGIC, 2, (1 << 32) - 1), "predict/too-large"),
        (frame({"do": 1}) + frame({"do": 2}), "predict/bad-message"),
    ],
    ids=["http", "list", "not-text", "deep", "large-header", "large-content", "two-at-once"],
)
def test_what_is_no_message_gets_an_error_and_ends_only_its_own_connection(
    echo: Echo, message: bytes, code: str
) -> None:
    with raw(echo.run) as hostile:
        hostile.sendall(message)
        assert received(hostile)[0]["code"] == code
        assert hostile.recv(1) == b""
    assert is_well(echo.run)


def test_a_message_that_comes_byte_by_byte_is_answered_and_delays_nobody(echo: Echo) -> None:
    with raw(echo.run) as slow:
        message = frame({"do": "slow"}, b"abc")
        for place, byte in enumerate(message):
            slow.sendall(bytes([byte]))
            assert place % 16 or is_well(echo.run)
        assert received(slow) == ({"is": "slow"}, b"abc")


def test_half_a_message_and_an_answer_that_is_not_taken_are_dropped_after_a_while(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw(echo.run) as half, raw(echo.run) as deaf:
        half.sendall(frame({"do": 1}, b"x" * 100)[:50])
        deaf.sendall(frame({"do": 1}, bytes(8 << 20)))
        wait_for("both", lambda: len(echo.server.clients) == 2)
        assert is_well(echo.run)
        monkeypatch.setattr(predictor, "PATIENCE_S", 0.05)
        wait_for("the end of both", lambda: not echo.server.clients)


def test_clients_that_go_away_at_any_moment_leave_nothing(echo: Echo) -> None:
    message = frame({"do": 1}, bytes(3 << 20))
    for length in (0, 3, HEAD.size, HEAD.size + 4, 1 << 20, len(message)):
        with raw(echo.run) as leaving:
            leaving.sendall(message[:length])
            # Unread data at close: the server's send fails with a reset.
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert is_well(echo.run)
    wait_for("no client", lambda: not echo.server.clients)


def test_beyond_the_most_clients_the_longest_idle_one_makes_room_and_a_busy_one_does_not(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor, "MOST_CLIENTS", 3)
    with contextlib.ExitStack() as opened:
        idle, *busy = (opened.enter_context(raw(echo.run)) for _ in range(3))
        for client in busy:
            client.sendall(frame({"do": 1}, b"x" * 100)[:50])
        wait_for("three clients", lambda: sum(bool(one.received) for one in echo.server.clients) == 2)
        newest = opened.enter_context(raw(echo.run))
        assert idle.recv(1) == b""
        newest.sendall(b"H")
        wait_for("three at work", lambda: sum(bool(one.received) for one in echo.server.clients) == 3)
        refused = opened.enter_context(raw(echo.run))
        assert received(refused)[0]["code"] == "predict/busy"


def test_messages_that_wait_have_a_bound_in_common(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MOST_WAITING", 1000)
    with raw(echo.run) as first, raw(echo.run) as second:
        first.sendall(frame({"do": 1}, bytes(900))[:-1])
        wait_for("its promise", lambda: any(one.sizes for one in echo.server.clients))
        second.sendall(frame({"do": 1}, bytes(900)))
        assert received(second)[0]["code"] == "predict/busy"
        first.sendall(b"\0")
        assert received(first)[0] == {"is": 1}


def test_a_socket_left_by_a_killed_run_is_replaced_and_two_runs_have_their_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / ("other" * 50)  # longer than a socket's path may be
    for run in (one, other):
        run.mkdir()
    with echoing(one):
        pass
    assert (one / SOCKET).is_socket(), "the file of an ended server"
    with echoing(one), echoing(other):
        assert is_well(one) and is_well(other)
    assert oct((other / SOCKET).stat().st_mode & 0o777) == "0o600"


def test_a_folder_where_no_socket_can_be_made_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / SOCKET).mkdir()
    with pytest.raises(RunError, match=f"cannot listen on {tmp_path / SOCKET}"):
        CallServer(tmp_path)


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_calls, "MOST_CONTENT", 10)
    with LiveCalls(echo.run) as calls, pytest.raises(UsageError, match="send fewer rows"):
        calls.call({"do": 1}, b"x" * 11)
