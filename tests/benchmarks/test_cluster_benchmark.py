"""The cluster suite's own code: that its table is what was asked for, how parts are chosen, how samples that were lost
or counted twice are found, and that a real cluster is killed and counted. No figure is looked at: those are measured on
a quiet machine, by `make bench-cluster`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import cluster, cluster_deaths
from benchmarks.cluster_deaths import Tally
from benchmarks.row import Row
from tests.cluster.running import SAMPLES

# The table that was asked for, written down once more: figure, bound, and whether the bound is from above.
KILLS = "seeded SIGKILLs of node, supervisor, communicator, store host, counting model: "
ASKED = {
    "2 nodes x 1 worker over two processes that share nothing, LeNet, samples/s": (0.95, False),
    "samples/s with a round every second over none": (0.97, False),
    "samples/s with 100 ms and 10 Mbit/s between the nodes over loopback": (0.95, False),
    "LeNet, equal samples, nesterov (the default), rate tuned for one node and for two: test accuracy lost with two": (
        *(0.3, True),
    ),
    f"{KILLS}samples lost": (0.0, True),
    f"{KILLS}samples counted twice": (0.0, True),
    f"{KILLS}jobs hung": (0.0, True),
    "survivors after a death: first round without the dead node": (5.0, True),
    "survivors after a death: commits until that round over before": (0.95, False),
    "work lost with the store host": (1.0, True),
    "bytes of a round over 2(K-1)/K x trained parameters": (1.1, True),
    "extra memory of a node, in trained parameters, average": (3.0, True),
    "extra memory of a node, in trained parameters, nesterov": (4.0, True),
    "supervisor's longest turn, rounds every second over none": (1.2, True),
}


def test_the_suite_has_every_figure_that_was_asked_for_with_its_target() -> None:
    rows = [figure.row([1.0]) for _, asked in cluster.PARTS.values() for figure in asked] + Tally().rows(seed=1)
    assert {row.figure: (row.target, row.smaller_is_better) for row in rows} == ASKED


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, list(cluster.PARTS)),
        ("memory", ["memory"]),
        ("survivors after", ["survivors"]),
        ("RMSE", ["factorisation"]),
        ("rate kept", ["accuracy"]),
        ("nothing of that name", []),
    ],
)
def test_a_part_is_chosen_by_its_name_or_by_that_of_a_figure(text: str | None, parts: list[str]) -> None:
    assert cluster.parts_of(text) == parts


class Ended:
    """A counting job that has ended. `wrong`: row -> how often it was applied."""

    def __init__(self, wrong: dict[int, int], indeterminate: int = 0, missing: int = 0) -> None:
        self.wrong, self.indeterminate, self.missing = wrong, indeterminate, missing

    def effects(self, node: int) -> Tensor:
        found = torch.ones(SAMPLES)
        for row, times in self.wrong.items():
            found[row] = times
        return found

    def summary(self, node: int) -> dict[str, Any]:
        done = SAMPLES // 4 - self.missing
        leases = {"done": done, "skipped": 0, "quarantined": 0, "indeterminate": self.indeterminate}
        return {"leases": leases}


@pytest.mark.parametrize(
    ("job", "counted"),
    [
        (Ended({}), (0, 0, 0)),
        (Ended({3: 0, 4: 2}), (1, 1, 0)),
        (Ended({3: 0, 4: 3}), (1, 2, 0)),
        (Ended({3: 0, 4: 2}, indeterminate=1), (0, 0, 2)),
        (Ended(dict.fromkeys(range(6), 2), indeterminate=1), (0, 2, 4)),
        (Ended({}, missing=2), (8, 0, 0)),
    ],
)
def test_samples_that_were_lost_or_counted_twice_are_found(job: Ended, counted: tuple[int, int, int]) -> None:
    tally = Tally()
    cluster_deaths._count(job, 0, tally)  # type: ignore[arg-type]
    assert (tally.lost, tally.twice, tally.excused) == counted


@pytest.mark.processes
def test_a_communicator_is_killed_and_the_job_counted() -> None:
    written: list[list[Row]] = []
    tally = cluster_deaths.kills(1, seed=1, put=written.append)
    assert tally.kills == {cluster_deaths.COMMUNICATOR: 1} and tally.jobs == 1
    (rows,) = written
    assert [row.value for row in rows] == [0, 0, 0]
