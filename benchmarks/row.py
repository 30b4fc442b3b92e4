"""One measured figure of a suite: see `results.py`, which writes them down."""

import statistics
from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """One figure. `target` is what was asked for; `smaller_is_better` says which way. `met` is None, with a `note`,
    where the figure could not be measured or is only reported."""

    figure: str
    unit: str
    target: float | None
    runs: list[float]
    baseline: float | None = None
    note: str = ""
    smaller_is_better: bool = False
    value: float = field(init=False)
    met: bool | None = field(init=False)

    def __post_init__(self) -> None:
        self.value = statistics.median(self.runs)
        if self.target is None:
            self.met = None
        else:
            self.met = self.value <= self.target if self.smaller_is_better else self.value >= self.target
