"""Files of one run directory as the service shows them: logs, checkpoints, configuration, stacks.

The one thing to know: user code may have written there, and a killed job may have left half of anything. So a file is
opened through no link, must be a regular file, and only a bounded part of it is returned."""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from hogwild.config.load import load_job
from hogwild.config.locate import read_job_file
from hogwild.config.strict_yaml import read as read_yaml
from hogwild.errors import CheckpointError, ConfigError, ConflictError, NotFoundError
from hogwild.formatting import flat
from hogwild.service.folders import JobFolder
from hogwild.service.states import JobOrder
from hogwild.storage.checkpoint_format import MANIFEST, MODEL, NAME
from hogwild.storage.records import to_json
from hogwild.storage.run_directory import BEST, LATEST, RESOLVED

LOG_BYTES = 256 << 10  # of a log, in one answer
SEARCHED_BYTES = 256 << 20  # of the end of a log, by a search: 0.6 s
MOST_LINES = 2000  # that a search returns
LINE_BYTES = 64 << 10  # a longer line is cut into several
SMALL_BYTES = 4 << 20  # of a file that is read whole: manifest, configuration
STACK_BYTES = 64 << 10  # of one process
MOST_ENTRIES = 1000  # of a folder
CHECKPOINTS = "checkpoints"
LOG = re.compile(r"([a-z]+)(?:-([0-9]{1,4}))?\.log")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(run: Path, *names: str) -> Iterator[int]:
    """Yield the descriptor of a folder below a run directory, reached through no link. Raises OSError."""
    folder = os.open(run, _FOLDER)
    try:
        for name in names:
            above, folder = folder, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(above)
        yield folder
    finally:
        os.close(folder)


def opened(run: Path, *names: str) -> BufferedReader:
    """Open a regular file below a run directory, through no link; a pipe does not block. Raises OSError."""
    with opened_folder(run, *names[:-1]) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        reader = os.open(names[-1], flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(reader).st_mode):  # `open` would not close a folder that it refuses
        os.close(reader)
        raise FileNotFoundError(f"{'/'.join(names)} is no regular file")
    return open(reader, "rb")


def read_small(run: Path, *names: str) -> str | None:
    """Return the text of a small file; None if it is missing, unreadable or large."""
    with contextlib.suppress(OSError), opened(run, *names) as stream:
        content = stream.read(SMALL_BYTES + 1)
        return content.decode(errors="replace") if len(content) <= SMALL_BYTES else None
    return None


def read_json(run: Path, *names: str) -> dict[str, Any]:
    """Return the JSON object in a small file; {} if it is missing or damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(read_small(run, *names) or "{}")
        return found if isinstance(found, dict) else {}
    return {}


# ---- logs


def logs_in(run: Path) -> list[dict[str, Any]]:
    """Return name and size of each log, the supervisor's first."""
    found: list[tuple[str, int, int]] = []
    with contextlib.suppress(OSError), opened_folder(run, "logs") as folder, os.scandir(folder) as entries:
        for entry in entries:
            match = LOG.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                found.append((match[1], int(match[2] or -1), entry.stat(follow_symlinks=False).st_size))
    ordered = sorted(found, key=lambda one: (one[0] != "supervisor", one))[:MOST_ENTRIES]
    return [{"name": noun if number < 0 else f"{noun}-{number}", "bytes": size} for noun, number, size in ordered]


def read_log(run: Path, name: str, search: str = "") -> str:
    """Return the end of a log; with `search` its newest lines that contain that, in any case. Raises NotFoundError."""
    try:
        with opened(run, "logs", f"{name}.log") as stream:
            return _matching(stream, search.casefold()) if search else _end_of(stream)
    except OSError:
        raise NotFoundError(f"there is no {name}.log of this job", code="run/no-log") from None


