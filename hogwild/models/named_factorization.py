"""Factorisations of users and items that are asked for by id, as a stream brings them, also those that nobody has seen
before; and their compiled updates: those of `MatrixFactorization` and `BprFactorization`, on the rows that the ids
have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from hogwild.errors import UsageError
from hogwild.kernels import optimizer_rules, signatures
from hogwild.kernels.fused import Arrays, Chunk, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import Numbers
from hogwild.kernels.signatures import GONE, HEAD, WIDEST
from hogwild.losses import BprLoss
from hogwild.models.matrix_factorization import (
    ALONE,
    NOWHERE,
    RULES,
    BprFactorization,
    MatrixFactorization,
    is_mean_square,
    loss_name,
    penalised,
)
from hogwild.models.named_rows import BiasedRows, any_ids
from hogwild.nn import NamedEmbedding

SPREAD = 0.1  # initial standard deviation of a vector's numbers, as of a MatrixFactorization
LOOKS = 4  # places of the table that are looked at for each item that a batch wants drawn
FEWEST = 256  # items to draw from; with fewer found so, all are looked for


class NamedFactors(nn.Module):
    """Base class: a table of users, one of items with their biases, and a penalty. Raises UsageError for a negative
    one."""

    users: NamedEmbedding
    items: BiasedRows

    def __init__(self, l2: float) -> None:
        super().__init__()
        if not l2 >= 0:
            raise UsageError(f"{type(self).__name__}: l2 must not be negative, got {l2!r}", code="usage/bad-value")
        self.l2 = l2

    def drop_penalty(self) -> None:
        """For a comparison of gradients with the loss, which lacks the penalty: only the backward pass pays it."""
        self.l2 = 0.0

    def why_not(self, optimizer: torch.optim.Optimizer) -> str:
        """Return the reason against a compiled update; "" if there is none."""
        for name, one in (("users", self.users), ("items", self.items)):
            if one.weight.dtype != torch.float32 or not one.weight.requires_grad:
                return f"{name}.weight is frozen, or not float32"
        return optimizer_rules.why_not(optimizer) or ""

    def _named(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return ids and rows of users and of items. Raises UsageError if there are none yet."""
        found = self.users.named(), self.items.named()
        if not all(len(ids) for ids, _ in found):
            raise UsageError("its model has not met any users and items yet", code="usage/no-users")
        return found


