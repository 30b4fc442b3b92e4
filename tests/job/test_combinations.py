"""Seams: two features at a time, each of which works alone. Streamed and nested batches, devices, lanes, precision,
steps of the model's own, compiled models; and what is refused before anything starts."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hogwild
from hogwild.chaos.verdict import _ledger
from hogwild.devices.accelerator import Pins
from hogwild.errors import ConfigError, HogwildError
from hogwild.feeds.batch import transformed
from hogwild.feeds.device_feed import DeviceFeed
from hogwild.feeds.ring import BatchForm, Leaf, Ring, RingFeed, RingSpec, SlotWord
from hogwild.feeds.stream_reader import Collator, Origin, PaddingRule, Stream
from hogwild.job.gradient_check import check_gradients
from hogwild.job.source import Source, Streamed
from hogwild.scheduling.batch_plan import BatchPlan, StreamPlan
from hogwild.scheduling.stream_schedule import REQUESTS_IN_HAND, StreamSchedule
from hogwild.scheduling.work_queue import Limits
from hogwild.training.model_steps import LaneState, Losses
from hogwild.training.place import GpuPlace
from tests.helpers import simulated_gpu as simulated
from tests.helpers.jobs import Ended, in_turn
from tests.helpers.simulated_gpu import Simulated
from tests.shared_model import (
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
)

SAMPLES = 52
LOSS = nn.CrossEntropyLoss()
QUIET: dict[str, Any] = {"log": {"tensorboard": False, "progress": False}, "checkpoint": {"every_s": None}, "seed": 3}
INLINE: dict[str, Any] = {**QUIET, "procs": 0, "threads": 1, "epochs": 2, "batch_size": 8}


def numbers(index: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, generator=torch.Generator().manual_seed(index))
    return x, x[:3].argmax()


class Flat(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return numbers(index)


class Nested(Flat):
    def __getitem__(self, index: int) -> Any:
        x, y = numbers(index)
        return {"left": x[:3], "others": (x[3:], torch.tensor(index))}, y


class Whole(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([numbers(index) for index in range(SAMPLES)])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Tensor:
        return self.head(torch.relu(self.body(x)))


class OfNested(Net):
    def forward(self, x: Any) -> Tensor:
        return super().forward(torch.cat([x["left"], x["others"][0]], 1))


class Stepping(Net):
    def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> Tensor:
        x, y = batch
        return loss(self(x), y)


class Judging(Net):
    def evaluation_step(self, batch: tuple[Tensor, ...], loss: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        return self(x), y


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        kept = x if state is None else 0.5 * state + x
        return self.out(kept), kept

    def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> Tensor:
        x, y = batch
        return loss(self(x)[0], y)


def louder(x: dict[str, Any], y: Tensor) -> tuple[Any, Tensor]:
    """In place, and drawn at random."""
    x["left"] *= 1 + torch.rand(len(y), 1)
    return x, y


def trained(model: type[nn.Module], data: Any, folder: Path, /, **settings: Any) -> nn.Module:
    torch.manual_seed(7)
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.5)
    hogwild.train(made, data, LOSS, optimizer, run_dir=folder, **{**INLINE, **settings})
    return made


# ---- functions as they are -------------------------------------------------------------------------------------------


def doubled(records: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([2 * x for x, _ in records]), torch.stack([y for _, y in records])


def halved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x / 2, y


@pytest.mark.slow
def test_functions_given_as_they_are_train_as_their_class_paths_do(tmp_path: Path) -> None:
    paths = {name: {"class_path": f"tests.job.test_combinations.{name}"} for name in ("doubled", "halved")}
    for given, name in (({"collate": doubled}, "doubled"), ({"feed": "stream", "transform": halved}, "halved")):
        by_path = given | {key: paths[name] for key in given if key != "feed"}
        wanted = trained(Net, Flat(), tmp_path / f"{name}-path", **by_path)
        assert same_bits(wanted, trained(Net, Flat(), tmp_path / name, **given))
        section = dict(given)
        assert same_bits(wanted, trained(Net, Flat(), tmp_path / f"{name}-section", data=section))
        assert section == given  # the caller's own dict
        assert not same_bits(wanted, trained(Net, Flat(), tmp_path / f"{name}-without", feed="stream"))


@pytest.mark.whole
@pytest.mark.processes
def test_functions_defined_where_they_are_given_reach_loaders_and_workers(tmp_path: Path) -> None:
    seen = {name: tmp_path / name for name in ("collate", "transform")}
    for folder in seen.values():
        folder.mkdir()

    def collate(records: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        (seen["collate"] / str(os.getpid())).touch()
        return doubled(records)

    def transform(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        (seen["transform"] / str(os.getpid())).touch()  # also in the trial, which has a process of its own
        return x, y

    trained(Net, Flat(), tmp_path / "run", collate=collate, transform=transform, procs=1, loaders=1)
    loader, worker = ({file.name for file in folder.iterdir()} - {str(os.getpid())} for folder in seen.values())
    assert len(loader) == 1 and len(worker) == 2 and not loader & worker


@pytest.mark.parametrize("name", ["collate", "transform"])
def test_what_is_no_function_is_refused_with_its_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{name}"):
        trained(Net, Flat(), tmp_path / "run", **{name: 3})


# ---- nested batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform", [None, {"class_path": "tests.job.test_combinations.louder"}], ids=["plain", "louder"]
)
def test_nested_streamed_batches_on_a_device_train_as_on_the_cpu(transform: Any, tmp_path: Path) -> None:
    options = {"val": Nested(), "transform": transform, "evaluate": {"metrics": ["accuracy", "macro_f1"]}}
    host = trained(OfNested, Nested(), tmp_path / "cpu", **options)  # feed: auto, which finds them nested
    there = trained(OfNested, Nested(), tmp_path / "device", device="simulated", **options)
    assert same_bits(host, there)
    assert simulated.opened[0].pageable <= 2 * 2  # of the validation data, whose slots are used once


class Wide(Dataset):
    """Rows so large that a chunk of them is fewer than there are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = numbers(index)
        return torch.cat([x, torch.zeros(20_000)]), y


