"""The measured way in which trials share the cores, from events: the measured trial trains, or evaluates."""

import pytest

from hogwild.config.load import load_job
from hogwild.config.schema import Search
from hogwild.searching.packing import ALONE, FIRST, PACKED, Packing

JOB = """
model: {class_path: mymodel.Net}
data: {train: {class_path: mymodel.Rows}, val: {fraction: 0.1}}
"""


def through(packing: Packing, *events: tuple[float, list[int]]) -> list[tuple[bool, str]]:
    """Give it events (time, trials that train); return whether it asked for a pause, and its way, after each."""
    packing.trial = 0
    return [(packing.note(at, training), packing.way) for at, training in events]


MEASURED = [(8.0, [0]), (10.0, [0]), (14.0, [0]), (20.0, [0]), (22.0, [0]), (30.0, [0, 1])]  # 2 s with two workers


@pytest.mark.parametrize(("end_s", "way"), [(33.9, PACKED), (34.0, PACKED), (34.1, ALONE)])
def test_the_way_that_takes_less_of_the_machine_for_an_evaluation_is_kept(end_s: float, way: str) -> None:
    packing = Packing(2)
    told = through(packing, *MEASURED, (end_s, [0, 1]))
    assert told[:-1] == [*[(False, FIRST)] * 2, (True, ALONE), (False, ALONE), (True, PACKED), (False, PACKED)]
    assert told[-1] == (way == ALONE, way), "running trials are paused to go on with other workers"
    assert (packing.trials, packing.workers) == ((2, 1) if way == PACKED else (1, 2))
    assert "as one of 2, every 2.0 s alone with 2 workers" in packing.why
    assert through(packing, (50.0, [0]), (99.0, [0])) == [(False, way)] * 2
    again = Packing.of(load_job(None, source_text=f"{JOB}{AUTO}"), search_of(AUTO), 2, packing.record())
    assert again is not None and (again.way, again.words) == (way, packing.words)


def test_an_evaluation_counts_only_while_all_trials_train_and_are_the_same() -> None:
    packing = Packing(2)
    through(packing, *MEASURED, (31.0, [0]), (32.0, [0, 1]), (99.0, [0, 2]), (102.0, [0, 2]))
    assert (packing.way, packing.why.split(",")[0]) == (PACKED, "trial 0 was evaluated every 3.0 s as one of 2")


def test_trials_with_quick_evaluations_are_packed_without_a_measurement() -> None:
    packing = Packing(2)
    assert through(packing, (7.0, [0]), (10.0, [0]), (10.9, [0])) == [(False, FIRST), (False, FIRST), (False, PACKED)]
    assert packing.words == "2 at a time, 1 worker each: not measured: an evaluation comes every 0.9 s"


AUTO = "search: {space: {seed: {int: [1, 9]}}}\n"


def search_of(more: str) -> Search:
    search = load_job(None, source_text=JOB + more).search
    assert search is not None
    return search


@pytest.mark.parametrize(
    "more",
    [
        "search: {space: {seed: {int: [1, 9]}}, parallel: 2}",
        "search: {space: {train.procs: {int: [1, 2]}}}",
        AUTO + "train: {procs: 1}",
        AUTO + "supervise: {min_workers: 2}",
        AUTO + "data: {train: {class_path: mymodel.Rows}, val: {class_path: mymodel.Rows}, lanes: 1}",
    ],
)
def test_nothing_is_measured_where_the_job_says_how_many_workers_or_trials(more: str) -> None:
    text = JOB.partition("data:")[0] + more if "data:" in more else JOB + more
    job = load_job(None, source_text=text)
    assert job.search is not None and Packing.of(job, job.search, 2, None) is None


def test_one_core_needs_no_measurement() -> None:
    assert Packing.of(load_job(None, source_text=JOB + AUTO), search_of(AUTO), 1, None) is None
