"""The command line: what goes where, how it ends, what it refuses, and that an answer does not wait for
torch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.cli import main, output, results
from hogwild.cli.arguments import split_arguments, with_command
from hogwild.cli.plan import deep_check
from hogwild.cli.runs import summary_lines
from hogwild.config.load import load_job
from hogwild.config.of_run import data_folder, resumed
from hogwild.errors import ConfigError, HogwildError, NotFoundError
from tests.helpers.processes import PATIENCE_S
from tests.monitoring.test_run_status import record, write

HOME = Path(__file__).resolve().parents[2]
GOOD = "model: {class_path: mymodel.Net}\ndata: {train: {class_path: mymodel.Data}}\n"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The files that a run leaves behind, as far as the command line reads it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.yaml").write_text(GOOD + "# as written\n")
    (run / "resolved.yaml").write_text(load_job(Path("mine.yaml"), ["seed=7"], source_text=GOOD).to_yaml())
    (run / "env.json").write_text(json.dumps({"data_dir": "/there/data", "user_folders": ["/there", "/then"]}))
    return run


def program(*arguments: str, python: tuple[str, ...] = (), cwd: Path = HOME) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(HOME / "run.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ([], ["train"]),
        (["--procs", "4"], ["train", "--procs", "4"]),
        (["a.yaml"], ["train", "a.yaml"]),
        (["jobs/a"], ["train", "jobs/a"]),
        (["seed=3"], ["train", "seed=3"]),
        (["check", "a.yaml"], ["check", "a.yaml"]),
        (["--help"], ["--help"]),
    ],
)
def test_without_a_command_it_trains(given: list[str], becomes: list[str]) -> None:
    assert with_command(given) == becomes


def test_job_file_and_overrides_come_in_any_order() -> None:
    assert split_arguments(["seed=3", "a.yaml", "train.epochs=2"]) == (Path("a.yaml"), ["seed=3", "train.epochs=2"])
    assert split_arguments(["runs/lr=3/a.yaml"]) == (Path("runs/lr=3/a.yaml"), [])
    assert split_arguments(None) == (None, [])


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "nowhere.yaml", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_check_prints_ok_and_a_plan_to_stdout(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", str(job_file), "train.procs=3"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"{job_file}: ok" and "procs 3" in out and err == ""


def test_what_show_prints_is_a_job_file_that_resolves_to_itself(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["show", str(job_file), "optimizer.init_args.lr=1e-3"]) == 0
    first = capsys.readouterr().out
    shown = tmp_path / "shown.yaml"
    shown.write_text(first)
    assert main.run(["show", str(shown)]) == 0
    assert capsys.readouterr().out == first
    assert load_job(shown).optimizer.init_args == {"lr": 0.001}


def test_the_lists_have_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    for what in ("models", "data", "configs"):
        assert main.run(["list", what]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines and all(line.strip() and len(line) < 160 for line in lines)
        assert len({line.split()[0] for line in lines}) == len(lines)


@pytest.mark.parametrize(
    ("override", "environ", "status", "said"),
    [
        ("train.procs=3", {}, 0, "procs: 3"),
        ("train.threads=7", {}, 0, "warning: "),
        ("train.pin=true", {}, 0, "pin"),
        ("train.procs=64", {}, 0, "each update takes about"),
        ("seed=3", {"OMP_NUM_THREADS": "3"}, 0, "threads 3 (OMP_NUM_THREADS is set)"),
        ("seed=3", {"OMP_NUM_THREADS": "abc"}, 2, "OMP_NUM_THREADS=abc: must be a whole number from 1 to 1024"),
        ("train.threads=1", {"OMP_NUM_THREADS": "abc"}, 0, "threads: 1"),
    ],
)
def test_the_plan_of_a_job_is_printed_with_its_reasons(
    override: str,
    environ: dict[str, str],
    status: int,
    said: str,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if "threads=7" in override and host.usable_cores().usable >= 7:
        override = "train.threads=1000"
    assert main.run(["plan", str(job_file), override, *(["train.procs=1"] if "threads" in override else [])]) == status
    out, err = capsys.readouterr()
    assert said in (err if status else out) and not (out if status else err)


def test_resume_takes_the_resolved_job_and_changes_it(run_dir: Path) -> None:
    job, job_file, text = resumed(run_dir, ["train.epochs=9", "train.procs=2"])
    assert (job.seed, job.train.epochs, job.train.procs, job.name) == (7, 9, 2, "mine")
    assert job_file is not None and job_file.parent == Path("/there") and text.endswith("# as written\n")


def test_a_broken_resolved_file_is_reported_with_its_place(run_dir: Path) -> None:
    (run_dir / "resolved.yaml").write_text(GOOD + "seed: -1\n")
    with pytest.raises(ConfigError, match=r"resolved.yaml:3:7: seed: must be >= 0"):
        resumed(run_dir)


def test_the_data_folder_is_the_flag_then_the_runs_then_the_variables(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOGWILD_DATA", "/variable")
    assert data_folder(tmp_path, run_dir) == tmp_path
    assert data_folder(None, run_dir) == Path("/there/data")
    assert data_folder(None, None) == Path("/variable")
    (run_dir / "env.json").unlink()
    assert data_folder(None, run_dir) == Path("/variable")
    monkeypatch.delenv("HOGWILD_DATA")
    assert data_folder(None, None) is None


def test_an_unreadable_env_file_is_said_and_not_ignored(run_dir: Path) -> None:
    (run_dir / "env.json").write_text("{")
    with pytest.raises(NotFoundError, match=r"env.json: cannot be read"):
        data_folder(None, run_dir)


SUMMARY: dict[str, Any] = {
    "state": "stopped",
    "reason": "signal",
    "samples": 43110,
    "updates": 2700,
    "samples_per_s": 12345.6,
    "procs": 4,
    "metrics": {"loss": 0.25, "accuracy": 0.97222},
    "leases": {"total": 2700, "done": 2698, "skipped": 2, "quarantined": 0, "indeterminate": 1, "redone": 1},
    "restarts": 1,
    "advice": None,
    "run_dir": "runs/x",
}


def test_the_summary_says_how_to_go_on_when_stopped() -> None:
    text = "\n".join(summary_lines(SUMMARY))
    done = "batches: 2,698 done, 2 skipped, 1 indeterminate"  # of how many nobody knows: it was cut short
    for part in ("43,110 samples", "12,346 samples/s", "accuracy 0.9722", done):
        assert part in text
    assert text.endswith("resume with: hogwild train --resume runs/x")
    succeeded = "\n".join(summary_lines(SUMMARY | {"state": "succeeded"}))
    assert "resume with" not in succeeded and "batches: 2,698 of 2,700 done" in succeeded


@pytest.mark.processes
def test_an_answer_imports_nothing_that_takes_long(job_file: Path, tmp_path: Path) -> None:
    """Timing depends on the machine; what is imported does not. Commands over runs are asked again and again."""
    (write(tmp_path / "runs" / "one", record("stopped")) / "logs").mkdir()
    (tmp_path / "runs" / "one" / "logs" / "supervisor.log").write_text("a line\n")
    answered = ("--help", "schema", "list models", "init --list", "runs", "status latest", "logs one")
    for command, status in (
        *((line.split(), 0) for line in answered),
        *(([name, str(job_file)], 0) for name in ("check", "plan")),
        (["stop", "one"], 4),
    ):
        done = program(*command, python=("-X", "importtime"), cwd=tmp_path)
        assert done.returncode == status, done.stderr
        imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
        assert "typer" in imported
        assert not imported & {"torch", "numpy", "numba", "scipy", "rich"}


@pytest.mark.processes
def test_results_go_to_stdout_and_the_exit_status_is_that_of_the_process(tmp_path: Path) -> None:
    done = program("schema")
    assert done.returncode == 0 and json.loads(done.stdout)["title"] == "Job" and done.stderr == ""
    done = program("check", "nowhere.yaml", cwd=tmp_path)
    assert done.returncode == 3 and done.stdout == "" and "nowhere.yaml" in done.stderr


@pytest.mark.processes
def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(HOME / "run.py"), "schema"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


USER_MODEL = """
import os, signal, torch

