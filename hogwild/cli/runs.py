"""Commands for running and ended jobs, from their run directories alone: runs, status, logs, attach, stop, ask; and the
texts of a job, of its summary and of its state. They import neither torch nor numpy."""

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hogwild import host
from hogwild.cli.arguments import Json, StateDir, Tag, check_choice, is_job_id, run_names
from hogwild.cli.output import aligned, print_answer, print_message, print_part
from hogwild.errors import ConflictError, NotFoundError, RunEndedError, RunError, UsageError
from hogwild.formatting import beside, clock, counted, duration, moment, percent, short_number
from hogwild.host import other_jobs
from hogwild.monitoring.run_status import (
    LOST,
    RUNS,
    JobSnapshot,
    RunStatus,
    find_run,
    is_running,
    read_status,
    resume_words,
    runs_in,
    snapshot_of,
    trained_by,
    where_runs_are,
)
from hogwild.storage.run_directory import LIBRARY, LOCK
from hogwild.storage.run_files import answer_to, read_json, size_of_events, withdraw, write_request

if TYPE_CHECKING:
    from hogwild.config.load import Job
    from hogwild.config.schema import Component

LOOK_S = 0.2
LINES = 10_000  # of a log printed at once
MOST_EVENTS = 3
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run directory, its name in runs/, or latest.", autocompletion=run_names),
]
RunOrJob = Annotated[
    str,
    typer.Argument(
        metavar="RUN|ID",
        help="Run directory, its name in runs/, latest, or a job of the service.",
        autocompletion=run_names,
    ),
]


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Folders of run directories; default: runs.")
    ] = None,
    tag: Tag = None,
    as_json: Json = False,
) -> int:
    """List the runs of one or several folders, the newest first."""
    given = list(dict.fromkeys(folders or [RUNS]))
    listed, missing = list[RunStatus](), list[NotFoundError]()
    for folder in given:
        try:
            here = runs_in(folder)
        except NotFoundError as error:
            missing.append(error)
            continue
        listed += here
        if not here and (hint := where_runs_are(folder)):
            print_message(f"no runs in {folder}: {hint}")
    if len(missing) == len(given):
        raise missing[0]
    for one in missing:  # the other folders' runs are listed all the same
        print_message(f"{one}")
    listed.sort(key=lambda run: run.began, reverse=True)
    found = [run for run in listed if {*(tag or ())} <= {*run.tags}]
    has_tags = any(run.tags for run in found)
    rows = [("run", "state", "progress", "best", *(["tags"] if has_tags else []), "began")]
    rows += [
        (
            run.path.name if len(given) == 1 else str(run.path),
            run.state,
            "-" if run.snapshot.progress is None else percent(run.snapshot.progress),
            "-" if run.snapshot.best is None else run.snapshot.best.figure,
            *([", ".join(run.tags) or "-"] if has_tags else []),
            f"{duration(run.ago_s)} ago",
        )
        for run in found
    ]
    record = {"runs": [_as_json(run) for run in found], "missing": [str(one) for one in missing]}
    print_answer(record, map(str.rstrip, aligned(rows)), as_json)
    return missing[0].exit_status if missing else 0


