"""A loss or gradient that is not finite is never applied, and a run that keeps diverging goes back to its last good
checkpoint at half the rate: with models that say for every sample at which rate it was applied (jobs/diverging.py)."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import Diverged, UserCodeError
from hogwild.shared_memory.scoreboard import Control
from hogwild.storage.checkpoint import load
from hogwild.storage.checkpoint_format import newest_good
from hogwild.storage.run_directory import RunDir
from hogwild.training.lr_schedule import halved
from hogwild.workers import execution
from hogwild.workers.child.trainer import Trainer
from hogwild.workers.session import resume
from hogwild.workers.session.outcome import MOST_IN_VAIN, Decision, Divergence
from hogwild.workers.session.resume import KEEP_REJECTED
from tests.helpers.jobs import JOBS, Ended, in_turn
from tests.helpers.one_trainer import Place, examples, go_on
from tests.helpers.processes import PATIENCE_S

JOB = str(JOBS / "diverging.yaml")
SAMPLES, BATCH = 1600, 4
EXPLODING = "model.init_args.stiffness=3"  # a step at the full rate doubles the swing, at half the rate it halves it
SCATTERED = ["supervise.on_nan=skip", "data.train.init_args.negative_every=400"]
SPOILT = [200, 600, 1000, 1400]


def of(*arguments: str, diary: Path | None = None) -> list[str]:
    if diary is not None:
        diary.mkdir(parents=True)
        arguments = (*arguments, f"model.init_args.diary={diary}")
    return [JOB, *arguments]


@pytest.fixture(scope="module")
def jobs(jobs_folder: Path) -> dict[str, Ended]:
    diaries = jobs_folder / "diaries"

    def poisoned(parameter: str, name: str, *arguments: str) -> list[str]:
        place = (f"model.init_args.poisoned={parameter}", "model.init_args.poisoned_at=801")
        return of(*place, *arguments, diary=diaries / name)

    stopped = str(jobs_folder / "jobs" / "exploding" / "run")
    return in_turn(
        jobs_folder / "jobs",
        {
            "direct": of(*SCATTERED),
            "delta": of(*SCATTERED, "train.exchange=delta"),
            "accumulated": of(*SCATTERED, "train.accumulate=2", "train.procs=0"),
            "exploding": of(
                EXPLODING, "model.init_args.killed=parked", "train.max_updates=200", diary=diaries / "exploding"
            ),
            "resumed": ["train", "--resume", stopped, "train.max_updates=null"],
            "inline": of(EXPLODING, "train.procs=0"),
            "poisoned": poisoned("swing", "poisoned", "checkpoint.every_updates=50", "model.init_args.killed=remaking"),
            # Its one worker lives through it, with an item half done and another in hand: both are void.
            "ruined in a corner": poisoned("effects", "corner", "checkpoint.every_updates=50", "train.procs=1"),
            "ruined, skip": poisoned(
                "effects", "skip", "checkpoint.every_updates=50", "train.procs=1", "supervise.on_nan=skip"
            ),
            "for ever": of("data.train.init_args.negative_from=400", "checkpoint.every_updates=30", "train.procs=1"),
        },
    )


# ---- never applied -------------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize(("name", "batches"), [("direct", 1), ("delta", 1), ("accumulated", 2)])
def test_scattered_batches_that_are_not_finite_are_skipped_and_counted_exactly(
    jobs: dict[str, Ended], name: str, batches: int
) -> None:
    job = jobs[name]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    skipped = len(SPOILT) * batches
    assert job.leases == {
        "total": 400, "done": 400 - skipped, "skipped": skipped, "quarantined": 0, "indeterminate": 0, "redone": 0
    }  # fmt: skip
    length = batches * BATCH
    spoilt = torch.zeros(SAMPLES, dtype=torch.bool)
    for sample in SPOILT:
        spoilt[sample // length * length :][:length] = True
    assert torch.all(job.effects()[spoilt] == 0)
    if name != "delta":  # where two flushes at once may lose one of two additions to different rows
        assert torch.all(job.effects()[~spoilt] == 1 / batches)
    assert all(torch.isfinite(tensor).all() for tensor in job.tensors().values() if tensor.is_floating_point())
    assert (job.summary["rollbacks"], job.events("rollback")) == (0, [])


# ---- going back ----------------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("name", ["resumed", "inline"])
def test_a_rate_that_is_too_high_is_halved_until_the_run_converges(jobs: dict[str, Ended], name: str) -> None:
    """Its only checkpoint is the beginning: every sample that counts was applied once, at the last rate."""
    job = jobs[name]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    rollbacks = job.summary["rollbacks"]
    assert 1 <= rollbacks <= MOST_IN_VAIN
    assert torch.all(job.effects() == 0.5**rollbacks)
    assert job.leases == {"total": 400, "done": 400, "skipped": 0, "quarantined": 0, "indeterminate": 0, "redone": 0}
    assert job.summary["samples"] == SAMPLES
    assert abs(float(job.tensors()["swing"])) < 1
    assert not job.left_behind


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("name", ["resumed", "inline", "poisoned", "ruined in a corner", "for ever"])
def test_every_rollback_is_said(jobs: dict[str, Ended], name: str) -> None:
    job = jobs[name]
    rollbacks = job.events("rollback")
    assert len(rollbacks) == job.summary["rollbacks"]
    for number, event in enumerate(rollbacks, 1):
        assert event["lr_factor"] == 0.5**number
        assert event["checkpoint"] == f"update-{event['updates']:09d}"
        assert event["from_updates"] >= event["updates"]
        words = f"to {event['checkpoint']}, then at {event['lr_factor']:g} of the learning rate"
        assert words in (job.run_dir / "logs" / "supervisor.log").read_text()


@pytest.mark.whole
@pytest.mark.processes
def test_workers_that_are_killed_while_the_run_goes_back_are_replaced_and_nothing_is_lost(
    jobs: dict[str, Ended],
) -> None:
    for name in ("exploding", "poisoned"):
        exits = jobs[name].events("exit")
        assert 1 <= len(exits) <= 2 and all("SIGKILL" in event["how"] for event in exits)
        assert jobs[name].status == 0 and jobs[name].leases["indeterminate"] == 0


@pytest.mark.whole
@pytest.mark.processes
def test_a_resume_after_a_rollback_goes_on_at_the_lower_rate(jobs: dict[str, Ended]) -> None:
    """Compare the first 800 samples with the others; that they were applied at the same rate is tested above."""
    first, second = jobs["resumed"].events("end")
    assert (first["reason"], second["reason"]) == ("max_updates", "epochs")
    path, _ = newest_good(jobs["resumed"].run_dir / "checkpoints")
    assert path is not None and load(path)["rollbacks"] == jobs["resumed"].summary["rollbacks"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["poisoned", "ruined in a corner"])
def test_a_parameter_that_user_code_has_ruined_goes_back_with_the_run(jobs: dict[str, Ended], name: str) -> None:
    """Up to the checkpoint samples were applied at the full rate, from there on at half of it, and each once."""
    job = jobs[name]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    (event,) = job.events("rollback")
    assert job.leases["done"] == 400 and job.leases["skipped"] == 0
    assert (job.effects() == 1).sum() == event["samples"]
    assert (job.effects() == 0.5).sum() == SAMPLES - event["samples"]
    assert 0 < event["updates"] <= event["from_updates"]
    if name == "ruined in a corner":  # else either may be seen first
        assert event["reason"] == "parameters are NaN or infinite"


@pytest.mark.processes
def test_without_rollback_ruined_parameters_fail_the_job_at_once_and_the_checkpoint_before_is_kept(
    jobs: dict[str, Ended],
) -> None:
    job = jobs["ruined, skip"]
    assert (job.status, job.reason) == (1, ("failed", "train/diverged")), job.stderr
    assert "parameters are NaN or infinite" in job.summary["error"]
    assert job.summary["updates"] < 400
    path, rejected = newest_good(job.run_dir / "checkpoints")
    assert path is not None and rejected == []
    assert torch.isfinite(load(path)["model"]["effects.weight"]).all()
    assert job.ledger_adds_up() and not job.left_behind


@pytest.mark.processes
def test_a_run_that_diverges_for_ever_fails_with_its_last_good_checkpoint(jobs: dict[str, Ended]) -> None:
    """All samples from the 400th on are spoilt: however low the rate, there is no way past them."""
    job = jobs["for ever"]
    assert (job.status, job.reason) == (1, ("failed", "train/diverged")), job.stderr
    assert job.summary["rollbacks"] == MOST_IN_VAIN
    words = f"updates in a row were not finite again, after {MOST_IN_VAIN} rollbacks without progress"
    assert words in job.summary["error"] and words in job.stderr
    path, rejected = newest_good(job.run_dir / "checkpoints")
    assert path is not None and rejected == []
    assert all(torch.isfinite(value).all() for value in load(path)["model"].values())
    assert (job.run_dir / "checkpoints" / "latest").resolve() == path
    went_to = [event["updates"] for event in job.events("rollback")]
    assert went_to == sorted(went_to, reverse=True) and went_to[-1] == 0  # each time further back
    assert list(path.parent.glob("update-*")) == [path]  # what came after it is given up, and a resume begins there
    given_up = {event["name"] for event in job.events("checkpoint")} - {path.name}
    assert path.name == "update-000000000" and given_up
    assert len(list(path.parent.glob("rejected-*"))) == min(len(given_up), KEEP_REJECTED)
    assert job.ledger_adds_up() and not job.left_behind


# ---- user code that goes wrong while parameters are copied or go back ----------------------------------------------


def nothing() -> None:
    """A model that does nothing when it is saved or restored, as most."""


class Scene:
    """The loss, and the model's own state, in a job that runs in this process."""

    losses = 0
    spoil: Callable[[Tensor], Tensor]
    saving: Callable[[], None]
    restoring: Callable[[], None]

    @classmethod
    def begin(cls, spoil: Callable[[Tensor], Tensor]) -> None:
        cls.losses, cls.spoil, cls.saving, cls.restoring = 0, staticmethod(spoil), nothing, nothing


