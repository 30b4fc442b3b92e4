"""The trial of a job's own code before training, in the first worker (workers/loading/loading.py): a crash of that code
is an error with a message, a death from outside is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, Ended, Job

pytestmark = pytest.mark.processes

LINE = next(n for n, line in enumerate((JOBS / "trying.py").read_text().splitlines(), 1) if "ctypes.string_at" in line)
TRYING = str(JOBS / "trying.yaml")
LIMIT_S = 20  # longer than any machine needs to start a worker


@pytest.fixture
def tried(tmp_path: Path, start_job: Callable[..., Job]) -> Callable[..., Ended]:
    def run(*arguments: str) -> Ended:
        (tmp_path / "diary").mkdir()
        return start_job(tmp_path / "job", TRYING, f"model.init_args.diary={tmp_path / 'diary'}", *arguments).wait()

    return run


def calls(folder: Path) -> list[str]:
    """Where each call of the trials was, in their order."""
    files = sorted((folder / "diary").iterdir(), key=lambda file: int(file.name.split("-")[1]))
    return [file.name.split("-")[2] for file in files]


@pytest.mark.parametrize(
    ("crime", "code", "words"),
    [
        ("segfault", "model/trial-crashed", ("ended its process: killed by SIGSEGV", f"trying.py:{LINE}")),
        ("exit", "model/trial-crashed", ("ended its process: exit status 7; it said: no licence for today;",)),
        ("exit well", "model/trial-crashed", ("ended its process: exit status 0;",)),
        ("hang", "model/trial-stalled", (f"has not ended for {LIMIT_S} s", "trying.py:", "supervise.start_timeout_s")),
        ("raise", "model/forward-failed", ("KeyError: 'missing'", "trying.py:")),
    ],
)
def test_a_crime_of_user_code_is_an_error_with_code_and_line_and_nothing_is_left(
    crime: str, code: str, words: tuple[str, ...], tmp_path: Path, tried: Callable[..., Ended]
) -> None:
    limit = [f"supervise.start_timeout_s={LIMIT_S}"] if crime == "hang" else []
    ended = tried(f"model.init_args.crime={crime}", "model.init_args.often=100", *limit)
    assert ended.status == 1
    assert all(word in ended.stderr for word in (*words, code)), ended.stderr
    assert "Traceback" not in ended.stderr and "Fatal" not in ended.stderr
    assert calls(tmp_path) == ["worker"]
    assert not ended.run_dir.exists() and not ended.left_behind


@pytest.mark.whole
def test_an_exception_in_the_trial_has_its_traceback_and_output_with_debug(tried: Callable[..., Ended]) -> None:
    ended = tried("model.init_args.crime=raise", "model.init_args.often=100", "--debug")
    assert ended.status == 1
    assert 'in commit\n    _ = {}["missing"]' in ended.stderr
    assert "The process of the trial wrote:\na shape, for instance\n" in ended.stderr


@pytest.mark.parametrize("crime", ["killed", "stopped"])
def test_a_death_from_outside_costs_a_process_and_not_the_job(
    crime: str, tmp_path: Path, tried: Callable[..., Ended]
) -> None:
    limit = [f"supervise.start_timeout_s={LIMIT_S}"] if crime == "stopped" else []
    ended = tried(f"model.init_args.crime={crime}", *limit)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert calls(tmp_path)[:2] == ["worker", "worker"] and "parent" not in calls(tmp_path)
    log = (ended.run_dir / "logs" / "supervisor.log").read_text()
    assert log.count("a worker ended before training: killed by SIGKILL") == 1
    assert ended.ledger_adds_up() and not ended.left_behind


@pytest.mark.whole
def test_a_trial_whose_process_is_killed_every_time_ends_the_job(tmp_path: Path, tried: Callable[..., Ended]) -> None:
    ended = tried("model.init_args.crime=killed", "model.init_args.often=100", "supervise.max_item_attempts=2")
    assert ended.status == 1
    assert "killed by SIGKILL (perhaps out of memory)" in ended.stderr and "model/trial-crashed" in ended.stderr
    assert calls(tmp_path) == ["worker", "worker"]
    assert not ended.run_dir.exists() and not ended.left_behind


@pytest.mark.parametrize(
    "arguments",
    [
        ("train.procs=0",),
        ("model.class_path=trying.Unsendable",),
        ("model.init_args.lazy=true",),  # the trial gives its parameters their shapes
    ],
)
def test_what_cannot_be_tried_in_a_worker_is_tried_in_the_parent(
    arguments: tuple[str, ...], tmp_path: Path, tried: Callable[..., Ended]
) -> None:
    ended = tried(*arguments)
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert set(calls(tmp_path)) == {"parent"}


def test_what_the_first_forward_adds_to_a_model_is_in_the_layout_of_the_job(
    tmp_path: Path, tried: Callable[..., Ended]
) -> None:
    ended = tried("model.class_path=trying.Growing")
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert sorted(set(calls(tmp_path))) == ["parent", "worker"]
    assert "scale" in ended.tensors()


def test_a_wrong_label_on_which_the_loss_fails_is_named_with_its_sample(tried: Callable[..., Ended]) -> None:
    ended = tried("data.train.init_args={wrong: 1}")
    assert ended.status == 1
    assert "the label of sample 1 is 2" in ended.stderr and "data/labels" in ended.stderr
