"""The distance of a kernel from the limit of the machine's memory: bytes that a sample must move, by a formula that is
said, times the samples a second of one worker, over the bandwidth measured here, in the same minutes.

Two sizes: 0.5 MB, which a core's second-level cache holds, and 512 MB, which none does. Three ways: `triad`, whole
arrays one after the other (McCalpin, STREAM, 1995); `gather`, rows of ROW_BYTES read at random places; `scatter`, such
rows read, changed and written back. Parameters that are read and written are counted twice; nothing is counted that a
kernel keeps in a register or would read again from its first-level cache: a fraction above 1 of the larger size means
caches at work, not a wrong sum."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from benchmarks.commands import ROOT
from benchmarks.row import Row
from benchmarks.sparse_curves import NAMES, ours, settings_of
from benchmarks.sparse_data import data_folder
from benchmarks.sparse_suite import Suite
from hogwild.config.load import load_job
from hogwild.job.build import build
from hogwild.job.parts import Parts
from hogwild.planning.device_placement import planned

SIZES = {"L2": 512 * 1024, "memory": 512 * 1024 * 1024}
ROW = 32  # float32: a row of a factorisation with k = 32, two cache lines
ROW_BYTES = 4 * ROW
PLACES = 8  # rows that are gathered go in turn into so many, which stay in the first-level cache
LEAST_S = 0.25  # of one measurement
TRIES = 5


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second of one core."""

    triad: float
    gather: float
    scatter: float

    def __str__(self) -> str:
        ways = ("triad", self.triad), ("gather", self.gather), ("scatter", self.scatter)
        return ", ".join(f"{name} {value / 1e9:.1f}" for name, value in ways) + " GB/s"


@numba.njit(nogil=True, fastmath=True)
def _triad(a, b, c, factor):  # type: ignore[no-untyped-def]
    for k in range(len(a)):
        a[k] = b[k] + factor * c[k]


@numba.njit(nogil=True, fastmath=True)
def _gather(table, rows, into):  # type: ignore[no-untyped-def]
    for n in range(len(rows)):
        row, place = rows[n], n & (PLACES - 1)
        for k in range(ROW):
            into[place, k] = table[row, k]


@numba.njit(nogil=True, fastmath=True)
def _scatter(table, rows, factor):  # type: ignore[no-untyped-def]
    for n in range(len(rows)):
        row = rows[n]
        for k in range(ROW):
            table[row, k] *= factor


