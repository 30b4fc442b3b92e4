"""Kills and errors at every system call, one after the other until nothing is left to interrupt: of a checkpoint that
is written, and of an item that a real worker trains."""

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hogwild.storage import checkpoint, checkpoint_format, published_folder
from hogwild.storage.checkpoint_format import MODEL
from hogwild.workers.messages import LOOK, RECORD
from tests.faults import EVERY, tracing, writing
from tests.faults.tracing import Call, Traced
from tests.helpers.jobs import HOME, JOBS, Job

pytestmark = pytest.mark.skipif(bool(tracing.why_not()), reason=tracing.why_not() or "it can be traced")

# ---- a checkpoint that is written -----------------------------------------------------------------------------------

BEFORE, NEXT = 2, 3  # updates: checkpoints 1 and 2 are there
OF_THE_STEP = "newfstatat"  # a call that only the optimizer of these jobs makes
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
    """What went wrong is said as an error that a job survives, with the file and the system's word for it."""
    if said["error"]:
        assert said["error"] in ("CheckpointError", "RunDirError", "OSError"), where
        assert "/checkpoints" in said["words"], where
        assert reason in said["words"] or call in REWORDED, where


def check_survived(checkpoints: Path, said: dict[str, str], new: tuple[int, float], where: str) -> None:
    found, rejected = checkpoint_format.newest_good(checkpoints)
    assert rejected == [], where
    assert (checkpoints / "latest").exists(), where
    check_good(found, new, *([(BEFORE, 2.0)] if said["error"] == "CheckpointError" else []))


# ---- an item that a worker trains -----------------------------------------------------------------------------------

BATCH, BATCHES = 4, 4  # so few batches in an epoch that every item is one update
LEASE_BYTES = 4096  # what a worker asks its lease pipe for; an acknowledgement is one record


# A job without an end. Its one worker makes a system call on either side of what it writes, between intent and commit;
# an evaluation after each epoch keeps items short.
TRAINING = (
    str(JOBS / "counting.yaml"),
    *(f"{part}.init_args.samples={BATCH * BATCHES}" for part in ("model", "data.train")),
    f"data.val={{class_path: counting.Numbers, init_args: {{samples: {BATCH}}}}}",
    "optimizer.class_path=stepping.Stepping",
    "data.shuffle=none",
    "checkpoint.every_s=null",
    "train.procs=1",
    "train.epochs=1000000",
    "supervise.max_restarts=10000",
    "supervise.max_item_attempts=1000",
)


def items(traced: Traced, call: Call, length: int) -> list[int]:
    """Those of the records that a call has read or is to write; 0 is only a doorbell."""
    return [item for _, item in RECORD.iter_unpack(traced.memory(call.arguments[1], length)) if item != LOOK]


def begins_an_item(worker: Traced, call: Call) -> bool:
    if call.name != "read" or call.arguments[2] != LEASE_BYTES or not worker.is_pipe(call.arguments[0]):
        return False
    length = worker.complete() or 0
    return length > 0 and length % RECORD.size == 0 and bool(items(worker, call, length))


def ends_an_item(worker: Traced, call: Call) -> bool:
    is_record = call.name == "write" and call.arguments[2] == RECORD.size and worker.is_pipe(call.arguments[0])
    return is_record and bool(items(worker, call, RECORD.size))


def run_to_a_lease(worker: Traced) -> None:
    """To the exit of the read that brings it."""
    while (call := worker.next_call()) is not None:
        if begins_an_item(worker, call):
            return
    raise AssertionError("the worker ended")


def seize(job: Job, incarnation: int) -> Traced:
    """The worker of that incarnation, as soon as it is there."""
    return Traced.seize(job.wait_for_event("spawn", incarnation)[-1]["pid"])


def calls_of_the_item(worker: Traced, is_last: Callable[[list[str]], bool]) -> list[str]:
    """From the lease on, up to the acknowledgement, `ack`, at most; the last one is not made."""
    made: list[str] = []
    while not is_last(made) and "ack" not in made:
        call = worker.next_call()
        assert call is not None, f"the worker ended after {made}"
        made.append("ack" if ends_an_item(worker, call) else call.name)
    return made


def call_number(count: int) -> Callable[[list[str]], bool]:
    return lambda made: len(made) == count


def call_of_the_step(count: int) -> Callable[[list[str]], bool]:
    return lambda made: made.count(OF_THE_STEP) == count


def test_a_worker_killed_at_any_system_call_of_an_item_loses_and_repeats_nothing_in_silence(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """At the first, both of the step, every sixth (`tests.faults.EVERY`) and at last the acknowledgement; of
    the second item of an incarnation, because in the first one torch reads a dozen files. An evaluation that is met
    instead is killed, too, but is no point."""
    job = start_job(tmp_path, *TRAINING)
    points: list[str] = []
    kills = 0
    first = [call_number(1), call_of_the_step(1), call_of_the_step(2)]
    lasts = itertools.chain(first, map(call_number, itertools.count(EVERY + 1, EVERY)))
    is_last = next(lasts)
    while "ack" not in points:
        worker = seize(job, kills + 1)
        run_to_a_lease(worker)
        calls_of_the_item(worker, lambda made: False)
        run_to_a_lease(worker)
        made = calls_of_the_item(worker, is_last)
        kills += 1
        worker.kill()
        gone = job.wait_for_event("exit", kills)[-1]
        if gone["freed"] or gone["indeterminate"]:
            points.append(made[-1])
            is_last = next(lasts)
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert (ended.status, ended.reason) == (75, ("stopped", "SIGTERM")), ended.stderr
    assert points[1:3] == [OF_THE_STEP] * 2
    leases, effects = ended.leases, ended.effects()
    assert ended.ledger_adds_up() and leases["done"] == leases["total"]
    assert 2 <= leases["indeterminate"] == leases["redone"]
    assert int(effects.min()) >= ended.summary["samples"] // (BATCH * BATCHES)
    assert 0 <= int(effects.sum()) - ended.summary["samples"] <= BATCH * leases["redone"]
    assert not ended.left_behind
