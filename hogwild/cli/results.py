"""Commands for finished runs: report and eval; those that use the trained model: similar, complete, sample, predict,
recommend; and `export`: a checkpoint's model as one file for other programs, without the optimizer and the ledger.

    RUN/checkpoints/update-000003600/model.safetensors ── every hash checked ──► digits-update-000003600.safetensors
                                    /state.pt          ─────────────────────► ... .pt, a state_dict
                                                       ── the model, loaded ─► ... .pt2, .onnx: a program
                                                                            ─► ... .txt, .bin: word vectors

A safetensors file is a JSON header and then the tensors' bytes. The bytes are copied unchanged; only the header is
rewritten, with metadata of the job. This needs no torch; the others do."""

import contextlib
import errno
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from hogwild.cli.arguments import DataDir, Json, Run, Which, check_choice, named_run
from hogwild.cli.output import file_exists, for_people, print_answer, print_message, print_result, put_parts, reading
from hogwild.config.of_run import CHOICES, checkpoint_of, data_folder, recorded, require_run, resumed
from hogwild.errors import ConfigError, DataError, HogwildError, NotFoundError, RunError, UsageError
from hogwild.formatting import counted
from hogwild.host import raise_noted, raising_on_signals
from hogwild.storage.files import TEMPORARY

if TYPE_CHECKING:
    from hogwild.config.schema import Supervise
    from hogwild.inference.predict import Encode, Part, Predictor
    from hogwild.inference.recommend import ItemRanker
    from hogwild.inference.trained_model import Trained
    from hogwild.storage.checkpoint_format import Manifest


Top = Annotated[int | None, typer.Option(min=1, help="Number of results; default: 10, if there are so many.")]
Live = Annotated[
    bool, typer.Option("--live", help="With the model of a running job as it is now, not of a checkpoint.")
]
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
    data: Annotated[
        Path | None, typer.Option(help="Evaluate on this file, which is read like the validation data.", metavar="FILE")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's best checkpoint, or another, on its validation data again, or on any file."""
    check_choice("--which", which, CHOICES)
    with reading():
        path = checkpoint_of(source, which)
        run = path.parent.parent
        job, users_file, _ = resumed(run)
        folder = data_folder(data_dir, run)
        if predictions is not None:
            check_file("--predictions", predictions)
    from hogwild.user_code import user_path

    user_path(users_file)
    from hogwild.inference import evaluate

    raise_noted()
    with raising_on_signals():
        found = evaluate.reevaluate(job, path, folder, keep_outputs=predictions is not None, file=data)
        if predictions is not None:
            evaluate.write_predictions(found, predictions)
    names = [name for name in CHOICES if (path.parent / name).resolve() == path]
    for note in found.notes:
        print_message(f"note: {note}")
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
    """Write the page of runs, or of a search; return its place for --json and as lines. Raises as `write_report`."""
    if len(runs) == 1 and (runs[0] / "search.json").is_file():
        from hogwild.cli.search import report_answer as of_search

        return of_search(runs[0], out)
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
        str | None,
        typer.Option(
            help="words, items, entities, users, relations, or the name of a NamedEmbedding, if the model has several."
        ),
    ] = None,
    top: Top = None,
    is_live: Live = False,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Print the words, items or entities with the nearest vectors, and their cosines."""
    if is_live and which is not None:
        raise UsageError("--live: no checkpoint answers; leave --which out", code="usage/contradiction")
    with contextlib.ExitStack() as opened:
        model = _live(opened, source, None, consistent=False) if is_live else model_of(source, which, None)
        from hogwild.inference.recommend import TOP, fewer

        found = model.similar(names, minus or (), kind=kind, top=top or TOP)
    notes = fewer(len(found), "result", top, "there are no others")
    record = {"names": names, "minus": minus or [], "similar": found, "notes": notes}
    print_answer(record, [*notes, *_ranked(found)], as_json)


def complete(
    source: Run,
    relation: Annotated[str, typer.Option(help="Relation, as named in the training data.")],
    head: Annotated[str | None, typer.Option(help="Head: the best tails are printed.")] = None,
    tail: Annotated[str | None, typer.Option(help="Tail: the best heads are printed.")] = None,
    top: Top = None,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Print the likeliest missing links of a knowledge graph, best first, without those of the training data."""
    model = model_of(source, which, None)
    from hogwild.inference.recommend import TOP, fewer

    found = model.complete(head, relation, tail, top or TOP)
    notes = [*found.notes, *fewer(len(found.items), "answer", top, "the others are known")]
    record = {"head": head, "relation": relation, "tail": tail, "answers": found.items, "notes": notes}
    print_answer(record, [*notes, *_ranked(found.items)], as_json)


