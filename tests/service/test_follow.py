"""Curves read as a run's records grow: nothing twice or missed, cut files from their beginning, bounded memory."""

import gc
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hogwild.service.follow import MOST_POINTS, MOST_RUNS, Followed, ThinnedCurves


def record(update: int, loss: float | None = 1.0) -> str:
    return (
        json.dumps({"time": float(update), "kind": "train", "updates": update, "samples": update, "loss": loss}) + "\n"
    )


def test_records_are_read_as_they_come_and_half_a_line_later(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    curves = ThinnedCurves(tmp_path)
    assert curves.read()["train"]["updates"] == []
    evaluation = {
        "time": 2.0,
        "kind": "evaluation",
        "updates": 2,
        "samples": 2,
        "loss": 0.5,
        "accuracy": 0.9,
        "best": True,
    }
    file.write_text(record(1) + record(2)[:20])
    assert curves.read()["train"]["updates"] == [1]
    file.write_text(record(1) + record(2, None) + json.dumps(evaluation) + "\nno json\n")
    found = curves.read()
    assert (found["train"]["updates"], found["train"]["loss"], found["generation"]) == ([1, 2], [1.0, None], 1)
    assert found["evaluations"] == [
        {"time": 2.0, "updates": 2, "samples": 2, "metrics": {"loss": 0.5, "accuracy": 0.9}}
    ]


def test_a_file_that_was_cut_and_grew_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(record(update) for update in range(1, 6)))
    curves = ThinnedCurves(tmp_path)
    before = curves.read()["generation"]
    file.write_text("".join(record(update) for update in (1, 2)) + "".join(record(update) for update in range(30, 40)))
    found = curves.read()
    assert found["generation"] == before + 1
    assert found["train"]["updates"] == [1, 2, *range(30, 40)]


@given(st.integers(1, 5 * MOST_POINTS))
def test_a_long_run_keeps_its_mean_and_its_ends(count: int) -> None:
    followed = ThinnedCurves(Path("/nowhere"))
    for update in range(count):
        followed._add(json.loads(record(update, float(update))))
    points = followed.read()["train"]
    assert len(points["loss"]) <= MOST_POINTS
    assert points["loss"] == sorted(points["loss"])
    assert points["loss"][0] < 8 and points["loss"][-1] > count - 9
    assert count < MOST_POINTS or len(points["loss"]) >= MOST_POINTS // 2 - 1


def test_the_runs_that_were_asked_for_last_are_kept(tmp_path: Path) -> None:
    followed = Followed()
    first = followed.run(tmp_path / "0")
    for number in range(100):
        assert followed.read(tmp_path / str(number))["generation"] == 0
    assert len(followed._recent) == MOST_RUNS
    gc.collect()
    assert len(followed._runs) == MOST_RUNS + 1
    assert followed.run(tmp_path / "0") is first  # somebody follows it
