"""A search as a job of the service: its trials are its own; whatever is killed, no trial is lost or counted twice."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli.jobs import search_page
from hogwild.cli.main import run as command
from hogwild.config.load import load_job
from hogwild.errors import NotFoundError
from hogwild.searching.attempt import CoreRequests
from hogwild.service.attempts import end_of
from hogwild.service.folders import JobFolder
from hogwild.service.routes_jobs import cores_for, elastic_of
from hogwild.service.schedule import Machine
from hogwild.service.states import Elastic, JobRecord
from hogwild.storage.run_directory import RunDir
from hogwild.storage.run_files import answer_to, write_request
from tests.cli.test_runs import attached
from tests.helpers.processes import PATIENCE_S, state_of, wait_for
from tests.helpers.service import SMALL, Service, require_two_cores
from tests.service.test_api import API, ask
from tests.service.test_moves import cores_of

OWN = """
import torch

class Net(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))

    def forward(self, x):
        return self.layers(x)
"""
JOB = """
name: tuned
model: {class_path: own.Net, init_args: {hidden: 4}}
data:
  train: {class_path: hogwild.data.Csv, init_args: {path: rows.csv, target: y, target_type: class}}
  val: {fraction: 0.25}
train: {epochs: EPOCHS, device: cpu}
evaluate: {metrics: [accuracy]}
search:
  space: {optimizer.init_args.lr: {log: [1e-3, 1.0]}, model.init_args.hidden: {choice: [2, 4, 8]}}
  metric: accuracy
  pruner: none
  trials: 3
