"""The errors as a whole: the classes, the codes as they are given and explained."""

import ast
import copy
import io
import json
import pickle
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path

import pytest

import hogwild
from hogwild import errors
from hogwild.cli import main
from hogwild.cli.catalog import chapters
from hogwild.errors import (
    ConfigError,
    DataError,
    Diverged,
    HogwildError,
    NotFoundError,
    Problem,
    RunEndedError,
    ServiceError,
    UsageError,
)
from tests.helpers.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
AREAS = (
    *("usage", "predict", "config", "data", "device", "model", "optimizer", "run", "checkpoint", "cluster", "train"),
    *("report", "export", "search", "service"),
)
PARTS = ("Cause", "How to see", "How to fix")  # what the message does not say itself; always a fix
CODES = {code: parts["In short"] for code, parts in chapters().items()}
TAGS = Path("hogwild/monitoring/tensorboard.py")  # its scalars have names of the same form
PROBLEM = Problem("job.yaml", 3, 5, "train.epochs", "must be >= 1, got 0", "config/out-of-range")
OTHER = Problem("job.yaml", 4, 1, "sede", "unknown key", "config/unknown-key")


def classes() -> Iterator[type[HogwildError]]:
    waiting = [HogwildError]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [below for below in one.__subclasses__() if below.__module__ == errors.__name__]


def test_the_exit_status_tells_the_kind_of_an_error() -> None:
    kinds = {UsageError: 2, NotFoundError: 3, RunEndedError: 4, ServiceError: 4}
    for one in classes():
        kind = next((kind for kind in kinds if issubclass(one, kind)), None)
        assert one.exit_status == (1 if kind is None else kinds[kind]), one
        assert one.__doc__, one