def measured(nbytes: int) -> Bandwidth:
    """Measure the bandwidth over arrays that take so many bytes together: the best of TRIES, after one that compiles
    and touches all."""
    third = nbytes // 12
    a, b, c = (np.ones(third, np.float32) for _ in range(3))
    table = np.ones((nbytes // ROW_BYTES, ROW), np.float32)
    # Not longer than the table: the numbers themselves are read as well, and counted.
    rows = np.random.default_rng(1).integers(0, len(table), min(len(table), 1 << 20)).astype(np.int32)
    into = np.empty((PLACES, ROW), np.float32)
    factor = np.float32(1.0)
    return Bandwidth(
        _rate(lambda: _triad(a, b, c, factor), 12 * third),
        _rate(lambda: _gather(table, rows, into), (ROW_BYTES + 4) * len(rows)),
        _rate(lambda: _scatter(table, rows, factor), (2 * ROW_BYTES + 4) * len(rows)),
    )


def _rate(run: Callable[[], object], nbytes: int) -> float:
    run()
    best = 0.0
    for _ in range(TRIES):
        rounds, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < LEAST_S / TRIES or not rounds:
            run()
            rounds += 1
        best = max(best, rounds * nbytes / spent)
    return best


# ---- bytes per sample ------------------------------------------------------------------------------------------------

FLOAT = 4  # bytes of a parameter


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cost of a kernel: bytes per sample, and the formula that they come from. `flops`: additions and
    multiplications, where they are what it spends its time on."""

    nbytes: float
    formula: str
    flops: float = 0.0


def state_words(optimizer: Any, row: int) -> float:
    """Words that the rule keeps beside a row of `row` words: as many (Adagrad), one (row-wise), or none (SGD)."""
    name = type(optimizer).__name__
    return {"Adagrad": float(row), "RowWiseAdagrad": 1.0}.get(name, 0.0)


def linear(arrays: Mapping[str, np.ndarray], model: Any, optimizer: Any) -> Traffic:
    """A row of sparse features: every non-zero's number and value, its weight and state read and written."""
    nonzeros = len(arrays["indices"]) / max(1, len(arrays["target"]))
    weights = 1.0 + state_words(optimizer, 1)
    row = 8 + 8 + FLOAT  # its position; its beginning and target
    return Traffic(
        nonzeros * (8 + 2 * FLOAT * weights) + row,
        f"nnz (4 + 4 + 8 w) + {row}; nnz = {nonzeros:.1f} a row, w = {weights:.0f} words of weight and state",
    )


def factorisation(arrays: Mapping[str, np.ndarray], model: Any, optimizer: Any) -> Traffic:
    """A rating: a row of each side and its bias, with their state, read and written."""
    factors = int(model.user.weight.shape[1])
    words = factors + state_words(optimizer, factors)
    if model.user_bias is not None:
        words += 1 + state_words(optimizer, 1)
    data = 8 + 12  # its position; user, item and rating
    return Traffic(2 * 2 * FLOAT * words + data, f"2 sides x 8 words + {data}; words = {words:.0f} with bias and state")


def skip_gram(arrays: Mapping[str, np.ndarray], model: Any, optimizer: Any) -> Traffic:
    """A word of the text. Of the places, sub-sampling keeps `kept`; each has `pairs` neighbours on average, whose rows
    are read and written, as are those of the word itself and its negatives, once for all its pairs where they are
    shared."""
    counts = arrays["counts"].astype(np.float64)
    share = counts / counts.sum()
    threshold = float(model.sample)
    ratio = threshold / np.maximum(share, 1e-12)
    kept = float((share * np.minimum(1.0, np.sqrt(ratio) + ratio)).sum()) if threshold else 1.0
    pairs = int(model.window) + 1.0  # both sides, half of the window on average, and one half more
    targets = (1 + int(model.negatives)) * (1.0 if model.shared else pairs)
    dim = int(model.input.embedding_dim)
    row = dim + state_words(optimizer, dim)
    return Traffic(
        kept * (pairs + targets) * 2 * FLOAT * row + FLOAT,
        f"kept (pairs + targets) 8 row + 4; kept = {kept:.2f}, pairs = {pairs:.0f}, "
        f"targets = {targets:.0f}, row = {row:.0f}",
    )


def knowledge_graph(arrays: Mapping[str, np.ndarray], model: Any, optimizer: Any) -> Traffic:
    """A triple in a group of GROUP that shares its negatives: the rows of its head, its tail and its relation's two
    sides, and its part of those of the negatives, each read once and written once for the group; at most, for a row
    that the group names twice is not read twice. Three products of its two questions with the negatives."""
    from hogwild.models.knowledge_graph import GROUP

    dim, negatives = int(model.entities.weight.shape[1]), int(model.negatives)
    rows = 4 + negatives / GROUP
    row = dim + state_words(optimizer, dim)
    data = 8 + 12  # its position; the triple
    formula = f"(4 + K / {GROUP}) 8 row + {data}; K = {negatives}, row = {row:.0f}"
    formula += "; 2 questions x 3 products x 2 K dim operations"
    return Traffic(rows * 2 * FLOAT * row + data, formula, flops=12.0 * negatives * dim)


TRAFFIC: Mapping[str, Callable[[Mapping[str, np.ndarray], Any, Any], Traffic]] = {
    "SparseLinear": linear,
    "MatrixFactorization": factorisation,
    "SkipGram": skip_gram,
    "ComplEx": knowledge_graph,
}


# ---- the section -----------------------------------------------------------------------------------------------------


def rows(suite: Suite) -> list[Row]:
    """About 2 minutes."""
    bandwidths = {name: measured(nbytes) for name, nbytes in SIZES.items()}
    found = [
        Row(
            f"bandwidth of one core, {name} ({SIZES[name] >> 10:,} KB)",
            "GB/s",
            None,
            [width.scatter / 1e9],
            note=str(width),
        )
        for name, width in bandwidths.items()
    ]
    for config, name in NAMES.items():
        settings = settings_of(suite, config)
        parts = parts_of(config, settings)
        assert parts.train.packed is not None
        traffic = TRAFFIC[type(parts.model).__name__](parts.train.packed.arrays(), parts.model, parts.optimizer)
        note = described(parts)
        del parts  # the data, which the jobs have for themselves
        speeds = [ours(suite, config, settings, 1) for _ in range(suite.effort.runs)]
        found += fractions(name, traffic, speeds, bandwidths, note)
    return found


def parts_of(config: str, settings: Sequence[str]) -> Parts:
    """Return what a job of `configs/CONFIG.yaml` trains. Raises ValueError where autograd would."""
    job = load_job(ROOT / "configs" / f"{config}.yaml", (*settings, "data.val=null"))
    parts = build(planned(job), data_folder())
    if parts.choice.update is None or parts.train.packed is None:
        raise ValueError(f"{config}: {parts.choice.why}")
    return parts


def described(parts: Parts) -> str:
    """Return the model, the rule, the data and the size of the parameters in a few words."""
    sizes: dict[str, Any] = dict(parts.train.packed.spec.sizes) if parts.train.packed else {}
    kinds = type(parts.model).__name__, type(parts.optimizer).__name__, *(f"{n:,} {k}" for k, n in sizes.items())
    held = sum(parameter.nbytes for parameter in parts.model.parameters())
    return f"{', '.join(kinds)}; {held / 1e6:.1f} MB of parameters"


def fractions(
    name: str, traffic: Traffic, per_s: Sequence[float], bandwidths: Mapping[str, Bandwidth], note: str
) -> list[Row]:
    """The bytes, and what they are of each bandwidth."""
    moved = [speed * traffic.nbytes for speed in per_s]
    found = [
        Row(
            f"roofline, {name}: bytes moved per sample",
            "bytes",
            None,
            [traffic.nbytes],
            note=f"{traffic.formula}; {note}",
        ),
        Row(f"roofline, {name}: moved by one worker", "GB/s", None, [each / 1e9 for each in moved]),
    ]
    if traffic.flops:
        found.append(
            Row(
                f"roofline, {name}: arithmetic of one worker", "GFLOP/s", None, [n * traffic.flops / 1e9 for n in per_s]
            )
        )
    for size, width in bandwidths.items():
        words = f"baseline: rows of {ROW_BYTES} bytes read, changed and written at random places, bytes/s"
        figure = f"roofline, {name}: fraction of the {size} bandwidth"
        found.append(Row(figure, "", None, [each / width.scatter for each in moved], width.scatter, words))
    return found