def _end_of(stream: BinaryIO) -> str:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - LOG_BYTES))
    text = stream.read(LOG_BYTES).decode(errors="replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def _matching(stream: BinaryIO, wanted: str) -> str:
    """Return the newest matching lines, as many as LOG_BYTES hold. What is written meanwhile is not searched: it may
    never end."""
    end = os.fstat(stream.fileno()).st_size
    if end > SEARCHED_BYTES:
        stream.seek(end - SEARCHED_BYTES)
        stream.readline(LINE_BYTES)  # the rest of a line
    kept: deque[tuple[int, str]] = deque()  # (bytes, line)
    size = 0
    while stream.tell() < end and (raw := stream.readline(LINE_BYTES)):
        line = raw.decode(errors="replace")
        if wanted in line.casefold():
            kept.append((len(raw), line if line.endswith("\n") else f"{line}\n"))
            size += len(raw)
            while len(kept) > MOST_LINES or size > LOG_BYTES:
                size -= kept.popleft()[0]
    return "".join(line for _, line in kept)


def sizes_of_stacks(run: Path) -> dict[str, int]:
    """Return file name -> size of the stacks that were written until now."""
    with contextlib.suppress(OSError), opened_folder(run, "stacks") as folder, os.scandir(folder) as entries:
        files = [one for one in entries if one.name.endswith(".txt") and one.is_file(follow_symlinks=False)]
        return {one.name: one.stat(follow_symlinks=False).st_size for one in sorted(files, key=lambda one: one.name)}
    return {}


def read_stacks(run: Path, before: Mapping[str, int]) -> str:
    """Return what was appended to the stacks since `before`."""
    parts = []
    for name in [*sizes_of_stacks(run)][:MOST_ENTRIES]:
        with contextlib.suppress(OSError), opened(run, "stacks", name) as stream:
            stream.seek(before.get(name, 0))
            if text := stream.read(STACK_BYTES).decode(errors="replace"):
                parts.append(f"{name.removesuffix('.txt')}\n{text}")
    return "\n".join(parts)


# ---- checkpoints


def checkpoints_in(run: Path) -> list[dict[str, Any]]:
    """Return the checkpoints, the newest first."""
    names, best, latest = [], None, None
    with contextlib.suppress(OSError), opened_folder(run, CHECKPOINTS) as folder:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
        best, latest = (_target(folder, link) for link in (BEST, LATEST))
    ordered = sorted(names, key=lambda name: int(name.partition("-")[2]), reverse=True)[:MOST_ENTRIES]
    found = [(name, read_json(run, CHECKPOINTS, name, MANIFEST)) for name in ordered]
    return [
        {**_checkpoint(name, manifest), "is_best": name == best, "is_latest": name == latest}
        for name, manifest in found
        if manifest
    ]


def _target(folder: int, link: str) -> str | None:
    try:
        return os.readlink(link, dir_fd=folder)
    except OSError:
        return None


def _checkpoint(name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    meta, files = (one if isinstance(one := manifest.get(key), dict) else {} for key in ("meta", "files"))
    sizes = [one.get("size") for one in files.values() if isinstance(one, dict)]
    metrics, epoch = meta.get("metrics"), meta.get("epoch")
    return {
        "name": name,
        "updates": int(name.partition("-")[2]),
        "epoch": epoch if isinstance(epoch, int) else None,
        "bytes": sum(size for size in sizes if isinstance(size, int)),
        "at": _seconds(manifest.get("created")),
        "metrics": to_json(metrics) if isinstance(metrics, dict) else None,
    }


def _seconds(created: Any) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def opened_model(run: Path, name: str) -> tuple[BufferedReader, int]:
    """Open the model of a checkpoint, for `export`; return it with its size. Reads all of it, to compare it with the
    manifest. Raises NotFoundError, CheckpointError."""
    expected = read_json(run, CHECKPOINTS, name, MANIFEST).get("files", {})
    try:
        stream = opened(run, CHECKPOINTS, name, MODEL)
    except OSError:
        raise NotFoundError(f"this job has no checkpoint {name}", code="export/no-checkpoint") from None
    entry = expected.get(MODEL) if isinstance(expected, dict) else None
    size = os.fstat(stream.fileno()).st_size
    actual = {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "size": size}
    if entry != actual:
        stream.close()
        raise CheckpointError(
            f"checkpoint {name}: {MODEL} is damaged: it has {actual}, the manifest says {entry}; use another one",
            code="checkpoint/damaged",
        )
    stream.seek(0)
    return stream, size


# ---- configuration


def config_of(folder: JobFolder) -> dict[str, Any]:
    """Return the job file as submitted, as resolved, and where each value came from. Raises ConflictError for a damaged
    job, NotFoundError, ConfigError."""
    order = order_in(folder)
    text = read_job_file(folder.files / order.copied)
    resolved = read_small(folder.run, RESOLVED)
    values = _flat_values(resolved or "")
    if not values:
        values = dict(flat(load_job(Path(order.job_file), order.overrides, source_text=text).model_dump()))
    changes = [change.partition("=") for change in order.overrides]
    given, changed = _flat_values(text), [path for path, _, _ in changes]
    return {
        "text": text,
        "resolved": resolved,
        "overridden": [{"path": path, "value": value} for path, _, value in changes],
        "fields": [
            {"path": path, "value": to_json(value), "from": _origin(path, given, changed)}
            for path, value in values.items()
        ],
    }


def order_in(folder: JobFolder) -> JobOrder:
    """Return a job's order. Raises ConflictError for a damaged one."""
    try:
        return folder.read_order()
    except (OSError, ValueError) as error:
        raise ConflictError(f"{folder.order}: {error}", code="service/damaged-job") from None


def _origin(path: str, given: Mapping[str, Any], changed: list[str]) -> str:
    if any(_is_part(path, one) or _is_part(one, path) for one in changed):
        return "command line"
    return "file" if path in given or any(_is_part(one, path) for one in given) else "default"


def _is_part(path: str, section: str) -> bool:
    return path == section or path.startswith(f"{section}.")


def _flat_values(text: str) -> dict[str, Any]:
    """Return dotted names with values of a job file; {} if it is not YAML."""
    try:
        values = read_yaml(text, "job").values
    except ConfigError:
        return {}
    return dict(flat(values)) if isinstance(values, Mapping) else {}
