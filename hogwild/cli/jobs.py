"""Commands that ask a running service: submit, ps, cancel, pause, resume, retry, delete. They import neither torch nor
fastapi."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hogwild import host
from hogwild.cli.arguments import Arguments, DataDir, Json, StateDir, split_arguments
from hogwild.cli.output import print_answer, print_message, print_result
from hogwild.errors import NotFoundError
from hogwild.formatting import clock, duration, percent
from hogwild.service.client import WAITED_FOR, Client, Row, seconds_since

LOOK_S = 0.2
WATCH_S = 1.0
RECENT_S = 3600.0  # ended jobs that `ps` shows without -a
CLEAR = "\x1b[H\x1b[2J"
JobId = Annotated[str, typer.Argument(metavar="ID", help="Number, id or beginning of an id of a job.")]
Now = Annotated[bool, typer.Option("--now", help="At once, without a checkpoint; a second time: SIGKILL.")]
Detach = Annotated[bool, typer.Option("-d", "--detach", help="Do not show the job's progress.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; the exit status is the job's.")]


def submit(
    arguments: Arguments = None,
    data_dir: DataDir = None,
    detach: Detach = False,
    wait: Wait = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Submit a job to the service and show its progress. Ctrl-C leaves the job alone."""
    job_file, overrides = split_arguments(arguments)
    client = Client(state_dir)
    with host.raising_on_signals():
        row = client.submit(job_file, overrides, data_dir=data_dir)
    if not (detach or wait or as_json):
        print_message(f"job {row['number']} ({row['id']}) is {row['state']}; Ctrl-C: leave it alone")
        return _show_until_end(client, row)
    if wait:
        row = _wait(client, row)
    print_answer(row, [f"job {row['number']}  {row['id']}  {_state(row)}"], as_json)
    return _status(row) if wait else 0


def ps(
    show_all: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that ended over an hour ago.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show it again each second, until Ctrl-C.")] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the jobs of the service."""
    client = Client(state_dir)
    try:
        with host.raising_on_signals():
            while True:
                rows = [row for row in client.jobs() if show_all or _is_recent(row)]
                if as_json:
                    print_result(json.dumps(rows))
                else:
                    print_result((CLEAR if watch else "") + "\n".join(table(rows)))
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
    print_answer({"id": row["id"], "deleted": True}, [f"job {row['number']}  {row['id']}  deleted"], as_json)


def show_job(name: str, state_dir: Path | None, *, as_json: bool) -> None:
    """Print one job of the service: for `show ID`."""
    row = Client(state_dir).job(name)
    print_answer(row, _figures(row), as_json)


def run_of_job(name: str, state_dir: Path | None) -> Path:
    """Return the run directory of a job of the service: for `logs ID`. Raises NotFoundError before it exists."""
    row = Client(state_dir).job(name)
    run = Path(row["run_dir"])
    if not run.is_dir():
        raise NotFoundError(
            f"job {row['number']} is {row['state']} and has no run directory yet"
            + (f": {row['reason']}" if row["reason"] else ""),
            code="run/not-found",
        )
    return run


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the jobs as lines of a table."""
    cells = [("job", "id", "name", "state", "progress", "left", "cores", "best", "reason")]
    cells += [
        (
            str(row["number"]),
            row["id"],
            row["name"],
            row["state"],
            "-" if row["progress"] is None else percent(row["progress"]),
            "-" if row["left_s"] is None else clock(row["left_s"]),
            ",".join(map(str, row["cores"])) or f"({row['cpus']})",
            "-" if row["best"] is None else f"{row['best']['metric']} {row['best']['value']:.4g}",
            row["reason"] or "",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _is_recent(row: Row) -> bool:
    return row["state"] not in WAITED_FOR[1:] or seconds_since(row["ended"]) < RECENT_S


def _told(row: Row, as_json: bool) -> None:
    print_answer(row, [f"job {row['number']}  {row['id']}  {_state(row)}"], as_json)


def _state(row: Mapping[str, Any]) -> str:
    return str(row["state"]) + (f": {row['reason']}" if row["reason"] else "")


def _status(row: Row) -> int:
    """Return the exit status of `train` for a job that has ended."""
    status = row["exit_status"]
    if isinstance(status, int) and status >= 0 and row["state"] != "paused":
        return status
    return {"succeeded": 0, "paused": 75, "cancelled": 130}.get(row["state"], 1)


def _wait(client: Client, row: Row) -> Row:
    with host.raising_on_signals():
        return client.wait(row["id"])


def _show_until_end(client: Client, row: Row) -> int:
    """Show the live display until the job ends; Ctrl-C leaves it alone."""
    from hogwild.monitoring.run_status import read_status
    from hogwild.monitoring.terminal_writer import Screen, look_for

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
        print_message(f"left; the job goes on. To see it again: hogwild attach {run}. To stop it: {stop_it}")
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
    yield f"  id          {row['id']}, attempt {row['attempt']}"
    yield f"  job file    {' '.join([row['job_file'], *row['overrides']])}"
    yield f"  run         {row['run_dir']}"
    where = f"process {row['pid']} on CPUs {','.join(map(str, row['cores']))}" if row["pid"] else "no process"
    yield f"  cores       {row['cpus']} of them; {where}; priority {row['priority']}"
    if row["progress"] is not None:
        left = f", left {clock(row['left_s'])}" if row["left_s"] is not None else ""
        yield f"  progress    {percent(row['progress'])}, update {row['updates']:,}{left}"
    if row["best"]:
        yield f"  best        {row['best']['metric']} {row['best']['value']:.4g}"
    yield f"  submitted   {duration(seconds_since(row['submitted']))} ago"
