"""The suites' own code: that a row says what was asked, that a slow baseline voids it, and that every baseline trains.
No figure is looked at: those are measured on a quiet machine, by `make bench-dense`."""

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import commands, convergence, curves, dense, figures, results
from benchmarks.baselines import ddp, limit, well_known
from benchmarks.baselines.networks import NETWORKS, Batches, Network, Settings, Shared
from benchmarks.baselines.race import Line, RunnerDied, race
from benchmarks.baselines.unguarded import Both
from benchmarks.bench import FULL, QUICK, Bench, in_turn
from benchmarks.figures import BARE, DDP, LENET, LIMIT, MLP, WELL_KNOWN
from benchmarks.row import Row
from hogwild.config.load import load_job
from hogwild.data import Mnist
from hogwild.user_code import build

THREE = Settings(updates=3, warm_up=1, batch_size=8)
WAY = limit.WAYS[0]

# The table that was asked for, written down once more: figure, bound, and whether the bound is from above.
ASKED = {
    "LeNet, 2 workers: samples/s over the well-known way": (2.0, False),
    "LeNet, 2 workers: samples/s over the limit": (0.98, False),
    "MLP 784-128-10, 2 workers (exchange auto): samples/s over the limit": (0.98, False),
    "2 workers: samples/s over DDP gloo, LeNet": (1.4, False),
    "2 workers: samples/s over DDP gloo, MLP": (4.0, False),
    "one worker under the supervisor over the bare loop, LeNet": (0.98, False),
    "one worker under the supervisor over the bare loop, MLP": (0.98, False),
    "one worker under the supervisor over the bare loop written as well as we can, digits": (0.9, False),
    "all guards on over guards off, LeNet": (0.985, False),
    "all guards on over guards off, MLP": (0.95, False),
    "`--procs 4` on 2 cores over `--procs 2`": (0.95, False),
    "time to 98 % MNIST test accuracy, whole command, 2 workers, over the well-known way": (2.0, False),
    "command start to first update, digits, 2 workers, over `import torch` run twice at once": (2.8, True),
    "`threads: auto` over the best of a sweep of procs x threads": (0.95, False),
}
OVERHEAD = {
    "all but forward and backward, LeNet": (0.04, True),
    "all but forward and backward, MLP": (0.15, True),
}


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_the_suite_has_every_figure_that_was_asked_for_with_its_target() -> None:
    rows = [figure.row([1.0]) for _, asked in dense.PARTS.values() for figure in asked]
    assert {row.figure: (row.target, row.smaller_is_better) for row in rows} == ASKED | OVERHEAD
    assert {figure.name for figure in figures.ASKED} == set(ASKED)


@pytest.mark.parametrize(
    ("runs", "smaller_is_better", "met"),
    [
        ([0.94, 0.96, 1.5], False, True),
        ([0.94, 0.9, 1.5], False, False),
        ([0.9, 0.94, 2.0], True, True),
        ([0.9, 0.96, 2.0], True, False),
        ([0.95, 0.95, 0.95], True, True),
        ([0.95, 0.95, 0.95], False, True),
    ],
)
def test_a_row_is_met_by_its_median(runs: list[float], smaller_is_better: bool, met: bool) -> None:
    row = Row("figure", "x", 0.95, runs, smaller_is_better=smaller_is_better)
    assert (row.value, row.met) == (sorted(runs)[1], met)


def test_a_mean_is_a_mean() -> None:
    assert Row("figure", "", None, [1.0, 2.0, 6.0], center="mean").value == 3.0


def test_a_row_without_a_target_is_only_reported() -> None:
    row = Row("figure", "x", None, [1.0])
    assert row.met is None and row.note == "only reported"


@pytest.mark.parametrize(
    ("baseline", "network", "floor"),
    [
        (LIMIT, LENET, 15_300),
        (LIMIT, MLP, 165_750),
        (BARE, MLP, 80_750),
        (DDP, LENET, 9_945),
        (WELL_KNOWN, LENET, 7_225),
    ],
)
def test_a_baseline_below_its_floor_voids_the_row_and_one_above_does_not(
    baseline: str, network: str, floor: float
) -> None:
    def row(theirs: float, like: bool = True) -> Row:
        runs = [theirs] * 3
        return figures.over(figures.THREADS, [floor] * 3, runs, baseline=baseline, network=network, like=like)

    slow, fast = row(floor - 1), row(floor + 1)
    assert slow.met is None and slow.note.startswith("void: ") and slow.runs
    assert fast.met is True and fast.baseline == floor + 1
    assert row(floor - 1, like=False).met is True


