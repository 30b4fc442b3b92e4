"""Tables whose rows are asked for by id (`hogwild.nn.NamedEmbedding`): `make bench-named`. Run nothing else meanwhile.

python -m benchmarks.named                      everything (half an hour on two cores)
python -m benchmarks.named --only lookup,growth some; the other rows stay as they were

lookup   forward and backward of known ids, beside nn.Embedding(sparse=True), in turn, one thread
stream   a file of clicks through a factorisation machine: the second worker, Vowpal Wabbit, hashed rows
growth   a job of two workers whose table grows: how long none of them commits anything
memory   ten times as many ids as rows, most of which expire
kills    of processes that claim, grow and expire, at any moment"""

import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from benchmarks import commands, sparse_peers
from benchmarks.baselines.race import Line, race
from benchmarks.bench import in_turn, median, say
from benchmarks.commands import OFTEN, ROOT
from benchmarks.figures import Figure
from benchmarks.row import Row
from benchmarks.sections import main
from benchmarks.watched import running
from hogwild.chaos.inject import STATUS, events_of
from hogwild.nn import NamedEmbedding
from hogwild.storage.run_files import read_json
from tests.helpers.row_claims import faults_of, forked, killed, rows_by_id, writing

SUITE = "named"
LOOKUP = {
    count: Figure(
        f"{count:,} known ids of a million, dim 32, forward and backward: time over nn.Embedding", 1.25, "x", True
    )
    for count in (64, 1_024, 16_384)
}
SECOND = Figure("stream of clicks, 20 % new ids in 100,000 rows: 2 workers over 1", 1.8)
OVER_VOWPAL = Figure("stream of clicks, factorisation machine, 2 workers: rows/s over Vowpal Wabbit's, 22 bits", 3.0)
LOSS = Figure("the same: progressive log loss, ours less Vowpal Wabbit's", 0.0, "", True)
BY_NAME = Figure(
    "the same, 1 worker: log loss that ids save over hashing into as many rows, less what 4 times the bits save Vowpal "
    "Wabbit", 0.0, "",
)  # fmt: skip
GROWTH = Figure(
    "growth from 1 to 2 million rows, dim 32, Adagrad, 2 workers: the longest time without a commit", 200.0, "ms", True
)
MEMORY = Figure("100 million ids, 10 million rows with expiry: most memory over the plan", 1.05, "x", True)
LATER = Figure(
    "100 million ids, 10 million rows with expiry: memory at the end over that after a fifth", 1.01, "x", True
)
KILLS = Figure("seeded kills while rows are claimed, added and given back: kills", 100_000, "")
BROKEN = {
    what: Figure(f"seeded kills while rows are claimed, added and given back: rows {what}", 0, "", True)
    for what in ("lost", "doubled", "mixed")
}


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount to measure. `rows` of clicks; `ids` that are offered to `capacity` rows; `kills`."""

    runs: int = 3
    rounds: int = 200
    rows: int = 2_000_000
    ids: int = 100_000_000
    capacity: int = 10_000_000
    kills: int = 100_000
    growths: int = 3


FULL = Effort()
QUICK = Effort(1, 5, 20_000, 400_000, 40_000, 30, 0)


# ---- lookups -------------------------------------------------------------------------------------------------------


def lookup(effort: Effort) -> list[Row]:
    """A minute."""
    rows = []
    for count, figure in LOOKUP.items():
        runs = [race(_lookups, [(count, effort.rounds)])[0] for _ in range(effort.runs)]
        ours, theirs = ([run[who] for run in runs] for who in (0, 1))
        note = f"ours {1e6 * median(ours):,.0f} us; baseline: nn.Embedding(sparse=True), us"
        rows.append(figure.row([a / b for a, b in zip(ours, theirs, strict=True)], 1e6 * median(theirs), note))
    return rows


def _lookups(line: Line, count: int, rounds: int) -> None:
    """Answer with the median seconds of a lookup by id, and of one by place."""
    known = 1_000_000
    torch.manual_seed(1)
    by_id, by_place = NamedEmbedding(32, int(known / 0.7)), nn.Embedding(known, 32, sparse=True)
    by_id.rows_of(torch.arange(known), claim=True)
    batches, gradient = [torch.randint(known, (count,)) for _ in range(rounds)], torch.ones(count, 32)
    line.ready()
    took: list[list[float]] = [[], []]
    for number, ids in enumerate(batches * max(1, 16_384 // count // 4)):
        for which in (0, 1) if number % 2 else (1, 0):
            table = (by_id, by_place)[which]
            began = time.perf_counter()
            table(ids).backward(gradient)
            took[which].append(time.perf_counter() - began)
            table.weight.grad = None
    line.answer([statistics.median(one) for one in took])


# ---- a stream of clicks --------------------------------------------------------------------------------------------

BLOCK, ACTIVE = 100_000, {"user": 20_000, "ad": 2_000, "site": 200}  # rows; ids that are seen in a block of them
NEW_SHARE = 0.2  # of the ids of a block were in none before
FACTORS, BITS, MORE_BITS = 4, 17, 19


def write_clicks(file: Path, rows: int, seed: int = 1) -> int:
    """Write a table of clicks whose ids come and go: in each block NEW_SHARE of them are new, and as many have been
    seen for the last time. A click depends on what a user, an advertisement and a site are like. Returns how many ids
    there are."""
    draws = np.random.default_rng(seed)
    blocks = math.ceil(rows / BLOCK)
    ids = {name: count + int(NEW_SHARE * count) * (blocks - 1) for name, count in ACTIVE.items()}
    bias = {name: draws.normal(0, 0.7, count) for name, count in ids.items()}
    taste = {name: draws.normal(0, 0.8, (count, FACTORS)) for name, count in ids.items()}
    with open(file, "w") as table:
        table.write("click,user,ad,site\n")
        for block in range(blocks):
            count = min(BLOCK, rows - block * BLOCK)
            first = {name: block * int(NEW_SHARE * active) for name, active in ACTIVE.items()}
            # Squares: some of them are seen far more often than others, and not the oldest ones.
            picked = {
                name: first[name] + draws.permutation(active)[(active * draws.random(count) ** 2).astype(np.int64)]
                for name, active in ACTIVE.items()
            }
            user, ad, site = ((taste[name][which], bias[name][which]) for name, which in picked.items())
            logit = user[1] + ad[1] + site[1] + (user[0] * ad[0]).sum(1) + 0.5 * (ad[0] * site[0]).sum(1) - 1
            clicked = draws.random(count) < 1 / (1 + np.exp(-logit))
            lines = zip(clicked.astype(int).tolist(), *(which.tolist() for which in picked.values()), strict=True)
            table.writelines(f"{click},u{user},a{ad},s{site}\n" for click, user, ad, site in lines)
    return sum(ids.values())


def stream(effort: Effort) -> list[Row]:
    """About 8 minutes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "clicks.csv"
        ids = write_clicks(file, effort.rows)
        say(f"{effort.rows:,} clicks, {ids:,} ids")
        return [
            *_speeds(folder, file, effort),
            *_losses(folder, file, 1 << math.ceil(math.log2(1.4 * ids)), effort),
        ]


