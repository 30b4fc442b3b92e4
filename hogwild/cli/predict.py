"""`hogwild predict`: answers for the rows of a file, block by block."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hogwild.cli.arguments import DataDir, Run, Which
from hogwild.cli.output import print_message, put_parts, reading
from hogwild.cli.results import check_file, model_of
from hogwild.errors import UsageError
from hogwild.host import raising_on_signals
from hogwild.storage.files import TEMPORARY

if TYPE_CHECKING:
    from hogwild.config.schema import Supervise
    from hogwild.inference.answer_file import Encode
    from hogwild.inference.predict import Part, Predictor
    from hogwild.inference.trained_model import Trained


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
    is_live: Annotated[
        bool, typer.Option("--live", help="With the model of a running job as it is now, not of a checkpoint.")
    ] = False,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="--live: wait for a pause, when no parameter changes.")
    ] = False,
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a run's model for the rows of a file, with or without targets."""
    _check_live(is_live, consistent, procs, which)
    if out is not None:
        with reading():
            check_file("--out", out, (".csv", ".npz", ".parquet"))
            if out.exists() and os.path.exists(input_) and out.samefile(input_):
                raise UsageError(f"--out {out}: is the file to predict; choose another", code="usage/contradiction")
    with contextlib.ExitStack() as opened:
        if is_live:
            model = _live(opened, source, data_dir, consistent=consistent)
        else:
            model = model_of(source, which, data_dir)
        from hogwild.inference.answer_file import encoder_for

        opened.enter_context(raising_on_signals())
        predictor, encode = model.predictor(input_, ids=ids, raw=raw), encoder_for(out)
        parts = predictor.parts(encode)
        if procs > 1:
            parts = _parts_of(procs, predictor, encode, model.job.supervise, out)
        put_parts(parts, out, "predictions")


def _check_live(is_live: bool, consistent: bool, procs: int, which: str | None) -> None:
    """Raise UsageError for options that do not belong together."""
    if consistent and not is_live:
        raise UsageError("--consistent belongs to --live: a checkpoint does not change", code="usage/contradiction")
    if is_live and (procs > 1 or which is not None):
        raise UsageError(
            "--live: the job's one predictor computes, and with no checkpoint; leave --procs and --which out",
            code="usage/contradiction",
        )


def _live(opened: contextlib.ExitStack, run: Path, data_dir: Path | None, *, consistent: bool) -> "Trained":
    """Return the model of a running job; the connection closes with `opened`."""
    from hogwild.config.of_run import data_folder, recorded, require_run
    from hogwild.data.locate import set_data_dir
    from hogwild.user_code import user_path

    with reading():
        require_run(run)
        folder = data_folder(data_dir, run)
        _, users_file, _ = recorded(run)
    if folder is not None:
        set_data_dir(folder)
    user_path(users_file)
    from hogwild.monitoring.live_calls import LiveCalls
    from hogwild.monitoring.live_model import live_model

    with raising_on_signals():
        return live_model(run, opened.enter_context(LiveCalls(run)), consistent=consistent)


def _parts_of(
    procs: int, predictor: "Predictor", encode: "Encode", supervise: "Supervise", out: Path | None
) -> "Iterator[Part]":
    """Yield the answers that other processes write into a folder beside `out`. Raises UsageError for an input that they
    cannot read."""
    from hogwild.workers.loading.predicting import predicted_parts

    if predictor.inputs.why_alone:
        raise UsageError(f"--procs {procs}: {predictor.inputs.why_alone}", code="usage/contradiction")
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=out.parent if out else None) as folder:
        yield from predicted_parts(predictor, encode, procs, supervise, Path(folder), print_message)
