"""torch's learning-rate schedulers in a job: the real scheduler, stepped on a stand-in of the job's optimizer.

    after each update      OneCycleLR, CyclicLR, and others with `every: update`    by the job's count of updates
    after each epoch       all others                                              by the epoch of the batch
    after an evaluation    ReduceLROnPlateau                                       by the supervisor, with the metric

Except in the last case the settings of a group depend on the number of steps alone. So every worker, and a resumed job,
computes the same ones by itself."""

import copy
import math
import pickle
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from hogwild import by_value
from hogwild.errors import UsageError, UserCodeError
from hogwild.user_code import raised_text, resolve

Unit = Literal["update", "epoch", "evaluation"]
Settings = tuple[dict[str, Any], ...]  # of each group: those that a scheduler may change
CHANGED = ("lr", "momentum", "betas")
OF_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")


class StandIn(torch.optim.Optimizer):
    """The groups of an optimizer without its parameters; its `step` does nothing."""

    _opt_called = True  # else a scheduler warns that it was stepped before the optimizer

    def __init__(self, optimizer: torch.optim.Optimizer, *, is_new: bool) -> None:
        """`is_new`: leave out what another scheduler has put into the groups."""
        left_out = {"params", *(OF_SCHEDULERS if is_new else ())}
        groups = [{key: one for key, one in group.items() if key not in left_out} for group in optimizer.param_groups]
        for group in groups:
            group |= {"params": [torch.zeros(())], "lr": float(group["lr"])}
        super().__init__(groups, dict(optimizer.defaults))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


StandIn.step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a scheduler need not wrap it


