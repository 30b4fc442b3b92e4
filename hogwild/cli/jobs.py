"""`serve`: the training service in this process; and the commands that ask a running one and import neither torch nor
fastapi: submit, ps, cancel, pause, resume, retry, delete, show."""

import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hogwild import host
from hogwild.cli.arguments import (
    Arguments,
    DataDir,
    Json,
    StateDir,
    Sweep,
    Tag,
    grid_search,
    is_job_id,
    split_arguments,
)
from hogwild.cli.output import aligned, cut, print_answer, print_message, print_result, reading
from hogwild.cli.runs import watch
from hogwild.config.of_run import load
from hogwild.errors import NotFoundError, UsageError
from hogwild.formatting import clock, counted, duration, in_one_line, percent, ranges, short_number
from hogwild.monitoring.run_status import Best, JobSnapshot, read_status
from hogwild.service.client import WAITED_FOR, Client, Row, seconds_since
from hogwild.service.folders import StateFolder, state_folder

if TYPE_CHECKING:
    from hogwild.service.routes_machine import Template


WATCH_S = 1.0
RECENT_S = 3600.0  # ended jobs that `ps` shows without -a
MOST_NAME, LEAST_NAME, MOST_CELL = 32, 8, 20  # letters in a table
LEAST_NOTE = 30  # letters of a line of a note below its job
HEAD = ("state", "done", "left", "cores", "best")
INDENT = 14  # of the text in `show`
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}  # paths can be copied
HOME, TO_LINE_END, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"  # overwriting does not flicker as clearing does
JobId = Annotated[str, typer.Argument(metavar="ID", help="Number or id of a job, or the beginning of the id.")]
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
    job_file, overrides = split_arguments(arguments)
    if sweep:
        overrides.append(grid_search(sweep))
    client = Client(state_dir)
    with host.raising_on_signals():
        row = client.submit(job_file, overrides, data_dir=data_dir, tell=print_message)
    if not (detach or wait or as_json):
        return (_show_search if row["is_search"] else _show_until_end)(client, row, state_dir)
    if wait:
        row = _wait(client, row, state_dir)
    _told(row, as_json)
    return _status(row) if wait else 0