class Net(torch.nn.Linear):
    def __init__(self, crime=""):
        super().__init__(3, 2)
        print("user code talks")
        if crime == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if crime == "raises":
            raise ValueError("a crime")

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 2
"""


@pytest.fixture
def deep_job(tmp_path: Path) -> Path:
    (tmp_path / "deepuser.py").write_text(USER_MODEL)
    path = tmp_path / "deep.yaml"
    path.write_text("model: {class_path: deepuser.Net}\ndata: {train: {class_path: deepuser.Data}, batch_size: 4}\n")
    return path


@pytest.mark.whole
@pytest.mark.processes
def test_check_deep_builds_the_users_own_model_beside_the_job_file(deep_job: Path) -> None:
    found = deep_check(load_job(deep_job), deep_job, None)
    assert found["train"]["samples"] == 8


@pytest.mark.processes
@pytest.mark.parametrize(
    ("crime", "said"), [("dies", "was killed by SIGKILL"), ("raises", "raised ValueError: a crime")]
)
def test_check_deep_survives_what_user_code_does(deep_job: Path, crime: str, said: str) -> None:
    with pytest.raises(HogwildError) as caught:
        deep_check(load_job(deep_job, [f"model.init_args.crime={crime}"]), deep_job, None)
    assert said in str(caught.value) and caught.value.exit_status == 1


@pytest.mark.processes
def test_check_deep_with_json_keeps_stdout_for_the_result(deep_job: Path) -> None:
    done = program("check", str(deep_job), "--deep", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert "user code talks" in done.stderr


@pytest.mark.processes
def test_a_users_own_packages_in_the_current_folder_do_not_replace_ours(deep_job: Path, tmp_path: Path) -> None:
    for name in ("workers", "hogwild"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    done = program("check", str(deep_job), "--deep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_names_are_cut_for_people_and_nowhere_else(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    name, content = "x" * 3000, f'user,score\n{"x" * 3000},0.5\n"two\nlines",1\n'
    shown = f"{'x' * 59}…" if is_terminal else name
    assert [*results._ranked([(name, 0.5)])] == [f"0.5000  {shown}"]
    output.put_parts([(2, content.encode())], None, "predictions")
    lines = "two lines" if is_terminal else '"two\nlines"'
    assert capsys.readouterr().out == f"user,score\n{shown},0.5\n{lines},1\n"
    output.put_parts([(2, content.encode())], tmp_path / "out.csv", "predictions")
    assert (tmp_path / "out.csv").read_text() == content