class SteppedScheduler:
    """One scheduler over a stand-in. Can be pickled; the copy begins where this one began."""

    def __init__(self, scheduler: Any, unit: Unit, name: str) -> None:
        self.unit, self.name = unit, name
        self._start: bytes = by_value.dumps(scheduler)
        self._scheduler: Any = None
        self._steps = 0

    @classmethod
    def build(
        cls,
        class_path: str,
        init_args: Mapping[str, Any],
        optimizer: torch.optim.Optimizer,
        every: str = "auto",
        given: Any = None,
    ) -> "SteppedScheduler":
        """Build a class, or what the caller gave for it, over a stand-in of `optimizer`. Raises UsageError,
        ClassPathError."""
        kind, stand_in = resolve(class_path) if given is None else given, StandIn(optimizer, is_new=True)
        try:
            return cls._of(_made(kind, init_args, stand_in), every)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UsageError(
                f"lr_schedule: {class_path} cannot be built with {dict(init_args)}: {raised_text(error)}",
                code="config/lr-schedule",
            ) from error

    @classmethod
    def copy_of(
        cls, scheduler: LRScheduler, optimizer: torch.optim.Optimizer, every: str = "auto"
    ) -> "SteppedScheduler":
        """Copy the caller's scheduler of `optimizer`, from where it is now. Raises UsageError."""
        if scheduler.optimizer is not optimizer:
            raise UsageError(
                f"lr_schedule={type(scheduler).__name__}(…) is of another optimizer than the one that trains; build it "
                "with the optimizer that you pass",
                code="config/lr-schedule",
            )
        memo = {id(optimizer): StandIn(optimizer, is_new=False)}
        copied = type(scheduler).__new__(type(scheduler))
        vars(copied).update(copy.deepcopy(vars(scheduler), memo))
        return cls._of(copied, every)

    @classmethod
    def _of(cls, scheduler: Any, every: str) -> "SteppedScheduler":
        name = type(scheduler).__name__
        usual: Unit = "epoch"
        if isinstance(scheduler, ReduceLROnPlateau):
            usual = "evaluation"
            if every != "auto":
                words = f"must be auto for {name}, which is stepped after each evaluation, got {every!r}"
                raise UsageError(f"lr_schedule.every: {words}", code="config/lr-schedule")
        elif isinstance(scheduler, OneCycleLR | CyclicLR):
            usual = "update"
        return cls(scheduler, usual if every == "auto" else every, name)  # type: ignore[arg-type]

    def __getstate__(self) -> tuple[bytes, Unit, str]:
        return self._start, self.unit, self.name

    def __setstate__(self, state: tuple[bytes, Unit, str]) -> None:
        self._start, self.unit, self.name = state
        self._scheduler, self._steps = None, 0

    def steps_at(self, updates: int, epoch: int) -> int:
        """Return the number of steps made before the update that follows `updates` of the job, in `epoch`."""
        return updates if self.unit == "update" else epoch

    def after(self, steps: int) -> Settings:
        """Return the settings after so many steps. Raises UserCodeError."""
        if self._scheduler is None or steps < self._steps:
            self._scheduler, self._steps = pickle.loads(self._start), 0  # written above
        while self._steps < steps:
            self._step()
            self._steps += 1
        return self._settings()

    def look(self, value: float, rates: Sequence[float]) -> Settings:
        """Step after an evaluation with the monitored `value`; `rates` are those of the groups now."""
        self.after(self._steps)
        for group, rate in zip(self._scheduler.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._step(value)
        return self._settings()

    def state(self) -> dict[str, Any]:
        """Return the scheduler's own state, after the calls of `look`, for a checkpoint."""
        self.after(self._steps)
        return dict(self._scheduler.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        self.after(0)
        self._scheduler.load_state_dict(dict(state))

    def check_length(self, updates: int, epochs: int) -> None:
        """Check that a scheduler of a fixed length lasts as long as the job. Raises UsageError."""
        total = getattr(pickle.loads(self._start), "total_steps", None)
        steps = self.steps_at(updates, epochs) - 1  # the last update needs no step after it
        if total is not None and steps > total:
            raise UsageError(
                f"lr_schedule: {self.name} ends after total_steps={total}, but the job makes {steps + 1:,} steps (one "
                f"after each {self.unit}); set total_steps to {steps + 1}, or train for less",
                code="config/lr-schedule",
            )

    def _step(self, *value: float) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # schedulers of schedulers use what torch deprecates
                self._scheduler.step(*value)
        except Exception as error:
            words = f"lr_schedule {self.name}: step {self._steps + 1} failed: {raised_text(error)}"
            raise UserCodeError(words, code="train/lr-factor") from error

    def _settings(self) -> Settings:
        found: Settings = tuple(
            {key: group[key] for key in CHANGED if key in group} for group in self._scheduler.optimizer.param_groups
        )
        for number, group in enumerate(found):
            group["lr"] = float(group["lr"])
            if not (math.isfinite(group["lr"]) and group["lr"] >= 0):
                words = f"lr_schedule {self.name}: step {self._steps}: the lr of group {number} is {group['lr']}"
                raise UserCodeError(f"{words}; it must be finite and >= 0", code="train/lr-factor")
        return found


def is_scheduler(given: Any) -> bool:
    """Return whether it is a scheduler of torch, its class, or a partial of that."""
    kind = given.func if isinstance(given, partial) else given
    return isinstance(kind, LRScheduler) or (isinstance(kind, type) and issubclass(kind, LRScheduler))


def _made(kind: Any, init_args: Mapping[str, Any], stand_in: StandIn) -> Any:
    """Build a scheduler; those of schedulers from class paths, functions from theirs."""
    given = dict(init_args)
    if isinstance(given.get("schedulers"), list):
        given["schedulers"] = [
            _made(resolve(one["class_path"]), one.get("init_args", {}), stand_in) if isinstance(one, Mapping) else one
            for one in given["schedulers"]
        ]
    for name in ("lr_lambda", "scale_fn"):
        if name in given:
            listed = given[name] if isinstance(given[name], list) else [given[name]]
            found = [resolve(one) if isinstance(one, str) else one for one in listed]
            given[name] = found if isinstance(given[name], list) else found[0]
    if "schedulers" in given and kind.__name__ == "ChainedScheduler":
        return kind(**given)
    return kind(stand_in, **given)
