"""Whole jobs on a file that others append to, with a model that counts how often every line took effect
(jobs/counting.py): kills and resumes, rotations, waiting, and ends while nothing comes."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from hogwild.data import key_of
from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

BATCH = 4  # of counting.yaml


def append(path: Path, numbers: Iterable[int]) -> None:
    """Append a line per number; the last write ends in the middle of a line, and is completed."""
    content = "".join(f"{number},{number},u{number % 50}\n" for number in numbers).encode()
    with open(path, "ab", buffering=0) as file:
        file.write(content[:-3])
        file.write(content[-3:])


def begin(path: Path) -> None:
    path.write_text("a,b,user\n")


def rotate(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.{len([*path.parent.iterdir()])}"))
    begin(path)


def following(path: Path, lines: int, *more: str, ids: str = "[a]") -> list[str]:
    init_args = f"path: {path}, ids: {ids}, target: b, target_type: class"
    return [
        str(JOBS / "counting.yaml"),
        f"data.train={{class_path: hogwild.data.Follow, init_args: {{{init_args}}}}}",
        f"model.init_args.samples={lines}",
        "checkpoint.every_s=null",
        "train.exchange=direct",
        *more,
    ]


@pytest.mark.whole
def test_a_kill_of_everything_and_rotations_meanwhile_lose_and_repeat_no_line(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    logs, lines = tmp_path / "logs", 1200
    logs.mkdir()
    path = logs / "clicks.csv"
    begin(path)
    append(path, range(203))
    updates = [f"train.max_updates={lines // BATCH}", "checkpoint.every_updates=20"]
    job = start_job(tmp_path / "job", *following(path, lines, *updates))
    job.wait_for_updates(40)
    rotate(path)
    append(path, range(203, 600))
    job.wait_for_updates(110)
    job.process.kill()
    job.process.wait()
    assert not job.left_behind()
    append(path, range(600, 801))
    rotate(path)
    append(path, range(801, 850))
    again = start_job(tmp_path / "again", "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_updates(210)
    rotate(path)
    append(path, range(850, lines))
    ended = again.wait()
    assert ended.status == 0, ended.stderr
    assert ended.effects().tolist() == [1] * lines


def test_a_loader_killed_while_it_waits_loses_and_repeats_no_line_and_no_name(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    path, lines = tmp_path / "clicks.csv", 120
    begin(path)
    append(path, range(50))
    named = [f"train.max_updates={lines // BATCH}", "model.class_path=streaming.CountingNamed"]
    job = start_job(tmp_path / "job", *following(path, lines, *named, ids="[a, user]"))
    job.wait_for_updates(50 // BATCH)
    (loader,) = (event["pid"] for event in job.events("loader-spawn"))
    os.kill(loader, signal.SIGKILL)
    job.wait_for_event("loader-exit")
    append(path, range(50, lines))
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert ended.effects().tolist() == [1] * lines
    kept = [json.loads(line) for line in (ended.run_dir / "names.jsonl").read_text().splitlines()]
    assert sorted(kept) == sorted([key_of(f"u{number}"), f"u{number}"] for number in range(50))


@pytest.mark.parametrize("how", ["signal", "time"])
def test_a_job_that_waits_for_lines_is_alive_and_ends_at_once(
    how: str, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    path = tmp_path / "clicks.csv"
    begin(path)
    append(path, range(22))
    limits = ["supervise.stall_timeout_s=1", "supervise.deadlock_timeout_s=3", "supervise.grace_s=1"]
    limits += ["supervise.start_timeout_s=60", *(["train.max_time_s=6"] if how == "time" else [])]
    job = start_job(tmp_path / "job", *following(path, 28, *limits))
    job.wait_for_updates(5)
    if how == "signal":
        since = job.status()["time"]
        wait_for("more than the limits", lambda: job.status()["time"] > since + 5)
        append(path, range(22, 25))
        job.wait_for_updates(6)
        job.send(signal.SIGINT)
    ended = job.wait()
    assert ended.reason == (("stopped", "SIGINT") if how == "signal" else ("stopped", "max_time_s")), ended.stderr
    assert ended.effects().tolist() == [1] * (24 if how == "signal" else 20) + [0] * (4 if how == "signal" else 8)
    assert {event["kind"] for event in ended.events("loader-exit")} <= {"left"}, ended.stderr
    assert ended.summary["advice"] is None, "it waited for lines, not for its loader"
    assert not ended.left_behind


@pytest.mark.parametrize("until", ["end", "stop"])
def test_the_only_process_follows_too(until: str, tmp_path: Path, start_job: Callable[..., Job]) -> None:
    path = tmp_path / "clicks.csv"
    begin(path)
    append(path, range(22))
    given = following(path, 28, "train.procs=0", "train.max_time_s=5")
    given[1] = given[1].replace("target: b", f"target: b, until: {until}")
    ended = start_job(tmp_path / "job", *given).wait()
    assert ended.reason == (("succeeded", "epochs") if until == "end" else ("stopped", "max_time_s")), ended.stderr
    done = 22 if until == "end" else 20
    assert ended.effects().tolist() == [1] * done + [0] * (28 - done)
