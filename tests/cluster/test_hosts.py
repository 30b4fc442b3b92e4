"""Hosts on this machine: the cables by a fake clock, then real namespaces, processes and torchrun."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import GONE_S, HOME, Hosts, Program, TorchRun, free_port, why_not
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


@pytest.mark.parametrize("stray", [packet(7), packet(1, version=6), packet(254)])
def test_a_packet_for_nobody_is_dropped(stray: bytes) -> None:
    fast = switch()
    fast.accept(0.0, 0, stray)
    assert targets(fast, 0.0) == []


def test_a_link_is_one_line() -> None:
    link = Link(0.1, 1e6, 0.5, (1, 2))
    assert Link.of_line(link.line()) == link
    assert link.line().count("\n") == 1


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
def test_each_host_has_its_own_name_and_address_and_no_other_way_out(tmp_path: Path) -> None:
    script = (
        "import json, os, socket; print(json.dumps([socket.gethostname(), socket.getfqdn(), "
        "socket.gethostbyname(socket.gethostname()), [name for _, name in socket.if_nameindex()]]))"
    )
    with Hosts(3) as hosts:
        for host in range(3):
            asked = hosts.start(host, [sys.executable, "-c", script], output=tmp_path / f"{host}.txt")
            assert asked.wait(60) == 0
            assert json.loads(asked.text()) == [hosts.address(host)] * 3 + [["lo", "eth0"]]
    assert len(set(hosts.namespaces)) == 3


@with_hosts
def test_a_round_trip_takes_both_delays_and_follows_a_change(tmp_path: Path) -> None:
    with Hosts(2, delay_s=DELAY_S) as hosts:
        peer(hosts, 0, tmp_path, "echo")
        asking = peer(hosts, 1, tmp_path, "ask", hosts.address(0))
        assert min(wait_for_more(asking)) >= 2 * DELAY_S
        hosts.set(delay_s=0.0)
        wait_for("a quick exchange", lambda: values(asking)[-1] < DELAY_S, 60.0)


@with_hosts
def test_a_stream_has_the_rate_of_the_cable(tmp_path: Path) -> None:
    rate, size = 2e6, 4_000_000
    measured = []
    with Hosts(2, rate_bytes_s=rate) as hosts:
        for _ in range(3):  # a busy machine makes some of them slower
            receiving = peer(hosts, 0, tmp_path, "receive")
            sending = peer(hosts, 1, tmp_path, "send", hosts.address(0), size)
            assert [receiving.wait(300), sending.wait(300)] == [0, 0]
            measured.append(size / (values(receiving)[-1] - values(sending)[-1]) / rate)
            if measured[-1] > 0.8:
                break
        assert hosts.delivered_bytes(1) >= size
    assert max(measured) < 1.2
    assert max(measured) > 0.8


@with_hosts
def test_the_share_of_datagrams_that_is_lost_is_the_one_asked_for(tmp_path: Path) -> None:
    with Hosts(2, loss=0.2) as hosts:
        catching = peer(hosts, 0, tmp_path, "catch")
        catching.wait_for_text("ready")
        peer(hosts, 1, tmp_path, "throw", hosts.address(0), 2000)
        assert catching.wait(60) == 0
    assert values(catching)[-1] == pytest.approx(1600, abs=100)


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
def test_a_cut_host_still_hears_itself(tmp_path: Path) -> None:
    with Hosts(1) as hosts:
        hosts.cut(0)
        peer(hosts, 0, tmp_path, "echo")
        wait_for_more(peer(hosts, 0, tmp_path, "ask", "127.0.0.1"))


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
def test_a_program_can_be_killed_before_it_has_entered_its_host(tmp_path: Path) -> None:
    with Hosts(1) as hosts:
        for _ in range(20):
            hosts.start(0, ["sleep", "600"], output=tmp_path / "out.txt")
            hosts.kill(0)
            assert hosts.processes(0) == []


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


@with_hosts
def test_a_program_has_the_cores_the_group_the_environment_and_the_folder_asked_for(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    script = "import os; print(os.sched_getaffinity(0), os.environ['COLOUR'], os.getcwd())"
    with Hosts(1) as hosts:
        argv, env, output = [sys.executable, "-c", script], {**os.environ, "COLOUR": "red"}, tmp_path / "out.txt"
        program = hosts.start(0, argv, output=output, env=env, cwd=tmp_path, cores=[core], cgroup=tmp_path)
        assert program.wait(60) == 0
    assert (tmp_path / "cgroup.procs").read_text() == f"{program.pid}\n"
    assert program.text() == f"{{{core}}} red {tmp_path}\n"


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
    """What is still there: processes, and descriptors that would keep a namespace."""
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
def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    devices, hosts = [name for _, name in socket.if_nameindex()], Hosts(2)
    pids: list[int] = []

    def fail() -> None:
        with hosts:
            pids.extend(hosts.start(host, ["sleep", "600"], output=tmp_path / "out.txt").pid for host in (0, 1))
            hosts.freeze(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert left_of(list(hosts.namespaces), pids) == []
    assert [name for _, name in socket.if_nameindex()] == devices


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

REDUCING = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
is_over, rounds = False, 0
while not is_over:  # all of them end in the same round
    told = torch.tensor([1.0, float(rank == 0 and os.path.exists("stop"))])
    dist.all_reduce(told)
    assert told[0] == world
    is_over, rounds = bool(told[1]), rounds + 1
    if rank == 0:
        print("round", rounds, time.monotonic(), flush=True)
print("ended", rank, os.environ["MASTER_ADDR"], os.uname().nodename, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "reducing.py"
    file.write_text(REDUCING)
    return file


def rounds(run: TorchRun) -> list[float]:
    """When each one ended."""
    lines = [line.split() for line in run.text().splitlines(keepends=True) if line.endswith("\n")]
    return [float(line[2]) for line in lines if line[:1] == ["round"] and len(line) == 3]


def wait_for_rounds(run: TorchRun, count: int) -> None:
    before = len(rounds(run))

    def look() -> bool:
        is_over = any(agent.poll() is not None for agent in run.agents.values())
        is_there = len(rounds(run)) >= before + count
        assert is_there or not is_over, run.text()
        return is_there

    wait_for(f"{count} more rounds", look)


def stop(run: TorchRun) -> list[list[str]]:
    """Let all processes end, and return their last lines."""
    (run.folder / "stop").touch()
    assert run.wait() == [0] * run.count, run.text()
    return [next(line.split() for line in run.text(host).splitlines() if line[:5] == "ended") for host in run.agents]


@with_hosts
def test_torchrun_reduces_over_slow_cables(tmp_path: Path, script: Path) -> None:
    count = 3
    with Hosts(count, delay_s=0.01) as hosts, TorchRun(count, [str(script)], tmp_path, hosts) as run:
        wait_for_rounds(run, 5)
        ended = stop(run)
    names = {hosts.address(host) for host in range(count)}
    assert {line[3] for line in ended} == names
    assert len({line[2] for line in ended}) == 1
    assert {line[2] for line in ended} <= names  # MASTER_ADDR is the name of the host with rank 0
    assert next(line[2] == line[3] for line in ended if line[1] == "0")
    assert run.processes() == {}


@with_hosts
def test_torchrun_waits_for_a_host_that_was_cut_for_seconds(tmp_path: Path, script: Path) -> None:
    with Hosts(2) as hosts, TorchRun(2, [str(script)], tmp_path, hosts) as run:
        wait_for_rounds(run, 5)
        hosts.cut(1)
        begin = time.monotonic()
        with pytest.raises(NeverHappened):  # the length of the fault
            wait_for("a round after the cut", lambda: max(rounds(run)) > begin + 0.5, 3.0)
        hosts.join(1)
        wait_for_rounds(run, 5)
        stop(run)


@pytest.mark.processes
def test_torchrun_runs_on_loopback_and_nothing_of_it_is_left(tmp_path: Path, script: Path) -> None:
    with TorchRun(2, [str(script)], tmp_path) as run:
        wait_for_rounds(run, 5)
        assert len(run.processes()) >= 4
    assert run.processes() == {}
    assert all(agent.returncode is not None for agent in run.agents.values())


@with_hosts
def test_the_agents_of_a_killed_host_are_gone_and_the_others_are_told_nothing(tmp_path: Path, script: Path) -> None:
    with Hosts(2) as hosts, TorchRun(2, [str(script)], tmp_path, hosts) as run:
        wait_for_rounds(run, 5)
        hosts.kill(1)
        assert run.wait(1) == [-signal.SIGKILL]
        assert run.agents[0].poll() is None
    assert run.processes() == {}


def test_a_free_port_can_be_had() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert 20_000 <= server.getsockname()[1] < 30_000
