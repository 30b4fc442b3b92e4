"""The section `lr_schedule`: one class for each schedule, so that each has only its own keys. Torch-free.

A factor on every group's lr, by the number of updates that all workers together have applied; `lr.py`
computes it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from hogwild.config_types import TAG, ClassPath, InitArgs, Section, Whole, rule

SCHEDULES = ("constant", "step", "linear", "cosine", "one_cycle")


class Schedule(Section):
    """What all schedules have."""

    warmup_updates: Whole = Field(default=0, ge=0, description="A straight line up to the full rate first.")

    @property
    def options(self) -> dict[str, Any]:
        """The schedule's own keys."""
        return self.model_dump(exclude={"name", "warmup_updates"})


class ConstantSchedule(Schedule):
    """The factor 1."""

    name: Literal["constant"] = Field(default="constant", description="No schedule unless one is asked for.")


class StepSchedule(Schedule):
    """Times `gamma` after every `every_updates` updates."""

    name: Literal["step"] = Field(description="As torch's StepLR.")
    every_updates: Whole = Field(ge=1, description="Length of a step, in updates of all workers.")
    gamma: float = Field(default=0.1, gt=0, description="What each step multiplies the rate by.")


class LinearSchedule(Schedule):
    """A straight line from 1 to `final_factor` over the planned updates."""

    name: Literal["linear"] = Field(description="As torch's LinearLR.")
    final_factor: float = Field(default=0.0, ge=0, description="The factor at the end.")


class CosineSchedule(Schedule):
    """Half a cosine from 1 to `final_factor` over the planned updates."""

    name: Literal["cosine"] = Field(description="As torch's CosineAnnealingLR.")
    final_factor: float = Field(default=0.0, ge=0, description="The factor at the end.")


class OneCycleSchedule(Schedule):
    """Up to the full rate and down again."""

    name: Literal["one_cycle"] = Field(description="As torch's OneCycleLR, without its momentum cycle.")
    peak_fraction: float = Field(default=0.3, gt=0, lt=1, description="The part of the updates that goes up.")


class OwnSchedule(Schedule):
    """A user's own: called with the global update count, answers the factor."""

    name: ClassPath = Field(
        description="A function, or a class that is built with init_args and then called.",
        json_schema_extra={"pattern": r"\."},  # or an editor would take `linear` for one, too, and refuse it
    )
    init_args: InitArgs = Field(default={}, description="Its keyword arguments.")

    @property
    def options(self) -> dict[str, Any]:
        return {"init_args": dict(self.init_args)}


def _name_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("name", "constant")
    return getattr(value, "name", "constant")


def _known(value: Any) -> Any:
    name = _name_of(value)
    if not isinstance(name, str) or (name not in SCHEDULES and "." not in name):
        raise rule(f"must be one of {', '.join(SCHEDULES)}, or a class path", at="name", code="config/unknown-choice")
    return value


def _kind(value: Any) -> str:
    name = _name_of(value)
    return TAG + (name if name in SCHEDULES else "own")


LrSchedule = Annotated[
    Annotated[ConstantSchedule, Tag(TAG + "constant")]
    | Annotated[StepSchedule, Tag(TAG + "step")]
    | Annotated[LinearSchedule, Tag(TAG + "linear")]
    | Annotated[CosineSchedule, Tag(TAG + "cosine")]
    | Annotated[OneCycleSchedule, Tag(TAG + "one_cycle")]
    | Annotated[OwnSchedule, Tag(TAG + "own")],
    Discriminator(_kind),
    BeforeValidator(_known),
]