def _clicks_job(folder: Path, file: Path, procs: int, *settings: str) -> Path:
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    given = (f"data.train.init_args.path={file}", f"train.procs={procs}", "train.threads=1", *OFTEN, *settings)
    commands.job("train", str(ROOT / "benchmarks/jobs/named_clicks.yaml"), *given, run_dir=run_dir)
    return run_dir


def _speed(folder: Path, file: Path, procs: int) -> float:
    run_dir = _clicks_job(folder, file, procs)
    return commands.settled(run_dir) or float(json.loads((run_dir / "summary.json").read_text())["samples_per_s"])


def _apart(folder: Path, file: Path) -> float:
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(lambda _: _speed(folder, file, 1), range(2)))


def _speeds(folder: Path, file: Path, effort: Effort) -> list[Row]:
    one, two, apart, vowpal = in_turn(
        effort.runs, lambda: _speed(folder, file, 1), lambda: _speed(folder, file, 2), lambda: _apart(folder, file),
        lambda: _vowpal(file, 22).per_s,
    )  # fmt: skip
    gains, limit = (
        [b / a for a, b in zip(one, two, strict=True)],
        median([b / a for a, b in zip(one, apart, strict=True)]),
    )
    note = f"two jobs that share nothing gain {limit:.2f}; baseline: one worker, rows/s"
    over = f"ours {median(two):,.0f}; baseline: Vowpal Wabbit with its interactions of {FACTORS} factors, rows/s"
    return [
        SECOND.row(gains, median(one), note),
        OVER_VOWPAL.row([a / b for a, b in zip(two, vowpal, strict=True)], median(vowpal), over),
    ]


