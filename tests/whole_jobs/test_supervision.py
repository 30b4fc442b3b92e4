"""User code and people with `kill` against a job's workers: the job goes on, the ledger adds up, and the
effect of every batch is counted (jobs/counting.py). Each crime is committed by real code in a real worker."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.helpers.jobs import JOBS, Ended, InTurn, Job, begin_in_turn, in_turn
from tests.helpers.processes import state_of, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
BATCH = 4
SAMPLES = 1600
SHARP = ["supervise.max_restarts=100", "data.shuffle=none", "checkpoint.every_s=null"]
# Long enough that no machine leaves a healthy worker silent for it; such jobs run beside the others.
SILENCE_S = 8


@dataclass(frozen=True)
class Crime:
    """Committed at sample `at`. `how`: what the exit event says, "" when nobody dies; `effects`: how often the batch
    takes effect."""

    at: int
    how: str
    effects: int = 1
    account: str = "done"


IN_FORWARD = {
    "raises": Crime(81, "RuntimeError: a bad batch, once"),
    "always raises": Crime(160, "RuntimeError: a bad batch, always", effects=0, account="quarantined"),
    "raises the unspeakable": Crime(241, "Unspeakable|exit status 1"),
    "asks to exit": Crime(321, "SystemExit: 5|exit status 5"),
    "exits with 0": Crime(482, "exit status 0|SIGTERM, or by os._exit"),
    "reads nowhere": Crime(641, r"killed by SIGSEGV \(a crash in native code\)"),
    "terminates itself": Crime(881, "left on SIGTERM"),
    "leaves a grandchild": Crime(1201, "exit status 7"),
    "closes everything": Crime(1281, "SIGABRT|exit status"),
    "runs out of address space": Crime(1121, "MemoryError"),
    "starts a thread for ever": Crime(1361, ""),
    "floods its output": Crime(1401, ""),
    "computes nan": Crime(1441, "", effects=0, account="skipped"),
}
IN_LOSS = {"raises in the loss": Crime(1501, "ArithmeticError: a loss that gives up, once")}
IN_SILENCE = {
    "stops itself": Crime(801, "stalled: silent for"),
    "hangs in native code": Crime(1041, "stalled: silent for"),
}
EVERY_CRIME = IN_FORWARD | IN_LOSS | IN_SILENCE


def planned(section: str, crimes: dict[str, Crime]) -> list[str]:
    return [f"{section}.init_args.crimes.{name}={crime.at}" for name, crime in crimes.items()]


def of_samples(samples: int) -> list[str]:
    return [f"{section}.init_args.samples={samples}" for section in ("model", "data.train")]


def batch_of(crime: Crime) -> slice:
    first = crime.at // BATCH * BATCH
    return slice(first, first + BATCH)


def counting(diary: Path, *arguments: str) -> list[str]:
    diary.mkdir(parents=True)
    return [COUNTING, f"model.init_args.diary={diary}", *SHARP, *arguments]


IN_STEP, AFTER_STEP = 561, 1121  # samples at which a worker is killed between intent and commit


@pytest.fixture(scope="module")
def silence(jobs_folder: Path) -> Iterator[InTurn]:
    """It takes as long as it takes to call a worker silent; beside the other jobs."""
    stall = f"supervise.stall_timeout_s={SILENCE_S}"
    jobs = {
        "silence": counting(jobs_folder / "diary-silence", stall, *planned("model", IN_SILENCE)),
    }
    begun = begin_in_turn(jobs_folder / "silence", jobs)
    yield begun
    begun.runner.destroy()


@pytest.fixture(scope="module")
def spree(jobs_folder: Path, silence: InTurn) -> dict[str, Ended]:
    """Two jobs in which every crime is committed, and for either policy one with those inside the optimizer's step."""
    diaries = {name: jobs_folder / f"diary-{name}" for name in ("all", "redo", "skip")}

    def betrayed(name: str) -> list[str]:
        return [
            *counting(diaries[name], "optimizer.class_path=counting.Treacherous", "train.procs=1"),
            f"optimizer.init_args.diary={diaries[name]}",
            f"optimizer.init_args.before.is killed in its step={IN_STEP}",
            f"optimizer.init_args.after.is killed after its step={AFTER_STEP}",
            f"supervise.on_indeterminate={name}",
        ]

    in_loss = [f"loss.init_args.diary={diaries['all']}", *planned("loss", IN_LOSS)]
    every = [*counting(diaries["all"], "supervise.grace_s=1"), *planned("model", IN_FORWARD), *in_loss]
    jobs = {"all": every, "redo": betrayed("redo"), "skip": betrayed("skip")}
    return in_turn(jobs_folder / "spree", jobs) | silence.wait()


