"""Files of one run directory as the service shows them: logs, stacks, a checkpoint's model, configuration. Only a
bounded part of a file is returned."""

import contextlib
import hashlib
import os
import re
from collections import deque
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from hogwild.config.load import load_job
from hogwild.config.locate import read_job_file
from hogwild.config.origins import JOB_FILE, OVERRIDE, ResolvedSetting, flat_values, settings
from hogwild.errors import CheckpointError, ConflictError, NotFoundError
from hogwild.formatting import flat
from hogwild.service.folders import JobFolder
from hogwild.service.states import JobOrder
from hogwild.storage.checkpoint_format import MANIFEST, MODEL
from hogwild.storage.records import to_json
from hogwild.storage.run_directory import RESOLVED
from hogwild.storage.run_files import CHECKPOINTS, MOST_ENTRIES, opened, opened_folder, read_json, read_small

LOG_BYTES = 256 << 10  # of a log, in one answer
SEARCHED_BYTES = 256 << 20  # of the end of a log, by a search: 0.6 s
MOST_LINES = 2000  # that a search returns
LINE_BYTES = 64 << 10  # a longer line is cut into several
STACK_BYTES = 64 << 10  # of one process
LOG = re.compile(r"([a-z]+)(?:-([0-9]{1,4}))?\.log")


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
    values = flat_values(resolved or "")
    if not values:
        values = dict(flat(load_job(Path(order.job_file), order.overrides, source_text=text).model_dump()))
    changes = [change.partition("=") for change in order.overrides]
    return {
        "text": text,
        "resolved": resolved,
        "overridden": [{"path": path, "value": value} for path, _, value in changes],
        "fields": [
            {"path": one.key, "value": to_json(one.value), "from": _source(one, [path for path, _, _ in changes])}
            for one in settings(values, text)
        ],
    }


def order_in(folder: JobFolder) -> JobOrder:
    """Return a job's order. Raises ConflictError for a damaged one."""
    try:
        return folder.read_order()
    except (OSError, ValueError) as error:
        raise ConflictError(f"{folder.order}: {error}", code="service/damaged-job") from None


def _source(one: ResolvedSetting, changed: list[str]) -> str:
    """Return the origin in the words of the API; workers that the service or a measurement chose are a default."""
    if one.origin != OVERRIDE:
        return "file" if one.origin == JOB_FILE else "default"
    key = f"{one.key}."
    is_given = any(key.startswith(f"{path}.") or path.startswith(key) for path in changed)
    return "command line" if is_given else "default"
