"""A new job that goes on from a checkpoint of another one, in a run directory of its own.

    jobs/OLD/run/  checkpoints/NAME ── hard links, or copies ──►  jobs/.tmp-…/run/  ── renamed ──►  jobs/NEW/run/
                   job.yaml resolved.yaml names.json metrics.jsonl env.json (with the new paths)

The new job is started as any job whose run can be resumed: `train --resume` drops the records after the checkpoint.
What tells of the old attempts (status, events, summary, logs) stays behind."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from hogwild.errors import NotFoundError, StorageFullError
from hogwild.service.folders import CACHE, MOST_BYTES, MOST_FILES, JobFolder, check_files
from hogwild.storage.checkpoint_format import FILES, MANIFEST, verify
from hogwild.storage.files import replace
from hogwild.storage.run_directory import ENV, NAMES, RESOLVED
from hogwild.storage.run_files import CHECKPOINTS, opened, read_json, read_small

DESCRIPTIONS = ("job.yaml", RESOLVED)  # without them there is no run
METRICS = "metrics.jsonl"


def files_of(folder: JobFolder) -> dict[str, bytes]:
    """Return the copied job file and what was copied with it: relative path -> content. What Python has put beside them
    is left out, and what is too large for a submission. Raises NotFoundError, UsageError."""
    found: dict[str, bytes] = {}
    try:
        for file in folder.files.rglob("*"):
            name = file.relative_to(folder.files)
            is_plain = not file.is_symlink() and file.is_file() and CACHE not in name.parts
            if not is_plain or file.stat().st_size > MOST_BYTES:
                continue
            with opened(folder.files, *name.parts) as stream:
                found[str(name)] = stream.read(MOST_BYTES)
            if len(found) > MOST_FILES:
                break
    except OSError as error:
        raise NotFoundError(f"{folder.files} cannot be read: {error}", code="service/no-folder") from None
    check_files(found)
    return found


def copy_checkpoint(old: JobFolder, name: str, aside: Path, new: JobFolder) -> None:
    """Make aside/run a run that can be resumed from checkpoint `name` of `old`; `new`: the folder that `aside` will
    become. Raises NotFoundError, CheckpointError, StorageFullError."""
    run, target = aside / "run", aside / "run" / CHECKPOINTS / name
    described = {one: read_small(old.run, one) for one in DESCRIPTIONS}
    if None in described.values():
        raise NotFoundError(f"{old.run} has no {' or no '.join(DESCRIPTIONS)}", code="run/not-a-run")
    try:
        target.mkdir(parents=True)
        for file in (*FILES, MANIFEST):
            _take(old.run, (CHECKPOINTS, name, file), target / file)
        for one in (NAMES, METRICS):  # not every run has them; they may be large
            with contextlib.suppress(FileNotFoundError):
                _take(old.run, (one,), run / one, may_link=False)
        environment = _moved(read_json(old.run, ENV), str(old.files), str(new.files))
        described[ENV] = json.dumps(environment)
        for one, text in described.items():
            if text is not None:
                replace(run / one, text.encode(), sync=True)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the checkpoint is gone, perhaps replaced by newer ones: {error}", code="export/no-checkpoint"
        ) from None
    except OSError as error:
        raise StorageFullError(f"the checkpoint was not copied to {aside}: {error.strerror or error}") from error
    verify(target)


def _take(run: Path, names: tuple[str, ...], target: Path, *, may_link: bool = True) -> None:
    """Link a file that never changes, which costs no space; copy it where that is not possible."""
    with opened(run, *names) as source:  # refuses links, which `os.link` would follow or copy
        if may_link:
            with contextlib.suppress(OSError):
                os.link(run.joinpath(*names), target, follow_symlinks=False)
                if os.path.samestat(os.fstat(source.fileno()), target.lstat()):
                    return
                target.unlink()
        with open(target, "xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())


def _moved(value: Any, old: str, new: str) -> Any:
    """Return the value with paths below `old` moved below `new`: the old job may be deleted."""
    if isinstance(value, dict):
        return {key: _moved(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [_moved(one, old, new) for one in value]
    is_inside = isinstance(value, str) and (value == old or value.startswith(f"{old}/"))
    return new + value[len(old) :] if is_inside else value
