"""Files of a run as the service shows them: bounded, never outside the run, whatever user code has put there. Records
are read as they grow: nothing twice or missed, cut files from their beginning, bounded memory."""

import gc
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hogwild.errors import CheckpointError, NotFoundError
from hogwild.service import run_reader
from hogwild.service.folders import JobFolder
from hogwild.service.routes_runs import copy_checkpoint, files_of
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
from hogwild.storage import checkpoint
from hogwild.storage.run_files import checkpoints_in, read_json
from tests.helpers.run_records import JOB, RESOLVED, Story, write_run
from tests.helpers.service import order

NAME = "update-000000600"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = write_run(tmp_path / "run", Story(records=100))
    (made / "logs").mkdir()
    (made / "logs" / "supervisor.log").write_text("start\nEpoch 1\nepoch 2 ENDED\n")
    return made


def test_the_supervisors_log_comes_first_and_workers_by_number(run: Path) -> None:
    for name in ("worker-10.log", "worker-2.log", "loader-0.log", "notes.txt", "../escape.log"):
        (run / "logs" / name).write_text("x")
    names = [one["name"] for one in run_reader.logs_in(run)]
    assert names == ["supervisor", "loader-0", "worker-2", "worker-10"]
    assert run_reader.logs_in(run / "nowhere") == []


def test_a_search_finds_lines_in_any_case_and_the_newest_ones(run: Path) -> None:
    assert run_reader.read_log(run, "supervisor", "EPOCH") == "Epoch 1\nepoch 2 ENDED\n"
    lines = [f"batch {number} größe\n" for number in range(5000)]
    (run / "logs" / "worker-0.log").write_text("".join(lines) + "last line GRÖSSE without its end")
    found = run_reader.read_log(run, "worker-0", "größe").splitlines(keepends=True)
    assert found == [*lines[-1999:], "last line GRÖSSE without its end\n"]


def test_a_log_of_any_size_gives_a_bounded_answer(run: Path) -> None:
    (run / "logs" / "worker-0.log").write_text("wanted " * 1_000_000)
    assert len(run_reader.read_log(run, "worker-0")) <= run_reader.LOG_BYTES
    assert 0 < len(run_reader.read_log(run, "worker-0", "wanted")) <= run_reader.LOG_BYTES
    (run / "logs" / "worker-0.log").write_bytes((b"wanted" + b"\xff" * 10_000 + b"\n") * 200)  # no UTF-8
    assert 0 < len(run_reader.read_log(run, "worker-0", "wanted")) <= run_reader.LOG_BYTES


def test_a_search_in_a_log_of_many_gigabytes_ends_soon(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "SEARCHED_BYTES", 1 << 20)
    log = run / "logs" / "worker-0.log"
    log.write_text("wanted, but too long ago\n")
    os.truncate(log, 1 << 36)  # a hole
    with log.open("a") as stream:
        stream.write("\nwanted\n")
    assert run_reader.read_log(run, "worker-0", "wanted") == "wanted\n"


