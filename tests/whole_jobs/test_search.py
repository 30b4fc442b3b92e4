"""`hogwild search` as a user runs it: trials are real jobs; it is paused, killed and resumed, and no trial is lost,
counted or trained twice."""

import csv
import io
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli.main import run as command
from tests.helpers.jobs import RUN_PY, Ended, Job, start
from tests.helpers.processes import state_of, wait_for
from tests.helpers.service import require_two_cores

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

JOB = """
name: digits
model: {class_path: hogwild.models.Mlp, init_args: {features: 64, hidden: [32], classes: 10}}
data:
  train: {class_path: hogwild.data.Digits, init_args: {split: train}}
  val: {class_path: hogwild.data.Digits, init_args: {split: test}}
train: {epochs: EPOCHS, procs: 1, device: cpu}
evaluate: {metrics: [accuracy]}
search:
  space:
    optimizer.init_args.lr: {log: [1e-3, 1.0]}
    model.init_args.hidden: {choice: [[16], [32], [32, 16]]}
  metric: accuracy
  trials: TRIALS
"""
OWN = """
import time, torch

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        if kind == "mistake":
            raise ValueError("a mistake of mine")
        self.kind = kind

    def forward(self, x):
        x = self.layer(x.flatten(1))
        return x * float("nan") if self.kind == "diverges" else x
"""


def write_job(folder: Path, *, epochs: int = 9, trials: int = 5, text: str = JOB) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(text.replace("EPOCHS", str(epochs)).replace("TRIALS", str(trials)))
    return folder


def begin(folder: Path, *arguments: str) -> Job:
    """A search in a process of its own, in `folder`/found unless it is resumed."""
    where = [] if "--resume" in arguments else ["job.yaml", "--run-dir", "found"]
    given = [RUN_PY, "search", *where, *arguments]
    return start(folder, *given[1:], python=(given[0],), run_dir=folder / "found")


def search(folder: Path, *arguments: str) -> Ended:
    return begin(folder, *arguments).wait()


def found(folder: Path) -> dict[str, Any]:
    """What `search show --json` says, of a process of its own: Optuna keeps what it has read."""
    ended = start(folder, "search", "show", "found", "--json", python=(RUN_PY,), run_dir=folder / "found").wait()
    assert ended.status == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def evaluations(folder: Path, number: int) -> list[dict[str, Any]]:
    file = folder / "found" / "trials" / f"{number:04}" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [record for line in lines if (record := json.loads(line))["kind"] == "evaluation"]


def check_whole(folder: Path, trials: int, epochs: int) -> dict[str, Any]:
    """No trial is lost, counted or trained twice: what the study has is what the runs have done."""
    answer = found(folder)
    assert [one["trial"] for one in answer["trials"]] == list(range(trials))
    folders = sorted(one.name for one in (folder / "found" / "trials").iterdir() if one.name != ".cache")
    assert folders == [f"{number:04}" for number in range(trials)]
    for one in answer["trials"]:
        records = evaluations(folder, one["trial"])
        assert [record["epoch"] for record in records] == list(range(1, len(records) + 1)), "no epoch twice"
        if one["state"] == "complete":
            assert one["evaluations"] == len(records) == epochs
            assert one["value"] == max(record["accuracy"] for record in records)
        else:
            assert one["state"] == "pruned" and one["evaluations"] <= len(records)
            assert one["note"] == f"after {one['evaluations']} evaluation{'s' * (one['evaluations'] != 1)}"
    return answer


@pytest.fixture(scope="module")
def whole(jobs_folder: Path) -> tuple[Path, Ended]:
    folder = write_job(jobs_folder / "whole", trials=8)
    return folder, search(folder)


def test_a_search_tries_values_ends_bad_trials_early_and_leaves_the_best_job_file(whole: tuple[Path, Ended]) -> None:
    folder, ended = whole
    assert ended.status == 0, ended.stderr
    assert not ended.left_behind
    answer = check_whole(folder, 8, 9)
    states = [one["state"] for one in answer["trials"]]
    assert {*states} == {"complete", "pruned"}, states
    complete = [one for one in answer["trials"] if one["state"] == "complete"]
    assert answer["best"] == max(complete, key=lambda one: one["value"]) and answer["state"] == "succeeded"
    assert all(one["values"]["model.init_args.hidden"] in ([16], [32], [32, 16]) for one in answer["trials"])
    for one in answer["trials"]:
        assert f"trial {one['trial']} {one['state']}" in ended.stderr
    status = json.loads((folder / "found" / "trials" / "0001" / "status.json").read_text())
    assert status["state"] in ("succeeded", "stopped")


