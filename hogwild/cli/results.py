"""Commands for finished runs: report and eval."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hogwild.cli.export import Which, check_choice
from hogwild.cli.options import DataDir, Json
from hogwild.cli.output import print_result, reading
from hogwild.config.of_run import checkpoint_of, data_folder, resumed
from hogwild.errors import NotFoundError, UsageError
from hogwild.host import raise_noted, raising_on_signals

if TYPE_CHECKING:
    from hogwild.report.report import WrittenReport


Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs; several are compared on one page.")]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: report/ in the first run.")] = None,
    as_json: Json = False,
) -> int:
    """Write one page with plots and tables of a run, or a comparison of several runs."""
    raise_noted()
    with raising_on_signals():
        status, lines = answer(runs, out=out, as_json=as_json)
    for line in lines:
        print_result(line)
    return status


def eval_(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="Run directory, or one of its checkpoints.")],
    which: Which = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Also write all outputs and targets to this file.", metavar="FILE.npz|FILE.csv")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Evaluate a run's best checkpoint, or another, on its validation data again."""
    check_choice(which)
    with reading():
        path = checkpoint_of(source, which)
        run = path.parent.parent
        job, users_file, _ = resumed(run, [], {})
        folder = data_folder(data_dir, run)
        if predictions is not None:
            check_file("--predictions", predictions)
    from hogwild.user_code import user_path

    user_path(users_file)
    from hogwild.inference import evaluate

    raise_noted()
    with raising_on_signals():
        found = evaluate.reevaluate(job, path, folder, keep_outputs=predictions is not None)
        if predictions is not None:
            evaluate.write_predictions(found, predictions)
    names = [name for name in ("best", "latest") if (path.parent / name).resolve() == path]
    if as_json:
        print_result(evaluate.as_json(found, " and ".join(names)))
        return 0
    for line in evaluate.lines_of(found, f" ({' and '.join(names)})" if names else ""):
        print_result(line)
    if predictions is not None:
        print_result(f"  predictions: {predictions}")
    return 0


def check_file(option: str, file: Path) -> None:
    """Check a file for predictions. Raises UsageError for a wrong ending, NotFoundError if its folder is missing."""
    if file.suffix not in (".npz", ".csv"):
        raise UsageError(f"{option} {file}: must end in .npz or .csv", code="usage/bad-value")
    if not file.parent.is_dir():
        raise NotFoundError(f"{option} {file}: there is no folder {file.parent.absolute()}", code="usage/no-folder")


def answer(runs: list[Path], *, out: Path | None, as_json: bool) -> tuple[int, list[str]]:
    """Write the page and its pictures; return the exit status and the lines for stdout. One run: RUN/report; several:
    RUN/report/report-NAME1-NAME2 of the first; or `out`. Raises NotFoundError for a missing run, UsageError without
    matplotlib or for a run named twice, RunDirError if the page cannot be written."""
    from hogwild.report.report import write_comparison, write_report  # numpy, and matplotlib to draw

    written = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out)
    return 0, [_json(written)] if as_json else _lines(written)


def _lines(written: "WrittenReport") -> list[str]:
    names = ", ".join(path.stem for path in written.pictures)
    return [
        str(written.index),
        f"  pictures: {names or 'none: there is no data to plot'}" + (" (PNG files beside it)" if names else ""),
        *(f"  {line}" for line in written.missing),
    ]


def _json(written: "WrittenReport") -> str:
    pictures = {path.stem: str(path) for path in written.pictures}
    return json.dumps({"report": str(written.index), "pictures": pictures, "missing": list(written.missing)})
