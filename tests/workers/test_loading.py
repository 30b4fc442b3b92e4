"""Data that takes long to read: by processes of their own, straight into shared memory, and what becomes of it when
they die, hang, or meet a row that cannot be used. It is what reading in turn brings, bit for bit."""

import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from hogwild import host
from hogwild.config.load import Job as Config
from hogwild.config.load import job_from_mapping
from hogwild.errors import DataError
from hogwild.feeds.batch import TransformedFeed, tried
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.feeds.row_reader import BadRow, Held, InTurn, RowSource, division, has_rows, materialise
from hogwild.job.parts import Trial
from hogwild.metrics.panel import Panel
from hogwild.models import Mlp
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.workers.loading.loading import Loading, try_in_worker
from hogwild.workers.processes.group import KeptEvents, ProcessGroup
from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.reading import Said, group_of_two
from tests.helpers.run_status import no_start_up

SLOW = str(JOBS / "slow_data.yaml")
COUNT = 100
CANCELLED = "cancelled; nothing was started\n"

# ---- ranges: pure ---------------------------------------------------------------------------------------------------


def test_ranges_are_leased_from_the_lowest_on_and_cover_every_row_once() -> None:
    ranges, seen = RowRanges(5, 18, 4), []
    while (number := ranges.lease(0)) is not None:
        seen.append(ranges.rows(number))
        ranges.finish(0, number)
    assert seen == [(5, 9), (9, 13), (13, 17), (17, 18)]
    assert (ranges.is_finished, ranges.rows_read, ranges.unread) == (True, 13, [])


def test_what_a_dead_reader_held_is_leased_again_before_anything_higher() -> None:
    ranges = RowRanges(0, 50, 10)
    assert [ranges.lease(0), ranges.lease(1), ranges.lease(0)] == [1, 2, 3]
    assert ranges.release(0, charged=1) == 1
    assert [ranges.lease(1), ranges.lease(1), ranges.lease(1)] == [1, 3, 4]
    assert (ranges.hand(0), ranges.hand(1), ranges.is_finished) == (0, 4, False)


def test_only_the_range_that_was_being_read_is_charged() -> None:
    ranges = RowRanges(0, 20, 10)
    for death in (1, 2, 3):
        assert [ranges.lease(0), ranges.lease(0)] == [1, 2]
        assert ranges.release(0, charged=1) == death
    ranges.lease(0)
    ranges.finish(0, 1)
    assert ranges.release(0, charged=1) == 0  # it was done by then
    assert ranges.release(0, charged=None) == 0


def test_behind_a_bad_row_nothing_matters_and_before_it_everything() -> None:
    ranges = RowRanges(0, 60, 10)
    for reader in (0, 1, 2, 3):
        ranges.lease(reader)
    ranges.condemn(3, 4)
    assert (ranges.first_bad, ranges.is_finished, ranges.lease(3)) == (4, False, None)
    ranges.finish(2, 3)
    ranges.condemn(1, 2)
    assert (ranges.first_bad, ranges.is_finished) == (2, False)
    ranges.release(0)
    assert not ranges.is_finished  # the first range is nobody's, and may be worse
    assert ranges.lease(1) == 1
    ranges.finish(1, 1)
    assert ranges.is_finished
    assert ranges.unread == [2, 4, 5, 6]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_dies_every_row_is_read_and_the_lowest_bad_range_is_found(seed: int) -> None:
    chance = random.Random(seed)
    ranges = RowRanges(chance.randrange(5), chance.randrange(20, 90), chance.randrange(1, 9))
    bad = {number for number in ranges.unread if chance.random() < 0.05}
    hands: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while not ranges.is_finished:
        reader = chance.choice(list(hands))
        match chance.choice(["lease", "lease", "work", "work", "work", "die"]):
            case "lease" if (number := ranges.lease(reader)) is not None:
                hands[reader].append(number)
            case "work" if hands[reader]:
                number = hands[reader].pop(0)
                (ranges.condemn if number in bad else ranges.finish)(reader, number)
            case "die":
                ranges.release(reader, hands[reader][0] if hands[reader] else None)
                hands[reader] = []
    assert ranges.first_bad == min(bad, default=None)
    assert min(ranges.unread, default=None) == ranges.first_bad


