"""Leases on cores: written by each job, counted by the others as long as its process lives."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hogwild import host
from hogwild.host import CoreLease

CPUS = tuple(sorted(os.sched_getaffinity(0)))
# Another job: it has a lease on the first core, until its standard input ends.
OTHER = (
    "import os, sys; from hogwild import host; os.sched_setaffinity(0, {%d}); host.lease_cores(2, 0); print(flush=True)"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "hogwild" / "cores"


@pytest.fixture
def other(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    code = OTHER % CPUS[0] + "; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.processes
def test_a_lease_counts_for_others_until_its_process_is_killed(folder: Path, other: "subprocess.Popen[bytes]") -> None:
    host.lease_cores(1, 3)
    assert host.other_core_leases() == (CoreLease(2, 0, CPUS[:1]),)  # without our own
    assert len(list(folder.iterdir())) == 2
    other.kill()
    other.wait()
    assert host.other_core_leases() == ()
    assert [file.name.partition("-")[0] for file in folder.iterdir()] == [str(os.getpid())]
    host.end_core_lease()
    host.end_core_lease()
    assert not list(folder.iterdir())


def test_a_reused_process_number_is_no_lease(folder: Path) -> None:
    host.lease_cores(1, 1)
    (own,) = folder.iterdir()
    stale = own.rename(folder / f"{os.getppid()}-1")
    assert host.other_core_leases() == ()
    assert not stale.exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", '{"procs": 1}', '{"procs": -1, "threads": 0, "cpus": [0]}',
        '{"procs": 1, "threads": 0, "cpus": []}', '{"procs": 1, "threads": 0, "cpus": "x"}',
    ],
)  # fmt: skip
def test_a_damaged_lease_does_not_count(folder: Path, content: str) -> None:
    host.lease_cores(1, 1)
    parent = os.getppid()
    (folder / f"{parent}-{host.start_ticks(parent)}").write_text(content)
    (folder / "a file of somebody else").write_text(content)
    assert host.other_core_leases() == ()


def test_a_folder_that_is_missing_or_no_folder_is_no_lease_and_no_error(folder: Path) -> None:
    assert host.other_core_leases() == ()
    folder.parent.mkdir()
    folder.write_text("")
    host.lease_cores(1, 1)
    assert host.other_core_leases() == ()
