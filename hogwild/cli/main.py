"""The command line: `hogwild`, `python -m hogwild` and `python run.py`. Without a sub-command it trains.

Nothing heavy is imported here or by --help and check: importing torch takes seconds. Results go to stdout, everything
else to stderr; the exit status tells how the command ended (docs/running-jobs.md).

A signal to stop during imports is only noted (`__main__.py`) and raised after them: `raise_noted`. It is raised at once
where we may wait: `raising_on_signals`.
"""

import contextlib
import copy
import importlib
import json
import os
import platform
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from hogwild.cli.arguments import (
    COMMANDS,
    WITH_JOB,
    Arguments,
    DataDir,
    Every,
    Faults,
    Json,
    Kills,
    NewRun,
    Procs,
    ScheduleOnly,
    Seed,
    field_for_option,
    named_run,
    profile_window,
    split_arguments,
    with_command,
)
from hogwild.cli.output import flush_results, hold_standard_streams, print_answer, print_message, print_result, reading
from hogwild.cluster.launch import own_run
from hogwild.config.of_run import data_folder, load, resumed
from hogwild.errors import ConfigError, HogwildError, RunError, UsageError, hint
from hogwild.host import end_at_second, raise_noted, raising_on_signals, require_linux
from hogwild.monitoring.run_status import EXIT_STATUS
from hogwild.storage.files import to_json
from hogwild.storage.run_directory import require_current_folder
from hogwild.user_code import raised_text
from hogwild.version import __version__

INTERRUPT = 2  # the number of SIGINT; a status of 128 + n says that signal n ended it
# ClickException: older versions of typer import click, newer ones contain their own.
_CLICK_ERROR: Any = typer.BadParameter.__mro__[2]

COMPLETION = "_HOGWILD_COMPLETE"  # set by the shell's script that --install-completion writes

