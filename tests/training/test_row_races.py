"""A write of another worker that gets lost between two statements of a compiled row rule, at every moment there is: it
may cost progress, and never makes an update that no gradient asked for.

The rules run as Python here, over arrays that count how often they are read and written and, at one of these moments,
get back what they held before: what a worker does that read some accumulators long ago and writes them now."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hogwild.training.flat_rule import least_ratio, lost_squares

rows = pytest.importorskip("hogwild.kernels.sparse_rows")

SIZE, WIDTH, RATE = 3, 2, np.float32(1e-3)
FINITE = np.finfo(np.float32)
QUIET, LOUD = 1e-3, 1.0
GRADIENTS = [QUIET] * 5 + [LOUD] * 3 + [QUIET] * 4
SEEN, HIT = 5, 7  # updates the other worker had seen; the one in which its write comes: the last loud one
BETAS = 0.9, 0.999
L1 = np.float32(1e-4)
LEAST = least_ratio(*BETAS, float(FINITE.eps))
FLOOR = lost_squares(BETAS[1], float(FINITE.smallest_normal))


@dataclass
class Memory:
    """The shared arrays of a rule, and the moment at which the write of another worker comes: `at` reads or writes
    after `begin`."""

    arrays: dict[str, np.ndarray]
    at: int = -1
    old: dict[str, np.ndarray] = field(default_factory=dict)
    moments: int = 0

    def begin(self, at: int, old: dict[str, np.ndarray]) -> None:
        self.at, self.old, self.moments = at, old, 0

    def touch(self) -> None:
        if self.moments == self.at:
            for key, value in self.old.items():
                self.arrays[key][...] = value
        self.moments += 1


class Watched:
    """One shared array as a rule sees it."""

    def __init__(self, memory: Memory, key: str) -> None:
        self._memory, self._array = memory, memory.arrays[key]
        self.shape = self._array.shape

    def __getitem__(self, place: Any) -> Any:
        self._memory.touch()
        return self._array[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._memory.touch()
        self._array[place] = value


Watching = Callable[[str], Watched]
Gradient = tuple[np.ndarray, np.ndarray, np.float32, np.ndarray, int, np.ndarray]


def gradient(size: float) -> Gradient:
    """Row 1 occurs twice, with half of `size` each time."""
    indices, values = np.array([1, 1, 2]), np.full((3, WIDTH), size / 2, np.float32)
    links = np.zeros((4, 8), np.int32)
    count = rows.linked(indices, SIZE, links)
    assert count == 2
    return indices, values, np.float32(1), links, count, np.zeros(WIDTH, np.float32)


def adagrad(see: Watching, given: Gradient, step: int) -> None:
    rows.adagrad.py_func(see("param"), see("sum"), *given, RATE, np.float32(1e-10))


def row_adagrad(see: Watching, given: Gradient, step: int) -> None:
    rows.row_adagrad.py_func(see("param"), see("row sum"), *given, RATE, np.float32(1e-10), np.float32(0))


def corrected(step: int) -> float:
    return math.sqrt(1 - BETAS[1] ** step) / (1 - BETAS[0] ** step)


def lazy_adam(see: Watching, given: Gradient, step: int) -> None:
    scalars = (RATE * corrected(step), 1e-8, 1 - BETAS[0], 1 - BETAS[1], LEAST, FLOOR)
    rows.lazy_adam.py_func(see("param"), see("mean"), see("square"), *given, *map(np.float32, scalars))


def ftrl(see: Watching, given: Gradient, step: int) -> None:
    rows.ftrl.py_func(see("param"), see("sum"), see("z"), *given, RATE, np.float32(1e-10), L1)


# The same rules as torch has them: several passes, each over shared memory.


def summed(given: Gradient) -> list[tuple[int, int, np.float32]]:
    indices, values, _, links, count, total = given
    found = []
    for u in range(count):
        rows.summed(values, np.float32(1), links, u, total)
        found += [(int(indices[links[0, u]]), k, total[k]) for k in range(WIDTH)]
    return found


def naive_adagrad(see: Watching, given: Gradient, step: int) -> None:
    param, sums = see("param"), see("sum")
    for row, k, g in summed(given):
        sums[row, k] += g * g
    for row, k, g in summed(given):
        param[row, k] -= RATE * g / (np.sqrt(sums[row, k]) + np.float32(1e-10))


def naive_row_adagrad(see: Watching, given: Gradient, step: int) -> None:
    param, sums = see("param"), see("row sum")
    for row, _, g in summed(given):
        sums[row] += g * g / WIDTH
    for row, k, g in summed(given):
        param[row, k] -= RATE * g / (np.sqrt(sums[row]) + np.float32(1e-10))


def naive_lazy_adam(see: Watching, given: Gradient, step: int) -> None:
    """Reads each word once, and does not ask whether the two belong together."""
    param, means, squares = see("param"), see("mean"), see("square")
    for row, k, g in summed(given):
        m, v = means[row, k], squares[row, k]
        m += (g - m) * np.float32(1 - BETAS[0])
        v += (g * g - v) * np.float32(1 - BETAS[1])
        means[row, k], squares[row, k] = m, v
        param[row, k] -= RATE * np.float32(corrected(step)) * m / (np.sqrt(v) + np.float32(1e-8))


def naive_ftrl(see: Watching, given: Gradient, step: int) -> None:
    """The paper's: a weight is computed from z, without a look at it."""
    param, sums, z = see("param"), see("sum"), see("z")
    for row, k, g in summed(given):
        sums[row, k] += g * g
    for row, k, g in summed(given):
        z[row, k] += g - param[row, k] * g * g / (2 * RATE * np.sqrt(sums[row, k]))
        param[row, k] = RATE * (np.sign(z[row, k]) * L1 - z[row, k]) / np.sqrt(sums[row, k])


