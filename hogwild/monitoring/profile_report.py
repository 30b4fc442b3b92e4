"""The results of `--profile A:B` in RUN/profile: one Chrome trace merged from all workers' traces, and the table of
phases. Pure, except for `clear`, `read_phases` and `report`, which read and write these files:

    worker-K.json           torch.profiler's trace of the worker's updates A to B-1
    worker-K.phases.json    how long each phase of each update took, by the clock, with and without the profiler
    merged.json             all traces on one time axis           phases.txt   the table
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirError
from hogwild.storage.records import explained

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
WIDEST = 6  # workers with their own column on a terminal

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
    """The phases of a worker's updates, one mapping each: `traced` with the profiler running, `timed` without it.
    `is_complete`: the worker finished both windows."""

    worker: int
    pid: int
    traced: Sequence[Times] = ()
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


# ---- merged trace ---------------------------------------------------------------------------------------------------


def merged(traces: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield one Chrome trace merged from (worker, its trace), as pieces of JSON text: only one trace is in memory at a
    time.

    Times in a trace are microseconds after its own `baseTimeNanoseconds`; here all count from that of the first trace.
    Flow arrows, process numbers and the profiler's own rows (processes with a word as number) stay separate, even if
    two workers, one after the other, had the same process number."""
    base_ns: int | None = None
    owners: dict[int, int] = {}
    for index, (worker, trace) in enumerate(traces):
        own_ns = int(trace.get("baseTimeNanoseconds", 0))
        if base_ns is None:
            base_ns = own_ns
            yield f'{{"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": {base_ns}, "traceEvents": ['
        pids = _numbers(worker, trace["traceEvents"], owners)
        events = _named(worker, pids) + list(_moved(trace["traceEvents"], worker, pids, (own_ns - base_ns) / 1000))
        yield ("\n" if index == 0 else ",\n") + ",\n".join(json.dumps(event) for event in events)
    if base_ns is not None:
        yield "\n]}\n"


def _numbers(worker: int, events: Iterable[Mapping[str, Any]], owners: dict[int, int]) -> dict[int, int]:
    """Return the trace's process numbers -> numbers in the merged trace; `owners` records each number's worker."""
    pids = {}
    for pid in sorted({event["pid"] for event in events if isinstance(event.get("pid"), int)}):
        pids[pid] = pid if pid not in owners else max(owners) + 1
        owners[pids[pid]] = worker
    return pids


def _named(worker: int, pids: Mapping[int, int]) -> list[dict[str, Any]]:
    named = []
    for pid in pids.values():
        for name, values in (("name", {"name": f"worker {worker}"}), ("sort_index", {"sort_index": worker})):
            named.append({"ph": "M", "name": f"process_{name}", "pid": pid, "tid": 0, "args": values})
    return named


def _moved(
    events: Iterable[Mapping[str, Any]], worker: int, pids: Mapping[int, int], shift_us: float
) -> Iterator[dict[str, Any]]:
    for event in events:
        pid = event.get("pid")
        if event.get("ph") == "M" and pid in pids and str(event.get("name")).startswith("process_"):
            continue  # "python", sorted by its number: our own rows name the worker instead
        moved = dict(event)
        if "pid" in event:
            moved["pid"] = pids[pid] if isinstance(pid, int) else f"worker {worker}: {pid}"
        if "ts" in event:
            moved["ts"] = event["ts"] + shift_us
        if isinstance(event.get("id"), int):
            moved["id"] = event["id"] << 16 | worker  # a number below 2**53, which every JSON reader represents exactly
        yield moved


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


def phase_table(records: Sequence[PhaseRecord], window: Window, widest: int | None = None) -> list[str]:
    """Return the lines of the table: mean microseconds of each phase per update and its share, for each worker and for
    all. Also medians: on a busy machine a single update that waited for a core changes a mean. With more than `widest`
    workers only the totals. Empty if nothing was measured."""
    columns = _columns(records)
    if not columns:
        return []
    shown = columns if widest is None or len(records) <= widest else columns[-2:]
    lines = [f"phases of an update ({window.timed.text} of each worker, timed without the profiler)"]
    lines.append(_line("mean us per update, share", [column.title for column in shown]))
    for phase, words in PHASES.items():
        lines.append(_line(words, [_cell(column.us(phase), column) for column in shown]))
    rest = [phase for phase in PHASES if phase not in MODEL]
    lines.append(_line("an update", [_cell(column.us(*PHASES), column) for column in shown]))
    lines.append(_line("all but forward, backward", [_cell(column.us(*rest), column) for column in shown]))
    lines.append(_line("updates measured", [f"{len(column.updates):,}        " for column in shown]))
    if any(PAUSE in times for column in shown for times in column.updates):
        lines.append(_line("beside: in pauses", [f"{column.us(PAUSE):,.1f}        " for column in shown]))
    if any(column.title.endswith("*") for column in columns):
        lines.append("* with the profiler running, which slows every operation: the job ended before the others")
    return lines + _price(records)


