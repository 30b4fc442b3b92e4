"""Workers that start while the parent still imports torch and builds model and data: they become the job's workers, or
nothing of them is left, however the building ends. The constructor of the model (jobs/building.py) holds the parent for
as long as a test needs."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from tests.helpers.jobs import HOME, JOBS, Ended, Job, environment, in_turn
from tests.helpers.processes import PATIENCE_S, state_of, wait_for

BUILDING = str(JOBS / "building.yaml")
CANCELLED = "cancelled; nothing was started\n"
EARLY = min(2, max(1, math.floor(host.usable_cores().usable)))
TRACKER = 1  # multiprocessing's resource tracker, a child like others


@pytest.fixture
def begin(tmp_path: Path, start_job: Callable[..., Job]) -> Callable[..., Job]:
    """Starts the job and holds it in the constructor of its model."""

    def start(*arguments: str, **options: Any) -> Job:
        (tmp_path / "hold").touch()
        job = start_job(tmp_path / "job", BUILDING, f"model.init_args.diary={tmp_path}", *arguments, **options)
        wait_for("the constructor", lambda: (tmp_path / "building").exists() or job.process.poll() is not None)
        assert job.process.poll() is None, job.stderr()
        return job

    return start


def early_workers(job: Job) -> list[int]:
    """By their command line, which names the function of multiprocessing that they begin with."""
    return [pid for pid in host.children(job.process.pid) if b"spawn_main" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def released(job: Job, diary: Path) -> Ended:
    (diary / "hold").unlink()
    return job.wait()


def saw(diary: Path) -> dict[int, dict[str, Any]]:
    return {int(file.name.removeprefix("saw-")): json.loads(file.read_text()) for file in diary.glob("saw-*")}


# ---- they become the job's workers ----------------------------------------------------------------------------------


def test_workers_that_started_while_the_model_was_built_train_it(tmp_path: Path, begin: Callable[..., Job]) -> None:
    job = begin(extra={"BUILDING_CHANGED": "before", "BUILDING_GONE": "still there"})
    early = early_workers(job)
    assert len(early) == EARLY
    assert not job.events("spawn")  # nobody's start is timed yet
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    spawned = [(event["pid"], event["incarnation"]) for event in ended.events("spawn")]
    assert set(early) <= {pid for pid, _ in spawned} and len(spawned) == 2
    assert {incarnation for _, incarnation in spawned} == {1}
    assert not ended.left_behind

    # What user code changed in the parent meanwhile, a process that is started afterwards would have inherited.
    for seen in saw(tmp_path).values():
        assert seen["environment"] == {
            "BUILDING_NEW": "new",
            "BUILDING_CHANGED": "changed",
            "BUILDING_GONE": None,
            "OMP_NUM_THREADS": "1",  # the plan's
        }
        assert str(tmp_path) in seen["path"] and str(job.folder) in seen["path"]

    startup = ended.summary["startup"]
    assert list(startup) == ["import_s", "build_s", "share_s", "workers_s"]
    assert sum(startup.values()) == pytest.approx(ended.summary["startup_s"], abs=0.01)


@pytest.mark.parametrize(("loaders", "needed"), [("auto", 2), ("1", 1)])
def test_loaders_start_as_early_as_workers_where_the_job_says_that_it_streams(
    loaders: str, needed: int, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin("data.feed=stream", f"data.loaders={loaders}")
    early = early_workers(job)
    assert len(early) == EARLY + min(needed, EARLY)
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    taken = {event["pid"] for kind in ("spawn", "loader-spawn") for event in ended.events(kind)}
    assert set(early) <= taken and len(taken) == 2 + needed
    assert not ended.left_behind


def test_early_processes_that_turn_out_not_to_be_needed_end_before_training(
    tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin("data.feed=stream", "data.train={class_path: building.PairStream}")
    early = early_workers(job)
    assert len(early) == 2 * EARLY
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    taken = [event["pid"] for kind in ("spawn", "loader-spawn") for event in ended.events(kind)]
    assert len(ended.events("loader-spawn")) == 1 and len(taken) == 3, "one reads what is not divided"
    assert len({*early} - {*taken}) == 2 * EARLY - min(2 * EARLY, 3)
    assert not ended.left_behind


def test_an_early_process_that_is_killed_while_the_model_is_built_costs_nothing(
    tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin()
    victim = early_workers(job)[0]
    os.kill(victim, signal.SIGKILL)
    wait_for("its death, which nobody has reaped", lambda: state_of(victim) == "Z")
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert ended.summary["restarts"] == 0 and not ended.events("exit")
    assert [event["pid"] for event in ended.events("spare-exit")] == [victim]
    assert ended.ledger_adds_up() and not ended.left_behind


several_cores = pytest.mark.skipif(host.usable_cores().usable < 2, reason="one core: auto is one worker")


@several_cores
def test_without_procs_a_job_that_is_over_at_once_has_one_worker_and_says_so(
    tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin("train.procs=auto")
    (only,) = early_workers(job)
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert [event["pid"] for event in ended.events("spawn")] == [only]
    assert ended.summary["procs"] == 1 and ended.ledger_adds_up() and not ended.left_behind
    assert "(train.procs: auto) trained: the job was over before the start of another one was worth it" in ended.stderr


@several_cores
def test_without_procs_all_workers_start_once_the_rest_of_the_job_is_worth_it(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    job = start_job(tmp_path, "train.procs=auto", "train.epochs=100000")
    planned = int(host.usable_cores().usable)
    job.wait_for_event("ready", planned)
    first, *others = job.events("spawn")
    assert len(others) == planned - 1
    (began,) = [event["time"] for event in job.events("ready") if event["worker"] == first["worker"]]
    assert all(event["time"] > began for event in others)
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert ended.summary["procs"] == planned and ended.ledger_adds_up() and not ended.left_behind
    assert "was worth it" not in ended.stderr


@several_cores
def test_without_procs_others_take_over_from_a_first_worker_that_is_given_up(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """They would wait for ever for its first update."""
    job = start_job(tmp_path, "train.procs=auto", "train.epochs=100000", "supervise.max_restarts=0")
    (first,) = job.wait_for_event("spawn")
    os.kill(first["pid"], signal.SIGKILL)  # before its first update, as a rule
    job.wait_for_event("ready", int(host.usable_cores().usable) - 1)
    job.wait_for_updates(1)
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert first["worker"] not in {event["worker"] for event in ended.events("spawn")[1:]}
    assert ended.summary["updates"] and ended.ledger_adds_up() and not ended.left_behind


# The import of our loop fails, with words, in the first worker that comes to it.
FAILING_IMPORT = """
import os, sys
from pathlib import Path

