"""class_path -> object: which part of a path failed and why, what does not fit a signature, and whose
module wins."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hogwild.errors import BuildError, ClassPathError, ConfigError, DataError, UsageError
from hogwild.user_code import build, build_callable, claim_our_packages, resolve, user_path

USER_CODE = """
from hogwild.errors import DataError

class Net:
    class Inner:
        pass

    def __init__(self, size, depth=2, *, gain=1.0):
        if size < 0:
            raise ValueError("size must not be negative")
        self.values = (size, depth, gain)

    @classmethod
    def small(cls, depth=1):
        return cls(1, depth)

def anything(**kwargs):
    return kwargs

def bad_data(root):
    raise DataError(f"{root} is empty", code="data/empty")

def loss(output, target, *, scale=1.0):
    return scale * (output - target)

NUMBER = 3
"""


@dataclass
class Spec:
    class_path: str
    init_args: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder on sys.path, forgotten afterwards."""
    before = set(sys.modules)
    (tmp_path / "userpkg").mkdir()
    (tmp_path / "userpkg" / "__init__.py").write_text("")
    (tmp_path / "userpkg" / "net.py").write_text(USER_CODE)
    (tmp_path / "userpkg" / "broken.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "userpkg" / "needs.py").write_text("import no_such_library\n")
    (tmp_path / "userpkg" / "typo.py").write_text("def f(:\n")
    (tmp_path / "userpkg" / "leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "userpkg":
            del sys.modules[name]


def test_classes_functions_and_methods_are_found_by_their_path() -> None:
    net = resolve("userpkg.net.Net")
    assert net.__name__ == "Net"
    assert resolve("userpkg.net.Net.Inner") is net.Inner
    assert resolve("userpkg.net.Net.small")().values == (1, 1, 1.0)
    assert resolve("collections.OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("class_path", "said"),
    [
        ("userpgk.net.Net", "there is no module 'userpgk'; did you mean 'userpkg'?"),
        ("userpkg.nett.Net", "userpkg has no 'nett'; did you mean 'net'?"),
        ("userpkg.net.Nett", "userpkg.net has no 'Nett'; did you mean 'Net'? (in "),
        ("userpkg.net.Net.smal", "userpkg.net.Net has no 'smal'; did you mean 'small'?"),
        ("userpkg.net", "must name a class or a function, but it is a module"),
        ("userpkg.net.NUMBER", "must name a class or a function, but it is a int"),
        ("userpkg.broken.Net", "importing userpkg.broken raised ZeroDivisionError: division by zero ("),
        ("userpkg.broken.Net", "broken.py:2)"),
        ("userpkg.needs.Net", "importing userpkg.needs raised ModuleNotFoundError: No module named 'no_such_library'"),
        ("userpkg.typo.Net", "importing userpkg.typo raised SyntaxError"),
        ("userpkg.leaves.Net", "importing userpkg.leaves raised SystemExit"),
        ("not a path", "must be a dotted path"),
        ("hogwild.models.LeNt", "hogwild.models has no 'LeNt'; did you mean 'LeNet'?"),
    ],
)
def test_an_error_says_which_part_of_the_path_failed_and_why(class_path: str, said: str) -> None:
    with pytest.raises(ClassPathError) as caught:
        resolve(class_path)
    assert str(caught.value).startswith(class_path if "." in class_path else "'")
    assert said in str(caught.value)
    assert caught.value.exit_status == 2


def test_build_calls_with_init_args_after_what_we_fill_in() -> None:
    assert build(Spec("userpkg.net.Net", {"gain": 2.0}), 7).values == (7, 2, 2.0)
    assert build(Spec("userpkg.net.Net", {"size": 3}), depth=4).values == (3, 4, 1.0)
    assert build(Spec("userpkg.net.anything", {"x": 1}), y=2) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("init_args", "positional", "extra", "said"),
    [
        ({"size": 1, "dpth": 2}, (), {}, ["init_args.dpth: unknown argument; did you mean 'depth'?"]),
        ({}, (), {}, ["init_args.size: is required"]),
        (
            {"siz": 1, "dpth": 2},
            (),
            {},
            ["init_args.siz: unknown", "init_args.dpth: unknown", "init_args.size: is req"],
        ),
        ({"size": 1}, (2,), {}, ["init_args.size: is filled in by hogwild; remove it"]),
        ({"size": 1, "depth": 1}, (), {"depth": 2}, ["init_args.depth: is filled in by hogwild"]),
    ],
)
def test_arguments_that_do_not_fit_are_all_named_with_the_signature(
    init_args: dict[str, Any], positional: tuple[Any, ...], extra: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Spec("userpkg.net.Net", init_args), *positional, **extra)
    assert len(caught.value.problems) == len(said)
    for part in (*said, "userpkg.net.Net: ", "signature: (size, depth=2, *, gain=1.0)"):
        assert part in str(caught.value)


def test_what_a_constructor_raises_is_a_build_error_with_its_place_and_cause() -> None:
    with pytest.raises(
        BuildError, match=r"userpkg.net.Net\(size=-1\) raised ValueError: size must not be .*net.py:10\)"
    ) as caught:
        build(Spec("userpkg.net.Net", {"size": -1}))
    assert isinstance(caught.value.__cause__, ValueError)


def test_our_own_errors_pass_through_as_they_are() -> None:
    with pytest.raises(DataError, match=r"^here is empty$"):
        build(Spec("userpkg.net.bad_data", {"root": "here"}))


def test_a_loss_may_be_a_class_or_a_function() -> None:
    assert build_callable(Spec("userpkg.net.Net", {"size": 1})).values == (1, 2, 1.0)
    assert build_callable(Spec("userpkg.net.loss"))(3, 1) == 2
    assert build_callable(Spec("userpkg.net.loss", {"scale": 2.0}))(3, 1) == 4
    with pytest.raises(ConfigError, match=r"unknown argument; did you mean 'scale'"):
        build_callable(Spec("userpkg.net.loss", {"scal": 2.0}))


def test_the_job_files_folder_then_the_current_one_lead_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folders = user_path(tmp_path / "jobs" / "job.yaml")
    assert folders == [str(tmp_path / "jobs"), str(tmp_path / "here")]
    assert sys.path[:2] == folders
    assert user_path(None) == [str(tmp_path / "here")]
    assert sys.path.count(str(tmp_path / "here")) == 1


@pytest.mark.processes
def test_a_users_own_workers_package_shadows_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("raise RuntimeError('the wrong workers')")
    program = (
        "import hogwild.user_code as r; r.user_path(None); import workers, workers.messages; print(workers.__file__)"
    )
    home = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == home / "workers" / "__init__.py"


def test_another_workers_package_imported_before_ours_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import json as another

    monkeypatch.setitem(sys.modules, "workers", another)
    with pytest.raises(UsageError, match=r"'workers' was imported from .* before hogwild's own"):
        claim_our_packages()
