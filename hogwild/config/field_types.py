"""Types of the job file's fields: numbers with their limits, class paths, sections. Torch-free."""

import math
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from hogwild.devices.kinds import accelerators
from hogwild.metrics import catalog

MAX_SECONDS = 1e9  # 30 years; the operating system's timers overflow somewhere beyond
MAX_WHOLE = 2**63 - 1  # the maximum of a word of shared memory
TAG = "tag:"  # prefix of pydantic's union tags in an error's location; they are no keys of the file


def rule(message: str, at: str = "", *, code: str) -> PydanticCustomError:
    """Return an error with our own message; the value is appended. `at`: a key below the validated one."""
    return PydanticCustomError("rule", "{message}", {"message": message, "at": at, "code": code})


def _fits(number: int) -> int:
    if abs(number) > MAX_WHOLE:
        raise rule("must fit into 64 bits", code="config/out-of-range")
    return number


def _class_path(text: str) -> str:
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise rule("must be a dotted path to a class or function, such as mymodel.Net", code="config/class-path")
    return text


def _file_name(text: str) -> str:
    if not text.strip() or len(text) > 100 or text[0] in ".-" or not text.isprintable() or set(text) & set("/\\"):
        raise rule(
            "must be usable as a folder name: 1 to 100 characters, no slash, no leading dot or dash",
            code="config/bad-name",
        )
    return text


def _plain(value: Any) -> Any:
    """Check that a YAML file can hold the value: a job is written to resolved.yaml and read back."""
    if isinstance(value, float) and not math.isfinite(value):
        raise rule("must hold finite numbers only", code="config/not-finite")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise rule(f"must have text or whole numbers as keys, not {key!r}", code="config/wrong-type")
            _plain(item)
    elif isinstance(value, list):
        for item in value:
            _plain(item)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise rule(f"must hold plain values only, not a {type(value).__name__}", code="config/wrong-type")
    return value


def _auto_or_whole(low: int, high: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and low <= value <= high):
            return value
        code = "config/out-of-range" if type(value) is int else "config/wrong-type"
        raise rule(f"must be auto or a whole number from {low} to {high}", code=code)

    return BeforeValidator(check)


def _auto_or_bool(value: Any) -> Any:
    if value == "auto" or isinstance(value, bool):
        return value
    raise rule("must be auto, true or false", code="config/wrong-type")


def _auto_or_seconds(value: Any) -> Any:
    """Check the time between two rounds of a cluster."""
    if value == "auto" or (type(value) in (int, float) and 0 < value <= MAX_SECONDS):
        return value if value == "auto" else float(value)
    raise rule("must be auto or a number of seconds above 0", code="config/wrong-type")


def _version(value: Any) -> Any:
    if value != 1 or type(value) is not int:
        raise rule("must be 1, the only version of the job file", code="config/unknown-choice")
    return value


def _metric_name(text: str) -> str:
    """Check the name under which a metric is reported: its own, or the last part of a class path."""
    if not text.isidentifier() and not catalog.RANKED.match(text):
        raise rule(
            "must be a metric's name, such as loss or accuracy (hogwild list metrics)", code="config/unknown-metric"
        )
    return text


def _metric(text: str) -> str:
    if catalog.is_own(text):
        return _class_path(text)
    if catalog.known(text) is None:
        raise rule(
            f"must be one of {', '.join(catalog.CATALOG)}, or the class path of your own function",
            code="config/unknown-metric",
        )
    return text


def _device(value: Any) -> Any:
    kind, colon, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    is_index = index.isascii() and index.isdigit() and len(index) <= 3
    if kind in accelerators() and (is_index if colon else True):
        return value
    if value in ("auto", "cpu"):
        return value
    raise rule("must be auto, cpu, cuda or cuda:N", code="config/unknown-choice")


def nbytes(value: str | int) -> int:
    """Return the bytes of a size such as `4 GiB` or `500 MB`. Raises pydantic's ValidationError."""
    return int(TypeAdapter(ByteSize).validate_python(value))


def _size(value: Any) -> Any:
    try:
        if type(value) in (int, str) and nbytes(value) > 0:
            return value
    except ValidationError:
        pass
    raise rule("must be a size, such as 4 GiB or 500 MB", code="config/wrong-type")


Whole = Annotated[int, AfterValidator(_fits)]
Size = Annotated[str | int, BeforeValidator(_size)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Procs = Annotated[Literal["auto"] | Annotated[int, Field(ge=0, le=1024)], _auto_or_whole(0, 1024)]
Threads = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], _auto_or_whole(1, 1024)]
Loaders = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=256)], _auto_or_whole(1, 256)]
Slots = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WHOLE)], _auto_or_whole(1, MAX_WHOLE)]
Device = Annotated[str, BeforeValidator(_device)]
Progress = Annotated[Literal["auto"] | bool, BeforeValidator(_auto_or_bool)]
Rounds = Annotated[Literal["auto"] | float, BeforeValidator(_auto_or_seconds)]
Version = Annotated[Literal[1], BeforeValidator(_version)]
FileName = Annotated[str, AfterValidator(_file_name)]
ClassPath = Annotated[str, AfterValidator(_class_path)]
MetricName = Annotated[str, AfterValidator(_metric_name)]
Metric = Annotated[str, AfterValidator(_metric)]
InitArgs = Annotated[dict[str, Any], AfterValidator(_plain)]


class Section(BaseModel):
    """One map of the job file: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Component(Section):
    """Any importable class or function and its keyword arguments."""

    class_path: ClassPath = Field(description="Import path; user code needs no registration.")
    init_args: InitArgs = Field(default={}, description="Keyword arguments, read as YAML 1.2.")
