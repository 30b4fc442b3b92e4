"""Streamed data that cannot be trained on, through the front door (`hogwild.train`): what is known before anything
starts is refused then; the rest is named with its record, its batch and what to do."""

import base64
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import hogwild
from hogwild.cli.plan import deep_check
from hogwild.config.load import job_from_mapping
from hogwild.errors import CheckpointError, HogwildError
from hogwild.feeds import stream_reader
from hogwild.storage import checkpoint
from tests.helpers.jobs import HOME, read_events

Record = tuple[Any, ...]
MANY = 400  # records: more than are looked at before anything starts


class Items(Dataset):
    """Map-style."""

    def __init__(self, make: Callable[[int], Record], count: int = 40) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Record:
        return self.make(number)


class Stream(IterableDataset):
    def __init__(self, make: Callable[[int], Record], count: int = 40) -> None:
        self.make, self.count = make, count

    def __iter__(self) -> Iterator[Record]:
        return (self.make(number) for number in range(self.count))


class Placed(Stream):
    """Keeps its place in itself, and can say it."""

    at = 0

    def __iter__(self) -> Iterator[Record]:
        while self.at < self.count:
            self.at += 1
            yield self.make(self.at - 1)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Sloppy(Placed):
    """Its state holds a path; from record `later` on."""

    def __init__(self, later: int) -> None:
        super().__init__(good)
        self.later = later

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "file": Path("a") if self.at >= self.later else "a"}


class Promising(Stream):
    """Says another number of records than it gives."""

    def __init__(self, make: Callable[[int], Record], count: int, promised: int) -> None:
        super().__init__(make, count)
        self.promised = promised

    def __len__(self) -> int:
        return self.promised


class Locked(Items):
    def __init__(self) -> None:
        super().__init__(good)
        self.lock = threading.Lock()


def good(number: int) -> Record:
    return torch.zeros(2), torch.tensor([float(number)])


def ragged(number: int) -> Record:
    return torch.zeros(2 + (number > 0)), torch.zeros(1)


def later_ragged(number: int) -> Record:
    return torch.zeros(2 + (number == 21)), torch.zeros(1)


def later_double(number: int) -> Record:
    return torch.zeros(2, dtype=torch.float64 if number >= 20 else torch.float32), torch.zeros(1)


def raising(number: int) -> Record:
    raise ValueError("no such picture")


def raising_once(number: int) -> Record:
    return raising(number) if number == 21 else good(number)


def wide_later(records: Sequence[Record]) -> tuple[Tensor, Tensor]:
    width = 2 if records[0][1] < MANY - 40 else 4000
    return torch.zeros(len(records), width)[:, : max(2, width)], torch.zeros(len(records), 1)


def a_dict(records: Sequence[Record]) -> dict[str, int]:
    return {"rows": len(records)}


def with_a_word(records: Sequence[Record]) -> tuple[Tensor, str]:
    return torch.zeros(len(records), 2), "cat"


def failing(records: Sequence[Record]) -> None:
    raise KeyError("label")


def by(function: Callable[..., object]) -> dict[str, str]:
    return {"class_path": f"{__name__}.{function.__name__}"}


class Endless(Stream):
    """One that says so."""

    is_endless = True


def train(data: Any, run: Path | None, *, procs: int = 0, val: Any = None, **settings: Any) -> hogwild.TrainResult:
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    given = {"batch_size": 4, "shuffle": "none", "feed": "stream", **settings}
    return hogwild.train(model, data, nn.MSELoss(), optimizer, procs=procs, val=val, run_dir=run, **given)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(HOME)
    return tmp_path / "run"


