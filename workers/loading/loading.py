"""Loading a job's data into memory, in the parent, before training. Quick reads happen here. A read of more than a
second is done by processes of their own, straight into the shared memory that training uses (`loaders.py`), or comes
from the cache beside the runs.

    ready tensors ──► taken as they are
    rows, read by the data set's own threads                 ──► all, from the cache if that takes long
    rows ──► read here, while less than a second is left     ──► all
                '──► shared memory ──► from the cache            ──► all
                                   '─► ranges, leased to readers ──► all ──► into the cache
                                          '─► the rest, if readers cannot do it, is read here

Readers are a team, which ends when all is read:

    a reader dies                its ranges are leased to others; the range it was reading is charged
    a range is charged too often DataError with the row and the last exit (`supervise.max_item_attempts`)
    no beat for stall_timeout_s  SIGKILL, then as above
    a row cannot be used         the rows before it are read first: the lowest bad row is the error
    no reader is left            the caller reads the rest itself

The trial of the job's code (`hogwild/job/parts.py`) has a process of its own, too: a crash or an endless loop of the
user's code ends that process, not the job's.

    parent                                        the process of the trial
    trial, written by torch.save ── socket ──►    "trying" ──► maps it, runs ──► findings in `answer`; it ends

    it is killed (SIGKILL), or ends before "trying"     tried again in another one, max_item_attempts times in all
    it ends in any other way                            ModelError with the user's line
    no answer for start_timeout_s                       ModelError with the user's line, from its stacks (SIGABRT)
    the trial cannot be written or read                 the caller runs it here
    forward made buffers or modules                     the same: the job is laid out with them"""

import hashlib
import inspect
import json
import os
import pickle
import time
import warnings
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from hogwild import by_value, host
from hogwild.config.load import Job
from hogwild.errors import DataError, HogwildError, ModelError
from hogwild.feeds.resident import ResidentData
from hogwild.feeds.row_reader import Held, RowSource, divided, division, ready_tensors
from hogwild.formatting import size
from hogwild.job.parts import Findings, Trial
from hogwild.nn import cut_to_use
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region
from hogwild.user_code import is_users, raised_text
from hogwild.workers.child.loader import Destination, RowsRecipe, recipe_of
from hogwild.workers.loading.loaders import LoaderLoss, Loaders, Work, region_of
from hogwild.workers.messages import Report, TrialTask
from hogwild.workers.processes.group import ProcessGroup, Team
from hogwild.workers.processes.handle import POLL_MS, REAP_S, Handle
from hogwild.workers.processes.roster import Role, RoleLimits, Roster, limits_of
from hogwild.workers.processes.stacks import training_thread
from hogwild.workers.session.startup import StartUp

if TYPE_CHECKING:
    from hogwild.data.cache import CachedField, DatasetCache
    from hogwild.data.text_parsing import Parsed, Parsing


SHORT_S = 1.0  # a rest shorter than this is read here: starting readers does not pay
PROBE_S = 0.05  # before that, the time per row is unknown
RANGE_S = 0.03  # per range: the cost of a death, and of waiting for the last range
LONGEST_RANGE_S = 5.0
MOST_RANGES = 512
RANGES_PER_READER = 4
IN_HAND = 2  # ranges per reader: the next one is there when one is done


