"""Commands for finished runs: report and eval; and those that use the trained model: similar,
complete, sample."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hogwild.cli.arguments import DataDir, Json, Run, Which, check_choice, named_run
from hogwild.cli.output import print_answer, print_result, reading
from hogwild.config.of_run import CHOICES, checkpoint_of, data_folder, resumed
from hogwild.errors import NotFoundError, UsageError
from hogwild.host import raise_noted, raising_on_signals

if TYPE_CHECKING:
    from hogwild.inference.trained_model import Trained

Top = Annotated[int, typer.Option(min=1, help="Number of results.")]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Runs; several are compared on one page.", callback=named_run)
]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: report/ in the first run.")] = None,
    as_json: Json = False,
) -> None:
    """Write one page with plots and tables of a run, or a comparison of several runs."""
    raise_noted()
    with raising_on_signals():
        answer = report_answer(runs, out)
    print_answer(*answer, as_json)


def eval_(
    source: Run,
    which: Which = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Also write all outputs and targets to this file.", metavar="FILE.npz|FILE.csv")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's best checkpoint, or another, on its validation data again."""
    check_choice("--which", which, CHOICES)
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
    names = [name for name in CHOICES if (path.parent / name).resolve() == path]
    if as_json:
        print_result(evaluate.as_json(found, " and ".join(names)))
        return
    print_result(*evaluate.lines_of(found, f" ({' and '.join(names)})" if names else ""))
    if predictions is not None:
        print_result(f"  predictions: {predictions}")


def check_file(option: str, file: Path, endings: Sequence[str] = (".npz", ".csv")) -> None:
    """Check a file for predictions. Raises UsageError for a wrong ending, NotFoundError if its folder is missing."""
    if file.suffix not in endings:
        raise UsageError(
            f"{option} {file}: must end in {', '.join(endings[:-1])} or {endings[-1]}", code="usage/bad-value"
        )
    if not file.parent.is_dir():
        raise NotFoundError(f"{option} {file}: there is no folder {file.parent.absolute()}", code="usage/no-folder")


def report_answer(runs: list[Path], out: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Write the page; return its place for --json and as lines. Raises as `write_report`."""
    from hogwild.report.report import write_report  # numpy

    page, missing = write_report(runs, out)
    return {"report": str(page), "missing": list(missing)}, [str(page), *(f"  {one}" for one in missing)]


# ---- the trained model ----------------------------------------------------------------------------------------------


def similar(
    source: Run,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Words or items; several are added up.")],
    minus: Annotated[
        list[str] | None, typer.Option(help="Subtract it; may be repeated.", metavar="NAME", show_default=False)
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="words, items, entities, users or relations, if the model has several.")
    ] = None,
    top: Top = 10,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Print the words, items or entities with the nearest vectors, and their cosines."""
    found = model_of(source, which, None).similar(names, minus or (), kind=kind, top=top)
    record = {"names": names, "minus": minus or [], "similar": found}
    print_answer(record, (f"{cosine:.4f}  {name}" for name, cosine in found), as_json)


def complete(
    source: Run,
    relation: Annotated[str, typer.Option(help="Relation, as named in the training data.")],
    head: Annotated[str | None, typer.Option(help="Head: the best tails are printed.")] = None,
    tail: Annotated[str | None, typer.Option(help="Tail: the best heads are printed.")] = None,
    top: Top = 10,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Print the likeliest missing links of a knowledge graph, best first, without those of the training data."""
    found = model_of(source, which, None).complete(head, relation, tail, top)
    lines = [*found.notes, *(f"{score:.4f}  {name}" for name, score in found.items)]
    print_answer({"head": head, "relation": relation, "tail": tail, "answers": found.items}, lines, as_json)


def sample(
    source: Run,
    prompt: Annotated[str, typer.Option(help="Beginning of the text; also printed.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Number of characters.")] = 400,
    temperature: Annotated[float, typer.Option(min=0.0, help="Below 1: less random; 0: always the likeliest.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 1,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Generate text with a character model."""
    found = model_of(source, which, None).sample(prompt, length, temperature, seed)
    print_answer({"prompt": prompt, "text": found}, [prompt + found], as_json)


def model_of(source: Path, which: str | None, data_dir: Path | None) -> "Trained":
    check_choice("--which", which, CHOICES)
    from hogwild.api import load

    raise_noted()
    with raising_on_signals():
        return load(source, which=which, data_dir=data_dir)
