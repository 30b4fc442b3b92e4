"""`hogwild export`: a checkpoint's model as one file for other programs, without the optimizer and the ledger.

    RUN/checkpoints/update-000003600/model.safetensors ── every hash checked ──► digits-update-000003600.safetensors
                                    /state.pt          ─────────────────────► ... .pt, a state_dict
                                                       ── the model, loaded ─► ... .pt2, .onnx: a program
                                                                            ─► ... .txt, .bin: word vectors

A safetensors file is a JSON header and then the tensors' bytes. The bytes are copied unchanged; only the
header is rewritten, with metadata of the job. This needs no torch; the others do."""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from hogwild.cli.arguments import DataDir, Run, Which, check_choice
from hogwild.cli.output import file_exists, print_result, reading
from hogwild.cli.results import model_of
from hogwild.config.of_run import CHOICES, checkpoint_of
from hogwild.errors import ConfigError, HogwildError, NotFoundError, RunError, UsageError
from hogwild.host import raise_noted, raising_on_signals

if TYPE_CHECKING:
    from hogwild.inference.trained_model import Trained
    from hogwild.storage.checkpoint_format import Manifest

ENDINGS = {
    "safetensors": ".safetensors",
    "state_dict": ".pt",
    "torch-export": ".pt2",
    "onnx": ".onnx",
    "word2vec": ".txt",
}
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
            "word2vec: the vectors of a model of words, as text, or binary in FILE.bin.",
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
    which: Which = None,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a run's model to one file, after checking every hash."""
    check_choice("--format", format_, ENDINGS)
    if example is not None and format_ not in PROGRAMS:
        raise UsageError(f"--example is for --format {' or '.join(PROGRAMS)}", code="usage/contradiction")
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
            write = _program(model_of(path, None, data_dir), format_, example)
        elif format_ == "word2vec":
            write = partial(model_of(path, None, data_dir).vectors.write_word2vec, binary=file.suffix == ".bin")
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


def _program(model: "Trained", format_: str, example: str | None) -> Callable[[BinaryIO], object]:
    """Return a function that writes the model as a program."""
    from hogwild.inference import programs

    trace = programs.onnx if format_ == "onnx" else programs.torch_export
    return trace(model.model, model.example(example))


def _write(file: Path, write: Callable[[BinaryIO], object], force: bool) -> None:
    """Write the file atomically and durably. Raises RunError, and UsageError if the file appeared meanwhile."""
    from hogwild.storage.files import sync_folder, temporary

    try:
        with temporary(file) as aside:
            with open(aside, "wb") as target:
                write(target)
                target.flush()
                os.fsync(target.fileno())
            _give_its_name(aside, file, force)
        sync_folder(file.parent)
    except FileExistsError:
        raise file_exists(file) from None
    except HogwildError:
        raise
    except (OSError, RuntimeError) as error:  # torch's zip writer turns an OSError into a RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{file}: cannot be written: {reason}", code="run/output-not-written") from error


def _give_its_name(aside: Path, file: Path, force: bool) -> None:
    """Rename the file; without `force` by a hard link, which fails if the name exists."""
    try:
        if not force:
            os.link(aside, file)
            return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # file systems without hard links
            raise
    aside.replace(file)
