"""Asynchronous advantage actor-critic (A3C; Mnih et al. 2016, algorithm S3) on CartPole-v1 of gymnasium (`pip install
"hogwild[rl]"`). Every worker plays with the shared parameters of now and adds its update to them; job.yaml names the
classes."""

import gymnasium
import torch
from torch import Tensor, nn

from hogwild.data import Rollout

OBSERVATIONS, ACTIONS = 4, 2


class ActorCritic(nn.Module):
    """Two small networks: the actor's logits of actions, and the critic's value of the state."""

    metrics = ("episode_return",)

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(OBSERVATIONS, hidden), nn.Tanh(), nn.Linear(hidden, ACTIONS))
        self.critic = nn.Sequential(nn.Linear(OBSERVATIONS, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, state: Tensor) -> Tensor:
        """state (B, 4) -> (B, 3): two logits and a value."""
        return torch.cat([self.actor(state), self.critic(state)], 1)


class CartPole(Rollout):
    """A position is one episode, at most 500 steps. `segment`: steps of a return before the critic's value is added
    (t_max in the paper); `scale` divides rewards, so that values stay near 1; `greedy`: play the best action."""

    def __init__(
        self,
        updates_per_epoch: int,
        segment: int = 20,
        discount: float = 0.99,
        scale: float = 100.0,
        greedy: bool = False,
    ) -> None:
        self.updates_per_epoch = updates_per_epoch
        self.segment, self.discount, self.scale, self.greedy = segment, discount, scale, greedy
        self.game: gymnasium.Env | None = None  # made in the worker, which keeps it

    def play(self, model: nn.Module, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return states (T, 4) and targets (T, 3): action, return, total reward (NaN before the last step)."""
        game = self.game = self.game or gymnasium.make("CartPole-v1")
        state, _ = game.reset(seed=int(torch.randint(2**31, (), generator=generator)))
        states, actions, rewards, values = [], [], [], []
        is_over = is_cut = False
        while not (is_over or is_cut):
            states.append(torch.from_numpy(state))
            *logits, value = model(states[-1][None])[0].split([ACTIONS, 1])
            odds = logits[0].softmax(0)
            action = int(odds.argmax() if self.greedy else torch.multinomial(odds, 1, generator=generator))
            state, reward, is_over, is_cut, _ = game.step(action)
            actions.append(action)
            rewards.append(float(reward))
            values.append(float(value))
        values.append(0.0 if is_over else float(model(torch.from_numpy(state)[None])[0, -1]))
        targets = torch.full((len(actions), 3), torch.nan)
        targets[:, 0] = torch.tensor(actions)
        targets[:, 1] = torch.tensor(self._returns(rewards, values))
        targets[-1, 2] = sum(rewards)
        return torch.stack(states), targets

    def _returns(self, rewards: list[float], values: list[float]) -> list[float]:
        """Return the discounted rewards up to the end of each step's segment, plus the value there. `values`: of every
        state, and of the one after the last."""
        found, total = [0.0] * len(rewards), values[-1]
        for step in reversed(range(len(rewards))):
            if (step + 1) % self.segment == 0:
                total = values[step + 1]
            total = found[step] = rewards[step] / self.scale + self.discount * total
        return found


class ActorCriticLoss(nn.Module):
    """Policy gradient with the advantage (return - value), squared error of the value, and entropy, which keeps the
    policy from deciding too early."""

    def __init__(self, value: float = 0.5, entropy: float = 0.01) -> None:
        super().__init__()
        self.value, self.entropy = value, entropy

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        log_odds = output[:, :ACTIONS].log_softmax(1)
        surplus = target[:, 1] - output[:, ACTIONS]
        played = log_odds.gather(1, target[:, :1].long())[:, 0]
        entropy = -(log_odds.exp() * log_odds).sum(1)
        return (-played * surplus.detach() + self.value * surplus.square() - self.entropy * entropy).mean()
