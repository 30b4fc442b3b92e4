"""Factorisation of what users have, without ratings: pairs of an item that a user has and one that it does not have.

BprFactorization    pairs with random items, `BprLoss`
WarpFactorization   pairs with items that rank too high, `WarpLoss`

Samples, tables and optimizers are those of `matrix_factorization.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad

from hogwild.kernels import signatures
from hogwild.kernels.fused import Arrays, Chunk, Hot, Side, Tally
from hogwild.losses import BprLoss, Violations, WarpLoss
from hogwild.models.matrix_factorization import (
    RULES,
    TABLES,
    FactorizationUpdate,
    Factors,
    embedding,
    loss_name,
    why_not,
)

PAIRS = 1 << 24  # users times items, one byte each: up to this size the model stores who has what
DRAWS = 8
TRAINED, HELD_BACK = 1, 2
HALF, EULER = 0.5, 0.57722  # of the harmonic number in kernels/bpr.py


class BprFactorization(Factors):
    """Bayesian personalised ranking (Rendle et al. 2009): item_bias[i] + user[u] . item[i] should be higher for an item
    that a user has than for one it does not have. For `BprLoss`.

    Its output is the margin between the item of the sample and a drawn one: random in training, always the same in
    evaluation, so that evaluations can be compared. Only items of the training data are drawn. An item that the user
    has is drawn again, as in the fused update (in an evaluation, an item that it has in either part of the data), if
    users times items are at most 16 million; beyond that a user has few of the items, and this is not checked. Raises
    ValueError for a size below 1.

    Arguments:
        users: different users.
        items: different items.
        factors: numbers of a user's or an item's vector.
        l2: penalty on the three rows that a pair touches, as in MatrixFactorization.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        user_features: different features of users, from the data; a user is the sum of their rows and its own.
        item_features: the same of items."""

    had: Tensor
    drawable: Tensor
    spread = 0.02  # margins are differences: more of it takes epochs to forget
    tries = 0  # of kernels/bpr.py
    loss: type[BprLoss | WarpLoss] = BprLoss

    def __init__(
        self,
        users: int,
        items: int,
        factors: int = 32,
        l2: float = 0.0,
        sparse: bool = True,
        user_features: int = 0,
        item_features: int = 0,
    ) -> None:
        super().__init__(users, items, factors, l2, sparse)
        if items < 2:
            raise ValueError("items is 1; a pair needs two")
        self.item_bias = embedding(items, 1, 0.0, sparse)
        self.add_features(user_features, item_features, sparse)
        self.register_buffer("had", torch.zeros(0, 0, dtype=torch.uint8), persistent=False)
        self.register_buffer("drawable", torch.arange(items), persistent=False)

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data as every factorisation does; store who has what, and which items may be drawn."""
        super().on_data(train, val)
        items = drawable_items(train["item"], self.item.num_embeddings)
        self.drawable = torch.from_numpy(items.astype(np.int64))
        if self.user.num_embeddings * self.item.num_embeddings > PAIRS:
            return
        had = np.zeros((self.user.num_embeddings, self.item.num_embeddings), np.uint8)
        for part, mark in ((train, TRAINED), (val, HELD_BACK)):
            if part is not None:
                had[part["user"], part["item"]] |= mark
        self.had = torch.from_numpy(had)

    def forward(self, user: Tensor, item: Tensor) -> Any:
        """Return margins (B,) for user (B,), item (B,) int."""
        return self._margins(user, item, self.drawn(user, item))

    def _margins(self, user: Tensor, item: Tensor, other: Tensor, paid: Tensor | None = None) -> Tensor:
        """Return margins (B,); the penalty is only that of samples in `paid` (B, 1), 0 or 1."""
        own = self.summed("item", item, paid) - self.summed("item", other, paid)
        bias = self.summed("item_bias", item, paid) - self.summed("item_bias", other, paid)
        margins: Tensor = (self.summed("user", user, paid) * own).sum(-1) + bias.squeeze(-1)
        return margins

    def drawn(self, user: Tensor, item: Tensor) -> Tensor:
        """Return (B,) int64: another item for each sample, in training from torch's generator. If a user has (nearly)
        every item, it may be one that the user has."""
        found = self._draw(user, item, 0)
        marks = TRAINED if self.training else TRAINED | HELD_BACK  # training must not know the validation data
        for number in range(1, DRAWS if len(self.had) else 0):
            again = (self.had[user.long(), found] & marks) != 0
            found = torch.where(again, self._draw(user, item, number), found)
        return found

    def _draw(self, user: Tensor, item: Tensor, number: int) -> Tensor:
        others = len(self.drawable) - 1
        if self.training:
            place = torch.randint(others, item.shape, device=item.device)
        else:
            mixed = user.long() * 2_654_435_761 + item.long() * 40_503 + number * 7_919 + 12_345
            place = (mixed % 2_147_483_647 * 48_271) % 2_147_483_647 % others
        return self.drawable[place + (place >= torch.searchsorted(self.drawable, item.long()))]

    @torch.no_grad()
    def scores(self, users: Tensor) -> Tensor:
        """Return (B, items) scores for `users` (B,): higher is better; they are not ratings. No gradient."""
        return self.summed("user", users) @ self.whole("item").T + self.whole("item_bias").squeeze(-1)

    @torch.no_grad()
    def item_appeal(self) -> Tensor:
        """Return (items,), the scores for an unknown user: the item's bias, which grows with its popularity."""
        return self.whole("item_bias").squeeze(-1)

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        """Return the compiled update for the model's own loss with SGD or Adagrad, or the reason for none."""
        if type(loss) is not self.loss:
            return f"its fused update is for hogwild.losses.{self.loss.__name__}, not for {loss_name(loss)}"
        update = HybridUpdate if self.features else RankingUpdate
        return why_not(self, optimizer, [SGD, Adagrad]) or update(type(optimizer), self.tries, loss.alpha)


