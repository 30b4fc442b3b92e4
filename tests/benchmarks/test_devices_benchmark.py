"""The devices suite's own code: that its table is what was asked for, how a share is taken from phases, that both sides
of the ring's figure move the same batches, that what kills loaders finds what they lose. No figure is looked at: those
are measured on a quiet machine, by `make bench-devices`."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import (
    allocations,
    cluster,
    cluster_cost,
    cluster_deaths,
    commands,
    delta_cost,
    devices,
    gpu,
    loader_kills,
    ring_cost,
    stream_feed,
)
from benchmarks.baselines import one_gpu, tensor_queue
from benchmarks.baselines.transformed import Transformed, shift
from benchmarks.baselines.well_known import Digits
from benchmarks.cluster_deaths import Tally
from benchmarks.commands import ROOT, CommandFailed
from benchmarks.results import read_rows
from benchmarks.row import Row
from benchmarks.sections import measure
from hogwild.data import Mnist
from tests.cluster.running import SAMPLES
from tests.helpers.simulated_gpu import Simulated

# The table that was asked for, written down once more: figure, bound, and whether the bound is from above.
KILLS = "seeded SIGKILLs of node, supervisor, communicator, store host, counting model: "
ASKED_OF_CLUSTERS = {
    "2 nodes x 1 worker over two processes that share nothing, LeNet, samples/s": (0.95, False),
    "samples/s with a round every second over none": (0.97, False),
    "samples/s with 100 ms and 10 Mbit/s between the nodes over loopback": (0.95, False),
    "LeNet, equal samples, average (the default), rate tuned for one node and for two: test accuracy lost with two": (
        *(0.3, True),
    ),
    f"{KILLS}samples lost": (0.0, True),
    f"{KILLS}samples counted twice": (0.0, True),
    f"{KILLS}jobs hung": (0.0, True),
    "survivors after a death: first round without the dead node": (5.0, True),
    "survivors after a death: commits until that round over before": (0.95, False),
    "work lost with the store host": (1.0, True),
    "bytes of a round over 2(K-1)/K x trained parameters": (1.1, True),
    "extra memory of a node, in trained parameters, average": (3.0, True),
    "extra memory of a node, in trained parameters, nesterov": (4.0, True),
    "supervisor's longest turn, rounds every second over none": (1.2, True),
}


def test_the_suite_of_clusters_has_every_figure_that_was_asked_for_with_its_target() -> None:
    rows = [figure.row([1.0]) for _, asked in cluster.PARTS.values() for figure in asked] + Tally().rows(seed=1)
    assert {row.figure: (row.target, row.smaller_is_better) for row in rows} == ASKED_OF_CLUSTERS


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, list(cluster.PARTS)),
        ("memory", ["memory"]),
        ("survivors after", ["survivors"]),
        ("RMSE", ["factorisation"]),
        ("rate kept", ["accuracy"]),
        ("nothing of that name", []),
    ],
)
def test_a_part_is_chosen_by_its_name_or_by_that_of_a_figure(text: str | None, parts: list[str]) -> None:
    assert cluster.parts_of(text) == parts


def test_the_page_has_the_seconds_of_rounds_to_1000_nodes_as_the_formula_prints_them() -> None:
    assert cluster_cost.table() in (ROOT / "docs" / "cluster.md").read_text()


@pytest.mark.parametrize("name", [name for name in cluster_cost.MEASURED if name.endswith("bit/s")])
def test_the_formula_is_near_what_was_measured_over_a_slow_network(name: str) -> None:
    """On loopback a round is the machine's arithmetic, beside whatever else it does."""
    assert cluster_cost.MEASURED[name].by_formula == pytest.approx(read_rows("cluster")[name].value, rel=0.25)


class Ended:
    """A counting job that has ended. `wrong`: row -> how often it was applied."""

    def __init__(self, wrong: dict[int, int], indeterminate: int = 0, missing: int = 0) -> None:
        self.wrong, self.indeterminate, self.missing = wrong, indeterminate, missing

    def effects(self, node: int) -> Tensor:
        found = torch.ones(SAMPLES)
        for row, times in self.wrong.items():
            found[row] = times
        return found

    def summary(self, node: int) -> dict[str, Any]:
        done = SAMPLES // 4 - self.missing
        leases = {"done": done, "skipped": 0, "quarantined": 0, "indeterminate": self.indeterminate}
        return {"leases": leases}