class OfWide(Net):
    def forward(self, x: Any) -> Tensor:
        return super().forward(x[:, :6])


@pytest.mark.parametrize("shuffle", ["full", "chunked"])
def test_the_order_is_the_same_whether_data_are_streamed_or_resident(shuffle: str, tmp_path: Path) -> None:
    resident = trained(OfWide, Wide(), tmp_path / "resident", shuffle=shuffle, feed="resident")
    assert same_bits(resident, trained(OfWide, Wide(), tmp_path / "streamed", shuffle=shuffle, feed="stream"))


class Growing:
    """A sampler of batches, larger in the second epoch than in the first."""

    def set_epoch(self, epoch: int) -> None:
        self.size = 5 + 9 * epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randint(SAMPLES, (6, self.size)).tolist())


def test_batches_of_a_sampler_are_the_same_in_memory_streamed_and_on_a_device(tmp_path: Path) -> None:
    given: dict[str, Any] = {"sampler": Growing(), "batch_size": 64}
    one = trained(Net, Flat(), tmp_path / "resident", **given)
    for name, other in {"streamed": {"feed": "stream", "slot_bytes": 4096}, "device": {"device": "simulated"}}.items():
        assert same_bits(one, trained(Net, Flat(), tmp_path / name, **given, **other)), name


def test_nested_batches_are_those_of_the_same_numbers_in_one_tensor(tmp_path: Path) -> None:
    one = trained(Net, Flat(), tmp_path / "one", feed="stream")
    assert same_bits(one, trained(OfNested, Nested(), tmp_path / "nested"))


def test_a_slot_of_the_ring_is_copied_to_the_device_from_where_it_lies(tmp_path: Path) -> None:
    trained(Net, Flat(), tmp_path / "run", feed="stream", device="simulated")
    assert simulated.opened[0].pageable == 0
    assert simulated.opened[0].registered == {}  # and given back


def test_a_slot_is_staged_only_where_it_is_not_used_again() -> None:
    form = BatchForm((0, 1), (Leaf(torch.float32), Leaf(torch.int64)))
    for loaders, is_staged in ((1, False), (0, True)):
        accelerator = Simulated(0)
        ring = Ring.allocate("data", RingSpec(form, 2, loaders, form.nbytes(((4, 3), (4,)))))
        for leaf in ring.reserve(0, ((4, 3), (4,))):
            leaf.fill_(7)
        ring.seal(0, 4, ((4, 3), (4,)))
        ring.table[0, SlotWord.FILLED] = 1
        pins = Pins(accelerator)
        model: Any = SimpleNamespace(replica=SimpleNamespace(pins=pins))
        feed = GpuPlace(accelerator).feed(model, RingFeed(ring, 4))
        assert torch.equal(feed.gather(0, 0).inputs[0], torch.full((4, 3), 7.0))
        assert isinstance(feed, DeviceFeed)
        assert any(slot.staging.numel() for slot in feed._slots.slots) == is_staged
        pins.close()


def test_gradients_are_checked_on_nested_samples() -> None:
    sample = [{"left": torch.randn(4, 3), "others": (torch.randn(4, 3), torch.arange(4))}, torch.tensor([0, 1, 2, 0])]
    assert check_gradients(OfNested(), LOSS, sample)["result"] == "analytic and numeric gradients agree"