def scene_of(name: str) -> str:
    return "silence" if name in IN_SILENCE else "all"


@pytest.mark.parametrize("scene", ["all", "silence"])
def test_a_job_full_of_crimes_succeeds_and_leaves_nothing(spree: dict[str, Ended], scene: str) -> None:
    job = spree[scene]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert not job.left_behind
    assert job.process_leaks == {"descriptors": 0, "threads": 0}


def test_what_user_code_started_in_a_worker_ends_with_it(spree: dict[str, Ended], jobs_folder: Path) -> None:
    grandchild = int((jobs_folder / "diary-all" / "grandchild").read_text())
    wait_for("its end", lambda: state_of(grandchild) in (None, "Z"))


@pytest.mark.parametrize(
    ("scene", "accounts"),
    [
        ("all", {"done": 398, "skipped": 1, "quarantined": 1}),
        ("silence", {"done": 400, "skipped": 0, "quarantined": 0}),
    ],
)
def test_the_ledger_of_a_job_full_of_crimes_adds_up(
    spree: dict[str, Ended], scene: str, accounts: dict[str, int]
) -> None:
    job = spree[scene]
    assert job.ledger_adds_up()
    assert job.leases == {"total": 400, "indeterminate": 0, "redone": 0, **accounts}
    assert int(job.effects().sum()) == accounts["done"] * BATCH


@pytest.mark.parametrize("name", EVERY_CRIME)
def test_a_crime_has_the_effects_it_should(spree: dict[str, Ended], name: str) -> None:
    crime = EVERY_CRIME[name]
    assert spree[scene_of(name)].effects()[batch_of(crime)].tolist() == [crime.effects] * BATCH


@pytest.mark.parametrize("name", [name for name, crime in EVERY_CRIME.items() if crime.how and "always" not in name])
def test_the_culprit_is_named_with_what_it_did(spree: dict[str, Ended], jobs_folder: Path, name: str) -> None:
    crime = EVERY_CRIME[name]
    scene = scene_of(name)
    culprit = int((jobs_folder / f"diary-{scene}" / f"crime-{name.replace(' ', '-')}").read_text())
    (exit_event,) = [event for event in spree[scene].events("exit") if event["pid"] == culprit]
    assert re.search(crime.how, f"{exit_event['how']} {exit_event['error']}")


def test_a_batch_that_always_raises_is_quarantined_after_three_attempts(spree: dict[str, Ended]) -> None:
    exits = spree["all"].events("exit")
    tried = [event["quarantined"] for event in exits if "a bad batch, always" in event["error"]]
    assert tried == [[], [], [[0, 40, 41]]]  # epoch, first batch, end


def test_a_worker_that_hangs_writes_its_stacks_before_it_is_killed(spree: dict[str, Ended]) -> None:
    stacks = "".join(file.read_text() for file in (spree["silence"].run_dir / "stacks").iterdir())
    assert "in _hang_in_native_code\n" in stacks


def test_a_crash_in_native_code_leaves_its_stack(spree: dict[str, Ended]) -> None:
    stacks = "".join(file.read_text() for file in (spree["all"].run_dir / "stacks").iterdir())
    assert "Fatal Python error: Segmentation fault" in stacks


