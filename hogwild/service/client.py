"""Requests to the service, for the command line and for programs: `hogwild.Client`. Needs the core only; neither
fastapi nor torch."""

import base64
import contextlib
import http.client
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hogwild.errors import (
    ConfigError,
    ConflictError,
    HogwildError,
    NotFoundError,
    Problem,
    ServiceError,
    StorageFullError,
    UsageError,
)
from hogwild.formatting import counted, size
from hogwild.service.folders import (
    CACHE,
    DATABASE,
    MOST_BYTES,
    MOST_FILES,
    StateFolder,
    allowed,
    is_name,
    state_folder,
)
from hogwild.storage.files import file_bytes
from hogwild.storage.run_directory import RESOLVED

MOST_SHOWN = 50  # letters of a wrong name
TIMEOUT_S = 60.0
AGAIN_S = 5.0  # a request is repeated so long: the service may just be started again
LOOK_S = 0.2
WAITED_FOR = ("paused", "succeeded", "failed", "cancelled")
KINDS: Mapping[int, type[HogwildError]] = {
    404: NotFoundError,
    409: ConflictError,
    413: UsageError,
    422: UsageError,
    507: StorageFullError,
}
Row = dict[str, Any]
NAME = re.compile(r"[0-9]{1,9}|[0-9a-f]{1,12}")  # of a job, or the beginning of its id