@pytest.mark.parametrize(
    "wrong", [lambda x, y: ({"left": x["left"][1:]}, y[1:]), lambda x, y: ({"left": 1.0}, y), lambda x, y: y]
)
def test_a_transform_that_makes_no_batch_of_a_nested_one_is_refused(wrong: Any) -> None:
    with pytest.raises(HogwildError) as refused:
        transformed(wrong, [{"left": torch.zeros(4, 3)}, torch.zeros(4)])
    assert refused.value.code == "data/transform"


class DoubleFlat(Flat):
    def __getitem__(self, index: int) -> Any:
        x, y = numbers(index)
        return x.double(), y


class DoubleWhole(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([DoubleFlat()[index] for index in range(SAMPLES)])


@pytest.mark.parametrize(
    ("settings", "val"),
    [({}, DoubleWhole()), ({"feed": "stream"}, DoubleFlat()), ({"feed": "stream"}, DoubleWhole()), ({}, DoubleFlat())],
    ids=["resident and an iterable", "streamed and resident", "streamed and an iterable", "resident both"],
)
def test_validation_data_of_another_type_are_refused(settings: dict[str, Any], val: Any, tmp_path: Path) -> None:
    with pytest.raises(HogwildError, match="float64") as refused:
        trained(Net, Flat(), tmp_path, val=val, **settings)
    assert refused.value.code == "data/val-unlike-train"


def test_validation_data_that_is_nested_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HogwildError) as refused:
        trained(OfNested, Nested(), tmp_path, val=Flat())
    assert refused.value.code == "data/val-unlike-train"
    assert "({left: float32, others: (float32, int64)}, int64)" in str(refused.value)


# ---- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [8, 12, 40])
def test_no_exchange_is_longer_than_a_ring_holds_of_it_for_every_worker(slots: int) -> None:
    """Delta may come of `exchange: auto`, or of a device: a ring that was made for direct must not block itself."""
    schedule = StreamSchedule(BatchPlan(4096, 8), slots, 1, 2, epochs=1)
    free = {0: schedule.free_of(0)}
    schedule.updates(100, Limits(procs=2, epochs=1, accumulate=2, sync_every=16))
    while (request := schedule.request(0)) is not None:
        schedule.filled(0, request.slot, 8)
    for worker in (0, 1):
        choice = schedule.choose(worker, free, [])
        assert choice is not None
        free[0].lease(choice.piece, choice.piece.stop)
        assert choice.piece.stop - choice.piece.start <= (slots - REQUESTS_IN_HAND) // 2


@pytest.mark.slow
def test_a_ring_is_given_back_with_the_job(tmp_path: Path) -> None:
    trained(Net, Flat(), tmp_path / "before", feed="stream")
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        trained(Net, Flat(), tmp_path / "run", feed="stream")
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ((numbers(k) for k in range(20)), "data/read-once"),
        (DataLoader(TensorDataset(torch.zeros(9, 6)), batch_size=None), "data/loader"),
    ],
    ids=["generator", "loader"],
)
def test_what_is_no_data_set_is_refused_by_name(data: Any, code: str, tmp_path: Path) -> None:
    with pytest.raises(HogwildError) as refused:
        trained(Net, data, tmp_path / "run")
    assert refused.value.code == code
    assert not (tmp_path / "run").exists()


MADE = """
import time, torch
from torch.utils.data import Dataset

class Slow(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, number):
        time.sleep(0.02)  # all of them: longer than anybody reads in the parent
        return torch.full((3,), float(number)), torch.tensor(0.0)

def pairs(samples):
    for number in range(samples):
        yield torch.full((3,), float(number)), torch.tensor(0.0)

def model():
    return torch.nn.Linear(3, 1)

def loss(output, target):
    return output.square().mean()

def count(outputs, targets):
    return float(len(targets))
count.higher_is_better = True
"""
JOB = """
version: 1
model: {class_path: made.model}
loss: {class_path: made.loss}
data:
  train: {class_path: made.pairs, init_args: {samples: 70}}
  val: {class_path: made.pairs, init_args: {samples: 21}}
train: {procs: 0, threads: 1, epochs: 1}
evaluate: {metrics: [made.count]}
"""


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    (jobs_folder / "made.py").write_text(MADE)
    job = jobs_folder / "job.yaml"
    job.write_text(JOB)
    slow = [
        "train.procs=2",
        "data.train={class_path: made.Slow}",
        "data.val={class_path: made.Slow}",
        "data.feed=stream",
    ]
    narrow = ["train.procs=2", "train.epochs=3", "train.precision=bf16", "model.compile=script"]
    return in_turn(jobs_folder / "jobs", {"generators": [str(job)], "slow": [str(job), *slow], "scripted": narrow})


@pytest.mark.processes
def test_a_function_that_answers_a_generator_gives_validation_data_from_its_first_record_on(
    ended: dict[str, Ended],
) -> None:
    assert ended["generators"].status == 0, ended["generators"].stderr
    assert ended["generators"].summary["metrics"]["count"] == 21


