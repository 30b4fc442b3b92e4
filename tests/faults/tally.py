"""What a campaign injected and what became of it. Tallies of several seeds add up."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Counts of one campaign. `injected` faults; `survived`: of those, the job (or the protocol) went on, or ended as
    it should. `lost`, `duplicated`: batches whose effects are fewer or more than their account in the ledger allows;
    `hangs`: what had to be ended from outside; `indeterminate`: exchanges in doubt, which the ledger counts.
    `measured`: whatever else a row of the table wants, seed by seed."""

    injected: int = 0
    survived: int = 0
    lost: int = 0
    duplicated: int = 0
    hangs: int = 0
    indeterminate: int = 0
    violations: list[str] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not (self.violations or self.lost or self.duplicated or self.hangs) and self.survived == self.injected

    def note(self, what: str, value: float) -> None:
        self.measured.setdefault(what, []).append(value)

    def __add__(self, other: "Tally") -> "Tally":
        names = {*self.measured, *other.measured}
        return Tally(
            self.injected + other.injected,
            self.survived + other.survived,
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.hangs + other.hangs,
            self.indeterminate + other.indeterminate,
            self.violations + other.violations,
            {name: self.measured.get(name, []) + other.measured.get(name, []) for name in sorted(names)},
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