def _ranked(found: Sequence[tuple[Any, float]]) -> Iterator[str]:
    """Yield a line for each name and its score; on a terminal a long name is cut."""
    return (f"{score:.4f}  {for_people(name)}" for name, score in found)


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


# ---- predictions -----------------------------------------------------------------------------------------------------


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
    is_live: Live = False,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="--live: wait for a pause, when no parameter changes.")
    ] = False,
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a run's model for the rows of a file, with or without targets."""
    if consistent and not is_live:
        raise UsageError("--consistent belongs to --live: a checkpoint does not change", code="usage/contradiction")
    if is_live and (procs > 1 or which is not None):
        raise UsageError(
            "--live: the job's one predictor computes, and with no checkpoint; leave --procs and --which out",
            code="usage/contradiction",
        )
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
        from hogwild.inference.predict import encoder_for

        opened.enter_context(raising_on_signals())
        predictor, encode = model.predictor(input_, ids=ids, raw=raw), encoder_for(out)
        parts = predictor.parts(encode)
        if procs > 1:
            parts = _parts_of(procs, predictor, encode, model.job.supervise, out)
        put_parts(parts, out, "predictions")


def _live(opened: contextlib.ExitStack, run: Path, data_dir: Path | None, *, consistent: bool) -> "Trained":
    """Return the model of a running job; the connection closes with `opened`."""
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


# ---- recommendations -------------------------------------------------------------------------------------------------