@pytest.mark.parametrize(
    ("policy", "killed_before", "killed_after", "leases"),
    [
        ("redo", 1, 2, {"done": 400, "skipped": 0, "indeterminate": 2, "redone": 2}),
        ("skip", 0, 1, {"done": 398, "skipped": 2, "indeterminate": 2, "redone": 0}),
    ],
)
def test_a_death_inside_an_apply_is_in_doubt_and_settled_by_policy(
    spree: dict[str, Ended], policy: str, killed_before: int, killed_after: int, leases: dict[str, int]
) -> None:
    job = spree[policy]
    assert (job.status, job.leases) == (0, {"total": 400, "quarantined": 0, **leases}), job.stderr
    before, after = IN_STEP // BATCH * BATCH, AFTER_STEP // BATCH * BATCH
    expected = torch.ones(SAMPLES)
    expected[before : before + BATCH], expected[after : after + BATCH] = killed_before, killed_after
    assert torch.equal(job.effects(), expected)


# ---- jobs that must fail, and how -----------------------------------------------------------------------------------

FAILURES: dict[str, tuple[list[str], str, str]] = {
    "a model that raises at once": (
        ["model.init_args.crimes={raises: 0, always raises: 1}", "train.procs=1"],
        "train/user-code",
        "RuntimeError: a bad batch, once",
    ),
    "a model that says too much at once": (
        ["model.init_args.crimes={raises at length: 0}", "train.procs=1"],
        "train/user-code",
        "RuntimeError: ééé",
    ),
    "a batch in three that kills": (
        ["model.init_args.crimes={always is killed: 9}", "data.train.init_args.samples=40", "train.procs=1"],
        "train/quarantined",
        "1 of 10 batches are quarantined, more than 1 %",
    ),
    "nan with on_nan fail": (
        ["model.init_args.crimes={always computes nan: 101}", "supervise.on_nan=fail"],
        "train/not-finite",
        "the loss or gradient of epoch 0, batch 25 is NaN or infinite",
    ),
    "a crash loop": (
        [
            "model.init_args.crimes={always is killed: 41}",
            "train.procs=1",
            "supervise.max_restarts=1",
            "supervise.window_s=900",
        ],
        "train/workers-lost",
        "worker 0 died more than 1 times in 900 s; 0 of 1 workers left",
    ),
}


@pytest.fixture(scope="module")
def failures(jobs_folder: Path) -> dict[str, Ended]:
    jobs = {name: counting(jobs_folder / f"diary-{name}", *arguments) for name, (arguments, _, _) in FAILURES.items()}
    return in_turn(jobs_folder / "failures", jobs)


@pytest.mark.parametrize("name", FAILURES)
def test_a_job_that_cannot_go_on_fails_with_the_cause_and_leaves_nothing(failures: dict[str, Ended], name: str) -> None:
    _, reason, words = FAILURES[name]
    job = failures[name]
    assert (job.status, job.reason) == (1, ("failed", reason)), job.stderr
    assert words in job.summary["error"]
    assert words in job.stdout + job.stderr
    assert job.ledger_adds_up()
    assert not job.left_behind
    assert job.process_leaks == {"descriptors": 0, "threads": 0}


def test_an_exception_comes_with_the_traceback_of_the_users_line(failures: dict[str, Ended]) -> None:
    summary = failures["a model that raises at once"].summary
    error = summary["error"]
    assert summary["reason"] == error.splitlines()[0] and "crimes.py:" in summary["reason"]
    assert 'raise RuntimeError("a bad batch, once")' in error
    assert "crimes.py" in error


def test_what_a_failed_job_had_learnt_is_in_a_checkpoint(failures: dict[str, Ended]) -> None:
    """The other worker is killed where it is: an exchange that was applied and not committed yet is in doubt."""
    job = failures["nan with on_nan fail"]
    effects = int(job.effects().sum())
    assert job.effects().max() == 1
    assert 0 < job.summary["samples"] <= effects <= job.summary["samples"] + job.leases["indeterminate"] * BATCH
    assert job.leases["indeterminate"] <= 1