@dataclass(frozen=True, slots=True)
class Sections:
    """A data set in shared memory: whole, or as a training and a validation part."""

    parts: tuple[ResidentData, ...]
    places: Region | None  # (N,) int64, see `Destination`

    @classmethod
    def allocate(cls, rows: RowSource, fraction: float | None, seed: int, *, channels_last: bool) -> "Sections":
        rows.check_room()
        counts, places = [rows.count], None
        if fraction is not None:
            trained, held = division(rows.count, fraction, seed)
            counts, places = [len(trained), len(held)], Region.allocate("places", 8 * rows.count)
            place = places.tensor(torch.int64, (rows.count,))
            place[trained], place[held] = torch.arange(len(trained)), ~torch.arange(len(held))
        parts = tuple(
            ResidentData.allocate(
                f"{rows.what.replace('.', '-')}-{number}",
                [(kind.dtype, (count, *kind.shape)) for kind in rows.kinds],
                channels_last=channels_last,
            )
            for number, count in enumerate(counts)
        )
        return cls(parts, places)

    def destination(self, count: int) -> Destination:
        return Destination(self.parts, self.places.tensor(torch.int64, (count,)) if self.places else None)

    def regions(self) -> dict[str, Region]:
        parts = {f"part-{number}": part.region for number, part in enumerate(self.parts)}
        return parts | ({"places": self.places} if self.places else {})

    def in_memory(self) -> tuple[Held, ...]:
        return tuple(Held(part.views(), part) for part in self.parts)

    def specs(self) -> "list[CachedField]":
        from hogwild.data.cache import CachedField

        return [CachedField(str(f.dtype).removeprefix("torch."), f.lying) for part in self.parts for f in part.fields]

    def buffers(self) -> list[Any]:
        return [field.rows(part.region).reshape(-1) for part in self.parts for field in part.fields]


class RangeWork(Work):
    """Ranges of rows as work of readers."""

    again = "its rows are read again"

    def __init__(self, what: str, ranges: RowRanges, limits: RoleLimits) -> None:
        self._what, self.ranges, self.limits = what, ranges, limits
        self.bad: dict[int, Report] = {}  # range -> why it cannot be read

    def request(self, loader: int) -> int | None:
        return self.ranges.lease(loader) if self.ranges.hand(loader) < IN_HAND else None

    def answered(self, loader: int, answer: int, number: int) -> bool:
        self.ranges.finish(loader, number)
        return True

    def refused(self, loader: int, report: Report) -> None:
        self.ranges.condemn(loader, report.item)
        self.bad[report.item] = report

    def lost(self, loader: int, number: int | None, record: int, how: str) -> LoaderLoss:
        deaths = self.ranges.release(loader, number)
        charged = (0, number) if deaths and number else None
        if deaths < self.limits.max_item_attempts:
            return LoaderLoss(charged)
        ended = f"{deaths} processes, the last one" if deaths > 1 else "its process"
        words = f"{self._what}: reading item {record} crashed {ended}: {how}. Read this item alone (dataset[{record}])"
        error = DataError(f"{words} to find the cause", code="data/item-kills")
        return LoaderLoss(charged, error=error)

    def has_in_hand(self, loader: int) -> bool:
        return self.ranges.hand(loader) > 0

    def waits(self) -> str:
        return "waits for rows to read"


