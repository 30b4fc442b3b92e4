"""Recommendations from a model that scores every item (`hogwild.models.MatrixFactorization`, `BprFactorization`).

    users (B,) ── model.scores ── minus what they have, minus what is not allowed ──> the best `top` of each
    a new user's items ── the vector that fits them (`fold_in`) ── scores ──'

An unknown user gets the most popular items (`item_appeal`: the items' biases), with a note. Items that the training
data never had, or no longer has, are not recommended. And missing links of a knowledge graph (`complete`): the best
tails of (head, relation, ?) and heads of (?, relation, tail), from a model that scores every entity."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.data.ids import IdRows
from hogwild.errors import UsageError, did_you_mean, shown_name
from hogwild.formatting import brief, counted
from hogwild.job.known_rows import NamedRows
from hogwild.storage.run_directory import KNOWN

log = logging.getLogger(__name__)
UNKNOWN = "user {user} is not in the training data: these are the most popular items{near}"
UNKNOWNS = "%s users are not in the training data, such as %s: they get the most popular items%s"
FEWER = "{found}, not {top:,}: {why}"  # of all that were asked for
ONLY = "no other may be recommended"
TOP = 10  # items, if there are so many
SCORES_AT_ONCE = 1 << 22
DRAWN = 2048  # items that stand for all others in `fold_in`
STEPS = 50
FAINT = 0.1  # a new user's penalty where the model has none, in standard deviations of its scores, and at least LEAST
LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Items and scores, best first. `notes`: messages for the user."""

    __repr__ = brief

    items: list[tuple[Any, float]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecommendedRows:
    """Recommendations for several users: a row per item, the users in their order, rank 1 is the best."""

    __repr__ = brief

    user: np.ndarray
    rank: np.ndarray
    item: np.ndarray
    score: np.ndarray

    def columns(self) -> list[tuple[str, np.ndarray]]:
        """Return the columns of a table."""
        return [("user", self.user), ("rank", self.rank), ("item", self.item), ("score", self.score)]


@dataclass(frozen=True, slots=True)
class Had:
    """The items of each user: those of user u are `items[starts[u]:starts[u + 1]]`. `others`: users that the model does
    not know, numbered from `users` on."""

    __repr__ = brief

    users: int
    starts: np.ndarray
    items: np.ndarray
    others: IdRows

    @classmethod
    def of(cls, users: int, arrays: Mapping[str, np.ndarray], others: Sequence[Any] = ()) -> "Had":
        """Return what `users` users have in a data set in packed form (arrays `user` and `item`), and the `others`."""
        order = np.argsort(arrays["user"], kind="stable")
        counts = np.bincount(arrays["user"], minlength=users + len(others))
        starts = np.concatenate([[0], np.cumsum(counts)])
        return cls(users, starts, np.asarray(arrays["item"])[order], IdRows(others))

    @classmethod
    def of_rows(cls, known: NamedRows) -> "Had":
        """Return what users have of the model's items."""
        rows = known.rows[known.rows[:, 1] < known.sizes["items"]]
        users = known.sizes["users"]
        return cls.of(users, {"user": rows[:, 0], "item": rows[:, 1]}, known.names["users"][users:])

    def rows(self, users: Sequence[Any], rows: np.ndarray) -> np.ndarray:
        """Return the numbers (B,) here of users with the model's numbers `rows` (B,); -1 for one without items."""
        found = rows.copy()
        for place in np.flatnonzero(rows < 0).tolist() if len(self.others) else ():
            number = self.others.row(users[place])
            found[place] = number if number < 0 else self.users + number
        return found

    def pairs(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (places in `users`, items) of all items of `users` (B,)."""
        counts = self.starts[users + 1] - self.starts[users]
        begins = np.repeat(self.starts[users] - np.cumsum(counts) + counts, counts)
        return np.repeat(np.arange(len(users)), counts), self.items[begins + np.arange(counts.sum())]


@dataclass(slots=True)
class ItemRanker:
    """Recommends items of `items` to users of `users`, named as in the training data (`hogwild.data.ids`). `had`: what
    users have already, None for nothing; `gone`: rows of items that the data no longer has. Neither is recommended.
    Raises UsageError for a model without scores."""

    __repr__ = brief

    model: Any
    users: Sequence[Any]
    items: Sequence[Any]
    had: Had | None = None
    gone: Sequence[int] = ()
    _allowed: Tensor = field(init=False)  # (items,) bool
    _user_rows: IdRows = field(init=False)
    _item_rows: IdRows = field(init=False)

    def __post_init__(self) -> None:
        if not (hasattr(self.model, "scores") and hasattr(self.model, "item_appeal")):
            raise UsageError(
                f"{type(self.model).__qualname__} cannot score items; use hogwild.models.MatrixFactorization, "
                "BprFactorization, or a model with the methods `scores` and `item_appeal`",
                code="usage/no-users",
            )
        self._user_rows, self._item_rows = IdRows(self.users), IdRows(self.items)
        self._allowed = self._without(torch.ones(len(self.items), dtype=torch.bool))

    def allow(self, names: Sequence[Any]) -> None:
        """Recommend only these items from now on. Raises UsageError for an unknown one."""
        allowed = torch.zeros(len(self.items), dtype=torch.bool)
        allowed[[self.row_of(name) for name in names]] = True
        self._allowed = self._without(allowed)

    def _without(self, allowed: Tensor) -> Tensor:
        allowed[[*self.gone]] = False
        return allowed

    def for_user(self, user: Any, top: int | None = None, exclude: Sequence[Any] = ()) -> Recommendation:
        """Return the `top` items with the highest score for `user`, by default 10; fewer if the user has most of them,
        and, with a note, if there are not so many; none of `exclude`. Raises UsageError for an unknown item."""
        row = self._user_rows.rows([user])
        found = self._named(self._scores([user], row), top, exclude)
        if row[0] < 0:
            unknown = UNKNOWN.format(user=shown_name(user), near=did_you_mean(user, self._user_rows))
            return replace(found, notes=(unknown, *found.notes))
        return found

    def for_users(
        self, users: Sequence[Any] | None = None, top: int | None = None, exclude: Sequence[Any] = ()
    ) -> Iterator[RecommendedRows]:
        """Yield the recommendations for `users`, by default all, block by block, as `for_user` gives them."""
        chosen = self.users if users is None else users
        size, items = max(1, SCORES_AT_ONCE // len(self.items)), _column(self.items)
        for note in fewer(int(self._allowed_without(exclude).sum()), "item", top, ONLY):
            log.warning("%s", note)
        if len(unknown := np.flatnonzero(self._user_rows.rows(chosen) < 0)):
            first, counts = chosen[unknown[0]], f"{len(unknown):,} of {len(chosen):,}"
            log.warning(UNKNOWNS, counts, shown_name(first), did_you_mean(first, self._user_rows))
        for start in range(0, len(chosen), size):
            names = chosen[start : start + size]
            rows = self._user_rows.rows(names)
            places, found = self._best(self._scores(names, rows), top, exclude)
            which, place = np.nonzero(np.isfinite(found))
            yield RecommendedRows(_column(names)[which], place + 1, items[places[which, place]], found[which, place])

    def for_items(
        self, rated: Mapping[Any, float | None], top: int | None = None, exclude: Sequence[Any] = ()
    ) -> Recommendation:
        """Return items for somebody new who has, or rated, the items of `rated` (name -> rating or None), without any
        training (`fold_in`). Raises UsageError for an unknown item, for a missing rating, and for one that the model
        does not know."""
        rows = [self.row_of(name) for name in rated]
        if len({*rows}) < len(rows):
            names = [shown_name(name) for name, row in zip(rated, rows, strict=True) if rows.count(row) > 1]
            raise UsageError(f"{' and '.join(names)} are one item: give it once", code="usage/bad-value")
        had = torch.tensor(rows)
        scores = fold_in(self.model, had, [*rated.values()])
        scores[had] = -torch.inf
        return self._named(scores[None], top, exclude)

    def knows(self, item: Any) -> bool:
        """Return whether an item has this name."""
        return self._item_rows.row(item) >= 0

    def row_of(self, item: Any) -> int:
        """Return the item's row. Raises UsageError with similar names for an unknown one."""
        return self._item_rows.number(item, "items")

    # ---- parts

    def _scores(self, names: Sequence[Any], rows: np.ndarray) -> Tensor:
        """Return scores (B, items) for users by name and number, -1 for an unknown one; -inf for what they have."""
        scores: Tensor = self.model.scores(torch.from_numpy(np.maximum(rows, 0))).detach().clone()
        if (rows < 0).any():
            scores[torch.from_numpy(rows < 0)] = self.model.item_appeal().detach()
        if self.had is not None:
            owners = self.had.rows(names, rows)
            known = np.flatnonzero(owners >= 0)
            users, items = self.had.pairs(owners[known])
            scores[torch.from_numpy(known[users]), torch.from_numpy(items).long()] = -torch.inf
        return scores

    def _best(self, scores: Tensor, top: int | None, exclude: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return places and scores (B, top or fewer), -inf for those that are not to be recommended."""
        if top is not None and (not isinstance(top, int | np.integer) or top < 1):
            raise UsageError(f"top must be a whole number >= 1, got {top!r}", code="usage/bad-value")
        allowed = self._allowed_without(exclude)
        scores = scores.masked_fill(~allowed, -torch.inf)
        found, places = scores.topk(min(TOP if top is None else int(top), int(allowed.sum())))
        return places.numpy(), found.numpy()

    def _allowed_without(self, exclude: Sequence[Any]) -> Tensor:
        allowed = self._allowed.clone()
        allowed[[self.row_of(name) for name in exclude]] = False
        return allowed

    def _named(self, scores: Tensor, top: int | None, exclude: Sequence[Any]) -> Recommendation:
        places, best = self._best(scores, top, exclude)
        pairs = zip(places[0].tolist(), best[0].tolist(), strict=True)
        found = [(self.items[place], score) for place, score in pairs if score > -np.inf]
        is_short = not found or len(places[0]) < (top or 0)  # not for each user who has some of the items
        return Recommendation(found, fewer(len(found), "item", top, ONLY) if is_short else ())


def fewer(found: int, what: str, top: int | None, why: str) -> tuple[str, ...]:
    """Return a note if fewer are found than `top`, or none."""
    return (FEWER.format(found=counted(found, what), top=top or TOP, why=why),) if found < (top or 1) else ()


def _column(names: Sequence[Any]) -> np.ndarray:
    """Return names as a column: of whole numbers, or of texts of any length each."""
    if all(isinstance(name, int | np.integer) for name in names):
        return np.asarray(names)
    return np.array([*map(str, names)], object)


def fold_in(model: Any, items: Tensor, ratings: Sequence[float | None]) -> Tensor:
    """Return the scores (items,) for a user with these `items` (n,) int64 and `ratings` (n,), whose vector minimises
    the model's own loss while the items' vectors stay: least squares for ratings; for a model without them the ranking
    loss against other items. Raises UsageError for a model without tables, and for a rating that is missing or not
    wanted."""
    if not hasattr(model, "score_tables"):
        raise UsageError(f"{type(model).__qualname__} has no `score_tables`, so nobody new fits", code="usage/no-users")
    has_ratings = hasattr(model, "mean")
    for number, rating in enumerate(ratings):
        if (rating is None) == has_ratings:
            rule = "needs the rating of each item" if has_ratings else "was trained without ratings"
            got = "has none" if has_ratings else f"has {rating:g}"
            raise UsageError(f"{type(model).__name__} {rule}; item {number + 1} {got}", code="usage/bad-value")
        if rating is not None and not np.isfinite(rating):
            raise UsageError(f"the rating of item {number + 1} is {rating}: it must be finite", code="usage/bad-value")
    users, vectors, constant = (table.detach().double() for table in model.score_tables())
    l2 = model.l2 or max(LEAST, FAINT * float((users[:256] @ vectors.T).std(correction=0)))
    if not has_ratings:
        return _ranked(vectors, constant, items, l2).float()
    has_bias = getattr(model, "user_bias", None) is not None
    known = torch.cat([vectors[items], torch.full((len(items), 1), float(has_bias), dtype=torch.float64)], 1)
    wanted = torch.tensor(ratings, dtype=torch.float64) - float(model.mean) - constant[items]
    table = known.T @ known + l2 / 2 * len(items) * torch.eye(known.shape[1], dtype=torch.float64)
    own = torch.linalg.solve(table, known.T @ wanted)
    scores: Tensor = vectors @ own[:-1] + constant + float(model.mean) + own[-1]
    return scores.float()


def _ranked(vectors: Tensor, constant: Tensor, items: Tensor, l2: float) -> Tensor:
    """Return scores (items,) of the vector that ranks `items` (n,) before others best."""
    others = torch.ones(len(vectors), dtype=torch.bool)
    others[items] = False
    drawn = others.nonzero().squeeze(1)
    if len(drawn) > DRAWN:  # evenly over the items
        drawn = drawn[torch.linspace(0, len(drawn) - 1, DRAWN).long()]
    own = nn.Parameter(torch.zeros(vectors.shape[1], dtype=vectors.dtype))
    rule = torch.optim.LBFGS([own], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        rule.zero_grad()
        scores = vectors @ own + constant
        found = l2 / 2 * own.square().sum()
        if len(drawn):
            found = found + F.softplus(scores[drawn] - scores[items, None]).mean()
        found.backward()
        return found.detach()

    with torch.enable_grad():
        rule.step(loss)
    return vectors @ own.detach() + constant


WITH_KNOWN = f"the run has no {KNOWN}: known answers may be included"


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