# ---- rows: in this process ------------------------------------------------------------------------------------------


class Ranged(Dataset):
    """`rows` is what is used; an item would be something else."""

    def __init__(self, spoilt: int | None = None) -> None:
        self.spoilt = spoilt

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("rows are read in ranges")

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        x = torch.arange(start, stop).float()
        x[x == (-1 if self.spoilt is None else self.spoilt)] = float("inf")
        return torch.stack((x, 2 * x), 1), x.long() % 3


class Named(TensorDataset):
    """Its `rows` are no ranges."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return super().__getitem__(index)

    def rows(self) -> int:
        return 3


def test_a_data_set_that_has_rows_is_read_by_them_and_another_method_of_that_name_is_none_of_ours() -> None:
    x, y = materialise(Ranged(), "data.train")
    assert torch.equal(x, torch.arange(1000.0)[:, None] * torch.tensor([1.0, 2.0]))
    assert torch.equal(y, torch.arange(1000) % 3)
    named = Named(torch.rand(4, 2), torch.arange(4))
    assert has_rows(Ranged()) and not has_rows(named) and not has_rows([(1, 2)])
    assert torch.equal(materialise(named, "data.train")[0], named.tensors[0])


@pytest.mark.parametrize("rows", [lambda n: torch.zeros(n + 1), lambda n: 3, lambda n: torch.tensor(1.0)])
def test_rows_of_another_number_are_refused(rows: Callable[[int], Any]) -> None:
    class Wrong(Ranged):
        def rows(self, start: int, stop: int) -> tuple[Any, ...]:
            return torch.zeros(stop - start), rows(stop - start)

    with pytest.raises(DataError, match=r"rows\(0, 1\) of Wrong must return \(input, …, target\)") as error:
        materialise(Wrong(), "data.train")
    assert error.value.code == "data/bad-item"


def test_the_lowest_bad_row_is_named_whatever_is_wrong_with_it() -> None:
    items = [(torch.zeros(2), 0)] * 20
    items[7] = (torch.tensor([1.0, float("nan")]), 0)
    items[9] = (torch.zeros(3), 0)
    rows = RowSource.of(items, "data.val", 0)
    with pytest.raises(BadRow) as bad:
        rows.read(5, 20)
    assert (bad.value.row, bad.value.error.code) == (7, "data/not-finite")
    with pytest.raises(BadRow) as bad:
        rows.read(8, 20)
    assert (bad.value.row, bad.value.error.code) == (9, "data/unlike-items")
    with pytest.raises(DataError, match="input 0 of sample 123 is NaN or infinite"):
        materialise(Ranged(spoilt=123), "data.train")


def test_random_items_are_the_same_in_whatever_ranges_they_are_read_and_the_callers_generator_is_left_alone() -> None:
    class Random(Dataset):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.rand(2), index

    state = torch.get_rng_state()
    x, _ = materialise(Random(), "data.train", seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    parts = [RowSource.of(Random(), "data.train", 4).read_here(a, b)[0] for a, b in ((20, 30), (0, 3), (3, 20))]
    assert torch.equal(torch.cat([parts[1], parts[2], parts[0]]), x)
    assert not torch.equal(materialise(Random(), "data.train", seed=5)[0], x)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("fraction", [None, 0.3])
def test_rows_are_written_where_a_copy_of_the_whole_would_have_them(
    fraction: float | None, channels_last: bool
) -> None:
    from hogwild.workers.loading.loading import Sections

    images, labels = torch.rand(40, 3, 4, 5), torch.arange(40)
    rows = RowSource.of([(images[k], labels[k]) for k in range(40)], "data.train", 9)
    sections = Sections.allocate(rows, fraction, 9, channels_last=channels_last)
    to = sections.destination(40)
    for start in (30, 0, 17, 10):
        stop = min(40, start + 13)
        to.put(start, (images[start:stop], labels[start:stop]))
    parts = [torch.arange(40)] if fraction is None else division(40, fraction, 9)
    for held, part in zip(sections.in_memory(), parts, strict=True):
        assert torch.equal(held.tensors[0], images[part]) and torch.equal(held.tensors[1], labels[part])
        assert held.resident is not None
        copied = ResidentData.from_tensors("x", held.tensors, channels_last=channels_last)
        assert held.resident.fields == copied.fields
        assert torch.equal(
            held.resident.region.tensor(torch.uint8, (copied.region.nbytes,)),
            copied.region.tensor(torch.uint8, (copied.region.nbytes,)),
        )


# ---- transforms -----------------------------------------------------------------------------------------------------


def a_feed() -> ResidentFeed:
    data = ResidentData.from_tensors("test", (torch.arange(20.0)[:, None], torch.arange(20)))
    return ResidentFeed(data, BatchPlan(20, 5), seed=1, order="full")


def jitter(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(torch.rand_like(x))  # the buffer is the feed's: the data stays as it is
    return torch.cat((x, x), 1), y + 100


def test_a_transform_sees_every_batch_and_draws_the_same_numbers_for_it_whenever_it_comes() -> None:
    plain, one, other = a_feed(), TransformedFeed(a_feed(), jitter, 7), TransformedFeed(a_feed(), jitter, 7)
    found = {}
    for epoch, batch in ((0, 0), (0, 1), (1, 0), (0, 3)):
        made, given = one.gather(epoch, batch), plain.gather(epoch, batch)
        assert torch.equal(made.target, given.target + 100)
        assert torch.equal(made.inputs[0].floor(), given.inputs[0].expand(5, 2))
        assert (made.size, made.first_position) == (given.size, given.first_position)
        found[epoch, batch] = made.inputs[0].clone()
    torch.manual_seed(99)
    for (epoch, batch), x in reversed(found.items()):
        assert torch.equal(other.gather(epoch, batch).inputs[0], x)
    drawn = {float(x[0, 0] % 1) for x in found.values()}
    assert len(drawn) == len(found)
    assert not torch.equal(TransformedFeed(a_feed(), jitter, 8).gather(0, 0).inputs[0], found[0, 0])


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda x, y: x, "returned a Tensor that is not a tuple of tensors"),
        (lambda x, y: (x, 3), "returned a tuple that is not a tuple of tensors"),
        (lambda x, y: (x, x, y), "returned tensors of shape (5, 1), (5, 1), (5,) for a batch of 5"),
        (lambda x, y: (x[:4], y[:4]), "returned tensors of shape (4, 1), (4,) for a batch of 5"),
        (lambda x: x, "raised on the first samples TypeError: "),
    ],
)
def test_a_transform_that_makes_no_batch_is_refused_before_anything_starts(
    transform: Callable[..., Any], words: str
) -> None:
    with pytest.raises(DataError) as error:
        tried(transform, (torch.zeros(5, 1), torch.zeros(5)))
    assert words in str(error.value) and error.value.code == "data/transform"


# ---- the trial ------------------------------------------------------------------------------------------------------


def a_trial(model: nn.Module, inputs: Tensor, *, transform: Any = None, is_single: bool = False) -> Trial:
    batch = [inputs, torch.arange(len(inputs)) % 2]
    return Trial(
        memory_format="auto",
        compile="none",
        precision="fp32",
        model=model,
        loss=nn.functional.cross_entropy,
        panel=Panel((), {}),
        transform=transform,
        train=batch,
        single=[field[:1] for field in batch] if is_single else None,
        val=None,
        spread=None,
    )


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def test_a_batch_of_one_is_tried_as_it_is_trained_on() -> None:
    images = torch.zeros(3, 3, 2, 2, dtype=torch.uint8)
    found = a_trial(normed(), images, transform=lambda x, y: (x / 255, y), is_single=True).run()
    assert found.error is None


def test_a_model_that_fails_on_a_batch_of_one_is_an_error_with_its_line() -> None:
    class Squeezes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = normed()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).squeeze()[:, :2]

    error = a_trial(Squeezes(), torch.zeros(3, 3, 2, 2), is_single=True).run().error
    assert error is not None and error.code == "model/forward-failed"
    assert "Squeezes cannot compute a batch of one sample" in str(error) and "test_loading.py:" in str(error)


# ---- readers: real processes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group() -> Iterator[ProcessGroup]:
    with group_of_two() as group:
        yield group


def _hooked(model: nn.Module) -> None:
    next(model.children()).register_forward_hook(lambda *_: None)


def _with_a_function(model: Any) -> None:
    next(model.modules()).forward = lambda inputs: inputs


def _with_a_users_layer(model: nn.Module) -> None:
    model.add_module("more", type("Own", (nn.Linear,), {})(2, 2))


def _with_a_users_parameter(model: nn.Module) -> None:
    model.register_parameter("more", type("Own", (nn.Parameter,), {})(torch.zeros(1)))


@pytest.mark.parametrize("attach", [_hooked, _with_a_function, _with_a_users_layer, _with_a_users_parameter])
def test_a_trial_runs_in_the_parent_only_if_nobody_has_attached_code_to_our_model(
    attach: Callable[[nn.Module], None],
) -> None:
    trial = replace(a_trial(Mlp(4, [3], 2), torch.zeros(3, 4)), loss=nn.CrossEntropyLoss())
    assert trial.is_ours
    assert not replace(trial, model=nn.Linear(4, 2)).is_ours and not replace(trial, loss=lambda *_: None).is_ours
    assert not replace(trial, transform=lambda *batch: batch).is_ours
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not trial.is_ours
    handle.remove()
    attach(trial.model)
    assert not trial.is_ours


class Interrupted(nn.Linear):
    """A signal arrives while it is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        raise host.Interrupted(signal.SIGINT)


