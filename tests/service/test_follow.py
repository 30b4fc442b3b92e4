"""Curves read as a run's records grow: nothing twice or missed, cut files from their beginning, bounded memory."""

import gc
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.service.run_reader import (
    MOST_EVENTS,
    MOST_POINTS,
    MOST_RUNS,
    Followed,
    FollowedRun,
    News,
    Place,
    ThinnedCurves,
    Timeline,
)


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
        assert followed.run(tmp_path / str(number)).curves()["generation"] == 0
    assert len(followed._recent) == MOST_RUNS
    gc.collect()
    assert len(followed._runs) == MOST_RUNS + 1
    assert followed.run(tmp_path / "0") is first  # somebody follows it


# ---- places: what a reader that comes back gets


def lines(updates: range) -> str:
    return "".join(record(update) for update in updates)


def content(news: News | None) -> dict:
    assert news is not None
    return json.loads(f"{{{news.text}}}")


def test_a_reader_gets_each_record_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    curves = ThinnedCurves(tmp_path)
    assert curves.since(None) is None  # no file yet
    file.write_text(lines(range(3)))
    first = curves.since(None)
    assert first is not None and first.is_reset
    assert content(first)["train"]["updates"] == [0, 1, 2]
    assert curves.since(first.place) is None
    file.write_text(lines(range(5)) + record(5)[:9])
    second = curves.since(first.place)
    assert second is not None and not second.is_reset
    assert content(second)["train"]["updates"] == [3, 4]
    assert curves.since(second.place) is None


def test_a_place_means_the_same_after_a_restart_of_the_service(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(range(3)))
    first = ThinnedCurves(tmp_path).since(None)
    assert first is not None
    place = Place.of_text(str(first.place))
    assert place == first.place
    file.write_text(lines(range(4)))
    news = ThinnedCurves(tmp_path).since(place)
    assert news is not None and not news.is_reset
    assert content(news)["train"]["updates"] == [3]


@pytest.mark.parametrize("now", [range(2), range(100, 110), range(0)], ids=["cut", "cut and grown", "emptied"])
def test_a_reader_of_a_file_that_was_cut_gets_everything_again(tmp_path: Path, now: range) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(range(5)))
    curves = ThinnedCurves(tmp_path)
    first = curves.since(None)
    assert first is not None
    file.write_text(lines(now))
    for reader in (curves, ThinnedCurves(tmp_path)):
        news = reader.since(first.place)
        assert news is not None and news.is_reset
        assert content(news)["train"]["updates"] == [*now]
        assert reader.since(news.place) is None


def test_a_file_cut_behind_a_place_needs_no_reset(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(range(5)))
    first = ThinnedCurves(tmp_path).since(None)
    assert first is not None
    file.write_text(lines(range(9)))
    curves = ThinnedCurves(tmp_path)
    curves.read()
    file.write_text(lines(range(5)) + lines(range(50, 52)))  # a resume dropped 5 to 8
    news = curves.since(first.place)
    assert news is not None and not news.is_reset
    assert content(news)["train"]["updates"] == [50, 51]


def test_a_reader_of_a_series_that_was_thinned_gets_the_thin_one(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(range(MOST_POINTS - 1)))
    curves = ThinnedCurves(tmp_path)
    first = curves.since(None)
    assert first is not None
    file.write_text(lines(range(MOST_POINTS + 1)))
    second = curves.since(first.place)
    assert second is not None and second.is_reset
    assert content(second)["train"]["updates"][:2] == [0.5, 2.5]
    assert len(content(second)["train"]["updates"]) == MOST_POINTS // 2
    assert curves.since(second.place) is None  # half a point more


def test_events_are_the_newest_and_follow_a_place(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    timeline = Timeline(tmp_path)
    assert timeline.since(None) is None
    file.write_text("".join(f'{{"event":"a","n":{n},"x":NaN}}\n' for n in range(MOST_EVENTS + 10)) + "damaged\n")
    first = timeline.since(None)
    assert first is not None and first.is_reset
    events = content(first)["events"]
    first_kept = {"event": "a", "n": 10, "x": None, "title": "a", "detail": "n 10; x nan"}
    first_kept |= {"row": "other"}  # for people, too
    assert (len(events), events[0]) == (MOST_EVENTS, first_kept)
    with file.open("a") as stream:
        stream.write('{"event":"b"}\n')
    second = timeline.since(first.place)
    assert second is not None and not second.is_reset
    assert [event["event"] for event in content(second)["events"]] == ["b"]
    with file.open("a") as stream:
        stream.write('{"event":"c"}\n' * (MOST_EVENTS + 1))
    third = timeline.since(second.place)
    assert third is not None and third.is_reset  # it missed some


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "-1.2.3.1", "1.2.3.4.5", "0x1.1.1.1", "1.1.1." + "f" * 17, "²"])
def test_a_place_that_nobody_wrote_is_none(text: str) -> None:
    assert Place.of_text(text) is None


def test_a_status_is_read_again_only_if_it_was_replaced(tmp_path: Path) -> None:
    followed = FollowedRun(tmp_path)
    assert followed.status() == ((), "")
    (tmp_path / "status.json").write_text('{"loss": NaN}')
    seen, text = followed.status()
    assert text == '{"loss":null}'
    assert followed.status()[0] == seen
    (tmp_path / "new").write_text('{"loss": 1}')
    (tmp_path / "new").replace(tmp_path / "status.json")
    assert followed.status()[1] == '{"loss":1}'


@pytest.mark.parametrize("count", [0, 1, 7, 100, 20_000])
def test_a_sparkline_goes_from_the_first_loss_to_the_last(tmp_path: Path, count: int) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(record(update, float(update)) for update in range(count)))
    found = Followed().sparkline(tmp_path, 40)
    assert len(found) == min(40, count)
    assert found == sorted(found)
    if count:
        assert found[0] <= count / 40 + 1 and found[-1] >= count - 1 - count / 40


def test_a_file_of_one_endless_line_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\0" * 3_000_000 + b"\n" + record(1).encode())
    assert ThinnedCurves(tmp_path).read()["train"]["updates"] == [1]


def test_an_event_with_any_number_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(f'{{"event":"a","x_bytes":1{"0" * 400}}}\n{{"event":"b"}}\n')
    assert [one["event"] for one in Timeline(tmp_path).read()] == ["a", "b"]
