"""Metrics at 10 of all items for all users: ours, as two workers compute them, over blocks of numpy's product and
argpartition, with as many BLAS threads as numpy likes. Both are the same numbers, which is checked."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import sparse_figures as asked
from benchmarks.baselines.race import Line, race
from benchmarks.bench import in_turn, say
from benchmarks.row import Row
from benchmarks.sparse_data import Parts
from benchmarks.sparse_suite import Suite

FACTORS, K, WORKERS, WINDOW_S = 64, 10, 2, 1.0
NAMES = tuple(f"{kind}@{K}" for kind in ("precision", "recall", "ndcg", "map", "mrr"))
BLOCK_SCORES = 1 << 22  # of numpy's blocks, 16 MiB: the fastest of several powers of two


@dataclass(frozen=True, slots=True)
class Data:
    """Random vectors, and for each user some known and held-out items, sorted by user and item."""

    users: np.ndarray
    items: np.ndarray
    offsets: np.ndarray
    known: dict[str, np.ndarray]
    held: dict[str, np.ndarray]

    @classmethod
    def drawn(cls, users: int, items: int) -> "Data":
        random = np.random.default_rng(1)
        vectors = (random.standard_normal(shape, np.float32) for shape in ((users, FACTORS), (items, FACTORS), items))
        known, held = (
            np.unique(np.repeat(np.arange(users), many) * items + random.integers(0, items, users * many))
            for many in ((50, 5) if items < 1000 else (100, 10))
        )
        held = np.setdiff1d(held, known, assume_unique=True)
        return cls(*vectors, *(_rated(pairs, items) for pairs in (known, held)))


def _rated(pairs: np.ndarray, items: int) -> dict[str, np.ndarray]:
    user, item = (part.astype(np.int32) for part in np.divmod(pairs, items))
    return {"user": user, "item": item, "rating": np.ones(len(pairs), np.float32)}


def ranking(suite: Suite) -> list[Row]:
    """About a minute."""
    rows = []
    for (users, items), figure in asked.RANKING_OVER_NUMPY.items():
        shape = (max(WORKERS, round(users * suite.effort.share)), items)
        data = Data.drawn(*shape)
        found: dict[str, list[float]] = {}
        ours, theirs = in_turn(suite.effort.runs, partial(_ours, shape, found), partial(_numpys, data, found))
        np.testing.assert_allclose(found["ours"], found["numpy"], rtol=1e-3)
        note = f"ours {statistics.median(ours):.4f} s, 2 processes; baseline: numpy, seconds"
        say(f"ranking {users:,} x {items:,}: {note} {statistics.median(theirs):.4f}")
        rows.append(figure.row([a / b for a, b in zip(ours, theirs, strict=True)], statistics.median(theirs), note))
    return rows


def _ours(shape: tuple[int, int], found: dict[str, list[float]]) -> float:
    """Return the seconds of the slower of the workers, each of which has its share of the users."""
    answers = race(_work, [(shape, worker) for worker in range(WORKERS)])
    sums = np.sum([words for _, words in answers], 0).reshape(-1, 2)
    found["ours"] = (sums[:, 0] / sums[:, 1]).tolist()
    return max(spent for spent, _ in answers)


def _work(line: Line, shape: tuple[int, int], worker: int) -> None:
    from hogwild.metrics.ranking import Ranking

    data = Data.drawn(*shape)
    tables = (data.users, data.items, data.offsets)
    made = Ranking(NAMES, lambda: tables, data.known, data.held, -1.0, np.zeros((0, shape[1]), np.uint8))
    samples = len(data.held["user"])
    first, stop = (samples * place // WORKERS for place in (worker, worker + 1))

    def once() -> Any:
        return made.sums(first, stop, lambda: None)

    once()
    line.ready()
    line.answer(_timed(once))


def _numpys(data: Data, found: dict[str, list[float]]) -> float:
    spent, found["numpy"] = _timed(lambda: by_argpartition(data))
    return spent


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds of one call, the answer), of as many calls as fill a window."""
    calls, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < WINDOW_S or not calls:
        answer = run()
        calls += 1
    return spent / calls, answer


def by_argpartition(data: Data) -> list[float]:
    """Return the metrics as one would write them with numpy."""
    (users, items), held_many = (len(data.users), len(data.items)), np.bincount(data.held["user"])
    held_many = np.append(held_many, np.zeros(users - len(held_many), np.int64))
    step = max(1, min(users, BLOCK_SCORES // items))
    is_held, scores = np.zeros((step, items), np.bool_), np.empty((step, items), np.float32)
    known_at, held_at = (np.searchsorted(part["user"], np.arange(users + 1)) for part in (data.known, data.held))
    hits = np.empty((users, K), np.bool_)
    for first in range(0, users, step):
        size = min(step, users - first)
        block = np.matmul(data.users[first : first + size], data.items.T, out=scores[:size])
        block += data.offsets
        known, held = (slice(at[first], at[first + size]) for at in (known_at, held_at))
        block[data.known["user"][known] - first, data.known["item"][known]] = -np.inf
        places = data.held["user"][held] - first, data.held["item"][held]
        is_held[places] = True
        best = np.argpartition(block, items - K, axis=1)[:, items - K :]
        order = np.argsort(-np.take_along_axis(block, best, 1), axis=1)
        hits[first : first + size] = np.take_along_axis(is_held[:size], np.take_along_axis(best, order, 1), 1)
        is_held[places] = False
    hits, many = hits[held_many > 0], held_many[held_many > 0]
    ranks = np.arange(1, K + 1)
    gains, most = 1 / np.log2(1 + ranks), np.minimum(many, K)
    precision = np.cumsum(hits, 1) / ranks
    values = (
        hits.mean(1),
        hits.sum(1) / many,
        hits @ gains / np.cumsum(gains)[most - 1],
        (precision * hits).sum(1) / most,
        hits.any(1) / (1 + hits.argmax(1)),
    )
    return [float(one.mean()) for one in values]


def ndcg(users: np.ndarray, items: np.ndarray, offsets: np.ndarray, parts: Parts) -> float:
    """Return NDCG@10 of the scores users (U, k) @ items (I, k).T + offsets (I,), over `sparse_data.liked`."""
    known, held = (dict(np.load(path)) for path in (parts.train, parts.test))
    users, items, offsets = (np.ascontiguousarray(table, np.float32) for table in (users, items, offsets))
    return by_argpartition(Data(users, items, offsets, known, held))[NAMES.index(f"ndcg@{K}")]