@pytest.mark.processes
def test_a_signal_while_a_trial_is_written_leaves_nothing_open(group: ProcessGroup) -> None:
    with pytest.raises(host.Interrupted):
        try_in_worker(group, a_trial(Interrupted(4, 2), torch.zeros(3, 4)))
    links = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert not [link for link in links if "hogwild-trial" in str(link)]


@pytest.mark.processes
def test_the_copy_of_the_model_is_gone_when_the_trial_is_answered(group: ProcessGroup) -> None:
    """The parent then checks whether the memory is enough for the job."""
    found = try_in_worker(group, a_trial(nn.Linear(4, 2), torch.zeros(3, 4)))
    assert found is not None and found.error is None
    assert [*group] == []


def config(**supervise: float) -> Config:
    limits = {"start_timeout_s": PATIENCE_S, "stall_timeout_s": PATIENCE_S, **supervise}
    values = {
        "version": 1,
        "seed": 3,
        "model": {"class_path": "torch.nn.Linear"},
        "data": {"train": {"class_path": "slow_data.Slow"}},
        "supervise": limits,
    }
    return job_from_mapping(values, "test")


def slow(name: str = "Slow", **arguments: Any) -> Any:
    import slow_data  # where it is, the fixture says

    return getattr(slow_data, name)(COUNT, **arguments)