@pytest.mark.parametrize(
    ("job", "counted"),
    [
        (Ended({}), (0, 0, 0)),
        (Ended({3: 0, 4: 2}), (1, 1, 0)),
        (Ended({3: 0, 4: 3}), (1, 2, 0)),
        (Ended({3: 0, 4: 2}, indeterminate=1), (0, 0, 2)),
        (Ended(dict.fromkeys(range(6), 2), indeterminate=1), (0, 2, 4)),
        (Ended({}, missing=2), (8, 0, 0)),
    ],
)
def test_samples_that_were_lost_or_counted_twice_are_found(job: Ended, counted: tuple[int, int, int]) -> None:
    tally = Tally()
    cluster_deaths._count(job, 0, tally)  # type: ignore[arg-type]
    assert (tally.lost, tally.twice, tally.excused) == counted


@pytest.mark.processes
def test_a_communicator_is_killed_and_the_job_counted() -> None:
    written: list[list[Row]] = []
    tally = cluster_deaths.kills(1, seed=1, put=written.append)
    assert tally.kills == {cluster_deaths.COMMUNICATOR: 1} and tally.jobs == 1
    (rows,) = written
    assert [row.value for row in rows] == [0, 0, 0]


# The table that was asked for, written down once more: figure, bound, and whether the bound is from above.
ASKED = {
    "stream feed, LeNet on MNIST with per-sample Python transforms, 2 cores: samples/s over a DataLoader with "
    "2 workers feeding one process": (1.3, False),
    "ring of reused slots over torch.multiprocessing.Queue of fresh tensors (64 x 784 floats): cost per batch": (
        5.0,
        False,
    ),
    "allocations per update after warm-up (ours), CPU": (0.0, True),
    "allocations per update after warm-up (ours), simulated device": (0.0, True),
    "truncated-BPTT LSTM, characters/s: 2 workers over 1 on 2 cores": (1.8, False),
    "delta exchange, MLP of 10 M parameters, sync_every 16: share of the update": (0.05, True),
    "killed loaders during a streaming job, 100: records lost or repeated": (0.0, True),
}
GPU = {
    **{
        f"{network}, 1 worker cuda-replica: samples/s over one process with CUDA graphs": 0.95
        for network in ("LeNet", "MLP")
    },
    "LeNet, 4 workers cuda-replica: samples/s over one plain process": 4.0,
    "MLP, 4 workers cuda-replica: samples/s over one plain process": 6.0,
    **{f"{network}, 4 workers cuda-shared: samples/s over one plain process": 3.0 for network in ("LeNet", "MLP")},
    **{f"{network}: share of the copies hidden behind computing": 0.9 for network in ("LeNet", "MLP")},
    **{f"{network}: device allocations per update": 0.0 for network in ("LeNet", "MLP")},
}


def test_the_suite_has_every_figure_that_was_asked_for_with_its_target() -> None:
    rows = [figure.row([1.0]) for _, asked in devices.SECTIONS.values() for figure in asked]
    assert {row.figure: (row.target, row.smaller_is_better) for row in rows} == ASKED


class Counted(Simulated):
    """A device of which nobody can say how copies and mathematics overlap."""

    def forget(self) -> None:
        self.calls.clear()

    def hidden(self) -> float:
        return 0.5

    def taken(self) -> int:
        return self.allocations()


def test_the_suite_of_a_gpu_has_every_figure_and_what_it_measures_inside_a_worker_runs_on_a_simulated_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = SimpleNamespace(tensors=(torch.rand(40, 1, 28, 28), torch.arange(40) % 10))
    monkeypatch.setattr(gpu, "Mnist", lambda split: images)
    monkeypatch.setattr(gpu, "Timed", Counted)
    monkeypatch.setattr(commands, "speed", lambda *job: 6.0)
    monkeypatch.setattr(one_gpu, "samples_per_s", lambda *settings, graph: 4.0 if graph else 2.0)
    for name, value in {"BATCH": 4, "WARM": 2, "MEASURED": 5}.items():
        monkeypatch.setattr(gpu, name, value)
    rows = gpu.measure()
    assert {row.figure: row.target for row in rows if row.target is not None} == GPU
    assert {row.value for row in rows if "plain" in row.figure} == {3.0}
    assert {row.value for row in rows if "copies" in row.figure} == {0.5}
    assert {row.value for row in rows if "allocations" in row.figure} == {0}


