"""The keywords of `hogwild.train`: the job file's fields, by name, type and default."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import pytest

import hogwild
from hogwild.api import OF_OBJECTS, SECTIONS, WHOLE, Keywords, train
from hogwild.config.schema import Data, Job, Section, Train

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