@dataclass(frozen=True)
class Case:
    """`bound`: the largest update of a number, in units of the rate, from any state that one worker can reach."""

    rule: Callable[[Watching, Gradient, int], None]
    naive: Callable[[Watching, Gradient, int], None]
    state: dict[str, tuple[int, ...]]
    bound: float


CASES = {
    "Adagrad": Case(adagrad, naive_adagrad, {"sum": (SIZE, WIDTH)}, 1),
    "RowWiseAdagrad": Case(row_adagrad, naive_row_adagrad, {"row sum": (SIZE,)}, math.sqrt(WIDTH)),
    "SparseAdam": Case(
        lazy_adam,
        naive_lazy_adam,
        {"mean": (SIZE, WIDTH), "square": (SIZE, WIDTH)},
        max(corrected(step) for step in range(1, 20_000)) / math.sqrt(LEAST),
    ),
    "FTRL": Case(ftrl, naive_ftrl, {"sum": (SIZE, WIDTH), "z": (SIZE, WIDTH)}, 1),
}


def worst(rule: Callable[[Watching, Gradient, int], None], state: dict[str, tuple[int, ...]]) -> float:
    """The largest update, in units of the rate, over every moment at which a write of the other worker can come, and
    every choice of the arrays it writes."""
    choices = [[key] for key in state] + ([list(state)] if len(state) > 1 else [])
    largest = 0.0
    for keys in choices:
        at = 0
        while True:
            change, moments = run(rule, state, keys, at)
            largest = max(largest, change)
            at += 1
            if at >= moments:
                break
    return largest


def run(
    rule: Callable[[Watching, Gradient, int], None], state: dict[str, tuple[int, ...]], keys: list[str], at: int
) -> tuple[float, int]:
    memory = Memory({"param": np.ones((SIZE, WIDTH), np.float32)})
    memory.arrays |= {key: np.zeros(shape, np.float32) for key, shape in state.items()}
    old: dict[str, np.ndarray] = {}
    largest, moments = 0.0, 0
    for number, size in enumerate(GRADIENTS):
        if number == SEEN:
            old = {key: memory.arrays[key].copy() for key in keys}
        before = memory.arrays["param"].copy()
        memory.begin(at if number == HIT else -1, old)
        rule(lambda key: Watched(memory, key), gradient(size), number + 1)
        moments = memory.moments if number == HIT else moments
        if number >= HIT:
            change = float(np.abs(memory.arrays["param"] - before).max() / RATE)
            largest = max(largest, math.inf if math.isnan(change) else change)
    return largest, moments


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_lost_write_makes_no_update_larger_than_gradients_can(case: Case) -> None:
    assert worst(case.rule, case.state) <= case.bound * 1.001


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_same_lost_write_makes_the_naive_rule_jump(case: Case) -> None:
    """Otherwise the test above shows nothing."""
    assert worst(case.naive, case.state) > 10 * case.bound


