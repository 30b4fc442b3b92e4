"""Whole jobs over streamed data, with a model that counts how often every record took effect (jobs/counting.py):
map-style and iterable data, loaders and workers that die, resumes, what cannot be read."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
KEPT = ["train.procs=2", "checkpoint.every_s=null", "data.feed=stream", "train.exchange=direct"]


def streaming(kind: str, samples: int = 1600, **init_args: object) -> list[str]:
    given = [f"data.train.class_path=streaming.{kind}", f"data.train.init_args.samples={samples}"]
    given += [f"data.train.init_args.{name}={value}" for name, value in init_args.items()]
    return [COUNTING, *given, f"model.init_args.samples={samples}", *KEPT]


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    """Small jobs, one after the other in one process; each has workers and loaders of its own."""
    raises, kills = jobs_folder / "raises", jobs_folder / "kills"
    for diary in (raises, kills):
        diary.mkdir()
    inline = "train.procs=0"
    delta = ["train.exchange=delta", "train.sync_every=4", "train.epochs=2"]
    always = {"crimes": "{always raises: 41}"}
    runs = jobs_folder / "jobs"
    jobs = {
        "finished": [*streaming("Divided", 90)],
        "finished, one more epoch": ["--resume", str(runs / "finished" / "run"), "train.epochs=2"],
        "map": [*streaming("Numbers"), "train.epochs=2"],
        "map inline": [*streaming("Numbers", 90), inline],
        "map in delta": [*streaming("Numbers", 403), "train.procs=1", *delta],
        "map in delta, two workers": [*streaming("Numbers", 1601), *delta],
        "map accumulated": [*streaming("Numbers", 1596), "train.accumulate=3", "data.loaders=3"],
        "divided": [*streaming("Divided", 1601), "train.epochs=3"],
        "divided, one worker": [*streaming("Divided", 203), "train.procs=1", "data.loaders=2", "train.epochs=2"],
        "undivided": [*streaming("Undivided", 403), "data.loaders=3", "train.epochs=2"],
        "undivided inline": [*streaming("Undivided", 93), inline, "train.epochs=2"],
        "divided inline": [*streaming("Divided", 93), inline, "train.epochs=2"],
        "function": [*streaming("numbers", 402)],
        "dropped": [*streaming("Undivided", 403), "data.drop_last=true"],
        "as many as asked for": [*streaming("Undivided", 1600), "train.max_updates=37"],
        "once": [*streaming("Once", 400), "train.epochs=2"],
        "raises": [*streaming("Numbers", 1600, diary=raises, **always), "data.shuffle=none"],
        "kills": [*streaming("Numbers", 1600, diary=kills, crimes="{always is killed: 41}"), "data.shuffle=none"],
        "iterable raises": [*streaming("Undivided", 400, diary=raises, **always)],
    }
    return in_turn(runs, jobs)


TIMES = {  # epochs
    "finished, one more epoch": 2, "map": 2, "map inline": 1, "map in delta": 2, "map accumulated": 1, "divided": 3,
    "divided, one worker": 2, "undivided": 2, "undivided inline": 2, "divided inline": 2, "function": 1,
}  # fmt: skip


@pytest.mark.parametrize(("name", "times"), TIMES.items())
def test_every_record_takes_effect_once_per_epoch(ended: dict[str, Ended], name: str, times: int) -> None:
    job = ended[name]
    assert job.status == 0, job.stderr
    share = 3 if name == "map accumulated" else 1  # an update's gradient is the mean of its batches'
    assert (share * job.effects()).tolist() == pytest.approx([times] * len(job.effects()))
    assert job.ledger_adds_up()
    assert job.summary["samples"] == times * len(job.effects()), (
        "the last batches of shards are shorter, and counted so"
    )


def test_in_delta_two_flushes_at_once_may_lose_one_but_no_record_takes_effect_twice(ended: dict[str, Ended]) -> None:
    """A flush adds to every word of the flats, also those of the other worker's rows (parameters/exchange.py)."""
    job = ended["map in delta, two workers"]
    assert job.status == 0, job.stderr
    effects = job.effects()
    assert set(effects.tolist()) <= {0.0, 1.0, 2.0}
    assert float(effects.mean()) > 1, "more was lost than two flushes at a time can lose"
    assert job.ledger_adds_up()
    assert job.summary["samples"] == 2 * 1601


def test_an_iterable_that_does_not_divide_its_records_is_read_by_one_loader_and_that_is_said(
    ended: dict[str, Ended],
) -> None:
    assert len({event["loader"] for event in ended["undivided"].events("loader-spawn")}) == 1
    assert "one loader reads it" in ended["undivided"].stderr
    assert len({event["loader"] for event in ended["divided"].events("loader-spawn")}) == 2


def test_the_last_batch_is_dropped_where_the_job_says_so(ended: dict[str, Ended]) -> None:
    assert ended["dropped"].effects().tolist() == [1] * 400 + [0] * 3


def test_a_stream_ends_where_the_updates_do(ended: dict[str, Ended]) -> None:
    job = ended["as many as asked for"]
    assert (job.status, job.summary["updates"]) == (0, 37)
    assert job.effects().sum() == 37 * 4


