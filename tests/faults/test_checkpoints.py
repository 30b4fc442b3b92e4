"""Damaged checkpoints: all of it is detected and said, and the newest good one is used. Through the functions a resume
is made of, a thousand times; and once for every kind through the command line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hogwild.errors import CheckpointError
from hogwild.storage import checkpoint, checkpoint_format
from tests.faults.campaigns import damage
from tests.faults.campaigns.damage import EACH, EVERY, KINDS, Scene
from tests.helpers.jobs import Ended, in_turn

pytestmark = pytest.mark.processes

SEED = 4


@pytest.fixture(scope="module")
def runs(jobs_folder: Path) -> Path:
    return damage.make_runs(jobs_folder / "runs")


def test_a_thousand_damages_are_all_detected_and_the_newest_good_one_is_used(runs: Path) -> None:
    tally = damage.run(seed=SEED, count=1000, folder=runs.parent)
    assert tally.violations == []
    assert (tally.injected, tally.survived) == (1000, 1000)


def test_a_file_cut_short_at_any_512_bytes_is_detected(runs: Path, tmp_path: Path) -> None:
    scene = damage.scene_of(runs, tmp_path)
    for name in EACH:
        whole = (scene.newest / name).read_bytes()
        for length in range(0, len(whole), 512):
            (scene.newest / name).write_bytes(whole[:length])
            found, rejected = checkpoint_format.newest_good(scene.checkpoints)
            assert found == scene.previous and name in rejected[0], f"{name} cut at {length}"
        (scene.newest / name).write_bytes(whole)
    assert checkpoint_format.newest_good(scene.checkpoints) == (scene.newest, [])


# ---- through the command line ---------------------------------------------------------------------------------------

GOAL = 5 * EVERY  # updates


@pytest.fixture(scope="module")
def resumed(jobs_folder: Path, runs: Path) -> dict[str, tuple[damage.Verdict, Ended]]:
    """For every kind a copy of the run, damaged and resumed; and what nobody damaged."""
    verdicts: dict[str, damage.Verdict] = {}
    jobs = {}
    for kind in KINDS:
        copy = jobs_folder / "damaged" / kind.__name__
        shutil.copytree(runs / "made" / "run", copy / "run", symlinks=True)
        shutil.rmtree(copy / "run" / "checkpoints")
        (copy / "scene").mkdir()
        scene = damage.scene_of(runs, copy / "scene")
        verdicts[kind.__name__] = kind(scene, Random(SEED))
        scene.checkpoints.rename(copy / "run" / "checkpoints")
        jobs[kind.__name__] = ["--resume", str(copy / "run"), f"train.max_updates={GOAL}"]
    ended = in_turn(jobs_folder / "resumed", jobs)
    return {name: (verdict, ended[name]) for name, verdict in verdicts.items()}


@pytest.mark.parametrize("name", [kind.__name__ for kind in KINDS])
def test_a_resume_says_what_is_damaged_and_goes_on_from_the_newest_good_one(
    resumed: dict[str, tuple[damage.Verdict, Ended]], jobs_folder: Path, name: str
) -> None:
    verdict, job = resumed[name]
    if verdict is None:
        pytest.skip("this kind does no damage to who is root")
    used, words = verdict
    assert (job.status, job.reason) == (0, ("succeeded", "max_updates")), job.stderr
    assert job.summary["updates"] == GOAL and job.ledger_adds_up()
    said = " ".join(event["reason"] for event in job.events("checkpoint-rejected"))
    assert words in said and "update-000000040" in said
    assert "warning: checkpoint " in job.stderr and words in job.stderr
    assert job.events("resume")[-1]["checkpoint"] == used
    assert f"resuming from {used}" in job.stderr
    assert not (jobs_folder / "damaged" / name / "scene" / "harm").exists()
    assert job.process_leaks == {"descriptors": 0, "threads": 0}


# ---- nothing that fits ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refused(jobs_folder: Path, runs: Path) -> dict[str, tuple[Ended, list[str]]]:
    """Runs none of whose checkpoints can be used; and what lay in them before."""
    spoil: dict[str, Callable[[Scene], None]] = {
        "of another model": lambda scene: _all_of_another_model(scene, runs),
        "damaged": _all_damaged,
    }
    jobs, before = {}, {}
    for name, change in spoil.items():
        run = shutil.copytree(runs / "made" / "run", jobs_folder / "unusable" / name, symlinks=True)
        change(Scene(run / "checkpoints", run, run))
        jobs[name] = ["--resume", str(run), f"train.max_updates={GOAL}"]
        before[name] = _content(run)
    ended = in_turn(jobs_folder / "refused", jobs)
    return {name: (ended[name], before[name]) for name in jobs}


def _content(run: Path) -> list[str]:
    return sorted(f"{path} {path.read_bytes()!r}" for path in run.rglob("*") if path.is_file())


def _all_of_another_model(scene: Scene, runs: Path) -> None:
    shutil.rmtree(scene.checkpoints)
    shutil.copytree(runs / "other" / "run" / "checkpoints", scene.checkpoints, symlinks=True)


def _all_damaged(scene: Scene) -> None:
    for name in scene.names:
        (scene.checkpoints / name / "state.pt").write_bytes(b"")


def test_a_run_whose_checkpoints_are_all_of_another_model_is_refused_by_the_parameters_name(
    refused: dict[str, tuple[Ended, list[str]]],
) -> None:
    job, before = refused["of another model"]
    assert job.status == 1
    assert "update-000000040 does not fit this job: " in job.stderr
    assert "weight: shape (9, 64) in the checkpoint, (8, 64) in this model" in job.stderr
    assert _content(job.run_dir) == before, "a resume that is refused changes no file"


def test_a_run_whose_checkpoints_are_all_damaged_begins_again_and_says_so(
    refused: dict[str, tuple[Ended, list[str]]],
) -> None:
    job, _ = refused["damaged"]
    assert job.status == 0 and job.summary["updates"] == GOAL, job.stderr
    assert job.stderr.count("state.pt is damaged") == 3
    assert "there is no checkpoint to resume from: the run starts from the beginning" in job.stderr
    names = {path.name for path in (job.run_dir / "checkpoints").iterdir()}
    assert {f"rejected-{name}" for name in ("update-000000020", "update-000000030", "update-000000040")} <= names


def test_what_refuses_one_checkpoint_is_asked_about_the_one_before(runs: Path, tmp_path: Path) -> None:
    scene = damage.scene_of(runs, tmp_path)
    asked: list[int] = []

    def take(state: dict[str, Any]) -> str:
        asked.append(state["ledger"]["updates"])
        if asked[-1] > 2 * EVERY:
            raise CheckpointError("not this one", code="checkpoint/other-job")
        return "taken"

    taken = checkpoint.load_newest(scene.checkpoints, take)
    assert (taken.path, taken.answer) == (scene.checkpoints / scene.names[0], "taken")
    assert asked == [4 * EVERY, 3 * EVERY, 2 * EVERY]
    assert len(taken.rejected) == 2 and str(taken.misfit) == taken.rejected[0]
