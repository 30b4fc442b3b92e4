"""A user's model with sparse embeddings, whose gradients come from autograd: what compiled row optimizers make of it,
in updates a second over stock torch, with the ceiling beside: what an update that costs nothing would leave."""

import statistics
from typing import Any

from benchmarks import sparse_figures as asked
from benchmarks.baselines.race import Line, race
from benchmarks.bench import say
from benchmarks.row import Row
from benchmarks.sparse_suite import Suite

BLOCKS, FEW_BLOCKS = 15, 2


def embedding(suite: Suite) -> list[Row]:
    """About a minute. Every run is a process of its own, with one thread."""
    rows: list[Row] = []
    blocks = BLOCKS if suite.effort.share == 1.0 else FEW_BLOCKS
    for rule, figure in asked.EMBEDDING.items():
        runs: list[dict[str, Any]] = [race(_compare, [(rule, blocks)])[0] for _ in range(suite.effort.runs)]
        ours, stock, ceiling = ([run[who] for run in runs] for who in ("ours", "stock", "ceiling"))
        most = [a / b for a, b in zip(ceiling, stock, strict=True)]
        note = f"ours {statistics.median(ours):,.0f} updates/s ({runs[0]['path']}); baseline: stock torch, updates/s"
        say(f"sparse embedding, {rule}: {note}")
        rows.append(figure.row([run["times"] for run in runs], statistics.median(stock), note))
        rows.append(Row(f"{figure.name}: the ceiling", "x", None, most, note="forward and backward, nothing applied"))
    return rows


def _compare(line: Line, rule: str, blocks: int) -> None:
    from benchmarks.baselines.sparse_embedding import Size, compare

    line.ready()
    line.answer(compare(rule, Size(), blocks=blocks))
