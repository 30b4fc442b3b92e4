"""When Hogwild is the wrong tool: dense networks from small to large, 2 workers against DDP (gloo, 2 processes) and
against one process with 2 threads. Needs the MNIST files (`HOGWILD_DATA`); about 5 minutes.

All see equally many samples, warm-up included, from the same initial values, at the same rate and batch size; DDP
averages two whole batches, so it makes half the updates. Ours is measured with both exchanges; delta counts only where
its loss is as good as direct's. Within a figure everybody takes turns. docs/when-it-helps.md reads off these rows at
which sizes little is gained over threads of one process."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks import commands, results
from benchmarks.baselines.dense_rivals import Answer, Sized, ddp, one_process
from benchmarks.baselines.networks import Settings, Shared
from benchmarks.bench import in_turn, median, say
from benchmarks.row import Row
from hogwild.data import Mnist

SUITE = "wrong-tool"
BATCH = 64
WARM_UP = 10


@dataclass(frozen=True, slots=True)
class Size:
    """An MLP over MNIST, and the updates of one process that are a few seconds of it."""

    name: str
    parameters: int
    hidden: tuple[int, ...]
    updates: int

    @property
    def network(self) -> Sized:
        return Sized("MLP", (), self.hidden)

    @property
    def overrides(self) -> tuple[str, ...]:
        hidden = ", ".join(map(str, self.hidden))
        return (
            "model.class_path=hogwild.models.Mlp",
            f"model.init_args={{features: 784, hidden: [{hidden}], classes: 10}}",
        )


SIZES = (
    Size("0.1 M", 101_770, (128,), 3000),
    Size("1 M", 1_022_490, (784, 512), 450),
    Size("10 M", 10_068_810, (2800, 2800), 60),
)
QUICK_UPDATES = 20
AS_GOOD = 1.05  # times the loss of direct at equal samples
DIRECT, DELTA, DDP, ONE = "direct", "delta", "DDP", "one process, 2 threads"


@dataclass
class Rivals:
    """`updates`: of one of two processes, instead of each size's own."""

    runs: int = 3
    updates: int | None = None
    train: Shared = field(default_factory=lambda: Shared.of(*Mnist(split="train").tensors))
    test: Shared = field(default_factory=lambda: Shared.of(*Mnist(split="test").tensors))

    def measure(self, size: Size) -> list[Row]:
        settings = Settings(updates=self.updates or size.updates, warm_up=WARM_UP, batch_size=BATCH)
        alone = Settings(updates=2 * settings.updates + WARM_UP, warm_up=WARM_UP, batch_size=BATCH)
        ways: dict[str, Callable[[], Answer]] = {
            DIRECT: partial(self._ours, size, settings, DIRECT),
            DELTA: partial(self._ours, size, settings, DELTA),
            DDP: partial(ddp, size.network, self.train, self.test, 2, settings),
            ONE: partial(one_process, size.network, self.train, self.test, 2, alone),
        }
        found = {name: [] for name in ways}  # type: dict[str, list[Answer]]
        in_turn(self.runs, *(partial(_kept, size, name, way, found[name]) for name, way in ways.items()))
        return _rows(size, found)

    def _ours(self, size: Size, settings: Settings, exchange: str) -> Answer:
        updates = 2 * (settings.updates + settings.warm_up)
        samples = len(self.train.y) - len(self.train.y) % BATCH
        _, summary = commands.job(
            "train", commands.MNIST, "--procs", "2", *size.overrides, "train.threads=1", "data.drop_last=true",
            f"train.epochs={1 + updates * BATCH // samples}", f"train.max_updates={updates}",
            f"train.exchange={exchange}", "evaluate.every_epochs=null",
        )  # fmt: skip
        return Answer(float(summary["samples_per_s"]), float(summary["metrics"]["loss"]))


def _kept(size: Size, name: str, way: Callable[[], Answer], into: list[Answer]) -> float:
    answer = way()
    into.append(answer)
    say(f"{size.name}, {name}: {answer.samples_per_s:,.0f} samples/s, test loss {answer.loss:.4f}")
    return answer.samples_per_s


def _rows(size: Size, found: dict[str, list[Answer]]) -> list[Row]:
    speeds = {name: [answer.samples_per_s for answer in answers] for name, answers in found.items()}
    losses = {name: median([answer.loss for answer in answers]) for name, answers in found.items()}
    fit = [name for name in (DIRECT, DELTA) if losses[name] <= AS_GOOD * losses[DIRECT]]
    ours = max(fit, key=lambda name: median(speeds[name]))
    rows = []
    for rival in (DDP, ONE):
        ratios = [mine / theirs for mine, theirs in zip(speeds[ours], speeds[rival], strict=True)]
        note = f"ours: {ours}, {median(speeds[ours]):,.0f} samples/s; baseline: {rival}, samples/s"
        name = f"MLP of {size.name} parameters: samples/s of 2 workers over {rival}"
        rows.append(Row(name, "x", None, ratios, median(speeds[rival]), note))
    for name, answers in found.items():
        title = f"MLP of {size.name} parameters: test loss at equal samples, {name}"
        rows.append(Row(title, "", None, [answer.loss for answer in answers], smaller_is_better=True))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Dense networks from small to large: ours, DDP, one process.")
    names = [size.name for size in SIZES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="SIZE", help=f"prints only: {', '.join(names)}")
    parser.add_argument("--runs", type=int, default=3, help="of each; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="one run of a few updates; proves that it runs")
    asked = parser.parse_args(argv)
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = results.machine() if asked.quick or asked.only else results.begin()
    rivals = Rivals(1, QUICK_UPDATES) if asked.quick else Rivals(asked.runs)
    rows = [row for size in SIZES if size.name in (asked.only or names) for row in rivals.measure(size)]
    if asked.quick or asked.only:
        print(results.table(rows))
    else:
        results.write(SUITE, rows, described)


if __name__ == "__main__":
    main()
