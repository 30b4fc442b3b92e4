"""Reinforcement learning: examples/cartpole by two workers (A3C) beside the same by one plain process (A2C), until the
greedy policy has a mean return of GOAL: `make bench-rollouts`, about ten minutes on 2 cores. Run nothing else
meanwhile.

How many episodes it takes is chance, for both; hence SEEDS seeds, whose seconds are added up."""

import statistics
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks import results, sparse_peers
from benchmarks.baselines.plain_a2c import CARTPOLE, mean_return
from benchmarks.bench import say
from benchmarks.commands import job
from benchmarks.dense import on_cores
from benchmarks.figures import Figure
from benchmarks.row import Row

SUITE = "rollouts"
SEEDS, GOAL = 24, 475.0
UPDATES, EPISODES, EPOCHS = 50, 20, 80  # of an epoch; of a judgement after each; at most
RATE = 0.002  # the example's: of a few tried, the one that took the plain loop the fewest episodes
FRESH = 100  # other episodes, for the models of both
RETURN = f"A3C CartPole, 2 workers: mean return of {FRESH} other episodes, the worst of {SEEDS} seeds"
TIME = Figure(
    f"A3C CartPole, 2 workers: seconds to a mean return of {GOAL:g}, sum of {SEEDS} seeds, over a plain A2C",
    0.6, smaller_is_better=True,
)  # fmt: skip


def ours(seed: int, run: Path) -> tuple[float, int, float]:
    """(seconds of training, evaluations included, updates, mean return of fresh episodes)."""
    data = f"{{updates_per_epoch: {UPDATES}}}"
    _, summary = job(
        "train", str(CARTPOLE / "job.yaml"), "--procs", "2", "train.threads=1", f"seed={seed}",
        f"data.train.init_args={data}", f"optimizer.init_args.lr={RATE}", f"train.epochs={EPOCHS}", run_dir=run,
    )  # fmt: skip
    found = fresh_return(load_file(run / "checkpoints" / "best" / "model.safetensors"))
    say(f"ours, seed {seed}: {summary['train_s']:.2f} s, {summary['updates']} updates, {found:.0f}")
    return float(summary["train_s"]), int(summary["updates"]), found


def fresh_return(state: dict[str, torch.Tensor]) -> float:
    """Return the reward of a model with these parameters, over episodes nobody was judged by."""
    from cartpole import ActorCritic, CartPole

    model = ActorCritic()
    model.load_state_dict(state)
    return mean_return(model, CartPole(FRESH, greedy=True), 1_000_000)


def measure(seeds: int) -> list[Row]:
    sys.path.insert(0, str(CARTPOLE))
    how = {"rate": RATE, "updates": UPDATES, "episodes": EPISODES, "goal": GOAL, "most": EPOCHS * UPDATES}
    mine, theirs = [], []
    with tempfile.TemporaryDirectory() as folder, on_cores(2):
        for seed in range(seeds):
            mine.append(ours(seed, Path(folder) / str(seed)))
            theirs.append(sparse_peers.run("plain_a2c", threads=1, seed=seed, **how))
            say(f"plain, seed {seed}: {theirs[-1].curve[-1][0]:.2f} s, {len(theirs[-1].curve) * UPDATES} updates")
    took, found = [one[0] for one in mine], [one[2] for one in mine]
    plain = [one.curve[-1][0] for one in theirs]
    words = (
        f"ours {statistics.fmean(one[1] for one in mine):.0f} episodes on average, the plain one "
        f"{statistics.fmean(len(one.curve) * UPDATES for one in theirs):.0f}; seconds, seed by seed: ours "
        f"{', '.join(f'{one:.1f}' for one in took)}; plain {', '.join(f'{one:.1f}' for one in plain)}"
    )
    reached = f"{sum(one >= GOAL for one in found)} of {len(found)} seeds reach {GOAL:g}"
    return [
        Row(RETURN, "", GOAL, found, note=reached, center="worst"),
        TIME.row([sum(took) / sum(plain)], sum(plain), words),
    ]


def main() -> None:
    described = results.begin()
    results.update(SUITE, measure(SEEDS), described)


if __name__ == "__main__":
    main()
