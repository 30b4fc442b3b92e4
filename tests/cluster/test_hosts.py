"""Hosts on this machine: the cables by a fake clock, then real namespaces, processes and torchrun."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import GONE_S, HOME, Hosts, Program, TorchRun, why_not
from tests.cluster.relay import NETWORK, Link, Switch, processes_in
from tests.helpers.processes import NeverHappened, state_of, wait_for

DELAY_S = 0.05

# ---- the switch -----------------------------------------------------------------------------------------------------


def packet(target: int, size: int = 1000, version: int = 4) -> bytes:
    return (bytes([version << 4]) + bytes(15) + NETWORK + bytes([target + 1])).ljust(size, b"x")


def switch(hosts: int = 3, **link: float | tuple[int, ...] | None) -> Switch:
    return Switch(hosts, Link(**link), seed=1)  # type: ignore[arg-type]


def targets(of: Switch, now: float) -> list[int]:
    return [target for target, _ in of.deliver(now)]


def test_a_packet_arrives_after_the_delay_and_not_before() -> None:
    slow = switch(delay_s=2.0)
    slow.accept(10.0, 0, packet(1))
    assert slow.wait_s(11.5) == 0.5
    assert targets(slow, 11.9) == []
    assert targets(slow, 12.0) == [1]
    assert slow.wait_s(12.0) is None


def test_a_perfect_cable_keeps_order_and_content() -> None:
    fast = switch()
    sent = [packet(1, size) for size in (100, 50, 75)]
    for one in sent:
        fast.accept(0.0, 0, one)
    assert list(fast.deliver(0.0)) == [(1, one) for one in sent]
    assert fast.delivered_bytes == [225, 0, 0]


def test_packets_of_a_limited_rate_follow_one_another() -> None:
    limited = switch(rate_bytes_s=10_000.0)  # 0.1 s for each packet
    for _ in range(3):
        limited.accept(0.0, 0, packet(1))
    assert [len(targets(limited, now)) for now in (0.09, 0.11, 0.21, 0.29, 0.31)] == [0, 1, 1, 0, 1]


def test_each_direction_of_each_cable_has_the_rate_for_itself() -> None:
    limited = switch(rate_bytes_s=10_000.0)
    for source, target in ((0, 1), (1, 0), (2, 1)):  # the last two share nothing but host 1's two directions
        limited.accept(0.0, source, packet(target))
    assert [sorted(targets(limited, now)) for now in (0.101, 0.201)] == [[0, 1], [1]]


def test_what_a_full_queue_cannot_keep_is_dropped() -> None:
    limited = switch(rate_bytes_s=100_000.0)  # 10 ms for each packet: 0.2 s are 20 of them
    for _ in range(100):
        limited.accept(0.0, 0, packet(1))
    assert len(targets(limited, 100.0)) in (19, 20)
    limited.accept(100.0, 0, packet(1))
    assert targets(limited, 100.02) == [1]


def test_loss_loses_its_share_and_the_same_packets_again() -> None:
    def arrived() -> list[int]:
        bad = switch(loss=0.2)
        for number in range(10_000):
            bad.accept(0.0, 0, packet(1, 20) + number.to_bytes(4))
        return [int.from_bytes(one[20:]) for _, one in bad.deliver(0.0)]

    assert len(arrived()) == pytest.approx(8000, abs=200)  # 5 sigma
    assert arrived() == arrived()


def test_a_cut_drops_both_directions_and_what_is_on_its_way() -> None:
    cut = switch(delay_s=1.0)
    cut.accept(0.0, 0, packet(1))
    cut.accept(0.0, 0, packet(2))
    cut.link = Link(delay_s=1.0, cut=(1,))
    cut.accept(0.0, 0, packet(1))
    cut.accept(0.0, 1, packet(2))
    assert targets(cut, 5.0) == [2]


# ---- real hosts -----------------------------------------------------------------------------------------------------

PEER = f"""
import json, os, socket, sys, time
def connect(address):
    while True:
        try:
            peer = socket.create_connection((address, 5000), timeout=5)
        except OSError:
            time.sleep(0.05)
        else:
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer
def accept():
    peer = socket.create_server(("", 5000)).accept()[0]
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer
def say(value):
    print(json.dumps(value), flush=True)
def echo():
    peer = accept()
    while got := peer.recv(65536):
        peer.sendall(got)
def ask(address):  # one exchange after another, for ever
    peer = connect(address)
    while True:
        begin = time.monotonic()
        peer.sendall(b"x")
        if not peer.recv(1):
            return say("closed")
        say(time.monotonic() - begin)
def send(address, size):
    peer = connect(address)
    say(time.monotonic())
    peer.sendall(bytes(int(size)))
def receive():
    peer = accept()
    while peer.recv(1 << 20):
        pass
    say(time.monotonic())
def throw(address, count):  # UDP; one of so many ends arrives
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thrower:
        for text in (b"x",) * int(count) + (b"end",) * 100:
            thrower.sendto(text, (address, 5000))
def catch():
    catcher = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    catcher.setsockopt(socket.SOL_SOCKET, {getattr(socket, "SO_RCVBUFFORCE", 33)}, 1 << 25)
    catcher.bind(("", 5000))
    say("ready")
    caught = 0
    while catcher.recv(10) != b"end":
        caught += 1
    say(caught)
globals()[sys.argv[1]](*sys.argv[2:])
"""


@pytest.fixture(scope="module")
def permitted() -> None:
    if reason := why_not():
        pytest.skip(reason)


def with_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts hosts."""
    marked: Callable[..., None] = pytest.mark.processes(pytest.mark.usefixtures("permitted")(test))
    return marked


