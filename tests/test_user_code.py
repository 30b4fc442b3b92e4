"""class_path -> object: which part of a path failed and why, what does not fit a signature, and whose
module wins."""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from hogwild.errors import BuildError, ClassPathError, ConfigError, DataError, headline
from hogwild.user_code import build, build_callable, raised_text, resolve, short_place, user_frame, user_path

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


# ---- the user's line of an exception ---------------------------------------------------------------------------------


def _raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def _line(user_code: Path, text: str) -> str:
    file = user_code / "userpkg" / "net.py"
    return f"{file}:{1 + next(k for k, line in enumerate(file.read_text().splitlines()) if text in line)}"


def test_an_exception_is_at_the_innermost_line_of_the_users_files_below_libraries(user_code: Path) -> None:
    def through_torch_and_python() -> None:
        resolve("userpkg.net.through")(lambda: json.loads("{"))

    (user_code / "userpkg" / "net.py").write_text(USER_CODE + "\ndef through(call):\n    return call()\n")
    assert user_frame(_raised(lambda: resolve("userpkg.net.loss")(1, "a"))) == _line(user_code, "return scale *")
    # this test file is a user's file, too: the innermost of its frames calls json
    assert user_frame(_raised(through_torch_and_python)).startswith(f"{__file__}:")


def test_an_exception_of_ours_is_at_the_line_of_its_cause(user_code: Path) -> None:
    error = _raised(lambda: build(Spec("userpkg.net.Net", {"size": -1})))
    assert user_frame(error).startswith(f"{__file__}:")  # where this test called `build`
    assert error.__cause__ is not None
    place = Path(_line(user_code, "raise ValueError")).name
    assert user_frame(error.__cause__) == str(user_code / "userpkg" / place)
    assert str(error).endswith(f"ValueError: size must not be negative (userpkg/{place})")


def test_an_exception_without_a_users_line_is_at_the_innermost_one() -> None:
    def fail() -> None:
        raise KeyError("x")

    library = FunctionType(fail.__code__.replace(co_filename=json.__file__), {})
    outer = FunctionType((lambda call: call()).__code__.replace(co_filename=traceback.__file__), {})
    error = _raised(lambda: outer(library))
    own = error.__traceback__
    assert own is not None and own.tb_next is not None  # of this file: `_raised` and the lambda
    inner = error.with_traceback(own.tb_next.tb_next)
    assert user_frame(inner) == f"{json.__file__}:{fail.__code__.co_firstlineno + 1}"
    assert user_frame(inner, or_innermost=False) == ""
    assert raised_text(inner).startswith("KeyError: 'x' (")


def test_an_exception_never_raised_has_no_line() -> None:
    assert user_frame(ValueError("made only")) == ""
    assert raised_text(ValueError("made only")) == "ValueError: made only"


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("first\nsecond", ["ValueError: first (PLACE)", "second"]),
        ("x" * 301, [f"ValueError: {'x' * 299}… (PLACE)", "x" * 301]),
        ("", ["ValueError (PLACE)"]),
    ],
    ids=["of two lines", "a long line", "empty"],
)
def test_the_first_line_of_an_exception_ends_with_its_place(said: str, lines: list[str]) -> None:
    def fail() -> None:
        raise ValueError(said)

    error = _raised(fail)
    place = short_place(user_frame(error))
    assert raised_text(error).splitlines() == [line.replace("PLACE", place) for line in lines]
    assert headline(raised_text(error)) == lines[0].replace("PLACE", place)


def test_a_headline_is_one_line_and_keeps_its_end() -> None:
    assert headline(ValueError()) == "ValueError"
    assert (found := headline("a" * 10_000 + "(net.py:7)\nmore")).endswith("a(net.py:7)") and len(found) <= 400


def test_a_syntax_error_is_at_the_users_line_and_says_it_once(user_code: Path) -> None:
    error = _raised(lambda: resolve("userpkg.typo.f"))
    assert str(error).endswith("raised SyntaxError: invalid syntax (userpkg/typo.py:1)")
    assert str(error).count("typo.py") == 1
