"""Learning-rate schedules in the job file. Torch-free; `training/lr_schedule.py` computes them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from hogwild.config.field_types import TAG, ClassPath, InitArgs, Section, Whole, rule

SCHEDULES = ("constant", "step", "linear", "cosine", "one_cycle")


class Schedule(Section):
    """Fields of all schedules."""

    warmup_updates: Whole = Field(default=0, ge=0, description="Updates of the linear warm-up to the full rate.")

    @property
    def options(self) -> dict[str, Any]:
        """Return the fields that only this schedule has."""
        return self.model_dump(exclude={"name", "warmup_updates"})


class ConstantSchedule(Schedule):
    """A constant rate."""

    name: Literal["constant"] = Field(default="constant", description="The default.")


class StepSchedule(Schedule):
    """Multiply the rate by `gamma` every `every_updates` updates."""

    name: Literal["step"] = Field(description="Like torch's StepLR.")
    every_updates: Whole = Field(ge=1, description="Length of a step, in updates of all workers.")
    gamma: float = Field(default=0.1, gt=0, description="Factor on the rate at each step.")


class LinearSchedule(Schedule):
    """A linear change of the factor from 1 to `final_factor` over the planned updates."""

    name: Literal["linear"] = Field(description="Like torch's LinearLR.")
    final_factor: float = Field(default=0.0, ge=0, description="Factor at the end.")


class CosineSchedule(Schedule):
    """A half cosine from 1 to `final_factor` over the planned updates."""

    name: Literal["cosine"] = Field(description="Like torch's CosineAnnealingLR.")
    final_factor: float = Field(default=0.0, ge=0, description="Factor at the end.")


class OneCycleSchedule(Schedule):
    """A rise to the full rate, then a fall."""

    name: Literal["one_cycle"] = Field(description="Like torch's OneCycleLR, without its momentum cycle.")
    peak_fraction: float = Field(default=0.3, gt=0, lt=1, description="Fraction of updates in which the rate rises.")


class OwnSchedule(Schedule):
    """Your own schedule: called with the number of updates of all workers, returns the factor."""

    name: ClassPath = Field(
        description="A function, or a class: built with init_args, then called.",
        json_schema_extra={"pattern": r"\."},  # otherwise `linear` matches twice, and editors refuse it
    )
    init_args: InitArgs = Field(default={}, description="Keyword arguments.")


class TorchSchedule(Schedule):
    """A scheduler of torch, stepped on a stand-in of the optimizer; `ReduceLROnPlateau` looks at `evaluate.monitor`."""

    class_path: ClassPath = Field(description="A class of torch.optim.lr_scheduler, or a subclass of its LRScheduler.")
    init_args: InitArgs = Field(default={}, description="Keyword arguments without the optimizer.")
    every: Literal["auto", "update", "epoch"] = Field(
        default="auto",
        description="What it counts; auto: epochs, for OneCycleLR and CyclicLR updates.",
    )

    @property
    def name(self) -> str:
        return self.class_path


def _name_of(value: Any) -> Any:
    if isinstance(value, Mapping) and "class_path" in value:
        return None
    return value.get("name", "constant") if isinstance(value, Mapping) else getattr(value, "name", "constant")


def _known(value: Any) -> Any:
    name = _name_of(value)
    if name is None:
        return value
    if not isinstance(name, str) or (name not in SCHEDULES and "." not in name):
        raise rule(f"must be one of {', '.join(SCHEDULES)}, or a class path", at="name", code="config/unknown-choice")
    return value


def _kind(value: Any) -> str:
    name = _name_of(value)
    if name is None or isinstance(value, TorchSchedule):
        return TAG + "torch"
    return TAG + (name if name in SCHEDULES else "own")


LrSchedule = Annotated[
    Annotated[ConstantSchedule, Tag(TAG + "constant")]
    | Annotated[StepSchedule, Tag(TAG + "step")]
    | Annotated[LinearSchedule, Tag(TAG + "linear")]
    | Annotated[CosineSchedule, Tag(TAG + "cosine")]
    | Annotated[OneCycleSchedule, Tag(TAG + "one_cycle")]
    | Annotated[OwnSchedule, Tag(TAG + "own")]
    | Annotated[TorchSchedule, Tag(TAG + "torch")],
    Discriminator(_kind),
    BeforeValidator(_known),
]
