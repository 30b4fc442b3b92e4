"""Messages for the schema's errors: the place, the value, the rule, and the nearest correct value."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import Tag, ValidationError
from pydantic_core import ErrorDetails

from hogwild.config.field_types import TAG, Section
from hogwild.config.rules import JobFinding, show
from hogwild.config.schema import Job
from hogwild.config.strict_yaml import Path
from hogwild.errors import did_you_mean

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
_ON = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_ELSEWHERE = {"lr": "optimizer.init_args.lr", "momentum": "optimizer.init_args.momentum"}


def schema_findings(error: ValidationError) -> Iterator[JobFinding]:
    """Yield pydantic's errors, in the order of the schema."""
    details = error.errors(include_url=False)
    meant = {(*_path(detail)[:-1], _nearest(detail)) for detail in details if _is_unknown(detail)}
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
        known, path = _allowed(detail), _path(detail)
        close = did_you_mean(path[-1], known) or _other_section(str(path[-1]), str(path[0]))
        return f"unknown key{close} (allowed: {', '.join(known)})"
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        return _one_of(_words_in(context["expected"]), value)
    if kind in _BOUNDS:
        key, sign = _BOUNDS[kind]
        return f"must be {sign} {context[key]:g}, got {show(value)}"
    if kind == "rule":
        return _own_rule(context, value)
    return f"{_TYPES.get(kind, detail['msg'])}, got {show(value)}{_what_to_write(kind, value)}"


def _own_rule(context: Mapping[str, Any], value: Any) -> str:
    at = context["at"]
    if at and isinstance(value, Mapping):
        value = value.get(at)
    words = [word.strip(",") for word in str(context["message"]).split()]
    close = did_you_mean(value, words) if isinstance(value, str) and len(value) > 2 else ""
    is_switch = isinstance(value, str) and "true" in words and value.lower() in _ON
    return f"{context['message']}, got {show(value)}{f'; write {_ON[value.lower()]}' if is_switch else close}"


def _one_of(allowed: list[str], value: Any) -> str:
    close = did_you_mean(value, allowed) if isinstance(value, str) else ""
    rule = f"must be one of {', '.join(allowed)}" if len(allowed) > 1 else f"must be {allowed[0]}"
    return f"{rule}, got {show(value)}{close}"


def _what_to_write(kind: str, value: Any) -> str:
    if kind == "bool_type" and isinstance(value, str) and value.lower() in _ON:
        return f"; write {_ON[value.lower()]}"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"[-+.0-9eE]+", value):
        return "; remove the quotes"
    if kind in ("model_type", "dict_type") and value is None:
        return "; write its keys below it, or remove it"
    return ""


def _words_in(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected)


def _nearest(detail: ErrorDetails) -> str:
    found = re.search(r"'(.*)'", did_you_mean(_path(detail)[-1], _allowed(detail)))
    return found[1] if found else ""


def _allowed(detail: ErrorDetails) -> list[str]:
    if detail["loc"][-1] == "[key]":
        return _words_in(detail["ctx"]["expected"])
    return list(_section_at(detail["loc"][:-1]).model_fields)


def _other_section(name: str, here: str) -> str:
    """Suggest the field of another section, written at the wrong level."""
    homes = [
        f"{section}.{name}"
        for section, field in Job.model_fields.items()
        for one in _members(field.annotation)
        if section != here and name in one[0].model_fields and name not in ("name", "class_path", "init_args")
    ]
    home = _ELSEWHERE.get(name) or (homes[0] if homes else "")
    return f"; did you mean '{home}'?" if home else ""


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
