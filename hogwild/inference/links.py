"""Missing links of a knowledge graph: the best tails of (head, relation, ?) and heads of (?, relation, tail), from a
model that scores every entity (`hogwild.models.ComplEx`, `DistMult`, `RotatE`, `TransE`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.data.ids import IdRows
from hogwild.errors import UsageError
from hogwild.inference.recommend import Recommendation

WITH_KNOWN = "the training data is not available: known answers may be included"


def complete(
    model: nn.Module,
    names: Mapping[str, Sequence[Any]],
    head: Any,
    relation: Any,
    tail: Any,
    top: int = 10,
    triples: np.ndarray | None = None,
) -> Recommendation:
    """Return the `top` entities with the highest score in the place of `head` or `tail`, whichever is None, without the
    answers in `triples` (N, 3) int, those of the training data. `names`: of `entities` and `relations`, by number.
    Raises UsageError for an unknown name, and unless exactly one place is None."""
    if (head is None) == (tail is None) or relation is None:
        raise UsageError("a question has a relation, and either a head or a tail", code="usage/bad-value")
    if not hasattr(model, "answer_scores"):
        raise UsageError(
            f"{type(model).__qualname__} cannot score entities; use hogwild.models.ComplEx, DistMult, RotatE or TransE",
            code="usage/no-graph",
        )
    side = 0 if tail is None else 1
    asked = IdRows(names["entities"]).number(head if side == 0 else tail, "entities")
    question = asked, IdRows(names["relations"]).number(relation, "relations"), asked
    scores: Tensor = model.answer_scores(torch.tensor([question]), side)[0]  # type: ignore[operator]
    if triples is not None:
        is_known = (triples[:, 2 * side] == asked) & (triples[:, 1] == question[1])
        scores[torch.from_numpy(triples[is_known, 2 - 2 * side].astype(np.int64))] = -torch.inf
    best, places = scores.topk(min(max(top, 0), len(scores)))
    found = [
        (names["entities"][place], score)
        for score, place in zip(best.tolist(), places.tolist(), strict=True)
        if score > -torch.inf
    ]
    return Recommendation(found, () if triples is not None else (WITH_KNOWN,))