"""


def write_job(folder: Path, epochs: int = 3) -> Path:
    """A job whose data file and module lie beside it."""
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    rows = [f"{number % 7},{number % 5},{number % 2}" for number in range(2000)]
    (folder / "rows.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    (folder / "job.yaml").write_text(JOB.replace("EPOCHS", str(epochs)))
    return folder / "job.yaml"


def trials_of(run: Path) -> dict[int, dict[str, Any]]:
    """Number -> status.json of the trials that have evaluated."""
    found = {}
    for file in run.glob("trials/0*/metrics.jsonl"):
        if '"evaluation"' in file.read_text():
            found[int(file.parent.name)] = json.loads((file.parent / "status.json").read_text())
    return found


def check_whole(run: Path, epochs: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert command(["search", "show", str(run), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [(one["trial"], one["state"]) for one in answer["trials"]] == [(n, "complete") for n in range(3)]
    for one in answer["trials"]:
        lines = (Path(one["run_dir"]) / "metrics.jsonl").read_text().splitlines()
        records = [record for line in lines if (record := json.loads(line))["kind"] == "evaluation"]
        assert [record["epoch"] for record in records] == [*range(1, epochs + 1)], "no epoch lost or twice"
    return answer


@pytest.mark.processes
def test_a_job_with_a_search_is_searched_on_its_cores_and_has_a_page(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path / "project")
    row = service.start().client.submit(job, ["queue.elastic.max=1"])
    (tmp_path / "project" / "own.py").write_text("raise RuntimeError\n")  # the copy counts
    assert (row["is_search"], row["cpus"], row["elastic"]) == (True, 1, {"min": 1, "max": 1})
    ended = service.wait_for_state(row["id"], "succeeded", "failed", "paused")
    assert (ended["state"], ended["reason"], ended["trials"]) == ("succeeded", "3 trials", 3), ended
    run = Path(ended["run_dir"])
    answer = check_whole(run, 3, capsys)
    assert ended["progress"] == 1 and ended["best"]["metric"] == "accuracy"
    assert ended["best"]["value"] == answer["best"]["value"]
    summary = json.loads((run / "trials" / "0001" / "summary.json").read_text())
    assert summary["procs"] == 1
    status, page = ask(service, "GET", f"{API}/jobs/1/search")
    assert status == 200 and "Trials over time" in str(page)
    monkeypatch.setenv("HOGWILD_STATE", str(service.state.path))
    assert command(["search", "best", "1"]) == 0
    assert f"cd {tmp_path / 'project'} && hogwild train {run / 'best.yaml'}" in capsys.readouterr().out
    assert command(["show", "1"]) == 0
    assert "  search      3 trials: hogwild search show 1" in capsys.readouterr().out
    assert command(["status", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("search tuned  succeeded  3 trials: 3 complete; ") and "\n  best        accuracy " in shown
    assert command(["status", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert command(["logs", "1"]) == 0
    lines = [line[20:] for line in capsys.readouterr().out.splitlines()]  # without the time
    assert lines[0].startswith(f"search in {run}: ") and lines[-1] == "succeeded: 3 trials"
    assert all(any(line.startswith(f"trial {number} complete: ") for line in lines) for number in range(3))
    assert command(["attach", "1"]) == 4
    assert "does not run: succeeded: 3 trials" in capsys.readouterr().err
    status, listed = ask(service, "GET", f"{API}/jobs/1/logs")
    assert status == 200 and [one["name"] for one in listed] == ["supervisor"]
    other = service.submit(*SMALL)["id"]
    status, problem = ask(service, "GET", f"{API}/jobs/{other}/search")
    assert status == 404 and "search/not-found" in str(problem)


@pytest.mark.processes
@pytest.mark.parametrize("killed", ["search", "trial", "service", "all"])
def test_a_search_goes_on_after_a_kill_and_no_trial_is_lost_or_counted_twice(
    killed: str, service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs = 300  # long enough that it is killed amid them
    row = service.start().client.submit(write_job(tmp_path / "project", epochs))
    run = Path(row["run_dir"])
    alive = wait_for("a trial that has evaluated", lambda: trials_of(run))
    number, status = next(iter(alive.items()))
    if killed in ("service", "all"):
        service.kill()
    if killed in ("search", "all"):
        os.kill(json.loads((run / "search.json").read_text())["pid"], signal.SIGKILL)
    if killed in ("trial", "all"):
        os.kill(status["pid"], signal.SIGKILL)
    if killed in ("service", "all"):
        service.start()
    ended = service.wait_for_state(row["id"], "succeeded", "failed", "paused")
    assert ended["state"] == "succeeded", ended
    assert ended["attempt"] == (2 if killed in ("search", "all") else 1)
    check_whole(run, epochs, capsys)
    attempt = json.loads((run / "trials" / f"{number:04}" / "status.json").read_text())["attempt"]
    assert attempt == (1 if killed == "service" else 2)
    wait_for("the end of all processes", lambda: not service.processes())


@pytest.mark.processes
def test_a_search_is_watched_paused_with_its_trials_and_resumed(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOGWILD_STATE", str(service.state.path))
    row = service.start().client.submit(write_job(tmp_path / "project", 300))
    run = Path(row["run_dir"])
    wait_for("a trial that has evaluated", lambda: trials_of(run))
    with attached("1", tmp_path) as (process, reader):
        wait_for("the table", lambda: "Ctrl-C: leave" in reader.text)
        assert "search tuned  running" in reader.text and "hogwild cancel 1" in reader.text
        assert command(["status", "1"]) == 0
        assert "search tuned  running" in capsys.readouterr().out
        service.client.pause(row["id"])
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and output.startswith("search tuned  stopped"), output
    paused = service.wait_for_state(row["id"], "paused", "failed", "succeeded")
    assert (paused["state"], paused["reason"]) == ("paused", "paused by the user"), paused
    assert {one["state"] for one in trials_of(run).values()} <= {"stopped", "succeeded"}, "with checkpoints"
    service.client.resume(row["id"])
    assert service.wait_for_state(row["id"], "succeeded", "failed")["state"] == "succeeded"
    check_whole(run, 300, capsys)


# ---- cores that move ------------------------------------------------------------------------------------------------

ELSEWHERE = ("train.procs=1", "train.epochs=100000")  # borrows a core


def write_slow_job(folder: Path, epochs: int) -> Path:
    """A job of which a trial takes 0.3 s for an epoch with one worker."""
    job = write_job(folder, epochs)
    sleeps = "        if self.training:\n            time.sleep(0.006)\n        return"
    (folder / "own.py").write_text(f"import time\n{OWN}".replace("        return", sleeps))
    return job


def training(run: Path) -> list[int]:
    """Workers of each trial that trains."""
    records = [json.loads(file.read_text()) for file in sorted(run.glob("trials/0*/status.json"))]
    return [
        len(one["workers"]) for one in records if one["state"] == "running" and state_of(one["pid"]) not in (None, "Z")
    ]


def check_cores(service: Service, name: str, cores: set[int]) -> None:
    """The service has the job on these cores, and the kernel all its processes."""

    def have_moved() -> bool:
        row = service.client.job(name)
        return set(row["cores"]) == cores and cores_of(service, row) == cores

    wait_for(f"job {name} on {cores}", have_moved)


@pytest.mark.processes
def test_a_search_lends_a_core_and_gets_it_back_and_each_epoch_is_trained_once(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_two_cores()
    row = service.start().client.submit(write_slow_job(tmp_path / "project", 50), ["resources.cpus=2"])
    run = Path(row["run_dir"])
    wait_for("two trials", lambda: training(run) == [1, 1])
    both = set(service.client.job(row["id"])["cores"])
    other = service.wait_for_state(service.submit(*ELSEWHERE)["id"], "running")
    borrowed = set(other["cores"])
    check_cores(service, row["id"], both - borrowed)
    wait_for("one trial", lambda: training(run) == [1])
    assert cores_of(service, service.client.job(other["id"])) == borrowed
    service.client.cancel(other["id"], now=True)
    wait_for("all cores again", lambda: set(service.client.job(row["id"])["cores"]) >= both)
    wait_for("two trials", lambda: training(run) == [1, 1])
    ended = service.wait_for_state(row["id"], "succeeded", "failed", "paused")
    assert (ended["state"], ended["attempt"]) == ("succeeded", 1) and ended["trials"] == 3, ended
    check_whole(run, 50, capsys)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["answer"]) for event in events[:2]] == [("request", "done")] * 2
    attempts = [json.loads((run / "trials" / f"000{n}" / "status.json").read_text())["attempt"] for n in range(3)]
    assert sorted(attempts[:2]) == [1, 2], "one trial has paused, the other one has not"


@pytest.mark.processes
def test_a_search_that_is_killed_before_it_answers_keeps_off_the_cores_of_others(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that it did not read is none of the next attempt's: when that begins the core is another job's."""
    require_two_cores()
    row = service.start().client.submit(write_slow_job(tmp_path / "project", 30), ["queue.elastic.max=2"])
    run = Path(row["run_dir"])

    def unread() -> bool:
        return any((run / "requests").glob("*.json"))

    def kill_at_a_request(*, lender_of_all: bool) -> None:
        os.kill(service.client.job(row["id"])["pid"], signal.SIGSTOP)
        if lender_of_all:
            ask_for_a_core()
        else:
            service.client.cancel(others[-1], now=True)
        wait_for("a request", unread)
        if not lender_of_all:
            ask_for_a_core()
        os.kill(service.client.job(row["id"])["pid"], signal.SIGKILL)

    def ask_for_a_core() -> None:
        others.append(service.submit(*ELSEWHERE, "queue.priority=1")["id"])

    others: list[str] = []
    wait_for("trials", lambda: trials_of(run))
    both = set(service.client.job(row["id"])["cores"])
    for lender_of_all in (True, False):
        kill_at_a_request(lender_of_all=lender_of_all)
        borrowed = set(service.wait_for_state(others[-1], "running")["cores"])
        check_cores(service, row["id"], both - borrowed)
        wait_for("a trial", lambda: training(run) == [1])
        assert service.client.job(row["id"])["moves"] == 0 and not unread()
        assert cores_of(service, service.client.job(row["id"])) == both - borrowed
    service.client.cancel(others[-1], now=True)
    ended = service.wait_for_state(row["id"], "succeeded", "failed", "paused")
    assert (ended["state"], ended["attempt"]) == ("succeeded", 3), ended
    check_whole(run, 30, capsys)


