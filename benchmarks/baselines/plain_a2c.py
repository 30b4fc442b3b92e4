"""Advantage actor-critic in one process, the plain loop: an episode, an update, and again, with what examples/cartpole
trains: its model, game and loss, with torch's RMSprop and one thread.

Fair: nothing is sent, saved or supervised; the model is judged as often as ours, on the same number of episodes."""

import sys
import time
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.sparse_peers import Found, answer

CARTPOLE = ROOT / "examples" / "cartpole"


def measure(*, threads: int, updates: int, episodes: int, goal: float, rate: float, most: int, seed: int) -> Found:
    """Judge by `episodes` games after every `updates` updates, until their mean return is `goal`, or `most` updates."""
    import torch

    sys.path.insert(0, str(CARTPOLE))
    from cartpole import ActorCritic, ActorCriticLoss, CartPole

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, loss, game, judge = ActorCritic(), ActorCriticLoss(), CartPole(updates), CartPole(episodes, greedy=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=rate)
    curve, played, began = [], 0, time.perf_counter()
    while not curve or (curve[-1][1] < goal and played < most):
        for _ in range(updates):
            with torch.no_grad():
                states, targets = game.play(model, generator)
            optimizer.zero_grad()
            loss(model(states), targets).backward()
            optimizer.step()
            played += 1
        curve.append((time.perf_counter() - began, mean_return(model, judge, seed)))
    took = time.perf_counter() - began
    return Found(played / took, [*curve[:-1], (took, curve[-1][1])], torch.__version__, note="a plain A2C")


def mean_return(model: Any, judge: Any, seed: int) -> float:
    """Return the rewards of the episodes of a CartPole, the same ones for a seed."""
    import torch

    generator = torch.Generator().manual_seed(-1 - seed)
    with torch.no_grad():
        returns = [float(judge.play(model, generator)[1][-1, -1]) for _ in range(judge.updates_per_epoch)]
    return sum(returns) / len(returns)


if __name__ == "__main__":
    answer(measure)