class Remembering(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        Scene.saving()
        return {"seen": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"seen": 1}
        Scene.restoring()


class Spoilt(nn.CrossEntropyLoss):
    """From the 20th batch on, as the scene says, until the run has gone back."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        Scene.losses += 1
        loss = super().forward(output, target)
        return Scene.spoil(loss) if 20 < Scene.losses < 60 else loss


def to_nan(loss: Tensor) -> Tensor:
    return loss * float("nan")


def call(model: nn.Module, run: Path | None, **options: Any) -> hogwild.TrainResult:
    same = torch.Generator().manual_seed(0)  # a resume compares the data
    data = TensorDataset(torch.randn(640, 4, generator=same), torch.randint(2, (640,), generator=same))
    rule = optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"checkpoint": {"every_s": None}, "supervise": {"on_nan": "rollback"}, **options}
    return hogwild.train(model, data, Spoilt(), rule, procs=0, batch_size=8, run_dir=run, **settings)


class Renaming(nn.Linear):
    """Saves itself under other names, and no load knows them. `steps` is not persistent, and a sum over the history."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("steps", torch.zeros(()), persistent=False)
        self.register_state_dict_post_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        state["w"] = state.pop("weight")
        del state["bias"]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return super().forward(x)


@pytest.mark.slow
def test_a_model_whose_state_dict_is_its_own_goes_back_and_is_resumed_with_all_its_tensors(tmp_path: Path) -> None:
    Scene.begin(to_nan)
    model = Renaming()
    result = call(model, tmp_path / "run")
    assert (result.state, result.rollbacks, result.updates) == ("succeeded", 1, 73), "seven were still spoilt"
    assert float(model.steps) == 73, "those of the history that is gone are not in it"
    Scene.losses = 100
    again = Renaming()
    assert call(again, None, resume=tmp_path / "run", epochs=2).updates == 153
    assert float(again.steps) == 153
    saved = load(tmp_path / "run" / "checkpoints" / "update-000000073")
    assert saved["model"].keys() == {"w"} and torch.equal(saved["model"]["w"], model.weight)


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


@pytest.mark.slow
def test_the_run_directory_goes_back_in_the_errands_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor's loop must not wait for a long file to be rewritten, nor for checkpoints to be removed."""
    threads: list[str] = []

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*arguments)

        return run

    monkeypatch.setattr(resume.RunDir, "draft_cut", noted(resume.RunDir.draft_cut))
    monkeypatch.setattr(resume, "set_aside_after", noted(resume.set_aside_after))
    Scene.begin(to_nan)
    assert call(Remembering(4, 2), tmp_path / "run").rollbacks == 1
    assert threads == ["pause_task", "pause_task"]