def _vowpal(file: Path, bits: int) -> sparse_peers.Found:
    found = sparse_peers.run("vowpal_stream", threads=2, clicks=str(file), bits=bits, factors=FACTORS)
    say(f"{found.note}: {found.per_s:,.0f} rows/s, {found.quality:.5f}")
    return found


def _progressive(folder: Path, file: Path, procs: int, *settings: str) -> float:
    """The log loss of all rows before they are learnt."""
    run_dir = _clicks_job(folder, file, procs, "evaluate.progressive=true", *settings)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    before, total, count = 0, 0.0, 0
    for record in records:
        if record["kind"] == "train" and "progressive_loss" in record.get("losses", {}):
            fresh = record["samples"] - before
            total, count = total + fresh * record["losses"]["progressive_loss"], count + fresh
        before = record.get("samples", before)
    return total / count


def _losses(folder: Path, file: Path, rows: int, effort: Effort) -> list[Row]:
    """`rows`: of the hashed table."""
    args = f"{{features: {rows}, factors: {FACTORS}}}"
    model = f"model={{class_path: hogwild.models.FactorizationMachine, init_args: {args}}}"
    hashed_by = (model, f"data.train.init_args.hash={rows}")
    ours, alone, hashed = (
        [_progressive(folder, file, procs, *more, f"seed={seed}") for seed in range(1, effort.runs + 1)]
        for procs, more in ((2, ()), (1, ()), (1, hashed_by))
    )
    wide, few, many = (_vowpal(file, bits).quality for bits in (22, BITS, MORE_BITS))
    note = f"ours {median(ours):.5f}; baseline: Vowpal Wabbit, 22 bits"
    by_name = (
        f"ids {median(alone):.5f}, hashed into {rows:,} rows {median(hashed):.5f}; baseline: Vowpal Wabbit, {BITS} "
        f"bits {few:.5f} less {MORE_BITS} bits {many:.5f}"
    )
    saved = [b - a - (few - many) for a, b in zip(alone, hashed, strict=True)]
    return [LOSS.row([one - wide for one in ours], wide, note), BY_NAME.row(saved, few - many, by_name)]


# ---- growth --------------------------------------------------------------------------------------------------------


def growth(effort: Effort) -> list[Row]:
    """Two minutes."""
    gaps, ordinary = [], []
    for _ in range(effort.growths):
        gap, before = _grown()
        gaps.append(1000 * gap)
        ordinary.append(1000 * before)
    if not gaps:
        return []
    return [
        GROWTH.row(gaps, median(ordinary), "by status files every 20 ms; baseline: the same in the seconds before, ms")
    ]


def _grown() -> tuple[float, float]:
    """(seconds of the longest time without a commit around the growth, and before it)."""
    with running(str(ROOT / "benchmarks/jobs/growing.yaml"), "log.progress=false") as now:
        now.until_all_train(2)
        seen: list[tuple[float, int]] = []

        def look() -> bool:
            record = read_json(now.run_dir, STATUS)
            if record.get("updates") and (not seen or record["updates"] != seen[-1][1]):
                seen.append((float(record["time"]), int(record["updates"])))
            return any(event["event"] == "rows-grown" for _, event in events_of(now.run_dir))

        now.until("growth", look)
        (grown,) = (event for _, event in events_of(now.run_dir) if event["event"] == "rows-grown")
        until = time.time() + 3
        now.until("the seconds after it", lambda: look() and time.time() > until)
    began = grown["time"] - grown["seconds"]
    spans = [(start, end - start) for (start, _), (end, _) in pairwise(seen)]
    around = [span for start, span in spans if start >= began - 0.1]
    return max(around), max(span for start, span in spans if began - 5 < start < began - 0.2)


# ---- memory --------------------------------------------------------------------------------------------------------

AT_ONCE, DIM = 16_384, 32


