"""Whole jobs on standard input, with a model that counts how often every line took effect (jobs/counting.py)."""

import os
import pty
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from tests.helpers.jobs import Job
from tests.helpers.processes import wait_for
from tests.whole_jobs.test_follow_jobs import BATCH, following

pytestmark = pytest.mark.processes

HEADER = b"a,b,user\n"


def rows(numbers: Iterable[int]) -> bytes:
    return b"".join(b"%d,%d,u\n" % (number, number) for number in numbers)


class Producer:
    """The writing end of a pipe; `reader` is for the job."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self.written = 0

    def write(self, content: bytes) -> None:
        self.written += len(content)
        while content:
            content = content[os.write(self._writer, content) :]

    def close(self) -> None:
        os.close(self._writer)

    def wait_for_copy(self, file: Path) -> None:
        wait_for("all bytes in the file", lambda: file.exists() and file.stat().st_size == self.written)


def job_on(producer: Producer, start_job: Callable[..., Job], folder: Path, *arguments: str, **more: Path) -> Job:
    job = start_job(folder, *arguments, stdin=producer.reader, **more)
    os.close(producer.reader)
    return job


@pytest.mark.parametrize("procs", [0, 2])
def test_what_is_written_in_bursts_is_trained_once_and_its_end_is_the_end(
    procs: int, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    producer, lines = Producer(), 47
    producer.write(HEADER + rows(range(10))[:-3])
    job = job_on(producer, start_job, tmp_path / "job", *following(Path("-"), lines, f"train.procs={procs}"))
    job.wait_for_updates(9 // BATCH)
    producer.write(rows(range(10))[-3:] + rows(range(10, 33)))
    job.wait_for_updates(33 // BATCH)
    producer.write(rows(range(33, lines))[:-1])
    producer.close()
    ended = job.wait()
    assert ended.reason == ("succeeded", "epochs"), ended.stderr
    assert ended.effects().tolist() == [1] * lines
    assert not ended.left_behind


@pytest.mark.whole
@pytest.mark.parametrize("every_updates", [20, 10_000])
def test_kills_and_resumes_train_all_that_was_copied_once(
    every_updates: int, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """Also without any checkpoint: the model begins anew then, and so do the kept lines."""
    producer, lines = Producer(), 1800
    producer.write(HEADER + rows(range(203)))
    given = following(Path("-"), lines, f"checkpoint.every_updates={every_updates}")
    job = job_on(producer, start_job, tmp_path / "job", *given)
    kept = job.run_dir / "stdin"
    job.wait_for_updates(203 // BATCH)
    producer.write(rows(range(203, 1000)) + b"1000,10")
    producer.wait_for_copy(kept / "000001")
    job.process.kill()
    job.process.wait()
    producer.close()
    assert not job.left_behind()

    second = Producer()
    second.write(HEADER + rows(range(1000, lines)))
    again = job_on(second, start_job, tmp_path / "second", "--resume", str(job.run_dir), run_dir=job.run_dir)
    second.wait_for_copy(kept / "000002")
    again.process.kill()
    again.process.wait()
    second.close()
    assert not again.left_behind()

    last = start_job(tmp_path / "last", "--resume", str(job.run_dir), run_dir=job.run_dir)
    ended = last.wait()
    assert ended.reason == ("succeeded", "epochs"), ended.stderr
    assert ended.effects().tolist() == [1] * lines


def test_an_end_by_the_job_leaves_the_producer_alone_and_the_run_can_go_on(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    producer, lines = Producer(), 40
    producer.write(HEADER + rows(range(lines)))
    given = following(Path("-"), lines, "train.max_updates=5")
    ended = job_on(producer, start_job, tmp_path / "job", *given).wait()
    assert ended.reason == ("succeeded", "max_updates"), ended.stderr
    assert ended.effects().tolist() == [1] * 20 + [0] * 20
    assert not ended.left_behind
    with pytest.raises(BrokenPipeError):
        producer.write(b"x")
    producer.close()


def test_what_was_copied_is_kept_if_the_job_cannot_start(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    producer = Producer()
    producer.write(HEADER + rows(range(8)))
    given = following(Path("-"), 8, ids="[nobody]")
    job = job_on(producer, start_job, tmp_path / "job", *given)
    producer.close()
    refused = job.wait()
    assert refused.status == 1 and "nobody" in refused.stderr
    assert f"is kept: hogwild train JOB.yaml < {job.run_dir / 'stdin' / '000001'}" in refused.stderr
    assert [entry.name for entry in job.run_dir.iterdir()] == ["stdin"]
    assert (job.run_dir / "stdin" / "000001").read_bytes() == HEADER + rows(range(8))


def test_a_terminal_and_a_dry_run_are_refused(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    master, terminal = pty.openpty()
    given = following(Path("-"), 8)
    refused = start_job(tmp_path / "terminal", *given, stdin=terminal).wait()
    dry = start_job(tmp_path / "dry", *given, "--dry-run", stdin=subprocess.DEVNULL).wait()
    os.close(master)
    os.close(terminal)
    assert "which is a terminal" in refused.stderr and "data/standard-input" in refused.stderr
    assert "a dry run would use up" in dry.stderr
    assert not refused.run_dir.exists() and refused.status == dry.status == 2
