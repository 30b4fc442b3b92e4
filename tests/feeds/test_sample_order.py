"""The order of an epoch: every sample once, the same for whoever asks and in whatever pieces, without a stall. How
random it is: as many standard deviations from a permutation drawn uniformly; the seeds are fixed."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import factorial, isqrt, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.data import Digits
from hogwild.feeds import sample_order
from hogwild.feeds.sample_order import (
    BLOCK_POSITIONS,
    CHUNK_BYTES,
    CHUNK_ROWS,
    DRAWN_UP_TO,
    Chunked,
    Drawn,
    InMemory,
    Keyed,
    Order,
    chunk_rows,
    make_order,
    random_words,
    shuffled,
)
from hogwild.scheduling.batch_plan import permutation_seed

SEED = 3
KINDS: dict[str, Callable[[int, int], Order]] = {
    "drawn": Drawn,
    "keyed": Keyed,
    "chunks of 1": lambda samples, seed: Chunked(samples, seed, 1),
    "chunks of 7": lambda samples, seed: Chunked(samples, seed, 7),
    "chunks of 1000": lambda samples, seed: Chunked(samples, seed, 1000),
    "in memory": lambda samples, seed: InMemory(samples),
}
SHUFFLED = [kind for kind in KINDS if kind != "in memory"]


def whole(order: Order, samples: int, epoch: int = 0) -> np.ndarray:
    return order.indices(epoch, 0, samples).copy()


# ---- every sample once, for whoever asks ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(samples=st.integers(1, 9000), epoch=st.integers(0, 3), batch_size=st.integers(1, 700))
def test_every_sample_comes_once_in_an_epoch_of_any_size(kind: str, samples: int, epoch: int, batch_size: int) -> None:
    order = KINDS[kind](samples, SEED)
    pieces = [
        order.indices(epoch, first, min(first + batch_size, samples)).copy() for first in range(0, samples, batch_size)
    ]
    together = np.concatenate(pieces)
    assert together.dtype == np.int64
    assert np.array_equal(np.sort(together), np.arange(samples))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 2, 3, 5, 10, 64, 65, BLOCK_POSITIONS - 1, BLOCK_POSITIONS, BLOCK_POSITIONS + 1])
def test_small_data_sets_and_those_of_about_one_block_are_permuted(kind: str, samples: int) -> None:
    for epoch in range(5):
        assert np.array_equal(np.sort(whole(KINDS[kind](samples, SEED), samples, epoch)), np.arange(samples))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(
    wanted=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 10_000), st.integers(0, 2 * BLOCK_POSITIONS)), min_size=1
    )
)
def test_any_piece_asked_for_in_any_order_is_that_piece_of_the_epoch(
    kind: str, wanted: list[tuple[int, int, int]]
) -> None:
    """Positions, not the history of what was asked: another worker, a replacement and a resumed run all agree."""
    samples = 10_000
    order, epochs = KINDS[kind](samples, SEED), {}
    for epoch, first, length in wanted:
        last = min(first + length, samples)
        if epoch not in epochs:
            epochs[epoch] = whole(KINDS[kind](samples, SEED), samples, epoch)
        assert np.array_equal(order.indices(epoch, first, last), epochs[epoch][first:last])


@pytest.mark.parametrize("kind", SHUFFLED)
def test_epochs_and_seeds_have_orders_of_their_own(kind: str) -> None:
    samples = 5000
    seen = [whole(KINDS[kind](samples, seed), samples, epoch) for seed in (1, 2) for epoch in range(3)]
    for number, one in enumerate(seen):
        for other in seen[:number]:
            assert (one == other).sum() < 20  # one is expected


def test_the_word_of_the_job_file_chooses_the_order() -> None:
    small, large = DRAWN_UP_TO, DRAWN_UP_TO + 1
    kinds = {
        (word, samples): type(make_order(word, samples, seed=SEED, row_bytes=64))
        for word in ("auto", "full", "chunked", "none")
        for samples in (small, large)
    }
    assert kinds == {
        ("auto", small): Drawn,
        ("auto", large): Keyed,
        ("full", small): Drawn,
        ("full", large): Keyed,
        ("chunked", small): Chunked,
        ("chunked", large): Chunked,
        ("none", small): InMemory,
        ("none", large): InMemory,
    }
    with pytest.raises(ValueError, match="must be auto, full, chunked or none, not 'ful'"):
        make_order("ful", small, seed=SEED, row_bytes=64)


def test_small_data_is_in_the_order_that_torch_draws() -> None:
    generator = torch.Generator().manual_seed(permutation_seed(SEED, 2))
    expected = torch.randperm(1437, generator=generator)
    order = make_order("full", 1437, seed=SEED, row_bytes=264)
    assert np.array_equal(order.indices(2, 0, 1437), expected.numpy())


def test_an_order_never_changes_between_versions() -> None:
    """A resumed run must go on with the order it began with."""
    beginnings = {kind: make(10_000, SEED).indices(1, 9990, 9996).tolist() for kind, make in KINDS.items()}
    assert beginnings == {
        "drawn": [1486, 2652, 812, 6779, 6045, 6624],
        "keyed": [2589, 217, 3777, 2164, 2724, 4840],
        "chunks of 1": [4520, 5686, 3846, 9813, 9079, 9658],
        "chunks of 7": [4441, 4446, 4447, 4445, 4442, 4443],
        "chunks of 1000": [3398, 3367, 3170, 3612, 3755, 3747],
        "in memory": [9990, 9991, 9992, 9993, 9994, 9995],
    }
    assert (DRAWN_UP_TO, CHUNK_BYTES, CHUNK_ROWS) == (262_144, 524_288, 1024)  # they decide which samples stand where


def test_words_are_those_of_the_published_splitmix64() -> None:
    """The first outputs of Vigna's splitmix64.c for seed 0 (xoshiro.di.unimi.it)."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert random_words(0, 0, 3).tolist() == published
    assert random_words(0, 1, 2).tolist() == published[1:]


