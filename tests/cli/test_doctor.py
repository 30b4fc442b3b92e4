"""The words of `doctor`: of this machine for real, of others from what is known of them."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.cli import doctor
from hogwild.cli.doctor import variable_findings
from hogwild.host import Core, Cores, Limit, Memory
from hogwild.planning.cpu_plan import ProcessMemory
from tests.helpers.jobs import HOME, RUN_PY
from tests.helpers.processes import PATIENCE_S

KEPT = {key: text for key, text in os.environ.items() if not key.startswith(("OMP_", "MKL_", "HOGWILD"))}


def ask(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, RUN_PY, "doctor", *arguments],
        env={**KEPT, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.whole
@pytest.mark.processes
def test_this_machine_can_train_and_every_topic_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    done = ask(OMP_WAIT_POLICY="ACTIVE", HOGWILD_DATA=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines[:-1]} <= {"ok", "note", "problem"}
    topics = "hogwild, python, numpy, threadpoolctl, torch, thread pool, gpu, cpu, cores, quota, plan, memory, "
    topics += "extra service, shared memory, open files, processes, kernel, fork server, environment, data"
    for topic in topics.split(", "):
        assert any(line[9:].startswith(f"{topic} ") for line in lines), topic
    assert any("OMP_WAIT_POLICY=ACTIVE: ACTIVE lets idle threads spin" in line for line in lines)
    assert any("found: mnist; missing: fashion_mnist" in line for line in lines)
    assert any("libgomp" in line for line in lines)
    assert lines[-1].startswith("hogwild can train here; ")


@pytest.mark.parametrize(
    ("extra", "installed", "status", "said"),
    [
        ("sparse", {"numba": "0.63.1", "pyarrow": "24.0.0"}, "ok", "numba 0.63.1, pyarrow 24.0.0"),
        ("onnx", {}, "ok", "not installed; for export --format onnx: pip install 'hogwild[onnx]'"),
        ("onnx", {"onnx": "1.19"}, "note", "onnx 1.19, onnxscript is not installed; for export --format onnx: pip "),
        (
            "csv",
            {"pyarrow": "9.0.0"},
            "note",
            "pyarrow 9.0.0, older than 16; for tables and parquet files: pip install",
        ),
    ],
)
def test_an_extra_is_told_with_its_versions_or_how_to_get_it(
    extra: str, installed: dict[str, str], status: str, said: str
) -> None:
    found = doctor.extra_finding(extra, installed.get)
    assert (found.topic, found.status) == (f"extra {extra}", status) and found.text.startswith(said)


def test_the_extras_are_those_of_the_package_that_are_no_tools_of_its_own() -> None:
    declared = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {name: sorted(one) for name, one in declared.items() if name not in ("test", "bench", "docs", "dev")}
    listed = {
        name: sorted(f"{package}>={least}" for package, least in packages.items())
        for name, (_, packages) in doctor.EXTRAS.items()
    }
    assert listed == wanted


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environ", "status", "said"),
    [
        pytest.param(
            {"OMP_NUM_THREADS": "abc"}, 1, "OMP_NUM_THREADS=abc: must be a whole number from 1 to 1024", id="threads"
        ),
        pytest.param({"HOGWILD_DATA": "/nowhere/at/all"}, 0, "there is no folder /nowhere/at/all", id="data"),
        pytest.param({"PYTHONPATH": "broken"}, 1, "ImportError: half an installation", id="torch"),
    ],
)
def test_a_problem_is_said_and_counts_where_it_stops_training(
    environ: dict[str, str], status: int, said: str, tmp_path: Path
) -> None:
    if "PYTHONPATH" in environ:
        (tmp_path / "torch.py").write_text("raise ImportError('half an installation')\n")
        environ = {"PYTHONPATH": str(tmp_path)}
    done = ask("--json", **environ)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"]) == (status, status == 0), done.stderr
    problems = [finding for finding in answer["findings"] if finding["status"] == "problem"]
    assert [said in finding["text"] for finding in problems] == [True]
    assert problems[0]["stops_training"] == bool(status)


def statuses(*findings: doctor.Finding) -> list[str]:
    return [finding.status for finding in findings]


def test_memory_for_not_even_one_worker_is_a_problem() -> None:
    assert statuses(doctor.memory_finding(Memory(8 << 30, "the machine"))) == ["ok"]
    short = doctor.memory_finding(Memory(100 << 20, "the memory limit in /sys/fs/cgroup/job"))
    assert short.status == "problem" and "the memory limit in /sys/fs/cgroup/job" in short.text
    assert not short.stops_training


@pytest.mark.parametrize(("used", "status"), [(0, "ok"), (84, "ok"), (85, "problem")])
def test_a_limit_on_processes_is_compared_with_the_workers_there_will_be(used: int, status: str) -> None:
    found = doctor.tasks_finding([Limit(100, used, "ulimit -u")], 4)
    assert found.status == status and f"100 processes and threads (ulimit -u), {used} in use" in found.text
    assert statuses(doctor.tasks_finding([], 4)) == ["ok"]


def test_where_no_process_can_be_forked_from_a_server_it_is_said_why_and_what_that_costs() -> None:
    measured = {"import_private": 150 << 20, "import_shared": 80 << 20, "fork_private": 9 << 20, "fork_s": 0.012}
    works = doctor.fork_finding({"why": "", **measured})
    assert (works.status, works.text.count("12 ms and 9.0 MiB")) == ("ok", 1)
    fails = doctor.fork_finding({"why": "the fork server has 2 threads"})
    assert (fails.status, fails.stops_training) == ("note", False)
    assert "the fork server has 2 threads" in fails.text and "150 MiB" in fails.text


THREAD = """
import os, sys, threading
if "hogwild.workers.processes.fork_server" in " ".join(sys.orig_argv):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.processes
def test_the_fork_server_is_tried_and_measured_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures that `plan` uses are about those of a machine; a server with a thread forks nothing."""
    found, usual = doctor.try_fork_server(), ProcessMemory()
    assert found["why"] == "" and 0 < found["fork_s"] < PATIENCE_S
    for name in ("import_private", "import_shared", "fork_private"):
        assert 0.5 < found[name] / getattr(usual, name) < 1.5, (name, found[name])
    (tmp_path / "sitecustomize.py").write_text(THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.try_fork_server()["why"] == "the fork server has 2 threads after its imports"
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert "OMP_PROC_BIND" in doctor.try_fork_server()["why"]


@pytest.mark.parametrize(
    ("limit", "workers", "status"), [(1024, 16, "ok"), (256, 16, "problem"), (256, 4, "ok"), (60, 0, "problem")]
)
def test_open_files_are_counted_for_the_workers_there_will_be(limit: int, workers: int, status: str) -> None:
    assert statuses(doctor.files_finding(limit, 6, workers)) == [status]


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (
            Cores(4, 0.5, 0.5, "quota of 0.5 cores in /g", (Core((0, 2), 0), Core((1, 3), 1))),
            ("4 in the affinity mask: 2 physical, 2 threads each (SMT), 2 NUMA nodes", "0.5 of 2 cores can be used"),
        ),
        (
            Cores(1, None, 1.0, "", (Core((0,), 0),)),
            ("1 in the affinity mask: 1 physical, no SMT, 1 NUMA node", "none"),
        ),
        (Cores(1, 4.0, 1.0, "", (Core((0,), 0),)), ("1 physical", "4 cores, not below the number")),
    ],
)
def test_cores_are_told_from_threads_nodes_and_quota(cores: Cores, said: tuple[str, str]) -> None:
    _, there, quota = doctor.processor_findings({"cpu": "x", "cores": 8}, cores)
    assert said[0] in there.text and said[1] in quota.text
    assert quota.status == ("note" if cores.usable < len(cores.physical) else "ok")


ANSWER: dict[str, Any] = {"torch": "2.13.0+cpu", "cpu": "AVX512", "mkldnn": True, "gpus": 0, "pools": [("blas", 2)]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["ok", "ok", "ok"]),
        ({"torch": "2.12.1"}, ["note", "ok", "ok"]),
        ({"gpus": 2}, ["ok", "ok", "note"]),
    ],
)
def test_another_torch_and_a_gpu_are_worth_a_note(change: dict[str, Any], expected: list[str]) -> None:
    found = [*doctor.torch_findings(ANSWER | change)]
    assert statuses(*found) == expected
    assert expected[-1] == "ok" or found[-1].text == "torch sees 2; train.device: auto uses them if the job can"


@pytest.mark.parametrize(
    ("variable", "source"), [("there", "HOGWILD_DATA"), ("elsewhere", "--data-dir"), ("", "--data-dir")]
)
def test_a_missing_data_folder_is_told_with_the_name_of_its_source(
    variable: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOGWILD_DATA", variable and str(tmp_path / variable))
    (found,) = doctor.data_findings(tmp_path / "there")
    assert (found.status, found.text) == ("problem", f"{source}: there is no folder {tmp_path / 'there'}")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OMP_NUM_THREADS", "2", "train.threads: auto uses it"),
        ("MKL_NUM_THREADS", "3", "workers use the plan's number of threads instead"),
        ("OMP_PROC_BIND", "true", "binds threads to cores; hogwild undoes that"),
        ("OMP_PROC_BIND", "false", "OMP_PROC_BIND=false: binds threads to cores"),
        ("KMP_SETTINGS", "1", "hogwild does not change it"),
        ("PATH", "/bin", ""),
    ],
)
def test_a_variable_is_explained(name: str, value: str, said: str) -> None:
    found = list(variable_findings({name: value}))
    assert len(found) == bool(said) and all(said in text for text in found)
    assert value != "false" or "undoes" not in found[0]


def test_the_plan_of_the_doctor_is_that_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert doctor._plan().text.startswith(f"{max(1, int(host.usable_cores().usable))} worker")
