"""The service's files, and the paths of one job's.

    STATE/  lock  token  format  service.json (port, pid)  index.sqlite3
            jobs/ID/  job.json (the order; never changes)  files/ (copies of job file and modules)
                      journal.jsonl (its events)  attempts/N/{stdout,stderr}  run/ (the run directory)

The folder is private (0700): the token and the environment of jobs are in it."""

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import ServiceError, UsageError
from hogwild.service.states import VERSION, JobOrder
from hogwild.storage.files import TEMPORARY, replace
from hogwild.storage.records import explained

FORMAT = 1  # of the folder; a newer one is refused
VARIABLE = "HOGWILD_STATE"
MOST_NAME = 500
ID = re.compile(r"[0-9a-f]{12}")
MOST_BYTES = 10 << 20  # of a job's file and modules


def state_folder(given: Path | None) -> Path:
    """Return --state-dir, or $HOGWILD_STATE, or hogwild/ in $XDG_STATE_HOME or ~/.local/state."""
    if given is None and (named := os.environ.get(VARIABLE)):
        given = Path(named)
    if given is None:
        home = os.environ.get("XDG_STATE_HOME")
        given = (Path(home) if home else Path.home() / ".local/state") / "hogwild"
    return given.expanduser().absolute()


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths of one job."""

    path: Path

    @property
    def order(self) -> Path:
        return self.path / "job.json"

    @property
    def files(self) -> Path:
        return self.path / "files"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def run(self) -> Path:
        return self.path / "run"

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)

    def read_order(self) -> JobOrder:
        """Return the order. Raises OSError, ValueError, TypeError, KeyError if it is damaged."""
        values = json.loads(self.order.read_bytes())
        if values["version"] > VERSION:
            raise ValueError(f"job.json has version {values['version']}, written by a newer hogwild")
        known = {name: values[name] for name in JobOrder.__slots__ if name in values}
        return JobOrder(**{**known, "overrides": tuple(known["overrides"])})


def order_text(order: JobOrder) -> str:
    return json.dumps(asdict(order), indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths of the service, and its token."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def index(self) -> Path:
        return self.path / "index.sqlite3"

    @property
    def address(self) -> Path:
        return self.path / "service.json"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

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
        file = self.path / "format"
        with contextlib.suppress(OSError, ValueError):
            if (found := int(file.read_text())) > FORMAT:
                raise ServiceError(
                    f"the state folder {self.path} was written by a newer hogwild (format {found}; this version knows "
                    f"{FORMAT}): use that version, or another --state-dir",
                    code="service/newer-store",
                )
            return
        with explained(f"cannot write {file}"):
            replace(file, f"{FORMAT}\n".encode(), sync=True)

    def token(self) -> str:
        """Return the token; make it at the first start. Raises RunDirError."""
        file = self.path / "token"
        with explained(f"cannot write {file}"):
            if not file.exists():
                before = os.umask(0o077)
                try:
                    replace(file, secrets.token_urlsafe(32).encode(), sync=True)
                finally:
                    os.umask(before)
            return file.read_text().strip()

    def job_folders(self) -> Iterator[JobFolder]:
        with explained(f"cannot read {self.jobs}"):
            names = sorted(os.listdir(self.jobs))
        yield from (JobFolder(self.jobs / name) for name in names if ID.fullmatch(name))

    def leftovers(self) -> Iterator[Path]:
        """Yield the folders of jobs that a killed service was adding or removing."""
        with explained(f"cannot read {self.jobs}"):
            yield from (self.jobs / name for name in sorted(os.listdir(self.jobs)) if name.startswith(TEMPORARY))

    def connection(self) -> dict[str, Any]:
        """Return address and token of a running service, for a client. Raises ServiceError if there is none."""
        try:
            found = json.loads(self.address.read_bytes())
            token = (self.path / "token").read_text().strip()
            return {"port": int(found["port"]), "token": token}
        except (OSError, ValueError, KeyError, TypeError):
            raise ServiceError(
                f"no service runs here: {self.address} is missing or unreadable; start one with: hogwild serve",
                code="service/unreachable",
            ) from None


def check_files(files: dict[str, str]) -> None:
    """Check names and size of what a client sent. Raises UsageError."""
    for name in files:
        parts = name.split("/")
        if not name.isprintable() or {"", ".", ".."} & set(parts) or len(name) > MOST_NAME:
            raise UsageError(
                f"file name {name!r}: must be a relative path below the job file's folder", code="service/bad-file"
            )
    size = sum(len(text.encode()) for text in files.values())
    if size > MOST_BYTES:
        raise UsageError(
            f"the job file and the modules beside it have {size / 2**20:.1f} MiB; at most {MOST_BYTES >> 20} MiB are "
            "copied: move modules that the job does not need elsewhere",
            code="service/too-large",
        )