app = typer.Typer(
    rich_markup_mode=None,  # importing rich would take as long as the rest of --help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Lock-free asynchronous training of any PyTorch module. The default command is train.",
    epilog="Add --debug to any command to see the traceback of an error.",
)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit status. Never raises."""
    debug = "--debug" in argv
    arguments: list[str] = []
    try:
        hold_standard_streams()
        raise_noted()
        require_linux()
        require_current_folder()
        if COMPLETION in os.environ:
            command_line()(prog_name="hogwild", complete_var=COMPLETION)
        arguments = with_command([argument for argument in argv if argument != "--debug"])
        command = command_line(arguments[0] if arguments[0] in COMMANDS else "")
        # Not `app(...)`: it turns Ctrl-C and a closed pipe into an exit status without a message.
        with command.make_context("hogwild", arguments) as context:
            return int(command.invoke(context) or 0)
    except BrokenPipeError:  # as in `hogwild --help | head`
        return 0
    except typer.Exit as done:  # --help
        return int(done.exit_code)
    except SystemExit as done:  # typer's completion
        return int(done.code or 0)
    except HogwildError as error:
        return _failed(error, argv, debug)
    except _CLICK_ERROR as error:
        if hasattr(error, "possibilities") and arguments[0] in WITH_JOB:
            params = command_line(arguments[0]).commands[arguments[0]].params
            if found := field_for_option(arguments, {option for param in params for option in param.opts}):
                return _failed(found, argv, debug)
        words = str(error.format_message()) if hasattr(error, "format_message") else str(error)
        command_name = f"{argv[0]} " if argv and argv[0] in COMMANDS else ""
        words += f"\nTry: hogwild {command_name}--help"
        return _failed(UsageError(words, code="usage/arguments"), argv, debug)
    except (KeyboardInterrupt, typer.Abort) as error:  # before workers run; later a signal is only noted
        return _report("cancelled; nothing was started", 128 + getattr(error, "number", INTERRUPT), debug)
    except Exception as error:
        words = f"{raised_text(error)}\nAdd --debug to the command to see the traceback."
        return _failed(HogwildError(words, code="run/unexpected"), argv, debug)
    finally:
        end_at_second()
        flush_results()


def _print_versions(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # of the installed package: importing torch takes seconds

        print_result(f"hogwild {__version__}, torch {version('torch')}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def hogwild(
    versions: Annotated[
        bool,
        typer.Option("-V", "--version", help="Show the versions.", callback=_print_versions, is_eager=True),
    ] = False,
) -> None:
    pass


@app.command()
def train(
    arguments: Arguments = None,
    procs: Procs = None,
    run_dir: NewRun = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Resume a run.", metavar="RUN", callback=named_run)] = None,
    continued: Annotated[
        Path | None,
        typer.Option(
            "--continue", help="Start with a run's model, its rows matched by name.", metavar="RUN", callback=named_run
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop before workers are started.")] = False,
    as_json: Json = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress.")] = False,
    nodes: Annotated[
        int | None, typer.Option(help="Try the job as a cluster of N nodes, on this machine.", metavar="N")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Trace and time updates A to B-1 of each worker.", metavar="A:B")
    ] = None,
) -> int:
    """Train a job. Without a job file: the bundled digits job, which needs no download."""
    window = profile_window(profile)
    job_file, overrides = split_arguments(arguments)
    if continued is not None:
        overrides.append(f"model.init_from.path={json.dumps(str(continued.absolute()))}")
    if procs is not None:
        overrides.append(f"train.procs={procs}")
    with reading():
        if resume is not None:
            for value, what in ((job_file, "a job file"), (run_dir, "--run-dir"), (continued, "--continue")):
                if value is not None:
                    raise UsageError(
                        f"--resume takes the job and the folder from the run, so {what} ({value}) is not allowed with "
                        "it; change fields with key=value",
                        code="usage/contradiction",
                    )
            job, job_file, job_text = resumed(own_run(resume, os.environ), overrides)
        else:
            job, job_text = load(job_file, overrides)
    if nodes is not None:
        from hogwild.cli.nodes import checked, train_on_nodes

        run = checked(nodes, resume, run_dir, job.name)
        where = ["--resume", str(run)] if resume is not None else ["--run-dir", str(run)]
        options = [*where, *(["--data-dir", str(data_dir)] if data_dir is not None else [])]
        options += ["--json"] * as_json + ["--no-progress"] * no_progress
        file = [str(job_file)] if job_file and resume is None else []
        return train_on_nodes(nodes, run, [*file, *overrides, "cluster.engine=torchrun", *options])
    if procs == "auto" and resume is None and not dry_run:
        from hogwild.cli.plan import with_measured_plan
        from hogwild.planning.calibration import Question

        with raising_on_signals():
            question = Question(job_file, job_text, overrides, data_folder(data_dir, None), job.train.exchange)
            job = with_measured_plan(job, question, print_message)
    from hogwild.cli.runs import plain_lines, summary_lines
    from hogwild.workers.run import run_job

    raise_noted()
    summary: dict[str, Any] = run_job(
        job,
        job_file=job_file,
        job_text=job_text,
        run_dir=run_dir,
        data_dir=data_folder(data_dir, resume),
        resume=resume,
        dry_run=dry_run,
        progress=False if no_progress else None,
        profile=window,
    )
    if summary.get("error"):
        print_message(f"error: {summary['error']}\n{hint(summary['error_code'])}")
    if as_json:
        print_result(json.dumps(to_json(summary), allow_nan=False))
    else:
        print_result(*(plain_lines(summary, "") if dry_run else summary_lines(summary)))
    if dry_run:
        return 0
    return int(summary.get("exit_status", EXIT_STATUS[summary["state"]]))


@app.command()
def check(
    arguments: Arguments = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also build the model and the data.")] = False,
    gradcheck: Annotated[bool, typer.Option("--gradcheck", help="Also check gradients numerically.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Check a job file and list all its errors, with line and column."""
    from hogwild.cli.runs import plain_lines, plan_lines

    job_file, overrides = split_arguments(arguments)
    with reading():
        job, _ = load(job_file, overrides)
    if job.search is not None and job.search.has_classes and find_spec("optuna") is not None:
        from hogwild.searching.study import check_classes

        check_classes(job, job_file)
    found: dict[str, Any] = {}
    deep = deep or gradcheck
    if deep:
        from hogwild.cli.plan import deep_check

        with raising_on_signals():
            found = deep_check(job, job_file, data_folder(data_dir, None), gradients=gradcheck)
    lines = [f"{job_file or 'configs/digits.yaml'}: ok", *(plain_lines(found) if deep else plan_lines(job))]
    print_answer({"job": job.name, "ok": True, **found}, lines, as_json)
    return 0