# ---- the codes: listed, given, explained ----------------------------------------------------------------------------


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("hogwild", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def is_code(node: ast.AST) -> bool:
    pattern = rf"({'|'.join(AREAS)})/[a-z0-9-]+"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(re.fullmatch(pattern, node.value))


def codes_in(tree: ast.Module) -> set[str]:
    """Every code that stands in a file, however it is handed on."""
    return {node.value for node in ast.walk(tree) if is_code(node)}  # type: ignore[attr-defined]


def given_as_code(tree: ast.Module) -> Iterator[str]:
    """The text behind `code=` and `code =`: all of it must be in the list, whatever it looks like."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.keyword) and node.arg == "code" else None
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "code" for target in node.targets):
            value = node.value
        for part in ast.walk(value) if value is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and "/" in part.value:
                yield part.value


@pytest.mark.slow
def test_the_codes_that_are_given_are_those_that_are_explained() -> None:
    given: set[str] = set()
    for path, tree in sources():
        found = set(given_as_code(tree)) | (codes_in(tree) if path != TAGS else set())
        unknown = found - CODES.keys()
        assert not unknown, f"{path}: without a chapter in docs/errors.md: {sorted(unknown)}"
        given |= found
    assert given == CODES.keys()


def without_a_code(tree: ast.Module) -> Iterator[str]:
    """Errors of ours that are made without one, of a class that has none."""
    bare = {one.__name__ for one in classes() if "code" not in vars(one)} | {"HogwildError"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in bare:
            continue
        if not any(keyword.arg == "code" for keyword in node.keywords):
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"


@pytest.mark.slow
def test_every_error_that_is_raised_has_a_code() -> None:
    found = {str(path): list(without_a_code(tree)) for path, tree in sources()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_an_error_without_a_code_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="DataError"):
        DataError("words")
    assert Diverged("its class has one").code == "train/diverged"


def explained() -> dict[str, dict[str, str]]:
    """docs/errors.md: code -> part -> its words."""
    text = (ROOT / "docs/errors.md").read_text()
    chapters = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    pages = {}
    for chapter in chapters:
        heading, _, body = re.split(r"^## ", chapter, flags=re.MULTILINE)[0].partition("\n")
        parts = re.split(r"^- \*(.+?)\*: ", body, flags=re.MULTILINE)
        pages[heading.strip().strip("`")] = dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))
    return pages


def test_the_chapters_are_sorted_and_all_of_them_are_read() -> None:
    assert list(CODES) == sorted(explained())


def test_an_explanation_has_its_parts_in_order() -> None:
    for code, (first, *parts) in explained().items():
        assert first == "In short" and "How to fix" in parts, code
        assert parts == [part for part in PARTS if part in parts], code


def test_a_code_names_its_area_and_its_kind() -> None:
    pattern = rf"({'|'.join(AREAS)})/[a-z]+(-[a-z]+)*"
    assert [code for code in CODES if not re.fullmatch(pattern, code)] == []


# ---- one error ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [DataError("empty", code="data/empty"), Diverged("NaN"), ConfigError([PROBLEM]), ConfigError([PROBLEM, OTHER])],
    ids=lambda error: error.code,
)
def test_a_copy_and_a_pickle_keep_words_code_and_problems(error: HogwildError) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert twin.record() == error.record()


def test_a_config_error_has_the_code_of_its_problems_where_they_agree() -> None:
    assert ConfigError([PROBLEM, PROBLEM]).code == "config/out-of-range"
    assert ConfigError([PROBLEM, OTHER]).code == "config/invalid"


def test_a_problem_ends_with_its_code() -> None:
    assert str(PROBLEM) == "job.yaml:3:5: train.epochs: must be >= 1, got 0 [config/out-of-range]"


# ---- on the command line --------------------------------------------------------------------------------------------


def said_by(*command: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main.run(command)
    return status, out.getvalue(), err.getvalue()


def test_an_error_is_followed_by_its_code_on_standard_error() -> None:
    status, out, err = said_by("train", "--resume", "nowhere")
    assert (status, out) == (3, "")
    assert err.splitlines()[-1] == "code run/not-found: hogwild explain run/not-found"


def test_a_failed_command_with_json_answers_one_object(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: {class_pth: a.B}\ndata: {train: {class_path: a.b}}\ntrain: {epochs: 0}\n")
    status, out, err = said_by("check", str(job), "--json")
    answer = json.loads(out)
    assert answer["error"] == err.rstrip("\n")  # lines with several codes: each names its own
    assert (status, answer["exit_status"], answer["error_code"]) == (2, 2, "config/invalid")
    assert [(one["line"], one["path"], one["code"]) for one in answer["problems"]] == [
        (1, "model.class_pth", "config/unknown-key"),
        (3, "train.epochs", "config/out-of-range"),
    ]


def test_an_exception_that_is_none_of_ours_has_a_code_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(system: str = "") -> None:
        raise KeyError("our mistake")

    monkeypatch.setattr(main, "require_linux", breaks)
    status, out, err = said_by("check", "--json")
    assert (status, json.loads(out)["error_code"]) == (1, "run/unexpected")
    assert "KeyError: 'our mistake'" in err and "Traceback" not in err
    assert "Traceback" in said_by("check", "--debug")[2]


@pytest.mark.processes
def test_an_error_of_a_child_that_builds_keeps_its_code() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "check", "--deep", "--json", "loss.class_path=nowhere.Loss"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["error_code"] == "config/no-such-module"


# ---- hogwild explain ------------------------------------------------------------------------------------------------


def test_explain_prints_every_chapter_whole_and_without_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for code, parts in explained().items():
        status, out, err = said_by("explain", code)
        assert (status, err) == (0, "")
        first, *rest = out.split("\n\n")
        assert first == f"{code}: {CODES[code]}"
        assert [part.partition("\n")[0] for part in rest] == [*parts][1:]
        assert "](" not in out
        for part, words in zip(rest, [*parts.values()][1:], strict=True):
            shown = part.partition("\n")[2].split()
            assert shown == re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words).split()
        assert all(len(line) <= 80 or " " not in line.strip() for line in out.splitlines()[1:])


def test_explain_lists_all_codes_or_those_of_a_group() -> None:
    def listed(*arguments: str) -> list[tuple[str, str]]:
        lines = said_by("explain", *arguments)[1].splitlines()
        return [(line.split()[0], " ".join(line.split()[1:])) for line in lines]

    assert dict(listed()) == CODES
    for area in AREAS:
        group = [one for one in CODES if one.startswith(f"{area}/")]
        if group:
            assert [code for code, _ in listed(area)] == [code for code, _ in listed(f"{area}/")] == group


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("config/unknown-kye", "'config/unknown-key'"),
        ("unknown-key", "'config/unknown-key'"),
        ("not-picklable", "'data/not-picklable' or 'model/not-picklable'"),
    ],
)
def test_explain_knows_the_nearest_code(asked: str, meant: str) -> None:
    status, out, err = said_by("explain", asked)
    assert (status, out) == (2, "")
    assert f"no error code '{asked}'; did you mean {meant}? (" in err
    assert "groups: checkpoint, cluster, config, data" in err


def test_explain_takes_the_code_as_a_job_file_error_prints_it() -> None:
    assert said_by("explain", "[config/empty]") == said_by("explain", "config/empty")


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_versions_are_those_that_are_installed(option: str) -> None:
    assert said_by(option) == (
        0,
        f"hogwild {hogwild.__version__}, torch {version('torch')}, Python {platform.python_version()}\n",
        "",
    )
