"""Writes and loads checkpoints: published folders (`published_folder.py`) of state.pt and model.safetensors.

A thread of the supervisor writes the files. Its long calls (hashing, raw writes, syncs) release the interpreter
lock."""

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors.torch
import torch
from torch.utils.serialization import config as torch_config

from hogwild.errors import CheckpointError
from hogwild.storage.checkpoint_format import FORMAT, MODEL, STATE, newest_first, prune, refuse_link, update_of, verify
from hogwild.storage.files import to_json
from hogwild.storage.published_folder import (
    Entry,
    HashedFile,
    entry_of,
    publish_instead,
    write_manifest,
    written_aside,
)
from hogwild.storage.run_directory import KNOWN, NAMES


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The end of a write. `error`: what could not be written and why; earlier checkpoints are then unchanged.
    `warning` is not empty if older checkpoints could not be removed."""

    name: str
    error: CheckpointError | None = None
    warning: str = ""


def write(
    folder: Path, name: str, state: dict[str, Any], model_tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]
) -> Path:
    """Write `folder/name` completely or not at all. `state` may hold what torch.load(weights_only=True) accepts; its
    tensors must not change meanwhile. One writer per folder. Raises CheckpointError; other checkpoints are
    untouched."""
    update_of(name)  # raises for a name that `newest_good` would not find
    try:
        folder.mkdir(exist_ok=True)
        with written_aside(folder / name) as aside:
            files = {STATE: _write_state(aside / STATE, state), MODEL: _write_model(aside / MODEL, model_tensors)}
            # The names of the state's rows, and who has what, without a copy where the file system allows that. The
            # state has the names' digests, and so has the other file, so the manifest lists neither. They are written
            # anew for every run and never changed.
            for name_of_file in (NAMES, KNOWN):
                of_run = folder.parent / name_of_file
                with contextlib.suppress(FileNotFoundError):  # not every model has such rows
                    try:
                        (aside / name_of_file).hardlink_to(of_run)
                    except OSError:
                        if of_run.exists():
                            shutil.copyfile(of_run, aside / name_of_file)
            described = {"format": FORMAT, "name": name, "update": update_of(name), "torch": torch.__version__}
            created = datetime.now(UTC).isoformat(timespec="seconds")
            write_manifest(aside, {**described, "created": created, "files": files, "meta": to_json(dict(meta))})
            publish_instead(aside, folder / name)
        return folder / name
    except CheckpointError:
        raise
    except Exception as error:  # disk errors, and whatever torch and safetensors refuse to write
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        words = f"cannot write checkpoint {folder / name}: {reason}; earlier checkpoints are kept"
        raise CheckpointError(words, code="checkpoint/not-written") from error


def _write_state(path: Path, state: dict[str, Any]) -> Entry:
    with contextlib.closing(HashedFile(path)) as file:
        # No CRC: our hash covers the whole file, and torch.load ignores the CRC. The setting is per thread.
        with torch_config.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
            torch.save(state, file)  # type: ignore[arg-type]
        entry = file.finish()
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if unsafe:  # it could never be loaded again: fail now, not after a crash
        words = f"the checkpoint's state holds objects that cannot be loaded safely: {', '.join(unsafe)}"
        raise CheckpointError(words, code="checkpoint/unsafe")
    return entry


def _write_model(path: Path, tensors: Mapping[str, Any]) -> Entry:
    """Write each tensor once, contiguous. Further names of a tied tensor go into the metadata as alias -> name, as
    `safetensors.torch.load_model` expects."""
    names: dict[tuple[Any, ...], str] = {}
    metadata = {"format": "pt"}
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):  # from a module's `get_extra_state`: saved in the state
            continue
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else (name,)
        if key in names:
            metadata[name] = names[key]
        else:
            names[key] = name
            kept[name] = tensor.detach().contiguous()
    end = 0  # copy tensors that partly overlap another one, such as slices: safetensors refuses them
    for name, tensor in sorted(
        kept.items(), key=lambda item: item[1].data_ptr()
    ):  # views side by side stay as they are
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        if tensor.nbytes and start < end:
            kept[name] = tensor.clone()
        end = max(end, stop)
    safetensors.torch.save_file(kept, path, metadata)
    shutil.copymode(path.with_name(STATE), path)  # safetensors makes the file readable by its owner only
    return entry_of(path, sync=True)


def load(path: Path) -> dict[str, Any]:
    """Return the state of a verified checkpoint, on the CPU. Raises CheckpointError, also for a pickle that would run
    code."""
    verify(path)
    try:
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or foreign pickle can make torch.load raise nearly anything
        words = f"checkpoint {path}: {STATE} cannot be loaded safely: {error}"
        raise CheckpointError(words, code="checkpoint/unsafe") from error
    if not isinstance(state, dict):
        words = f"checkpoint {path}: {STATE} must hold a dict, got {type(state).__name__}"
        raise CheckpointError(words, code="checkpoint/foreign")
    return state


def tensors_of(path: Path, names: Sequence[str]) -> list[torch.Tensor]:
    """Return those of a checkpoint's tensors that it has, unverified; of a damaged one none."""
    try:
        with safetensors.safe_open(path / MODEL, framework="pt") as file:
            there = {*file.keys()}
            return [file.get_tensor(name) for name in names if name in there]
    except (OSError, safetensors.SafetensorError):
        return []


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Taken(Generic[Answer]):
    """The checkpoint to continue from, if there is one (`path`). `rejected`: why each newer checkpoint was not used;
    `misfit`: the first error of those that loaded but were refused."""

    path: Path | None
    state: dict[str, Any]
    answer: Answer | None
    rejected: list[str]
    misfit: CheckpointError | None = None


