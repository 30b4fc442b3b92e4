"""A trial of a search: an ordinary job, `hogwild train --json`, in SEARCH/trials/NUMBER, as a fork of the fork server.

    start ── evaluations (metrics.jsonl) ──► the study ──► prune: SIGTERM, a checkpoint, exit 75
      '───── the end: its record, else the last line of its output, else the signal that killed it

Its process gets SIGTERM when the search dies, so a killed search leaves trials that are paused with a checkpoint. It
holds a descriptor of the search's lock: while one of them still writes its checkpoint, no other search begins there."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.config.strict_yaml import flow
from hogwild.errors import headline
from hogwild.host.processes import python_child
from hogwild.monitoring.run_status import EXIT_STATUS, read_status
from hogwild.service.attempts import JobForker, JobProcess, spawn
from hogwild.storage.files import object_of
from hogwild.storage.run_directory import RESOLVED

TRIALS, OUTPUT, REFIT, JOB_FILE = "trials", "output", "refit", "job.yaml"  # in the folder of a search
_COMMAND = """
from hogwild import host
host.die_with_parent(int(sys.argv.pop(1)), host.TERMINATE)
from hogwild.config import locate
locate.read_copy(sys.argv.pop(1), sys.argv.pop(1))
import json
from hogwild import user_code
user_code.look_for_data_in(*json.loads(sys.argv.pop(1)))
from hogwild.__main__ import main
main()
"""
TAIL = 1 << 16  # bytes of its output that are looked at
# Errors by the trial's own values; all others are the same whatever the values are.
MEMORY = ("device/memory", "run/memory-short", "run/shm-full")
BY_VALUES = ("train/diverged", "train/not-finite", "train/no-update", *MEMORY)


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """The end of a trial's process. `kind`: done; stopped (it can be resumed); killed; failed."""

    kind: str
    reason: str = ""
    error: str = ""
    code: str = ""

    @property
    def is_by_values(self) -> bool:
        """True if other values might have worked: it diverged, or memory was short."""
        return self.kind == "failed" and self.code in BY_VALUES

    @property
    def cause(self) -> str:
        """The reason without the arguments of a class that raised, which differ from trial to trial."""
        return self.reason.partition(" raised ")[2] or self.reason


@dataclass(slots=True)
class Evaluations:
    """The values of metrics in a growing metrics.jsonl, as they are recorded; NaN for a null."""

    file: Path
    metrics: Sequence[str]
    times: dict[int, float] = field(default_factory=dict)  # evaluation -> seconds since 1970
    _read: int = 0  # bytes
    _count: int = 0
    _last: bytes = b""  # the last line that was read

    def new(self) -> list[tuple[int, list[float]]]:
        """Return the evaluations since the last call, each with its number, from 1 on; all of them, if the records
        after a checkpoint were cut off, by a resume."""
        try:
            with open(self.file, "rb") as stream:
                stream.seek(self._read - len(self._last))
                content = stream.read()
                if not content.startswith(self._last):  # no two records are equal: each has its time
                    self._read, self._count, self._last = 0, 0, b""
                    stream.seek(0)
                    content = stream.read()
        except FileNotFoundError:
            return []
        found = []
        whole = content[len(self._last) : content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines(keepends=True):
            self._last = line
            record = object_of(line) or {}
            if record.get("kind") == "evaluation":
                self._count += 1
                self.times[self._count] = float(record.get("time") or 0.0)
                values = [record.get(metric) for metric in self.metrics]
                numbers = [float(value) if isinstance(value, int | float) else float("nan") for value in values]
                found.append((self._count, numbers))
        return found


@dataclass(frozen=True, slots=True)
class TrialStarter:
    """The part that the processes of all trials have in common. `lock`: the descriptor of the search's lock."""

    folder: Path
    job_file: Path
    overrides: Sequence[str]
    data_dir: Path | None
    lock: int
    server: JobForker | None
    data_folders: Sequence[Path] = ()  # where data are found first, as in `user_code.look_for_data_in`
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run_of(self, number: int) -> Path:
        return self.folder / TRIALS / f"{number:04}"

    def is_waiting(self) -> bool:
        """Return whether the fork server still imports torch; before each start."""
        return self.server is not None and self.server.is_starting(self.environment)

    def start(self, run: Path, changes: Sequence[str], resumed: Sequence[str] = ()) -> JobProcess:
        """Start a trial, or resume it if its run has begun. `changes`: its values, as `key=value`; `resumed`: those
        that a resume changes. Raises OSError."""
        arguments = ["train", "--json", "--no-progress"]
        if (run / RESOLVED).is_file():
            arguments += ["--resume", str(run), *resumed]
        else:
            shutil.rmtree(run, ignore_errors=True)  # of a process that was killed before it had begun
            arguments += [str(self.job_file), *self.overrides, *changes, "--run-dir", str(run)]
        arguments += ["--data-dir", str(self.data_dir)] if self.data_dir is not None else []
        copy = str(self.folder / JOB_FILE)
        places = json.dumps([str(folder) for folder in self.data_folders])
        command = python_child(_COMMAND, str(os.getpid()), str(self.job_file), copy, places, *arguments)
        output = self.folder / OUTPUT
        output.mkdir(exist_ok=True)
        with (
            open(os.devnull, "rb") as null,
            open(output / f"{run.name}.json", "wb") as out,
            open(output / f"{run.name}.log", "wb") as err,
        ):
            standard = [stream.fileno() for stream in (null, out, err)]
            process, _ = spawn(command, self.environment, os.getcwd(), standard, self.server, [self.lock])
        return process

    def end_of(self, run: Path, pid: int | None, status: int | None) -> TrialEnd:
        """Return how a trial ended. `pid`, `status`: of its dead process; None for one of an earlier attempt, of which
        the run's own record tells."""
        found = read_status(run)
        record = found.record if pid is None or found.record.get("pid") == pid else {}
        state = record.get("state")
        if state not in EXIT_STATUS and status is not None and status >= 0:
            record = object_of(_tail(self.folder / OUTPUT / f"{run.name}.json", lines=1)) or {}
            state = record.get("state") or ("failed" if record.get("error_code") else None)
        if state == "succeeded":
            return TrialEnd("done", str(record.get("reason") or ""))
        if state in ("stopped", "cancelled") or status in (128 + host.TERMINATE, 128 + host.INTERRUPT):
            return TrialEnd("stopped", str(record.get("reason") or ""))
        if state == "failed":
            error = str(record.get("error") or record.get("reason") or "")
            return TrialEnd("failed", headline(error) if error else "", error, str(record.get("error_code") or ""))
        if status is not None and status >= 0:
            words = _tail(self.folder / OUTPUT / f"{run.name}.log") or f"exit status {status}, without a word"
            return TrialEnd("failed", words.splitlines()[-1], words, "run/unexpected")
        return TrialEnd("killed", "" if status is None else host.describe_exit(status))


def _tail(file: Path, lines: int = 20) -> str:
    """Return the last lines of a file; "" if it cannot be read."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            return "\n".join(stream.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def arguments_of(values: Mapping[str, Any]) -> list[str]:
    """Return values as `key=value` of the command line."""
    return [f"{path}={flow(value)}" for path, value in values.items()]