# ---- decisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "cpus"),
    [
        ([], 4),
        (["search.parallel=3"], 3),
        (["search.parallel=1", "train.procs=2"], 2),
        (["search.parallel=2", "train.procs=3"], 4),
        (["search.parallel=3", "resources.cpus=1"], 1),
    ],
)
def test_a_search_asks_for_the_cores_of_its_trials(more: list[str], cpus: int) -> None:
    machine = Machine(tuple((number,) for number in range(4)), ())
    job = load_job(None, more, source_text=JOB.replace("EPOCHS", "3"))
    assert cores_for(job, machine) == cpus
    assert elastic_of(job, machine) == (None if more else Elastic(1, 4)), "where both are left to us"
    job = load_job(None, [*more, "queue.elastic.min=1"], source_text=JOB.replace("EPOCHS", "3"))
    needs = job.train.procs if isinstance(job.train.procs, int) else 1
    assert elastic_of(job, machine) == Elastic(needs, 4, needs), "a trial's cores come and go"


def test_a_search_answers_what_it_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [{"ask": "stacks"}, {"ask": "resize", "procs": 2}, {"ask": "resize", "cores": [9999]}]
    with RunDir.create(tmp_path / "run", "tuned") as rundir:
        requests = CoreRequests(rundir, lambda message: None)
        for number, request in enumerate(asked):
            write_request(rundir.path, request, f"{number}")
        assert not requests.obey()
        monkeypatch.setenv("OMP_PROC_BIND", "true")
        write_request(rundir.path, {"ask": "resize", "cores": [0]}, "3")
        assert not CoreRequests(rundir, lambda message: None).obey()
        answers = [answer_to(rundir.path, f"{number}", 0) for number in range(4)]
    said = ["a search knows one request", "a search knows one request", "cores [9999] are not all", "OpenMP binds"]
    for answer, words in zip(answers, said, strict=True):
        assert answer is not None and answer["answer"].startswith(words)


