"""The results of `--profile A:B` in RUN/profile, and their table. Pure, except for `clear`, `read_phases` and `report`:

worker-K.json           torch.profiler's trace of the worker's updates A to B-1; viewers open several together
worker-K.operators.txt  its operators, those with the most time first
worker-K.phases.json    how long each phase of as many later updates took, by the clock, without the profiler
phases.txt              the table of the phases
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirError
from hogwild.storage.files import explained

# A worker's name for a phase -> the name in the report.
PHASES = {
    "wait": "waiting for work",
    "gather": "gathering",
    "forward": "forward",
    "backward": "backward",
    "check": "checking",
    "apply": "applying",
    "bookkeeping": "bookkeeping",
}
PAUSE = "pause"  # an evaluation or a checkpoint: not part of an update
MODEL = ("forward", "backward")  # a plain training loop needs these as well
SETTLING = 10  # updates between the traced and the timed ones; the first updates after the profiler take twice as long
LONGEST = 1000  # updates in a window; each takes some 300 bytes per operation on disk
WIDEST = 6  # workers with their own column

Times = Mapping[str, int]  # of one update: phase -> ns


@dataclass(frozen=True, slots=True)
class Window:
    """Updates `start` to `stop` - 1 of each worker, counted from 0."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"

    @property
    def timed(self) -> "Window":
        """As many updates after the window: their phases are measured without the profiler."""
        start = self.stop + SETTLING
        return Window(start, start + self.stop - self.start)

    @property
    def text(self) -> str:
        first, last = f"{self.start:,}", f"{self.stop - 1:,}"
        return f"update {first}" if first == last else f"updates {first} to {last}"


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """The phases of a worker's updates after its window, one mapping each. `is_complete`: it finished both."""

    worker: int
    pid: int
    timed: Sequence[Times] = ()
    is_complete: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"unit": "ns"}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PhaseRecord":
        """Build it from `to_json`'s output. Raises KeyError for anything else."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def trace_name(worker: int) -> str:
    return f"worker-{worker}.json"


def phases_name(worker: int) -> str:
    return f"worker-{worker}.phases.json"


# ---- the table ------------------------------------------------------------------------------------------------------


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers)


def _median(numbers: Sequence[int]) -> float:
    """Return the median without `statistics`: importing it takes 10 ms, and every job imports this module."""
    ordered, half = sorted(numbers), len(numbers) // 2
    return (ordered[half] + ordered[~half]) / 2


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    updates: Sequence[Times]
    average: Callable[[Sequence[int]], float] = _mean

    def us(self, *phases: str) -> float:
        """Return the microseconds per update, summed over `phases`."""
        return sum(self.average([times.get(phase, 0) for times in self.updates]) for phase in phases) / 1000

    def cell(self, *phases: str) -> str:
        total = self.us(*PHASES)
        return f"{self.us(*phases):,.1f} {100 * self.us(*phases) / total if total else 0:5.1f} %"


def phase_table(records: Sequence[PhaseRecord], window: Window) -> list[str]:
    """Return the lines of the table: mean microseconds of each phase per update and its share, for each worker and for
    all. Also medians: on a busy machine a single update that waited for a core changes a mean. With many workers only
    all and the medians. Empty if nothing was timed."""
    columns = [_Column(f"worker {record.worker}", record.timed) for record in records if record.timed]
    every = [times for column in columns for times in column.updates]
    if not every:
        return []
    columns = columns if len(columns) <= WIDEST else []
    columns += [_Column("all", every), _Column("median", every, _median)]
    rest = [phase for phase in PHASES if phase not in MODEL]
    lines = [
        f"phases of an update ({window.timed.text} of each worker, timed without the profiler)",
        _line("mean us per update, share", [column.title for column in columns]),
        *(_line(words, [column.cell(phase) for column in columns]) for phase, words in PHASES.items()),
        _line("an update", [column.cell(*PHASES) for column in columns]),
        _line("all but forward, backward", [column.cell(*rest) for column in columns]),
        _line("updates measured", [f"{len(column.updates):,}        " for column in columns]),
    ]
    if any(PAUSE in times for times in every):
        lines.append(_line("beside: in pauses", [f"{column.us(PAUSE):,.1f}        " for column in columns]))
    return lines


def _line(words: str, cells: Iterable[str]) -> str:
    return f"  {words:<25}" + "".join(f"{cell:>20}" for cell in cells).rstrip()


# ---- files ----------------------------------------------------------------------------------------------------------


def clear(folder: Path) -> None:
    """Create `folder`, or delete an earlier attempt's records in it. Raises RunDirError."""
    with explained(f"cannot make {folder}"):
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.unlink()


def read_phases(folder: Path, worker: int) -> PhaseRecord | None:
    """Read a worker's phases; None if there is no file, or an incomplete one."""
    with suppress(OSError, ValueError, KeyError):
        return PhaseRecord.from_json(json.loads((folder / phases_name(worker)).read_text("utf-8")))
    return None


def report(folder: Path, workers: int, window: Window) -> str:
    """Write phases.txt from the workers' files; return a message for a person, also if it cannot be written: a full
    disk does not turn success into failure. Call it when no worker is alive."""
    records = {worker: read_phases(folder, worker) for worker in range(workers)}
    entered = [record for record in records.values() if record is not None]
    if not entered:
        return f"profile {window}: nothing was recorded, as no worker reached update {window.start:,}"
    lines = [*phase_table(entered, window), *_notes(records, window)]
    try:
        with explained(f"cannot write {folder / 'phases.txt'}"):
            (folder / "phases.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    except RunDirError as error:
        return f"warning: {error}"
    return "\n".join([*lines, f"traces: {folder}/worker-*.json (ui.perfetto.dev); the table: phases.txt"])


def _notes(records: Mapping[int, PhaseRecord | None], window: Window) -> Iterator[str]:
    """Yield a note on each worker that ended too early."""
    for worker, record in records.items():
        if record is None:
            yield f"note: worker {worker} is missing: it ended before its update {window.start:,}"
        elif len(record.timed) < window.stop - window.start:
            few = f"{len(record.timed)} of {window.stop - window.start} updates"
            yield f"note: of worker {worker} {few} were timed: it ended before {window.timed.text} were over"