COSINE = {"name": "cosine"}
REFUSED: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "a lock in the data set": (Locked(), {"procs": 1}, "data/not-picklable", "cannot pickle '_thread.lock' object"),
    "every item raises": (Items(raising), {}, "data/item-raised",
        "reading item 0 raised ValueError: no such picture ("),
    "an iterator raises": (Stream(raising), {}, "data/item-raised", "ValueError: no such picture ("),
    "ragged from the first": (Items(ragged), {}, "data/unlike-items", "record 1 field 0 is (3,) float32, in the first"),
    "no record": (Stream(good, 0), {}, "data/empty", "Stream gave no record; there is nothing to train on"),
    "no item": (Items(good, 0), {}, "data/empty", "the data set is empty"),
    "no record to evaluate": (Items(good), {"val": Stream(good, 0)}, "data/empty", "data.val: Stream gave no record"),
    "a state that only code can load": (Sloppy(0), {}, "data/state-not-plain",
        "data.train: the state_dict() of Sloppy holds a pathlib."),
    "too few slots": (Items(good), {"procs": 1, "slots": 3}, "config/contradiction", "data.slots: must be >= 4 for 1"),
    "collate answers a dict": (Items(good), {"collate": by(a_dict)}, "data/bad-batch", "collate_fn returned a dict"),
    "collate answers a word": (Items(good), {"collate": by(with_a_word)}, "data/bad-batch", "returned a str inside"),
    "collate raises": (Items(good), {"collate": by(failing)}, "data/item-raised",
        "data.collate on the first records raised KeyError: 'label' ("),
    "an iterable, resident": (Stream(good), {"feed": "resident"}, "data/stream", "set data.feed: stream"),
    "collate, resident": (Items(good), {"feed": "resident", "collate": by(with_a_word)}, "data/stream-only",
        "data.collate: needs data.feed: stream"),
    "loaders, resident": (Items(good), {"feed": "resident", "loaders": 3}, "config/contradiction",
        "data.loaders: must be auto where data.feed is resident"),
    "validation without an end": (Items(good), {"val": Endless(good)}, "data/endless", "Endless never ends"),
    "a part of an iterable": (Stream(good), {"val": {"fraction": 0.2}}, "data/split", "give data.val a data set"),
    "a curve over nobody knows what": (Stream(good), {"lr_schedule": COSINE}, "data/no-length",
        "lr_schedule.name: cosine needs the number of updates of the job"),
}  # fmt: skip


@pytest.mark.processes
@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_known_before_is_refused_and_nothing_is_started(name: str, run: Path) -> None:
    data, settings, code, words = REFUSED[name]
    with pytest.raises(HogwildError) as refused:
        train(data, run, **settings)
    assert words in str(refused.value)
    assert refused.value.code == code
    assert not run.exists()


def looked_at(slots: int) -> dict[str, Any]:
    """The words of `check --deep` about a streamed job; a slot holds four records of 2 + 1 floats."""
    values = {
        "model": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 1}},
        "loss": {"class_path": "torch.nn.MSELoss"},
        "data": {
            "train": {"class_path": f"{__name__}.Goods"}, "batch_size": 4, "feed": "stream", "slots": slots,
            "loaders": 1,
        },
        "train": {"procs": 1, "threads": 1},
    }  # fmt: skip
    return deep_check(job_from_mapping(values, "a test"), None, None)


class Goods(Items):
    def __init__(self) -> None:
        super().__init__(good)


@pytest.mark.processes
def test_a_look_at_a_job_counts_its_ring() -> None:
    bytes_more = looked_at(1004)["shared_memory_bytes"] - looked_at(4)["shared_memory_bytes"]
    assert 1000 * 4 * 3 * 4 <= bytes_more <= 512_000  # 64-byte steps; each slot has its row of a table, too
    with pytest.raises(HogwildError, match=r"data\.slots: must be >= 4 for 1"):
        looked_at(3)


FAILS: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "an item raises": (Items(raising_once), {}, "data/item-raised", "reading item 21 (epoch 0, batch 5) raised Value"),
    "an item of another shape": (Items(later_ragged), {}, "data/unlike-items",
        "item 21, in batch 5 of epoch 0, field 0 is (3,) float32"),
    "a batch of another type": (Items(later_double), {}, "data/unlike-items", "batch 5 of epoch 0 tensor 0 is float64"),
    "a batch that does not fit": (Items(good, MANY), {"collate": by(wide_later)}, "data/batch-too-large",
        "set data.slot_bytes"),
    "a state that only code can load": (Sloppy(21), {}, "data/state-not-plain", "of Sloppy holds a pathlib."),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILS)
def test_what_shows_later_names_the_record_or_the_batch(name: str, run: Path) -> None:
    data, settings, code, words = FAILS[name]
    with pytest.raises(HogwildError) as failed:
        train(data, run, **settings)
    assert words in str(failed.value)
    assert failed.value.code == code
    assert (run / "summary.json").exists()


def later_label(number: int) -> Record:
    return torch.zeros(2), 5 if number == 21 else -100 if number == 9 else number % 3