@app.command()
def plan(
    arguments: Arguments = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure a few settings on this job.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Print the number of workers and threads for this machine, with the reason."""
    from hogwild.cli.plan import answer
    from hogwild.planning.calibration import Question

    job_file, overrides = split_arguments(arguments)
    with reading():
        job, job_text = load(job_file, overrides)
    folder, has_validation = data_folder(data_dir, None), job.data.val is not None
    question = Question(job_file, job_text, overrides, folder, job.train.exchange, has_validation)
    with raising_on_signals():
        status, lines = answer(job, question, print_message, measure=measure, as_json=as_json)
    print_result(*lines)
    return status


@app.command()
def chaos(
    arguments: Arguments = None,
    procs: Procs = None,
    kills: Kills = 20,
    seed: Seed = None,
    every: Every = 2.0,
    faults: Faults = None,
    run_dir: NewRun = None,
    data_dir: DataDir = None,
    dry_run: ScheduleOnly = False,
    as_json: Json = False,
) -> int:
    """Run a job under random faults (kills, stops, resumes) and report any lost work."""
    from hogwild.chaos import schedule
    from hogwild.chaos.command import ChaosRequest, answer, dry_run_lines

    job_file, overrides = split_arguments(arguments)
    if procs is not None:
        overrides.append(f"train.procs={procs}")
    with reading():
        job, job_text = load(job_file, overrides)
    kinds, folder = schedule.checked_kinds(faults), data_folder(data_dir, None)
    order = ChaosRequest(
        job, job_file, job_text, overrides, kills, schedule.seed_of(seed), every, kinds, run_dir, folder
    )
    order.check()
    status, lines = (0, dry_run_lines(order)) if dry_run else answer(order, print_message, as_json=as_json)
    print_result(*lines)
    return status


@app.command()
def doctor(data_dir: DataDir = None, as_json: Json = False) -> int:
    """Report what this machine offers, and any problem that would prevent training."""
    from hogwild.cli.doctor import answer

    with raising_on_signals():
        status, lines = answer(data_folder(data_dir, None), as_json=as_json)
    print_result(*lines)
    return status


# Commands of other files: each is imported when it is asked for, all of them by --help.
_ELSEWHERE = {
    "show": "jobs.show",
    "schema": "catalog.schema",
    "list": "catalog.list_",
    "init": "catalog.init",
    "export": "results.export",
    "search": "search.search",
    "runs": "runs.runs",
    "status": "runs.status",
    "logs": "runs.logs",
    "attach": "runs.attach",
    "stop": "runs.stop",
    "ask": "runs.ask",
    "serve": "jobs.serve",
    "submit": "jobs.submit",
    "ps": "jobs.ps",
    "cancel": "jobs.cancel",
    "pause": "jobs.pause",
    "resume": "jobs.resume",
    "retry": "jobs.retry",
    "delete": "jobs.delete",
    "eval": "results.eval_",
    "predict": "results.predict",
    "similar": "results.similar",
    "complete": "results.complete",
    "recommend": "results.recommend",
    "sample": "results.sample",
    "report": "results.report",
    "explain": "catalog.explain",
}


def command_line(name: str = "") -> Any:
    """Return the command line as click has it: all commands, or this one alone, as the others' imports and options take
    a tenth of a second."""
    chosen = copy.copy(app)
    chosen.registered_commands = [
        one for one in app.registered_commands if one.callback is not None and name in (one.callback.__name__, "")
    ]
    for other, place in _ELSEWHERE.items():
        if name in (other, ""):
            module, function = place.split(".")
            chosen.command(other)(getattr(importlib.import_module(f"hogwild.cli.{module}"), function))
    return typer.main.get_command(chosen)


def _failed(error: HogwildError, argv: Sequence[str], debug: bool) -> int:
    """Print the message and code on stderr; with --json also as an object on stdout, unless that fails. Lines of a job
    file have their codes: different ones need no common code."""
    more = "" if error.code == ConfigError.code else f"\n{hint(error.code)}"
    status = _report(f"{error}{more}", error.exit_status, debug)
    if "--json" in argv:
        with contextlib.suppress(RunError):
            print_result(json.dumps(error.record()))
    return status


def _report(message: str, status: int, debug: bool) -> int:
    if debug:
        print_message(traceback.format_exc())
    print_message(message)
    return status