def status(run: RunOrJob, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show what a run does now, or how it ended."""
    path = run_of(run, state_dir)
    _print_run(read_status(path), f"job {run}" if _is_of_job(run, path) else path.name, as_json)


def logs(
    run: RunOrJob,
    follows: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    worker: Annotated[int | None, typer.Option(min=0, help="Log of this worker.", metavar="K")] = None,
    state_dir: StateDir = None,
) -> None:
    """Print the log of a run's supervisor, or of a worker."""
    path = run_of(run, state_dir)
    folder = path / "logs"
    file = folder / ("supervisor.log" if worker is None else f"worker-{worker}.log")

    def goes_on() -> bool:
        return follows and read_status(path).is_alive

    known = read_status(path).record.get("workers")  # [] while it is built
    is_coming = worker is None or not known or worker < len(known)
    if not (file.is_file() or (is_coming and goes_on())):
        there = ", ".join(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else "no logs"
        raise NotFoundError(f"{path} has no {file.relative_to(path)} (there: {there})", code="run/no-log")
    try:
        with host.raising_on_signals():
            for lines in follow(path, file.relative_to(path).parts, goes_on):
                print_part(lines)
    except host.Interrupted:
        return


def run_of(given: str, state_dir: Path | None) -> Path:
    """Return the run of an argument: a run's name or path, otherwise the id of a job of the service."""
    try:
        return find_run(given)
    except NotFoundError:
        if not is_job_id(given):
            raise
    from hogwild.service.client import Client

    return Client(state_dir).run_dir(given)


def _is_of_job(given: str, path: Path) -> bool:
    """Return whether the argument for which `run_of` returned `path` is the id of a job of the service."""
    return is_job_id(given) and path.name != given


def follow(run: Path, names: Sequence[str], goes_on: Callable[[], bool]) -> Iterator[str]:
    """Yield the complete lines of a file below a run, several at once and without the last line end, then those that
    are appended, until `goes_on` is False; then also a last line without an end. The file may not exist yet, be
    replaced, or be cut: then it is read from its beginning."""
    from hogwild.service.run_reader import GrowingFile

    file = GrowingFile(run, *names)
    while True:
        is_last = not goes_on()  # asked first: what was written before the end is still read
        lines = (line for _, _, line in file.lines())
        while block := [*islice(lines, LINES)]:
            if text := b"".join(block):
                yield text.decode(errors="replace").removesuffix("\n")
        if is_last:
            break
        time.sleep(LOOK_S)
    if rest := file.rest():
        yield rest.decode(errors="replace")


def attach(run: RunOrJob, state_dir: StateDir = None) -> int:
    """Show the live display of a job, or the trials of a search, started elsewhere. Ctrl-C leaves it alone."""
    path = run_of(run, state_dir)
    found = require_alive(read_status(path))
    stop_it = f"hogwild stop {shlex.quote(str(path))}"
    if _is_of_job(run, path):
        from hogwild.service.folders import StateFolder, state_folder

        stop_it = f"hogwild cancel {run}{StateFolder(state_folder(state_dir)).option}"

    def snapshots() -> Iterator[JobSnapshot | None]:
        nonlocal found
        shown = None
        while True:
            at = found.record.get("time")
            yield found.snapshot if at != shown or found.late_s is not None else None
            shown = at
            if not found.is_alive:
                return
            found = read_status(path)

    def watch_search() -> bool:
        nonlocal found
        from hogwild.cli.search import watch_trials

        is_whole = watch_trials(path, lambda: read_status(path), f"Ctrl-C: leave; it goes on. To stop it: {stop_it}")
        found = read_status(path)
        return is_whole

    if not (watch_search() if found.is_search else watch(snapshots(), stop_it)):
        print_message(f"left; the job goes on. To stop it: {stop_it}")
        return 0
    return _told(path, found)


def watch(snapshots: Iterator[JobSnapshot | None], stop_it: str) -> bool:
    """Show a job on the live display, look after look (None: nothing new); return False at Ctrl-C. `stop_it`: the
    command that does."""
    from hogwild.monitoring.terminal_writer import Screen, look_for

    screen = Screen(look_for(True, 1), lambda _: f"Ctrl-C: leave; the job goes on. To stop it: {stop_it}")
    try:
        with host.raising_on_signals():
            screen.start()
            for job in snapshots:
                if job is not None:
                    screen.show(job)
                time.sleep(LOOK_S)
        return True
    except host.Interrupted:
        return False
    finally:
        screen.close()


def stop(
    run: RunName,
    now: Annotated[bool, typer.Option("--now", help="At once, without a checkpoint: as a second Ctrl-C.")] = False,
    as_json: Json = False,
) -> int:
    """Stop a running job: it writes a checkpoint and can be resumed. Wait until it has ended."""
    path = find_run(run)
    found = require_alive(read_status(path))
    try:
        pidfd = found.find_process()
    except RunError:
        require_alive(read_status(path))  # perhaps it has just ended
        raise
    asked = found.record
    first, second = other_jobs.TERMINATE, other_jobs.INTERRUPT  # two of one number could arrive as one
    if asked.get("caller") == LIBRARY:  # a notebook, which survives a Ctrl-C if the job has just ended
        first, second = second, first
    is_asked = found.state == "stopping"
    is_second_due = now and not is_asked  # a job being built needs one only
    try:
        if now or not is_asked:  # another one would end the job without its last checkpoint
            host.kill_by_pidfd(pidfd, first)
        was_asked = "is stopping already" if is_asked and not now else "was asked to stop"
        print_message(f"{path.name}: process {asked['pid']} {was_asked}; waiting for its end (Ctrl-C: do not wait)")
        with host.raising_on_signals():
            # Its lock may outlive its end for a moment, and in a notebook the process goes on.
            while is_running(asked) and (found.is_alive or host.is_locked(path / LOCK)):
                if is_second_due and found.state in ("running", "stopping"):
                    is_second_due = not host.kill_by_pidfd(pidfd, second)
                host.wait_readable([pidfd], LOOK_S * 1000)
                found = read_status(path)
            found = read_status(path)
    except PermissionError as error:
        raise RunError(
            f"{path} is run by process {asked['pid']} of another user; only that user, or root, can stop it",
            code="run/no-permission",
        ) from error
    except host.Interrupted:
        print_message("not waiting any longer; it stops by itself")
        return 128 + other_jobs.INTERRUPT
    finally:
        os.close(pidfd)
    return _told(path, found, as_json=as_json)


def require_alive(found: RunStatus) -> RunStatus:
    """Return the run if its process is alive. Raises RunEndedError."""
    if found.is_alive:
        return found
    words = [f"{found.path} does not run: {found.ending}", found.way_on]
    code = "run/lost" if found.state == LOST else "run/ended"
    raise RunEndedError("\n".join(word for word in words if word), code=code)


def _told(path: Path, found: RunStatus, *, as_json: bool = False) -> int:
    """Print how a job ended; return the exit status: 0, or 1 if it failed or was killed."""
    if not path.is_dir():
        print_answer({"state": "cancelled", "run_dir": str(path)}, [], as_json)
        print_message(f"{path.name}: ended before training began; its run directory is removed")
        return 0
    _print_run(found, path.name, as_json)
    return int(found.state in ("failed", LOST))


def _print_run(found: RunStatus, title: str, as_json: bool) -> None:
    """Print a run on one screen, or the trials of a search as `hogwild search show` does."""
    if found.is_search:
        from hogwild.cli.search import shown

        print_answer(*shown(found.path), as_json)
    else:
        print_answer(_as_json(found), _figures(found, title), as_json)


# ---- texts


def _as_json(found: RunStatus) -> Mapping[str, Any]:
    ends = {"state": found.state, "is_alive": found.is_alive, "is_resumable": bool(found.way_on) and found.is_begun}
    return {**found.record, "run_dir": str(found.path.absolute()), **ends}


def _figures(found: RunStatus, title: str) -> Iterator[str]:
    """Yield a run on one screen."""
    job, record = found.snapshot, found.record
    doing = f", {job.state}" if found.is_alive and job.state != found.state else ""
    left = f", left {clock(job.left_s)}" if found.is_alive and job.left_s is not None else ""
    yield f"{title}  {found.state if found.is_alive else found.ending}{doing}{left}"
    yield f"  job         {job.name}, in {job.run_dir}"
    if found.tags:
        yield f"  tags        {', '.join(found.tags)}"
    who = f"{record.get('pid', '-')} on {record.get('host', '-')}, attempt {record.get('attempt', 1)}"
    yield f"  process     {who}, began {moment(found.began)}"
    planned = f" of {job.planned_updates:,}" if job.planned_updates else ""
    share = "" if job.progress is None else f"{percent(job.progress)}, "
    done = f"update {job.updates:,}{planned}, {job.samples:,} samples"
    yield f"  progress    {share}epoch {job.epoch} of {job.epochs}, {done}"
    if job.samples:
        now = f"loss {job.loss:.4g}, " if found.is_alive and job.loss is not None else ""
        epoch = "" if job.train_loss is None else f"last epoch {job.train_loss:.4g}, "
        speed = f"{short_number(job.samples_per_s)} samples/s"
        yield f"  training    {now}{epoch}{speed}, ran {clock(job.wall_s)}"
    if job.metrics:
        yield "  evaluation  " + ", ".join(beside(job.metrics, job.popularity))
    if job.best is not None:
        yield f"  best        {job.best}"
    if job.cluster is not None:
        yield f"  cluster     {', '.join(job.cluster.words)}"
    if job.trouble:
        yield "  trouble     " + ", ".join(f"{name} {count:,}" for name, count in job.trouble.items())
    for worker in job.workers:
        rate = worker.silence or f"{short_number(worker.samples_per_s)} samples/s"
        again = f"  restarts {worker.restarts}" if worker.restarts else ""
        yield f"  worker {worker.worker:<4} {worker.doing:<10} {rate}  pid {worker.pid or '-'}{again}"
    if job.server is not None:
        yield f"  server      {job.server}"
    yield from (f"  event       {line}" for line in job.news[-MOST_EVENTS:] if found.is_alive)
    if found.late_s is not None:
        age = duration(found.late_s)
        yield f"  late        the last record is {age} old: the supervisor is stopped, or its disk does not answer"
    if found.way_on:
        yield f"  {found.way_on}"


# ---- a job in a few lines, and its summary ---------------------------------------------------------------------------


def plan_lines(job: "Job") -> Iterator[str]:
    """Yield a job in a few lines, from its file alone."""
    from hogwild.config.schema import Split  # pydantic, which `status` does without

    train, data = job.train, job.data
    yield f"  model      {_call(job.model)}"
    yield f"  loss       {_call(job.loss)}"
    yield f"  data       {_call(data.train)}, batches of {data.batch_size}"
    if data.val is not None:
        held_back = f"{data.val.fraction:g} of it" if isinstance(data.val, Split) else _call(data.val)
        yield f"  evaluated  on {held_back}"
    yield f"  optimizer  {_call(job.optimizer)}, state {job.optimizer.state}, lr {job.lr_schedule.name}"
    for group in job.optimizer.groups:
        own = ", ".join(f"{name}={value!r}" for name, value in group.init_args.items())
        yield f"    group    {' '.join(group.params)}: {own or 'no own settings'}"
    given = (("max_updates", train.max_updates), ("max_time_s", train.max_time_s))
    limits = "".join(f", {name} {value}" for name, value in given if value is not None)
    yield f"  train      {train.epochs} epochs{limits}; procs {train.procs}, threads {train.threads}"


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summary of a finished job: results, cost, and the command to resume it."""
    state, run_dir = summary["state"], summary.get("run_dir", "")
    yield f"{state}: {summary.get('reason') or 'done'}"
    job = snapshot_of(summary)
    cluster = job.cluster
    rate = cluster.samples_per_s if cluster is not None else summary.get("samples_per_s")  # None after a single update
    who = trained_by(summary["procs"], cluster)
    did = f"{summary['samples']:,} samples in {counted(summary['updates'], 'update')} {who}"
    yield f"  {did}" + (f", {rate:,.0f} samples/s" if rate else "")
    if metrics := summary.get("metrics"):
        usual = {name: f" (popularity {value:.4f})" for name, value in job.popularity.items()}
        words = {key: f"{one:.4f}" if isinstance(one, float) else f"{one}" for key, one in metrics.items()}
        yield "  " + ", ".join(f"{name} {word}{usual.get(name, '')}" for name, word in words.items())
    if job.train_loss is not None:
        yield f"  training loss {job.train_loss:.4f} in the last epoch"
    if startup := summary.get("startup"):
        parts = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f}" for name, seconds in startup.items())
        yield f"  first update after {summary['startup_s']:.1f} s ({parts})"
    leases, others = summary["leases"], ("skipped", "quarantined", "indeterminate", "redone")
    rest = "".join(f", {leases[name]:,} {name}" for name in others if leases.get(name))
    whole = f" of {leases['total']:,}" if state == "succeeded" else ""  # of one that was cut short: what it came to
    yield f"  batches: {leases['done']:,}{whole} done{rest}; restarts: {job.restarts}"
    if cluster is not None:
        yield f"  cluster: {', '.join(replace(cluster, samples_per_s=0.0).words)}"
    if summary.get("advice"):
        yield f"  {summary['advice']}"
    yield f"  run directory: {run_dir}"
    if state in ("stopped", "cancelled"):
        yield f"  {resume_words(Path(run_dir), cluster)}"
    if job.best is not None:
        is_best = summary.get("weights") == "best"
        yield f"  weights: {'best evaluation' if is_best else 'last update; best evaluation'}, {job.best}"


def plain_lines(values: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    """Yield nested values, one per line."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from plain_lines(value, indent + "  ")
        elif isinstance(value, list):
            yield from (f"{indent}{key}: {item}" for item in value)
        else:
            yield f"{indent}{key}: {value}"


def _call(part: "Component") -> str:
    return f"{part.class_path}({', '.join(f'{name}={value!r}' for name, value in part.init_args.items())})"


# ---- ask -------------------------------------------------------------------------------------------------------------

REQUESTS = ("checkpoint", "stacks", "resize")
ANSWER_LOOK_S = 0.05
DONE = "done"


def ask(
    run: RunOrJob,
    what: Annotated[str, typer.Argument(metavar="checkpoint|stacks|resize", autocompletion=lambda: REQUESTS)],
    procs: Annotated[int | None, typer.Option(min=1, help="resize: number of workers.", metavar="N")] = None,
    cores: Annotated[str | None, typer.Option(help="resize: logical CPUs, such as 0-3,8.", metavar="LIST")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the answer.")] = 60.0,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Ask a running job for a checkpoint, for the stacks of its processes, or to change its workers and cores."""
    check_choice("ask", what, REQUESTS)
    if (what == "resize") != (procs is not None or cores is not None):
        raise UsageError(
            "--procs and --cores belong to resize, which needs one of them: hogwild ask RUN resize --procs N",
            code="usage/contradiction",
        )
    wanted: list[int] | None = None
    if cores is not None:
        if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", cores):
            raise UsageError(f"--cores {cores}: must be numbers and ranges, such as 0-3,8", code="usage/bad-value")
        parts = [part.split("-") for part in cores.split(",")]
        wanted = sorted({cpu for first, *last in parts for cpu in range(int(first), int((last or [first])[0]) + 1)})
    asked = {"ask": what, "procs": procs, "cores": wanted}
    path = run_of(run, state_dir)
    status = read_status(path)
    require_alive(status)
    if wanted is not None:
        _check_cores(path, status.record.get("pid"), wanted)
    begin = size_of_events(path)
    name = write_request(path, {field: value for field, value in asked.items() if value is not None})
    with host.raising_on_signals():
        answer = _wait(path, name, begin, timeout)
    lines = [f"{what}: {answer['answer']}"]
    lines += [f"  checkpoint {path / 'checkpoints' / answer['checkpoint']}"] if "checkpoint" in answer else []
    lines += [f"  {title}: {call or 'its stack is in the file'}" for title, call in answer.get("calls", {}).items()]
    lines += [f"  written to {answer['stacks']}"] if "stacks" in answer else []
    print_answer(answer, lines, as_json)
    return int(answer["answer"] != DONE)


def _check_cores(run: Path, pid: Any, cores: list[int]) -> None:
    """Check that a job of the service stays on its own cores. Raises ConflictError, UsageError."""
    order = read_json(run.parent, "job.json")
    if not order or not isinstance(pid, int):
        return
    if order.get("elastic"):
        raise ConflictError(
            "--cores: the service moves the cores of this job itself; give --procs", code="service/wrong-state"
        )
    with contextlib.suppress(ProcessLookupError):
        if not set(cores) <= (own := host.affinity(pid)):
            raise UsageError(
                f"--cores: must be among {sorted(own)}, which the job has, got {cores}", code="service/too-much"
            )


def _wait(path: Path, name: str, begin: int, timeout_s: float) -> dict[str, Any]:
    """Wait for the answer. Raises RunEndedError if the run ends before, RunError if none comes."""
    until = time.monotonic() + timeout_s
    while True:
        is_alive = read_status(path).is_alive  # asked first: an answer that was written before its end is found
        is_last = time.monotonic() > until
        if (answer := answer_to(path, name, begin)) is not None:
            return answer
        if not is_alive:
            raise RunEndedError(f"{path} ended before it answered", code="run/ended")
        if is_last:
            was_read = "has not read it" if withdraw(path, name) else "works on it"
            raise RunError(
                f"no answer within {timeout_s:g} s: the job {was_read}; is it being built, or stopped? "
                f"hogwild status {os.fspath(path)}",
                code="run/no-answer",
            )
        time.sleep(ANSWER_LOOK_S)
