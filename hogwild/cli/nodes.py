"""`train --nodes N`: a cluster on this machine, to try a job before it goes to real ones. Starts torchrun once per
node, each with its part of the cores; Ctrl-C reaches every node once. Nothing listens beyond loopback: torchrun's store
has no password, so the first node's gets our listening socket instead of one on every address."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.cli.output import print_message
from hogwild.errors import UsageError
from hogwild.monitoring.run_status import EXIT_STATUS
from hogwild.storage.run_directory import new_folder, part_of
from hogwild.storage.run_files import read_json

LOOPBACK = "127.0.0.1"
# torchrun, tied to the life of this process. A store that is not the first node's ignores the socket.
AGENT = """
import functools, runpy
from hogwild import host
host.die_with_parent({parent})
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous as rendezvous
rendezvous.TCPStore = functools.partial(rendezvous.TCPStore, master_listen_fd={listening})
runpy.run_module("torch.distributed.run", run_name="__main__")
"""
POLL_MS = 200


def train_on_nodes(nodes: int, run: Path, command: Sequence[str]) -> int:
    """Train with `nodes` nodes until all have ended; return the exit status of the job. `command`: what follows
    `hogwild train`, the same for all."""
    cores = sorted(host.affinity())
    before = _summaries(run, nodes)
    agents: list[subprocess.Popen[bytes]] = []
    with host.SignalWatch() as watch, tempfile.TemporaryDirectory(prefix="hogwild-nodes-") as logs:
        try:
            with socket.create_server((LOOPBACK, 0)) as listening:  # then the first agent's alone: it ends with it
                for node in range(nodes):
                    own = cores[node * len(cores) // nodes : (node + 1) * len(cores) // nodes]
                    agents.append(_start(node, nodes, listening, own or cores, command, logs))
        finally:
            host.set_affinity(cores)
        print_message(f"{nodes} nodes on this machine; run directory {run}")
        _wait(agents, watch)
    found = {folder: summary for folder, summary in _summaries(run, nodes).items() if summary != before[folder]}
    if not found:
        return next((agent.returncode for agent in agents if agent.returncode), 1)
    folder = min(found, key=lambda one: _status(found[one]))  # the first node, or one that survived it
    if folder != run:
        print_message(f"{folder.name}: {found[folder]['state']}; its summary and its last checkpoint are in {folder}")
    return _status(found[folder])


def checked(nodes: int, resume: Path | None, run_dir: Path | None, name: str) -> Path:
    """Return the run directory for all nodes. Raises UsageError for a number of nodes that cannot be."""
    if not 1 <= nodes <= 64:
        raise UsageError(f"--nodes {nodes}: must be from 1 to 64", code="usage/bad-value")
    return Path(os.path.abspath(resume or run_dir or new_folder(name)))


def _start(
    node: int, nodes: int, listening: socket.socket, cores: Sequence[int], command: Sequence[str], logs: str
) -> subprocess.Popen[bytes]:
    """Start the agent of one node. Only the first one shows progress and the result; all show warnings. `logs`: a
    folder for torchrun, which would leave one of its own."""
    agent, port = AGENT.format(parent=os.getpid(), listening=listening.fileno()), listening.getsockname()[1]
    torchrun = [
        *(sys.executable, "-c", agent, "--nnodes", str(nodes), "--nproc-per-node", "1"),
        *("--node-rank", str(node), "--master-addr", LOOPBACK, "--master-port", str(port), "--max-restarts", "0"),
        *("--log-dir", logs),
    ]
    quiet = [] if node == 0 else ["--no-progress"]
    host.set_affinity(cores)  # what is started from this thread inherits it
    return subprocess.Popen(
        [*torchrun, "-m", "hogwild", "train", *command, *quiet],
        stdout=None if node == 0 else subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        pass_fds=[listening.fileno()] if node == 0 else [],
        start_new_session=True,  # the terminal's Ctrl-C reaches this process only, which passes it on once
    )


def _wait(agents: Sequence["subprocess.Popen[bytes]"], watch: host.SignalWatch) -> None:
    """Wait for all agents, and pass on each signal. An agent whose node has ended waits minutes for the agents of nodes
    that were killed: it is ended once another one is gone."""
    passed_on = 0
    while any(agent.poll() is None for agent in agents):
        host.wait_readable([watch.fileno()], POLL_MS)
        watch.drain()
        for number in watch.received[passed_on:]:
            passed_on += 1
            for agent in agents:
                # A node ends in order; its agent, which gets the signal only if there is no node, does not.
                below = host.children(agent.pid) if agent.poll() is None else []
                for node in below:
                    with contextlib.suppress(ProcessLookupError):
                        pidfd = host.pidfd_open(node)
                        host.kill_by_pidfd(pidfd, number)
                        os.close(pidfd)
                if not below and agent.poll() is None:
                    agent.send_signal(number)
        left = [agent for agent in agents if agent.poll() is None]
        if len(left) < len(agents) and not any(host.children(agent.pid) for agent in left):
            for agent in left:
                agent.kill()


def _summaries(run: Path, nodes: int) -> dict[Path, dict[str, Any]]:
    """Return the run directory of each node -> the result of its latest attempt that has ended, {} if none has."""
    folders = [part_of(run, node) for node in range(nodes)]
    return {folder: read_json(folder, "summary.json") for folder in folders}


def _status(summary: Mapping[str, Any]) -> int:
    own = summary.get("exit_status") or EXIT_STATUS[summary["state"]]  # a node's own is 0 after a planned stop
    return int(own)
