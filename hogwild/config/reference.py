"""The reference of the job file, docs/job-file.md: the text of job-file.md beside this module, and the tables of the
JSON Schema. `hogwild schema --markdown` prints it; a test keeps docs/job-file.md up to date. Torch-free."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]

TEXT = Path(__file__).with_name("job-file.md")  # its examples, one for every section, are together a valid job


def markdown(schema: Schema) -> str:
    """Return docs/job-file.md. `schema` is `config.json_schema()`."""
    properties = schema["properties"]
    plain = {name: field for name, field in properties.items() if not _targets(field)}
    sections = {name: _targets(field) for name, field in properties.items() if _targets(field)}
    links = ", ".join(f"[`{name}`](#{name})" for name in sections)
    parts = {
        "fields of the job": f"## Top level\n\n{_table(schema, plain, schema.get('required', ()))}\n"
        f"The sections are {links}; `model` and `data` are required.\n"
    }
    for name, targets in sections.items():
        parts[f"description of {name}"] = f"{schema['$defs'][targets[0]]['description']}\n"
        parts[f"fields of {name}"] = "\n".join(_fields(schema, name, targets))
    return re.sub(r"^<([\w ]+)>\n", lambda place: parts[place[1]], TEXT.read_text("utf-8"), flags=re.MULTILINE)


def _fields(schema: Schema, name: str, targets: Sequence[str]) -> Iterator[str]:
    for target in targets:
        found = schema["$defs"][target]
        if len(targets) > 1:
            yield f"### {name}: {found['properties']['name'].get('const', 'a class path')}\n"
            yield f"{found['description']}\n"
        yield _table(schema, found["properties"], found.get("required", ()))
        for key, field in found["properties"].items():
            yield from _below(schema, f"{name}.{key}", field)


def _below(schema: Schema, path: str, field: Schema) -> Iterator[str]:
    """Yield the sections inside a section, such as an item of `optimizer.groups`. Leaves out a class path with its
    arguments, which is explained once."""
    for target in _targets(field):
        if target != "Component":
            found = schema["$defs"][target]
            is_item = "items" in field
            yield f"### {'an item of ' if is_item else ''}{path}\n\n{found['description']}\n"
            yield _table(schema, found["properties"], found.get("required", ()))


def _table(schema: Schema, fields: Mapping[str, Schema], required: Sequence[str]) -> str:
    rows = [
        f"| `{name}` | {_type(field)} | {_default(field, name in required)} | {_cell(field.get('description', ''))} |"
        for name, field in fields.items()
    ]
    return "\n".join(["| field | type | default | description |", "|---|---|---|---|", *rows]) + "\n"


def _targets(field: Schema) -> list[str]:
    """Return the names of the sections that a field may be."""
    if "$ref" in field:
        return [field["$ref"].rpartition("/")[2]]
    inner = [*field.get("anyOf", ()), *field.get("oneOf", ()), *([field["items"]] if "items" in field else ())]
    return [target for one in inner for target in _targets(one)]


def _type(field: Schema) -> str:
    for words in ("anyOf", "oneOf"):
        if words in field:
            return " or ".join(_type(one) for one in field[words])
    if "$ref" in field:
        return {"Component": "`{class_path, init_args}`", "Split": "`{fraction}`"}.get(_targets(field)[0], "a section")
    if "const" in field:
        return f"`{_value(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        most = f", {field['maxItems']} at most" if "maxItems" in field else ""
        return f"list of {_items(field['items'])}{most}"
    if field["type"] == "object":
        return "map of numbers" if isinstance(field["additionalProperties"], dict) else "map"
    return _range(field)


def _items(field: Schema) -> str:
    """Return the plural name of a list's items."""
    inner = field.get("anyOf") or field.get("oneOf") or [field]
    plural = {"string": "texts", "integer": "whole numbers", "number": "numbers"}
    return " or ".join(plural.get(one.get("type", ""), "sections") for one in inner)


WORDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "null": "`null`",
}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _range(field: Schema) -> str:
    if "minimum" in field and "maximum" in field:
        return f"{WORDS[field['type']]} from {field['minimum']:,} to {field['maximum']:,}"
    bounds = [f"{sign} {field[word]:,.10g}" for word, sign in BOUNDS.items() if word in field]
    return f"{WORDS[field['type']]} {', '.join(bounds)}".rstrip()


def _default(field: Schema, is_required: bool) -> str:
    if is_required:
        return "required"
    return f"`{_value(field['default'])}`" if "default" in field else ""


def _value(value: Any) -> str:
    """Return the value as a job file writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
