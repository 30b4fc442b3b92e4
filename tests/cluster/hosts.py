"""Several hosts on this machine, for tests of the real torchrun: each has a network, a name and processes of its own.

    with Hosts(3, delay_s=0.05) as hosts, TorchRun(3, ["-m", "hogwild", "train", …], folder, hosts) as run:
        hosts.kill(1)  # the power fails: nobody is told
        run.wait()

Hosts share the disk, /dev/shm, the process numbers and the clock. `relay.py` has their namespaces and moves the
packets. It ends with the test, however that ends, and the kernel removes them."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster import relay
from tests.cluster.relay import Link, processes_in, send_to
from tests.helpers.processes import MARK, PATIENCE_S, marked, state_of, wait_for

HOME = Path(__file__).resolve().parents[2]
LONG_MTU, USUAL_MTU = 65_000, 1500  # as fast as loopback; as on a cable, for smooth rates
GONE_S = 60.0  # from SIGKILL until a process is gone, on a busy machine
END_S = 20.0  # for agents to end their workers after SIGTERM
STOPPED = ("T", "t", "Z", "X", None)
PORT = 29_400  # of the rendezvous, where a host has all ports for itself


class HostsRefused(Exception):
    """This machine does not let us make hosts; the message says why."""


@cache
def why_not() -> str:
    """Return why tests cannot have hosts here, for pytest.skip; "" if they can. Starts a process."""
    if sys.platform != "linux":
        return "test hosts need Linux: network namespaces and TUN devices"
    try:
        with Hosts(1) as hosts:
            status = hosts.start(0, ["true"], output=Path(os.devnull)).wait(PATIENCE_S)
    except (HostsRefused, FileNotFoundError) as error:
        return f"no test hosts on this machine: {error}"
    return f"no test hosts on this machine: nsenter has ended with status {status}" if status else ""


class Program(subprocess.Popen[bytes]):
    """A process in a session of its own. `output` has what it writes to standard output and standard error."""

    def __init__(self, argv: Sequence[str], output: Path, **options: Any) -> None:
        self.output = output
        with output.open("ab") as file:
            super().__init__(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for_text(self, wanted: str, timeout_s: float = PATIENCE_S) -> str:
        """Return the output as soon as `wanted` is in it; raises AssertionError if the process ends before."""

        def look() -> str:
            is_over = self.poll() is not None  # asked first: what it wrote last is there then
            text = self.text()
            assert wanted in text or not is_over, f"ended with {self.returncode} before {wanted!r}:\n{text}"
            return text if wanted in text else ""

        return wait_for(f"{wanted!r} in {self.output}", look, timeout_s)

    def close(self) -> None:
        """Kill it, if it runs; not what it has started."""
        self.kill()
        self.wait()


# ---- hosts ----------------------------------------------------------------------------------------------------------


class Hosts:
    """`count` hosts, joined by one switch; see `Link` for what the cables do. `mtu`: of packets, in bytes. At its end
    nothing is left: no process, no namespace, no device. Raises HostsRefused when entered (see `why_not`)."""

    def __init__(
        self,
        count: int,
        delay_s: float = 0.0,
        rate_bytes_s: float | None = None,
        loss: float = 0.0,
        *,
        mtu: int | None = None,
        seed: int = 0,
    ) -> None:
        self.count, self.mtu, self.seed = count, mtu or (USUAL_MTU if rate_bytes_s else LONG_MTU), seed
        self.link = Link(delay_s, rate_bytes_s, loss)
        self.namespaces: tuple[str, ...] = ()  # "net:[4026532000]", as in /proc/PID/ns/net
        self._relay: subprocess.Popen[bytes] | None = None
        self._enter: list[list[str]] = []  # per host: the command before a command
        self._programs: list[list[Program]] = [[] for _ in range(count)]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything of all hosts, then the relay."""
        for host in range(self.count):
            self._kill_processes(host)
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()

    # ---- programs

    def address(self, host: int) -> str:
        """Return the host's IP address, which is its name, too: torchrun compares names, and each end must know it."""
        return relay.address(host)

    def start(
        self,
        host: int,
        argv: Sequence[str],
        *,
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        cores: Collection[int] = (),
        cgroup: Path | None = None,
    ) -> Program:
        """Start a command in a host. `cores`: the processors it may use, all by default; `cgroup`: a folder of a
        control group, in which it starts."""
        before = list(self._enter[host])
        if cgroup is not None:
            before += ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(cgroup)]
        if cores:
            before += ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))]
        program = Program([*before, *argv], output, env=env, cwd=cwd)
        self._programs[host].append(program)
        return program

    def processes(self, host: int) -> list[int]:
        """Return the numbers of all living processes of a host."""
        starting = [program.pid for program in self._programs[host] if program.poll() is None]  # perhaps not yet inside
        inside = processes_in(self.namespaces[host]) if self.namespaces else []
        return sorted({*starting, *inside})

    # ---- faults

    def cut(self, *hosts: int) -> None:
        """Pull the cables of these hosts: packets to and from them are dropped from now on, also those on their way."""
        self._change(cut=tuple({*self.link.cut, *hosts}))

    def join(self, *hosts: int) -> None:
        """Plug the cables in again. The kernel of a host that was killed then closes or resets the connections of its
        peers, as after a restart."""
        self._change(cut=tuple({*self.link.cut} - {*hosts}))

    def set(self, **link: float | None) -> None:
        """Change `delay_s`, `rate_bytes_s` or `loss` of all cables; packets on their way keep what they had."""
        self._change(**link)

    def kill(self, host: int) -> None:
        """Take a host's power away: all its processes end at once, and no peer is told. Its cable stays cut."""
        self.cut(host)
        self.freeze(host)  # none may see that another has ended
        self._kill_processes(host)

    def freeze(self, host: int) -> None:
        """Stop all processes of a host; return when they are. The kernel goes on acknowledging what peers send."""
        wait_for(f"host {host} to freeze", lambda: self._is_frozen(host), GONE_S)

    def thaw(self, host: int) -> None:
        send_to(self.processes(host), signal.SIGCONT)

    def delivered_bytes(self, host: int) -> int:
        """Return the bytes of IP packets that others have got from this host."""
        return int(self._change()["delivered_bytes"][host])

    def _is_frozen(self, host: int) -> bool:
        running = [pid for pid in self.processes(host) if state_of(pid) not in STOPPED]
        send_to(running, signal.SIGSTOP)
        return not running

    def _kill_processes(self, host: int) -> None:
        def is_empty() -> bool:
            left = self.processes(host)
            send_to(left, signal.SIGKILL)
            return not left

        wait_for(f"the end of all processes of host {host}", is_empty, GONE_S)
        for program in self._programs[host]:
            program.wait()

    # ---- the relay

    def _start(self) -> None:
        arguments = [str(os.getpid()), self.link.line(), str(self.count), str(self.mtu), str(self.seed)]
        self._relay = subprocess.Popen(
            [sys.executable, "-I", "-S", relay.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the test
        )
        answer = self._answer()
        if "refused" in answer:
            raise HostsRefused(answer["refused"])
        proc = f"/proc/{self._relay.pid}/fd"
        made = answer["namespaces"]
        self._enter = [["nsenter", f"--net={proc}/{one['net']}", f"--uts={proc}/{one['uts']}", "--"] for one in made]
        self.namespaces = tuple(one["name"] for one in made)

    def _change(self, **link: Any) -> dict[str, Any]:
        """Change the cables; return the relay's counts. The change is in force when this returns."""
        assert self._relay is not None
        assert self._relay.stdin is not None
        self.link = replace(self.link, **link)
        self._relay.stdin.write(self.link.line().encode())
        self._relay.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._relay is not None
        assert self._relay.stdout is not None
        ready, _, _ = select.select([self._relay.stdout], [], [], PATIENCE_S)
        assert ready, f"the relay has not answered for {PATIENCE_S:g} s"
        line = self._relay.stdout.readline()
        assert line, f"the relay has ended with status {self._relay.wait(PATIENCE_S)}; its error is above"
        answer: dict[str, Any] = json.loads(line)
        return answer


# ---- torchrun -------------------------------------------------------------------------------------------------------


@dataclass
class TorchRun:
    """`count` agents of torchrun: one in each host, or all on this machine's loopback. Each starts `argv` once
    (`["-m", MODULE, …]` or `[SCRIPT, …]`). At its end all that they have started is gone."""

    count: int
    argv: Sequence[str]
    folder: Path  # of output files and temporary files; the current folder of all
    hosts: Hosts | None = None
    extra: Mapping[str, str] = field(default_factory=dict)  # more of the environment
    options: Sequence[str] = ()  # more of torchrun's
    most: int = 0  # nodes, if more may join
    agents: dict[int, Program] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    endpoint: str = ""  # of the rendezvous; chosen at the start

    def __enter__(self) -> Self:
        self.endpoint = f"{self.hosts.address(0)}:{PORT}" if self.hosts else f"127.0.0.1:{free_port()}"
        try:
            for host in range(self.count):
                self.start(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, host: int, **options: Any) -> Program:
        """Start one agent, or the next one after the last has ended; it adds to the same output file. `options`: of
        `Hosts.start`."""
        output, argv, env = self.folder / f"agent-{host}.txt", self._command(host), self._environment(host)
        if self.hosts:
            agent = self.hosts.start(host, argv, output=output, env=env, cwd=self.folder, **options)
        else:
            agent = Program(argv, output, env=env, cwd=self.folder, **options)
        self.agents[host] = agent
        return agent

    def wait(self, *hosts: int, timeout_s: float = PATIENCE_S) -> list[int]:
        """Wait for the agents of these hosts, all by default; return their exit statuses. Raises AssertionError."""
        until = time.monotonic() + timeout_s
        agents = [self.agents[host] for host in hosts or sorted(self.agents)]
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.0, until - time.monotonic()))
        assert all(agent.poll() is not None for agent in agents), f"not ended in {timeout_s:g} s:\n{self.text()}"
        return [agent.returncode for agent in agents]

    def text(self, host: int | None = None) -> str:
        """Return the output of one agent and its processes, or of all."""
        if host is not None:
            return self.agents[host].text()
        return "\n".join(f"---- agent {number}:\n{self.text(number)}" for number in sorted(self.agents))

    def processes(self) -> dict[int, str]:
        """Return everything that was started and lives: number -> command line."""
        return marked(self.mark)

    def close(self) -> None:
        """End the agents, which end what they started; kill what is left."""
        for agent in self.agents.values():
            agent.terminate()
        until = time.monotonic() + END_S
        for agent in self.agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.0, until - time.monotonic()))
        wait_for("the end of all processes", self._are_gone, GONE_S)
        for agent in self.agents.values():
            agent.close()

    def _are_gone(self) -> bool:
        left = list(self.processes())
        send_to(left, signal.SIGKILL)
        return not left

    def _command(self, host: int) -> list[str]:
        # On one machine every agent could be the host of the endpoint: the first one is.
        on_loopback = ("--local-addr", "127.0.0.1", "--rdzv-conf", f"is_host={int(host == 0)},last_call_timeout=2")
        nodes = f"{self.count}:{self.most}" if self.most else str(self.count)
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "0"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", self.mark),
            *(() if self.hosts else on_loopback),
            *self.options,
            *self.argv,
        ]

    def _environment(self, host: int) -> dict[str, str]:
        temporary = self.folder / f"tmp-{host}"
        temporary.mkdir(exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
        return {**kept, "PYTHONPATH": str(HOME), "TMPDIR": str(temporary), MARK: self.mark, **self.extra}


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, below the range from which the kernel takes those of connections."""
    start = uuid.uuid4().int
    return next(port for offset in range(10_000) if _is_free(port := 20_000 + (start + offset) % 10_000))


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