def read(
    group: ProcessGroup,
    dataset: Any,
    fraction: float | None = None,
    runs: Path | None = None,
    channels_last: bool = False,
    **limits: float,
) -> tuple[tuple[Held, ...], Said]:
    group.supervise, group.sink = config(**limits).supervise, KeptEvents()
    loading = Loading(group, config(**limits), runs, no_start_up())
    held = loading.read(dataset, "data.train", fraction=fraction, channels_last=channels_last)
    return held, Said(group)


def in_this_process(dataset: Any, fraction: float | None = None) -> tuple[Held, ...]:
    return InTurn(3).read(dataset, "data.train", fraction=fraction, channels_last=False)


def same(one: tuple[Held, ...], other: tuple[Held, ...]) -> bool:
    return [len(held.tensors) for held in one] == [len(held.tensors) for held in other] and all(
        torch.equal(mine, theirs) and mine.dtype == theirs.dtype
        for left, right in zip(one, other, strict=True)
        for mine, theirs in zip(left.tensors, right.tensors, strict=True)
    )


def readers_of(diary: Path) -> set[int]:
    return {int(file.name.removeprefix("read-")) for file in diary.glob("read-*")} - {os.getpid()}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("made", "fraction"),
    [
        (slow, None),
        (slow, 0.25),
        (lambda **arguments: Subset(slow(**arguments), [*range(COUNT - 1, -1, -1)]), None),  # in its own order
        (lambda **arguments: slow("Ranged", **arguments), 0.5),
    ],
    ids=["items", "two parts", "subset", "ranges"],
)
def test_what_readers_bring_is_what_reading_in_turn_brings(
    group: ProcessGroup, tmp_path: Path, made: Callable[..., Any], fraction: float | None
) -> None:
    held, said = read(group, made(diary=str(tmp_path)), fraction)
    assert same(held, in_this_process(made(pace_s=0.0), fraction))
    assert all(one.resident is not None for one in held)
    assert readers_of(tmp_path) and [*group] == []
    (event,) = said.events
    assert (event["samples"], event["readers"], event["deaths"]) == (COUNT, 2, 0)
    assert said.sentences[-1].startswith("data.train: 100 samples read by 2 workers in ")