class WarpFactorization(BprFactorization):
    """WARP, weighted approximate-rank pairwise (Weston, Bengio and Usunier 2011): as BprFactorization, but items are
    drawn until one scores less than 1 below the item of the sample, or higher; only then is something learnt, and more
    if this took few draws: the item of the sample then ranks low. It aims at the top of the list. For `WarpLoss`.

    Its output in training is `hogwild.losses.Violations`, in evaluation the margins of a BprFactorization. Raises
    ValueError for a size below 1, or `tries` below 1.

    Arguments:
        users: different users.
        items: different items.
        factors: numbers of a user's or an item's vector.
        l2: penalty on the three rows that a pair touches, as in MatrixFactorization.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        tries: items that are drawn for a sample at most.
        user_features: different features of users, from the data; a user is the sum of their rows and its own.
        item_features: the same of items."""

    loss = WarpLoss

    def __init__(
        self,
        users: int,
        items: int,
        factors: int = 32,
        l2: float = 0.0,
        sparse: bool = True,
        tries: int = 16,
        user_features: int = 0,
        item_features: int = 0,
    ) -> None:
        super().__init__(users, items, factors, l2, sparse, user_features, item_features)
        if tries < 1:
            raise ValueError(f"tries is {tries}; there must be one at least")
        self.tries = tries

    def forward(self, user: Tensor, item: Tensor) -> Any:
        """Return violations of B samples, or in evaluation margins (B,), for user (B,), item (B,) int."""
        if not self.training:
            return super().forward(user, item)
        other, weights = self.violating(user, item)
        return Violations(self._margins(user, item, other, (weights > 0)[:, None].to(weights)), weights)

    @torch.no_grad()
    def violating(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B,) int64, the first drawn item with a margin below 1 for each sample, and (B,) its weight, 0 where
        none was found."""
        drawn = torch.stack([self._draw(user, item, number) for number in range(self.tries)], 1)  # (B, tries)
        every = [one.repeat_interleave(self.tries) for one in (user, item)]
        is_other = torch.ones_like(drawn, dtype=torch.bool)
        others = torch.full(item.shape, len(self.drawable) - 1, device=item.device)
        if len(self.had):
            of_user = self.had[user.long()] & TRAINED
            is_other = of_user.gather(1, drawn) == 0
            others = len(self.drawable) - of_user.sum(1)
        violates = is_other & (self._margins(every[0], every[1], drawn.flatten()).view_as(drawn) < 1)
        first = violates.to(torch.uint8).argmax(1, keepdim=True)
        draws = is_other.cumsum(1).gather(1, first).clamp_min(1).squeeze(1)
        rank = torch.div(others, draws, rounding_mode="floor").clamp_min(1)
        weights = ((rank + HALF).log() + EULER) * violates.any(1)
        return drawn.gather(1, first).squeeze(1), weights.to(self.item.weight.dtype)


def drawable_items(item: np.ndarray, items: int) -> np.ndarray:
    """Return the items of the training data (D,) int32, ascending; all `items` if it has fewer than two. A row that the
    data lacks (one kept by a run that continues) is nobody's wrong answer."""
    found = np.flatnonzero(np.bincount(item, minlength=items)).astype(np.int32)
    return found if len(found) > 1 else np.arange(items, dtype=np.int32)


