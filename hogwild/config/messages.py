"""Messages for the schema's errors: the place, the value, the rule, and the nearest correct value."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, get_args, get_origin

from pydantic import Tag, ValidationError
from pydantic_core import ErrorDetails

from hogwild.config import synonyms, torch_arguments
from hogwild.config.field_types import TAG, Section
from hogwild.config.rules import JobFinding, show
from hogwild.config.schedules import SCHEDULES
from hogwild.config.schema import Job
from hogwild.config.strict_yaml import Path, dotted
from hogwild.errors import nearest
from hogwild.metrics import catalog

_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}
_TYPES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "too_short": "must have at least one entry",
    "dict_type": "must be a map of keys and values",
    "model_type": "must be a map of keys and values",
    "finite_number": "must be finite",
}
_CODES = {  # for errors other than unknown keys, types, bounds, and our own rules, which have their own codes
    "missing": "config/missing-key",
    "literal_error": "config/unknown-choice",
    "too_short": "config/out-of-range",
    "too_long": "config/out-of-range",
    "finite_number": "config/not-finite",
}
_OPTIONS = ("resume", "run_dir", "data_dir", "profile", "dry_run", "no_progress")


def schema_findings(error: ValidationError) -> Iterator[JobFinding]:
    """Yield pydantic's errors, in the order of the schema."""
    details = error.errors(include_url=False)
    meant = {path for detail in details if _is_unknown(detail) for path in _meant(detail)}
    for detail in details:
        path = _path(detail)
        if detail["type"] == "missing" and path in meant:
            continue  # the misspelt key was reported, with this one as the suggestion
        yield JobFinding(path, _detail_text(detail), _is_unknown(detail), _code(detail))


def _path(detail: ErrorDetails) -> Path:
    """Return the keys in the file: pydantic adds the tags of unions, and '[key]'."""
    path = tuple(part for part in detail["loc"] if part != "[key]" and not str(part).startswith(TAG))
    at = detail.get("ctx", {}).get("at")
    return (*path, at) if at else path


def _is_unknown(detail: ErrorDetails) -> bool:
    return detail["type"] == "extra_forbidden" or detail["loc"][-1] == "[key]"


def _code(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if _is_unknown(detail):
        return "config/unknown-key"
    if kind == "rule":
        return str(detail["ctx"]["code"])
    return _CODES.get(kind, "config/out-of-range" if kind in _BOUNDS else "config/wrong-type")


def _detail_text(detail: ErrorDetails) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if _is_unknown(detail):
        return f"unknown key{_instead(detail)} (allowed: {', '.join(_allowed(detail))})"
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        return _one_of(_words_in(context["expected"]), value)
    if kind in _BOUNDS:
        key, sign = _BOUNDS[kind]
        return f"must be {sign} {context[key]:g}, got {show(value)}"
    if kind == "rule":
        return _own_rule(context, value, _path(detail))
    return f"{_TYPES.get(kind, detail['msg'])}, got {show(value)}{_what_to_write(detail)}"


def _own_rule(context: Mapping[str, Any], value: Any, path: Path) -> str:
    at = context["at"]
    if at and isinstance(value, Mapping):
        value = value.get(at)
    paths = synonyms.class_paths(str(path[0]), str(value)) if path[-1] == "class_path" else []
    words = [word.strip(",") for word in str(context["message"]).split() if len(word) > 2]  # no `a`, no `or`
    close = f"; write {' or '.join(paths)}" if paths else synonyms.close_word(value, words)
    return f"{context['message']}, got {show(value)}{close}"


def _one_of(allowed: list[str], value: Any) -> str:
    close = synonyms.close_word(value, allowed)
    if allowed == ["auto"] and isinstance(value, str) and catalog.known(value):
        close = f"; for a list write [{value}]"
    rule = f"must be one of {', '.join(allowed)}" if len(allowed) > 1 else f"must be {allowed[0]}"
    return f"{rule}, got {show(value)}{close}"


def _what_to_write(detail: ErrorDetails) -> str:
    """Return what to write instead, also for a section of which only the class, the name or the fraction was given."""
    kind, value, path = detail["type"], detail["input"], _path(detail)
    if kind == "bool_type":
        return synonyms.close_word(value, ["true", "false"])
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"[-+.0-9eE]+", value):
        return "; remove the quotes"
    if kind == "list_type" and isinstance(value, str | int | float):
        return f"; write [{value}]"
    if kind in ("model_type", "dict_type") and value is None:
        return "; write its keys below it, or remove it"
    if path == ("data", "val") and isinstance(value, float) and 0 < value < 1:
        return f"; write {{fraction: {value}}}"
    if kind != "model_type" or not isinstance(value, str):
        return ""
    if match := re.fullmatch(r"(\w+):(\S+)", value):
        return f"; a space is missing after the colon: {match[1]}: {match[2]}"
    fields = _section_at(detail["loc"]).model_fields
    if "class_path" in fields:
        found = [value] if "." in value else synonyms.class_paths(str(path[0]), value)
        return "; write " + " or ".join(f"{{class_path: {one}}}" for one in found) if found else ""
    return f"; write {{name: {synonyms.word_for(value, SCHEDULES) or value}}}" if "name" in fields else ""