class Failing:
    def find_spec(self, name, path=None, target=None):
        if name == "workers.child.build" and "--multiprocessing-fork" in sys.orig_argv:
            print("said before there was a log")
            try:
                (Path(os.environ["DIARY"]) / "claimed").touch(exist_ok=False)
            except FileExistsError:
                return
            raise ImportError("a broken installation")

sys.meta_path.insert(0, Failing())
"""


def test_what_a_worker_says_before_there_is_a_run_directory_is_in_the_logs(
    tmp_path: Path, begin: Callable[..., Job]
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FAILING_IMPORT)
    path = f"{tmp_path / 'site'}{os.pathsep}{HOME}"
    job = begin("train.procs=1", extra={"PYTHONPATH": path, "DIARY": str(tmp_path)})
    ended = released(job, tmp_path)
    assert (ended.status, ended.summary["restarts"]) == (0, 0), ended.stderr  # it was replaced before its set-up
    log = (ended.run_dir / "logs" / "worker-0.log").read_text()
    assert log.count("said before there was a log\n") == 1
    sentence = "a worker ended before training: exit status 1; it said: ImportError: a broken installation\n"
    assert (ended.run_dir / "logs" / "supervisor.log").read_text().count(sentence) == 1
    assert "worker-0.log" not in ended.stdout and "Traceback" not in ended.stderr


def test_no_more_workers_start_early_than_there_are_cores(tmp_path: Path, begin: Callable[..., Job]) -> None:
    job = begin("train.procs=4", "train.epochs=2")
    assert len(early_workers(job)) == min(4, max(1, math.floor(host.usable_cores().usable)))
    ended = released(job, tmp_path)
    assert (ended.status, len(ended.events("spawn"))) == (0, 4), ended.stderr
    assert not ended.left_behind


# ---- or nothing of them is left -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_while_the_model_is_built_leaves_no_worker_and_no_run(
    number: int, status: int, begin: Callable[..., Job]
) -> None:
    job = begin()
    assert early_workers(job)
    job.send(number)
    ended = job.wait()
    assert (ended.status, ended.said, ended.stdout) == (status, CANCELLED, "")
    assert not ended.run_dir.exists() and not ended.left_behind


def test_a_parent_that_is_killed_while_it_builds_takes_its_workers_with_it(begin: Callable[..., Job]) -> None:
    job = begin()
    early = early_workers(job)
    os.kill(early[0], signal.SIGSTOP)  # it can notice nothing itself
    job.send(signal.SIGKILL)
    assert job.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert job.left_behind() == []


@pytest.fixture(scope="module")
def builds(jobs_folder: Path) -> dict[str, tuple[Ended, int]]:
    """Jobs whose model is built without being held: name -> (job, children of the parent meanwhile)."""
    arguments = {
        "fails": ["model.init_args.fails=true"],
        "needs more memory": ["model.init_args.vast=true"],
        "is a dry run": ["--dry-run"],
        "trains inside": ["--procs", "0"],
        "trains": [],
    }
    jobs = {}
    for name, more in arguments.items():
        diary = jobs_folder / f"diary {name}"
        diary.mkdir()
        jobs[name] = ["train", BUILDING, f"model.init_args.diary={diary}", *more]
    ended = in_turn(jobs_folder / "jobs", jobs)
    return {name: (ended[name], int((jobs_folder / f"diary {name}" / "children").read_text())) for name in jobs}


@pytest.mark.parametrize(
    ("name", "status", "children"),
    [
        ("fails", 1, EARLY + TRACKER),
        ("needs more memory", 1, EARLY + TRACKER),
        ("is a dry run", 0, 0),
        ("trains inside", 0, 0),
        ("trains", 0, EARLY + TRACKER),
    ],
)
def test_nothing_of_them_is_left_in_the_process_however_the_job_ends(
    builds: dict[str, tuple[Ended, int]], name: str, status: int, children: int
) -> None:
    job, while_built = builds[name]
    assert (job.status, while_built) == (status, children), job.stderr
    assert (job.left_behind, job.process_leaks) == ([], {"descriptors": 0, "threads": 0})
    assert job.run_dir.exists() == (status == 0 and name != "is a dry run")


LIBRARY = """
import json, os, sys
import torch
import hogwild
from hogwild import host