def test_what_can_be_read_once_only_is_an_error_that_says_so(ended: dict[str, Ended]) -> None:
    job = ended["once"]
    assert job.status == 1
    assert "read only once" in job.stderr.replace("\n", " ")


def test_a_record_that_raises_is_quarantined_with_its_batch_and_the_rest_is_trained(ended: dict[str, Ended]) -> None:
    job = ended["raises"]
    assert job.status == 0, job.stderr
    assert [n for n, effect in enumerate(job.effects().tolist()) if effect != 1] == [40, 41, 42, 43]
    assert job.leases["quarantined"] == 1
    assert [event["attempts"] for event in job.events("bad-batch")] == [1, 2, 3]
    assert "reading item 41" in job.events("bad-batch")[0]["why"]


def test_a_record_that_kills_loaders_is_quarantined_too(ended: dict[str, Ended]) -> None:
    job = ended["kills"]
    assert job.status == 0, job.stderr
    assert [n for n, effect in enumerate(job.effects().tolist()) if effect != 1] == [40, 41, 42, 43]
    assert len(job.events("loader-exit")) == 3
    assert [event["charged"] for event in job.events("loader-exit")] == [[0, 10]] * 3


def test_an_iterable_that_raises_fails_the_job_with_its_traceback(ended: dict[str, Ended]) -> None:
    job = ended["iterable raises"]
    assert job.status == 1
    assert "a bad batch, always" in job.stderr and "streaming.py" in job.stderr


# ---- deaths and resumes ----------------------------------------------------------------------------------------------


def killed_in_the_middle(job: Job, diary: Path, kills: int) -> None:
    """Kills loaders that are held in the middle of a batch, one after the other."""

    def held() -> list[int]:
        alive = {e["pid"] for e in job.events("loader-spawn")} - {e["pid"] for e in job.events("loader-exit")}
        return [pid for pid in alive if (diary / f"stopped-{pid}").exists()]

    for number in range(kills):
        (diary / "stop").touch()
        victim = wait_for("a loader in the middle of a batch", held)[0]
        os.kill(victim, signal.SIGKILL)
        job.wait_for_event("loader-exit", number + 1)
        (diary / "stop").unlink()
        job.wait_for_event("loader-spawn", 1)


@pytest.mark.parametrize(
    "kind", ["Numbers", "Divided", "Undivided", pytest.param("Stateful", marks=pytest.mark.whole), "Placed"]
)
def test_a_killed_loader_loses_and_repeats_nothing(kind: str, tmp_path: Path, start_job: Callable[..., Job]) -> None:
    diary = tmp_path / "diary"
    diary.mkdir()
    (diary / "stop").touch()
    job = start_job(tmp_path / "job", *streaming(kind, 2000, diary=diary), "train.epochs=2", "data.loaders=2")
    killed_in_the_middle(job, diary, 2)
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert ended.effects().tolist() == [2] * 2000
    assert not ended.left_behind
    if kind == "Stateful":  # its replacement did not read everything again from the beginning
        read = [int(line) for line in (diary / "read").read_text().split()]
        assert read.count(0) <= 2 + 2, "only where nothing was kept yet"


@pytest.mark.parametrize("kind", ["Numbers", pytest.param("Divided", marks=pytest.mark.whole), "Stateful", "Placed"])
def test_a_killed_parent_goes_on_where_its_checkpoint_was(
    kind: str, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    diary = tmp_path / "diary"
    diary.mkdir()
    (diary / "hold").touch()
    paced = [f"model.init_args.diary={diary}", "train.epochs=2", "checkpoint.every_updates=40"]
    job = start_job(tmp_path / "job", *streaming(kind, 800, diary=diary), *paced)
    wait_for("workers", lambda: len(list(diary.glob("held-*"))) == 2)
    (diary / "hold").unlink()
    job.wait_for_event("checkpoint", 2)
    (diary / "hold").touch()
    job.process.kill()
    job.process.wait()
    assert not job.left_behind()
    (diary / "hold").unlink()
    again = start_job(tmp_path / "again", "--resume", str(job.run_dir), run_dir=job.run_dir).wait()
    assert again.status == 0, again.stderr
    assert again.effects().tolist() == [2] * 800, "the surviving history has every record twice"


@pytest.mark.whole
def test_workers_that_die_leave_their_batches_in_the_ring(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    diary = tmp_path / "diary"
    diary.mkdir()
    (diary / "hold").touch()
    crimes = "model.init_args.crimes={is killed: 40, reads nowhere: 900}"
    job = start_job(tmp_path / "job", *streaming("Undivided", 1600), f"model.init_args.diary={diary}", crimes)
    wait_for("a worker in a batch", lambda: list(diary.glob("held-*")))
    victim = int(next(diary.glob("held-*")).name.removeprefix("held-"))
    os.kill(victim, signal.SIGKILL)
    job.wait_for_event("exit", 1)
    (diary / "hold").unlink()
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert ended.effects().tolist() == [1] * 1600
    assert not ended.events("bad-batch") and not ended.events("loader-exit")