def test_a_figure_whose_command_fails_is_a_row_that_is_not_met_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(bench: Bench) -> list[Row]:
        raise commands.CommandFailed("exit status 1")

    def works(bench: Bench) -> list[Row]:
        return [figures.START.row([1.0])]

    monkeypatch.setitem(dense.PARTS, "threads", (fails, (figures.THREADS,)))
    monkeypatch.setitem(dense.PARTS, "start", (works, (figures.START,)))
    failed, measured = dense.measure(["threads", "start"], Bench(QUICK))
    assert (failed.figure, failed.value, failed.met) == (figures.THREADS.name, None, False)
    assert "exit status 1" in failed.note and measured.met


@pytest.mark.processes
def test_a_command_that_fails_says_what_it_said() -> None:
    with pytest.raises(commands.CommandFailed, match=r"exit status 3(.|\n)*gone"):
        commands.seconds("-c", "import sys; sys.stderr.write('gone'); sys.exit(3)")


def test_ours_and_baselines_take_turns_and_change_places() -> None:
    order: list[str] = []

    def way(name: str, answer: float) -> float:
        order.append(name)
        return answer

    found = in_turn(3, partial(way, "a", 1.0), partial(way, "b", 2.0))
    assert "".join(order) == "abbaab" and found == [[1.0] * 3, [2.0] * 3]


def test_a_speed_that_was_seen_is_not_measured_again() -> None:
    bench = Bench(FULL)
    kept = bench.speeds["ours", LENET, 2]
    kept += [1.0, 2.0]

    def measure() -> float:
        kept.append(3.0)
        return 3.0

    assert bench.seen("ours", LENET, 2, measure, runs=3) == [1.0, 2.0, 3.0]


def test_cores_of_different_physical_ones_come_first(tmp_path: Path) -> None:
    for core, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert dense.apart([0, 1, 2, 3], tmp_path) == [0, 2, 1, 3]
    assert dense.apart([4, 7], tmp_path) == [4, 7]


# ---- files -----------------------------------------------------------------------------------------------------------


def rows_of_all_kinds() -> list[Row]:
    return [
        figures.THREADS.row([0.9, 1.0, 1.1], 100.0, "a | b"),
        figures.START.row([3.0]),
        figures.TOO_MANY.row([1.0]).void("slow"),
        figures.TIME_TO_98.row([], note="failed"),
        Row("reported", "samples/s", None, [5.0]),
    ]


@pytest.mark.processes
def test_results_have_the_fields_of_the_contract_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib", reason="of the extra 'bench'")
    results.write("suite", rows_of_all_kinds(), folder=tmp_path)
    content = json.loads((tmp_path / "suite.json").read_text())
    assert {"suite", "date", "commit", "machine", "rows"} == content.keys()
    assert {"cpu", "cores", "memory", "os", "python", "torch", "gpu"} <= content["machine"].keys()
    for row in content["rows"]:
        assert {"figure", "value", "unit", "target", "met", "baseline", "runs", "note"} <= row.keys()
        assert row["met"] is not None or row["note"]
    assert (tmp_path / "suite.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "suite.md").read_text().splitlines()[-5:]
    assert [line.split("|")[4].strip() for line in lines] == ["yes", "no", "void", "no", "reported"]
    assert {line.count("|") for line in lines} == {8}
    assert lines[0] in capsys.readouterr().out


def test_curves_are_drawn_from_what_was_seen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="of the extra 'bench'")
    bench = Bench(QUICK)
    for who, network, procs, runs in (
        ("ours", LENET, 1, [9e3, 8e3]),
        ("ours", LENET, 2, [17e3]),
        ("limit", LENET, 1, [1e4]),
    ):
        bench.speeds[who, network, procs] = runs
    curves.picture(bench, tmp_path)
    assert (tmp_path / "dense-procs.png").read_bytes().startswith(b"\x89PNG")


def test_accuracies_are_drawn_with_their_spread(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="of the extra 'bench'")
    trial = convergence.Trial(workers={(LENET, 1): [0.97, 0.98], (LENET, 2): [0.96, 0.99]}, delta={(MLP, 4): [0.95]})
    convergence.pictures(trial, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"convergence-workers.png", "convergence-sync-every.png"}


def test_the_price_of_several_workers_is_the_largest_distance_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    by_procs = {1: [0.97, 0.98], 2: [0.97, 0.97], 4: [0.95, 0.96], 8: [0.99, 0.98]}
    monkeypatch.setattr(convergence.Trial, "accuracies", lambda self, network, procs, *more: by_procs[procs])
    rows = convergence.by_workers(convergence.Trial(seeds=(1, 2)))
    assert len(rows) == 2 * (len(convergence.WORKERS) + 1)
    distance = rows[len(convergence.WORKERS)]
    assert distance.value == pytest.approx(-0.02) and "4" in distance.note


