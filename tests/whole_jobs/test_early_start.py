"""The time in which the parent builds model and data: its fork server is there, no worker yet, and nothing is left of
it however the building ends. The constructor of the model (jobs/building.py) holds the parent for as long as a test
needs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.workers.processes.fork_server import NAMES, SERVER_NAME
from tests.helpers.jobs import HOME, JOBS, Ended, Job, environment
from tests.helpers.processes import PATIENCE_S, state_of, wait_for

pytestmark = pytest.mark.processes

BUILDING = str(JOBS / "building.yaml")


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


def children(job: Job) -> dict[int, str]:
    """The names of the job's children, but for a tracker of multiprocessing and a helper of the tests."""
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in host.children(job.process.pid)}
    return {pid: name for pid, name in names.items() if name in NAMES}


def released(job: Job, diary: Path) -> Ended:
    (diary / "hold").unlink()
    return job.wait()


def saw(diary: Path) -> dict[int, dict[str, Any]]:
    return {int(file.name.removeprefix("saw-")): json.loads(file.read_text()) for file in diary.glob("saw-*")}


# ---- what was changed meanwhile -------------------------------------------------------------------------------------


def test_workers_are_forked_after_the_model_was_built_into_what_the_parent_is_then(
    tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin(extra={"BUILDING_CHANGED": "before", "BUILDING_GONE": "still there"})
    assert [*children(job).values()] == [SERVER_NAME]
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert len(ended.events("spawn")) == 2 and not ended.left_behind

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


@pytest.mark.whole
def test_a_server_that_is_killed_while_the_model_is_built_costs_a_start(
    tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin()
    (server,) = children(job)
    os.kill(server, signal.SIGKILL)
    wait_for("its death, which nobody has reaped", lambda: state_of(server) == "Z")
    ended = released(job, tmp_path)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert ended.summary["restarts"] == 0 and len(ended.events("fresh-interpreter")) >= 1
    assert ended.ledger_adds_up() and not ended.left_behind


FRESH = {"OMP_PROC_BIND": "true"}  # with it processes are fresh interpreters

# The import of our loop fails, with words, in the first worker that comes to it.
FAILING_IMPORT = """
import os, sys
from pathlib import Path

class Failing:
    def find_spec(self, name, path=None, target=None):
        if name == "hogwild.workers.child.build" and "--multiprocessing-fork" in sys.orig_argv:
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
    job = begin("train.procs=1", extra={"PYTHONPATH": path, "DIARY": str(tmp_path), **FRESH})
    ended = released(job, tmp_path)
    assert (ended.status, ended.summary["restarts"]) == (0, 0), ended.stderr  # it was replaced before its set-up
    log = (ended.run_dir / "logs" / "worker-0.log").read_text()
    assert log.count("said before there was a log\n") == 1
    sentence = "a worker ended before training: exit status 1; it said: ImportError: a broken installation\n"
    assert (ended.run_dir / "logs" / "supervisor.log").read_text().count(sentence) == 1
    assert "worker-0.log" not in ended.stdout and "Traceback" not in ended.stderr


# ---- nothing of it is left -------------------------------------------------------------------------------------


def test_a_parent_that_is_killed_while_it_builds_takes_its_server_with_it(begin: Callable[..., Job]) -> None:
    job = begin()
    (server,) = children(job)
    os.kill(server, signal.SIGSTOP)  # it can notice nothing itself
    job.send(signal.SIGKILL)
    assert job.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert job.left_behind() == []


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


def test_a_library_call_starts_its_server_before_it_reads_the_data_and_keeps_it(tmp_path: Path) -> None:
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
    assert failed[1:] == trained[1:] == [1, 0]  # the server
    assert failed[0] == 2, "and multiprocessing's tracker"
