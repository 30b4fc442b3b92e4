"""One measured figure of a suite: see `results.py`, which writes them down."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

REPORTED = "only reported"


@dataclass(slots=True)
class Row:
    """One figure. `target` is what was asked for; `smaller_is_better` says which way. `value` is the median of the
    runs, or their mean or the worst of them where `center` says so. `met` is None, with a `note`, where the figure is
    void, could not be measured here or is only reported. Without any run there is no value, and a target is not met."""

    figure: str
    unit: str
    target: float | None
    runs: list[float]
    baseline: float | None = None
    note: str = ""
    smaller_is_better: bool = False
    center: Literal["median", "mean", "worst"] = "median"
    value: float | None = field(init=False)
    met: bool | None = field(init=False)

    def __post_init__(self) -> None:
        worst = max if self.smaller_is_better else min
        center = {"median": statistics.median, "mean": statistics.fmean, "worst": worst}[self.center]
        self.value = center(self.runs) if self.runs else None
        if self.target is None:
            self.met = None
            self.note = self.note or REPORTED
        elif self.value is None:
            self.met = False
        else:
            self.met = self.value <= self.target if self.smaller_is_better else self.value >= self.target

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> "Row":
        """One that was written down, as it was."""
        row = cls(**{name: value for name, value in kept.items() if name not in ("value", "met")})
        row.value, row.met = kept["value"], kept["met"]
        return row

    def void(self, why: str) -> "Row":
        """The same row, neither met nor missed. What was measured stays in."""
        self.met = None
        self.note = f"void: {why}" + (f"; {self.note}" if self.note else "")
        return self