def memory(effort: Effort) -> list[Row]:
    """Three minutes."""
    (found,) = race(_offered, [(effort.ids, effort.capacity)])
    plan, most, early, end = found
    note = f"{effort.ids:,} ids offered, {most / 2**20:,.0f} MB; baseline: rows, keys and clocks as planned, MB"
    return [
        MEMORY.row([most / plan], plan / 2**20, note),
        LATER.row(
            [end / early], early / 2**20, "resident memory of the process; baseline: after a fifth of the ids, MB"
        ),
    ]


def _offered(line: Line, ids: int, capacity: int) -> None:
    """Offer ids of which each is seen in two batches; answer with the bytes of the plan, and those of the process
    above what it had before: the most, after a fifth, at the end."""
    lasts = max(1, int(0.3 * capacity / AT_ONCE))
    own = psutil.Process()
    NamedEmbedding(2, 10).rows_of(torch.arange(3), claim=True)  # compiles
    before = own.memory_info().rss
    table = NamedEmbedding(DIM, capacity, expire_after=lasts)
    plan = capacity * (4 * DIM + 8 + 8)
    line.ready()
    most = early = now = 0
    for number in range(batches := ids // AT_ONCE):
        for again in (number, max(0, number - 1)):
            table.rows_of(torch.arange(again * AT_ONCE, (again + 1) * AT_ONCE), claim=True)
        if number % max(1, lasts // 8) == 0:
            table.expire()
            now = own.memory_info().rss - before
            most, early = max(most, now), early or (now if number >= batches // 5 else 0)
    line.answer((plan, most, early, now))


# ---- kills ---------------------------------------------------------------------------------------------------------

POPULATION, TABLE = 4000, {"capacity": 100, "max_capacity": 1600, "expire_after": 40}
ROUNDS_OF_A_TABLE = 100


def kills(effort: Effort) -> list[Row]:
    """About 20 minutes; one process forks the victims."""
    (found,) = race(_killed, [(effort.kills, 1)])
    count = found.pop("kills")
    note = (
        f"a table of 100 rows that grows to 1,600; ids expire after 40 lookups; {found.pop('tables'):,} tables, seed 1"
    )
    return [KILLS.row([count], note=note), *(figure.row([found[what]]) for what, figure in BROKEN.items())]


def _killed(line: Line, wanted: int, seed: int) -> None:
    line.ready()
    line.answer(dict(killing(wanted, seed)))


def killing(wanted: int, seed: int) -> Counter[str]:
    """Kill so many processes; return what was found wrong after each."""
    dice, found = np.random.default_rng(seed), Counter[str](kills=0, tables=0, lost=0, doubled=0, mixed=0)
    alive: list[int] = []
    while found["kills"] < wanted:
        torch.manual_seed(found["tables"])
        ours = NamedEmbedding(3, **TABLE).share_memory()
        ours.rows_of(torch.tensor([0]))
        found["tables"] += 1
        for number in range(ROUNDS_OF_A_TABLE):
            before = rows_by_id(ours)
            alive += [forked(partial(writing, ours, POPULATION, int(dice.integers(2**31)))) for _ in range(2)]
            if number % 3 == 0:
                alive.append(forked(ours.grow))
            goal, until = ours.lookups + int(dice.integers(0, 60)), time.monotonic() + 30
            size = ours.capacity if number % 9 == 0 and ours.capacity < ours.max_capacity else 0  # one that may grow
            while (ours.lookups < goal or ours.capacity == size) and time.monotonic() < until:
                pass
            found["kills"] += len(alive)
            killed(alive)
            found.update(faults_of(ours, POPULATION))
            after = rows_by_id(ours)
            found["lost"] += sum(after.get(key) != row for key, row in before.items())
            spent = time.monotonic() + dice.exponential(0.002)
            alive.append(forked(ours.expire))
            while time.monotonic() < spent:
                pass
            found["kills"] += 1
            killed(alive)
            found.update(faults_of(ours, POPULATION))
    return found


SECTIONS: dict[str, tuple[Callable[[Effort], list[Row]], tuple[Figure, ...]]] = {
    "lookup": (lookup, (*LOOKUP.values(),)),
    "stream": (stream, (SECOND, OVER_VOWPAL, LOSS, BY_NAME)),
    "growth": (growth, (GROWTH,)),
    "memory": (memory, (MEMORY, LATER)),
    "kills": (kills, (KILLS, *BROKEN.values())),
}


if __name__ == "__main__":
    main(SUITE, SECTIONS, (FULL, QUICK), None)