def test_what_is_no_file_costs_no_descriptor(run: Path) -> None:
    """A stream looks again each second."""
    (run / "logs" / "worker-0.log").mkdir()
    os.mkfifo(run / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(NotFoundError):
            run_reader.read_log(run, "worker-0")
        assert read_json(run, "logs") == read_json(run, "pipe") == {}
    assert len(os.listdir("/proc/self/fd")) == before


def link_file(run: Path, secret: Path) -> None:
    (run / "logs" / "worker-0.log").symlink_to(secret)


def link_folder(run: Path, secret: Path) -> None:
    (run / "logs" / "supervisor.log").unlink()
    (run / "logs").rmdir()
    (run / "logs").symlink_to(secret.parent)


def put_pipe(run: Path, _: Path) -> None:
    os.mkfifo(run / "logs" / "worker-0.log")


def put_folder(run: Path, _: Path) -> None:
    (run / "logs" / "worker-0.log").mkdir()


@pytest.mark.parametrize("trick", [link_file, link_folder, put_pipe, put_folder])
def test_a_log_that_is_no_file_of_the_run_is_not_read(run: Path, tmp_path: Path, trick: object) -> None:
    secret = tmp_path / "elsewhere" / "worker-0.log"
    secret.parent.mkdir()
    secret.write_text("secret")
    trick(run, secret)  # type: ignore[operator]
    with pytest.raises(NotFoundError, match=r"worker-0\.log"):
        run_reader.read_log(run, "worker-0")
    assert "worker-0" not in [one["name"] for one in run_reader.logs_in(run)]


def test_checkpoints_are_listed_with_what_they_are_good_for(run: Path) -> None:
    (run / "checkpoints" / "best").symlink_to("update-000000400")
    (run / "checkpoints" / "latest").symlink_to("update-000001000")
    (run / "checkpoints" / "update-000000200" / "manifest.json").write_text("{")
    (run / "checkpoints" / "rejected-update-000000100").mkdir()
    found = checkpoints_in(run)
    assert [(one["updates"], one["is_best"], one["is_latest"]) for one in found] == [
        (1000, False, True),
        (800, False, False),
        (600, False, False),
        (400, True, False),
    ]
    assert found[0] == {
        "name": "update-000001000",
        "updates": 1000,
        "epoch": None,
        "bytes": 158_784,
        "at": 1_790_000_000.0,
        "metrics": {"loss": 0.2},
        "is_best": False,
        "is_latest": True,
    }


def write_model(run: Path, content: bytes) -> None:
    folder = run / "checkpoints" / NAME
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    (folder / "manifest.json").write_text(json.dumps({"files": {"model.safetensors": entry}}))
    (folder / "model.safetensors").write_bytes(content)


def test_only_the_model_that_was_written_is_exported(run: Path) -> None:
    write_model(run, b"weights")
    stream, size = run_reader.opened_model(run, NAME)
    with stream:
        assert (stream.read(), size) == (b"weights", 7)
    (run / "checkpoints" / NAME / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(CheckpointError, match="damaged"):
        run_reader.opened_model(run, NAME)
    with pytest.raises(NotFoundError, match="update-000000007"):
        run_reader.opened_model(run, "update-000000007")


def test_every_value_of_the_configuration_says_where_it_came_from(tmp_path: Path) -> None:
    changed = order(1, overrides=("train.epochs=30", "model.init_args={features: 64, hidden: [9], classes: 10}"))
    folder = JobFolder(tmp_path / changed.id)
    folder.files.mkdir(parents=True)
    (folder.files / "job.yaml").write_text(JOB)
    found = run_reader.config_of(changed, folder)
    origins = {one["path"]: one["from"] for one in found["fields"]}
    values = {one["path"]: one["value"] for one in found["fields"]}
    assert (found["text"], found["resolved"]) == (JOB, None)
    assert found["overridden"][0] == {"path": "train.epochs", "value": "30"}
    assert (origins["train.epochs"], values["train.epochs"]) == ("command line", 30)
    assert origins["model.init_args.hidden"] == "command line"
    assert origins["data.batch_size"] == "file"
    assert origins["train.procs"] == "default"
    folder.run.mkdir()
    (folder.run / "resolved.yaml").write_text(RESOLVED)
    resolved = run_reader.config_of(changed, folder)
    assert resolved["resolved"] == RESOLVED
    assert {"path": "train.procs", "value": 4, "from": "default"} in resolved["fields"]


def test_stacks_are_those_that_were_written_after_the_request(run: Path) -> None:
    (run / "stacks").mkdir()
    (run / "stacks" / "worker-0.txt").write_text("old\n")
    before = run_reader.sizes_of_stacks(run)
    (run / "stacks" / "worker-0.txt").write_text("old\nnew\n")
    (run / "stacks" / "supervisor.txt").write_text("mine\n")
    assert run_reader.read_stacks(run, before) == "supervisor\nmine\n\nworker-0\nnew\n"


def test_a_copied_checkpoint_takes_no_space_and_its_run_names_the_new_folder(run: Path, tmp_path: Path) -> None:
    old, new, aside = JobFolder(tmp_path), JobFolder(tmp_path / "new"), tmp_path / "aside"
    shutil.rmtree(run / "checkpoints")
    checkpoint.write(run / "checkpoints", NAME, {"ledger": 1}, {"weight": torch.zeros(3)}, {})
    (run / "names.json").write_text(json.dumps(["x" * 100] * 60_000))
    here = {"job_file": str(old.files / "job.yaml"), "user_folders": [str(old.files), "/elsewhere"], "data_dir": None}
    (run / "env.json").write_text(json.dumps(here))
    copy_checkpoint(old, NAME, aside, new)
    made = aside / "run"
    assert (made / "checkpoints" / NAME / "state.pt").samefile(run / "checkpoints" / NAME / "state.pt")
    for name in ("names.json", "metrics.jsonl", "resolved.yaml", "job.yaml"):
        assert (made / name).read_bytes() == (run / name).read_bytes()
        assert not (made / name).samefile(run / name)
    assert json.loads((made / "env.json").read_text()) == {
        "job_file": str(new.files / "job.yaml"),
        "user_folders": [str(new.files), "/elsewhere"],
        "data_dir": None,
    }
    assert {one.name for one in made.iterdir()} == {
        *("checkpoints", "env.json", "job.yaml", "metrics.jsonl", "names.json", "resolved.yaml")
    }


def test_what_lies_beside_the_copied_modules_is_no_hindrance(tmp_path: Path) -> None:
    """Python compiles modules, and user code writes there."""
    files = JobFolder(tmp_path).files
    (files / "__pycache__").mkdir(parents=True)
    (files / "__pycache__" / "mine.pyc").write_bytes(b"\xa7\r\r\n\0")
    (files / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(files / "pipe.py")
    (files / "large.txt").touch()
    os.truncate(files / "large.txt", 1 << 30)
    (files / "job.yaml").write_text("größe: 1\n")
    assert files_of(JobFolder(tmp_path)) == {"job.yaml": "größe: 1\n".encode()}


def test_a_damaged_checkpoint_is_not_gone_on_from(run: Path, tmp_path: Path) -> None:
    write_model(run, b"weights")
    (run / "checkpoints" / NAME / "state.pt").write_bytes(b"state")
    aside = tmp_path / "aside"
    aside.mkdir()
    with pytest.raises(CheckpointError):
        copy_checkpoint(JobFolder(tmp_path), NAME, aside, JobFolder(tmp_path / "new"))
    (run / "checkpoints" / NAME / "state.pt").unlink()
    with pytest.raises(NotFoundError, match="gone"):
        copy_checkpoint(JobFolder(tmp_path), NAME, tmp_path / "second", JobFolder(tmp_path / "new"))


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


@pytest.mark.parametrize("text", ["", "x", "1.2", "-1.2.3", "1.2.3.4", "0x1.1.1", "1.1." + "f" * 17, "²"])
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
