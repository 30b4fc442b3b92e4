"""Delta and max_staleness in whole jobs: real workers, real deaths.

In delta two flushes at the same time may lose words of each other, so how often a sample took effect (jobs/counting.py)
is at most what it should be; what was begun, how often and by whom, is exact."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hogwild.data import Digits
from tests.helpers.jobs import JOBS, Ended, InTurn, Job, begin_in_turn, in_turn
from tests.jobs.norm import Normed

pytestmark = pytest.mark.processes

COUNTING, NORM = str(JOBS / "counting.yaml"), str(JOBS / "norm.yaml")
BATCH, SAMPLES = 4, 1600
EVERY = 16
SILENCE_S = 8  # as in test_supervision.py
DELTA = ["train.exchange=delta", f"train.sync_every={EVERY}"]
SHARP = ["supervise.max_restarts=100", "data.shuffle=none", "checkpoint.every_s=null"]
PATIENT = [f"supervise.{clock}_timeout_s=900" for clock in ("start", "stall", "deadlock")]


def counting(diary: Path, *arguments: str) -> list[str]:
    diary.mkdir(parents=True)
    return [COUNTING, f"model.init_args.diary={diary}", *DELTA, *SHARP, *arguments]


def begun(diary: Path) -> Counter[int]:
    """Return the number of times that each batch was begun, by all workers of a counting job together."""
    numbers = [int(line) for file in diary.glob("train-*") for line in file.read_text().split()]
    return Counter(number // BATCH for number in numbers)


# ---- what a crash costs ---------------------------------------------------------------------------------------------

KILLED_AT, STOPPED_AT, RAISED_AT, POISON, BAD_SAMPLE = 5, EVERY + 4, 105, 200, 300  # batches


@pytest.fixture(scope="module")
def silence(jobs_folder: Path) -> Iterator[InTurn]:
    """It takes as long as it takes to call a worker silent; beside the other jobs. Before its first commit a worker
    counts as starting, so it stops in its second exchange."""
    stops = f"model.init_args.crimes.stops itself={STOPPED_AT * BATCH}"
    stall = f"supervise.stall_timeout_s={SILENCE_S}"
    running = begin_in_turn(jobs_folder / "silence", {"stopped": counting(jobs_folder / "diary-stopped", stops, stall)})
    yield running
    running.runner.destroy()


@pytest.fixture(scope="module")
def jobs(jobs_folder: Path, silence: InTurn) -> dict[str, Ended]:
    crimes = {"is killed": KILLED_AT, "raises": RAISED_AT, "always is killed": POISON, "always raises": BAD_SAMPLE}
    planned = [f"model.init_args.crimes.{name}={batch * BATCH}" for name, batch in crimes.items()]
    overtaken = f"model.init_args.crimes.waits to be overtaken={RAISED_AT * BATCH}"
    normed = [NORM, *DELTA, "train.sync_every=4", "data.batch_size=16", *PATIENT]
    whole = {
        "crimes": counting(jobs_folder / "diary-crimes", *planned),
        "too old": counting(jobs_folder / "diary-old", "train.exchange=direct", "train.max_staleness=0", overtaken),
        "2 workers": [*normed, "train.procs=2", "train.epochs=8"],
        "8 workers": [*normed, "train.procs=8", "train.epochs=8", "evaluate.every_epochs=8"],
        "1 worker": [*normed, "train.procs=1", "train.epochs=1", "evaluate.every_epochs=1"],
        "inline": [*normed, "train.procs=0", "train.epochs=1", "evaluate.every_epochs=1"],
    }
    return in_turn(jobs_folder / "delta", whole) | silence.wait()


def test_a_job_full_of_crimes_succeeds_in_delta_with_an_exact_ledger(jobs: dict[str, Ended]) -> None:
    job = jobs["crimes"]
    assert (job.status, job.reason, job.summary["exchange"]) == (0, ("succeeded", "epochs"), "delta"), job.stderr
    assert job.leases == {"total": 400, "done": 398, "skipped": 0, "quarantined": 2, "indeterminate": 0, "redone": 0}
    assert job.process_leaks == {"descriptors": 0, "threads": 0} and not job.left_behind


def test_exactly_what_was_not_flushed_is_done_again(jobs: dict[str, Ended], jobs_folder: Path) -> None:
    """The death at batch 5 of the job takes the five before it along, which nobody saw; an exception only itself; what
    kills is tried three times, and the exchange it killed first is done again."""
    assert jobs["crimes"].status == 0
    found = begun(jobs_folder / "diary-crimes")
    assert [found[batch] for batch in range(KILLED_AT + 1)] == [2] * (KILLED_AT + 1)
    assert found[RAISED_AT] == 2 and found[BAD_SAMPLE] == found[POISON] == 3
    again = {batch for batch, times in found.items() if times > 1}
    unflushed = set(range(POISON - EVERY + 1, POISON))  # at most: a pause may have flushed some
    assert again <= {*range(KILLED_AT + 1), RAISED_AT, POISON, BAD_SAMPLE} | unflushed
    assert set(found) == set(range(SAMPLES // BATCH))


def test_what_kills_its_workers_is_put_aside_alone(jobs: dict[str, Ended]) -> None:
    aside = [piece for event in jobs["crimes"].events("exit") for piece in event["quarantined"]]
    assert sorted(aside) == [[0, POISON, POISON + 1], [0, BAD_SAMPLE, BAD_SAMPLE + 1]]


def test_nothing_takes_effect_twice(jobs: dict[str, Ended]) -> None:
    for name in ("crimes", "stopped"):
        effects = jobs[name].effects()
        assert set(effects.tolist()) <= {0.0, 1.0}
        assert float(effects.mean()) > 0.5, "more was lost than two flushes at a time can lose"
    effects = jobs["crimes"].effects()
    assert not effects[POISON * BATCH : (POISON + 1) * BATCH].any()
    assert not effects[BAD_SAMPLE * BATCH : (BAD_SAMPLE + 1) * BATCH].any()


def test_a_stopped_worker_loses_its_exchange_and_the_others_do_it(jobs: dict[str, Ended], jobs_folder: Path) -> None:
    job = jobs["stopped"]
    assert (job.status, job.leases["done"], job.leases["total"]) == (0, 400, 400), job.stderr
    assert any("stalled: silent for" in event["how"] for event in job.events("exit"))
    found = begun(jobs_folder / "diary-stopped")
    again = [batch for batch, times in sorted(found.items()) if times == 2]
    assert set(found) == set(range(400)) and set(found.values()) == {1, 2}
    assert again == list(range(again[0], STOPPED_AT + 1)) and again[0] >= EVERY, "what was flushed was done once"


def test_an_update_that_was_overtaken_is_skipped_where_the_job_says_so(jobs: dict[str, Ended]) -> None:
    job = jobs["too old"]
    assert (job.status, job.summary["exchange"], job.summary["staleness"]["max"]) == (0, "direct", 0), job.stderr
    leases = job.leases
    assert leases["done"] + leases["skipped"] == leases["total"] == 400 and leases["skipped"] >= 1
    effects = job.effects()
    assert not effects[RAISED_AT * BATCH : (RAISED_AT + 1) * BATCH].any()
    assert int(effects.sum()) == leases["done"] * BATCH
    assert job.summary["updates"] == leases["done"]


# ---- many workers, and BatchNorm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2 workers", "8 workers"])
def test_many_workers_with_running_averages_converge_in_delta(jobs: dict[str, Ended], name: str) -> None:
    job = jobs[name]
    assert (job.status, job.reason, job.summary["exchange"]) == (0, ("succeeded", "epochs"), "delta"), job.stderr
    assert job.leases["done"] == job.leases["total"] == 8 * 90 and job.ledger_adds_up()
    assert job.summary["metrics"]["accuracy"] > 0.8, job.summary["metrics"]
    tensors = job.tensors()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert int(tensors["layers.1.num_batches_tracked"]) == 8 * 90


@pytest.mark.parametrize("name", ["2 workers", "8 workers"])
def test_running_averages_are_those_of_the_data(jobs: dict[str, Ended], name: str) -> None:
    model = trained(jobs[name])
    pixels = torch.stack([image for image, _ in whole_set("train")]).flatten(1)
    with torch.no_grad():
        hidden = model.layers[0](pixels)
    norm = model.layers[1]
    spread = hidden.std(0) + 0.1
    assert float(((norm.running_mean - hidden.mean(0)) / spread).abs().max()) < 1.0
    ratio = (norm.running_var + 0.01) / (hidden.var(0) + 0.01)
    assert float(ratio.min()) > 0.25 and float(ratio.max()) < 4.0


@pytest.mark.parametrize("name", ["2 workers", "8 workers", "1 worker"])
def test_an_evaluation_is_of_what_everybody_flushed_and_the_checkpoint_holds(jobs: dict[str, Ended], name: str) -> None:
    model, correct, loss = trained(jobs[name]).eval(), 0, 0.0
    samples = whole_set("test")
    with torch.no_grad():
        for pixels, labels in DataLoader(samples, batch_size=16):
            logits = model(pixels)
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            correct += int((logits.argmax(1) == labels).sum())
    found = jobs[name].summary["metrics"]
    assert found["loss"] == pytest.approx(loss / len(samples), rel=1e-4)
    assert found["accuracy"] == pytest.approx(correct / len(samples), abs=1.5 / len(samples))


def trained(job: Ended) -> Normed:
    model = Normed()
    model.load_state_dict(job.tensors())
    return model


def whole_set(split: str) -> TensorDataset:
    samples = list(Digits(split=split))
    return TensorDataset(
        torch.stack([torch.as_tensor(image) for image, _ in samples]),
        torch.tensor([int(label) for _, label in samples]),
    )


@pytest.mark.parametrize("name", ["1 worker", "inline"])
def test_a_single_worker_writes_the_flats_whatever_the_job_says(jobs: dict[str, Ended], name: str) -> None:
    job = jobs[name]
    assert (job.status, job.summary["exchange"], job.summary["staleness"]["max"]) == (0, "direct", 0), job.stderr


# ---- Ctrl-C, and going on -----------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_stop_flushes_and_a_resume_repeats_and_omits_nothing(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    diary = tmp_path / "diary"
    job = start_job(tmp_path / "first", *counting(diary, "model.init_args.pace_s=0.1"))
    job.wait_for_updates(2 * EVERY)
    job.send(signal.SIGINT)
    stopped = job.wait()
    assert (stopped.status, stopped.reason) == (75, ("stopped", "SIGINT")), stopped.stderr
    first = begun(diary)
    assert sum(first.values()) == stopped.leases["done"], "what was begun is finished and flushed before the stop"
    (diary / "hurry").touch()
    resumed = in_turn(tmp_path / "second", {"resumed": ["--resume", str(stopped.run_dir)]})["resumed"]
    assert (resumed.status, resumed.summary["exchange"]) == (0, "delta"), resumed.stderr
    assert resumed.leases["done"] == resumed.leases["total"] == 400
    assert begun(diary) == Counter(range(400)), "each batch was begun once, before the stop or after it"
    assert set(resumed.effects().tolist()) <= {0.0, 1.0}