def test_a_section_that_fails_leaves_its_rows_unmet() -> None:
    def fails() -> list[Row]:
        raise CommandFailed("no room")

    (row,) = measure("kills", fails, (loader_kills.WRONG,))
    assert (row.met, row.value, row.note) == (False, None, "failed: no room")


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_the_share_of_exchanges_is_what_apply_takes_beyond_its_median() -> None:
    plain = {"wait": 7, "forward": 50, "backward": 100, "apply": 10}
    updates = [{**plain, "apply": 110} if number % 16 == 15 else dict(plain) for number in range(32)]
    assert delta_cost.share(updates) == pytest.approx(200 / (32 * 160 + 200))
    assert delta_cost.share([plain] * 16) == 0.0


def test_both_ways_bring_the_same_batch() -> None:
    records = ring_cost.Prepared(1).records
    x, y = tensor_queue.stacked(records)
    assert x.is_shared() and torch.equal(x, torch.stack([row for row, _ in records]))
    assert y.tolist() == [label for _, label in records]


@pytest.mark.processes
@pytest.mark.parametrize("way", ring_cost.WAYS)
def test_a_stream_of_batches_comes_to_its_end(way: str) -> None:
    said = json.loads(commands.answer("-m", "benchmarks.ring_cost", "--way", way, "--batches", "50"))
    assert said["clock_us"] > 0 and said["processor_us"] > 0


def test_an_allocation_is_seen_and_ours_are_none() -> None:
    counter = allocations.Counter()
    assert torch.equal(counter.of(lambda: torch.ones(100)), torch.ones(100))
    assert counter.made == 1
    assert allocations.on_device() == 0


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten random digits."""

    def few(split: str, normalize: bool) -> object:
        random = torch.Generator().manual_seed(0)
        images = torch.rand(10, 1, 28, 28, generator=random)
        return type("Few", (), {"tensors": (images, torch.arange(10))})()

    few.mean, few.deviation = Mnist.mean, Mnist.deviation  # type: ignore[attr-defined]
    monkeypatch.setattr("benchmarks.baselines.transformed.Mnist", few)


@pytest.mark.usefixtures("mnist")
def test_without_jitter_a_record_is_what_the_well_known_example_makes_of_it() -> None:
    data = Transformed(records=4)
    example = Digits(data.images, data.labels)
    for number in range(4):
        assert torch.equal(data[number][0], example[number][0]) and data[number][1] == example[number][1]


@pytest.mark.usefixtures("mnist")
def test_a_jittered_record_is_another_each_time() -> None:
    data = Transformed(records=4, jitter=True)
    assert len(data) == 4
    (one, label), (other, _) = data[3], data[3]
    assert one.shape == (1, 28, 28) and one.dtype == torch.float32 and label == 3
    assert not torch.equal(one, other)


def test_a_shift_moves_and_brings_zeros_in() -> None:
    torch.manual_seed(0)
    image = torch.ones(1, 28, 28)
    sums = {float(shift(image).sum()) for _ in range(50)}
    assert max(sums) == 784.0 and min(sums) == 26.0 * 26.0


# ---- killed loaders --------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_loaders_are_killed_in_the_middle_of_batches_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_kills, "RECORDS", 4000)
    found = loader_kills.trial("Divided", 2)
    assert (found.restarts, found.lost, found.repeated) == (2, 0, 0)


@pytest.mark.processes
def test_the_suite_says_what_it_measures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.devices", "--only", "nothing"],
        capture_output=True,
        text=True,
        cwd=commands.ROOT,
        check=False,
    )
    assert done.returncode == 2 and "no section is called nothing" in done.stderr


def test_the_class_of_the_streamed_job_is_the_one_of_the_baseline() -> None:
    assert f"{Transformed.__module__}.{Transformed.__qualname__}" == stream_feed.CLASS