def test_the_best_job_file_trains_as_it_is_and_ends_as_its_trial(whole: tuple[Path, Ended]) -> None:
    folder, _ = whole
    best = found(folder)["best"]
    ended = start(folder, "train", "found/best.yaml", run_dir=None).wait()
    assert ended.status == 0, ended.stderr
    assert ended.summary["best"]["value"] == best["value"]


def test_a_search_is_shown_and_exported(
    whole: tuple[Path, Ended], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = whole
    monkeypatch.chdir(folder)
    assert command(["search", "show", "found"]) == 0
    head, *_, last = capsys.readouterr().out.splitlines()
    assert re.match(r"search found  succeeded  8 trials: \d complete, \d pruned; ", head) and "after" in last
    assert command(["search", "export", "--csv", "found"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["trial"] for row in rows] == [str(number) for number in range(8)]
    assert all(float(row["optimizer.init_args.lr"]) > 0 for row in rows)
    assert command(["search", "best", "found"]) == 0
    assert capsys.readouterr().out == (folder / "found" / "best.yaml").read_text()
    assert command(["search", "shw", "found"]) == 2
    assert "shw: must be a job file, or one of show, best, export; did you mean 'show'?" in capsys.readouterr().err


# ---- pauses and kills -----------------------------------------------------------------------------------------------


def living_trials(folder: Path) -> dict[int, int]:
    """Number -> pid of the trials whose processes live and have evaluated."""
    alive = {}
    for file in (folder / "found" / "trials").glob("0*/status.json"):
        record = json.loads(file.read_text())
        pid, number = record.get("pid"), int(file.parent.name)
        if record.get("state") == "running" and evaluations(folder, number) and state_of(pid) not in (None, "Z"):
            alive[number] = pid
    return alive


def kill_search(job: Job) -> None:
    job.send(signal.SIGKILL)


def interrupt_search(job: Job) -> None:
    job.send(signal.SIGINT)


@pytest.mark.parametrize("end", [kill_search, interrupt_search])
def test_a_search_that_ends_amid_trials_goes_on_with_them(end: Callable[[Job], None], tmp_path: Path) -> None:
    folder = write_job(tmp_path, epochs=120, trials=3)
    job = begin(folder, "search.pruner=none")
    alive = wait_for("a trial that has evaluated", lambda: living_trials(folder))
    end(job)
    ended = job.wait()
    assert ended.status == (75 if end is interrupt_search else -signal.SIGKILL), ended.stderr
    assert not ended.left_behind
    for number in alive:
        status = json.loads((folder / "found" / "trials" / f"{number:04}" / "status.json").read_text())
        assert status["state"] == "stopped" and status["reason"] == "SIGTERM", "it has written a checkpoint"
    ended = search(folder, "--resume", "found")
    assert ended.status == 0, ended.stderr
    answer = check_whole(folder, 3, 120)
    assert [one["state"] for one in answer["trials"]] == ["complete"] * 3
    for number in alive:
        status = json.loads((folder / "found" / "trials" / f"{number:04}" / "status.json").read_text())
        assert status["attempt"] == 2


def test_a_search_whose_data_were_moved_goes_on_with_their_new_folder(tmp_path: Path) -> None:
    data = "hogwild.data.Csv, init_args: {path: rows.csv, target: y, target_type: class}"
    text = re.sub(r"hogwild.data.Digits, init_args: {split: train}", data, JOB).replace("features: 64", "features: 2")
    text = re.sub(r"  val: .*\n", "  val: {fraction: 0.25}\n", text)
    folder = write_job(tmp_path, epochs=400, trials=2, text=text)
    (folder / "data").mkdir()
    rows = [f"{number % 7},{number % 5},{number % 2}" for number in range(2000)]
    (folder / "data" / "rows.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    job = begin(folder, "--data-dir", "data", "search.pruner=none", "search.parallel=1")
    wait_for("a trial that has evaluated", lambda: living_trials(folder))
    interrupt_search(job)
    assert job.wait().status == 75
    (folder / "data").rename(folder / "moved")
    lost = search(folder, "--resume", "found", "--data-dir", "data")
    assert lost.status == 3 and "data/folder-not-found" in lost.stderr
    for _ in range(2):  # the second one remembers it
        ended = search(folder, "--resume", "found", *(() if _ else ("--data-dir", "moved")))
        assert ended.status == 0, ended.stderr
    assert [one["state"] for one in check_whole(folder, 2, 400)["trials"]] == ["complete"] * 2
    assert json.loads((folder / "found" / "search.json").read_text())["data_dir"] == str(folder / "moved")


def test_several_metrics_have_a_front_that_a_kill_and_a_resume_do_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = JOB.replace("  metric: accuracy", "  metric: [accuracy, loss]\n  sampler: random")
    folder = write_job(tmp_path, epochs=40, trials=5, text=text)
    job = begin(folder, "--no-progress")
    wait_for("a trial that has evaluated", lambda: living_trials(folder))
    kill_search(job)
    assert job.wait().status == -signal.SIGKILL
    ended = search(folder, "--resume", "found")
    assert ended.status == 0 and not ended.left_behind, ended.stderr
    answer = check_whole(folder, 5, 40)
    assert answer["metrics"] == {"accuracy": {"higher_is_better": True}, "loss": {"higher_is_better": False}}
    told = {one["trial"]: (one["metrics"]["accuracy"], one["metrics"]["loss"]) for one in answer["trials"]}
    assert len(told) == 5
    for number, (accuracy, loss) in told.items():
        best = max(evaluations(folder, number), key=lambda record: record["accuracy"])  # the first of equal ones
        assert (accuracy, loss) == (best["accuracy"], best["loss"])
        status = json.loads((folder / "found" / "trials" / f"{number:04}" / "summary.json").read_text())
        assert status["best"]["metric"] == "accuracy" and status["best"]["value"] == accuracy
    front = [one["trial"] for one in answer["front"]]
    assert {*front} == {
        number
        for number, (accuracy, loss) in told.items()
        if not any(a >= accuracy and b <= loss and (a, b) != (accuracy, loss) for a, b in told.values())
    }
    assert answer["best"]["trial"] == front[0] and told[front[0]][0] == max(accuracy for accuracy, _ in told.values())
    assert f"trial {front[0]}, accuracy" in (folder / "found" / "best.yaml").read_text()
    monkeypatch.chdir(folder)
    assert command(["search", "show", "found"]) == 0
    shown = capsys.readouterr().out
    assert f"  front       {len(front)} trial" in shown and shown.count("on the front") == len(front)
    assert command(["search", "best", "found", "--trial", str(front[-1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == answer["front"][-1]
    assert command(["search", "best", "found", "--trial", "77"]) == 2
    assert "search/not-best" in capsys.readouterr().err
    assert command(["report", "found"]) == 0
    assert "Pareto front" in (folder / "found" / "report" / "index.html").read_text()


def test_a_trial_whose_process_is_killed_is_resumed(tmp_path: Path) -> None:
    folder = write_job(tmp_path, epochs=80, trials=2)
    job = begin(folder, "search.pruner=none")
    for number, pid in wait_for("a trial that has evaluated", lambda: living_trials(folder)).items():
        os.kill(pid, signal.SIGKILL)
        killed = number
    ended = job.wait()
    assert ended.status == 0 and not ended.left_behind, ended.stderr
    check_whole(folder, 2, 80)
    status = json.loads((folder / "found" / "trials" / f"{killed:04}" / "status.json").read_text())
    assert status["attempt"] == 2


def test_a_search_in_use_is_not_resumed_and_another_folder_is_no_search(tmp_path: Path) -> None:
    folder = write_job(tmp_path, epochs=400, trials=2)
    job = begin(folder)
    wait_for("a trial that has evaluated", lambda: living_trials(folder))
    second = search(folder, "--resume", "found")
    assert second.status == 1 and "is in use by another job" in second.stderr and "run/in-use" in second.stderr
    third = search(folder)  # the same --run-dir
    assert third.status == 1 and "found is in use by another job" in third.stderr
    assert search(folder, "--resume", ".").status == 3
    interrupt_search(job)
    assert job.wait().status == 75
    again = search(folder)
    assert again.status == 1 and "already contains a search: resume it with --resume" in again.stderr


def test_a_running_search_is_a_run_that_is_listed_watched_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_job(tmp_path / "runs", epochs=100, trials=500).parent
    job = begin(folder / "runs", "search.pruner=none")
    wait_for("a trial that has evaluated", lambda: living_trials(folder / "runs"))
    (folder / "other").mkdir()
    follower = start(folder / "other", "attach", "../runs/found", run_dir=folder / "runs" / "found")
    wait_for("a trial that ends", lambda: "complete: accuracy " in follower.stderr())
    record = folder / "runs" / "found" / "search.json"
    wait_for("its best, in the record", lambda: json.loads(record.read_text())["best"])
    monkeypatch.chdir(folder)
    assert command(["runs"]) == 0
    assert re.search(r"(?m)^found +running +\d+ % +accuracy 0\.", capsys.readouterr().out)
    assert command(["eval", "latest"]) == 3, "a search has no model of its own"
    assert command(["eval", "found"]) == 3
    assert "run runs/found: is a search; its runs are its trials, runs/found/trials/NUMBER" in capsys.readouterr().err
    assert command(["logs", "found"]) == 0
    assert re.search(r"(?m)^[\d: -]{19} trial \d complete: accuracy ", capsys.readouterr().out)
    assert command(["stop", "found"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("search found  stopped") and "was asked to stop" in captured.err
    assert job.wait().status == 75
    ended = follower.wait()
    assert ended.status == 0 and ended.stdout.startswith("search found  stopped"), ended.stderr
    assert command(["attach", "found"]) == 4
    assert "resume with: hogwild search --resume runs/found" in capsys.readouterr().err


def test_time_that_is_over_pauses_a_search_which_more_time_continues(tmp_path: Path) -> None:
    folder = write_job(tmp_path, epochs=9, trials=500)
    ended = search(folder, "search.max_time_s=6")
    assert ended.status == 75 and "stopped     max_time_s: 6.0 s; go on: hogwild search --resume" in ended.stdout
    assert "search.max_time_s=SECONDS, more than before" in ended.stdout
    before = len(found(folder)["trials"])
    assert 0 < before < 500
    ended = search(folder, "--resume", "found", f"search.trials={before + 1}", "search.max_time_s=600")
    assert ended.status == 0, ended.stderr
    check_whole(folder, before + 1, 9)
    wrong = search(folder, "--resume", "found", "search.pruner=none")
    assert wrong.status == 2 and "usage/resume-changes" in wrong.stderr


# ---- trials at a time -----------------------------------------------------------------------------------------------

SLOW = """
import fcntl, os, time, torch

def one_at_a_time(name, delay_s, delay_of_another_s):
    with open(name, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last, me = file.read(), str(os.getsid(0))  # a trial is a session
        file.truncate(0)
        file.write(me)
        file.flush()
        time.sleep(delay_s if last in ("", me) else delay_of_another_s)

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = torch.nn.Linear(64, 10), kind

    def forward(self, x):
        if self.training and self.kind == "serial":  # two workers of a trial are no quicker than one
            one_at_a_time(f"lock-{os.getsid(0)}", 0.015, 0.015)
        elif self.training:  # what another trial has brought into the cache is of no use
            one_at_a_time("cache", 0.0, 0.05)
            time.sleep(0.015)
        return self.layer(x.flatten(1))
"""
SLEEPS = """
import time, torch

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.delay_s = torch.nn.Linear(64, 10), 0.01 if kind == "slow" else 0.0

    def forward(self, x):
        if self.training:
            time.sleep(self.delay_s)
        return self.layer(x.flatten(1))
"""
MEMORY_SHORT = """
import os, pathlib, time, torch
from hogwild.errors import MemoryShortError

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = torch.nn.Linear(64, 10), kind
        others = {file.read_text() for file in pathlib.Path().glob("alive-*")} - {str(os.getsid(0))}
        if kind == "large" and any(os.path.exists(f"/proc/{pid}") for pid in others):
            pathlib.Path("refused").touch()
            raise MemoryShortError("too little memory", code="run/memory-short")
        pathlib.Path(f"alive-{os.getsid(0)}").write_text(str(os.getsid(0)))

    def forward(self, x):
        return self.layer(x.flatten(1))
"""
TWO_CORES = """
import os, sys
from hogwild import host
os.sched_setaffinity(0, [core.cpus[0] for core in host.physical_cores(host.affinity())[:2]])
from hogwild.__main__ import main
main()
"""


@pytest.mark.parametrize(("kind", "way"), [("serial", "packed"), ("thrashes", "alone")])
def test_the_way_in_which_trials_share_the_cores_is_measured_and_kept(kind: str, way: str, tmp_path: Path) -> None:
    require_two_cores()
    folder = own_job(tmp_path, "[0]", 4)
    text = (folder / "job.yaml").read_text().replace(", procs: 1", "").replace("epochs: 2", "epochs: 7")
    text = re.sub("    model.init_args.kind: .*\n", "", text).replace("data:\n", "data:\n  batch_size: 16\n")
    (folder / "job.yaml").write_text(text.replace("kind: fine", f"kind: {kind}") + "  pruner: none\n")
    (folder / "own.py").write_text(SLOW)
    (folder / "two_cores.py").write_text(TWO_CORES)

    def begun(*arguments: str) -> Job:
        return start(folder, "search", *arguments, python=("two_cores.py",), run_dir=folder / "found")

    job = begun("job.yaml", "--run-dir", "found", "--no-progress")
    log = folder / "found" / "logs" / "supervisor.log"

    def is_decided() -> bool:
        assert job.process.poll() is None, job.stderr()
        return log.exists() and " parallel: " in log.read_text()

    wait_for("a decision", is_decided)
    interrupt_search(job)
    assert job.wait().status == 75
    decided = found(folder)["parallel"]
    assert decided["way"] == way and "trial 0 was evaluated every " in decided["why"], decided
    ended = begun("--resume", "found")
    assert ended.wait().status == 0
    assert log.read_text().count(" parallel: ") == 1, "a resumed search measures nothing again"
    answer = check_whole(folder, 4, 7)
    assert answer["parallel"] == decided and [one["state"] for one in answer["trials"]] == ["complete"] * 4
    summaries = [json.loads((folder / "found" / "trials" / f"000{n}" / "summary.json").read_text()) for n in range(4)]
    assert [one["procs"] for one in summaries] == [1 if way == "packed" else 2] * 4


def test_the_last_trial_gets_the_cores_of_ended_ones_without_a_pause_and_after_a_resume(tmp_path: Path) -> None:
    require_two_cores()
    folder = own_job(tmp_path, "[slow, quick]", 2)
    text = re.sub("    optimizer.init_args.lr: .*\n", "", (folder / "job.yaml").read_text()).replace(", procs: 1", "")
    text = text.replace("epochs: 2", "epochs: 12").replace("data:\n", "data:\n  batch_size: 16\n")
    (folder / "job.yaml").write_text(text + "  sampler: grid\n  pruner: none\n")
    (folder / "own.py").write_text(SLEEPS)
    (folder / "two_cores.py").write_text(TWO_CORES)

    def begun(*arguments: str) -> Job:
        return start(folder, "search", *arguments, "--no-progress", python=("two_cores.py",), run_dir=folder / "found")

    def requests() -> list[tuple[int, str]]:
        files = (folder / "found" / "trials").glob("0*/events.jsonl")
        events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [(event["procs"], event["answer"]) for event in events if event["event"] == "request"]

    def workers() -> list[int]:
        """Of all trials that train."""
        records = [json.loads(file.read_text()) for file in (folder / "found" / "trials").glob("0*/status.json")]
        return [len(one["workers"]) for one in records if one["state"] == "running"]

    job = begun("job.yaml", "--run-dir", "found")
    wait_for("two trials of one worker", lambda: workers() == [1, 1])
    wait_for("a trial of two workers", lambda: workers() == [2])
    interrupt_search(job)
    assert job.wait().status == 75 and requests() == [(2, "done")]
    job = begun("--resume", "found")
    wait_for("a trial of two workers", lambda: workers() == [2])
    ended = job.wait()
    assert ended.status == 0 and not ended.left_behind, ended.stderr
    assert [one["state"] for one in check_whole(folder, 2, 12)["trials"]] == ["complete"] * 2
    statuses = [json.loads((folder / "found" / "trials" / f"000{n}" / "status.json").read_text()) for n in range(2)]
    assert sorted(one["attempt"] for one in statuses) == [1, 2] and requests() == [(2, "done")] * 2


def test_a_trial_that_lacks_memory_beside_others_is_started_again_alone(tmp_path: Path) -> None:
    folder = own_job(tmp_path, "[small, large]", 2)
    text = (folder / "job.yaml").read_text() + "  sampler: grid\n  parallel: 2\n  pruner: none\n"
    text = re.sub("    optimizer.init_args.lr: .*\n", "", text).replace("epochs: 2", "epochs: 60")
    (folder / "job.yaml").write_text(text)
    (folder / "own.py").write_text(MEMORY_SHORT)
    ended = search(folder)
    assert ended.status == 0 and not ended.left_behind, ended.stderr
    assert [one["state"] for one in check_whole(folder, 2, 60)["trials"]] == ["complete"] * 2
    assert (folder / "refused").exists()


# ---- trials that fail -----------------------------------------------------------------------------------------------


def own_job(folder: Path, kinds: str, trials: int) -> Path:
    text = JOB.replace("hogwild.models.Mlp, init_args: {features: 64, hidden: [32], classes: 10}", "own.Net")
    space = f"model.init_args.kind: {{choice: {kinds}}}"
    text = re.sub(r"    model.init_args.hidden: .*\n", f"    {space}\n", text).replace("class_path: own.Net", OWN_NET)
    folder = write_job(folder, trials=trials, epochs=2, text=text)
    (folder / "own.py").write_text(OWN)
    return folder


OWN_NET = "class_path: own.Net, init_args: {kind: fine}"


def test_three_trials_with_the_same_error_of_the_users_code_stop_the_search_with_it(tmp_path: Path) -> None:
    folder = own_job(tmp_path, "[mistake, [mistake]]", 20)
    (folder / "own.py").write_text(OWN.replace('if kind == "mistake":', "if True:"))
    ended = search(folder)
    assert ended.status == 1
    assert "3 trials in a row failed with the same error" in ended.stderr
    assert "ValueError: a mistake of mine (own.py:" in ended.stderr and "config/constructor-raised" in ended.stderr
    answer = found(folder)
    assert answer["state"] == "failed" and len(answer["trials"]) in (3, 4)
    states = [one["state"] for one in answer["trials"]]
    assert states.count("failed") >= 3 and {*states} <= {"failed", "paused"} and answer["best"] is None
    none = start(folder, "search", "best", "found", python=(RUN_PY,), run_dir=folder / "found").wait()
    assert none.status == 1 and "search/no-best" in none.stderr


def test_a_trial_that_diverges_is_a_failed_one_and_the_search_goes_on(tmp_path: Path) -> None:
    folder = own_job(tmp_path, "[fine, diverges]", 4)
    ended = search(folder, "search.sampler=random", "search.pruner=none", "supervise.on_nan=fail")
    assert ended.status == 0, ended.stderr
    answer = found(folder)
    kinds = {one["values"]["model.init_args.kind"]: one for one in answer["trials"]}
    assert kinds["fine"]["state"] == "complete" and kinds["diverges"]["state"] == "failed", answer
    assert answer["best"]["values"]["model.init_args.kind"] == "fine"


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "search/no-space"),
        (["--csv"], 2, "usage/contradiction"),
        (["--trial", "1"], 2, "usage/contradiction"),
        (["show", ".", "--trial", "1"], 2, "usage/contradiction"),
        (["job.yaml", "search.metric=[accuracy, loss]", "search.pruner=median"], 2, "search.pruner: must be none"),
        (["show"], 3, "search/not-found"),
        (["show", "."], 3, "search/not-found"),
        (["show", "a", "b"], 2, "usage/arguments"),
        (["export", "."], 2, "usage/contradiction"),
        (["--resume", "."], 3, "search/not-found"),
        (["--resume", ".", "job.yaml"], 2, "usage/contradiction"),
        (["job.yaml", "--storage", "nonsense"], 2, "search/storage"),
        (["job.yaml", "search.sampler={class_path: collections.Counter}"], 2, "search/not-optuna"),
    ],
)
def test_what_is_no_search_is_refused(
    arguments: list[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(write_job(tmp_path))
    assert command(["search", *arguments]) == status
    assert said in capsys.readouterr().err


def test_a_database_keeps_a_study_that_a_second_search_of_that_name_must_not_take(tmp_path: Path) -> None:
    folder = write_job(tmp_path, epochs=1, trials=1)
    assert search(folder, "--storage", "sqlite:///study.db").status == 0
    answer = found(folder)
    assert len(answer["trials"]) == 1 and not (folder / "found" / "study.journal").exists()
    (folder / "found").rename(folder / "before")
    second = search(folder, "--storage", "sqlite:///study.db")
    assert second.status == 1 and "search/other-study" in second.stderr


# ---- the call for Python --------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
import hogwild

job = {
    "name": "called",
    "model": {"class_path": "own.Net", "init_args": {"kind": "fine"}},
    "data": {
        "train": {"class_path": "hogwild.data.Digits", "init_args": {"split": "train"}},
        "val": {"fraction": 0.2},
    },
    "train": {"epochs": 60, "procs": 1, "device": "cpu"},
    "evaluate": {"metrics": ["accuracy"]},
}
space = {"optimizer.init_args.lr": {"log": [1e-3, 1.0]}}
if sys.argv[1] == "begin":
    try:
        hogwild.search(job, space, metric=["accuracy", "loss"], sampler="random", trials=2, run_dir="found")
    except hogwild.SearchInterrupted as interrupted:
        result = interrupted.result
        print(json.dumps([result.state, result.reason, str(result.run_dir), result.best_params]))
else:
    result = hogwild.search(resume="found", trials=3, refit=True, progress=False)
    print(json.dumps({
        "state": result.state, "best": result.best_trial.number, "params": result.best_params,
        "value": result.best_value, "values": result.best_values, "trials": [one.number for one in result.trials],
        "front": [one.number for one in result.front], "job": str(result.best_job), "refit": str(result.refit),
        "studied": len(result.study().get_trials()), "run_dir": str(result.best_trial.run_dir),
    }))
"""


def test_a_search_is_called_in_python_interrupted_and_continued(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "program.py").write_text(PROGRAM)
    job = start(tmp_path, "begin", python=("program.py",), run_dir=tmp_path / "found")
    wait_for("a trial that has evaluated", lambda: living_trials(tmp_path))
    interrupt_search(job)
    ended = job.wait()
    assert ended.status == 0 and not ended.left_behind, ended.stderr
    assert json.loads(ended.stdout) == ["stopped", "SIGINT", str(tmp_path / "found"), {}]
    assert "search in " in ended.stderr
    ended = start(tmp_path, "go on", python=("program.py",), run_dir=tmp_path / "found").wait()
    assert ended.status == 0 and not ended.left_behind, ended.stderr
    told, answer = json.loads(ended.stdout), check_whole(tmp_path, 3, 60)
    assert told["state"] == "succeeded" and told["trials"] == [0, 1, 2] and told["studied"] == 3
    assert told["front"] == [one["trial"] for one in answer["front"]] and told["best"] == told["front"][0]
    assert (told["params"], told["values"]) == (answer["best"]["values"], answer["best"]["metrics"])
    assert told["value"] == answer["best"]["value"] == told["values"]["accuracy"]
    assert [told["job"], told["refit"]] == [str(tmp_path / "found" / name) for name in ("best.yaml", "refit")]
    assert told["run_dir"] == answer["best"]["run_dir"]
    trained = start(tmp_path, "train", "found/best.yaml", run_dir=None).wait()
    assert trained.status == 0, trained.stderr


# ---- the page and the refit -----------------------------------------------------------------------------------------


def test_the_best_job_is_trained_again_on_all_data(tmp_path: Path) -> None:
    text = re.sub(r"  val: .*\n", "  val: {fraction: 0.25}\n", JOB)
    folder = write_job(tmp_path, epochs=4, trials=2, text=text)
    ended = search(folder, "--refit")
    assert ended.status == 0, ended.stderr
    assert "  on all data " in ended.stdout
    best = found(folder)["best"]
    records = evaluations(folder, best["trial"])
    epoch = next(record["epoch"] for record in records if record["accuracy"] == best["value"])
    summary = json.loads((folder / "found" / "refit" / "summary.json").read_text())
    assert summary["samples"] == epoch * 1437, "all of the training data, as often as was best"
    again = search(folder, "--resume", "found", "--refit")
    assert again.status == 0 and json.loads((folder / "found" / "refit" / "status.json").read_text())["attempt"] == 1


def test_a_search_has_a_page(
    whole: tuple[Path, Ended], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = whole
    monkeypatch.chdir(folder)
    assert command(["report", "found"]) == 0
    assert capsys.readouterr().out.strip() == "found/report/index.html"
    text = (folder / "found" / "report" / "index.html").read_text()
    assert text.count("<svg") >= 5 and "best accuracy" in text
