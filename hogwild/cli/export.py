"""`hogwild export`: a checkpoint's model as one file for other programs, without the optimizer and the ledger.

    RUN/checkpoints/update-000003600/model.safetensors ── every hash checked ──► digits-update-000003600.safetensors
                                    /state.pt          ─────────────────────► ... .pt, a state_dict

A safetensors file is a JSON header and then the tensors' bytes. The bytes are copied unchanged; only the header is
rewritten, with information about the job. Needs no torch, unlike `state_dict`."""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from hogwild.cli.output import print_result, reading
from hogwild.config.of_run import CHOICES, checkpoint_of
from hogwild.errors import ConfigError, NotFoundError, RunError, UsageError
from hogwild.host import raise_noted, raising_on_signals

if TYPE_CHECKING:
    from hogwild.storage.checkpoint_format import Manifest

ENDINGS = {"safetensors": ".safetensors", "state_dict": ".pt"}
PREFIX = "hogwild."  # prefix of our header keys; the header also holds the names of tied parameters
Which = Annotated[
    str | None, typer.Option(help="Of a RUN; default: the best, if it was evaluated.", metavar="best|latest")
]
ALIGNMENT = 8  # bytes: alignment of the first tensor, as in the format's own writer


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run directory, or one checkpoint of it.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors; or state_dict: torch.load(FILE, weights_only=True) reads it.",
            metavar="safetensors|state_dict",
        ),
    ] = "safetensors",
    out: Annotated[
        Path | None, typer.Option(help="A file or a folder; default: JOB-update-N in the current one.", metavar="FILE")
    ] = None,
    which: Which = None,
    force: Annotated[bool, typer.Option("--force", help="Replaces FILE.")] = False,
) -> int:
    """Writes a run's model to one file: every hash is checked first."""
    _check_choice("--format", format_, tuple(ENDINGS))
    check_choice(which)
    with reading():
        path = checkpoint_of(source, which)
        name = _job_name(path)
    file = _target(out, f"{name}-{path.name}{ENDINGS[format_]}", force)
    if format_ == "state_dict":
        import hogwild.storage.checkpoint  # noqa: F401  # imports torch, during which a signal is only noted

        raise_noted()
    with raising_on_signals():
        _write(file, _safetensors(path, name) if format_ == "safetensors" else _state_dict(path), force)
    print_result(str(file))
    return 0


def check_choice(which: str | None) -> None:
    """Raise UsageError for an invalid `--which`."""
    if which is not None:
        _check_choice("--which", which, CHOICES)


def _check_choice(option: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise UsageError(f"{option} {given}: must be {' or '.join(choices)}", code="usage/bad-value")


def _job_name(checkpoint: Path) -> str:
    """Return the job name in the run's resolved.yaml. A checkpoint that was copied out of its run has none, nor has a
    run with a damaged file: use the folder's name then."""
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
        raise UsageError(_exists(file), code="usage/file-exists")
    return file


def _exists(file: Path) -> str:
    return f"{file}: is there already, and is not replaced; --force replaces it, --out names another"


def _words(manifest: "Manifest", job: str) -> dict[str, str]:
    """Return the header entries that describe the checkpoint."""
    words = {"job": job, "checkpoint": manifest.name, "updates": str(manifest.update), "created": manifest.created}
    if "samples" in manifest.meta:
        words["samples"] = str(manifest.meta["samples"])
    if metrics := manifest.meta.get("metrics"):
        words["metrics"] = json.dumps(metrics)
    return {PREFIX + key: text for key, text in words.items()}


def _safetensors(path: Path, job: str) -> Callable[[BinaryIO], None]:
    """Return a function that writes the checkpoint's file with more entries in its header. Tensor offsets count from
    the header's end, so they stay valid. Raises CheckpointError for an incomplete checkpoint."""
    from hogwild.storage.checkpoint_format import MODEL, verify

    words = _words(verify(path), job)

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
    """Return a function that writes the state_dict from state.pt, which also has values that are no tensors
    (`get_extra_state`) and keeps ties. Raises CheckpointError for an incomplete checkpoint."""
    import torch

    from hogwild.storage.checkpoint import load

    model = load(path)["model"]
    return lambda target: torch.save(model, target)


def _write(file: Path, write: Callable[[BinaryIO], None], force: bool) -> None:
    """Write the file completely or not at all, durably. Raises RunError, and UsageError for a file that appeared."""
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
        raise UsageError(_exists(file), code="usage/file-exists") from None
    except (OSError, RuntimeError) as error:  # torch's zip writer turns OSError into RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{file}: cannot be written: {reason}", code="run/output-not-written") from error


def _give_its_name(aside: Path, file: Path, force: bool) -> None:
    """Give the temporary file its name. Without `force` by a link: unlike a rename, it fails if the name exists."""
    try:
        if not force:
            os.link(aside, file)
            return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # errors of a file system without links
            raise
    aside.replace(file)