# ---- a person with `kill` -------------------------------------------------------------------------------------------


def _kill(job: Job, workers: list[int], number: int = signal.SIGKILL) -> None:
    """Sends the signal and waits until the job has noticed."""
    alive = job.workers()
    victims = {alive[worker] for worker in workers}
    for pid in victims:
        os.kill(pid, number)
    job.wait_for_exit_of(*victims)


def test_workers_that_are_killed_again_and_again_while_nothing_gets_done_fail_the_job_at_once(
    jobs_folder: Path, start_job: Callable[..., Job]
) -> None:
    """Twice while they start and once in a batch, both of them: no worker has used up its restarts by then, and no
    batch its attempts. (The first two start beside their parent, and may have come as far as their batch, too.)"""
    diary = jobs_folder / "diary-loop"
    arguments = counting(diary, "supervise.window_s=900", "supervise.max_item_attempts=3", "train.exchange=direct")
    (diary / "hold").touch()
    job = start_job(jobs_folder / "loop", *arguments)
    for spawned in (2, 4):
        job.wait_for_event("spawn", spawned)
        _kill(job, [0, 1])
    job.wait_for_event("spawn", 6)
    for pid in job.workers().values():
        wait_for("its first batch", (diary / f"held-{pid}").exists)
    for pid in job.workers().values():
        os.kill(pid, signal.SIGKILL)
    ended = job.wait()
    assert (ended.status, ended.reason) == (1, ("failed", "train/crash-loop")), ended.stderr
    kinds = [event["kind"] for event in ended.events("exit")]
    assert kinds[2:] == ["could-not-start"] * 2 + ["died"] * 2 and set(kinds[:2]) <= {"could-not-start", "died"}
    error = ended.summary["error"]
    assert error.startswith("workers keep crashing: 6 deaths in ")
    assert f"{kinds.count('could-not-start')} could not start" in error and f"{kinds.count('died')} died" in error
    assert "Last: worker" in error and "killed by SIGKILL" in error
    assert not ended.left_behind


def test_the_kind_of_every_exit_tells_how_it_came(spree: dict[str, Ended]) -> None:
    kinds = {"left on SIGTERM": "left", "SIGSEGV": "died", "RuntimeError": "died", "exit status 7": "died"}
    exits = spree["all"].events("exit")
    for words, kind in kinds.items():
        assert {event["kind"] for event in exits if words in f"{event['how']} {event['error']}"} == {kind}
    for event in spree["silence"].events("exit"):
        assert event["kind"] == ("stalled" if event["how"].startswith("stalled") else "died")


def test_a_worker_killed_while_it_evaluates_is_replaced_and_every_slice_counts_once(
    jobs_folder: Path, start_job: Callable[..., Job]
) -> None:
    diary = jobs_folder / "diary-evaluation"
    val = "data.val={class_path: counting.Numbers, init_args: {samples: 1280}}"
    slow = "model.init_args.evaluation_pace_s=600"  # no slice is done before the hurry, however late this process looks
    job = start_job(jobs_folder / "evaluation", *counting(diary, slow, val, *of_samples(1280)))
    notes = wait_for("somebody who evaluates", lambda: list(diary.glob("evaluate-*")))
    victim = int(notes[0].name.removeprefix("evaluate-"))
    os.kill(victim, signal.SIGKILL)
    job.wait_for_exit_of(victim)
    (diary / "hurry").touch()
    ended = job.wait()
    assert (ended.status, ended.summary["restarts"]) == (0, 1), ended.stderr
    # Every row holds 1 by now, and a batch of 256 has a loss of -256: each slice counted once.
    assert ended.summary["metrics"]["loss"] == -256
    assert not ended.left_behind
