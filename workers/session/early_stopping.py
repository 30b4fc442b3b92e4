"""The best evaluation so far, and early stopping. Pure: values in, decisions out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Monitor:
    """Follows the metric `name`. `best` holds the values of the best evaluation and its `updates`; `since_best` counts
    the evaluations after it."""

    name: str
    higher_is_better: bool
    patience: int | None = None
    best: dict[str, Any] | None = None
    since_best: int = 0

    def look(self, updates: int, values: Mapping[str, float]) -> bool:
        """Note an evaluation; return whether it is the best. NaN is best only if there is no other value."""
        if self.best is not None and not self._is_better(values.get(self.name, math.nan)):
            self.since_best += 1
            return False
        self.best, self.since_best = {"updates": updates, **values}, 0
        return True

    @property
    def is_out_of_patience(self) -> bool:
        return self.patience is not None and self.since_best >= self.patience

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "since_best": self.since_best}

    def take_over(self, state: Mapping[str, Any]) -> None:
        self.best, self.since_best = state["best"], state.get("since_best", 0)

    def _is_better(self, value: float) -> bool:
        assert self.best is not None
        before = self.best.get(self.name)
        if before is None or math.isnan(before):
            return not math.isnan(value)
        return bool(value > before if self.higher_is_better else value < before)
