"""The reference of the job file, docs/job-file.md, generated from its JSON Schema: every section, field, type, range,
default and reason. `hogwild schema --markdown` prints it; a test keeps the file up to date. Torch-free."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

HEAD = """# The job file

<!-- Generated: `hogwild schema --markdown > docs/job-file.md` writes it again. -->

A job is one YAML file: what is trained, on what, by what, for how long. A field that is left out has its default;
`hogwild show JOB.yaml` prints all of them, `hogwild check JOB.yaml` only says whether the file is right. Any field can
be changed on the command line, `hogwild train JOB.yaml train.epochs=3 optimizer.init_args.lr=0.02`; the order is
default < file < `key=value` < named flag. Nothing is converted unasked: `epochs: 3.0` and `epochs: "3"` are errors, and
so is a key that is not in these tables, with the nearest name that is.

`class_path` and `init_args`, wherever they stand, name any class or function that Python can import and the keyword
arguments it is called with. The folder of the job file leads `sys.path` in every process of the job, so `mymodel.Net`
is `mymodel.py` beside it ([Bring your own](bring-your-own.md)).

The first line below makes an editor check the file while it is written; `hogwild init TASK` puts it there, with the
schema beside the job file, and `hogwild schema > job.schema.json` writes that alone.
"""

# One for every section; together they are a valid job.
EXAMPLES: Mapping[str, str] = {
    "": """\
# yaml-language-server: $schema=./job.schema.json
version: 1
name: digits
seed: 1
model: {class_path: hogwild.models.Mlp, init_args: {features: 64, classes: 10}}
data: {train: {class_path: hogwild.data.Digits, init_args: {split: train}}}
""",
    "model": """\
model:
  class_path: hogwild.models.Mlp
  init_args: {features: 64, hidden: [128], classes: 10}
  freeze: ["layers.0.*"]          # a first layer that stays as it is
""",
    "loss": """\
loss: {class_path: torch.nn.CrossEntropyLoss, init_args: {label_smoothing: 0.1}}
""",
    "data": """\
data:
  train: {class_path: hogwild.data.Digits, init_args: {split: train}}
  val: {class_path: hogwild.data.Digits, init_args: {split: test}}     # or {fraction: 0.2}
  batch_size: 32
""",
    "optimizer": """\
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.001, weight_decay: 0.01}
  groups:
    - {params: ["*.bias"], init_args: {weight_decay: 0.0}}
""",
    "lr_schedule": """\
lr_schedule: {name: cosine, warmup_updates: 100}
""",
    "train": """\
train: {procs: 4, epochs: 10, max_time_s: 3600}
""",
    "evaluate": """\
evaluate:
  every_epochs: 2
  metrics: [accuracy, top3, macro_f1]
  monitor: macro_f1
  patience: 5
  target: {accuracy: 0.99}
""",
    "checkpoint": """\
checkpoint: {every_s: 30, keep: 5}
""",
    "supervise": """\
supervise: {stall_timeout_s: 20, spares: 1, on_nan: rollback}
""",
    "log": """\
log: {every_s: 0.5, tensorboard: false}
""",
}

# Notes that are too long for a field's line.
NOTES: Mapping[str, str] = {
    "data": "`val` is a data set of its own (`class_path`, `init_args`), a part of the training data (`fraction`), or "
    "nothing: then there are no metrics but the training loss.",
    "optimizer": "The keyword arguments are those of the torch class; its rate is `init_args.lr`. SGD without one gets "
    "0.01, not torch's 0.001.",
    "lr_schedule": "A factor on every group's own `lr`, which depends on the number of updates that all workers "
    "together have applied. `name` chooses one of these; each has only its own keys.",
    "evaluate": "`hogwild list metrics` says what each metric is. One of your own is the class path of a function of "
    "(outputs, targets), and `monitor` knows it by its last part.",
    "supervise": "These are about processes: what counts as dead, hung or hopeless, and what is done then. The "
    "defaults suit a job whose batches take less than a few seconds.",
}


def markdown(schema: Schema) -> str:
    """Return docs/job-file.md. `schema` is `config.json_schema()`."""
    properties = schema["properties"]
    plain = {name: field for name, field in properties.items() if not _targets(field)}
    sections = {name: _targets(field) for name, field in properties.items() if _targets(field)}
    parts = [HEAD, _example(""), "## Top level\n", _table(schema, plain, schema.get("required", ()))]
    links = ", ".join(f"[`{name}`](#{name})" for name in sections)
    parts.append(f"And the sections {links}, of which `model` and `data` must be there.\n")
    for name, targets in sections.items():
        parts += _section(schema, name, targets)
    return "\n".join(parts)


def _section(schema: Schema, name: str, targets: Sequence[str]) -> Iterator[str]:
    yield f"## {name}\n"
    if len(targets) == 1:
        yield f"{schema['$defs'][targets[0]]['description']}\n"
    if name in NOTES:
        yield f"{NOTES[name]}\n"
    yield _example(name)
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
    return "\n".join(["| field | takes | default | what it is, and why |", "|---|---|---|---|", *rows]) + "\n"


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
    return " or ".join("texts" if one.get("type") == "string" else "sections" for one in inner)


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
        return "must be given"
    return f"`{_value(field['default'])}`" if "default" in field else ""


def _value(value: Any) -> str:
    """Return the value as a job file writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _example(section: str) -> str:
    return f"```yaml\n{EXAMPLES[section]}```\n"
