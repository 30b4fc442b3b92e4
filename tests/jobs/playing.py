"""Data that workers make from the model: a bandit, which can be solved, and positions to be counted (counting.py)."""

from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn

from hogwild.data import Rollout
from hogwild.scheduling.batch_plan import rollout_seed
from hogwild.training.evaluator import EPOCH
from tests.helpers.processes import in_worker

ARMS = torch.tensor([0.1, 0.3, 1.0, 0.2])  # mean rewards
NOISE = 0.1
PULLS = 16
MOST_EPOCHS = 1_000


class Policy(nn.Module):
    """A preference for each arm, whatever the input."""

    metrics = ("episode_return",)

    def __init__(self) -> None:
        super().__init__()
        self.preferences = nn.Parameter(torch.zeros(len(ARMS)))

    def forward(self, state: Tensor) -> Tensor:
        """state (B, 1) -> logits (B, arms)."""
        return self.preferences.expand(len(state), -1)


class Bandit(Rollout):
    """A position is PULLS episodes of one pull each."""

    def __init__(self, updates_per_epoch: int = 50) -> None:
        self.updates_per_epoch = updates_per_epoch

    def play(self, model: nn.Module, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        states = torch.zeros(PULLS, 1)
        arms = torch.multinomial(model(states).softmax(1), 1, generator=generator)[:, 0]
        rewards = ARMS[arms] + NOISE * torch.randn(PULLS, generator=generator)
        return states, torch.stack([arms.float(), rewards], 1)


class Reinforce(nn.Module):
    """The gradient of the expected reward (Williams 1992), with the batch's mean as a baseline."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        played = logits.log_softmax(1).gather(1, target[:, :1].long())[:, 0]
        return -(played * (target[:, 1] - target[:, 1].mean())).mean()


class Positions(Rollout):
    """A position's batch is its number, found from its seed, so that a counting model counts positions. What a worker
    draws is noted in `diary`/drawn: `epoch position draw`. It raises at position `bad`."""

    def __init__(self, updates_per_epoch: int, seed: int = 1, diary: str = "", bad: int = -1) -> None:
        self.updates_per_epoch, self.seed, self.diary, self.bad = updates_per_epoch, seed, diary, bad
        self.places: dict[int, tuple[int, int]] = {}  # seed -> epoch, position
        self.epochs = count(EPOCH)

    def play(self, model: nn.Module, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        while generator.initial_seed() not in self.places:
            epoch = next(self.epochs)
            assert epoch < MOST_EPOCHS, "this is no seed of a position"
            seeds = {rollout_seed(self.seed, epoch, at): (epoch, at) for at in range(self.updates_per_epoch)}
            self.places |= seeds
        epoch, position = self.places[generator.initial_seed()]
        if self.diary and in_worker():
            with open(Path(self.diary) / "drawn", "a") as notes:
                notes.write(f"{epoch} {position} {float(torch.rand((), generator=generator))}\n")
        if position == self.bad:
            raise RuntimeError("the environment is broken")
        return torch.tensor([position]), torch.tensor([position])


class Shapeless(Bandit):
    """Returns no batch."""

    def play(self, model: nn.Module, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(3, 1), torch.zeros(2)