def ps(
    name: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this job.")] = None,
    show_all: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that ended over an hour ago.")] = False,
    tag: Tag = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show it again each second, until Ctrl-C.")] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the jobs of the service."""
    client = Client(state_dir)

    def look() -> list[Row]:
        if name is not None:
            return [client.job(name)]
        rows = [row for row in client.jobs() if show_all or _is_recent(row)]
        return [row for row in rows if {*(tag or ())} <= {*row["tags"]}]

    _watch(look, lambda rows: not watch, in_place=watch and sys.stdout.isatty(), as_json=as_json)


def cancel(name: JobId, now: Now = False, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Cancel a job; a running one writes a checkpoint first."""
    _told(Client(state_dir).cancel(name, now=now), as_json)


def pause(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Stop a job with a checkpoint, so that others get its cores."""
    _told(Client(state_dir).pause(name), as_json)


def resume(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Go on with a paused job, when its cores are free."""
    _told(Client(state_dir).resume(name), as_json)


def retry(
    name: JobId,
    new_code: Annotated[
        bool, typer.Option("--new-code", help="Copy the modules and small files of the job's folder again.")
    ] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Queue a failed or cancelled job again; it goes on from its newest checkpoint, with the code of its submission."""
    row = Client(state_dir).retry(name, new_code=new_code)
    _told(row, as_json)
    if not as_json:
        print_result(f"job {row['number']}  code {_code(row)}")


def delete(name: JobId, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Remove an ended or paused job, with its run directory and checkpoints."""
    client = Client(state_dir)
    row = client.job(name)
    client.delete(row["id"])
    print_answer({"id": row["id"], "deleted": True}, [f"job {row['number']}  {row['id']}  deleted"], as_json)


def show(arguments: Arguments = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Print the resolved job: every field, with defaults and overrides. With the ID of a job of the service: that
    job."""
    if arguments and len(arguments) == 1 and is_job_id(arguments[0]):
        row = Client(state_dir).job(arguments[0])
        print_answer(row, _fitted(_figures(row)), as_json)
        return
    with reading():
        job, _ = load(*split_arguments(arguments))
    print_result(job.to_yaml().rstrip("\n"))


def table(rows: Sequence[Row], width: int | None = None) -> Iterator[str]:
    """Yield jobs as lines of a table. `width`: of the terminal; names are cut to it, and a note (what a job waits for,
    why it failed) stands below its job, whole, if it has no room beside it."""
    has_tags = any(row["tags"] for row in rows)
    head = ("job", "name", *(["tags"] if has_tags else []), *HEAD)
    cells = [
        (
            str(row["number"]),
            cut(row["name"], MOST_NAME),
            *([cut(", ".join(row["tags"]), MOST_CELL) or "-"] if has_tags else []),
            row["state"],
            "-" if row["progress"] is None else percent(row["progress"]),
            "-" if row["left_s"] is None else clock(row["left_s"]),
            cut(ranges(row["cores"]), MOST_CELL) or "-",
            _best(row),
        )
        for row in rows
    ]
    lines = aligned([head, *cells], width, least=LEAST_NAME)
    indent = " " * max(len(one[0]) for one in (head, *cells))
    for line, note, state in zip(lines, ["note", *map(_note, rows)], ["", *(r["state"] for r in rows)], strict=True):
        beside = f"{line}  {note}".rstrip()
        if width is None or len(beside) <= width:
            yield beside
        else:
            yield cut(line.rstrip(), width)
            if state and state != "succeeded":
                within = max(LEAST_NOTE, width - len(indent) - 2)
                yield from (f"{indent}  {line}" for line in textwrap.wrap(note, within, break_on_hyphens=False))


def _note(row: Row) -> str:
    """Return why a job is in its state, with all lines of an error but its traceback, or that its cores move."""
    has_moved = row["moves"] or row["moving_to"] is not None or row["fixed"]
    reason, error = row["reason"] or "", (row["error"] or "").partition("\n\n")[0]
    is_its_error = reason and error.startswith(f"{reason}\n")
    words = in_one_line(error if is_its_error else reason).split()
    return " ".join(words) or (_lending(row) if has_moved else "")


def _lending(row: Row) -> str:
    """Return `elastic 1-2, moved 3 times`; "" for a job that keeps its cores."""
    if row["elastic"] is None:
        return ""
    least, most = row["elastic"]["min"], row["elastic"]["max"]
    words = [f"elastic {least}" if least == most else f"elastic {least}-{most}"]
    words += [f"moved {counted(row['moves'], 'time')}"] if row["moves"] else []
    words += [f"moving to {ranges(row['moving_to'])}"] if row["moving_to"] is not None else []
    words += [f"cannot be moved: {row['fixed']}"] if row["fixed"] else []
    return ", ".join(words)


def _best(row: Row) -> str:
    return "-" if row["best"] is None or row["best"]["value"] is None else Best(**row["best"]).figure


def _is_recent(row: Row) -> bool:
    return row["state"] not in WAITED_FOR[1:] or seconds_since(row["ended"]) < RECENT_S


def _told(row: Row, as_json: bool) -> None:
    print_answer(row, [f"job {row['number']}  {row['id']}  {_state(row)}"], as_json)


def _code(row: Row) -> str:
    """Return which code a job runs, and how it gets the present one."""
    if row["code_at"]:
        return f"of {row['folder']}, copied again {duration(seconds_since(row['code_at']))} ago"
    words = f"as it was submitted, {duration(seconds_since(row['submitted']))} ago"
    has_newer = row["folder"] and row["state"] in ("queued", "failed", "cancelled", "paused")
    return f"{words}; the present one: hogwild retry --new-code {row['number']}" if has_newer else words


def _watch(
    look: Callable[[], list[Row]], is_last: Callable[[list[Row]], bool], *, in_place: bool, as_json: bool = False
) -> bool:
    """Show the jobs again and again, `in_place`: from the terminal's upper left corner; return False at Ctrl-C."""
    begin = HOME + TO_END
    try:
        with host.raising_on_signals():
            while True:
                rows = look()
                lines = [*table(rows, _width())]  # that fits the terminal, if there is one
                if in_place and not as_json:
                    most = shutil.get_terminal_size().lines - 2
                    rest = [f"… and {counted(len(lines) - most, 'line')} more"] if len(lines) > most else []
                    lines = [begin + "\n".join(f"{line}{TO_LINE_END}" for line in [*lines[:most], *rest]) + TO_END]
                    begin = HOME
                print_answer({"jobs": rows}, lines, as_json)
                if is_last(rows):
                    return True
                time.sleep(WATCH_S)
    except host.Interrupted:
        return False


def _state(row: Row) -> str:
    return f"{row['state']}: {reason}" if (reason := row["reason"]) else str(row["state"])


def _status(row: Row) -> int:
    """Return the exit status of `train` for a job that has ended."""
    status = row["exit_status"]
    if isinstance(status, int) and status >= 0 and row["state"] != "paused":
        return status
    return {"succeeded": 0, "paused": 75, "cancelled": 130}.get(row["state"], 1)


def _wait(client: Client, row: Row, state_dir: Path | None) -> Row:
    """Wait for the end. At Ctrl-C the command ends, and the job goes on."""
    try:
        with host.raising_on_signals():
            return client.wait(row["id"])
    except host.Interrupted as caught:
        print_message(_left(row, state_dir))
        raise typer.Exit(128 + caught.number) from None


def _show_search(client: Client, row: Row, state_dir: Path | None) -> int:
    """Show the row of a search until it has ended; Ctrl-C leaves it alone."""

    def has_ended(rows: list[Row]) -> bool:
        return rows[0]["state"] in WAITED_FOR

    if _watch(lambda: [client.job(row["id"])], has_ended, in_place=sys.stdout.isatty()):
        row = client.job(row["id"])
        print_result(*_fitted(_figures(row)))
        return _status(row)
    print_message(_left(row, state_dir))
    return 0


def _left(row: Row, state_dir: Path | None) -> str:
    """Return the message to somebody who leaves the display of a job."""
    name, where = row["number"], _where(state_dir)
    see, stop = f"hogwild attach {name}{where}", f"hogwild cancel {name}{where}"
    return f"left; the job goes on. To see it again: {see}. To stop it: {stop}"


def _where(state_dir: Path | None) -> str:
    return StateFolder(state_folder(state_dir)).option


def _show_until_end(client: Client, row: Row, state_dir: Path | None) -> int:
    """Show the live display until the job ends; Ctrl-C leaves it alone."""
    print_message(f"job {row['number']} ({row['id']}) is {row['state']}; Ctrl-C: leave it alone")

    def snapshots() -> Iterator[JobSnapshot | None]:
        nonlocal row
        run, said = Path(row["run_dir"]), None
        while (row := client.job(row["id"]))["state"] not in WAITED_FOR:
            if row["state"] == "queued" and row["reason"] != said:
                said = row["reason"]
                print_message(f"job {row['number']} waits: {said}" if said else f"job {row['number']} is queued")
            found = read_status(run) if row["state"] != "queued" and run.is_dir() else None
            yield found.snapshot if found is not None and found.is_alive else None

    if not watch(snapshots(), f"hogwild cancel {row['number']}{_where(state_dir)}"):
        print_message(_left(row, state_dir))
        return 0
    print_result(*_fitted(_figures(row)))
    return _status(row)


def _width() -> int | None:
    """Return the columns of the terminal; None if the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fitted(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of `_figures` with their ends below the beginning of the text, if they are too long."""
    width = _width()
    for line in lines:
        yield line if width is None else textwrap.fill(line, width, subsequent_indent=" " * INDENT, **WHOLE_WORDS)


def _figures(row: Row) -> Iterator[str]:
    """Yield a job on one screen."""
    yield f"job {row['number']}  {row['name']}  {_state(row)}"
    told = row["error"].splitlines() if row["error"] else []
    yield from (f"  {line}" for line in told[told[:1] == [row["reason"]] :])
    if row["error_code"]:
        yield f"  error code  {row['error_code']}: hogwild explain {row['error_code']}"
    yield f"  id          {row['id']}, attempt {row['attempt']}, priority {row['priority']}"
    yield f"  job file    {shlex.join([row['job_file'], *row['overrides']])}"
    if row["folder"]:
        yield f"  folder      {row['folder']}"
    if row["tags"]:
        yield f"  tags        {', '.join(row['tags'])}"
    yield f"  code        {_code(row)}"
    yield f"  run         {row['run_dir']}"
    if row["pid"]:
        yield f"  process     {row['pid']}"
    cores = f"CPU {ranges(row['cores'])}" if row["cores"] else f"asks for {counted(row['cpus'], 'core')}"
    yield "  cores       " + ", ".join(filter(None, (cores, _lending(row))))
    if row["progress"] is not None:
        speed = f", {short_number(row['samples_per_s'])} samples/s" if row["left_s"] is not None else ""
        left = f", left {clock(row['left_s'])}" if row["left_s"] is not None else ""
        update = "" if row["is_search"] else f", update {row['updates']:,}"
        yield f"  progress    {percent(row['progress'])}{update}{speed}{left}"
    if row["is_search"]:
        words = f"hogwild search show {row['number']}, hogwild report {row['number']}"
        yield f"  search      {counted(row['trials'] or 0, 'trial')}: {words}"
    if row["best"]:
        yield f"  best        {_best(row)}"
    ended = f", ended {duration(seconds_since(row['ended']))} ago" if row["ended"] else ""
    yield f"  submitted   {duration(seconds_since(row['submitted']))} ago{ended}"


# ---- serve -----------------------------------------------------------------------------------------------------------

SERVICE_PORT = 8470
ROOT_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")
MOST_PATH = 100  # letters of a wrong path
OWN_PATHS = ("api", "page", "metrics", "healthz")  # of the service itself


def serve(
    state_dir: StateDir = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")] = SERVICE_PORT,
    root_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Path of the reverse proxy that passes requests here, such as /hogwild; / for all."
        ),
    ] = None,
) -> int:
    """Run the training service: a queue of jobs, a page, an API. Ctrl-C ends it; jobs go on."""
    root = None if root_path is None else _checked_root(root_path)
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"hogwild serve needs {' and '.join(missing)}: pip install 'hogwild[service]'", code="usage/missing-extra"
        )
    from hogwild.service.app import run
    from hogwild.workers.processes.job_server import JobServer

    state = StateFolder(state_folder(state_dir))

    def tell(link: str, port: int) -> None:
        print_result(f"serving {state.path} on port {port}; open:\n  {link}")
        print_message(
            f"Submit with `hogwild submit JOB.yaml{state.option}`. Ctrl-C ends the service; running jobs go on, and "
            "the next service finds them.\n"
            f"From another machine: ssh -L {port}:127.0.0.1:{port} HOST, then open the same link."
            if root is None
            else f"Through the proxy: https://HOST{root}/?{link.partition('?')[2]}"
        )

    run(state, port, tell, _templates, JobServer(), search_page, root)
    return 0


def _checked_root(given: str) -> str:
    """Return the path of a proxy without a slash at its end. Raises UsageError."""
    path = given.rstrip("/") if given.startswith("/") else given
    if (path and not ROOT_PATH.fullmatch(path)) or not given:
        raise UsageError(
            f"--root-path {cut(given, MOST_PATH)!r}: must be a path of letters, digits and . _ ~ - that begins with "
            "/, such as /hogwild",
            code="usage/bad-value",
        )
    if (first := path[1:].partition("/")[0]) in OWN_PATHS:
        raise UsageError(
            f"--root-path {given!r}: must not begin with /{first}, which is a path of the service itself; choose "
            "another one, such as /hogwild",
            code="usage/bad-value",
        )
    return path


def _templates() -> "list[Template]":
    """Return the job files of `hogwild init`, for the page."""
    from hogwild.cli.catalog import job_text, list_tasks, needed_files, tasks
    from hogwild.service.routes_machine import Template

    found = []
    for name, description in list_tasks().items():
        files = needed_files(tasks()[name])
        texts = {path: text for path, content in files.items() if (text := _text_of(content)) is not None}
        needs = [path for path in files if path not in texts]
        text = job_text(name)
        found.append(Template(name=name, description=description, text=text, files=texts, needs=needs))
    return found


def search_page(folder: Path) -> str:
    """Return the page of a search. Raises NotFoundError for a folder that is none, or damaged; UsageError without
    Optuna."""
    from hogwild.searching import require_optuna

    require_optuna()
    from hogwild.searching.page import page_of
    from hogwild.searching.results import SearchRun

    try:
        found = SearchRun.of(folder)
        return page_of(found, found.study())
    except (KeyError, TypeError, ValueError, OSError) as error:  # user code may have written there
        raise NotFoundError(f"{folder}: the search cannot be read: {error!r}", code="search/not-found") from error


def _text_of(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