# ---- no stall, no memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["full", "chunked", "none"])
def test_a_billion_samples_are_ordered_within_two_megabytes(shuffle: str) -> None:
    """A permutation of them would take 8 GB and minutes, in each worker."""
    samples = 10**9 + 7
    tracemalloc.start()
    try:
        order = make_order(shuffle, samples, seed=SEED, row_bytes=8)
        for epoch, first in ((0, 0), (0, 10**8), (0, samples - 64), (1, 0)):
            found = order.indices(epoch, first, first + 64)
            assert ((found >= 0) & (found < samples)).all()
            assert len(set(found.tolist())) == 64
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_the_batches_of_an_item_are_views_of_one_block(kind: str) -> None:
    """64 batches of 64 are computed at once; a batch costs a slice."""
    order = KINDS[kind](100_000, SEED)
    batches = [order.indices(0, first, first + 64) for first in range(64_000, 64_000 + BLOCK_POSITIONS, 64)]
    assert len({id(batch.base) for batch in batches}) == 1


def test_two_epochs_are_kept_for_workers_that_straddle_the_end_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(seed: int, epoch: int) -> int:
        drawn.append(epoch)
        return permutation_seed(seed, epoch)

    monkeypatch.setattr(sample_order, "permutation_seed", draw)
    for make in (Drawn, Keyed):
        drawn.clear()
        order = make(1000, SEED)
        for epoch in (0, 0, 1, 0, 1, 1, 2, 1, 2):
            order.indices(epoch, 0, 8)
        assert drawn == [0, 1, 2]
        for _ in range(3):  # a stopped worker's item of long ago, leased again
            order.indices(0, 8, 16)
            order.indices(2, 8, 16)
        assert drawn == [0, 1, 2, 0]


# ---- chunks ---------------------------------------------------------------------------------------------------------


