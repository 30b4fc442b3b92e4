"""`hogwild search`: the search itself, and what it has found: show, best, export."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hogwild import host
from hogwild.cli.arguments import Arguments, DataDir, Json, NewRun, is_job_id, split_arguments
from hogwild.cli.output import aligned, print_answer, print_message, print_result, reading
from hogwild.config.locate import default_config
from hogwild.config.of_run import load
from hogwild.errors import UsageError, did_you_mean
from hogwild.monitoring.run_status import RUNS, RunStatus
from hogwild.searching import require_optuna

if TYPE_CHECKING:
    from hogwild.searching.loop import SearchOutcome
    from hogwild.searching.results import SearchRun

LOOKS = ("show", "best", "export")
LOOK_S = 0.2  # between two looks at a search in another process
STATUS = {"succeeded": 0, "failed": 1, "stopped": 75}


def search(
    arguments: Arguments = None,
    run_dir: NewRun = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a search.", metavar="DIR")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database of the study, such as sqlite:///FILE; default: a file in DIR.")
    ] = None,
    is_refit: Annotated[
        bool, typer.Option("--refit", help="Then train the best job on all data, validation data too, in DIR/refit.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="export: as CSV.")] = False,
    trial: Annotated[
        int | None, typer.Option(help="best: another one of the front of several metrics.", metavar="N")
    ] = None,
    as_json: Json = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress.")] = False,
) -> int:
    """Search for the best values of a job's fields: many trials, early stopped (the job file's `search`). Then, for the
    latest search or a DIR: `search show`, the table of trials; `search best`, the job file; `search export --csv`."""
    require_optuna()
    if arguments and arguments[0] in LOOKS and not Path(arguments[0]).suffix:
        return _look(arguments[0], arguments[1:], as_csv=as_csv, as_json=as_json, trial=trial)
    if as_csv or trial is not None:
        word, look = ("--csv", "export") if as_csv else ("--trial", "best")
        raise UsageError(f"{word} belongs to hogwild search {look}", code="usage/contradiction")
    first = arguments[0] if arguments else ""
    if first and "=" not in first and not Path(first).suffix and not Path(first).exists():
        words = f"must be a job file, or one of {', '.join(LOOKS)}{did_you_mean(first, LOOKS)}"
        raise UsageError(f"hogwild search {first}: {words}", code="usage/bad-value")
    job_file, overrides = split_arguments(arguments)
    from hogwild.searching.attempt import SearchAttempt
    from hogwild.searching.results import as_record, head_of

    if resume is not None:
        for value, what in ((job_file, "a job file"), (run_dir, "--run-dir"), (storage, "--storage")):
            if value is not None:
                raise UsageError(
                    f"--resume takes the job and the folder from the search, so {what} ({value}) is not allowed",
                    code="usage/contradiction",
                )
        attempt = SearchAttempt.reopen(resume, overrides, print_message, data_dir=data_dir)
    else:
        with reading():
            job, text = load(job_file, overrides)
        path = (job_file or default_config("digits")).absolute()
        attempt = SearchAttempt.create(
            job, text, path, overrides, print_message, run_dir=run_dir, data_dir=data_dir, storage=storage
        )
    found, study, outcome = attempt.run(is_refit=is_refit, shows=not no_progress)
    print_answer(as_record(found, study), [*head_of(found, study), *_next(found, outcome)], as_json)
    return STATUS[outcome.state]


def _next(found: "SearchRun", outcome: "SearchOutcome") -> list[str]:
    from hogwild.searching.results import BEST
    from hogwild.searching.trials import REFIT

    more = " search.max_time_s=SECONDS, more than before" if outcome.reason.startswith("max_time_s") else ""
    lines = [f"  stopped     {outcome.reason}; go on: hogwild search --resume {found.folder}{more}"]
    best = found.folder / BEST
    refit = found.folder / REFIT
    files = [("job file", best, best.is_file()), ("on all data", refit, refit.is_dir())]
    lines = lines if outcome.state == "stopped" else []
    return [*lines, *(f"  {word:<11} {path}" for word, path, is_there in files if is_there)]


# ---- what it has found ----------------------------------------------------------------------------------------------


def _look(what: str, rest: list[str], *, as_csv: bool, as_json: bool, trial: int | None) -> int:
    """Show a search: its trials, or its best job file, or its trials as CSV."""
    from hogwild.searching import results

    if len(rest) > 1:
        raise UsageError(f"hogwild search {what} takes one folder, got {' and '.join(rest)}", code="usage/arguments")
    if (what == "export") != as_csv:
        raise UsageError(f"hogwild search {what}: --csv belongs to export, which needs it", code="usage/contradiction")
    if what != "best" and trial is not None:
        raise UsageError(f"hogwild search {what}: --trial belongs to best", code="usage/contradiction")
    found = results.SearchRun.of(results.find_search(_named(rest[0]) if rest else None))
    study = found.study()
    if what == "export":
        print_result(results.as_csv(found, study).rstrip("\n"))
    elif what == "best":
        text, best = results.best_text(found, study, trial), results.best_of(found, study, trial)
        record = {"best": results.as_record(found, study)["trials"][best.number], "job_file": text}
        print_answer(record, [text.rstrip("\n")], as_json)
    else:
        print_answer(*shown(found.folder), as_json)
    return 0


def shown(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a search as it is now, for --json and as lines: the table of its trials, the best first."""
    require_optuna()
    from hogwild.searching import results
    from hogwild.searching.study import front, is_maximised

    found = results.SearchRun.of(folder)
    study = found.study()
    best_ones = front(study)
    trials = results.ranked(study.get_trials(deepcopy=False), best_ones, is_max=is_maximised(found.job))
    rows = [*results.rows_of(found, trials, best_ones)]
    lines = [*results.head_of(found, study), *(map(str.rstrip, aligned(rows)) if trials else [])]
    return results.as_record(found, study), lines


def watch_trials(folder: Path, look: Callable[[], RunStatus], footer: str) -> bool:
    """Show the trials of a running search until it ends: a live table on a terminal, else a line per trial that ends
    meanwhile; return False at Ctrl-C."""
    require_optuna()
    from hogwild.searching.display import display_for
    from hogwild.searching.results import SearchRun
    from hogwild.searching.study import ENDED

    found = SearchRun.of(folder)
    study = found.study()
    display = display_for(found, print_message, lambda line: None, footer=footer)
    told = {one.number for one in study.get_trials(deepcopy=False, states=ENDED)}
    try:
        with host.raising_on_signals():
            while True:
                status = look()  # before the trials: the last one is told
                for one in study.get_trials(deepcopy=False, states=ENDED):
                    if one.number not in told:
                        told.add(one.number)
                        display.told(study, one.number)
                if not status.is_alive:
                    return True
                display.show(study, is_stopping=status.state == "stopping")
                time.sleep(LOOK_S)
    except host.Interrupted:
        return False
    finally:
        display.close()


def _named(given: str) -> str:
    """Return the folder of a search that is a job of the service; any other name as it is."""
    if not is_job_id(given) or (RUNS / given).is_dir():
        return given
    from hogwild.service.client import Client

    return str(Client().run_dir(given))


def report_answer(folder: Path, out: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Write the page of a search; return its place for --json and as lines."""
    require_optuna()
    from hogwild.searching.page import write_page
    from hogwild.searching.results import SearchRun

    page = write_page(SearchRun.of(folder), out)
    return {"report": str(page), "missing": []}, [str(page)]
