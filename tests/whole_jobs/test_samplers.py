"""Jobs whose epochs a sampler draws (`data.sampler`): every entry takes effect once, as often as it was drawn, whoever
is killed and wherever the job stops and goes on. The model counts (jobs/counting.py)."""

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hogwild.config.load import load_job
from hogwild.job.sampling import Sampling
from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.jobs.samplers import Uneven

COUNTING = str(JOBS / "counting.yaml")
EPOCHS, SAMPLES = 3, 1200
OPTIONS = [
    f"model.init_args.samples={SAMPLES}",
    f"data.train.init_args.samples={SAMPLES}",
    "data.batch_size=64",  # the default: the sampler makes the batches
    "data.sampler.class_path=samplers.Uneven",
    f"data.sampler.init_args.epochs={EPOCHS}",
    f"train.epochs={EPOCHS}",
]


def drawn(seed: int) -> list[list[list[int]]]:
    """The batches of each epoch, by the sampler itself."""
    sampling = Sampling(Uneven(range(SAMPLES), EPOCHS), SAMPLES, seed, 64)
    sampling.begin(None)
    found = [sampling.draw(epoch) for epoch in range(EPOCHS)]
    return [[part.tolist() for part in np.split(one.rows, one.bounds[1:-1])] for one in found]


@pytest.fixture(scope="module")
def resumed(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, Ended]:
    """A worker is killed, the job is stopped in the middle of an epoch, and goes on in other processes; once from
    memory and once from loaders."""
    victim = drawn(load_job(Path(COUNTING)).seed)[0][5][0]
    found = {}
    for feed in ("resident", "stream"):
        diary = jobs_folder / f"diary-{feed}"
        diary.mkdir()
        killed = [f"model.init_args.diary={diary}", f"model.init_args.crimes.is killed={victim}"]
        given = [*OPTIONS, *killed, f"data.feed={feed}", "model.init_args.pace_s=0.05"]
        job = start_shared_job(jobs_folder / feed, COUNTING, *given)
        job.wait_for_updates(len(drawn(1)[0]) + 10)  # in the second epoch
        job.send(signal.SIGINT)
        stopped = job.wait()
        assert (stopped.status, stopped.summary["restarts"]) == (75, 1), stopped.stderr
        (diary / "hurry").touch()
        found[feed] = stopped
    runs = {feed: ["--resume", str(one.run_dir)] for feed, one in found.items()}
    return in_turn(jobs_folder / "resumed", runs)


@pytest.mark.processes
@pytest.mark.whole
@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_each_entry_takes_effect_once_over_a_killed_worker_and_a_resume(resumed: dict[str, Ended], feed: str) -> None:
    job = resumed[feed]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    batches = [batch for epoch in drawn(load_job(job.run_dir / "job.yaml").seed) for batch in epoch]
    wanted = torch.zeros(SAMPLES)
    for batch in batches:
        wanted.index_add_(0, torch.tensor(batch), torch.ones(len(batch)))
    assert len({*map(len, batches)}) > 8 and wanted.max() > 2 and (wanted == 0).any(), "else it shows little"
    assert torch.equal(job.effects(), wanted)
    assert job.summary["samples"] == sum(map(len, batches))
    assert job.leases["done"] == job.leases["total"] == len(batches)