def test_a_record_that_comes_while_a_cut_is_drafted_is_dropped_with_the_others(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", "job") as run:
        for updates in (10, 20, 30):
            run.metrics.append({"updates": updates})
        before = run.metrics.path.read_bytes()
        cut = run.draft_cut(10)
        assert (cut.records, run.metrics.path.read_bytes()) == (2, before)
        run.metrics.append({"updates": 30})
        run.metrics.cut(cut.size)
        run.metrics.append({"updates": 11})
        assert [json.loads(line)["updates"] for line in run.metrics.path.read_text().splitlines()] == [10, 11]


def test_a_model_that_cannot_be_restored_fails_the_job_and_nothing_is_saved_of_what_is_half_restored(
    tmp_path: Path,
) -> None:
    def refuse() -> None:
        raise LookupError("no state for me")

    Scene.begin(to_nan)
    Scene.restoring = refuse
    with pytest.raises(UserCodeError, match="LookupError: no state for me"):
        call(Remembering(4, 2), tmp_path / "run")
    assert (summary_of(tmp_path / "run")["state"], summary_of(tmp_path / "run")["checkpoint"]) == (
        "failed", "update-000000000"
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("update-*")] == ["update-000000000"]


def test_a_model_that_exits_when_it_is_saved_at_the_end_costs_that_checkpoint_and_not_the_summary(
    tmp_path: Path,
) -> None:
    def leave() -> None:
        raise SystemExit(3)

    def fail(loss: Tensor) -> Tensor:
        Scene.saving = leave
        raise LookupError("this loss knows no answer")

    Scene.begin(fail)
    with pytest.raises(UserCodeError, match="this loss knows no answer"):
        call(Remembering(4, 2), tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert (summary["state"], summary["updates"] > 0) == ("failed", True)
    assert "this loss knows no answer" in summary["error"]
    said = (tmp_path / "run" / "logs" / "supervisor.log").read_text()
    assert "warning: at the end of the job: SystemExit: 3" in said


@pytest.mark.slow
def test_a_call_that_is_cancelled_while_its_model_goes_back_returns_when_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "LET_GO_S", PATIENCE_S)
    has_returned, restored = threading.Event(), []

    def interrupt() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        restored.append(not has_returned.wait(1.0))

    Scene.begin(to_nan)
    Scene.restoring = interrupt
    model = Remembering(4, 2)
    result = call(model, tmp_path / "run")
    has_returned.set()
    assert restored == [True]
    assert (result.state, result.rollbacks, result.updates) == ("cancelled", 1, 0)
    assert not any(param.is_shared() for param in model.parameters())
    saved = load(tmp_path / "run" / "checkpoints" / "update-000000000")["model"]
    assert torch.equal(model.weight, saved["weight"])


# ---- what a worker makes again -------------------------------------------------------------------------------------

RULES: dict[str, Callable[..., optim.Optimizer]] = {
    "momentum": lambda params, lr: optim.SGD(params, lr=lr, momentum=0.9),
    "adam": lambda params, lr: optim.Adam(params, lr=lr),
    "nadam": lambda params, lr: optim.NAdam(params, lr=lr),
}


def trained(place: Place, trainer: Trainer, batches: range) -> list[Tensor]:
    """The parameters and buffers after these batches."""
    trainer.catch_up()
    trainer.train(place.item(batches.start, batches.stop), go_on)
    place.shared.merge_buffers([len(batches), 0])
    return [tensor.detach().clone() for tensor in place.model.state_dict().values()]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sync_every", [0, 2])
@pytest.mark.parametrize("kept", [0, 3])
def test_a_worker_goes_on_after_a_rollback_as_a_new_one_would_to_the_bit(rule: str, sync_every: int, kept: int) -> None:
    """`kept` batches before the checkpoint: with none, the optimizer has no state there."""
    data = examples(8)

    def to_checkpoint() -> tuple[Place, Trainer, dict[str, Any]]:
        place = Place(data, rule=RULES[rule]).exchange(sync_every)
        trainer, _ = place.trainer()
        if kept:
            trained(place, trainer, range(kept))
        return place, trainer, place.shared.snapshot()

    place, trainer, snapshot = to_checkpoint()
    trained(place, trainer, range(kept, 8))
    place.shared.restore(snapshot)
    place.board.go_back(kept, 1, place.ids + 1)
    survivor = trained(place, trainer, range(kept, 6))

    other, _, snapshot = to_checkpoint()
    other.shared.restore(snapshot)
    other.board.go_back(kept, 1, 0)
    newcomer = trained(other, other.trainer()[0], range(kept, 6))
    assert all(torch.equal(one, two) for one, two in zip(survivor, newcomer, strict=True))


def test_what_was_leased_before_a_rollback_is_void_and_what_comes_after_is_not() -> None:
    place = Place(examples(4))
    trainer, row = place.trainer()
    before = place.item()
    place.board.go_back(0, 1, before.id + 1)
    assert trainer.is_void(before) and not trainer.is_void(place.item())
    assert place.board.updates() == 0 and row.board.control_words[Control.ROLLBACKS] == 1


# ---- the decision --------------------------------------------------------------------------------------------------


def test_each_rollback_halves_the_rate_of_whatever_schedule() -> None:
    def schedule(update: int) -> float:
        return 0.8

    assert halved(schedule, 0) is schedule and halved(None, 0) is None
    reduced, constant = halved(schedule, 2), halved(None, 3)
    assert reduced is not None and constant is not None
    assert (reduced(7), constant(7)) == (0.2, 0.125)


@pytest.mark.parametrize(("procs", "limit"), [(0, 32), (1, 32), (2, 32), (4, 64)])
def test_so_many_updates_in_a_row_are_divergence(procs: int, limit: int) -> None:
    divergence = Divergence("rollback", lambda: procs)
    divergence.look(1000, 5)  # of which some may have come before the last that was applied
    divergence.look(1000 + limit - 1, 5)
    assert divergence.decide() is Decision.GO_ON
    divergence.look(1000 + limit, 5)
    assert divergence.decide() is Decision.ROLL_BACK
    divergence.look(1000 + limit, 6)
    assert divergence.decide() is Decision.GO_ON


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_other_policies_fail_when_parameters_are_ruined_and_only_then(policy: str) -> None:
    divergence = Divergence(policy, lambda: 2)
    divergence.look(0, 1)
    divergence.look(10_000, 1)
    assert divergence.decide() is Decision.GO_ON
    divergence.ruined = True
    assert divergence.decide() is Decision.FAIL


def diverge(divergence: Divergence, at: int, back_to: int) -> None:
    divergence.ruined = True
    assert divergence.decide() is Decision.ROLL_BACK
    divergence.gone_back(at, back_to)


def test_rollbacks_that_lead_no_further_go_to_older_checkpoints_and_come_to_an_end() -> None:
    divergence = Divergence("rollback", lambda: 2)
    assert divergence.older_than is None
    for number in range(MOST_IN_VAIN):
        diverge(divergence, at=200, back_to=100 - number)
        divergence.written(150)  # later than where it went back to, and no later than where it diverged
        assert divergence.older_than == 100 - number
    divergence.ruined = True
    assert divergence.decide() is Decision.FAIL
    assert "after 5 rollbacks without progress, at 0.03125 of the learning rate" in divergence.message


def test_a_checkpoint_later_than_where_the_run_diverged_makes_a_fresh_start() -> None:
    divergence = Divergence("rollback", lambda: 2)
    for number in range(3 * MOST_IN_VAIN):
        diverge(divergence, at=200 * number, back_to=0)
        divergence.written(200 * number + 1)
        assert divergence.older_than is None
    assert divergence.rollbacks == 15


def test_a_run_without_a_way_back_fails() -> None:
    divergence = Divergence("rollback", lambda: 2, ruined=True, no_way_back="there is no good checkpoint to go back to")
    assert divergence.decide() is Decision.FAIL
    assert "and there is no good checkpoint to go back to" in divergence.message


# ---- at the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_bad", "said"),
    [
        (lambda row: row >= 2, "268 of 270 batches were not applied, the last 268 in a row"),
        (lambda row: row % 90 != 1, "267 of 270 batches were not applied"),
        (lambda row: row >= 230, "40 of 270 batches were not applied, the last 40 in a row"),
        (lambda row: row % 2, ""),
        (lambda row: row >= 239, ""),
    ],
    ids=["all but two", "all but three, spread", "the last 40", "every second", "the last 31"],
)
def test_a_job_that_lost_most_of_its_batches_or_the_last_ones_has_diverged(
    is_bad: Callable[[int], bool], said: str, tmp_path: Path
) -> None:
    rows = torch.arange(270.0)[:, None]
    factors = torch.tensor([float("nan") if is_bad(row) else 1.0 for row in range(270)])

    def loss(output: Tensor, row: Tensor) -> Tensor:
        return (output * factors[row.long()]).square().mean()

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    settings: dict[str, Any] = {"procs": 0, "batch_size": 1, "shuffle": "none", "run_dir": tmp_path / "run"}
    settings["supervise"] = {"on_nan": "skip"}
    data = TensorDataset(rows / 270, rows)
    if not said:
        assert hogwild.train(model, data, loss, optimizer, **settings).state == "succeeded"
        return
    with pytest.raises(Diverged, match=said):
        hogwild.train(model, data, loss, optimizer, **settings)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["state"], summary["error_code"]) == ("failed", "train/diverged")
