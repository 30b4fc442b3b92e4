"""Kills and errors at every system call of a checkpoint that is written, one after the other until nothing is left to
interrupt."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hogwild.storage import checkpoint, checkpoint_format, published_folder
from hogwild.storage.checkpoint_format import MODEL
from tests.faults import tracing, writing
from tests.faults.tracing import Call, Traced
from tests.helpers.jobs import HOME

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(tracing.why_not()), reason=tracing.why_not() or "it can be traced"),
]

BEFORE, NEXT = 2, 3  # updates: checkpoints 1 and 2 are there
FAULTS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS)


@dataclass
class Writers:
    """`writing.py`, which forks a writer for every trial."""

    process: subprocess.Popen[bytes]

    @contextlib.contextmanager
    def writer(self, folder: Path, update: int, value: float) -> Iterator[Traced]:
        """A writer that waits for its `go`; ended afterwards, whatever became of it."""
        self._send(f"{folder} {update} {value}\n".encode())
        writer = Traced.seize(int(self._line()))
        try:
            yield writer
        finally:
            writer.kill()
            assert self._line() == writing.OVER

    def go(self, writer: Traced) -> None:
        """Up to the moment before its first call."""
        self._send(writing.GO)
        while (call := writer.next_call()) is not None:
            if (call.name, call.arguments[0]) == ("read", 0) and writer.complete() == 1:
                return
        raise AssertionError("the writer ended before it began")

    def report(self, writer: Traced) -> dict[str, str]:
        """Lets a writer run on to its end, and stops it again, waiting for the next `go`."""
        writer.release()
        said: dict[str, str] = json.loads(self._line())
        writer.seize_again()
        return said

    def _send(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    folder = tmp_path_factory.mktemp("writing") / "run"
    arguments = [sys.executable, "-m", "tests.faults.writing", str(folder)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HOME) as process:
        yield Writers(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of updates 1 and 2."""
    folder = tmp_path_factory.mktemp("original") / "run"
    writing.make_run(folder, BEFORE - 1, BEFORE)
    return folder


def is_report(call: Call) -> bool:
    return (call.name, call.arguments[0]) == ("write", 1)


def check_good(path: Path | None, *expected: tuple[int, float]) -> None:
    """`path` is one of the expected (update, value), whole, and of exactly these bits."""
    assert path is not None
    manifest = checkpoint_format.verify(path)
    value = manifest.meta["value"]
    assert (manifest.update, value) in expected
    state, model = checkpoint.load(path), load_file(path / MODEL)
    for name, tensor in writing.state_of(manifest.update, value).items():
        assert torch.equal(state[name], tensor) and torch.equal(model[name], tensor)


IN_TURN = pytest.mark.parametrize(("update", "value"), [(NEXT, 3.0), (BEFORE, 7.0)], ids=["the next", "the same again"])


@IN_TURN
def test_a_writer_killed_at_any_system_call_leaves_a_good_checkpoint(
    writers: Writers, original: Path, tmp_path: Path, update: int, value: float
) -> None:
    """At the entry of each: between two of them what the disk holds does not change."""
    known = {"latest", *map(checkpoint_format.checkpoint_name, (1, BEFORE, update))}
    made: list[str] = []
    while "report" not in made:
        folder = shutil.copytree(original, tmp_path / "run", symlinks=True)
        with writers.writer(folder, update, value) as writer:
            writers.go(writer)
            for _ in range(len(made) + 1):
                call = writer.next_call()
            assert call is not None
        made.append("report" if is_report(call) else call.name)
        where = f"killed at system call {len(made)}, {made[-1]}"
        checkpoints = folder / "checkpoints"
        published_folder.sweep(checkpoints)
        found, rejected = checkpoint_format.newest_good(checkpoints)
        assert rejected == [], where
        check_good(found, (update, value), *([(BEFORE, 2.0)] if made[-1] != "report" else []))
        assert {entry.name for entry in checkpoints.iterdir()} <= known, where
        assert (checkpoints / "latest").exists(), where
        shutil.rmtree(folder)
    assert {"write", "fsync", "rename", "symlink"} <= set(made)


@IN_TURN
def test_an_error_of_any_system_call_is_said_and_leaves_the_checkpoints_before_it(
    writers: Writers, original: Path, tmp_path: Path, update: int, value: float
) -> None:
    """Each call fails once, the errors taking turns."""
    folder = shutil.copytree(original, tmp_path / "run", symlinks=True)
    checkpoints = folder / "checkpoints"
    failed: list[str] = []
    with writers.writer(folder, update, value) as writer:
        descriptors = os.listdir(f"/proc/{writer.thread}/fd")
        while "none" not in failed:
            number = FAULTS[(len(failed) + update) % len(FAULTS)]
            failed.append(fail_one(writers, writer, len(failed), number))
            said = writers.report(writer)
            where = f"{os.strerror(number)} at system call {len(failed)}, {failed[-1]}: {said}"
            assert len(os.listdir(f"/proc/{writer.thread}/fd")) == len(descriptors), where
            check_said(said, failed[-1], os.strerror(number), where)
            check_survived(checkpoints, said, (update, value), where)
            if any(entry.name.startswith(".") for entry in checkpoints.iterdir()):
                assert said["error"], where
                writers.go(writer)
                assert writers.report(writer)["error"] == ""
                assert not [entry for entry in checkpoints.iterdir() if entry.name.startswith(".")], where
            shutil.rmtree(checkpoints)
            shutil.copytree(original / "checkpoints", checkpoints, symlinks=True)
    assert {"openat", "write", "fsync", "rename", "symlink", "unlinkat"} <= set(failed)


def fail_one(writers: Writers, writer: Traced, nth: int, number: int) -> str:
    """Lets a writer write, up to its `nth` call that may fail, counted from 0, which does; that call's name, "none"
    when it makes fewer. A `close` is made all the same: it has closed, whatever it says."""
    writers.go(writer)
    while (call := writer.next_call()) is not None and not is_report(call):
        if call.name not in tracing.FILE_CALLS:
            continue
        if nth == 0:
            writer.complete(-number) if call.name == "close" else writer.fail(number)
            return call.name
        nth -= 1
    assert call is not None, "the writer ended"
    return "none"


# What torch and Python's library say in words of their own.
REWORDED = {"lseek", "close"}


def check_said(said: dict[str, str], call: str, reason: str, where: str) -> None:
    """The failure is an error that a job survives, with the file and the system's word for it."""
    if said["error"]:
        assert said["error"] in ("CheckpointError", "RunDirError", "OSError"), where
        assert "/checkpoints" in said["words"], where
        assert reason in said["words"] or call in REWORDED, where


def check_survived(checkpoints: Path, said: dict[str, str], new: tuple[int, float], where: str) -> None:
    found, rejected = checkpoint_format.newest_good(checkpoints)
    assert rejected == [], where
    assert (checkpoints / "latest").exists(), where
    check_good(found, new, *([(BEFORE, 2.0)] if said["error"] == "CheckpointError" else []))
