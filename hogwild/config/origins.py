"""Origin of each setting of a run: its job file, a change of it, or a default."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hogwild.config.load import load_job
from hogwild.config.strict_yaml import read as read_yaml
from hogwild.errors import ConfigError
from hogwild.formatting import flat

DEFAULT, JOB_FILE, OVERRIDE, CALL, UNKNOWN = "default", "job file", "override", "call", "not in the job file"


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One value. `key` has dots, e.g. train.procs; `origin` is one of DEFAULT to UNKNOWN."""

    key: str
    value: Any
    origin: str


def settings(resolved: Mapping[str, Any], text: str) -> list[ResolvedSetting]:
    """Return every field of a resolved job with its origin; `text`: of its job file. `override` covers changes on the
    command line and by a resume, and the numbers that `procs auto` measured."""
    written, meant = flat_values(text), _meant(text)
    return [ResolvedSetting(key, value, _origin(key, value, written, meant)) for key, value in resolved.items()]


def flat_values(text: str) -> Mapping[str, Any]:
    """Return a job file's text as dotted names with values, by its own rules (1e-3 is a number). Empty if it is not
    YAML."""
    try:
        values = read_yaml(text, "job").values
    except ConfigError:
        return {}
    return dict(flat(values)) if isinstance(values, Mapping) else {}


def _origin(key: str, value: Any, written: Mapping[str, Any], meant: Mapping[str, Any] | None) -> str:
    asked = written if meant is None else meant
    if key in asked and asked[key] != value:
        return OVERRIDE
    if key in written or any(name.startswith(f"{key}.") for name in written):
        return JOB_FILE
    if meant is None:
        return UNKNOWN
    return DEFAULT if key in meant else OVERRIDE


def _meant(text: str) -> Mapping[str, Any] | None:
    """Return every field of the job that the file alone describes; None if this version cannot read it."""
    try:
        return dict(flat(load_job(None, source_text=text).model_dump())) if text else None
    except ConfigError:
        return None