def borders(order: np.ndarray, rows: int, samples: int) -> set[int]:
    """Where chunks begin in memory; each must be one run of `rows` neighbours, taken round the end of the data."""
    found = set()
    for first in range(0, len(order), rows):
        inside = set(order[first : first + rows].tolist())
        starts = [row for row in inside if (row - 1) % samples not in inside]
        assert len(starts) == 1, f"the chunk at position {first} is not one run"
        found.add(starts[0])
    return found


def test_a_chunk_is_a_run_of_neighbours_and_its_borders_move_from_epoch_to_epoch() -> None:
    samples, rows = 1009, 50
    order = Chunked(samples, SEED, rows)
    epochs = [whole(order, samples, epoch) for epoch in range(6)]
    cuts = [borders(epoch, rows, samples) for epoch in epochs]
    assert all(len(cut) == -(-samples // rows) for cut in cuts)
    assert all(len(one & other) < 5 for one, other in pairwise(cuts))
    leftovers = [frozenset(epoch[-9:].tolist()) for epoch in epochs]  # 1009 = 20 x 50 + 9
    assert len(set(leftovers)) == len(leftovers)


def test_chunks_and_the_rows_inside_them_are_shuffled() -> None:
    samples, rows = 10_000, 50
    chunks = whole(Chunked(samples, SEED, rows), samples).reshape(-1, rows)
    starts = chunks.min(axis=1)
    assert 70 < (np.diff(starts) > 0).sum() < 130  # of 199; 99.5 are expected, give or take 4.1
    inside = {tuple(np.argsort(chunk).tolist()) for chunk in chunks}
    assert len(inside) == len(chunks)


@pytest.mark.parametrize(
    ("row_bytes", "rows"),
    [
        (0, CHUNK_ROWS),
        (9, CHUNK_ROWS),
        (CHUNK_BYTES // CHUNK_ROWS, CHUNK_ROWS),
        (3144, 166),
        (CHUNK_BYTES, 1),
        (CHUNK_BYTES + 1, 1),
        (10**9, 1),
    ],
)
def test_a_chunk_holds_half_a_mebibyte_or_one_row_or_a_thousand(row_bytes: int, rows: int) -> None:
    assert chunk_rows(row_bytes) == rows


# ---- in a job -------------------------------------------------------------------------------------------------------


def train(shuffle: str, **settings: object) -> tuple[dict[str, torch.Tensor], hogwild.TrainResult]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    result = hogwild.train(
        model,
        TensorDataset(*Digits("train").tensors),
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        val=TensorDataset(*Digits("test").tensors),
        procs=0,
        threads=1,
        batch_size=16,
        seed=SEED,
        shuffle=shuffle,
        **settings,
    )
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, result


@pytest.mark.slow
def test_chunks_learn_as_well_as_a_full_shuffle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sample_order, "CHUNK_ROWS", 32)  # two batches: as local as MNIST's chunks are
    accuracy = {
        shuffle: train(shuffle, run_dir=tmp_path / shuffle, epochs=12)[1].metrics["accuracy"]
        for shuffle in ("full", "chunked")
    }
    assert min(accuracy.values()) > 0.93, accuracy
    assert abs(accuracy["full"] - accuracy["chunked"]) < 0.03, accuracy


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", ["full", "chunked", "none"])
def test_a_resumed_run_goes_on_with_the_same_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shuffle: str
) -> None:
    monkeypatch.setattr(sample_order, "CHUNK_ROWS", 100)
    if shuffle == "full":
        monkeypatch.setattr(sample_order, "DRAWN_UP_TO", 1000)  # computed, as of large data
    undisturbed, _ = train(shuffle, run_dir=tmp_path / "whole", epochs=2)
    train(shuffle, run_dir=tmp_path / "run", epochs=2, max_updates=70)  # of 90 an epoch
    resumed, result = train(shuffle, resume=tmp_path / "run", epochs=2, max_updates=None)
    assert result.updates == 180
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)


KEYS = 60
SAMPLES = 20_011  # a prime: the grid has places outside
WIDTH = isqrt(SAMPLES - 1) + 1


