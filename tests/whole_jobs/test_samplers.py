"""Jobs whose epochs a sampler draws (`data.sampler`): every entry takes effect once, as often as it was drawn, whoever
is killed and wherever the job stops and goes on. The model counts (jobs/counting.py)."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, default_collate

import hogwild
from hogwild.config.load import load_job
from hogwild.errors import DataError, HogwildError
from hogwild.job.sampling import Sampling
from tests.helpers.jobs import JOBS, Job
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


@pytest.mark.processes
@pytest.mark.parametrize("feed", [pytest.param("resident", marks=pytest.mark.whole), "stream"])
def test_each_entry_takes_effect_once_over_a_killed_worker_and_a_resume(
    feed: str, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """The job is stopped in the middle of its second epoch, and goes on in another process."""
    epochs = drawn(load_job(Path(COUNTING)).seed)
    diary = tmp_path / "diary"
    diary.mkdir()
    killed = [f"model.init_args.diary={diary}", f"model.init_args.crimes.is killed={epochs[0][5][0]}"]
    job = start_job(tmp_path, COUNTING, *OPTIONS, *killed, f"data.feed={feed}", "model.init_args.pace_s=0.02")
    job.wait_for_updates(len(epochs[0]) + 10)
    job.send(signal.SIGINT)
    stopped = job.wait()
    assert (stopped.status, stopped.summary["restarts"]) == (75, 1), stopped.stderr
    assert len(epochs[0]) < stopped.summary["updates"] < len(epochs[0]) + len(epochs[1])
    (diary / "hurry").touch()
    ended = start_job(tmp_path / "again", "--resume", str(job.run_dir), run_dir=job.run_dir).wait()
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    batches = [batch for epoch in epochs for batch in epoch]
    wanted = torch.zeros(SAMPLES)
    for batch in batches:
        wanted.index_add_(0, torch.tensor(batch), torch.ones(len(batch)))
    assert len({*map(len, batches)}) > 8 and wanted.max() > 2 and (wanted == 0).any(), "else it shows little"
    assert torch.equal(ended.effects(), wanted)
    assert ended.summary["samples"] == sum(map(len, batches))
    assert ended.leases["done"] == ended.leases["total"] == len(batches)


# ---- against a plain loop


FEATURES = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(FEATURES, FEATURES[:, :3].argmax(1))


class Longer(Uneven):
    """Its batches are longer in later epochs than any of the first one."""

    def __iter__(self) -> Iterator[list[int]]:
        self.epoch += 1
        yield from torch.randint(self.each, (5, 3 * self.epoch)).tolist()


def slow_collate(records: list[Any]) -> Any:
    return tuple(default_collate(records))


LOADERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "weighted": (lambda: WeightedRandomSampler([*range(1, 61)], 50), {"batch_size": 8}),
    "weighted, merged and dropped": (
        lambda: WeightedRandomSampler([1.0] * 60, 41),
        {"batch_size": 8, "drop_last": True},
    ),
    "batches that grow": (lambda: Longer(range(60), 1), {}),
}


@pytest.mark.parametrize("streamed", [{}, {"feed": "stream", "slot_bytes": 1 << 14}, {"slot_bytes": 1 << 14}])
@pytest.mark.parametrize("name", LOADERS)
def test_the_only_process_trains_what_the_sampler_draws_to_the_bit(
    name: str, streamed: dict[str, Any], tmp_path: Path
) -> None:
    make, options = LOADERS[name]
    collate = {"collate_fn": slow_collate} if "feed" not in streamed and streamed else {}
    given = {"batch_sampler": make()} if not options else {"sampler": make(), **options}
    model = nn.Linear(4, 3)
    plain = nn.Linear(4, 3)
    plain.load_state_dict(model.state_dict())
    result = hogwild.train(
        model,
        DataLoader(DATA, **given, **collate),
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        procs=0,
        threads=1,
        epochs=3,
        seed=4,
        run_dir=tmp_path / "run",
        **streamed,
    )
    sampling = Sampling(make(), 60, 4, options.get("batch_size", 1), options.get("drop_last", False))
    sampling.begin(None)
    rule, samples = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5), 0
    for epoch in range(3):
        drawn_now = sampling.draw(epoch)
        for rows in np.split(drawn_now.rows, drawn_now.bounds[1:-1]):
            rule.zero_grad()
            x, y = DATA[torch.from_numpy(rows)]
            nn.functional.cross_entropy(plain(x), y).backward()
            rule.step()
            samples += len(rows)
    assert result.samples == samples
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True))


def test_predictions_are_of_a_loaders_data_set_in_its_order(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, DataLoader(DATA, 8), nn.CrossEntropyLoss(), rule, procs=0, run_dir=tmp_path / "run")
    trained = hogwild.load(tmp_path / "run", model=model)
    assert torch.equal(trained.predict(DataLoader(DATA, 7), raw=True), trained.predict(DATA, raw=True))
    with pytest.raises(HogwildError, match="reads the samples in an order of its own"):
        trained.predict(DataLoader(DATA, 7, shuffle=True))


class Late(Uneven):
    """Fails in its second epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        self.epoch += 1
        if self.epoch == 2:
            raise RuntimeError("no more")
        return iter([[1, 2], [3]])


class Other(Uneven):
    """Draws what no seed decides."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[number] for number in SystemRandom().sample(range(60), 20)])


def sampled(sampler: Any, run: Path | None, **options: Any) -> hogwild.TrainResult:
    model = nn.Linear(4, 3)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    return hogwild.train(
        model, DATA, nn.CrossEntropyLoss(), rule, sampler=sampler, procs=0, run_dir=run, **{"epochs": 3, **options}
    )


def test_what_was_trained_before_a_sampler_failed_is_kept(tmp_path: Path) -> None:
    with pytest.raises(HogwildError, match="Late raised when it drew epoch 1: RuntimeError: no more") as failed:
        sampled(Late(range(60), 1), tmp_path / "run")
    assert failed.value.code == "data/sampler"
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()
    assert sampled(Late(range(60), 1), tmp_path / "short", max_updates=2).state == "succeeded"


def test_a_resume_that_would_draw_other_entries_is_refused(tmp_path: Path) -> None:
    sampled(Other(range(60), 1), tmp_path / "run", max_updates=7)
    with pytest.raises(DataError, match="Other draws other entries for epoch 0 than before") as refused:
        sampled(Other(range(60), 1), None, resume=tmp_path / "run")
    assert refused.value.code == "data/sampler-changed"


def test_a_finished_run_goes_on_with_an_epoch_that_was_never_drawn(tmp_path: Path) -> None:
    first = sampled(Longer(range(60), 1), tmp_path / "run", epochs=2)
    assert first.samples == 5 * 3 + 5 * 6
    again = sampled(Longer(range(60), 1), None, resume=tmp_path / "run", epochs=4)
    assert again.samples == 5 * 3 * (1 + 2 + 3 + 4)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["progress"], status["planned_updates"]) == (1.0, 20)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: inductor cannot compile")
def test_a_compiled_model_takes_the_batches_of_a_sampler_from_memory(tmp_path: Path) -> None:
    result = sampled(Longer(range(60), 1), tmp_path / "run", model={"compile": "inductor"}, batch_size=64)
    assert (result.state, result.samples) == ("succeeded", 5 * 3 * (1 + 2 + 3))
