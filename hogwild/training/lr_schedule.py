"""Learning-rate schedules as pure functions of the job's global update count.

A factor multiplies each parameter group's own lr. It depends on the number of updates that all workers together have
applied, never on one worker's own count, which would be N times too small with N workers. `schedule_factor` returns
None if the factor is always 1, so that the hot loop does nothing. torch-free.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from hogwild.errors import ClassPathError, UsageError, UserCodeError

Factor: TypeAlias = Callable[[int], float]


class ScheduleConfig(Protocol):
    """The section `lr_schedule` of a job file."""

    @property
    def name(self) -> str: ...  # constant, step, linear, cosine, one_cycle, or a class path

    @property
    def warmup_updates(self) -> int: ...

    @property
    def options(self) -> Mapping[str, Any]: ...  # the schedule's own keys; init_args for a class path


def schedule_factor(config: ScheduleConfig, planned_updates: int, own: Factor | None = None) -> Factor | None:
    """Return the function update (updates already applied, from 0) -> factor; None for constant without warm-up.

    The curve of a named schedule begins when the warm-up ends and is stretched over the rest of `planned_updates`, and
    stays constant afterwards. A user's function, `own` or the one of the class path, is called with the global update
    count as it is. The result can be pickled. Raises UsageError for options that do not fit, ClassPathError for a path
    that cannot be imported.
    """
    warmup = config.warmup_updates
    length = max(planned_updates - warmup, 1)
    is_torch = own is None and is_of_torch(config)  # steps the groups' own rates (`torch_schedule.py`)
    if (config.name == "constant" or is_torch) and not warmup:
        return None
    if is_torch:
        return partial(_warmed_up, Constant(length), warmup, 0)
    is_named = config.name in NAMED
    curve = _named(config, length) if is_named else own or own_factor(config)
    return partial(_warmed_up, curve, warmup, warmup if is_named else 0) if warmup else curve


def _warmed_up(curve: Factor, updates: int, offset: int, update: int) -> float:
    """Return a linear ramp up to the curve's own value in `updates` steps, (u + 1) / updates; then the curve, which
    gets update - `offset`."""
    ramp = min((update + 1) / updates, 1.0)
    return ramp * curve(max(update - offset, 0))


@dataclass(frozen=True, slots=True)
class Constant:
    length: int

    def __call__(self, update: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """Multiplies by `gamma` after every `every_updates` updates (torch's StepLR)."""

    length: int
    every_updates: int
    gamma: float = 0.1

    def __call__(self, update: int) -> float:
        return float(self.gamma ** (update // self.every_updates))


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line from 1 to `final_factor` (torch's LinearLR)."""

    length: int
    final_factor: float = 0.0

    def __call__(self, update: int) -> float:
        return _between(1.0, self.final_factor, min(update / self.length, 1.0))


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from 1 to `final_factor` (torch's CosineAnnealingLR; Loshchilov and Hutter 2017)."""

    length: int
    final_factor: float = 0.0

    def __call__(self, update: int) -> float:
        return _between(1.0, self.final_factor, _half_cosine(update / self.length))


@dataclass(frozen=True, slots=True)
class OneCycle:
    """From 1/25 up to 1 during the first `peak_fraction` of the updates, then down to 1/250,000: the group's own lr is
    the peak (torch's OneCycleLR with its defaults and no momentum cycle; Smith and Topin 2018)."""

    length: int
    peak_fraction: float = 0.3

    def __call__(self, update: int) -> float:
        start, end = 1 / 25, 1 / 25 / 1e4
        peak = max(self.peak_fraction * self.length - 1, 0.0)
        if update < peak:
            return _between(start, 1.0, _half_cosine(update / peak))
        return _between(1.0, end, _half_cosine((update - peak) / max(self.length - 1 - peak, 1.0)))


def halved(curve: Factor | None, rollbacks: int) -> Factor | None:
    """Return the schedule after that many rollbacks (`supervise.on_nan: rollback`), halved each time: the same rate
    would fail again."""
    return partial(_times, curve, 0.5**rollbacks) if rollbacks else curve


def _times(curve: Factor | None, factor: float, update: int) -> float:
    return factor * (1.0 if curve is None else curve(update))


NAMED: dict[str, Callable[..., Factor]] = {
    "constant": Constant,
    "step": Step,
    "linear": Linear,
    "cosine": Cosine,
    "one_cycle": OneCycle,
}


def _named(config: ScheduleConfig, length: int) -> Factor:
    try:
        return NAMED[config.name](length, **config.options)
    except TypeError as error:
        words = f"lr_schedule: {config.name}: cannot be built with {dict(config.options)}: {error}"
        raise UsageError(words, code="config/lr-schedule") from error


def is_of_torch(config: ScheduleConfig) -> bool:
    """Return whether the section names a scheduler of torch rather than a function of the number of updates. A path
    that cannot be imported is that of a caller's scheduler, or an error of those who build it."""
    if not hasattr(config, "class_path"):
        return False
    from hogwild.user_code import resolve

    try:
        kinds = getattr(resolve(config.name), "__mro__", ())
    except ClassPathError:
        return True
    return ("torch.optim.lr_scheduler", "LRScheduler") in [(kind.__module__, kind.__name__) for kind in kinds]


def own_factor(config: ScheduleConfig, given: Any = None) -> Factor:
    """Return the user's function that the section names, or that the caller gave: a class is built. Raises UsageError,
    ClassPathError and what the class raises."""
    from hogwild.user_code import resolve  # imported here: only a class path needs it

    options = config.options
    if options.get("every", "auto") != "auto":
        words = f"must be auto for a function of the number of updates, got {options['every']!r}"
        raise UsageError(f"lr_schedule.every: {words}", code="config/lr-schedule")
    init_args = dict(options.get("init_args") or {})
    found = resolve(config.name) if given is None else given
    if isinstance(found, type):
        schedule = found(**init_args)
    else:
        schedule = partial(found, **init_args) if init_args else found
    if not callable(schedule):
        words = f"lr_schedule: {config.name}: must be callable with an update count, got {schedule!r}"
        raise UsageError(words, code="config/lr-schedule")
    return partial(_checked, config.name, schedule)


def _checked(name: str, schedule: Callable[[int], Any], update: int) -> float:
    """Return a user's factor, checked: a NaN would spread into every parameter."""
    factor = float(schedule(update))
    if not (math.isfinite(factor) and factor >= 0):
        words = f"lr_schedule {name}: update {update}: must be a finite factor >= 0, got {factor}"
        raise UserCodeError(words, code="train/lr-factor")
    return factor


def _between(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


def _half_cosine(part: float) -> float:
    """Return 0 to 1 as `part` goes from 0 to 1, and 1 from there on."""
    return (1 - math.cos(math.pi * min(part, 1.0))) / 2
