"""The batch as a worker gets it, and the protocol of the feeds that gather it into reused buffers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hogwild.errors import DataError
from hogwild.scheduling.batch_plan import transform_seed
from hogwild.user_code import raised_text


class Batch(NamedTuple):
    """A gathered batch. The tensors are views of the feed's buffers, valid until the next `gather`. (A tuple is made in
    a quarter of a frozen dataclass's time.)"""

    inputs: tuple[Tensor, ...]
    target: Tensor
    first_position: int
    size: int


class Feed(Protocol):
    """Turns batch numbers into batches in reused buffers."""

    def gather(self, epoch: int, batch: int) -> Batch: ...


Transform = Callable[..., Any]


class TransformedFeed:
    """`data.transform`: applied to each batch between the shared data and the model, in the worker that trains on it.

        transform(*inputs, target) -> (*inputs, target)

    Inputs and target are tensors (B, …) in the order of the data set's fields, or nested like the batches of a stream,
    in buffers of the feed, so they may be changed in place. The same number of tensors must be returned, with B rows
    each; type and shape of a row may change. torch's generator is seeded per batch, so random flips and crops are the
    same in any process. Evaluation batches are not transformed: what every sample needs belongs into the data set or
    the model."""

    def __init__(self, feed: Feed, transform: Transform, seed: int) -> None:
        self._feed, self._transform, self._seed = feed, transform, seed

    def gather(self, epoch: int, batch: int) -> Batch:
        """Return the transformed batch. Raises what the transform raises, and DataError for a bad result."""
        plain = self._feed.gather(epoch, batch)
        torch.default_generator.manual_seed(transform_seed(self._seed, epoch, plain.first_position))
        *inputs, target = transformed(self._transform, (*plain.inputs, plain.target))
        return Batch(tuple(inputs), target, plain.first_position, plain.size)


def transformed(transform: Transform, fields: Sequence[Any]) -> tuple[Any, ...]:
    """Return the transformed `fields` (B, …): inputs first, target last, nested like the batches of a stream. Raises
    DataError."""
    rows = len(fields[-1])  # before the transform, which may change the target
    answer = transform(*fields)
    leaves = tree_leaves(answer) if isinstance(answer, (tuple, list)) else []
    if not leaves or not all(isinstance(field, Tensor) for field in leaves):
        raise _refused(f"returned a {type(answer).__name__} that is not a tuple of tensors", fields)
    # With a user's collate_fn only the target is certain to have one row per sample.
    is_plain = all(isinstance(field, Tensor) for field in fields)
    wrong = any(not leaf.dim() or len(leaf) != rows for leaf in (leaves if is_plain else leaves[-1:]))
    if len(answer) != len(fields) or wrong:
        shapes = ", ".join(str(tuple(field.shape)) for field in leaves)
        raise _refused(f"returned tensors of shape {shapes} for a batch of {rows}", fields)
    return tuple(answer)


def tried(transform: Transform, fields: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run the transform on a few samples before training; errors in the user's code become a DataError, too."""
    try:
        return transformed(transform, fields)
    except DataError:
        raise
    except (Exception, SystemExit) as error:
        raise _refused(f"raised on the first samples {raised_text(error)}", fields) from error


def _refused(what: str, fields: Sequence[Tensor]) -> DataError:
    return DataError(
        f"data.transform {what}; it is called as transform(*inputs, target) with {len(fields)} tensors of one batch "
        f"and must return {len(fields)} tensors with the same number of rows",
        code="data/transform",
    )