class RankingUpdate(FactorizationUpdate):
    """Fused update of a BprFactorization or a WarpFactorization, pair by pair. A sample of a user who has every item
    makes no pair: it is neither applied nor counted as not finite.

    Each worker stores which items a user has: 8 bytes per user, and the data itself if it is sorted by user and item,
    as hogwild.data.Ratings is; otherwise also a sorted copy, 4 bytes per sample."""

    sides = (Side("user", (TABLES[0],)), Side("item", (TABLES[1], TABLES[3]), is_drawn=True))

    def __init__(self, rule: type, tries: int, alpha: float) -> None:
        super().__init__(rule)
        self.name = f"{'WARP' if tries else 'Bayesian personalised ranking'}, {RULES[rule]}"
        self.kernels = signatures.pairs(rule.__name__, has_features=False)
        self._choice = tries, np.float32(alpha)

    def bind(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind as FusedUpdate says. Raises ModelError if the data names rows that the tables lack."""
        from hogwild.kernels.bpr import train
        from hogwild.kernels.pair_order import items_by_user

        super().bind(model, optimizer, arrays, hot)
        self._kernel = train
        bounds, had, _ = items_by_user(arrays["user"], arrays["item"], len(self._tables[0]))
        self._had = bounds, had, drawable_items(arrays["item"], len(self._tables[1]))
        del self._tables[2], self._sums[2]  # users have no bias: it is the same for both items of a pair
        self._members: list[np.ndarray] = []

    def run(self, chunk: Chunk) -> Tally:
        """Update the pairs; those with a NaN or infinite margin are counted and not applied."""
        samples = (self._arrays[name] for name in ("user", "item", "rating"))
        sums = self._tables if self._rule is SGD else self._sums
        loss, applied, alone = self._kernel(
            *(chunk.rows, *samples, *self._had, np.uint64(chunk.seed), *self._choice, *self._members),
            *(*self._tables, *sums, self._rates * np.float32(chunk.rate), self._decays, self._epsilons),
            signatures.RULES[self._rule.__name__],
        )
        return Tally(loss, applied, len(chunk.rows) - applied - alone)


class HybridUpdate(RankingUpdate):
    """Fused update of a model whose users or items have features."""

    tables = (*TABLES, "user_feature.weight", "item_feature.weight", "item_feature_bias.weight")

    def __init__(self, rule: type, tries: int, alpha: float) -> None:
        super().__init__(rule, tries, alpha)
        self.name += ", rows as sums of features"
        self.kernels = signatures.pairs(rule.__name__, has_features=True)

    def bind(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind as FusedUpdate says. Raises ModelError if the data names rows that the tables lack."""
        from hogwild.kernels.hybrid import train

        super().bind(model, optimizer, arrays, hot)
        assert isinstance(model, Factors)
        self._kernel = train
        for side, rows in zip(("user", "item"), self._tables, strict=False):
            none = np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
            has = side in model.features
            self._members += [part.numpy() for part in model.members(side)] if has else none