def peer(hosts: Hosts, host: int, folder: Path, *arguments: object) -> Program:
    argv = [sys.executable, "-I", "-S", "-c", PEER, *map(str, arguments)]
    return hosts.start(host, argv, output=folder / f"{host}-{arguments[0]}.txt")


def values(program: Program) -> list[float]:
    return [json.loads(line) for line in program.text().splitlines(keepends=True) if line.endswith("\n")]


def wait_for_more(program: Program, count: int = 5, timeout_s: float = 60.0) -> list[float]:
    """The values that were written from now on."""
    before = len(values(program))
    wait_for(f"{count} more values", lambda: len(values(program)) >= before + count, timeout_s)
    return values(program)[before:]


@with_hosts
def test_a_round_trip_takes_both_delays_and_follows_a_change(tmp_path: Path) -> None:
    with Hosts(2, delay_s=DELAY_S) as hosts:
        peer(hosts, 0, tmp_path, "echo")
        asking = peer(hosts, 1, tmp_path, "ask", hosts.address(0))
        assert min(wait_for_more(asking)) >= 2 * DELAY_S
        hosts.set(delay_s=0.0)
        wait_for("a quick exchange", lambda: values(asking)[-1] < DELAY_S, 60.0)


@with_hosts
def test_a_cut_stalls_a_connection_which_goes_on_when_joined(tmp_path: Path) -> None:
    with Hosts(3) as hosts:
        peer(hosts, 0, tmp_path, "echo")
        asking = peer(hosts, 1, tmp_path, "ask", hosts.address(0))
        wait_for_more(asking)
        hosts.cut(1)
        with pytest.raises(NeverHappened):  # one may have been answered, but not yet written
            wait_for_more(asking, 2, timeout_s=1.0)
        hosts.join(1)
        wait_for_more(asking)


@with_hosts
def test_a_killed_host_has_no_process_and_tells_nobody(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        echoing = peer(hosts, 0, tmp_path, "echo")
        others = hosts.start(0, ["sh", "-c", "setsid sleep 600 & trap '' TERM; sleep 600"], output=tmp_path / "sh.txt")
        asking = peer(hosts, 1, tmp_path, "ask", hosts.address(0))
        wait_for_more(asking)
        wait_for("the shell's two children", lambda: len(hosts.processes(0)) == 4)
        hosts.kill(0)
        assert hosts.processes(0) == []
        assert {echoing.returncode, others.returncode} == {-signal.SIGKILL}
        with pytest.raises(NeverHappened):
            wait_for_more(asking, 2, timeout_s=1.0)
        assert asking.poll() is None, asking.text()  # neither an end of file nor a reset
        hosts.join(0)  # as after a restart
        assert asking.wait(60) in (0, 1)


@with_hosts
def test_a_frozen_host_goes_on_when_thawed(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        echoing = peer(hosts, 0, tmp_path, "echo")
        asking = peer(hosts, 1, tmp_path, "ask", hosts.address(0))
        wait_for_more(asking)
        hosts.freeze(0)
        assert state_of(echoing.pid) == "T"
        with pytest.raises(NeverHappened):
            wait_for_more(asking, 2, timeout_s=1.0)
        hosts.thaw(0)
        wait_for_more(asking)


# ---- the end of hosts -----------------------------------------------------------------------------------------------

HOLDER = """
import json, signal, sys
from pathlib import Path
from tests.cluster.hosts import Hosts
with Hosts(2) as hosts:
    started = [hosts.start(host, ["sleep", "600"], output=Path("sleep.txt")).pid for host in (0, 1)]
    print(json.dumps([hosts.namespaces, started, hosts._relay.pid]), flush=True)
    signal.pause()
"""


def left_of(namespaces: list[str], pids: list[int]) -> list[str]:
    """Return the remains: processes, and descriptors that would keep a namespace."""
    alive = [f"process {pid}" for pid in pids if state_of(pid) not in ("Z", None)]
    inside = [f"process {pid} in {name}" for name in namespaces for pid in processes_in(name)]
    return alive + inside + [f"{holder} of {name}" for holder, name in descriptors() if name in namespaces]


def descriptors() -> Iterator[tuple[str, str]]:
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            yield str(file), os.readlink(file)
        except OSError:
            continue  # closed while we looked


@with_hosts
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_the_end_of_the_process_that_made_them(tmp_path: Path, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    holder = Program([sys.executable, "-c", HOLDER], tmp_path / "holder.txt", cwd=tmp_path, env=env)
    try:
        namespaces, pids, relay = json.loads(holder.wait_for_text("\n"))
        wait_for("all to be inside", lambda: len(left_of(namespaces, [])) >= 4)
        holder.send_signal(number)
        holder.wait(60)
        wait_for("nothing left", lambda: not left_of(namespaces, [*pids, relay]), GONE_S)
    finally:
        holder.close()


@pytest.mark.processes
@pytest.mark.parametrize("capability", ["sys_admin", "net_admin"])
def test_a_process_that_may_have_no_hosts_is_told_why(capability: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has capabilities to give up")
    ask = [sys.executable, "-c", "from tests.cluster.hosts import why_not; print(why_not())"]
    without = ["setpriv", "--bounding-set", f"-{capability}", *ask]
    told = subprocess.run(without, cwd=HOME, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.startswith("no test hosts on this machine: ")
    assert f"CAP_{capability.upper()}" in told


# ---- torchrun -------------------------------------------------------------------------------------------------------


def stop(run: TorchRun) -> list[list[str]]:
    """Let all processes end, and return their last lines."""
    (run.folder / "stop").touch()
    assert run.wait() == [0] * run.count, run.text()
    return [next(line.split() for line in run.text(host).splitlines() if line[:5] == "ended") for host in run.agents]