def recommend(
    source: Run,
    user: Annotated[str | None, typer.Option(help="One user, as named in the training data.")] = None,
    users: Annotated[
        str | None,
        typer.Option(help="Many: a file with a user per line, - for standard input, or all.", metavar="FILE|all"),
    ] = None,
    rated: Annotated[
        list[str] | None,
        typer.Option(
            help="Somebody new who has this item, or rated it; may be repeated.",
            metavar="ITEM[=RATING]",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Number of items; default: 10, if there are so many.")] = None,
    only: Annotated[
        Path | None, typer.Option("--filter", help="Recommend only items of this file, one per line.", metavar="FILE")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave out this item; may be repeated.", metavar="ITEM", show_default=False)
    ] = None,
    had: Annotated[
        Path | None,
        typer.Option(help="File of more pairs, like the training data: nobody gets what he has there.", metavar="FILE"),
    ] = None,
    gone: Annotated[bool, typer.Option("--gone", help="Also items that the data no longer has.")] = False,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Also what a user has only in data.val, to compare with it.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File for many users; default: print CSV.", metavar="FILE.csv|FILE.parquet")
    ] = None,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Recommend items, best first, without those that the user has in the data of this run, or of one it continued."""
    with reading():
        if sum(one is not None for one in (user, users, rated or None)) != 1:
            words = "give --user NAME, --users FILE (or all), or --rated ITEM: one of the three"
            raise UsageError(words, code="usage/contradiction")
        if (users is None and out is not None) or (users is not None and as_json):
            raise UsageError("--out is for --users, --json for one user", code="usage/contradiction")
        if out is not None:
            check_file("--out", out, (".csv", ".parquet"))
        chosen = None if users in (None, "all") else _lines("--users", users)
        allowed = None if only is None else _lines("--filter", str(only))
    ranker = model_of(source, which, None).ranker(had=had, gone=gone, held_out=held_out)
    if ranker.gone:
        many = counted(len(ranker.gone), "item")
        print_message(f"left out: {many} that the data no longer has (--gone recommends them, too)")
    if allowed is not None:
        ranker.allow(allowed)
    less = exclude or []
    if users is not None:
        from hogwild.inference.predict import encoder_for

        with raising_on_signals():
            encode, blocks = encoder_for(out), enumerate(ranker.for_users(chosen, top, less))
            parts = ((len(block.user), encode(block, number == 0)) for number, block in blocks)
            put_parts(parts, out, "recommendations")
        return
    if user is not None:
        found = ranker.for_user(user, top, less)
    else:
        found = ranker.for_items(_ratings(ranker, rated or []), top, less)
    record: dict[str, Any] = {"user": user} if user is not None else {"rated": rated}
    lines = [*found.notes, *_ranked(found.items)]
    print_answer(record | {"items": found.items, "notes": found.notes}, lines, as_json)


def _ratings(ranker: "ItemRanker", rated: Sequence[str]) -> dict[str, float | None]:
    """Return the ratings by item; None for an item alone. An item's name may contain "=". Raises UsageError."""
    found: dict[str, float | None] = {}
    for text in rated:
        item, equals, number = (text, "", "") if ranker.knows(text) else text.rpartition("=")
        item = item if equals else text
        if item in found:
            raise UsageError(f"--rated {text}: {item!r} is given twice", code="usage/bad-value")
        try:
            found[item] = float(number) if equals else None
        except ValueError:
            raise UsageError(f"--rated {text}: {number!r} is not a number", code="usage/bad-value") from None
    return found


def _lines(option: str, path: str) -> list[str]:
    """Return the lines of a text file, or of standard input ("-"), without empty ones. Raises DataError, and UsageError
    for a file without any."""
    from hogwild.data.ids import WHITE
    from hogwild.data.locate import read

    content = sys.stdin.buffer.read() if path == "-" else read(Path(path))
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{option} {path}: is not text in UTF-8: {error}", code="data/unreadable") from None
    found = [line.strip(WHITE) for line in text.split("\n") if line.strip(WHITE)]
    if not found:
        raise UsageError(f"{option} {path}: has no lines", code="usage/bad-value")
    return found


# ---- export ----------------------------------------------------------------------------------------------------------

ENDINGS = {
    "safetensors": ".safetensors",
    "state_dict": ".pt",
    "torch-export": ".pt2",
    "onnx": ".onnx",
    "parquet": ".parquet",
    "npz": ".npz",
    "word2vec": ".txt",
    "fasttext": ".bin",
}
TABLES = ("parquet", "npz", "word2vec", "fasttext")
PROGRAMS = ("torch-export", "onnx")
PREFIX = "hogwild."  # prefix of our keys in the header, which also has the names of tied parameters
ALIGNMENT = 8  # bytes: alignment of the tensors, as in the format's own writer


def export(
    source: Run,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors; state_dict, for torch.load(FILE, weights_only=True); torch-export or onnx: a program; "
            "parquet, npz: names, vectors and biases; word2vec: vectors as text, or binary in FILE.bin; fasttext: "
            "fastText's .bin, with subwords.",
            metavar="|".join(ENDINGS),
        ),
    ] = "safetensors",
    out: Annotated[
        Path | None,
        typer.Option(help="File or folder to write; default: JOB-update-N in the current folder.", metavar="FILE"),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            help="For a program: file with two rows or more, as predict reads it; default: the training data.",
            metavar="FILE",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Vectors of words, items, entities, users, relations, features, …; default: the first."),
    ] = None,
    which: Which = None,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a run's model to one file, after checking every hash."""
    check_choice("--format", format_, ENDINGS)
    if example is not None and format_ not in PROGRAMS:
        raise UsageError(f"--example is for --format {' or '.join(PROGRAMS)}", code="usage/contradiction")
    if kind is not None and format_ not in TABLES:
        raise UsageError(f"--kind is for --format {', '.join(TABLES)}", code="usage/contradiction")
    check_choice("--which", which, CHOICES)
    with reading():
        path = checkpoint_of(source, which)
        name = _job_name(path)
    file = _target(out, f"{name}-{path.name}{ENDINGS[format_]}", force)
    if format_ != "safetensors":
        import hogwild.storage.checkpoint  # noqa: F401  # imports torch, during which a signal is only noted

        raise_noted()
    with raising_on_signals():
        if format_ in PROGRAMS:
            from hogwild.inference import programs

            trained = model_of(path, None, data_dir)
            trace = programs.onnx if format_ == "onnx" else programs.torch_export
            write: Callable[[BinaryIO], object] = trace(trained.model, trained.example(example))
        elif format_ in TABLES:
            table = model_of(path, None, data_dir).table(kind)
            write, note = table.writer(format_, binary=file.suffix == ".bin")
            rows, width = table.matrix.shape
            has = "" if table.bias is None or note else " and a bias"
            print_message(f"{rows:,} {table.kind}, each with {counted(width, 'number')}{has}")
            if note:
                print_message(f"note: {note}")
        else:
            write = _safetensors(path, name) if format_ == "safetensors" else _state_dict(path)
        _write(file, write, force)
    print_result(str(file))


def _job_name(checkpoint: Path) -> str:
    """Return the name in the run's resolved.yaml. If that file is missing or damaged (a copied checkpoint), return the
    name of the run's folder."""
    from hogwild.config.load import load_job

    run = checkpoint.parent.parent
    try:
        return load_job(run / "resolved.yaml").name
    except (NotFoundError, ConfigError):
        return run.name if checkpoint.parent.name == "checkpoints" and run.name else "model"


def _target(out: Path | None, default: str, force: bool) -> Path:
    file = Path(default) if out is None else out / default if out.is_dir() else out
    if not file.parent.is_dir():
        raise NotFoundError(f"--out {file}: there is no folder {file.parent.absolute()}", code="usage/no-folder")
    if not force and os.path.lexists(file):
        raise file_exists(file)
    return file


def _header_metadata(manifest: "Manifest", job: str) -> dict[str, str]:
    """Return the header's metadata of the checkpoint."""
    words = {"job": job, "checkpoint": manifest.name, "updates": str(manifest.update), "created": manifest.created}
    if "samples" in manifest.meta:
        words["samples"] = str(manifest.meta["samples"])
    if metrics := manifest.meta.get("metrics"):
        words["metrics"] = json.dumps(metrics)
    return {PREFIX + key: text for key, text in words.items()}


def _safetensors(path: Path, job: str) -> Callable[[BinaryIO], None]:
    """Return a function that writes the checkpoint's model file with more metadata in its header. The tensors' offsets
    count from the end of the header, so they stay the same. Raises CheckpointError for a damaged checkpoint."""
    from hogwild.storage.checkpoint_format import MODEL, verify

    words = _header_metadata(verify(path), job)

    def write(target: BinaryIO) -> None:
        with open(path / MODEL, "rb") as source:
            (size,) = struct.unpack("<Q", source.read(8))
            header: dict[str, Any] = json.loads(source.read(size))
            header["__metadata__"] = {**words, **header.get("__metadata__", {})}
            text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
            text += b" " * (-len(text) % ALIGNMENT)
            target.write(struct.pack("<Q", len(text)) + text)
            shutil.copyfileobj(source, target, 1 << 20)

    return write


def _state_dict(path: Path) -> Callable[[BinaryIO], None]:
    """Return a function that writes the model of state.pt, which also has non-tensors (`get_extra_state`) and tied
    parameters. Raises CheckpointError for a damaged checkpoint."""
    import torch

    from hogwild.storage.checkpoint import load

    model = load(path)["model"]
    return lambda target: torch.save(model, target)


def _write(file: Path, write: Callable[[BinaryIO], object], force: bool) -> None:
    """Write the file atomically and durably. Raises RunError, and UsageError if the file appeared meanwhile."""
    from hogwild.storage.files import sync_folder, temporary

    try:
        with temporary(file) as aside:
            with open(aside, "wb") as target:
                write(target)
                target.flush()
                os.fsync(target.fileno())
            try:
                if force:
                    aside.replace(file)
                else:
                    os.link(aside, file)  # fails if the name exists
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # file systems without hard links
                    raise
                aside.replace(file)
        sync_folder(file.parent)
    except FileExistsError:
        raise file_exists(file) from None
    except HogwildError:
        raise
    except (OSError, RuntimeError) as error:  # torch's zip writer turns an OSError into a RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{file}: cannot be written: {reason}", code="run/output-not-written") from error
