"""The distribution as a user gets it: the wheel in an environment of its own, the sdist unpacked."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest

from hogwild.version import __version__
from tests.helpers.processes import PATIENCE_S

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [re.split(r"[<>=]", needed)[0] for needed in PROJECT["dependencies"]]
WHERE = "import hogwild.workers.run as run, workers; print(run.__file__); print(workers.STRANGER)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    pytest.importorskip("hatchling", reason="of the extra 'test'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel(built)) as archive:
        archive.extractall(packages)
    return folder / "bin" / "python"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Somebody's folder, which has a package called `workers`."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("STRANGER = 'a stranger'\n")
    return tmp_path


def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def run(*command: str, cwd: Path, more: Mapping[str, str] | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or more is None}
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environment | dict(more or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def needed_packages() -> dict[str, str]:
    """The variable that makes the environment find what hogwild needs."""
    return {"PYTHONPATH": os.pathsep.join({str(distribution(name).locate_file("")): None for name in NEEDED})}


def test_the_wheel_has_one_package_with_its_types_and_the_files_that_it_reads(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {"hogwild", f"hogwild-{__version__}.dist-info"}
    assert {
        "hogwild/py.typed",
        "hogwild/workers/run.py",
        "hogwild/configs/digits.yaml",
        "hogwild/docs/errors.md",
    } <= names


def test_an_installed_hogwild_trains_beside_a_foreign_package_called_workers(python: Path, elsewhere: Path) -> None:
    file, stranger = run(str(python), "-c", WHERE, cwd=elsewhere, more=needed_packages()).split("\n", 1)
    assert Path(file).is_relative_to(python.parents[1]) and stranger.strip() == "a stranger"
    job = ("train", "--procs", "2", "train.epochs=1", "--run-dir", "first", "--no-progress")
    assert "succeeded: epochs" in run(str(python), "-m", "hogwild", *job, cwd=elsewhere, more=needed_packages())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("explain data/empty", "How to fix"),
        ("list configs", "site-packages/hogwild/configs"),
        ("list losses --arguments", "# Losses"),
        ("--version", f"hogwild {__version__}"),
    ],
)
def test_an_installed_command_finds_the_files_that_it_reads(
    python: Path, elsewhere: Path, command: str, said: str
) -> None:
    assert said in run(str(python), "-m", "hogwild", *command.split(), cwd=elsewhere, more=needed_packages())


def test_a_users_mypy_sees_the_types(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="of the extra 'dev'")
    program = tmp_path / "program.py"
    program.write_text("import hogwild\nreveal_type(hogwild.train)\nreveal_type(hogwild.load)\n")
    told = run(
        sys.executable, "-m", "mypy", "--python-executable", str(python), "--cache-dir", str(tmp_path / "cache"),
        str(program), cwd=tmp_path,
    )  # fmt: skip
    shown = [line for line in told.splitlines() if "Revealed type" in line]
    assert "hogwild.api.TrainResult" in shown[0] and shown[1].split('"')[1] != "Any"


def test_tests_run_from_an_unpacked_sdist(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)  # tarfile's `filter` came with Python 3.11.4
    (folder,) = tmp_path.iterdir()
    tests = ("tests/test_layers.py", "tests/scheduling", "tests/cli/test_errors.py")
    told = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not processes and not slow", *tests),
        cwd=folder,
        more={"PYTHONPATH": str(folder)},
    )
    assert " passed" in told