def test_the_end_of_a_search_is_told_by_its_record_or_by_its_error(tmp_path: Path) -> None:
    folder, job = JobFolder(tmp_path), JobRecord("a" * 12, state="running", attempt=1, pid=7, start_ticks=3)
    folder.attempt(1).mkdir(parents=True)
    folder.run.mkdir()
    record = {"pid": 7, "start_ticks": 3, "state": "stopped", "reason": "max_time_s: 5.0 s"}
    (folder.run / "search.json").write_text(json.dumps(record))
    end = end_of(job, folder, 75)
    assert (end.state, end.reason, end.exit_status, end.is_begun) == ("stopped", record["reason"], 75, True)
    (folder.run / "search.json").write_text(json.dumps({**record, "pid": None, "state": "failed", "reason": None}))
    (folder.attempt(1) / "stdout").write_text('{"error": "3 trials failed", "error_code": "config/class-path"}\n')
    end = end_of(job, folder, 1)
    assert (end.state, end.error, end.error_code) == ("failed", "3 trials failed", "config/class-path")


@pytest.mark.parametrize("record", ["{", '{"job_file": 3}', '{"job_file": "job.yaml", "overrides": []}'])
def test_a_search_whose_files_are_damaged_has_no_page(record: str, tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(record)
    (tmp_path / "job.yaml").write_text(JOB.replace("EPOCHS", "3"))
    with pytest.raises(NotFoundError) as caught:
        search_page(tmp_path)
    assert caught.value.code == "search/not-found"
