"""Commands that use a trained model: predict, most-similar, recommend, sample."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hogwild.cli.export import Which, check_choice
from hogwild.cli.options import DataDir, Json
from hogwild.cli.output import print_result, reading
from hogwild.cli.results import check_file
from hogwild.host import raise_noted, raising_on_signals

if TYPE_CHECKING:
    from hogwild.inference.trained_model import Trained

Run = Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="Run directory, or one of its checkpoints.")]
Top = Annotated[int, typer.Option(min=1, help="Number of results.")]


def predict(
    source: Run,
    input_: Annotated[Path, typer.Argument(metavar="INPUT", help="File in the format of the training data.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write all outputs to this file; default: print one line per sample.", metavar="FILE.npz|FILE.csv"
        ),
    ] = None,
    which: Which = None,
    data_dir: DataDir = None,
) -> int:
    """Predict with a run's model for the samples of a file."""
    if out is not None:
        with reading():
            check_file("--out", out)
    model = _model(source, which, data_dir)
    from hogwild.inference.evaluate import write_outputs

    with raising_on_signals():
        outputs = model.predict(input_)
        if out is not None:
            write_outputs(outputs, out)
            print_result(f"{len(outputs):,} predictions: {out}")
            return 0
        for row in outputs.reshape(len(outputs), -1).tolist():
            print_result(" ".join(f"{value:.6g}" for value in row))
    return 0


def most_similar(
    source: Run,
    word: Annotated[str, typer.Argument(metavar="WORD", help="Word of the training data.")],
    top: Top = 10,
    which: Which = None,
    as_json: Json = False,
) -> int:
    """Print the words with the nearest vectors, and their cosines."""
    found = _model(source, which, None).most_similar(word, top)
    if as_json:
        print_result(json.dumps({"word": word, "similar": [[name, cosine] for name, cosine in found]}))
        return 0
    for name, cosine in found:
        print_result(f"{cosine:.4f}  {name}")
    return 0


def recommend(
    source: Run,
    user: Annotated[str, typer.Option(help="User, as named in the training data.")],
    top: Top = 10,
    which: Which = None,
    as_json: Json = False,
) -> int:
    """Recommend items to a user, best first, without those already rated."""
    found = _model(source, which, None).recommend(user, top)
    if as_json:
        print_result(json.dumps({"user": user, "items": [[name, score] for name, score in found.items]}))
        return 0
    for sentence in found.notes:
        print_result(sentence)
    for name, score in found.items:
        print_result(f"{score:.4f}  {name}")
    return 0


def sample(
    source: Run,
    prompt: Annotated[str, typer.Option(help="Beginning of the text; also printed.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Number of characters.")] = 400,
    temperature: Annotated[float, typer.Option(min=0.0, help="Below 1: less random; 0: always the likeliest.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 1,
    which: Which = None,
    as_json: Json = False,
) -> int:
    """Generate text with a character model."""
    found = _model(source, which, None).sample(prompt, length, temperature, seed)
    if as_json:
        print_result(json.dumps({"prompt": prompt, "text": found}))
        return 0
    print_result(prompt + found)
    return 0


def _model(source: Path, which: str | None, data_dir: Path | None) -> "Trained":
    check_choice(which)
    from hogwild.api import load

    raise_noted()
    with raising_on_signals():
        return load(source, which=which, data_dir=data_dir)