# ---- baselines -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> Shared:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 1, 28, 28, generator=generator)
    return Shared.of(x, torch.randint(10, (100,), generator=generator))


@pytest.fixture(params=sorted(NETWORKS))
def network(request: pytest.FixtureRequest) -> Network:
    return NETWORKS[request.param]


def is_speed(value: float) -> bool:
    return math.isfinite(value) and value > 0


def test_each_network_is_that_of_the_job(network: Network) -> None:
    job = load_job(Path(commands.MNIST), network.overrides)
    ours, theirs = build(job.model), network.build()
    assert [tuple(p.shape) for p in ours.parameters()] == [tuple(p.shape) for p in theirs.parameters()]
    assert job.data.batch_size == Settings(updates=1).batch_size
    assert job.optimizer.init_args == {"lr": Settings(updates=1).lr, "momentum": Settings(updates=1).momentum}


def test_batches_are_every_sample_once_an_epoch_and_ranks_share_them(network: Network, data: Shared) -> None:
    plain = Shared(torch.arange(100.0).reshape(-1, 1, 1, 1).expand(100, 28, 28, 1).contiguous(), torch.arange(100))
    seen = []
    for rank in range(2):
        batches = Batches(network, plain, 10, seed=3, rank=rank, ranks=2)
        for _ in range(5):
            inputs, labels = batches.next()
            assert inputs.reshape(10, -1)[:, 0].tolist() == labels.tolist()
            seen += labels.tolist()
    assert sorted(seen) == list(range(100))
    first = Batches(network, plain, 10, seed=3)
    epochs = [first.next()[1].tolist() for _ in range(20)]
    assert epochs[:10] != epochs[10:]
    assert network.build()(Batches(network, data, 8, seed=1).next()[0]).shape == (8, 10)


def test_the_limit_computes_the_same_in_every_way_stock_torch_offers(network: Network, data: Shared) -> None:
    assert len(set(limit.WAYS)) == 4
    before = limit.Loop(network, data, THREE, seed=1).parameters()
    trained = []
    for way in limit.WAYS:
        loop = limit.Loop(network, data, THREE, seed=1)
        for _ in range(3):
            loop.update(way)
        trained.append(loop.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, trained[0], strict=True))
    for others in trained[1:]:
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(trained[0], others, strict=True))


@pytest.mark.processes
def test_processes_that_share_nothing_train(data: Shared) -> None:
    assert is_speed(limit.samples_per_s(NETWORKS[LENET], data, 2, THREE, WAY))


@pytest.mark.processes
def test_the_limit_takes_the_fastest_way(data: Shared) -> None:
    assert limit.fastest(NETWORKS[MLP], data, THREE) in limit.WAYS


@pytest.mark.processes
def test_ddp_trains(data: Shared) -> None:
    assert is_speed(ddp.samples_per_s(NETWORKS[LENET], data, 2, THREE))


@pytest.fixture(scope="module")
def digits() -> well_known.Digits:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(256, (40, 28, 28), dtype=torch.uint8, generator=generator)
    return well_known.Digits(images, torch.randint(10, (40,), generator=generator))


@pytest.mark.processes
def test_the_well_known_way_trains(digits: well_known.Digits) -> None:
    assert is_speed(well_known.samples_per_s(digits, 2, THREE))


@pytest.mark.processes
def test_the_well_known_way_stops_at_the_accuracy_or_says_that_it_was_not_reached(digits: well_known.Digits) -> None:
    assert well_known.epochs_to(0.0, digits, digits, procs=1, seed=1, most=3) == 1
    assert well_known.epochs_to(1.1, digits, digits, procs=1, seed=1, most=2) is None


def test_its_transforms_give_what_our_data_set_holds(digits: well_known.Digits) -> None:
    sample, label = digits[7]
    expected = (digits.images[7].double() / 255 - Mnist.mean) / Mnist.deviation
    assert sample.shape == (1, 28, 28) and sample.dtype == torch.float32
    assert torch.allclose(sample[0].double(), expected, atol=1e-6) and label == int(digits.labels[7])


def dies(line: Line) -> None:
    line.ready()
    raise SystemExit(3)


@pytest.mark.processes
def test_a_runner_that_dies_is_an_error_and_no_wait() -> None:
    with pytest.raises(RunnerDied):
        race(dies, [()])


# ---- the loop without guards -----------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_loop_without_guards_does_the_arithmetic_of_the_one_with_them(threads: None) -> None:
    """Otherwise it would be faster for another reason. Without dropout, because it does not seed."""
    job = load_job(None, ["model.init_args.dropout=0", "data.val=null"])
    ended = []
    for ways in (("guarded", "guarded"), ("guarded", "unguarded")):
        both = Both(job)
        for way in ways:
            getattr(both, way)(3)
        ended.append(both.parameters())
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))