def measures(order: np.ndarray) -> dict[str, float]:
    """Each with mean 0 and standard deviation 1, or close to it, over permutations drawn uniformly."""
    places, steps = np.arange(SAMPLES), np.diff(order)
    centred = (order - (SAMPLES - 1) / 2) / sqrt((SAMPLES**2 - 1) / 12)
    table = np.histogram2d(places, order, bins=16)[0]
    expected = SAMPLES / 256
    return {
        # pairs that lie beside each other before and after: Poisson with mean 2 (Wolfowitz 1944)
        "neighbours": ((np.abs(steps) == 1).sum() - 2) / sqrt(2),
        "column neighbours": ((np.abs(order[WIDTH:] - order[:-WIDTH]) <= 1).sum() - 2) / sqrt(2),
        "fixed points": (order == places).sum() - 1.0,
        "ascents": ((steps > 0).sum() - (SAMPLES - 1) / 2) / sqrt((SAMPLES + 1) / 12),
        "displacement": (np.abs(order - places).mean() - SAMPLES / 3) / sqrt(2 * SAMPLES / 45),
        "serial correlation": (centred[1:] * centred[:-1]).sum() / sqrt(SAMPLES),
        "column correlation": (centred[WIDTH:] * centred[:-WIDTH]).sum() / sqrt(SAMPLES),
        "16 x 16 chi-square": (((table - expected) ** 2 / expected).sum() - 225) / sqrt(450),
        "mean of batches": ((centred[: SAMPLES // 64 * 64].reshape(-1, 64).mean(1) ** 2).sum() * 64 - 312) / sqrt(624),
    }


def measured(make: Callable[[int], Order]) -> dict[str, tuple[float, float]]:
    """Mean x sqrt(KEYS), which is a standard normal number, and the variance (1, give or take 0.2 x a few)."""
    found = [measures(make(seed).indices(0, 0, SAMPLES)) for seed in range(KEYS)]
    columns = {name: np.array([row[name] for row in found]) for name in found[0]}
    return {name: (column.mean() * sqrt(KEYS), column.var()) for name, column in columns.items()}


def suspicious(statistics: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {name: value for name, value in statistics.items() if abs(value[0]) > 3.5 or value[1] > 2.2}


@pytest.mark.parametrize("kind", ["drawn", "keyed", "chunks of 1"])
def test_no_measure_tells_an_order_from_a_permutation_drawn_uniformly(kind: str) -> None:
    assert suspicious(measured(lambda seed: KINDS[kind](SAMPLES, seed))) == {}


@pytest.mark.parametrize("rounds", [2, 4])
def test_with_fewer_rounds_the_measures_see_it(rounds: int) -> None:
    """Why ROUNDS is 6, and proof that the measures can see anything."""
    assert "neighbours" in suspicious(measured(lambda seed: Keyed(SAMPLES, seed, rounds)))


@pytest.mark.slow
@pytest.mark.parametrize("samples", [3, 4, 5])
@pytest.mark.parametrize("kind", ["drawn", "chunks of 1", "chunks of 1000"])
def test_every_order_of_a_few_samples_is_about_as_likely(kind: str, samples: int) -> None:
    draws = 80 * factorial(samples)
    epochs = KINDS[kind](samples, SEED)
    counts = Counter(tuple(epochs.indices(epoch, 0, samples).tolist()) for epoch in range(draws))
    assert len(counts) == factorial(samples)
    chi_square = sum((count - 80) ** 2 / 80 for count in counts.values())
    freedom = factorial(samples) - 1
    assert abs(chi_square - freedom) < 3.5 * sqrt(2 * freedom)


def test_sorted_random_keys_are_fair_shuffles_however_few_bits_the_row_takes() -> None:
    rows = shuffled(SEED, 0, 24_000, 4)
    counts = Counter(map(tuple, rows.tolist()))
    assert len(counts) == 24
    assert abs(sum((count - 1000) ** 2 / 1000 for count in counts.values()) - 23) < 3.5 * sqrt(46)
    assert shuffled(SEED, 0, 3, 1).tolist() == [[0], [0], [0]]