def _columns(records: Sequence[PhaseRecord]) -> list[_Column]:
    """Return one column per worker with measurements, and two for all; with a star, of the traced updates, if there are
    no others. Updates slowed by the profiler are never mixed with the others."""
    known = [one for one in records if one.timed or one.traced]
    star = "" if any(one.timed for one in known) else "*"
    columns = [_Column(f"worker {one.worker}{'' if one.timed else '*'}", one.timed or one.traced) for one in known]
    every = [times for one in known for times in (one.traced if star else one.timed)]
    return [*columns, _Column(f"all{star}", every), _Column(f"median{star}", every, _median)] if columns else []


def _price(records: Sequence[PhaseRecord]) -> list[str]:
    """Return how much longer a traced update takes: the durations in the trace are too long by this factor."""
    both = [record for record in records if record.traced and record.timed]
    traced = _Column("", [times for record in both for times in record.traced], _median)
    timed = _Column("", [times for record in both for times in record.timed], _median)
    work = [phase for phase in PHASES if phase != "wait"]
    if not both or not timed.us(*work):
        return []
    return [f"with tracing, an update took {traced.us(*work) / timed.us(*work):.2f} x as long (median)"]


def _cell(us: float, column: _Column) -> str:
    total = column.us(*PHASES)
    return f"{us:,.1f} {100 * us / total if total else 0:5.1f} %"


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
    """Write merged.json and phases.txt from the workers' files; return a message for a person, also if they cannot be
    written: a full disk does not turn success into failure. Call it when no worker is alive."""
    records = {worker: read_phases(folder, worker) for worker in range(workers)}
    entered = [record for record in records.values() if record is not None]
    if not entered:
        return f"profile {window}: nothing was recorded, as no worker reached update {window.start:,}"
    missing: dict[int, str] = {}
    try:
        with explained(f"cannot write {folder / 'merged.json'}"):
            _write_merged(folder, range(workers), missing)
        notes = list(_notes(records, window, missing))
        with explained(f"cannot write {folder / 'phases.txt'}"):
            (folder / "phases.txt").write_text("\n".join(phase_table(entered, window) + notes) + "\n", "utf-8")
    except RunDirError as error:
        return f"warning: {error}"
    lines = phase_table(entered, window, widest=WIDEST) + notes
    return "\n".join([*lines, f"traces: {folder} (chrome://tracing or ui.perfetto.dev); the table: phases.txt"])


def _write_merged(folder: Path, workers: Iterable[int], missing: dict[int, str]) -> None:
    """Write merged.json, or nothing if there is no trace; `missing` gets the reason for each worker without one."""
    file = folder / "merged.json"
    aside = file.with_name(f".tmp-{file.name}")
    try:
        with open(aside, "w", encoding="utf-8") as stream:
            stream.writelines(merged(_traces(folder, workers, missing)))
            is_empty = stream.tell() == 0
        if not is_empty:
            aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def _traces(folder: Path, workers: Iterable[int], missing: dict[int, str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for worker in workers:
        file = folder / trace_name(worker)
        try:
            trace = json.loads(file.read_bytes())
            trace["traceEvents"]
        except FileNotFoundError:
            missing[worker] = "wrote no trace"
        except (OSError, ValueError, KeyError, TypeError) as error:
            missing[worker] = f"{file.name} cannot be read ({error})"
        else:
            yield worker, trace


def _notes(records: Mapping[int, PhaseRecord | None], window: Window, missing: Mapping[int, str]) -> Iterator[str]:
    """Yield notes on workers that are missing from the traces, with the reason, or have too few updates."""
    for worker, record in records.items():
        if record is None:
            yield f"note: worker {worker} is missing: it ended before its update {window.start:,}"
        elif worker in missing:
            yield f"note: worker {worker} is missing: it entered the window, and {missing[worker]} (was it killed?)"
        elif len(record.traced) < window.stop - window.start:
            yield f"note: of worker {worker} {len(record.traced)} of {window.stop - window.start} updates were traced"
