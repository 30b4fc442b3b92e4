"""`hogwild predict`: answers for the rows of a file, block by block."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hogwild.cli.arguments import DataDir, Run, Which
from hogwild.cli.output import print_message, print_part, print_result, reading
from hogwild.cli.results import check_file, model_of
from hogwild.errors import UsageError
from hogwild.host import raising_on_signals
from hogwild.storage.files import TEMPORARY

if TYPE_CHECKING:
    from hogwild.config.schema import Supervise
    from hogwild.inference.answer_file import Encode
    from hogwild.inference.predict import Part, Predictor


def predict(
    source: Run,
    input_: Annotated[
        str, typer.Argument(metavar="INPUT|-", help="File like that of the training data; -: standard input.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default: print CSV.", metavar="FILE.csv|FILE.npz|FILE.parquet"),
    ] = None,
    ids: Annotated[
        str | None, typer.Option("--id", help="Column that names the rows, copied to the result.", metavar="COLUMN")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The model's outputs as they are, also of one that classifies.")
    ] = False,
    procs: Annotated[int, typer.Option(min=1, help="Number of processes that predict a file.", metavar="N")] = 1,
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a run's model for the rows of a file, with or without targets."""
    if out is not None:
        with reading():
            check_file("--out", out, (".csv", ".npz", ".parquet"))
            if out.exists() and os.path.exists(input_) and out.samefile(input_):
                raise UsageError(f"--out {out}: is the file to predict; choose another", code="usage/contradiction")
    model = model_of(source, which, data_dir)
    from hogwild.inference.answer_file import encoder_for, writing

    with raising_on_signals():
        predictor, encode = model.predictor(input_, ids=ids, raw=raw), encoder_for(out)
        parts = predictor.parts(encode)
        if procs > 1:
            parts = _parts_of(procs, predictor, encode, model.job.supervise, out)
        if out is None:
            for _, content in parts:
                print_part(content.decode().removesuffix("\n"))
            return
        count = 0
        with writing(out) as writer:
            for rows, content in parts:
                writer.append(content)
                count += rows
    print_result(f"{count:,} predictions: {out}")


def _parts_of(
    procs: int, predictor: "Predictor", encode: "Encode", supervise: "Supervise", out: Path | None
) -> "Iterator[Part]":
    """Yield the answers that other processes write into a folder beside `out`. Raises UsageError for an input that they
    cannot read."""
    from workers.loading.predicting import predicted_parts

    if predictor.inputs.why_alone:
        raise UsageError(f"--procs {procs}: {predictor.inputs.why_alone}", code="usage/contradiction")
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=out.parent if out else None) as folder:
        yield from predicted_parts(predictor, encode, procs, supervise, Path(folder), print_message)