class Loading:
    """A `row_reader.Reader`. The group keeps its messages until the journal exists."""

    def __init__(self, group: ProcessGroup, job: Job, runs: Path | None, startup: StartUp) -> None:
        """`runs`: the folder of runs; the cache of data sets lies beside it. `startup` shows the progress."""
        self._group, self._seed, self._runs = group, job.seed, runs
        self._startup = startup
        self._shown = set[str]()  # of the notes: two parts of one file mean the same

    def read(self, dataset: Any, what: str, *, fraction: float | None, channels_last: bool) -> tuple[Held, ...]:
        ready = ready_tensors(dataset, what)
        if ready is not None:
            return divided(ready, fraction, self._seed)
        rows, began_s = RowSource.of(dataset, what, self._seed), time.monotonic()
        try:
            return self._read(rows, fraction, channels_last=channels_last, began_s=began_s)
        finally:
            self._startup.counted()

    def _read(
        self, rows: RowSource, fraction: float | None, *, channels_last: bool, began_s: float
    ) -> tuple[Held, ...]:
        if rows.by_threads:
            return self._read_by_threads(rows, fraction, channels_last=channels_last, began_s=began_s)
        columns = rows.columns()
        can_be_shared = self._group.readers > 0
        pace_s = 0.0  # seconds per row

        def goes_on(done: int, seconds: float, pace: float) -> bool:
            nonlocal pace_s
            pace_s = pace
            self._show_progress(rows, done)
            return not can_be_shared or seconds < PROBE_S or pace * (rows.count - done) < SHORT_S

        done = rows.read_into(columns, goes_on)
        if done == rows.count:
            if (seconds := time.monotonic() - began_s) > SHORT_S:
                self._group.sink.event("data-read", **self._noted(rows, seconds, "this process", readers=0))
            return divided(columns, fraction, self._seed)
        sections = Sections.allocate(rows, fraction, self._seed, channels_last=channels_last)
        asked_s = time.monotonic()
        key, cache = self._cache_of(rows, fraction, sections)
        hash_s = time.monotonic() - asked_s
        if cache is not None and self._is_from(cache, key, rows, sections, began_s):
            return sections.in_memory()
        sections.destination(rows.count).put(0, [column[:done] for column in columns])
        del columns
        values = self._read_shared(rows, sections, done, pace_s, began_s)
        read_s = time.monotonic()
        if cache is not None:
            with suppress(KeyError):  # a dtype that the cache does not know
                cache.store(key, sections.specs(), sections.buffers())
            values |= {"hash_s": round(hash_s, 3), "kept_s": round(time.monotonic() - read_s, 3)}
        self._group.sink.event("data-read", **values)
        return sections.in_memory()

    def _read_by_threads(
        self, rows: RowSource, fraction: float | None, *, channels_last: bool, began_s: float
    ) -> tuple[Held, ...]:
        """Read a data set that has threads of its own into shared memory. If that takes long, first ask the cache."""
        sections = Sections.allocate(rows, fraction, self._seed, channels_last=channels_last)
        to, done, key, cache = sections.destination(rows.count), 0, "", None
        is_long, hash_s = False, 0.0
        waiting: list[tuple[int, tuple[torch.Tensor, ...]]] = []  # parts, while the cache may write the same memory
        with closing(rows.parts()) as parts:
            for fields in parts:
                waiting.append((done, fields))
                done += len(fields[0])
                self._show_progress(rows, done)
                asked_s = time.monotonic()
                left_s = (asked_s - began_s) / done * (rows.count - done) if done else 0.0
                if not is_long and asked_s - began_s > PROBE_S and left_s > SHORT_S:
                    is_long, (key, cache) = True, self._cache_of(rows, fraction, sections)
                    if cache is not None and self._is_from(cache, key, rows, sections, began_s):
                        return sections.in_memory()
                    hash_s = time.monotonic() - asked_s
                if is_long:
                    _put(to, waiting)
        _put(to, waiting)
        read_s = time.monotonic()
        if cache is not None:
            cache.store(key, sections.specs(), sections.buffers())
        if is_long or read_s - began_s > SHORT_S:
            values = self._noted(rows, read_s - began_s, "this process", readers=0, deaths=0)
            kept_s = round(time.monotonic() - read_s, 3)
            self._group.sink.event("data-read", **values, hash_s=round(hash_s, 3), kept_s=kept_s)
        return sections.in_memory()

    def pack(self, parsing: "Parsing") -> "Parsed":
        """Return a text as packed arrays, mapped from the cache, or parsed here, by threads. Raises DataError,
        MemoryShortError."""
        from hogwild.data import packed_cache
        from hogwild.data.cache import DatasetCache

        cache = DatasetCache(self._runs, say=self._show) if self._runs is not None else None
        began_s = time.monotonic()
        key = parsing.key(cache) if cache is not None else ""
        hash_s = time.monotonic() - began_s
        parsed = packed_cache.load(cache, key) if cache is not None else None
        is_cached, kept_s = parsed is not None, 0.0
        if parsed is None:
            count = partial(self._startup.count, f"reading {parsing.what}", things="bytes")
            try:
                parsed = parsing.parse(count)
            finally:
                self._startup.counted()
            if cache is not None:
                asked_s = time.monotonic()
                packed_cache.store(cache, key, parsed)
                kept_s = time.monotonic() - asked_s
        seconds, compiling_s = time.monotonic() - began_s, parsing.compiling_s
        many = f"{parsing.what}: {parsed.packed.samples:,} samples"
        if is_cached and cache is not None:
            self._show(f"{many} mapped from the cache {cache.folder} in {seconds:.1f} s")
        elif seconds > SHORT_S:
            compiling = f", after {compiling_s:.1f} s of compiling" if compiling_s > SHORT_S else ""
            self._show(f"{many} parsed by the parent process in {seconds - compiling_s:.1f} s{compiling}")
        for note in parsed.notes:
            if note not in self._shown:
                self._show(f"{parsing.what}: {note}")
        self._shown.update(parsed.notes)
        self._group.sink.event(
            "data-read",
            what=parsing.what,
            samples=parsed.packed.samples,
            seconds=round(seconds, 3),
            readers=0,
            deaths=0,
            cached=is_cached,
            hash_s=round(hash_s, 3),
            kept_s=round(kept_s, 3),
            compiling_s=round(compiling_s, 3),
            left_out=dict(parsed.left_out),
        )
        return parsed

    def try_out(self, trial: Trial) -> Findings:
        """Try the job's code in a process of its own; here, if the job has none, or it cannot be sent, or none of it is
        the user's."""
        return (None if trial.is_ours else try_in_worker(self._group, trial)) or trial.run()

    # ---- reading in other processes

    def _read_shared(
        self, rows: RowSource, sections: Sections, done: int, pace_s: float, began_s: float
    ) -> dict[str, Any]:
        """Read the rows from `done` on, by readers up to a bad row; return the event. Raises DataError for a range that
        kills every reader."""
        group, readers, deaths, left = self._group, self._group.readers, 0, rows.count - done
        # As many rows per range as RANGE_S takes, but enough that leasing costs little, few enough that a reader that
        # reads a range in one call does not seem to hang, and few enough that all readers are busy to the end.
        wanted = min(max(RANGE_S / pace_s, left / MOST_RANGES), LONGEST_RANGE_S / pace_s)
        size = min(rows.at_once(int(wanted)), -(-left // (RANGES_PER_READER * readers)))
        ranges = RowRanges(done, rows.count, size)
        work = RangeWork(rows.what, ranges, limits_of(Role.READER, group.supervise))
        parts = tuple((f"part-{number}", part.fields) for number, part in enumerate(sections.parts))
        recipe = RowsRecipe(replace(rows, first=None), done, size, parts, sections.places is not None)
        if (content := self._content(recipe, readers)) is not None:
            team = Loaders(group, Roster(Role.READER, work.limits, readers), work, content, sections.regions())
            group.teams.append(team)
            errors = group.step(time.monotonic(), [team])
            while not ranges.is_finished and not errors:
                group.wait(POLL_MS)
                errors = group.step(time.monotonic(), [team])
                self._show_progress(rows, done + ranges.rows_read)
            group.end(team)
            for error in errors:
                if error.code == "data/item-kills":
                    raise error
            deaths = team.deaths
            if not ranges.is_finished:
                self._show(f"{rows.what}: {errors[0]}; the parent process reads it")
            elif (bad := ranges.first_bad) is not None:
                rows.read_here(*ranges.rows(bad))  # raises the user's own exception, if a row is at fault
                words = f"reading failed in a worker only: {work.bad[bad].detail}"
                self._show(f"{rows.what}: {words}; the parent process reads the rest")
        rest, to, count = ranges.unread, sections.destination(rows.count), done + ranges.rows_read
        for start, stop in map(ranges.rows, rest):
            to.put(start, rows.read_here(start, stop))
            count += stop - start
            self._show_progress(rows, count)
        by = f"{readers} workers" if readers > 1 else "1 worker"
        if rest:
            is_alone = len(rest) * size >= left
            by = "the parent process" if is_alone else f"{by} and the parent process"
        return self._noted(rows, time.monotonic() - began_s, by, readers=readers, deaths=deaths)

    def _content(self, recipe: RowsRecipe, readers: int) -> Region | None:
        """Write the recipe from which every reader makes its data set; None if that is impossible or too large."""
        rows = recipe.rows
        try:
            content, buffers = by_value.dumps_apart(recipe)
        except (Exception, SystemExit) as error:
            self._show(
                f"{rows.what}: one process reads all {rows.count:,} rows, as {type(rows.dataset).__name__} cannot be "
                f"sent to workers: {raised_text(error)}"
            )
            return None
        needed = (2 + 2 * readers) * len(content) + sum(one.raw().nbytes for one in buffers)
        if needed > host.available_memory().bytes:
            self._show(
                f"{rows.what}: one process reads all {rows.count:,} rows, as {readers} copies of "
                f"{type(rows.dataset).__name__} would take {size(needed)}"
            )
            return None
        return recipe_of(content, buffers)

    # ---- the cache

    def _cache_of(
        self, rows: RowSource, fraction: float | None, sections: Sections
    ) -> "tuple[str, DatasetCache | None]":
        """Return (key, cache) for a data set with a fingerprint. Never raises: without a cache the data is read."""
        if self._runs is None or not callable(getattr(rows.dataset, "fingerprint", None)):
            return "", None
        from hogwild.data.cache import DatasetCache

        cache, ours = DatasetCache(self._runs, say=self._show), rows.dataset.fingerprint
        try:
            knows = {"cache": cache} if "cache" in inspect.signature(ours).parameters else {}
            fingerprint = str(ours(**knows))
        except (Exception, SystemExit) as error:
            self._show(f"{rows.what} is not cached: fingerprint() raised {raised_text(error)}")
            return "", None
        order = None if fraction is None else (fraction, self._seed)
        layout = [(str(f.dtype), f.lying) for part in sections.parts for f in part.fields]
        key = hashlib.blake2b(json.dumps([fingerprint, order, layout]).encode(), digest_size=20).hexdigest()
        return key, cache

    def _is_from(self, cache: "DatasetCache", key: str, rows: RowSource, sections: Sections, began_s: float) -> bool:
        """Read the data set from the cache, and say so; return False if it is not there."""
        entry = cache.load(key)
        if entry is None or list(entry.specs) != sections.specs() or not entry.read_into(sections.buffers()):
            return False
        seconds, by = time.monotonic() - began_s, f"the cache {cache.folder}"
        self._group.sink.event("data-read", **self._noted(rows, seconds, by, readers=0, cached=True))
        return True

    # ---- messages and events

    def _show_progress(self, rows: RowSource, done: int) -> None:
        self._startup.count(f"reading {rows.what}", done, rows.count)

    def _show(self, sentence: str) -> None:
        self._group.sink.show_message(sentence)

    def _noted(self, rows: RowSource, seconds: float, by: str, **values: Any) -> dict[str, Any]:
        """Say what was read; return the event."""
        how = "from" if values.get("cached") else "read by"
        self._show(f"{rows.what}: {rows.count:,} samples {how} {by} in {seconds:.1f} s")
        return {"what": rows.what, "samples": rows.count, "seconds": round(seconds, 3), **values}


def _put(to: Destination, parts: list[tuple[int, tuple[torch.Tensor, ...]]]) -> None:
    """Write the parts, each with its first row, and forget them."""
    for start, fields in parts:
        to.put(start, fields)
    parts.clear()


TURN_S = 1.0  # most that one turn adds to a silence: a parent that was itself stopped must not kill anybody
OUTPUT_KEPT = 32 << 10  # characters
STACKS = "Fatal Python error: "  # the first words of the stacks that a crash writes
RESERVE = 64 << 20  # bytes of memory that a copy of the model must leave free


@dataclass(frozen=True, slots=True)
class _End:
    """The end of one attempt. `status`: None if its process survives SIGKILL."""

    status: int | None = None
    has_begun: bool = False
    is_stalled: bool = False


def try_in_worker(group: ProcessGroup, trial: Trial) -> Findings | None:
    """Return the findings; None if the trial cannot run in another process. Each process that was replaced is told.
    Raises ModelError if the trial ends its process or does not end."""
    if not group.readers or (content := _written(trial)) is None:
        return None
    say, start_s = group.sink.show_message, group.supervise.start_timeout_s
    regions = {"trial": content, "answer": Region.allocate("answer", 1)}  # written, not mapped
    end, output = _End(), ""
    for _ in range(group.supervise.max_item_attempts):
        team = _Trying(group, regions)
        group.teams.append(team)
        group.step(time.monotonic(), [team])
        if (handle := team.handles.get(0)) is None:
            return None
        end = _awaited(handle, start_s)
        said, output = handle.last_output(), handle.first_output()
        group.end(team)
        answer = regions["answer"].descriptor
        written = os.pread(answer, os.fstat(answer).st_size, 0)
        if written[0]:  # else it ended before; its status may be unknown, where a host application reaps it
            found: Findings | None = pickle.loads(written[1:])
            if found is not None and found.error is not None:
                _note_output(found.error, output)
            return found
        if end.status is None:
            say(f"a worker {handle.describe_undead()}")
            continue
        if end.has_begun and end.status != host.KILLED:
            break
        say(
            f"a worker ended before training: {host.describe_exit(end.status)}" + (f"; it said: {said}" if said else "")
        )
    if not end.has_begun or end.status is None:
        return None
    error = _error(trial, end, output, start_s)
    _note_output(error, output)
    raise error


class _Trying(Team):
    """The team of the one process that tries."""

    is_loud = False

    def __init__(self, group: ProcessGroup, regions: Mapping[str, Region]) -> None:
        super().__init__(group, Roster(Role.TRIAL, limits_of(Role.TRIAL, group.supervise), 1))
        self._regions = regions

    def prepare(self, number: int) -> tuple[TrialTask, Mapping[str, Region]]:
        return TrialTask(), self._regions


def _written(trial: Trial) -> Region | None:
    """Return the trial in shared memory; None if it cannot be pickled, or memory is short: the layout of the job will
    say so. None also for lazy parameters: the trial gives them their shapes."""
    with cut_to_use(trial.model):
        return _written_whole(trial)


def _written_whole(trial: Trial) -> Region | None:
    tensors = [*trial.model.parameters(), *trial.model.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        return None
    if sum(tensor.nbytes for tensor in tensors) + RESERVE > host.available_memory().bytes:
        return None
    try:
        with warnings.catch_warnings():  # that hooks of tensors are left out: here they do not matter
            warnings.simplefilter("ignore")
            return region_of("trial", trial)
    except (Exception, SystemExit):
        return None


def _awaited(handle: Handle, limit_s: float) -> _End:
    """Wait for the end of an attempt, at most `limit_s` for its begin and again for its end."""
    has_begun, silent_s, last_s = False, 0.0, time.monotonic()
    while True:
        host.wait_readable(handle.descriptors(), POLL_MS)
        status = handle.reap()
        handle.listen()  # also what a dead process has said
        if handle.pop_said():
            has_begun, silent_s = True, 0.0
        if status is not None:
            return _End(status=status, has_begun=has_begun)
        now_s = time.monotonic()
        silent_s, last_s = silent_s + min(TURN_S, now_s - last_s), now_s
        if silent_s > limit_s:
            for end in (host.ABORT, host.KILL):
                host.kill_by_pidfd(handle.pidfd, end)
                host.wait_readable([handle.pidfd], REAP_S * 1000)
                if (status := handle.reap()) is not None:
                    break
            return _End(status=status, has_begun=has_begun, is_stalled=True)


def _note_output(error: HogwildError, output: str) -> None:
    """Add the end of what the process wrote, such as prints of the user's code: a refused job has no log."""
    if kept := output[-OUTPUT_KEPT:].strip():
        error.add_note(f"The process of the trial wrote:\n{kept}")


def _error(trial: Trial, end: _End, output: str, limit_s: float) -> ModelError:
    """Return the error, with the user's line from the stacks in the process's `output`, if it wrote them."""
    assert end.status is not None
    what = f"{type(trial.model).__name__}: the trial on the first samples, before training,"
    users = (frame for frame in training_thread(output) if is_users(frame.file))
    place = next((f" ({frame.file}:{frame.line})" for frame in users), "")
    if end.is_stalled:
        return ModelError(
            f"{what} has not ended for {limit_s:g} s{place}; if the model needs longer, raise "
            "supervise.start_timeout_s",
            code="model/trial-stalled",
        )
    lines = output.partition(STACKS)[0].strip().splitlines()  # perhaps the reason that a library gave
    said = f"; it said: {lines[-1].strip()}" if lines else ""
    return ModelError(
        f"{what} ended its process: {host.describe_exit(end.status)}{place}{said}; train.procs=0 runs it in this "
        "process, under a debugger if you like",
        code="model/trial-crashed",
    )
