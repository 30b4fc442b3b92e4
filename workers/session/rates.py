"""The rates of the optimizer's groups while a job trains: changed by ReduceLROnPlateau after an evaluation, or by the
caller, who holds the optimizer and assigns to its groups, for instance in a callback.

    group["lr"] = … ──► look, each turn ──► the control row ──► every worker, before its next update

The supervisor's thread only. Workers never write the groups that the caller sees."""

from collections.abc import Mapping
from typing import Any

import torch

from hogwild.errors import HogwildError, UserCodeError
from hogwild.shared_memory.scoreboard import MOST_RATES, Scoreboard
from hogwild.training.torch_schedule import OF_SCHEDULERS, SteppedScheduler

ASIDE = {"params", "lr", *OF_SCHEDULERS}


class Rates:
    """The groups' rates of one job. `stepped`: the scheduler of torch that the job has, if any; `is_fused`: a compiled
    kernel trains."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, board: Scoreboard, stepped: SteppedScheduler | None, *, is_fused: bool
    ) -> None:
        self._optimizer, self._board, self._is_fused = optimizer, board, is_fused
        self._stepped = stepped
        self._plateau = stepped if stepped is not None and stepped.unit == "evaluation" else None
        self._first = self._known = self._now()
        self._others = self._settings()

    def look(self) -> HogwildError | None:
        """Publish rates that were assigned since the last call; return an error for a change without an effect."""
        if (now := self._now()) != self._known:
            self._known = now
            if why := self._why_not():
                words = f"optimizer.param_groups: lr was assigned while the job trains, but {why}"
                return UserCodeError(words, code="train/rates")
            self._board.publish_rates([rate for rate in now if rate is not None])
        if (others := self._settings()) != self._others:
            keys = sorted({key for group in (*self._others, *others) for key in group})
            changed = [key for key in keys if [g.get(key) for g in self._others] != [g.get(key) for g in others]]
            self._others = others
            return UserCodeError(
                f"optimizer.param_groups: {', '.join(changed) or 'a group'} was changed while the job trains; workers "
                "follow only lr: set everything else before the call",
                code="train/rates",
            )
        return None

    def evaluated(self, value: float) -> list[tuple[float, float]]:
        """Step ReduceLROnPlateau with the monitored value; return the (old, new) rates of groups that it changed."""
        if self._plateau is None:
            return []
        groups = self._optimizer.param_groups
        before = [float(group["lr"]) for group in groups]
        after = [own["lr"] for own in self._plateau.look(value, before)]
        for group, rate in zip(groups, after, strict=True):
            _assign(group, rate)
        self.look()
        return [(old, new) for old, new in zip(before, after, strict=True) if old != new]

    def shown(self, epoch: int) -> float | None:
        """Return the first group's rate for the display; None where only the workers count the steps."""
        if self._stepped is not None and self._stepped.unit != "evaluation":
            return float(self._stepped.after(epoch)[0]["lr"]) if self._stepped.unit == "epoch" else None
        return self._known[0]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the rates that the caller began with, and those of now."""
        scheduler = self._plateau.state() if self._plateau is not None else None
        return {"first": self._first, "now": self._known, "scheduler": scheduler}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore them, after the hyper-parameters were compared."""
        for group, rate in zip(self._optimizer.param_groups, state["now"], strict=True):
            if rate is not None:
                _assign(group, rate)
        if self._plateau is not None and state["scheduler"] is not None:
            self._plateau.restore(state["scheduler"])
        self.look()

    def _why_not(self) -> str:
        if self._is_fused:
            return "the model's compiled kernel has the rates of the start: set train.update to autograd"
        if self._stepped is not None and self._plateau is None:
            return f"lr_schedule ({self._stepped.name}) sets it: remove one of the two"
        if None in self._known or len(self._known) > MOST_RATES:
            return f"workers follow the rates of at most {MOST_RATES} groups, each with an lr"
        return ""

    def _now(self) -> list[float | None]:
        return [float(group["lr"]) if "lr" in group else None for group in self._optimizer.param_groups]

    def _settings(self) -> list[dict[str, Any]]:
        """Return the other settings, as far as they are plain values; counters of a rule change only in workers."""
        plain = (bool, int, float, str, tuple, type(None))
        return [
            {key: one for key, one in group.items() if key not in ASIDE and isinstance(one, plain)}
            for group in self._optimizer.param_groups
        ]


def first_rates(groups: list[dict[str, Any]], state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return saved groups with the rates that the job began with, to compare them with those of a resumed one."""
    first = state.get("rates", {}).get("first") or [None] * len(groups)
    return [group if rate is None else {**group, "lr": rate} for group, rate in zip(groups, first, strict=False)]


def _assign(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