class Counted(torch.utils.data.TensorDataset):
    def __getitem__(self, index):
        self.children = len(host.children(os.getpid()))
        if self.fails:
            raise OSError("a data set that cannot be read")
        return super().__getitem__(index)

model = torch.nn.Linear(4, 2)
data = Counted(torch.randn(64, 4), torch.arange(64) % 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hogwild.train(model, torch.utils.data.TensorDataset(*data.tensors), torch.nn.CrossEntropyLoss(), optimizer, procs=2)
before, said = host.descriptor_count(), []
for data.fails in (True, False):
    try:
        said.append(hogwild.train(model, data, torch.nn.CrossEntropyLoss(), optimizer, procs=2).state)
    except hogwild.HogwildError as error:
        said.append(str(error))
    said.append([data.children, len(host.children(os.getpid())), host.descriptor_count() - before])
print(json.dumps(said))
"""


def test_a_library_call_starts_workers_before_it_reads_the_data_and_has_as_many_wait(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LIBRARY],
        cwd=tmp_path,
        env=environment("library", tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    error, failed, state, trained = json.loads(ended.stdout.splitlines()[-1])
    assert "a data set that cannot be read" in error
    assert state == "succeeded"
    assert failed == trained == [EARLY + TRACKER, EARLY + TRACKER, 0]  # new ones wait for the next call
