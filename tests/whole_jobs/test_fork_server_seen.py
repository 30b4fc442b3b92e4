"""The fork server is one of the processes of a run: its state and memory stand where those of the others do, and its
stack is asked for with theirs."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild import host
from hogwild.cli import main
from hogwild.errors import MemoryShortError
from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")


def state_in_record(job: Job) -> str | None:
    server = job.status().get("server")
    return server and server["state"]


@pytest.mark.whole
@pytest.mark.processes
def test_status_and_stacks_tell_of_the_fork_server_until_the_job_ends(
    tmp_path: Path, start_job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    paced = (f"model.init_args.diary={tmp_path}", "model.init_args.pace_s=0.5", "log.every_s=0.1")
    job = start_job(tmp_path / "job", COUNTING, "checkpoint.every_s=null", *paced)
    wait_for("its memory", lambda: (job.status().get("server") or {}).get("pss_bytes"))
    server = job.status()["server"]
    assert server["state"] == "waiting"
    assert (Path("/proc") / str(server["pid"]) / "comm").read_text() == "hogwild-server\n"
    # Its pages are shared with the supervisor and the workers, so a part of an import's memory counts for it.
    assert 5 << 20 < server["pss_bytes"] < 120 << 20 and server["pss_bytes"] < job.status()["pss_bytes"]
    assert main.run(["status", str(job.run_dir)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  server "))
    assert line.endswith(f"MiB  pid {server['pid']}") and " waiting " in line

    assert main.run(["ask", str(job.run_dir), "stacks", "--json"]) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert calls[f"fork server (pid {server['pid']})"] and len(calls) == 3
    file = job.run_dir / "stacks" / "fork-server.txt"
    assert f"the fork server, pid {server['pid']}" in file.read_text() and "hogwild-server: S" in file.read_text()

    os.kill(server["pid"], signal.SIGSTOP)
    wait_for("its stop", lambda: state_in_record(job) == "stopped")
    assert main.run(["ask", str(job.run_dir), "stacks", "--json"]) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert calls[f"fork server (pid {server['pid']})"] == "stopped (SIGSTOP)"
    os.kill(server["pid"], signal.SIGKILL)
    wait_for("its end", lambda: state_in_record(job) == "ended")
    (tmp_path / "hurry").touch()
    ended = job.wait()
    assert (ended.status, job.status()["server"]) == (0, None) and not ended.left_behind


@pytest.mark.processes
def test_a_job_without_one_tells_of_none(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    job = start_job(tmp_path, COUNTING, extra={"OMP_PROC_BIND": "true"})
    ended = job.wait()
    assert (ended.status, job.status()["server"]) == (0, None)
    assert not (job.run_dir / "stacks" / "fork-server.txt").exists()


@pytest.mark.processes
def test_the_memory_of_workers_that_will_be_forked_must_be_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About 10 MiB for each of two, and little for a small model: before its processes start."""
    model, data = nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(procs: int) -> int:
        folder = tmp_path / str(procs)
        result = hogwild.train(model, data, nn.CrossEntropyLoss(), optimizer, procs=procs, epochs=1, run_dir=folder)
        return result.samples

    monkeypatch.setattr(host, "available_memory", lambda: host.Memory(15 << 20, "a test"))
    with pytest.raises(
        MemoryShortError, match=r"needs 2. MiB of memory .* only 15 MiB are free \(a test\).*fewer procs"
    ):
        train(2)
    assert not (tmp_path / "2").exists() and train(1) == 64
