"""The names that users and job files may use: `hogwild.train` and its like, and one level below a public package.
Nothing that ships, and no guide, reaches deeper, so that files can move without breaking a job."""

import importlib
import re
from pathlib import Path

import pytest

import hogwild
import hogwild.models
from hogwild.api import path_of
from hogwild.config.rules import findings

HOME = Path(__file__).resolve().parents[1]
PACKAGES = ("data", "estimator", "kernels", "losses", "metrics", "models", "optimizers")
INTERNAL = {"architecture.md", "failures.md", "findings.md", "testing.md"}  # about the code, for those who change it
NAME = re.compile(r"(?<![\w./@-])hogwild\.([a-z_]+|[A-Z]\w+)((?:\.\w+)*)")
IMPORT = re.compile(r"^\s*from hogwild((?:\.\w+)*) import ([\w, ]+)", re.MULTILINE)


def shipped() -> list[Path]:
    texts = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
    texts += [file for folder in ("configs", "examples") for file in sorted((HOME / folder).rglob("*"))]
    return [file for file in texts if file.suffix in (".md", ".py", ".yaml") and file.name not in INTERNAL]


def names_in(text: str) -> set[str]:
    """Dotted names below hogwild, those of import statements too."""
    found = {first + rest for first, rest in NAME.findall(text) if rest or hasattr(hogwild, first)}
    for package, names in IMPORT.findall(text):
        found |= {f"{package}.{name.strip()}".lstrip(".") for name in names.split(",")}
    return {name for name in found if name not in PACKAGES}


@pytest.mark.parametrize("file", shipped(), ids=lambda file: str(file.relative_to(HOME)))
def test_what_ships_names_only_what_is_public(file: Path) -> None:
    assert {name for name in names_in(file.read_text()) if not is_public(name)} == set()


def is_public(name: str) -> bool:
    package, _, attribute = name.rpartition(".")
    if not package:
        return name in hogwild.__all__ or name == "__main__"
    if package not in PACKAGES:
        return name == "__main__.main"  # how `python -m hogwild` starts
    public = importlib.import_module(f"hogwild.{package}")
    return attribute in getattr(public, "__all__", vars(public)) and hasattr(public, attribute)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_had_and_is_a_class_or_a_function(package: str) -> None:
    public = importlib.import_module(f"hogwild.{package}")
    names = [name for name in public.__all__ if name != "CATALOG"]
    assert names and all(callable(getattr(public, name)) for name in names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("class_path: hogwild.models.skipgram.NegativeSampling", {"models.skipgram.NegativeSampling"}),
        ("from hogwild.kernels.fused import Tally", {"kernels.fused", "kernels.fused.Tally"}),
        ("hogwild.train(model) and hogwild.data.Digits", {"train", "data.Digits"}),
    ],
)
def test_the_search_finds_deep_names(text: str, names: set[str]) -> None:
    assert names_in(text) == names


@pytest.mark.parametrize("path", ["hogwild.models.LeNet", "hogwild.data.Digits", "hogwild.losses.BprLoss"])
def test_a_library_call_records_the_public_path_of_a_class(path: str) -> None:
    face, _, name = path.rpartition(".")
    assert path_of(getattr(importlib.import_module(face), name)) == path


def test_a_library_call_records_a_method_of_a_built_in_object() -> None:
    """It has no module."""
    assert path_of([].append).endswith("append")


def test_a_class_that_no_job_file_can_name_is_recorded_by_its_file() -> None:
    """The rules refuse what the package's catalogue does not list, and a library call may train it all the same."""
    path = path_of(hogwild.models.CustomLstm(2, 3))
    assert path == "hogwild.models.char_rnn.CustomLstm"
    assert not [*findings({"model": {"class_path": path}})]
