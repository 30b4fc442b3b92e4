"""Data that a worker makes itself from the model it trains, as in reinforcement learning: a `Rollout`.

    lease of position p -> generator seeded by (seed, epoch, p) -> play(model, generator) -> a batch -> update -> commit

A position is a batch and an epoch has `updates_per_epoch` of them, so leases, ledger, stops and resumes are those of
any other data. Nothing is carried from one position to the next: a position whose worker died is played again by
another one, which has the same seed but not the dead worker's memory. So episodes begin and end inside a position.
"""

from abc import ABC, abstractmethod
from copy import copy

import torch
from torch import Tensor, nn

from hogwild.errors import DataError
from hogwild.feeds.batch import Batch
from hogwild.scheduling.batch_plan import batch_seed, rollout_seed
from hogwild.training.evaluator import EPOCH, evaluating
from hogwild.user_code import raised_text

TRIED = 0  # position that is played before the start, to see what batches are like


class Rollout(ABC):
    """Base class of data made from the model. As `data.train` it is what the model learns from, as `data.val` what it
    is judged by: the same positions, so the same seeds, in every evaluation.

    The object is pickled for the workers: make an environment in the first `play`, not in the constructor, and keep it
    as long as the worker lives; begin each `play` with a reset."""

    updates_per_epoch: int  # positions of an epoch

    @abstractmethod
    def play(self, model: nn.Module, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return a batch (input, …, target), each a tensor (B, …); B may differ from call to call.

        `model` has the parameters of now, which other workers change meanwhile; it is in eval mode, without gradients.
        Draw everything from `generator`, a seed for the environment too
        (`int(torch.randint(2**31, (), generator=generator))`): then a position that is played again has the same draws.
        An exception is charged to the position: it is tried again, and skipped after `supervise.max_item_attempts`."""


class RolloutFeed:
    """Plays the positions of an epoch. `is_val`: the seeds are those of evaluations, in every epoch the same."""

    def __init__(self, rollout: Rollout, model: nn.Module, seed: int, *, is_val: bool) -> None:
        self._rollout, self._model, self._seed, self._is_val = rollout, model, seed, is_val

    def gather(self, epoch: int, batch: int) -> Batch:
        """Play position `batch` of `epoch`. The default generator, which layers use, is seeded too and restored. Raises
        DataError if `play` returns no batch; adds a note on the position to what it raises itself."""
        epoch = EPOCH if self._is_val else epoch
        generator = torch.Generator().manual_seed(rollout_seed(self._seed, epoch, batch))
        what, name = "data.val" if self._is_val else "data.train", type(self._rollout).__name__
        try:
            with evaluating(self._model):
                torch.default_generator.manual_seed(batch_seed(self._seed, epoch, batch))
                played = self._rollout.play(self._model, generator)
        except Exception as error:
            error.add_note(f"{what}: {name}.play, epoch {epoch}, position {batch}, seed {generator.initial_seed()}")
            raise
        parts = played if isinstance(played, tuple) else ()
        are_tensors = len(parts) > 1 and all(isinstance(one, Tensor) and one.dim() and len(one) for one in parts)
        if not are_tensors or len({len(one) for one in parts}) > 1:
            shapes = [str(tuple(one.shape)) if isinstance(one, Tensor) else type(one).__name__ for one in parts]
            found = f"({', '.join(shapes)})" if isinstance(played, tuple) else f"a {type(played).__name__}"
            raise DataError(
                f"{what}: {name}.play returned {found}; it must return a tuple (input, …, target) of "
                "tensors of equally many rows, at least one",
                code="data/rollout",
            )
        return Batch(tuple(played[:-1]), played[-1], batch, 1)


def try_rollout(rollout: Rollout, model: nn.Module, seed: int, *, is_val: bool) -> tuple[Tensor, ...]:
    """Return the batch of one position, played before the start. Raises DataError if the environment raises.

    A copy plays, so that what the first `play` makes (an environment) is not pickled with the object."""
    what, updates = "data.val" if is_val else "data.train", getattr(rollout, "updates_per_epoch", None)
    name = type(rollout).__name__
    if not isinstance(updates, int) or updates < 1:
        raise DataError(
            f"{what}: {name}.updates_per_epoch is {updates!r}; it must be a whole number of at least 1: the number of "
            "positions in an epoch",
            code="data/rollout",
        )
    try:
        played = RolloutFeed(copy(rollout), model, seed, is_val=is_val).gather(0, TRIED)
    except DataError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"{what}: {name}.play raised {raised_text(error)}", code="data/rollout") from error
    return (*played.inputs, played.target)