@pytest.mark.processes
def test_what_has_read_validation_data_may_load_batches(ended: dict[str, Ended]) -> None:
    job = ended["slow"]
    assert job.status == 0, job.stderr
    assert job.events("data-read")  # by those that were started early
    assert not job.events("loader-exit") or job.ledger_adds_up()
    assert "loader" not in job.stderr


def test_nobody_counts_the_batches_of_a_stream_before_its_end() -> None:
    words = "known at the end of the stream"
    assert Source((), StreamPlan(8, 1)).size() == {"samples": words, "batches": words}
    leases = {"done": 30, "skipped": 0, "quarantined": 0, "total": 30}
    state = {"ledger": {"plan": {"batches": StreamPlan(8, 1).batches}}}
    summary = {"leases": leases, "state": "succeeded", "reason": "epochs"}
    run: Any = SimpleNamespace(summary=summary, state=state, resolved={"train": {"epochs": 3}})
    assert _ledger(run)[0]


# ---- lanes, precision, devices --------------------------------------------------------------------------------------


def test_a_batch_of_a_lane_that_is_computed_again_begins_with_the_same_state_and_is_counted_once() -> None:
    state = LaneState(Remembering(), steps=4)
    x = torch.ones(2, 6)
    assert not state.start_batch(0, 0)
    first = state(x)
    assert not state.start_batch(0, 0)  # in fp16, at a smaller scale
    assert torch.equal(state(x), first)
    assert not state.start_batch(0, 1)
    second = state(x)
    assert not state.start_batch(0, 1)
    assert torch.equal(state(x), second)
    assert not torch.equal(second, first)
    assert state.start_batch(0, 3)  # of a lane that somebody else began
    lost = state(x)
    assert not state.start_batch(0, 3)
    assert torch.equal(state(x), lost)
    state.drop()
    assert state.start_batch(0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("grad_clip", [None, 0.05], ids=["free", "clipped"])
def test_gradients_in_fp16_on_a_device_have_the_norm_they_have_on_the_cpu(
    grad_clip: float | None, tmp_path: Path
) -> None:
    """The sum of squares comes back before the scale of the losses is taken out."""
    options = {"precision": "fp16", "grad_clip": grad_clip}
    host = trained(Net, Flat(), tmp_path / "cpu", **options)
    there = trained(Net, Flat(), tmp_path / "device", device="simulated", **options)
    for one, other in zip(host.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(one, other)


# ---- steps and compiled models --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Stepping, {"model": {"compile": "script"}}),
        (Stepping, {"model": {"compile": "inductor"}}),
        (Judging, {"model": {"compile": "script"}}),
        (Remembering, {"lanes": 2}),
    ],
    ids=["training-script", "training-inductor", "evaluation-script", "training-lanes"],
)
def test_a_step_of_the_models_own_is_refused_beside_what_it_would_bypass(
    model: type[nn.Module], settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(HogwildError) as refused:
        trained(model, Flat(), tmp_path / "run", **settings)
    assert refused.value.code == "model/own-step"
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
def test_a_scripted_model_in_bf16_is_evaluated_by_workers_that_have_trained(ended: dict[str, Ended]) -> None:
    """The casts of weights that its optimised graph keeps, made under inference_mode, are of no use to backward."""
    job = ended["scripted"]
    assert job.status == 0, job.stderr
    assert job.summary["restarts"] == 0


def test_what_is_called_may_refuse_to_say_how_long_it_is() -> None:
    """As a model under torch.compile does."""

    class Lengthless(Net):
        def __len__(self) -> int:
            raise TypeError("does not support len()")

    x, y = numbers(0)
    assert Losses(Net(), LOSS, (), Lengthless()).of((x[None],), y[None]).dim() == 0


@pytest.mark.parametrize(
    ("plan", "padding", "sizes"),
    [
        (BatchPlan(20, 8), None, {8, 4}),
        (BatchPlan(20, 8, drop_last=True), None, {8}),
        (StreamPlan(8, 1), None, {8, 5}),
        (StreamPlan(8, 1, drop_last=True), None, {8}),
        (BatchPlan(16, 8), PaddingRule(), {8}),
    ],
)
def test_compilers_see_batches_of_every_size_before_any_is_read(plan: Any, padding: Any, sizes: set[int]) -> None:
    records = [(torch.zeros(length), torch.tensor(0)) for length in ((2, 5, 3) if padding else (4, 4, 4))]
    collator = Collator(padding=padding).with_padding_of(records)
    stream = Stream(Origin(), collator, plan, "none", 0)
    batches = Streamed(stream, BatchForm((0, 1), ()), 0, 0, tuple(records)).typical()
    assert {len(batch[-1]) for batch in batches} == sizes
    assert {batch[0].shape[1] for batch in batches} == ({2, 3, 5} if padding else {4})