def load_newest(
    folder: Path,
    use: Callable[[dict[str, Any]], Answer],
    older_than: int | None = None,
    beside: Sequence[Path] = (),
) -> Taken[Answer]:
    """Pass the newest complete, loadable checkpoint to `use`; if that raises CheckpointError, try the one before, and
    so on: behind a damaged, hostile or foreign checkpoint there may be a good one. Changes nothing on disk.
    `older_than` as in `newest_first`; `beside`: further folders with checkpoints of the same run."""
    rejected: list[str] = []
    misfit: CheckpointError | None = None
    found = [path for one in (folder, *beside) for path in newest_first(one, older_than)]
    for path in sorted(found, key=lambda path: -update_of(path.name)):  # of equal ones the first folder's
        try:
            refuse_link(path)
            state = load(path)
        except CheckpointError as error:
            rejected.append(str(error))
            continue
        try:
            return Taken(path, state, use(state), rejected, misfit)
        except CheckpointError as error:
            rejected.append(f"checkpoint {path} does not fit this job: {error}")
            misfit = misfit or CheckpointError(rejected[-1], code=error.code)
    return Taken(None, {}, None, rejected, misfit)


def write_and_prune(
    folder: Path,
    name: str,
    state: dict[str, Any],
    model_tensors: Mapping[str, torch.Tensor],
    meta: Mapping[str, Any],
    keep: int,
    last: Callable[[], None] = lambda: None,
) -> WriteResult:
    """As `write`, for a thread: all but the `keep` newest checkpoints are pruned after a success, `last` is called in
    any case, and the result says what went wrong. If the process ends first, this checkpoint (and only this) is
    lost."""
    try:
        write(folder, name, state, model_tensors, meta)
        prune(folder, keep)
    except CheckpointError as error:
        _forget_frames(error)
        return WriteResult(name, error)
    except OSError as error:
        return WriteResult(name, warning=f"cannot remove older checkpoints: {error}")
    finally:
        last()
    return WriteResult(name)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of a stored error, so that it does not keep the unwritten tensors alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
