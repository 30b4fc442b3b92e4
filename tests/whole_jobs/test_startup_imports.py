"""A job does not import what it does not use: the compiler of torch with all that comes with it, and what is there for
other jobs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, environment, write_ratings_job
from tests.helpers.processes import PATIENCE_S

pytestmark = pytest.mark.processes

# Top-level packages, and parts of torch; with each of torch._dynamo's, its import takes longer than torch's own.
UNUSED = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.onnx",
    "torch.utils.tensorboard",
    "sympy",
    "numba",
    "scipy",
    "pandas",
    "sklearn",
    "matplotlib",
    "tensorboard",
    "rich",
    "torchvision",
)
COMMAND = """
import json, sys
from pathlib import Path
from hogwild.cli.main import run

status = run(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps(sorted(sys.modules)))
sys.exit(status)
"""


def run_python(folder: Path, code: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment("imports", folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("procs", [0, 2])
def test_a_whole_job_imports_nothing_that_it_does_not_use(procs: int, tmp_path: Path) -> None:
    arguments = ("train", str(JOBS / "building.yaml"), f"model.init_args.diary={tmp_path}", "--procs", str(procs))
    # A job that takes long enough has curves: on a busy machine any does.
    saving = (
        "checkpoint.every_updates=50",
        "data.val.fraction=0.2",
        "log.tensorboard=false",
        "--run-dir",
        str(tmp_path / "run"),
    )
    run_python(tmp_path, COMMAND, str(tmp_path / "parent"), *arguments, *saving)
    assert list((tmp_path / "run" / "checkpoints").glob("update-*"))
    parent = json.loads((tmp_path / "parent").read_text())
    assert "torch" in parent and set(UNUSED) & set(parent) == set()
    workers = [json.loads(file.read_text())["modules"] for file in tmp_path.glob("saw-*")]
    assert bool(workers) == bool(procs)
    for modules in workers:
        assert "torch" in modules and set(UNUSED) & set(modules) == set()


SPARED = """
import sys, torch
from hogwild.training.torch_settings import sparing_the_compiler

def use():
    linear = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(linear.parameters())
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())

def kept():
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    return [dict(vars(vars(torch.optim.Optimizer)[name].__wrapped__)) for name in names]

before = kept()
with sparing_the_compiler():
    use()
    assert "torch._dynamo" not in sys.modules
    with sparing_the_compiler():
        use()
    use()
    assert "torch._dynamo" not in sys.modules
assert kept() == before, kept()
use()
assert "torch._dynamo" in sys.modules  # as without us
compilers = kept()
with sparing_the_compiler():
    assert kept() == compilers != before
    use()
assert kept() == compilers
"""


def test_torch_is_afterwards_as_it_was_and_with_a_compiler_it_is_left_alone(tmp_path: Path) -> None:
    run_python(tmp_path, SPARED)


IMPORTED_INSIDE = """
import torch
from hogwild.training.torch_settings import sparing_the_compiler

with sparing_the_compiler():
    torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    import torch._dynamo  # by user code, say
plain = torch.optim.Optimizer.zero_grad.__wrapped__
torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1).zero_grad()
assert vars(plain)["__dynamo_disable"] is not plain
"""


def test_user_code_that_imports_the_compiler_meanwhile_gets_all_of_it(tmp_path: Path) -> None:
    run_python(tmp_path, IMPORTED_INSIDE)


def test_the_parent_needs_no_numba_for_ratings(tmp_path: Path) -> None:
    """Reading, arranging the grid and choosing the kernel take half a second less without."""
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    write_ratings_job(tmp_path, procs=1, epochs=1)
    numba = []
    for name in ("first", "again"):
        run = ("--run-dir", str(tmp_path / name))
        run_python(tmp_path, COMMAND, str(tmp_path / "parent"), "train", str(tmp_path / "job.yaml"), *run)
        numba.append("numba" in json.loads((tmp_path / "parent").read_text()))
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["update"] == "fused"
    assert numba == [False, False]


ROLES = """
import sys
from hogwild.training import torch_settings
from hogwild.workers.child import build
from hogwild.workers.messages import CommunicateTask, LoadTask, OwnTask, PredictTask, TrialTask

class Adopted(BaseException):
    pass

def apply(_):
    raise Adopted

torch_settings.apply = apply
build.serve = lambda start, channel, leaving, make: make()
ours, found = sys.path[:], {}
tasks = {
    "trial": TrialTask(),
    "loader": LoadTask(0),
    "gpu_owner": OwnTask("cuda"),
    "communicator": CommunicateTask(0, 1, "", "", 0),
    "predictor": PredictTask("", 1, 0),
}
for role, task in tasks.items():
    build.receive_task = lambda _, task=task: (task, [])
    try:
        build.run(None, None, None)
    except Adopted:
        print(role, sys.path == [], f"hogwild.workers.child.{role}" in sys.modules)
    sys.path[:] = ours
"""


def test_the_modules_of_every_role_are_there_before_the_users_folders_come_first_on_the_path(tmp_path: Path) -> None:
    """A user's `fractions.py` or `yaml.py` is not imported in the place of what our modules import."""
    roles = ("trial", "loader", "gpu_owner", "communicator", "predictor")
    assert run_python(tmp_path, ROLES).splitlines() == [f"{role} True True" for role in roles]