@pytest.mark.processes
def test_an_error_in_a_range_names_the_range(group: ProcessGroup) -> None:
    with pytest.raises(DataError, match=r"rows\(\d+, \d+\) of Ranged raised OSError: the file of item 37 is gone"):
        read(group, slow("Ranged", bad={37: "raises"}))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("crime", "limits"),
    [
        pytest.param("is killed", {}, marks=pytest.mark.whole),
        # On a busy machine an innocent one is stalled, too: the range is charged as often as need be.
        ("stops itself", {"stall_timeout_s": 1.0, "max_item_attempts": 1000}),
    ],
)
def test_a_reader_that_is_killed_or_stopped_is_replaced_and_nothing_is_lost(
    group: ProcessGroup, tmp_path: Path, crime: str, limits: dict[str, float]
) -> None:
    held, said = read(group, slow(diary=str(tmp_path), crimes={crime: 60}), **limits)
    assert (tmp_path / f"crime-{crime.replace(' ', '-')}").exists()
    assert same(held, in_this_process(slow(pace_s=0.0)))
    assert said.events[0]["deaths"] == 1 or (limits and said.events[0]["deaths"] > 1)


@pytest.mark.processes
def test_an_item_that_kills_whoever_reads_it_ends_the_job_with_its_number(group: ProcessGroup, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.train: reading item 37 crashed its process: .*SIGKILL") as error:
        read(group, slow(diary=str(tmp_path), crimes={"always is killed": 37}), max_item_attempts=1)
    assert error.value.code == "data/item-kills"


@pytest.mark.processes
def test_the_lowest_bad_row_ends_the_reading_in_the_same_words(group: ProcessGroup) -> None:
    bad = {90: "raises", 44: "nan", 60: "short"}
    with pytest.raises(DataError) as error:
        read(group, slow(bad=bad))
    with pytest.raises(DataError) as expected:
        in_this_process(slow(pace_s=0.0, bad=bad))
    assert (str(error.value), error.value.code) == (str(expected.value), "data/not-finite")
    assert str(error.value) == "data.train: input 0 of sample 44 is NaN or infinite; clean the data first"


@pytest.mark.processes
def test_what_cannot_be_given_to_others_or_be_read_there_is_read_here(group: ProcessGroup) -> None:
    for name, arguments, words in [
        ("Unportable", {}, "Unportable cannot be sent to workers: TypeError: an open connection (slow_data.py:"),
        ("Unmakeable", {}, "slow_data.py:76); the parent process reads it"),
        (
            "Slow",
            {"bad": {70: "raises in a worker"}},
            "reading failed in a worker only: data.train: reading item 70 raised",
        ),
    ]:
        held, said = read(group, slow(name, **arguments))
        assert same(held, in_this_process(slow(pace_s=0.0))), name
        assert any(words in sentence for sentence in said.sentences), said.sentences
        assert "the parent process in" in said.sentences[-1]


@pytest.mark.processes
def test_what_was_read_is_kept_beside_the_runs_for_the_next_job(group: ProcessGroup, tmp_path: Path) -> None:
    first, said = read(group, slow("Printed"), 0.25, runs=tmp_path)
    assert said.events[0]["readers"] == 2
    again, said = read(group, slow("Printed"), 0.25, runs=tmp_path)
    assert same(again, first)
    assert (said.events[0]["readers"], said.events[0].get("cached")) == (0, True)
    assert said.sentences == [said.sentences[0]] and "100 samples from the cache " in said.sentences[0]
    for data in tmp_path.glob(".cache/*/data.bin"):
        data.write_bytes(b"\0" * data.stat().st_size)
    healed, said = read(group, slow("Printed"), 0.25, runs=tmp_path)
    assert same(healed, first)
    assert said.events[0]["readers"] == 2 and "damaged" in said.sentences[0]


# ---- whole jobs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(jobs_folder: Path) -> dict[str, Ended]:
    """Name -> a job whose data is read by its workers, or (procs: 0) by its parent."""
    crimes = [f"data.train.init_args.diary={jobs_folder}", "data.train.init_args.crimes={is killed: 60}"]
    split = "data.val={fraction: 0.2}"
    noise = "data.transform={class_path: slow_data.add_noise, init_args: {scale: 0.5}}"
    return in_turn(
        jobs_folder / "jobs",
        {
            "killed": ["train", SLOW, split, noise, *crimes],
            "inside": ["train", SLOW, split, noise, "train.procs=0", "data.train.init_args.pace_s=0"],
            "raises": ["train", SLOW, "data.train.init_args.bad={37: raises}"],
        },
    )


@pytest.mark.processes
def test_a_job_whose_reader_was_killed_trains_on_the_same_data_with_the_same_processes(jobs: dict[str, Ended]) -> None:
    job = jobs["killed"]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert job.model_bytes() == jobs["inside"].model_bytes()  # its transform drew the same numbers, too
    (event,) = job.events("data-read")
    assert (event["what"], event["readers"], event["deaths"]) == ("data.train", 1, 1)
    assert "data.train: 100 samples read by 1 worker in " in job.stderr
    assert job.summary["restarts"] == 0  # it was no worker yet
    assert (job.left_behind, job.process_leaks) == ([], {"descriptors": 0, "threads": 0})


@pytest.mark.processes
def test_a_job_whose_data_cannot_be_read_leaves_nothing(jobs: dict[str, Ended]) -> None:
    job = jobs["raises"]
    assert job.status == 1
    assert "data.train: reading item 37 raised OSError: the file of item 37 is gone" in job.stderr
    assert "Traceback" not in job.stderr and not job.run_dir.exists()
    assert (job.left_behind, job.process_leaks) == ([], {"descriptors": 0, "threads": 0})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, CANCELLED), (signal.SIGKILL, -signal.SIGKILL, "")]
)
def test_a_parent_that_ends_while_its_data_is_read_leaves_no_reader(
    tmp_path: Path, start_job: Callable[..., Job], number: int, status: int, said: str
) -> None:
    endless = ["data.train.init_args.samples=1000000", f"data.train.init_args.diary={tmp_path}"]
    job = start_job(tmp_path / "job", "train", SLOW, *endless)
    wait_for("a reader", lambda: readers_of(tmp_path) - {job.process.pid} or job.process.poll() is not None)
    wait_for("how far it is", lambda: re.search(r"reading data.train: \d+ %  .* samples/s", job.status()["doing"]))
    job.send(number)
    ended = job.wait()
    assert (ended.status, ended.said, ended.left_behind) == (status, said, [])