@pytest.mark.parametrize(("case", "words"), [("Adagrad", 4), ("RowWiseAdagrad", 2), ("SparseAdam", 8), ("FTRL", 8)])
def test_every_accumulator_is_read_once_and_written_once(case: str, words: int) -> None:
    """Two rows of two numbers; the parameter's own words are read and written once, too, RowWiseAdagrad's as well."""
    chosen = CASES[case]
    _, moments = run(chosen.rule, chosen.state, list(chosen.state), -1)
    assert moments == 2 * words + 2 * 2 * WIDTH


def test_the_bound_of_lazy_adam_does_not_bind_with_one_worker() -> None:
    """Gradients that grow by b2 / b1 bring the ratio of v to m^2 down to its bound: the worst of all sequences."""
    beta1, beta2 = BETAS
    ours, plain = (np.ones((1, 1), np.float32) for _ in range(2))
    state, others = (([np.zeros((1, 1), np.float32) for _ in range(2)]) for _ in range(2))
    links, one = np.zeros((4, 8), np.int32), np.zeros(1, np.int64)
    count = rows.linked(one, 1, links)
    for k in range(400):
        values = np.full((1, 1), (beta2 / beta1) ** -(400 - k), np.float32)
        for param, (mean, square), least in ((ours, state, LEAST), (plain, others, 0.0)):
            scalars = (RATE, 1e-8, 1 - beta1, 1 - beta2, least, FLOOR)
            total = np.zeros(1, np.float32)
            rows.lazy_adam(
                param, mean, square, one, values, np.float32(1), links, count, total, *map(np.float32, scalars)
            )
        assert ours == plain
    mean, square = others
    assert square[0, 0] < LEAST * 1.01 * mean[0, 0] ** 2  # it was the worst


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_compiled_rule_is_the_python_one_that_was_raced(case: Case) -> None:
    seen, compiled = ({key: np.full(shape, 0.01, np.float32) for key, shape in case.state.items()} for _ in range(2))
    for arrays in (seen, compiled):
        arrays["param"] = np.ones((SIZE, WIDTH), np.float32)
    memory = Memory(seen)
    given = gradient(0.5)
    case.rule(lambda key: Watched(memory, key), given, 1)
    found = [compiled[key] for key in ("param", *case.state)]
    if case.rule is lazy_adam:
        scalars = (RATE * corrected(1), 1e-8, 1 - BETAS[0], 1 - BETAS[1], LEAST, FLOOR)
        rows.lazy_adam(*found, *given, *map(np.float32, scalars))
    elif case.rule is ftrl:
        rows.ftrl(*found, *given, RATE, np.float32(1e-10), L1)
    elif case.rule is adagrad:
        rows.adagrad(*found, *given, RATE, np.float32(1e-10))
    else:
        rows.row_adagrad(*found, *given, RATE, np.float32(1e-10), np.float32(0))
    for key, array in seen.items():
        torch.testing.assert_close(torch.from_numpy(array), torch.from_numpy(compiled[key]))


def test_ftrls_z_is_at_most_l1_whatever_was_added_up() -> None:
    """Else a weight that is 0 would jump without a gradient."""
    param, sums, z = (np.full((SIZE, WIDTH), value, np.float32) for value in (0.0, 0.01, 5.0))
    rows.ftrl(param, sums, z, *gradient(0.0), RATE, np.float32(1.0), L1)
    assert not param.any()
    np.testing.assert_array_equal(z[1:], L1)
