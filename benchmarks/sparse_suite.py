"""The tools of the sparse suite's sections: the amount to measure, our jobs and peers by name, and the rows that
all of them have. Ours and a peer take turns within a figure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import sparse_peers
from benchmarks.bench import say
from benchmarks.figures import Figure
from benchmarks.row import Row
from benchmarks.sparse_ours import Ours, Trained
from benchmarks.sparse_peers import Found


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount to measure. `share`: of the rows a linear peer trains on, and of the synthetic ratings; `reviews`: how
    many of the texts, None for all."""

    runs: int = 3
    share: float = 1.0
    reviews: int | None = None
    sgd_epochs: int = 25
    mf_epochs: int = 15
    word_epochs: int = 3
    graph_epochs: int = 6
    implicit_epochs: int = 20
    cut: tuple[str, ...] = ()


FULL = Effort()
QUICK = Effort(1, 0.02, 500, 2, 2, 1, 1, 1, ("train.max_updates=20",))


@dataclass(frozen=True, slots=True)
class Suite:
    """`folder` holds the data as arrays, and our runs."""

    folder: Path
    effort: Effort = FULL

    @property
    def ours(self) -> Ours:
        runs = self.folder / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        return Ours(runs, self.effort.cut)

    def peer(self, name: str, threads: int, **how: Any) -> Found:
        found = sparse_peers.run(name, threads=threads, **how)
        say(f"{found.note}: {found.per_s:,.0f} a second, {found.curve[-1][0]:.3f} s to {found.quality:.4f}")
        return found


def starts(name: str, runs: Sequence[Trained], peers: Sequence[Found] = ()) -> list[Row]:
    """The time before the first update, on lines of its own: ours the first time, with parsing and compiling, and
    later; a peer's imports and loading beside it."""
    rows: list[Row] = []
    for when, some in (("first run of these data", runs[:1]), ("later", runs[1:])):
        if some:
            words = ", ".join(f"{part} {spent:.2f}" for part, spent in some[0].start.items() if part != "all")
            rows.append(Row(f"{name}: start-up, {when}", "s", None, [one.start["all"] for one in some], note=words))
    for number, found in enumerate(peers):
        note = f"{found.note}; of it imports {found.import_s:.2f} s, the rest converts data that lie there parsed"
        rows.append(Row(f"{name}: start-up, peer {number + 1}", "s", None, [found.import_s + found.load_s], note=note))
    return rows


def speeds(name: str, unit: str, peers: Sequence[Sequence[Found]]) -> list[Row]:
    """A row for each peer, its runs together: how fast, and how good."""
    rows: list[Row] = []
    for runs in peers:
        # What is after the semicolon differs from run to run; a figure's name must not, or it would not replace itself.
        who, _, more = runs[0].note.partition("; ")
        note = f"quality of the last epoch {statistics.fmean(one.quality for one in runs):.4f}" + (more and f"; {more}")
        rows.append(Row(f"{name}: {who}", unit, None, [one.per_s for one in runs], note=note))
    return rows


def lost(figure: Figure, ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """Return the amount by which ours is worse, seed by seed; the figure is of the means."""
    note = f"ours {statistics.fmean(ours):.4f}; baseline: the peer's mean"
    made = figure.row([b - a for a, b in zip(ours, theirs, strict=True)], statistics.fmean(theirs), note)
    return Row(made.figure, made.unit, made.target, made.runs, made.baseline, note, made.smaller_is_better, "mean")