class Client:
    """The running service of a state folder: `Client().submit("job.yaml")`. A row is a dict with at least id, number,
    name, state, reason, attempt, pid, run_dir, exit_status. All methods raise ServiceError if no service answers.

    state_dir: its folder; default: $HOGWILD_STATE, or ~/.local/state/hogwild."""

    def __init__(self, state_dir: str | os.PathLike[str] | None = None) -> None:
        self._state = StateFolder(state_folder(None if state_dir is None else Path(state_dir)))

    def submit(
        self,
        job_file: str | os.PathLike[str] | None = None,
        overrides: Sequence[str] = (),
        *,
        data_dir: str | os.PathLike[str] | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> Row:
        """Submit a job file (default: the bundled digits) with `key=value` changes; return its row. The file, the
        modules of its folder and small files beside these are copied (`Beside`); `tell` is called with what is not.
        Raises ConfigError, NotFoundError, UsageError, StorageFullError."""
        from hogwild.config.locate import default_config, read_job_file

        path = default_config("digits") if job_file is None else Path(job_file)
        text = read_job_file(path)
        folder = path.absolute().parent
        beside = Beside({}, {}, []) if job_file is None else Beside.of(folder, len(text.encode()))
        if beside.left_out:
            tell(beside.words)
        body = {
            "id": secrets.token_hex(6),
            "job_file": str(path),
            "text": text,
            "files": beside.modules,
            "others": {name: base64.b64encode(content).decode() for name, content in beside.others.items()},
            "overrides": list(overrides),
            "folder": os.getcwd(),
            "job_folder": None if job_file is None else str(folder),
            "data_dir": None if data_dir is None else os.path.abspath(data_dir),
            "environment": allowed(os.environ),
        }
        self._state.connection()
        return _repeated(lambda: self._ask("POST", "/jobs", body))  # the id makes it the same job

    def jobs(self) -> list[Row]:
        """Return all jobs, the oldest first."""
        found: list[Row] = self._ask("GET", "/jobs")["jobs"]
        return found

    def job(self, name: str | int) -> Row:
        """Return a job by id, number or beginning of an id. Raises NotFoundError."""
        return self._ask("GET", _place(name))

    def run_dir(self, name: str | int) -> Path:
        """Return the run directory of a job. Raises NotFoundError, also if there is none (yet)."""
        row = self.job(name)
        run = Path(row["run_dir"])
        if not run.is_dir():
            why = f": {row['reason']}" if row["reason"] else ""
            words = f"job {row['number']} is {row['state']} and has no run directory{why}"
            output = run.parent / "attempts" / str(row["attempt"]) / "stderr"
            if output.is_file():
                words += f"\nIts output: {output}"
            raise NotFoundError(words, code="run/not-found")
        return run

    def cancel(self, name: str | int, *, now: bool = False) -> Row:
        """Cancel a job: it writes a checkpoint and stops; `now`: without one. Does not wait for the end."""
        return self._ask("POST", f"{_place(name)}/cancel?now={str(now).lower()}")

    def pause(self, name: str | int) -> Row:
        """Stop a job with a checkpoint, so that others get its cores; `resume` goes on."""
        return self._ask("POST", f"{_place(name)}/pause")

    def resume(self, name: str | int) -> Row:
        """Queue a paused job again."""
        return self._ask("POST", f"{_place(name)}/resume")

    def retry(self, name: str | int, *, new_code: bool = False) -> Row:
        """Queue a failed or cancelled job again; it goes on from its newest checkpoint, with the code of its submission
        or, with `new_code`, the present modules and small files of its folder. Its settings stay."""
        return self._ask("POST", f"{_place(name)}/retry?new_code={str(new_code).lower()}")

    def delete(self, name: str | int) -> None:
        """Remove an ended or paused job with its run directory."""
        self._ask("DELETE", _place(name))

    def wait(self, name: str | int, timeout_s: float | None = None) -> Row:
        """Wait until a job has ended or is paused; return its row. The service may be started again meanwhile. Raises
        TimeoutError."""
        begin = time.monotonic()
        self._state.connection()
        while True:
            row = _repeated(lambda: self.job(name))
            if row["state"] in WAITED_FOR:
                return row
            if timeout_s is not None and time.monotonic() - begin > timeout_s:
                raise TimeoutError(f"job {row['number']} is still {row['state']} after {timeout_s:g} s")
            time.sleep(LOOK_S)

    def _ask(self, method: str, path: str, body: object = None) -> Row:
        where = self._state.connection()
        headers = {"Authorization": f"Bearer {where['token']}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", where["port"], timeout=TIMEOUT_S)
        try:
            connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(
                f"the service of {self._state.path} does not answer on port {where['port']} ({error}); is it running? "
                f"Start it with: hogwild serve{self._state.option}",
                code="service/unreachable",
            ) from None
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise _error(answer.status, content)
        row: Row = json.loads(content) if content else {}
        return row


def _repeated(ask: Callable[[], Row]) -> Row:
    begin = time.monotonic()
    while True:
        try:
            return ask()
        except ServiceError:
            if time.monotonic() - begin > AGAIN_S:
                raise
        time.sleep(LOOK_S)


def seconds_since(at: float) -> float:
    """Return the age of a time of a row, which is in seconds since 1970."""
    return max(0.0, time.time() - at)


def _place(name: str | int) -> str:
    if not NAME.fullmatch(str(name)):
        shown = str(name)[:MOST_SHOWN]
        raise NotFoundError(
            f"no job {shown!r}: neither a number nor the beginning of an id (hogwild ps -a lists them)",
            code="service/no-job",
        )
    return f"/jobs/{name}"


def _error(status: int, content: bytes) -> HogwildError:
    try:
        told = json.loads(content)
        words, code = str(told["detail"]), str(told["error_code"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"the service answered {status}: {content[:200]!r}", code="service/answer")
    if problems := told.get("problems"):
        return ConfigError([Problem(**one) for one in problems])
    return KINDS.get(status, ServiceError)(words, code=code)


MOST_OF_ONE = 1 << 20  # bytes of a file that is no module
MOST_OF_OTHERS = 4 << 20  # bytes of all of them
MOST_IN_FOLDER = 200  # files of a folder that is no package
NAMED = 5  # of those that are not copied


@dataclass(frozen=True, slots=True)
class Beside:
    """Files beside a job file, for the job's own code: `modules`, relative path -> text, are its folder's .py files and
    those of packages (folders with an __init__.py); `others` -> content are small files beside them and in further
    folders, such as a vocabulary; not folders that programs write, such as runs and virtual environments. `left_out`:
    what is not copied. Without a .py file no code of the job opens any."""

    modules: dict[str, str]
    others: dict[str, bytes]
    left_out: list[str]

    @classmethod
    def of(cls, folder: Path, used: int) -> "Beside":
        """Look into the folder; `used`: bytes of the job file. Raises UsageError for modules that are larger than a
        service takes."""
        found, left_out = cls({}, {}, []), list[str]()
        others, total, folders = list[Path](), used, [folder]
        while folders:
            for entry in sorted(folders.pop().iterdir()):
                if entry.is_dir() and (entry / "__init__.py").is_file():
                    folders.append(entry)
                elif entry.suffix == ".py" and entry.is_file():
                    total += entry.stat().st_size
                    if total > MOST_BYTES:
                        raise UsageError(
                            f"the .py files in {folder} have more than {MOST_BYTES >> 20} MiB, which is the most that "
                            "is copied with a job; put the job file into a folder with the modules it needs",
                            code="service/too-large",
                        )
                    found.modules[str(entry.relative_to(folder))] = _text_of(entry)
                elif entry.is_dir() and _may_be_wanted(entry):
                    below = [*islice(_files_below(entry), MOST_IN_FOLDER + 1)]
                    others += below[:MOST_IN_FOLDER]
                    left_out += [f"more of {entry.name}/"] * (len(below) > MOST_IN_FOLDER)
                elif entry.is_file() and _may_be_wanted(entry):
                    others.append(entry)
        if not found.modules and not any(file.suffix == ".py" for file in others):
            return found
        left = min(MOST_OF_OTHERS, MOST_BYTES - total)
        for file in sorted(others, key=file_bytes):
            name, count = str(file.relative_to(folder)), file_bytes(file)
            is_small = count <= min(MOST_OF_ONE, left) and len(found.modules) + len(found.others) + 1 < MOST_FILES
            if is_small and is_name(name):
                with contextlib.suppress(OSError):  # the job may not read it either
                    found.others[name] = file.read_bytes()[:count]
                    left -= count
            else:
                left_out.append(f"{name} ({size(count)})")
        found.left_out.extend(left_out)
        return found

    @property
    def files(self) -> dict[str, bytes]:
        """All that is copied: relative path -> content."""
        return {**self.others, **{name: text.encode() for name, text in self.modules.items()}}

    @property
    def words(self) -> str:
        more = len(self.left_out) - NAMED
        named = ", ".join([*self.left_out[:NAMED], *([f"{counted(more, 'other')}"] if more > 0 else [])])
        return (
            f"not copied with the job: {named}. Its own code finds these by an absolute path only, data sets find them "
            f"as ever. Copied are {counted(len(self.modules), 'module')} and {counted(len(self.others), 'other file')} "
            f"(of {size(MOST_OF_ONE)} at most, {size(MOST_OF_OTHERS)} in all, {MOST_IN_FOLDER} in a folder)"
        )


# Folders that programs write: `runs`, and folders with one of these files. A state folder would be copied into itself.
NEVER_COPIED = frozenset((CACHE, "runs", "node_modules", "site-packages"))
OF_PROGRAMS = (DATABASE, RESOLVED, "pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")


def _may_be_wanted(entry: Path) -> bool:
    if entry.name.startswith(".") or entry.name in NEVER_COPIED or (entry.parent / DATABASE).exists():
        return False
    return not any((entry / mark).exists() for mark in OF_PROGRAMS)


def _files_below(folder: Path) -> Iterator[Path]:
    seen = {folder.resolve()}
    for where, folders, files in os.walk(folder, followlinks=True):
        inner = {one: Path(where, one).resolve() for one in sorted(folders) if _may_be_wanted(Path(where, one))}
        folders[:] = [one for one, place in inner.items() if place not in seen]  # a link may lead back
        seen.update(inner.values())
        yield from (file for name in sorted(files) if _may_be_wanted(file := Path(where, name)) and file.is_file())


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text ({error.reason})", code="service/bad-file") from None
