"""`hogwild predict`: answers for the rows of a file, block by block."""

from pathlib import Path
from typing import Annotated

import typer

from hogwild.cli.arguments import DataDir, Run, Which
from hogwild.cli.output import print_part, print_result, reading
from hogwild.cli.results import check_file, model_of
from hogwild.host import raising_on_signals


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
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a run's model for the rows of a file, with or without targets."""
    if out is not None:
        with reading():
            check_file("--out", out, (".csv", ".npz", ".parquet"))
    model = model_of(source, which, data_dir)
    from hogwild.inference.answer_file import encoder_for, writing

    with raising_on_signals():
        parts = model.predictor(input_, ids=ids, raw=raw).parts(encoder_for(out))
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
