"""Jobs whose data the workers make from the model they train: a bandit by YAML and by `hogwild.train`, positions that
are counted, environments that raise, and CartPole."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hogwild
from hogwild.data.rollout import Rollout, RolloutFeed, try_rollout
from hogwild.errors import DataError
from tests.helpers.jobs import HOME, JOBS, Ended, in_turn

BANDIT, COUNTING = str(JOBS / "bandit.yaml"), str(JOBS / "counting.yaml")
CARTPOLE = HOME / "examples" / "cartpole"
SOLVED = 0.9  # of a mean reward of 1 for the best arm; 0.4 for all arms alike
POSITIONS = 120
MODEL = nn.Linear(1, 1)


def positions(number: int = POSITIONS, **init_args: object) -> list[str]:
    given = [f"data.train.init_args.{name}={value}" for name, value in init_args.items()]
    sizes = [f"model.init_args.samples={number}", f"data.train.init_args={{updates_per_epoch: {number}}}"]
    return [COUNTING, "data.train.class_path=playing.Positions", *sizes, *given, "data.batch_size=64"]


class Drawing(Rollout):
    """Returns what it draws: from its generator, and from the default one."""

    updates_per_epoch = 3

    def play(self, model: nn.Module, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        assert not model.training and not torch.is_grad_enabled()
        return torch.rand(2, generator=generator), torch.rand(2)


class Played(Rollout):
    """Returns what it is given."""

    updates_per_epoch: Any = 3

    def __init__(self, played: Any) -> None:
        self.played = played

    def play(self, model: nn.Module, generator: torch.Generator) -> Any:
        if isinstance(self.played, Exception):
            raise self.played
        self.game = "made by the first play"
        return self.played


def drawn(epoch: int, position: int, *, seed: int = 1, is_val: bool = False) -> list[float]:
    batch = RolloutFeed(Drawing(), MODEL, seed, is_val=is_val).gather(epoch, position)
    return [*batch.inputs[0].tolist(), *batch.target.tolist()]


def test_a_position_that_is_played_again_draws_the_same_and_no_other_does() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = drawn(0, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    assert drawn(0, 1) == first
    others = [drawn(0, 0), drawn(1, 1), drawn(0, 1, seed=2), drawn(0, 1, is_val=True)]
    assert len({*first, *(number for other in others for number in other)}) == 5 * len(first)
    assert drawn(0, 1, is_val=True) == drawn(7, 1, is_val=True)


def test_a_position_is_one_sample_however_large_its_batch_is_and_the_mode_is_restored() -> None:
    batch = RolloutFeed(Drawing(), MODEL, 0, is_val=False).gather(0, 2)
    assert (batch.first_position, batch.size, len(batch.target)) == (2, 1, 2)
    assert MODEL.training


@pytest.mark.parametrize(
    ("played", "words"),
    [
        (torch.zeros(3), "returned a Tensor"),
        ((torch.zeros(3),), r"returned \(\(3,\)\)"),
        ((torch.zeros(3, 1), torch.zeros(2)), r"returned \(\(3, 1\), \(2,\)\)"),
        ((torch.zeros(0), torch.zeros(0)), r"equally many rows, at least one"),
        ((torch.zeros(2), [1, 2]), r"returned \(\(2,\), list\)"),
        ((torch.tensor(1.0), torch.tensor(1.0)), r"returned \(\(\), \(\)\)"),
        (OSError("no display"), r"data\.train: Played\.play raised OSError: no display"),
    ],
)
def test_a_rollout_that_returns_no_batch_or_raises_is_an_error_before_the_start(played: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as raised:
        try_rollout(Played(played), MODEL, 0, is_val=False)
    assert raised.value.code == "data/rollout"


def test_what_the_first_play_makes_stays_out_of_what_workers_get() -> None:
    rollout = Played((torch.zeros(2), torch.zeros(2)))
    try_rollout(rollout, MODEL, 0, is_val=True)
    assert not hasattr(rollout, "game")
    rollout.updates_per_epoch = 0
    with pytest.raises(DataError, match=r"data\.val: Played\.updates_per_epoch is 0; it must be a whole number"):
        try_rollout(rollout, MODEL, 0, is_val=True)


def test_an_error_in_a_worker_has_a_note_of_the_position() -> None:
    with pytest.raises(OSError, match="gone") as raised:
        RolloutFeed(Played(OSError("gone")), MODEL, 0, is_val=False).gather(3, 2)
    assert any("Played.play, epoch 3, position 2" in note for note in raised.value.__notes__)


# ---- whole jobs


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    diary = jobs_folder / "diary"
    diary.mkdir()
    runs = jobs_folder / "jobs"
    jobs = {
        "bandit": [BANDIT],
        "bandit in the parent": [BANDIT, "train.procs=0"],
        "bandit in delta": [BANDIT, "train.exchange=delta", "train.sync_every=2"],
        "stopped": [*positions(diary=diary), "train.procs=1", "train.max_updates=70"],
        "resumed": ["--resume", str(runs / "stopped" / "run"), "train.max_updates=null", "train.epochs=2"],
        "raises": positions(bad=41),
        "raises at once": positions(bad=0),
        "no batch": [BANDIT, "data.train.class_path=playing.Shapeless"],
        "of another kind": [BANDIT, "data.val={class_path: counting.Numbers, init_args: {samples: 3}}"],
        "cut": [BANDIT, "data.batch_size=8", "data.val={fraction: 0.1}"],
        "in batches": [BANDIT, "data.batch_size=8", "data.shuffle=full"],
        "all outputs": [BANDIT, "evaluate.metrics=[auc]", "evaluate.monitor=loss"],
    }
    return in_turn(runs, jobs)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["bandit", "bandit in the parent", "bandit in delta"])
def test_workers_learn_from_what_they_play_and_report_the_return(ended: dict[str, Ended], name: str) -> None:
    job = ended[name]
    assert job.status == 0, job.stderr
    assert job.summary["metrics"]["episode_return"] > SOLVED
    assert job.summary["samples"] == job.leases["done"] == 8 * 50
    assert f"episode_return {job.summary['metrics']['episode_return']:.4g}" in job.stderr


@pytest.mark.processes
def test_a_resume_plays_the_positions_that_are_left_each_once(ended: dict[str, Ended], jobs_folder: Path) -> None:
    stopped, resumed = ended["stopped"], ended["resumed"]
    assert (stopped.status, resumed.status) == (0, 0), resumed.stderr
    assert resumed.effects().tolist() == [2.0] * POSITIONS
    notes = [line.split() for line in (jobs_folder / "diary" / "drawn").read_text().splitlines()]
    assert sorted((int(epoch), int(at)) for epoch, at, _ in notes) == [(e, p) for e in (0, 1) for p in range(POSITIONS)]
    assert len({draw for *_, draw in notes}) == 2 * POSITIONS


@pytest.mark.processes
def test_a_position_whose_environment_raises_is_tried_again_and_skipped(ended: dict[str, Ended]) -> None:
    job = ended["raises"]
    assert job.status == 0, job.stderr
    assert job.leases["quarantined"] == 1 and job.ledger_adds_up()
    assert job.effects().tolist() == [float(at != 41) for at in range(POSITIONS)]
    assert "RuntimeError: the environment is broken" in job.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises at once", "data.train: Positions.play raised RuntimeError: the environment is broken"),
        ("no batch", "data.train: Shapeless.play returned ((3, 1), (2,)); it must return a tuple (input, …, target)"),
        ("of another kind", "data.val is a Numbers, but the other of data.train and data.val is a Rollout"),
        ("cut", "data.val.fraction is set, but the other of data.train and data.val is a Rollout"),
        ("in batches", "makes whole batches of any size on the CPU: leave out data.batch_size, data.shuffle"),
        ("all outputs", "evaluate.metrics: auc: needs all outputs at once, but data.val is a Rollout"),
    ],
)
def test_a_job_that_cannot_play_ends_before_the_start(ended: dict[str, Ended], name: str, words: str) -> None:
    job = ended[name]
    assert job.status == 1 and words in " ".join(job.stderr.split()), job.stderr
    assert not job.run_dir.exists()


@pytest.mark.whole
@pytest.mark.processes
def test_a_library_call_takes_a_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS))
    import playing

    model = playing.Policy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = hogwild.train(
        model, playing.Bandit(), playing.Reinforce(), optimizer, val=playing.Bandit(20), procs=2, epochs=8, seed=1,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.metrics["episode_return"] > SOLVED
    assert int(model.preferences.argmax()) == 2
    hogwild.close()


# ---- CartPole


@pytest.mark.processes
@pytest.mark.parametrize("rule", ["RMSprop", "Adam"])
def test_the_cartpole_example_learns_with_a_shared_state(tmp_path: Path, rule: str) -> None:
    """To a return that no untrained policy has: its pole falls after some ten to twenty steps."""
    job = [
        str(CARTPOLE / "job.yaml"),
        f"optimizer.class_path=torch.optim.{rule}",
        "evaluate.target={episode_return: 60}",
    ]
    ended = in_turn(tmp_path, {"cartpole": [*job, "train.epochs=10", "data.train.init_args.updates_per_epoch=40"]})
    job_ended = ended["cartpole"]
    assert job_ended.reason == ("succeeded", "target"), job_ended.stderr
    assert job_ended.summary["metrics"]["episode_return"] >= 60


def test_returns_end_with_their_segment_or_with_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CARTPOLE))
    from cartpole import CartPole

    game = CartPole(1, segment=2, discount=0.5, scale=1.0)
    assert game._returns([1.0, 1.0, 1.0], [9.0, 9.0, 4.0, 0.0]) == [1 + 0.5 * (1 + 0.5 * 4), 1 + 0.5 * 4, 1.0]
    assert game._returns([1.0], [9.0, 6.0]) == [4.0]
    assert "cartpole" in sys.modules