@pytest.mark.parametrize(("classes", "state"), [(3, "failed"), (6, "succeeded")])
def test_a_label_that_comes_later_and_is_none_is_named_before_a_model_sees_it(
    classes: int, state: str, run: Path
) -> None:
    model = nn.Linear(2, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    settings = {"batch_size": 4, "shuffle": "none", "feed": "stream", "procs": 0, "run_dir": run}
    if state == "succeeded":
        assert hogwild.train(model, Items(later_label), nn.CrossEntropyLoss(), optimizer, **settings).samples == 40
        return
    with pytest.raises(HogwildError) as failed:
        hogwild.train(model, Items(later_label), nn.CrossEntropyLoss(), optimizer, **settings)
    assert failed.value.code == "data/labels"
    assert "item 21, in batch 5 of epoch 0, has label 5; the model has 3 outputs" in str(failed.value)


def test_an_input_that_is_a_dict_of_one_tensor_is_nested_and_so_streamed(run: Path) -> None:
    class First(nn.Linear):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return super().forward(batch["x"])

    model, data = First(2, 1), Items(lambda _: ({"x": torch.zeros(2)}, torch.zeros(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert hogwild.train(model, data, nn.MSELoss(), optimizer, procs=0, run_dir=run).samples == 40


@pytest.mark.processes
@pytest.mark.whole
def test_with_workers_a_bad_batch_is_quarantined_and_the_advice_is_in_the_event(run: Path) -> None:
    result = train(Items(later_ragged, MANY), run, procs=1)
    assert (result.state, result.samples, result.leases["quarantined"]) == ("succeeded", MANY - 4, 1)
    bad = [event for event in read_events(run) if event["event"] == "bad-batch"]
    assert [event["attempts"] for event in bad] == [1, 2, 3] and {event["batch"] for event in bad} == {5}
    assert "set data.padding or data.collate for records that vary" in bad[0]["why"]


@pytest.mark.parametrize(("count", "promised"), [(40, 12), (12, 40)])
def test_a_wrong_len_of_an_iterable_is_only_a_promise(count: int, promised: int, run: Path) -> None:
    result = train(Promising(good, count, promised), run, epochs=2, lr_schedule=COSINE)
    assert (result.state, result.samples) == ("succeeded", 2 * count)
    assert result.leases["total"] == result.leases["done"] == 2 * count // 4


@pytest.mark.parametrize("settings", [{"max_updates": 5}, {"lr_schedule": {"name": "constant"}}])
def test_a_schedule_goes_with_an_iterable_where_its_length_is_known_or_not_needed(
    settings: dict[str, Any], run: Path
) -> None:
    assert train(Stream(good), run, **{"lr_schedule": COSINE, **settings}).state == "succeeded"


@pytest.mark.parametrize("evaluate", [{"every_epochs": 1}, {"every_updates": 10, "every_epochs": None}])
def test_an_iterable_is_evaluated_on_an_iterable_as_often_as_the_job_says(evaluate: dict[str, Any], run: Path) -> None:
    result = train(Stream(good), run, val=Stream(good, 10), epochs=2, evaluate=evaluate)
    evaluated = [event["updates"] for event in read_events(run) if event["event"] == "evaluation"]
    assert result.state == "succeeded" and evaluated == [10, 20]
    assert result.metrics["loss"] == pytest.approx(sum(k * k for k in range(10)) / 10, rel=1e-2)


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_resident_data_is_evaluated_on_an_iterable(procs: int, run: Path) -> None:
    result = train(Items(good), run, procs=procs, val=Stream(good, 10), feed="auto")
    assert (result.state, result.ring) == ("succeeded", None)
    assert result.metrics["loss"] == pytest.approx(sum(k * k for k in range(10)) / 10, rel=1e-2)


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_a_data_set_that_keeps_its_place_in_itself_is_read_whole_in_every_epoch(procs: int, run: Path) -> None:
    data = Placed(good, 42)
    result = train(data, run, procs=procs, epochs=3, val=Placed(good, 10))
    assert (result.state, result.samples) == ("succeeded", 3 * 42)
    assert result.metrics["loss"] == pytest.approx(sum(k * k for k in range(10)) / 10, rel=1e-2)


class Owning:
    """Its pickle makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_a_strangers_iterator_state_runs_nothing(procs: int, run: Path, tmp_path: Path) -> None:
    assert train(Placed(good), run, procs=procs, max_updates=5).state == "succeeded"
    (path,) = (entry for entry in (run / "checkpoints").iterdir() if not entry.is_symlink())
    state = checkpoint.load(path)
    ((_, shards),) = state["stream"]["epochs"]
    assert stream_reader.read_state(base64.b64decode(shards[0][2])) == {"at": 20}, "made of plain values"
    shards[0][2] = base64.b64encode(pickle.dumps(Owning(tmp_path / "owned"))).decode()
    checkpoint.write(path.parent, path.name, state, state["model"], {"samples": 20, "metrics": {}})
    with pytest.raises(CheckpointError, match="iterator cannot be loaded safely: it names posix") as refused:
        train(Placed(good), None, procs=procs, max_updates=10, resume=run)
    assert refused.value.code == "checkpoint/unsafe" and not (tmp_path / "owned").exists()
