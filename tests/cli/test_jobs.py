"""The commands that ask the service: without one, with one, and as somebody at a terminal sees them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hogwild.cli import main
from hogwild.config.locate import default_config
from hogwild.monitoring.run_status import read_status
from tests.helpers.jobs import RUN_PY, environment
from tests.helpers.processes import wait_for
from tests.helpers.service import LONG, SMALL, Service, serving
from tests.helpers.terminal import Reader, Terminal

LR = "optimizer.init_args.lr"
Said = Callable[..., tuple[int, str, str]]
WITH_ID = ("show", "logs", "status", "attach", "cancel", "pause", "resume", "retry", "delete", "ps")


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command on the state folder of this test; return exit status, output and messages."""
    monkeypatch.setenv("HOGWILD_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main.run(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as made:
        yield made


# ---- without a service


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "-d", "--sweep", f"{LR}=1,2"],
        ["ps"],
        ["ps", "-w"],
        *([name, "3"] for name in WITH_ID),
        *([name, "s3f2a"] for name in WITH_ID),
        ["ask", "3", "stacks"],
    ],
    ids=" ".join,
)
def test_every_command_ends_with_4_without_a_service(arguments: list[str], said: Said, tmp_path: Path) -> None:
    status, out, err = said(*arguments)
    assert (status, out) == (4, "")
    assert f"no service runs on {tmp_path / 'state'}; start one with: hogwild serve" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "--sweep", "lr"], "--sweep lr: must be KEY=VALUE,VALUE,…"),
        (["submit", "nowhere.yaml"], "job file nowhere.yaml: No such file"),
        (["cancel", "job.yaml"], "job.yaml is no job of the service"),
        (["resume", "nowhere/run"], "no job 'nowhere/run': must be a number or an id"),
        (["stop", "7"], "To stop a job of the service: hogwild cancel 7"),
        (["cancel"], "Missing argument"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_cannot_be_meant_is_refused_without_asking(arguments: list[str], words: str, said: Said) -> None:
    Path("job.yaml").touch()
    status, _, err = said(*arguments)
    assert status in (2, 3) and words in err


# ---- with one


@pytest.mark.processes
def test_a_job_is_followed_by_its_number(service: Service, said: Said) -> None:
    service.start()
    job = Path("mein größter job.yaml")
    job.write_text(default_config("digits").read_text())
    status, out, _ = said("submit", "-d", "--json", str(job), *LONG, "train.procs=1", "name='ünïcode #1'")
    row = json.loads(out)
    assert (status, row["job_file"], row["name"]) == (0, str(job), "ünïcode #1")
    service.wait_for_state(row["id"], "running")
    wait_for("updates", lambda: (service.client.job(1)["updates"] or 0) > 0)
    assert json.loads(said("ask", "1", "checkpoint", "--json")[1])["answer"] == "done"
    assert said("ask", row["id"][:5], "stacks")[1].startswith("stacks: done")
    assert said("ask", "1", "resize", "--procs", "2")[0] == 1
    assert f"runs on     1 core, process {row['pid'] or service.client.job(1)['pid']}" in said("show", "1")[1]
    assert said("status", "1")[1].startswith("job 1  running")
    assert "request" in said("logs", "1")[1]
    assert said("logs", "1", "--worker", "0")[0] == 0
    assert said("logs", "1", "--worker", "7")[0] == 3
    run = row["run_dir"]
    status, _, err = said("train", "--resume", run)
    assert status == 1 and f"stop it with `hogwild cancel {row['id']}`" in err
    assert said("submit", run)[0] == 3
    assert said("cancel", run)[:2] == (0, f"job 1  {row['id']}  stopping\n")
    assert service.wait_for_state(row["id"], "cancelled")
    followed = said("logs", "-f", "1")
    assert followed[0] == 0 and "end" in followed[1]
    assert [one["state"] for one in json.loads(said("ps", "--json")[1])] == ["cancelled"]
    assert said("ps", "1")[1].splitlines()[1].split()[:4] == ["1", "ünïcode", "#1", "cancelled"]
    assert json.loads(said("delete", run, "--json")[1]) == {"id": row["id"], "deleted": True}
    assert said("show", "1")[0] == 3
    assert said("ps", "-a")[1].split() == ["job", "name", "state", "done", "left", "cores", "best", "reason"]


@pytest.mark.processes
def test_a_wrong_job_file_is_refused_as_on_the_command_line(service: Service, said: Said) -> None:
    service.start()
    job = Path("job.yaml")
    for text in ("train: [1\n", "train: {procs: 0, epochz: 1}\nname: 010\n", "", "a: 1\na: 2\n"):
        job.write_text(text)
        (status, _, checked), (again, _, submitted) = said("check", "job.yaml"), said("submit", "job.yaml")
        assert (again, submitted) == (status, checked) and status == 2
    assert service.client.jobs() == []


@pytest.mark.processes
def test_a_sweep_is_waited_for_and_its_table_shown(service: Service, said: Said) -> None:
    service.start()
    given = ("submit", "--wait", *SMALL, "--sweep", f"{LR}=0.01,[0.1]")
    assert said(*given)[0] == 2  # 0.01 and a list with 0.1
    status, out, _ = said("submit", "--wait", *SMALL, "--sweep", f"{LR}=0.001,0.1")
    title, head, best, second = out.splitlines()
    assert status == 0 and title.endswith("2 jobs: 2 succeeded")
    assert head.split()[:3] == ["job", "lr", "state"] and [best.split()[1], second.split()[1]] == ["0.1", "0.001"]
    sweep = title.split()[1]
    assert said("ps", sweep[:6])[1] == said("show", sweep)[1] == out
    assert said("ps")[1].splitlines()[-1] == f"sweep {sweep}: jobs 1 to 2"
    assert [one["sweep"] for one in json.loads(said("ps", sweep, "--json")[1])] == [sweep] * 2
    status, _, err = said("logs", sweep)
    assert status == 2 and f"{sweep} is a sweep: name one of its jobs: 1, 2" in err
    assert "is succeeded" in said("retry", sweep)[2]
    assert said("delete", sweep)[0] == 0 and service.client.jobs() == []
    status, out, _ = said("submit", "--wait", "--json", *SMALL, "--sweep", "model.init_args.hidden=[[8], [-8]]")
    assert status != 0 and [one["state"] for one in json.loads(out)["jobs"]] == ["succeeded", "failed"]


@pytest.mark.processes
def test_a_job_whose_run_directory_was_deleted_begins_again(service: Service, said: Said) -> None:
    row = service.start().submit(*LONG)
    wait_for("updates", lambda: (service.client.job(row["id"])["updates"] or 0) > 0)
    said("pause", "1")
    service.wait_for_state(row["id"], "paused")
    shutil.rmtree(row["run_dir"])
    assert said("logs", "1")[0] == 3 and "has no run directory yet" in said("status", "1")[2]
    assert said("resume", row["run_dir"])[0] == 0
    service.wait_for_state(row["id"], "running")
    wait_for("updates", lambda: (service.client.job(row["id"])["updates"] or 0) > 0)
    shutil.rmtree(row["run_dir"])
    said("cancel", "1")
    ended = service.wait_for_state(row["id"], "failed", "cancelled")
    assert ended["state"] == "cancelled" or "No such file" in ended["error"]


# ---- at a terminal


@contextlib.contextmanager
def at_terminal(service: Service, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", Reader]]:
    """`hogwild ARGUMENTS` in a terminal of 80 x 24."""
    master, slave = os.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "24"], stdin=slave, check=True)
    more = {"TERM": "xterm", "HOGWILD_STATE": str(service.state.path)}
    process = subprocess.Popen(
        [sys.executable, RUN_PY, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(service.mark, service.folder, more),
    )
    os.close(slave)
    with os.fdopen(master, "rb", buffering=0) as stream:
        try:
            yield process, Reader(stream)
        finally:
            process.kill()
            process.wait()


def shown(reader: Reader) -> Sequence[str]:
    with contextlib.suppress(AssertionError):  # a sequence is cut off where the reader stands
        return Terminal(80, 24).feed(reader.text).lines()
    return ()


@pytest.mark.processes
def test_ctrl_c_leaves_a_job_and_a_sweep_alone(service: Service) -> None:
    service.start()
    with at_terminal(service, "submit", *LONG) as (process, reader):
        wait_for("the display", lambda: "To stop it: hogwild cancel 1" in reader.text)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        wait_for("the message", lambda: "left; the job goes on" in reader.text)
    assert service.client.job(1)["state"] in ("starting", "running")
    assert read_status(service.state.job(service.client.job(1)["id"]).run).is_alive
    with at_terminal(service, "submit", *LONG, "train.threads=64", "--sweep", f"{LR}=0.1,0.01") as (process, reader):
        wait_for("the table", lambda: sum("queued" in line for line in shown(reader)) == 3)
        wait_for("the reason", lambda: any("needs" in line for line in shown(reader)))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        wait_for("the message", lambda: "left; the jobs go on" in reader.text)
    with at_terminal(service, "ps", "-w", "-a") as (process, reader):
        wait_for("the table", lambda: any(line.startswith("sweep s") for line in shown(reader)))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert {row["state"] for row in service.client.jobs()} <= {"starting", "running", "queued"}


@pytest.mark.processes
def test_a_sweep_is_shown_until_its_last_job_has_ended(service: Service) -> None:
    service.start()
    with at_terminal(service, "submit", *SMALL, "--sweep", f"{LR}=0.1,0.01") as (process, reader):
        assert process.wait(60) == 0
        wait_for("the end", lambda: any("2 jobs: 2 succeeded" in line for line in shown(reader)))