class NamedFactorization(NamedFactors):
    """A `MatrixFactorization` whose users and items are asked for by id: any int64, such as `Follow` makes of `ids`. An
    id gets its row in the first training batch that has it; see `hogwild.nn.NamedEmbedding`. For `torch.nn.MSELoss`.

        user, item (B,) int64  ->  ratings (B,): mean + bias of user + bias of item + product of their vectors

    A row of `users` and `items` is the bias, then the vector. Raises UsageError for a size below 1.

    Arguments:
        user_capacity: users that have a row of their own at first.
        item_capacity: the same of items.
        factors: numbers of a user's or an item's vector; with more than 128 there is no compiled update.
        mean: constant of all ratings.
        l2: penalty on the rows that a rating touches, once per rating.
        min_count: a user or an item gets its own row when training sees it for the so-manieth time.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        user_max_capacity: users that have a row of their own at most; null: `user_capacity`.
        item_max_capacity: the same of items.
        expire_after: a user or an item that is not in so many training batches loses its row; null: never."""

    mean: Tensor

    def __init__(
        self,
        user_capacity: int,
        item_capacity: int,
        factors: int = 32,
        mean: float = 0.0,
        l2: float = 0.0,
        min_count: int = 1,
        sparse: bool = True,
        user_max_capacity: int | None = None,
        item_max_capacity: int | None = None,
        expire_after: int | None = None,
    ) -> None:
        super().__init__(l2)
        more: Any = {"min_count": min_count, "sparse": sparse, "std": SPREAD, "expire_after": expire_after}
        self.items = BiasedRows(factors, item_capacity, max_capacity=item_max_capacity, **more)
        self.users = BiasedRows(factors, user_capacity, max_capacity=user_max_capacity, **more)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return ratings (B,) for user (B,), item (B,) int64."""
        share = self.l2 / max(1, len(user))
        of_user, of_item = (penalised(table(ids), share) for table, ids in ((self.users, user), (self.items, item)))
        products: Tensor = (of_user[:, 1:] * of_item[:, 1:]).sum(-1)
        return products + of_user[:, 0] + of_item[:, 0] + self.mean

    @torch.no_grad()
    def numbered(self) -> tuple[MatrixFactorization, list[int], list[int]]:
        """Return the same model of numbered users and items, those that have a row, and their ids. Raises UsageError if
        it has none yet."""
        (users, user_rows), (items, item_rows) = self._named()
        factors = self.users.embedding_dim - 1
        model = MatrixFactorization(len(users), len(items), factors, mean=float(self.mean), l2=self.l2)
        for table, bias, rows in ((model.user, model.user_bias, user_rows), (model.item, model.item_bias, item_rows)):
            table.weight.copy_(rows[:, 1:])
            assert bias is not None
            bias.weight.copy_(rows[:, :1])
        return model.eval(), users.tolist(), items.tolist()

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        """Return the compiled update (mean squared error; SGD, Adagrad), or the reason for none."""
        if not is_mean_square(loss):
            return f"its fused update is for torch.nn.MSELoss, not for {loss_name(loss)}"
        factors = self.users.embedding_dim - 1
        if factors > WIDEST:
            return f"its fused update is for {WIDEST} factors at most, not for {factors}"
        return self.why_not(optimizer) or NamedRatingsUpdate(type(optimizer), factors)


class NamedBprFactorization(NamedFactors):
    """A `BprFactorization` whose users and items are asked for by id, for events of a stream: a user, and an item that
    it has clicked, bought or heard. For `BprLoss`. See `NamedFactorization` for the ids, and `Follow` with `target: []`
    for events without a number.

        user, item (B,) int64  ->  margins (B,): bias of item + user . item, less the same of another item

    The other item is any of those that have a row; nobody remembers what a user of a stream has, so it may be one that
    it has. In evaluation it is always the same. A row of `items` is the bias, then the vector. Raises UsageError for a
    size below 1.

    Arguments:
        user_capacity: users that have a row of their own at first.
        item_capacity: the same of items.
        factors: numbers of a user's or an item's vector.
        l2: penalty on the three rows that a pair touches, once per pair.
        min_count: a user or an item gets its own row when training sees it for the so-manieth time.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        user_max_capacity: users that have a row of their own at most; null: `user_capacity`.
        item_max_capacity: the same of items.
        expire_after: a user or an item that is not in so many training batches loses its row; null: never."""

    def __init__(
        self,
        user_capacity: int,
        item_capacity: int,
        factors: int = 32,
        l2: float = 0.0,
        min_count: int = 1,
        sparse: bool = True,
        user_max_capacity: int | None = None,
        item_max_capacity: int | None = None,
        expire_after: int | None = None,
    ) -> None:
        super().__init__(l2)
        spread = BprFactorization.spread
        more: Any = {"min_count": min_count, "sparse": sparse, "std": spread, "expire_after": expire_after}
        self.items = BiasedRows(factors, item_capacity, max_capacity=item_max_capacity, **more)
        self.users = NamedEmbedding(factors, user_capacity, max_capacity=user_max_capacity, **more)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return margins (B,) for user (B,), item (B,) int64."""
        share = self.l2 / max(1, len(user))
        of_user, rows = penalised(self.users(user), share), self.items.rows_of(item, claim=self.training)
        both = functional.embedding(
            torch.cat([rows, self._other(user, item)]), self.items.weight, sparse=self.items.sparse
        )
        own, other = penalised(both, share).chunk(2)
        margins: Tensor = (of_user * (own[:, 1:] - other[:, 1:])).sum(-1) + own[:, 0] - other[:, 0]
        return margins

    def drawable(self, wanted: int, draws: np.random.Generator | None) -> np.ndarray:
        """Return rows (n,) int32 of items to draw from: a random part of those that have one, enough for `wanted`
        items; all of them if these are few, or without `draws`. The default row alone where no item has one."""
        keys = self.items.in_use()["keys"].numpy()
        if draws is not None:
            places = draws.integers(len(keys), size=LOOKS * max(wanted, FEWEST))
            places = places[keys[places] > GONE]
        if draws is None or len(places) < FEWEST:
            places = np.flatnonzero(keys > GONE)
        return (places + HEAD if len(places) else np.zeros(1)).astype(np.int32)

    def _other(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the row (B,) int64 of another item for each sample, in training from torch's generator."""
        if self.training:
            rows = self.drawable(len(item), np.random.default_rng(int(torch.randint(2**62, ()))))
            places = torch.randint(len(rows), item.shape)
        else:
            rows = self.drawable(len(item), None)
            places = (
                (user * 2_654_435_761 + item * 40_503 + 12_345) % 2_147_483_647 * 48_271 % 2_147_483_647 % len(rows)
            )
        return torch.from_numpy(rows).long()[places]

    @torch.no_grad()
    def numbered(self) -> tuple[BprFactorization, list[int], list[int]]:
        """Return the same model of numbered users and items, those that have a row, and their ids. Raises UsageError if
        it has no users and two items yet."""
        (users, user_rows), (items, item_rows) = self._named()
        if len(items) < 2:
            raise UsageError("its model has not met two items yet", code="usage/no-users")
        model = BprFactorization(len(users), len(items), self.users.embedding_dim, l2=self.l2)
        model.user.weight.copy_(user_rows)
        model.item.weight.copy_(item_rows[:, 1:])
        assert model.item_bias is not None
        model.item_bias.weight.copy_(item_rows[:, :1])
        return model.eval(), users.tolist(), items.tolist()

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        """Return the compiled update (BprLoss; SGD, Adagrad), or the reason for none."""
        if type(loss) is not BprLoss:
            return f"its fused update is for hogwild.losses.BprLoss, not for {loss_name(loss)}"
        return self.why_not(optimizer) or NamedPairsUpdate(type(optimizer), self.users.embedding_dim, loss.alpha)


class NamedFactorsUpdate:
    """Base class of both updates. Ids become rows as their batch is learnt, so one that is only looked at, or scored
    beforehand, has none yet."""

    implements: frozenset[str] = frozenset({"lr_schedule"})
    sides = (Side("user", ("users.weight",)), Side("item", ("items.weight",)))

    def __init__(self, rule: type) -> None:
        self._rule = rule

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and a batch, as `arrays_of` returns it."""
        assert isinstance(model, NamedFactors)
        self._tables = model.users, model.items
        self._ids: tuple[np.ndarray, np.ndarray] | None = (arrays["user"], arrays["item"])
        self._rows = tuple(np.zeros(len(arrays["user"]), np.int32) for _ in self._tables)
        self._numbers, self._arrays = [], list[tuple[np.ndarray, np.ndarray]]()  # of each table; weights and their sums
        for table in self._tables:
            weight = table.weight.detach().numpy()
            own = Numbers.of(optimizer, table.weight, 1.0)
            self._numbers.append((own.rate, own.decay + np.float32(model.l2), own.eps))
            self._arrays.append((weight, weight if self._rule is SGD else optimizer.state[table.weight]["sum"].numpy()))

    def arrays_of(self, model: nn.Module, inputs: Sequence[Tensor], target: Tensor) -> Arrays:
        """Return a batch (user (B,), item (B,)), rating (B,), as arrays."""
        if len(inputs) != 2 or not inputs[0].shape == inputs[1].shape == target.shape or target.is_complex():
            raise ValueError("a batch must be (user, item), rating, all (B,)")
        user, item = any_ids("users", inputs[0]), any_ids("items", inputs[1])
        return {"user": user, "item": item, "rating": target.float().numpy()}

    def _place(self, chunk: Chunk) -> None:
        """Find the rows of the batch's ids, once: it may be computed in pieces."""
        if self._ids is not None and len(chunk.rows):
            for table, ids, rows in zip(self._tables, self._ids, self._rows, strict=True):
                rows[:] = table.rows_of(torch.from_numpy(ids), claim=True).numpy()
            self._ids = None
            self._placed(chunk)

    def _placed(self, chunk: Chunk) -> None:
        """Do more, before the first piece of a batch is computed."""


class NamedRatingsUpdate(NamedFactorsUpdate):
    """Fused update of a NamedFactorization, rating by rating."""

    def __init__(self, rule: type, factors: int) -> None:
        super().__init__(rule)
        self.name = f"matrix factorisation by id, {factors} factors, {RULES[rule]}"
        self.kernels = signatures.ratings(rule.__name__, factors, is_named=True)
        self._factors = factors

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and a batch, as `arrays_of` returns it."""
        from hogwild.kernels.matrix_factorization import adagrad, sgd
        from hogwild.kernels.simd import of_width

        super().bind(model, optimizer, arrays, hot)
        assert isinstance(model, NamedFactorization)
        self._kernel = sgd if self._rule is SGD else adagrad
        vectors = [(weight[:, 1:], sums[:, 1:], sums[:, 1:]) for weight, sums in self._arrays]
        biases = [(weight[:, 0], sums[:, 0], sums[:, 0]) for weight, sums in self._arrays]
        samples = (*self._rows, arrays["rating"], np.float32(model.mean.item()))
        numbers = np.array(self._numbers * 2, np.float32)
        self._bound = of_width(self._factors), samples, (*vectors, *biases), numbers

    def run(self, chunk: Chunk) -> Tally:
        """Update the ratings; those with a NaN or infinite slope are counted and not applied."""
        self._place(chunk)
        batches = (chunk.rows, np.array([0, len(chunk.rows)]), np.array([chunk.rate], np.float32), NOWHERE)
        _, _, loss, applied, _ = self._kernel(batches, (ALONE, 0, True), *self._bound)
        return Tally(loss, applied, len(chunk.rows) - applied)


class NamedPairsUpdate(NamedFactorsUpdate):
    """Fused update of a NamedBprFactorization, pair by pair."""

    def __init__(self, rule: type, factors: int, alpha: float) -> None:
        super().__init__(rule)
        self.name = f"Bayesian personalised ranking by id, {factors} factors, {RULES[rule]}"
        self.kernels = signatures.pairs(rule.__name__, is_named=True)
        self._choice = 0, np.float32(alpha)  # tries: of WARP
        self._bounds = np.zeros(0, np.int64)  # nobody has anything; kept, as touching fresh memory would take as long

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and a batch, as `arrays_of` returns it."""
        super().bind(model, optimizer, arrays, hot)
        assert isinstance(model, NamedBprFactorization)
        self._model, self._samples = model, (*self._rows, arrays["rating"])
        (users, user_sums), (items, sums) = self._arrays
        vectors, biases = (items[:, 1:], sums[:, 1:], sums[:, 1:]), (items[:, 0], sums[:, 0], sums[:, 0])
        self._views = (users, user_sums, user_sums), vectors, biases
        self._all = np.array([*self._numbers, self._numbers[1]], np.float32)
        if len(self._bounds) <= len(users):
            self._bounds = np.zeros(len(users) + 1, np.int64)
        self._drawable = np.zeros(0, np.int32)

    def _placed(self, chunk: Chunk) -> None:
        self._drawable = self._model.drawable(len(self._rows[0]), np.random.default_rng(chunk.seed))

    def run(self, chunk: Chunk) -> Tally:
        """Update the pairs; those with a NaN or infinite margin are counted and not applied."""
        from hogwild.kernels import bpr

        self._place(chunk)
        numbers = self._all.copy()
        numbers[:, 0] *= np.float32(chunk.rate)
        choice, rule = (np.uint64(chunk.seed), *self._choice), signatures.RULES[self._rule.__name__]
        owned = self._bounds, np.zeros(0, np.int32), self._drawable
        loss, applied, alone = bpr.plain(chunk.rows, self._samples, owned, choice, self._views, (), rule, numbers)
        return Tally(loss, applied, len(chunk.rows) - applied - alone)
