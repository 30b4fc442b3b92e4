"""The seconds of a round of several nodes: measured on two cores, and by a formula that goes on to 1,000 nodes.

    python -m benchmarks.cluster_cost              the table of `docs/cluster.md`
    python -m benchmarks.cluster --only "seconds of a round"    measures the rows that the formula is held against

Steps of one way, after the collectives of `workers/child/communicator.py`: two ticks and the barrier pass the ring of
all nodes twice, the notes and their sizes once each; each piece of dense words twice; of tables, the bits and their
sizes once each, and a piece of rows once, after one step from everybody to everybody. The constants are fitted to what
was measured."""

from dataclasses import dataclass
from math import ceil

from benchmarks.baselines.networks import NETWORKS
from benchmarks.bench import median, say
from benchmarks.cluster_jobs import MOST_S, Effort, new_folder, torchrun_job
from benchmarks.figures import MLP
from benchmarks.row import Row
from hogwild.workers.child.communicator import PIECE
from tests.cluster.hosts import Hosts

START_S = 0.05  # until all are ready, where they are near each other
STEP = 1.5  # times the delay: a connection that was quiet starts slowly
CPU_S = 22e-9  # a byte that travels: arithmetic and copies, on a core that a worker uses, too
TABLE_S = 4e-9  # a byte of tables: arithmetic only
ROW_BYTES = 3  # of the compressed bits, a changed row
NOTE_BYTES = 700


@dataclass(frozen=True, slots=True)
class Cable:
    """Delay of one way, and bytes a second in each direction."""

    delay_s: float
    rate: float


def seconds(nodes: int, dense: float, cable: Cable, *, table: float = 0, rows: float = 0, changed: float = 0) -> float:
    """Return the seconds of a round. `dense`, `table`: bytes of dense parameters and of tables with so many `rows`, of
    which the part `changed` was changed by any node."""
    around, part = nodes - 1, changed * table
    steps = 8 * around + 2 * around * ceil(dense / PIECE)
    if rows:
        steps += 2 * around * ceil(rows / 8 / PIECE) + nodes * ceil(part / PIECE)
    bits = min(rows / 8, ROW_BYTES * changed * rows / nodes)
    sent = 2 * around / nodes * (dense + part) + around * (bits + NOTE_BYTES)
    return START_S + STEP * steps * cable.delay_s + sent / cable.rate + CPU_S * (dense + part) + TABLE_S * table


# ---- the table of the page

FAST, USUAL = Cable(50e-6, 1.25e9), Cable(100e-6, 1.25e8)
NODES = (2, 10, 100, 1000)
TRAINED: dict[str, dict[str, float]] = {
    "4 MB, dense": {"dense": 4e6},
    "64 MB, dense": {"dense": 64e6},
    "1 GB, dense": {"dense": 1e9},
    "1 GB of tables, 1 % of 4 M rows changed": {"dense": 0, "table": 1e9, "rows": 4e6, "changed": 0.01},
    "the same, all rows changed": {"dense": 0, "table": 1e9, "rows": 4e6, "changed": 1},
}


def table() -> str:
    """In Markdown."""
    heads = [f"{nodes:,} nodes" for nodes in NODES] + [f"{nodes:,}, 1 Gbit/s" for nodes in NODES]
    lines = [f"| trained parameters | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, sizes in TRAINED.items():
        found = [seconds(nodes, cable=cable, **sizes) for cable in (FAST, USUAL) for nodes in NODES]
        lines.append(f"| {name} | {' | '.join(f'{one:.1f}' if one < 9.95 else f'{one:,.0f}' for one in found)} |")
    return "\n".join(lines) + "\n"


# ---- what was measured

LOOPBACK = Cable(20e-6, 5e9)
SMALL = 4 * (784 * 128 + 128 + 128 * 10 + 10)  # bytes of the MLP
LARGE = 4 * (784 * 4096 + 4096 + 4096 * 3072 + 3072 + 3072 * 10 + 10)
ROWS, WIDTH = 1_000_000, 16


@dataclass(frozen=True, slots=True)
class Case:
    nodes: int
    cable: Cable
    sizes: dict[str, float]
    fields: tuple[str, ...]

    @property
    def by_formula(self) -> float:
        return seconds(self.nodes, cable=self.cable, **self.sizes)


def _small(nodes: int, cable: Cable) -> Case:
    return Case(nodes, cable, {"dense": SMALL}, NETWORKS[MLP].overrides)


_MODEL = "model={{class_path: {}, init_args: {}}}".format
_LARGE_MLP = _MODEL("hogwild.models.Mlp", "{features: 784, hidden: [4096, 3072], classes: 10}")
_MANY_ROWS = _MODEL("benchmarks.baselines.many_digits.ManyRows", f"{{rows: {ROWS}, width: {WIDTH}}}")
CASES = {
    **{
        f"{nodes} nodes, 407 KB, {1000 * delay_s:g} ms one way, {8e-6 * rate:g} Mbit/s": _small(
            nodes, Cable(delay_s, rate)
        )
        for nodes, delay_s, rate in (
            (2, 0.05, 1.25e6), (3, 0.05, 1.25e6), (4, 0.05, 1.25e6), (2, 0.05, 12.5e6), (4, 0.05, 12.5e6),
            (2, 0.005, 1.25e6),
        )
    },
    "2 nodes, 407 KB, loopback": _small(2, LOOPBACK),
    "2 nodes, 63 MB, loopback": Case(
        2, LOOPBACK, {"dense": LARGE}, (_LARGE_MLP,)
    ),
    "2 nodes, 64 MB of tables, 4 % of a million rows changed, loopback": Case(
        2, LOOPBACK, {"dense": 4 * 170, "table": 4 * ROWS * WIDTH, "rows": ROWS, "changed": 0.04},
        (_MANY_ROWS, "optimizer={class_path: torch.optim.SGD, init_args: {lr: 0.05}}"),
    ),
}  # fmt: skip
MEASURED = {f"seconds of a round, {name}": case for name, case in CASES.items()}


def cost(effort: Effort) -> list[Row]:
    """The seconds of each round of a job that trains meanwhile; the baseline is the formula."""
    rows = []
    for name, case in MEASURED.items():
        link = {} if case.cable == LOOPBACK else {"delay_s": case.cable.delay_s, "rate_bytes_s": case.cable.rate}
        with (
            Hosts(case.nodes, **link) as hosts,
            new_folder() as folder,
            torchrun_job(folder, *case.fields, "train.epochs=1000000", hosts=hosts, count=case.nodes) as job,
        ):
            job.wait_for_round(2, timeout_s=MOST_S)
            found = []
            for _ in range(effort.rounds):
                job.wait_for_more_rounds(1)
                found.append(float(job.status(0)["cluster"]["seconds"]))
            cluster = job.status(0)["cluster"]
        sent = cluster["nbytes"] / cluster["rounds"]
        say(f"{name}: {median(found):.2f} s, by the formula {case.by_formula:.2f}; {sent:,.0f} bytes")
        note = f"while workers train, 2 cores for all; {sent:,.0f} bytes a round and node; baseline: the formula, s"
        rows.append(Row(name, "s", None, found, case.by_formula, note, smaller_is_better=True))
    return rows


if __name__ == "__main__":
    print(table(), end="")