def _words_in(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected)


def _instead(detail: ErrorDetails) -> str:
    """Return the nearest key of this section, or the field of another one that is meant."""
    here, key = _path(detail)[:-1], _path(detail)[-1]
    if key in _OPTIONS:
        return f"; it is an option of the command line: --{str(key).replace('_', '-')}"
    if meant := _meant(detail):
        shown = [f"'{path[-1] if path[:-1] == here else dotted(path)}'" for path in meant]
        return f"; did you mean {' or '.join(shown)}?"
    if "init_args" in _allowed(detail):
        return f"; an argument of the class is written below init_args: {dotted((*here, 'init_args', key))}"
    return ""


def _meant(detail: ErrorDetails) -> list[Path]:
    """Return the fields that an unknown key may mean: by another word, or almost their own name, here; by their own
    name or another word elsewhere; then similar ones, here before elsewhere."""
    path, allowed = _path(detail), _allowed(detail)
    here, key = path[:-1], str(path[-1])
    if own := synonyms.meanings(key, allowed) or nearest(key, allowed, most=1, cutoff=0.8):
        return [(*here, own[0])]
    if elsewhere := [one for one in homes(key) if one != path]:  # it is another lr_schedule's
        return [one for one in elsewhere if one[:-1] == here] or elsewhere
    if close := nearest(key, allowed, most=1, cutoff=0.65):
        return [(*here, close[0])]
    close = nearest(key, _fields_by_name(), most=1, cutoff=0.8)
    return [one for one in homes(close[0]) if one != path] if close else []


def homes(name: str) -> list[Path]:
    """Return the fields of a job that someone who wrote `name` may mean: by their whole or their last name, or by
    another word."""
    name = name.replace("-", "_").lower()
    if ".init_args." in name:
        return [tuple(name.split("."))]
    fields = _fields_by_name()
    return fields.get(name) or [fields[one][0] for one in synonyms.meanings(name, fields)]


@cache
def _fields_by_name() -> dict[str, list[Path]]:
    """Return the paths of all fields by whole and by last name, except fields that any section has and those in lists;
    with the arguments of torch's optimizers and losses that have no field's name."""
    found: dict[str, list[Path]] = {}
    for path in dict.fromkeys(_fields_of(Job, ())):
        if path[-1] not in ("name", "class_path", "init_args", "version"):
            for name in {dotted(path), str(path[-1])}:
                found.setdefault(name, []).append(path)
    for section, table in (("optimizer", torch_arguments.OPTIMIZERS), ("loss", torch_arguments.LOSSES)):
        for name in chain(*(arguments or () for arguments in table.values())):
            path = (section, "init_args", name)
            found.setdefault(dotted(path), found.setdefault(name, [path]))
    return found


def _fields_of(section: type[Section], above: Path) -> Iterator[Path]:
    for name, field in section.model_fields.items():
        yield (*above, name)
        for inner, _ in _members(field.annotation) if get_origin(field.annotation) is not list else ():
            yield from _fields_of(inner, (*above, name))


def _allowed(detail: ErrorDetails) -> list[str]:
    if detail["loc"][-1] == "[key]":
        return _words_in(detail["ctx"]["expected"])
    return list(_section_at(detail["loc"][:-1]).model_fields)


def _section_at(location: tuple[int | str, ...]) -> type[Section]:
    """Return the section of the schema at pydantic's location, which includes tags."""
    here: type[Section] = Job
    options: list[tuple[type[Section], str]] = []
    for part in location:
        if isinstance(part, int):  # index of a list: all entries have the same type
            continue
        if str(part).startswith(TAG):
            here = next(section for section, tag in options if tag == part)
        else:
            options = list(_members(here.model_fields[str(part)].annotation))
            here = options[0][0]
    return here


def _members(annotation: Any, tag: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yield the sections a field may hold, each with its union tag."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, tag
        return
    tags = [one.tag for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Tag)]
    for argument in get_args(annotation):
        yield from _members(argument, tags[0] if tags else tag)
