"""The service's files, and the paths of one job's.

    STATE/  lock  token  format  service.json (port, pid)  jobs.sqlite3 (orders, records and events of all jobs)
            numbered (the highest number that was given, when the newest job was removed)
            jobs/ID/  job.json (a copy of the job's row there)  files/ (copies of job file and modules)
                      attempts/N/{stdout,stderr}  run/ (the run directory)

The folder is private (0700): the token and the environment of jobs are in it."""

import contextlib
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.errors import NotFoundError, ServiceError, UsageError
from hogwild.storage.files import explained, home, replace
from hogwild.storage.run_files import opened

MARK = "HOGWILD_JOB"  # in the environment of every process of a job
STATE = "HOGWILD_STATE"
NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
        *("CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "MALLOC_ARENA_MAX"),
    )
)
PREFIXES = (
    *("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "NUMBA_", "TORCH", "PYTORCH_", "CUDA_"),
    *("NVIDIA_", "HF_", "HOGWILD_", "XDG_", "MPL"),
)
OURS = frozenset((MARK, STATE, "HOGWILD_FAILPOINT"))


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job is given of the environment of its submission."""
    return {
        name: value
        for name, value in environment.items()
        if name not in OURS and (name in NAMES or name.startswith(PREFIXES)) and is_possible(name, value)
    }


def is_possible(name: str, value: str) -> bool:
    """Return whether the system takes it: no NUL, no `=` in a name, nothing that is no text."""
    try:
        return "=" not in name and b"\0" not in (name + value).encode()
    except UnicodeEncodeError:  # a surrogate, from bytes that are no UTF-8
        return False


FORMAT = 2  # of the folder; a newer one is refused, one of version 1 is taken over
MOST_NAME = 500
CACHE = "__pycache__"
DATABASE = "jobs.sqlite3"
MOST_FILES = 1000
LEAST_TOKEN = 32  # letters
ADDRESS_BYTES = 64
ID = re.compile(r"[0-9a-f]{12}")
MOST_BYTES = 10 << 20  # of a job's file, its modules and what lies beside them


def state_folder(given: Path | None) -> Path:
    """Return --state-dir, or $HOGWILD_STATE, or hogwild/ in $XDG_STATE_HOME or ~/.local/state."""
    if given is None and (named := os.environ.get(STATE)):
        given = Path(named)
    if given is None:
        named = os.environ.get("XDG_STATE_HOME")
        given = (Path(named) if named else home() / ".local/state") / "hogwild"
    return Path(os.path.expanduser(given)).absolute()


class JobFolder:
    """Paths of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.order, self.journal = path / "job.json", path / "journal.jsonl"  # the journal: only of version 1
        self.files, self.run = path / "files", path / "run"

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)


class StateFolder:
    """Paths of the service, and its token."""

    def __init__(self, path: Path) -> None:
        self.path, self.jobs = path, path / "jobs"
        self.lock, self.address, self.database = path / "lock", path / "service.json", path / DATABASE
        self.numbered = path / "numbered"

    def job(self, name: str) -> JobFolder:
        assert ID.fullmatch(name), name
        return JobFolder(self.jobs / name)

    def make(self) -> None:
        """Make the folder. Raises ServiceError if others could read or change it, RunDirError."""
        with explained(f"cannot make the state folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.path.stat()
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
                raise ServiceError(
                    f"the state folder {self.path} can be changed by other users (owner {found.st_uid}, mode "
                    f"{stat.S_IMODE(found.st_mode):o}); use a folder of your own with mode 700",
                    code="service/state-folder",
                )
            self.path.chmod(0o700)
            self.jobs.mkdir(exist_ok=True)

    def check_format(self) -> None:
        """Check that this version knows the folder's format. Raises ServiceError, RunDirError."""
        file, found = self.path / "format", 0
        with contextlib.suppress(OSError, ValueError):
            found = int(file.read_text())
        if found > FORMAT:
            raise ServiceError(
                f"the state folder {self.path} was written by a newer hogwild (format {found}; this version knows "
                f"{FORMAT}): use that version, or another --state-dir",
                code="service/newer-store",
            )
        if found < FORMAT:
            with explained(f"cannot write {file}"):
                replace(file, f"{FORMAT}\n".encode(), sync=True)
                for left in self.path.glob("index.sqlite3*"):  # of version 1
                    left.unlink()

    def token(self) -> str:
        """Return the token; make it at the first start. Raises RunDirError."""
        file = self.path / "token"
        with explained(f"cannot write {file}"):
            if len(read_text(file)) < LEAST_TOKEN:
                before = os.umask(0o077)
                try:
                    replace(file, secrets.token_urlsafe(32).encode(), sync=True)
                finally:
                    os.umask(before)
            return read_text(file)

    def identity(self) -> str:
        """Return what tells this folder from a copy of it, while it stays where it is."""
        found = self.lock.stat()
        return f"{found.st_dev:x}:{found.st_ino:x}"

    def write_address(self, port: int) -> None:
        """Tell clients where the service listens; a full disk takes it in the place of the old one. Raises
        RunDirError."""
        content = json.dumps({"port": port, "pid": os.getpid()}).encode().ljust(ADDRESS_BYTES)
        with explained(f"cannot write {self.address}"):
            try:
                replace(self.address, content, sync=False)
            except OSError:
                with open(self.address, "r+b") as stream:
                    stream.write(content)

    def folders(self, prefix: str = "") -> list[Path]:
        """Return the folders in jobs/ whose names begin with that, in order. Raises RunDirError."""
        with explained(f"cannot read {self.jobs}"):
            return [self.jobs / name for name in sorted(os.listdir(self.jobs)) if name.startswith(prefix)]

    def connection(self) -> dict[str, Any]:
        """Return address and token of a running service, for a client. Raises ServiceError if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            # Without its lock another program may have its port by now: it must not get the token.
            if host.is_locked(self.lock) is not False:
                found = json.loads(self.address.read_bytes())
                return {"port": int(found["port"]), "token": read_text(self.path / "token")}
        words = f"no service runs on {self.path}; start one with: hogwild serve{self.option}"
        raise ServiceError(words, code="service/unreachable")

    @property
    def option(self) -> str:
        """Return the end of commands for this folder: ` --state-dir DIR`, or "" if it is the default."""
        return "" if self.path == state_folder(None) else f" --state-dir {shlex.quote(str(self.path))}"


def read_text(file: Path) -> str:
    """Return the text of a small file; "" if there is none, or it is no text."""
    try:
        return file.read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def is_name(name: str) -> bool:
    """Return whether it is a path below a job's folder that a client may send."""
    return name.isprintable() and len(name) <= MOST_NAME and not {"", ".", ".."} & {*name.split("/")}


def check_files(files: Mapping[str, bytes]) -> None:
    """Check names and size of what a client sent. Raises UsageError."""
    if len(files) > MOST_FILES:
        raise UsageError(
            f"{len(files)} files are beside the job file; at most {MOST_FILES} are copied: put the job file into a "
            "folder with only the modules it needs",
            code="service/too-large",
        )
    for name in files:
        if not is_name(name):
            raise UsageError(
                f"file name {name!r}: must be a relative path below the job file's folder", code="service/bad-file"
            )
    size = sum(map(len, files.values()))
    if size > MOST_BYTES:
        raise UsageError(
            f"the job file and the modules beside it have {size / 2**20:.1f} MiB; at most {MOST_BYTES >> 20} MiB are "
            "copied: move modules that the job does not need elsewhere",
            code="service/too-large",
        )


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
