"""A training service in a process of its own, as a user starts it; and orders for the parts below it."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hogwild.host import affinity, physical_cores
from hogwild.service.client import Client
from hogwild.service.folders import MARK as JOB_MARK
from hogwild.service.folders import StateFolder
from hogwild.service.states import JobOrder
from hogwild.service.store import Store
from tests.helpers.jobs import RUN_PY, environment
from tests.helpers.processes import MARK, PATIENCE_S, marked, wait_for

# Trains in the parent process, without workers: what the service sees of a job is the same.
SMALL = ("train.procs=0", "train.epochs=1")
LONG = ("train.procs=0", "train.epochs=100000")


@contextlib.contextmanager
def opened_store(folder: Path) -> Iterator[Store]:
    """Yield the store of a state folder, which is made if it is missing."""
    state = StateFolder(folder)
    state.make()
    store = Store(state)
    store.load()
    try:
        yield store
    finally:
        store.close()


def require_two_cores() -> None:
    if len(physical_cores(affinity())) < 2:
        pytest.skip("needs two cores: one of them moves")


def order(number: int, **more: Any) -> JobOrder:
    """Return an order with the fields that a test does not care about."""
    given: dict[str, Any] = {
        "id": f"{number:012x}",
        "number": number,
        "name": "job",
        "submitted": 0.0,
        "job_file": "job.yaml",
        "copied": "job.yaml",
        "job_folder": "/",
        "overrides": (),
        "folder": "/",
        "data_dir": None,
        "environment": {},
        "digest": "",
        "mark": f"mark-{number}",
        "cpus": 1,
        **more,
    }
    return JobOrder(**given)


@dataclass
class Service:
    """A service on `folder`/state. `end` kills it and all its jobs."""

    folder: Path
    mark: str
    extra: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[str] | None" = None

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.folder / "state")

    @property
    def client(self) -> Client:
        return Client(self.state.path)

    def start(self, *arguments: str, failpoint: str = "") -> "Service":
        """Start it and wait until it answers, or has ended at its failpoint."""
        more = {"HOGWILD_FAILPOINT": failpoint} if failpoint else {}
        self.state.address.unlink(missing_ok=True)
        with open(self.folder / "serve.log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, RUN_PY, "serve", "--port", "0", "--state-dir", str(self.state.path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(self.mark, self.folder), **self.extra, **more},
                start_new_session=True,
            )
        wait_for("the service", lambda: self.has_ended or self.state.address.exists())
        assert failpoint or not self.has_ended, self.log()
        return self

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def log(self) -> str:
        return (self.folder / "serve.log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        def look() -> bool:
            left = marked(self.mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            return not left

        wait_for("the end of the service and its jobs", look, 30)

    def submit(self, *overrides: str) -> dict[str, Any]:
        return self.client.submit(None, overrides)

    def wait_for_state(self, name: str, *states: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            row = self.client.job(name)
            return row if row["state"] in states else None

        found = wait_for(f"job {name} to be {' or '.join(states)}", look, 60)
        assert found is not None
        return found

    def running(self, *overrides: str) -> dict[str, Any]:
        """Submit a job, by default one without an end; return its row once it runs."""
        return self.wait_for_state(self.submit(*(overrides or LONG))["id"], "running")

    def training(self, *overrides: str) -> dict[str, Any]:
        """Submit a job, by default one without an end; return its row once it has made updates."""
        name = self.running(*overrides)["id"]
        return wait_for("updates", lambda: row if (row := self.client.job(name))["updates"] else None)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the job's events, from the store."""
        with contextlib.closing(sqlite3.connect(self.state.database)) as database:
            return [json.loads(text) for (text,) in database.execute("SELECT event FROM events WHERE job = ?", (name,))]

    def processes(self) -> dict[int, str]:
        """Return the living processes of all jobs: not the service's own fork server."""
        return {pid: line for pid, line in marked(self.mark).items() if _is_of_a_job(pid)}


def _is_of_a_job(pid: int) -> bool:
    try:
        return f"\0{JOB_MARK}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended meanwhile
        return False


@contextlib.contextmanager
def serving(folder: Path, **extra: str) -> Iterator[Service]:
    """Yield a service that is not started yet; nothing of it is left afterwards."""
    service = Service(folder, f"service-{os.getpid()}-{folder.name}", extra)
    os.environ[MARK] = service.mark  # a job sees the environment of whoever submits it
    try:
        yield service
    finally:
        service.end()
        del os.environ[MARK]
