"""Public names: what ships uses no others, every one can be had; and the keywords of `hogwild.train` are the job file's
fields, by name, type and default."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import hogwild
import hogwild.models
from hogwild.api import OF_OBJECTS, SECTIONS, WHOLE, Keywords, path_of, train
from hogwild.config.rules import findings
from hogwild.config.schema import Data, Job, Section, Train

HOME = Path(__file__).resolve().parents[1]
PACKAGES = ("data", "estimator", "kernels", "losses", "metrics", "models", "nn", "optimizers")
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


TYPES = get_type_hints(Keywords)
FUNCTIONS = ("transform", "collate")  # or a section


def fields_of(section: type[Section], *names: str) -> dict[str, Any]:
    """Field name -> its type, without the rules that pydantic reads."""
    kinds = get_type_hints(section)
    return {name: kinds[name] for name in names or section.model_fields}


FLAT = fields_of(Train) | {name: kind for name, kind in fields_of(Data).items() if name not in ("train", "val")}


def test_every_field_is_a_keyword_and_every_keyword_a_field_or_an_object() -> None:
    assert set(TYPES) == {*FLAT, *SECTIONS, *WHOLE, "dataset"}


@pytest.mark.parametrize("name", [*FLAT, "name", "seed"])
def test_a_keyword_has_the_type_of_its_field(name: str) -> None:
    kind = (FLAT | fields_of(Job, "name", "seed"))[name]
    if name == "padding":
        assert TYPES[name] == Mapping[str, Any] | None
    elif name == "sampler":
        assert TYPES[name] == Iterable[Any] | Mapping[str, Any] | None
    elif name in FUNCTIONS:
        assert TYPES[name] == Callable[..., Any] | Mapping[str, Any] | None
    else:
        assert TYPES[name] == kind


def test_help_shows_every_keyword_with_the_schemas_default() -> None:
    shown = inspect.signature(train).parameters
    assert set(TYPES) <= set(shown)
    assert not any(one.kind is one.VAR_KEYWORD for one in shown.values())
    assert shown["epochs"].default == Train().epochs and shown["procs"].default == Train().procs == "auto"
    assert shown["batch_size"].default == Data.model_fields["batch_size"].default
    assert {name for name, one in shown.items() if one.default is one.empty} == {*OF_OBJECTS, "dataset"}


def test_the_packages_names_are_listed_before_they_are_loaded() -> None:
    assert set(hogwild.__all__) <= set(dir(hogwild))
