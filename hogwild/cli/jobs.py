"""Commands that ask a running service: submit, ps, cancel, pause, resume, retry, delete. They import neither torch nor
fastapi."""

import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hogwild import host
from hogwild.cli.arguments import Arguments, DataDir, Json, StateDir, Sweep, is_job_id, split_arguments
from hogwild.cli.output import print_answer, print_message, print_result
from hogwild.errors import NotFoundError, UsageError
from hogwild.formatting import clock, counted, duration, percent
from hogwild.monitoring.job_view import Best
from hogwild.service.client import WAITED_FOR, Client, Row, jobs_of, seconds_since

LOOK_S = 0.2
WATCH_S = 1.0
RECENT_S = 3600.0  # ended jobs that `ps` shows without -a
LEAST_NAME, MOST_NAME, MOST_CELL = 8, 32, 20  # letters in a table
HOME, TO_LINE_END, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"  # overwriting does not flicker as clearing does


def job_named(given: str | None) -> str | None:
    """Return the id of the job in whose folder a path leads, such as its run directory; anything else as it is."""
    if given is None or is_job_id(given):
        return given
    path = Path(given).absolute()
    for folder in (path, path.parent):
        if (folder / "job.json").is_file():
            return folder.name
    if os.path.exists(given):
        raise UsageError(
            f"{given} is no job of the service (hogwild ps lists them). For a job file: hogwild submit; for a run that "
            "was started without the service: hogwild stop, hogwild train --resume",
            code="usage/bad-value",
        )
    return given


JobId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Number or id of a job, or id of a sweep, or the beginning of an id.", callback=job_named
    ),
]
Now = Annotated[bool, typer.Option("--now", help="At once, without a checkpoint; a second time: SIGKILL.")]
Detach = Annotated[bool, typer.Option("-d", "--detach", help="Do not show the job's progress.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; the exit status is the job's.")]


