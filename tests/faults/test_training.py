"""Twenty workers of two real jobs are killed at random times of their lives, and nothing is lost or done twice in
silence. `make stress` does the same two thousand times (campaigns/training.py)."""

from pathlib import Path

import pytest
import torch

from tests.faults.campaigns.training import Kind, bout, lenet, rollouts
from tests.faults.invariants import Counted, Miscount, miscount
from tests.faults.tally import Lives, moments

SEED = 4
KILLS = 10
LEDGER = {"skipped": 0, "quarantined": 0, "redone": 0}


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind",
    [lenet("direct"), rollouts()],  # a counting job: the one under chaos (tests/chaos)
    ids=lambda kind: kind.name,
)
def test_workers_are_killed_at_random_and_nothing_is_lost(kind: Kind, tmp_path: Path) -> None:
    tally = bout(kind, Lives("make test", SEED, life_s=0.4), KILLS, tmp_path)
    assert tally.violations == []
    assert (tally.injected, tally.survived) == (KILLS, KILLS)
    assert tally.is_clean


@pytest.mark.parametrize(
    ("effects", "samples", "ledger", "wrong"),
    [
        ([2, 2, 2, 2], 8, {}, Miscount(0, 0)),
        ([2, 2, 1, 1], 8, {}, Miscount(1, 0)),
        ([2, 2, 1, 2], 8, {}, Miscount(1, 0)),  # torn, and nothing in the ledger says that it may be
        ([2, 2, 1, 1], 6, {"skipped": 1}, Miscount(0, 0)),
        ([1, 1, 1, 2], 6, {"skipped": 1}, Miscount(1, 0)),
        ([2, 2, 0, 0], 4, {"skipped": 1, "quarantined": 1}, Miscount(0, 0)),
        ([2, 2, 3, 3], 8, {}, Miscount(0, 1)),
        ([2, 3, 2, 2], 8, {"redone": 1}, Miscount(0, 0)),
        ([4, 4, 2, 2], 8, {"redone": 1}, Miscount(0, 1)),
        ([3, 3, 1, 1], 8, {}, Miscount(1, 1)),
    ],
)
def test_what_the_ledger_does_not_excuse_is_lost_or_done_twice(
    effects: list[int], samples: int, ledger: dict[str, int], wrong: Miscount
) -> None:
    found = miscount(torch.tensor(effects, dtype=torch.float32), LEDGER | ledger, samples, Counted.all_of(2, batch=2))
    assert found == wrong


@pytest.mark.parametrize(
    ("effects", "samples", "wrong"),
    [
        ([2, 2, 1, 1], 6, Miscount(0, 0)),
        ([2, 2, 1, 1], 8, Miscount(1, 0)),
        ([2, 2, 2, 2], 6, Miscount(0, 1)),
        ([2, 2, 0, 0], 4, Miscount(1, 0)),
    ],
)
def test_in_the_middle_of_an_epoch_the_effects_are_as_many_as_the_job_says(
    effects: list[int], samples: int, wrong: Miscount
) -> None:
    assert miscount(torch.tensor(effects), LEDGER, samples, Counted(1, 2, batch=2)) == wrong


def test_a_seed_is_a_schedule() -> None:
    lives = Lives("training", 3)
    deaths = [lives.death_of(worker, incarnation) for worker in range(2) for incarnation in range(200)]
    assert deaths == [Lives("training", 3).death_of(k, n) for k in range(2) for n in range(200)]
    assert deaths != [Lives("training", 4).death_of(k, n) for k in range(2) for n in range(200)]
    assert all(0 <= death.after_s <= (lives.start_s if death.while_starting else lives.life_s) for death in deaths)
    assert 0.1 < sum(death.while_starting for death in deaths) / len(deaths) < 0.3
    drawn = [moments("parent", seed, 6, start_s=4, life_s=2) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [moment.while_starting for moment in drawn[0]] == [False, True] * 3
