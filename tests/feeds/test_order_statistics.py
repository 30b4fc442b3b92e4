"""How random an order is: what a permutation drawn uniformly would show, and in how many of its standard deviations an
order differs. The seeds are fixed, so every figure comes out the same every time."""

from collections import Counter
from collections.abc import Callable
from math import factorial, isqrt, sqrt

import numpy as np
import pytest

from hogwild.feeds.sample_order import Chunked, Drawn, Keyed, Order, shuffled

SEED = 3
KINDS: dict[str, Callable[[int, int], Order]] = {
    "drawn": Drawn,
    "keyed": Keyed,
    "chunks of 1": lambda samples, seed: Chunked(samples, seed, 1),
    "chunks of 1000": lambda samples, seed: Chunked(samples, seed, 1000),
}
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