def submit(
    arguments: Arguments = None,
    sweep: Sweep = None,
    data_dir: DataDir = None,
    detach: Detach = False,
    wait: Wait = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Submit a job to the service and show its progress. Ctrl-C leaves the job alone."""
    from hogwild.service.sweeps import read_grid

    job_file, overrides = split_arguments(arguments)
    grid = read_grid(sweep) if sweep else None
    client = Client(state_dir)
    with host.raising_on_signals():
        row = client.submit(job_file, overrides, data_dir=data_dir, sweep=grid)
    if not (detach or wait or as_json):
        return (_show_sweep if grid else _show_until_end)(client, row, state_dir)
    if wait:
        row = _wait(client, row, state_dir)
    _told(row, as_json)
    return _status(row) if wait else 0


def ps(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Only this job, or the jobs of this sweep.", callback=job_named),
    ] = None,
    show_all: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that ended over an hour ago.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show it again each second, until Ctrl-C.")] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the jobs of the service, or those of a sweep, the best first."""
    client = Client(state_dir)

    def look() -> Row:
        if name is not None:
            return client.job(name)
        rows = [row for row in client.jobs() if show_all or _is_recent(row)]
        # What is watched may be longer than the screen.
        return {"jobs": sorted(rows, key=lambda row: row["state"] in WAITED_FOR) if watch and not as_json else rows}

    if watch and not as_json:
        _watch(look, lambda row: False)
        return
    try:
        with host.raising_on_signals():
            while True:
                row = look()
                print_result(*([json.dumps(jobs_of(row))] if as_json else _lines(row)))
                if not watch:
                    return
                time.sleep(WATCH_S)
    except host.Interrupted:
        return


def cancel(name: JobId, now: Now = False, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Cancel a job; a running one writes a checkpoint first."""
    _told(Client(state_dir).cancel(name, now=now), as_json)


def pause(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Stop a job with a checkpoint, so that others get its cores."""
    _told(Client(state_dir).pause(name), as_json)


def resume(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Go on with a paused job, when its cores are free."""
    _told(Client(state_dir).resume(name), as_json)


def retry(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Queue a failed or cancelled job again; it goes on from its newest checkpoint."""
    _told(Client(state_dir).retry(name), as_json)


def delete(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Remove an ended or paused job, with its run directory and checkpoints."""
    client = Client(state_dir)
    row = client.job(name)
    client.delete(row["id"])
    lines = [f"job {one['number']}  {one['id']}  deleted" for one in jobs_of(row)]
    print_answer({"id": row["id"], "deleted": True}, lines, as_json)


def show_job(name: str, state_dir: Path | None, *, as_json: bool) -> None:
    """Print one job or sweep of the service: for `show ID`."""
    row = Client(state_dir).job(name)
    print_answer(row, _lines(row) if "jobs" in row else _figures(row), as_json)


def run_of_job(name: str, state_dir: Path | None) -> Path:
    """Return the run directory of a job of the service: for `logs ID`. Raises NotFoundError before it exists."""
    row = Client(state_dir).job(name)
    if "jobs" in row:
        numbers = ", ".join(str(one["number"]) for one in row["jobs"])
        raise UsageError(f"{name} is a sweep: name one of its jobs: {_cut(numbers, MOST_NAME)}", code="usage/bad-value")
    run = Path(row["run_dir"])
    if not run.is_dir():
        raise NotFoundError(
            f"job {row['number']} is {row['state']} and has no run directory yet"
            + (f": {row['reason']}" if row["reason"] else ""),
            code="run/not-found",
        )
    return run


def table(rows: Sequence[Row], width: int | None = None) -> Iterator[str]:
    """Yield jobs as lines of a table, the jobs of one sweep with its values. `width`: of the terminal; a reason without
    room beside its job then stands below it."""
    sweeps = {row["sweep"] for row in rows}
    paths = short_paths(rows[0]["sweep_values"]) if len(sweeps) == 1 and sweeps != {None} else {}
    cells = [("job", *(paths.values() or ("name",)), "state", "done", "left", "cores", "best")]
    cells += [
        (
            str(row["number"]),
            *([_cut(row["sweep_values"].get(path, "-")) for path in paths] or [_cut(_name(row), MOST_NAME)]),
            row["state"],
            "-" if row["progress"] is None else percent(row["progress"]),
            "-" if row["left_s"] is None else clock(row["left_s"]),
            str(row["cpus"]),
            _best(row),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None and not paths:
        excess = sum(widths) + 2 * (len(widths) - 1) - width
        widths[1] = max(LEAST_NAME, widths[1] - max(0, excess))
    for line, row in zip(cells, [{"reason": "reason", "state": ""}, *rows], strict=True):
        text = "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(line, widths, strict=True))
        reason = " ".join((row["reason"] or "").split())
        has_room = width is None or len(text) + 2 + len(reason) <= width
        yield f"{text}  {reason}".rstrip() if has_room else text.rstrip()[:width]
        if width is not None and not has_room and reason and row["state"] not in ("", "succeeded"):
            yield _cut(f"{' ' * widths[0]}  {reason}", width)


def sweep_table(name: str, rows: Sequence[Row], width: int | None = None) -> Iterator[str]:
    """Yield a sweep: how many of its jobs are in which state, and its table, the best job first."""
    counts = Counter(row["state"] for row in rows)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    yield f"sweep {name}  {counted(len(rows), 'job')}: {states}"
    yield from table(sorted(rows, key=_rank), width)


def short_paths(values: Mapping[str, str]) -> dict[str, str]:
    """Return key path -> its last part, or the whole path if two have the same last part."""
    last = Counter(path.rpartition(".")[2] for path in values)
    return {path: end if last[end := path.rpartition(".")[2]] == 1 else path for path in values}


def _rank(row: Row) -> tuple[bool, float, int]:
    """Return the key that sorts jobs by their best value; those without one come last, by number."""
    best = row["best"] or {}
    value = best.get("value")
    if value is None:  # no evaluation yet, or NaN
        return (True, 0.0, row["number"])
    return (False, -value if best["higher_is_better"] else value, row["number"])


def _best(row: Row) -> str:
    return "-" if row["best"] is None or row["best"]["value"] is None else Best(**row["best"]).figure


def _name(row: Row) -> str:
    values = row["sweep_values"]
    return " ".join([row["name"], *(f"{end}={values[path]}" for path, end in short_paths(values).items())])


def _cut(text: str, most: int = MOST_CELL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _is_recent(row: Row) -> bool:
    return row["state"] not in WAITED_FOR[1:] or seconds_since(row["ended"]) < RECENT_S


def _told(row: Row, as_json: bool) -> None:
    print_answer(row, _lines(row) if "jobs" in row else [f"job {row['number']}  {row['id']}  {_state(row)}"], as_json)


def _lines(row: Row) -> Iterator[str]:
    """Yield jobs as a table that fits the terminal, if there is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    rows = jobs_of(row)
    if row.get("id", "").startswith("s"):
        yield from sweep_table(row["id"], rows, width)
        return
    yield from table(rows, width)
    for sweep in dict.fromkeys(one["sweep"] for one in rows if one["sweep"]):
        numbers = [one["number"] for one in rows if one["sweep"] == sweep]
        yield f"sweep {sweep}: jobs {min(numbers)} to {max(numbers)}"


def _watch(look: Callable[[], Row], is_last: Callable[[Row], bool]) -> bool:
    """Show the jobs again and again, from the terminal's upper left corner; return False at Ctrl-C."""
    is_terminal, begin = sys.stdout.isatty(), HOME + TO_END
    try:
        with host.raising_on_signals():
            while True:
                row = look()
                lines = [*_lines(row)]
                if is_terminal:
                    most = shutil.get_terminal_size().lines - 2
                    rest = [f"… and {counted(len(lines) - most, 'line')} more"] if len(lines) > most else []
                    lines = [begin + "\n".join(f"{line}{TO_LINE_END}" for line in [*lines[:most], *rest]) + TO_END]
                    begin = HOME
                print_result(*lines)
                if is_last(row):
                    return True
                time.sleep(WATCH_S)
    except host.Interrupted:
        return False


def _state(row: Row) -> str:
    return str(row["state"]) + (f": {row['reason']}" if row["reason"] else "")


def _has_ended(row: Row) -> bool:
    return all(one["state"] in WAITED_FOR for one in jobs_of(row))


def _status(row: Row) -> int:
    """Return the exit status of `train` for a job that has ended; of a sweep 0 only if all its jobs succeeded."""
    if "jobs" in row:
        return int(any(one["state"] != "succeeded" for one in row["jobs"]))
    status = row["exit_status"]
    if isinstance(status, int) and status >= 0 and row["state"] != "paused":
        return status
    return {"succeeded": 0, "paused": 75, "cancelled": 130}.get(row["state"], 1)


def _wait(client: Client, row: Row, state_dir: Path | None) -> Row:
    """Wait for the end. At Ctrl-C the command ends, and the jobs go on."""
    try:
        with host.raising_on_signals():
            return client.wait(row["id"])
    except host.Interrupted as caught:
        print_message(_left(row, state_dir))
        raise typer.Exit(128 + caught.number) from None


def _show_sweep(client: Client, row: Row, state_dir: Path | None) -> int:
    """Show the table of a sweep until all its jobs have ended; Ctrl-C leaves them alone."""
    if _watch(lambda: client.job(row["id"]), _has_ended):
        return _status(client.job(row["id"]))
    print_message(_left(row, state_dir))
    return 0


def _left(row: Row, state_dir: Path | None) -> str:
    """Return the message to somebody who leaves the display of a job or a sweep."""
    name = row.get("number", row["id"])
    where = f" --state-dir {shlex.quote(str(state_dir))}" if state_dir else ""
    who, what, see = ("jobs go", "them", "ps -w") if "jobs" in row else ("job goes", "it", "attach")
    return (
        f"left; the {who} on. To see {what} again: hogwild {see} {name}{where}. "
        f"To stop {what}: hogwild cancel {name}{where}"
    )


def _show_until_end(client: Client, row: Row, state_dir: Path | None) -> int:
    """Show the live display until the job ends; Ctrl-C leaves it alone."""
    from hogwild.monitoring.run_status import read_status
    from hogwild.monitoring.terminal_writer import Screen, look_for

    print_message(f"job {row['number']} ({row['id']}) is {row['state']}; Ctrl-C: leave it alone")
    stop_it = f"hogwild cancel {row['number']}"
    screen = Screen(look_for(True, 1), lambda _: f"Ctrl-C: leave; the job goes on. To stop it: {stop_it}")
    is_left = False
    run, said = Path(row["run_dir"]), None
    try:
        with host.raising_on_signals():
            screen.start()
            while (row := client.job(row["id"]))["state"] not in WAITED_FOR:
                if row["state"] != "queued" and run.is_dir() and (found := read_status(run)).is_alive:
                    screen.show(found.glance)
                elif row["state"] == "queued" and row["reason"] != said:
                    said = row["reason"]
                    print_message(f"job {row['number']} waits: {said}" if said else f"job {row['number']} is queued")
                time.sleep(LOOK_S)
    except host.Interrupted:
        is_left = True
    screen.close()
    if is_left:
        print_message(_left(row, state_dir))
        return 0
    print_result(*_figures(row))
    return _status(row)


def _figures(row: Row) -> Iterator[str]:
    """Yield a job on one screen."""
    yield f"job {row['number']}  {row['name']}  {_state(row)}"
    if row["error"] and row["error"] != row["reason"]:
        yield from (f"  {line}" for line in row["error"].splitlines())
    if row["error_code"]:
        yield f"  code        {row['error_code']}: hogwild explain {row['error_code']}"
    sweep = f", sweep {row['sweep']}" if row["sweep"] else ""
    yield f"  id          {row['id']}, attempt {row['attempt']}{sweep}"
    yield f"  job file    {' '.join([row['job_file'], *row['overrides']])}"
    yield f"  run         {row['run_dir']}"
    where = f"process {row['pid']} on CPUs {','.join(map(str, row['cores']))}" if row["pid"] else "no process"
    yield f"  runs on     {counted(row['cpus'], 'core')}, {where}; priority {row['priority']}"
    if row["progress"] is not None:
        left = f", left {clock(row['left_s'])}" if row["left_s"] is not None else ""
        yield f"  progress    {percent(row['progress'])}, update {row['updates']:,}{left}"
    if row["best"]:
        yield f"  best        {_best(row)}"
    yield f"  submitted   {duration(seconds_since(row['submitted']))} ago"
