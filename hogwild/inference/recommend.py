"""Recommendations for a user from a model that scores every item (`hogwild.models.MatrixFactorization`,
`BprFactorization`).

Unknown users get the most popular items (`item_appeal`: the items' biases), with a note. Items that are not in the
training data are never recommended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.errors import UsageError

UNKNOWN = "user {user} is not in the training data: these are the most popular items"
WITH_RATED = "the training data is not available: items that the user has rated may be included"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommended items. `items`: (name, score), best first. `notes`: caveats, one sentence each."""

    items: list[tuple[Any, float]]
    notes: tuple[str, ...] = ()


def recommend(
    model: nn.Module, names: Mapping[str, Sequence[Any]], user: Any, top: int = 10, seen: np.ndarray | None = None
) -> Recommendation:
    """Return the `top` items with the highest score for `user`, without the item numbers in `seen` (n,) int, which the
    user has rated (`items_of`); fewer if there are no more. `names`: of `users` and `items`, by number; 42 and "42" are
    the same. Raises UsageError for a model without scores."""
    number = number_of(names["users"], user)
    notes = [] if number is not None else [UNKNOWN.format(user=user)]
    if number is not None and seen is None:
        notes.append(WITH_RATED)
    found = scores(model, number).clone()
    if seen is not None and len(seen):
        found[torch.as_tensor(np.asarray(seen, np.int64))] = -torch.inf
    best, places = found.topk(min(top, len(found)))
    items = [(names["items"][place], score) for score, place in zip(best.tolist(), places.tolist(), strict=True)]
    return Recommendation([one for one in items if one[1] > -torch.inf], tuple(notes))


def scores(model: nn.Module, user: int | None) -> Tensor:
    """Return (items,) float32: this user's score of each item or, for None, the item's general appeal. Raises
    UsageError for a model without scores."""
    if not (hasattr(model, "scores") and hasattr(model, "item_appeal")):
        raise UsageError(
            f"{type(model).__qualname__} cannot score items; use hogwild.models.MatrixFactorization, BprFactorization, "
            "or a model with the methods `scores` and `item_appeal`",
            code="usage/no-users",
        )
    with torch.no_grad():
        found: Tensor = model.item_appeal() if user is None else model.scores(torch.tensor([user]))[0]  # type: ignore[operator]
    return found


def number_of(names: Sequence[Any], name: Any) -> int | None:
    """Return the place of a name, or None. A command line passes only text, so 42 equals "42"."""
    wanted = str(name)
    return next((number for number, one in enumerate(names) if str(one) == wanted), None)


def items_of(arrays: Mapping[str, np.ndarray], user: int) -> np.ndarray:
    """Return the items (n,) that a user has in the data, sorted and unique: the `seen` of `recommend`."""
    found: np.ndarray = np.unique(arrays["item"][arrays["user"] == user])
    return found
