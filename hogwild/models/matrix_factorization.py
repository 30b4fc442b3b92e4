"""Matrix factorisation: a user's rating of an item as the product of two short learnt vectors; and the same tables for
what users have, without ratings: pairs of an item that a user has and one that it does not have.

    MatrixFactorization   ratings, `torch.nn.MSELoss`
    BprFactorization      pairs with random items, `BprLoss`
    WarpFactorization     pairs with items that rank too high, `WarpLoss`

All models take samples (user (B,), item (B,)) from hogwild.data.Ratings, and have compiled updates. Their tables have
sparse gradients: a batch touches few rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad

from hogwild.errors import ModelError
from hogwild.feeds.packed import MEMBERSHIPS
from hogwild.formatting import counted
from hogwild.kernels import optimizer_rules, signatures
from hogwild.kernels.fused import Arrays, Chunk, GridPlace, Hot, Side, Swept, Tally
from hogwild.losses import BprLoss, Violations, WarpLoss
from hogwild.models.row_checks import ids_of, not_float32, require_ids
from hogwild.optimizers import RowWiseAdagrad

NOISE = 0.7  # of a rating's standard deviation, what no model explains; see `fitting_l2`
LOOKED_AT = 1 << 20  # ratings whose standard deviation is taken
_NONE, NOWHERE = np.empty(0, np.int64), np.zeros(1, np.int64)
ALONE = np.zeros((2, 2), np.int64)[:, 0]  # not contiguous, as a scoreboard's words: kernels are compiled once


def embedding(rows: int, width: int, spread: float, sparse: bool) -> nn.Embedding:
    """Return a table (rows, width), normally distributed with this standard deviation."""
    table = nn.Embedding(rows, width, sparse=sparse)
    nn.init.normal_(table.weight, std=spread) if spread else nn.init.zeros_(table.weight)
    return table


def fitting_l2(rating: np.ndarray, users: int, items: int) -> float:
    """Return the `l2` that suits ratings (N,): s (1 / sqrt(N / users) + 1 / sqrt(N / items)), where s is what noise
    there is, 0.7 standard deviations.

    The penalty is a weighted nuclear norm of the table of ratings (Srebro and Salakhutdinov 2010): it lowers each
    singular value by l2 sqrt(N / users * N / items). The largest one of noise alone is
    s (sqrt(N / users) + sqrt(N / items)), and should end at 0. docs/findings.md has the measured optima."""
    if not len(rating):
        return 0.0
    spread = float(np.std(rating[:: -(-len(rating) // LOOKED_AT)], dtype=np.float64))
    return NOISE * spread * (math.sqrt(users / len(rating)) + math.sqrt(items / len(rating)))


def is_mean_square(loss: Any) -> bool:
    """Return whether a loss is the mean squared error of a batch."""
    return loss is F.mse_loss or (type(loss) is nn.MSELoss and loss.reduction == "mean")


class _Penalty(torch.autograd.Function):
    """Identity on looked-up rows (B, k); the backward pass adds `share` of each row, l2 over the batch's samples, for
    rows with 1 in `paid` (B, 1) only. So L2 needs no pass over the tables, and every optimizer can do it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, share: float, paid: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows if paid is None else rows * paid)
        ctx.share = share
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return grads[0].add(rows, alpha=ctx.share), None, None


def penalised(rows: Tensor, share: float, paid: Tensor | None = None) -> Tensor:
    """Return looked-up rows (B, k) whose backward pass adds `share` of each."""
    found: Tensor = _Penalty.apply(rows, share, paid) if share and rows.requires_grad else rows
    return found


class Factors(nn.Module):
    """Base class: two tables, and the methods of all models. A held-out rating counts in the metrics of all items from
    `least_relevant` on.

    With `user_features` or `item_features` the vector of each user or item is its own row plus the sum of its features'
    rows, each times a weight. Its own row then begins at 0, so one without samples is the sum of its features."""

    least_relevant = -math.inf
    spread = 0.1  # initial standard deviation of a row's numbers
    features: Mapping[str, int] = {}  # number of each side's, user or item, that has some

    def __init__(self, users: int, items: int, factors: int, l2: float, sparse: bool) -> None:
        super().__init__()
        for name, count in (("users", users), ("items", items), ("factors", factors)):
            if count < 1:
                raise ValueError(f"{name} is {count}; there must be one at least")
        if not l2 >= 0:
            raise ValueError(f"l2 is {l2}; it must not be negative")
        self.l2 = l2
        self.user = embedding(users, factors, self.spread, sparse)
        self.item = embedding(items, factors, self.spread, sparse)

    def score_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return users (U, k), items (I, k), offsets (I,): users @ items.T + offsets are the scores of all items, up to
        a constant per user; metrics of all items are computed from them."""
        has_bias = self.item_bias is not None
        offsets = self.whole("item_bias").squeeze(-1) if has_bias else self.item.weight.new_zeros(len(self.item.weight))
        return self.whole("user"), self.whole("item"), offsets

    def vectors(self, kind: str) -> Tensor:
        """Return the vectors (n, factors) of `users` or `items`."""
        return self.whole(kind.removesuffix("s"))

    def biases(self, kind: str) -> Tensor | None:
        """Return the constants (n,) of `users` or `items`; None without them."""
        name = f"{kind.removesuffix('s')}_bias"
        return self.whole(name).squeeze(-1) if getattr(self, name, None) is not None else None

    def add_features(self, user_features: int, item_features: int, sparse: bool) -> None:
        """Make tables of the features, which `on_names` then gives to users and items."""
        self.features = {side: n for side, n in (("user", user_features), ("item", item_features)) if n}
        for side, count in self.features.items():
            own: nn.Embedding = getattr(self, side)
            nn.init.zeros_(own.weight)
            setattr(self, f"{side}_feature", embedding(count, own.embedding_dim, self.spread, sparse))
            self._give(side, [])
        self.item_feature_bias = embedding(item_features, 1, 0.0, sparse) if item_features else None

    def on_names(self, names: Mapping[str, Sequence[Any]]) -> None:
        """Read which features each user and item has. Raises ModelError if the model has no rows for them."""
        for side, key in MEMBERSHIPS.items():
            wanted = len(names.get(f"{side}_features", ()))
            if wanted != self.features.get(side, 0):
                raise ModelError(
                    f"the data has {wanted:,} {side}_features, {type(self).__name__} rows for "
                    f"{self.features.get(side, 0):,}; BprFactorization and WarpFactorization have them, as many as the "
                    f"data if model.init_args does not set {side}_features",
                    code="model/unlike-data",
                )
            if wanted:
                self._give(side, names[key])

    def _give(self, side: str, entries: Sequence[str]) -> None:
        """Store `entries` as starts (n + 1,), ids (m,) int64, weights (m,) float32 by row, derived buffers."""
        parts = [entry.split() for entry in entries]
        rows = np.array([part[0] for part in parts]).astype(np.int64)
        counts = np.bincount(rows, minlength=getattr(self, side).num_embeddings)
        found = {
            "starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "ids": np.array([part[1] for part in parts]).astype(np.int64),
            "weights": np.array([part[2] for part in parts]).astype(np.float32),
        }
        for name, array in found.items():
            self.register_buffer(f"{side}_{name}", torch.from_numpy(array), persistent=False)

    def members(self, side: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return starts, ids and weights of the features of a side."""
        return tuple(getattr(self, f"{side}_{name}") for name in ("starts", "ids", "weights"))

    def whole(self, table: str) -> Tensor:
        """Return the whole `user`, `item` or `item_bias` (n, k): each row plus those of its features."""
        own: Tensor = getattr(self, table).weight
        side, _, rest = table.partition("_")
        if side not in self.features:
            return own
        starts, ids, weights = self.members(side)
        features: Tensor = getattr(self, f"{side}_feature{rest and '_'}{rest}").weight
        owners = torch.repeat_interleave(torch.arange(len(own), device=own.device), starts.diff())
        return own.index_add(0, owners, features[ids] * weights[:, None])

    def summed(self, table: str, index: Tensor, paid: Tensor | None = None) -> Tensor:
        """Return rows (B, k) of `whole(table)`, with the penalty of every row that they are the sum of; `paid` as in
        `_row`."""
        own = self._row(getattr(self, table), index, paid)
        side, _, rest = table.partition("_")
        if side not in self.features:
            return own
        starts, ids, weights = self.members(side)
        begins = starts[index.long()]
        counts = starts[index.long() + 1] - begins
        owners = torch.repeat_interleave(torch.arange(len(index), device=index.device), counts)
        places = torch.arange(len(owners), device=index.device) + (begins - counts.cumsum(0) + counts)[owners]
        features = getattr(self, f"{side}_feature{rest and '_'}{rest}")
        rows = self._row(features, ids[places], None if paid is None else paid[owners], batch=len(index))
        return own.index_add(0, owners, rows * weights[places, None])

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError if they are not ratings, or name a user or
        an item without a row."""
        for arrays in (train, val):
            if arrays is not None:
                check_arrays(arrays, self.user.num_embeddings, self.item.num_embeddings)

    def drop_penalty(self) -> None:
        """For a comparison of gradients with the loss, which lacks the penalty: only the backward pass pays it."""
        self.l2 = 0.0

    def _row(self, table: nn.Embedding, index: Tensor, paid: Tensor | None = None, batch: int = 0) -> Tensor:
        """Return rows (B, k); `paid` (B, 1), 0 or 1: the rows whose penalty is paid, as a mean over `batch` samples, by
        default B."""
        rows: Tensor = table(index)
        return penalised(rows, self.l2 / max(1, batch or len(index)), paid)


class MatrixFactorization(Factors):
    """Ratings as mean + user_bias[u] + item_bias[i] + user[u] . item[i] (Koren, Bell and Volinsky 2009), for
    `torch.nn.MSELoss`.

    The loss of a rating is error^2 + l2/2 (|user[u]|^2 + |item[i]|^2 + biases^2); this assumes a loss that is a mean
    over the batch. An optimizer's weight_decay does the same in the fused update; torch rejects it for sparse
    gradients. Raises ValueError for a size below 1.

    Arguments:
        users: different users.
        items: different items.
        factors: numbers of a user's or an item's vector.
        bias: whether each user and item has a constant.
        mean: constant of all ratings; null: their mean in the training data.
        l2: penalty on the rows that a rating touches, once per rating; null: fits ratings of hogwild.data.Ratings or
            Jester, and 0 for other data, losses than MSELoss, and optimizers with weight_decay.
        least_relevant: a held-out rating from here on counts as one that should be found, in ndcg@10 and its like;
            null: the mean rating of the training data.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones."""

    mean: Tensor

    def __init__(
        self,
        users: int,
        items: int,
        factors: int = 32,
        bias: bool = True,
        mean: float | None = None,
        l2: float | None = None,
        sparse: bool = True,
        least_relevant: float | None = None,
    ) -> None:
        super().__init__(users, items, factors, l2 or 0.0, sparse)
        self.user_bias = embedding(users, 1, 0.0, sparse) if bias else None
        self.item_bias = embedding(items, 1, 0.0, sparse) if bias else None
        self._mean_of_data, self._l2_of_data = mean is None, l2 is None
        self._relevance_of_data, self.least_relevant = least_relevant is None, least_relevant or 0.0
        self.register_buffer("mean", torch.tensor(mean or 0.0, dtype=torch.float32))

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data as every factorisation does; store the mean rating."""
        super().on_data(train, val)
        mean = float(np.mean(train["rating"], dtype=np.float64))
        if self._mean_of_data:
            self.mean.fill_(mean)
        if self._relevance_of_data:
            self.least_relevant = mean

    def choose_penalty(
        self, train: Mapping[str, np.ndarray], loss: Any, optimizer: torch.optim.Optimizer
    ) -> str | None:
        """Choose `l2` if none is given, for a squared error without weight_decay; return a note for the user."""
        if not self._l2_of_data:
            return None
        self.l2 = 0.0
        if not is_mean_square(loss) or any(group.get("weight_decay") for group in optimizer.param_groups):
            return None
        users, items = (int(np.count_nonzero(np.bincount(train[name]))) for name in ("user", "item"))
        self.l2 = fitting_l2(train["rating"], users, items)
        table = f"{counted(len(train['rating']), 'rating')} of {counted(items, 'item')} by {counted(users, 'user')}"
        return f"l2 of the model is {self.l2:.3g}, which suits {table}; give it to choose another, 0 for none"

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return ratings (B,) for user (B,), item (B,) int."""
        predicted = (self._row(self.user, user) * self._row(self.item, item)).sum(-1) + self.mean
        if self.user_bias is not None and self.item_bias is not None:
            predicted = predicted + (self._row(self.user_bias, user) + self._row(self.item_bias, item)).squeeze(-1)
        return predicted

    @torch.no_grad()
    def scores(self, users: Tensor) -> Tensor:
        """Return (B, items): the rating of every item by each of `users` (B,). No gradient."""
        found = self.user.weight[users] @ self.item.weight.T + self.mean
        if self.user_bias is not None and self.item_bias is not None:
            found += self.user_bias.weight[users] + self.item_bias.weight.T
        return found

    @torch.no_grad()
    def item_appeal(self) -> Tensor:
        """Return (items,), the scores for an unknown user: the mean plus the item's bias; without biases the rating of
        an average user. No gradient."""
        if self.item_bias is not None:
            return self.item_bias.weight.squeeze(-1) + self.mean
        return self.item.weight @ self.user.weight.mean(0) + self.mean

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        """Return the compiled update (mean squared error; SGD, Adagrad, RowWiseAdagrad), or the reason for none."""
        if not is_mean_square(loss):
            return f"its fused update is for torch.nn.MSELoss, not for {loss_name(loss)}"
        return why_not(self, optimizer, [*RULES]) or RatingsUpdate(type(optimizer), self.user.embedding_dim)


def check_arrays(arrays: Mapping[str, np.ndarray], users: int, items: int) -> None:
    """Raise ModelError if a kernel, which checks nothing, would read outside of the tables (users, …), (items, …)."""
    rating = arrays.get("rating")
    for name, count in (("user", users), ("item", items)):
        array = arrays.get(name)
        if (
            array is None or array.ndim != 1 or array.dtype != np.int32
            or rating is None or rating.dtype != np.float32 or rating.shape != array.shape
        ):  # fmt: skip
            found = ", ".join(f"{key} {value.dtype} {value.shape}" for key, value in arrays.items())
            raise ModelError(
                "this model needs ratings, arrays user, item (int32) and rating (float32) (see hogwild.data.Ratings); "
                f"the data has {found}",
                code="model/unlike-data",
            )
        require_ids(f"{name}s", array, count)


TABLES = ("user.weight", "item.weight", "user_bias.weight", "item_bias.weight")  # in the order of kernels' `rates`
# Also of knowledge graphs: kernels/knowledge_graph.py numbers the rules in this order.
RULES = {SGD: "SGD", Adagrad: "Adagrad", RowWiseAdagrad: "row-wise Adagrad"}


def why_not(model: nn.Module, optimizer: torch.optim.Optimizer, known: list[Any]) -> str | None:
    """Return why kernels cannot do this optimizer's update, as text for the log, or None."""
    name = type(optimizer).__qualname__
    if type(optimizer) not in known:
        return f"its fused update supports {', '.join(rule.__qualname__ for rule in known)}, not {name}"
    if type(optimizer) is not RowWiseAdagrad and (reason := optimizer_rules.why_not(optimizer)):
        return reason
    if any(not group.get("eps", 1.0) > 0 for group in optimizer.param_groups):
        return f"{name} with eps=0 may divide by 0"
    return not_float32(model)


def loss_name(loss: Any) -> str:
    """Return the name of a loss, a class's or a function's."""
    return getattr(loss, "__qualname__", type(loss).__qualname__)


class FactorizationUpdate:
    """Base class of all updates: views of the tables and of the optimizer's sums; a rate, a decay and an epsilon of
    each.

    `hot`: if all rows of a table are hot, the kernel uses its private copy, and that of its sums; otherwise it writes
    all rows directly, as if none were hot (two-sided data has one small side, or a grid). A frozen table has rate 0."""

    implements = frozenset({"lr_schedule", "freeze"})
    tables: tuple[str, ...] = TABLES
    name = ""
    sides: tuple[Side, ...] = ()
    _kernel: Any  # of the rule

    def __init__(self, rule: type) -> None:
        self._rule = rule

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind as FusedUpdate says. Raises ModelError if the data names rows that the tables lack."""
        assert isinstance(model, Factors)
        check_arrays(arrays, model.user.num_embeddings, model.item.num_embeddings)
        groups = {param: group for group in optimizer.param_groups for param in group["params"]}
        params = dict(model.named_parameters())
        self._numbers = np.zeros((len(self.tables), 3), np.float32)  # rate, decay, epsilon
        self._numbers[:, 2] = 1.0  # for a table that stays unchanged: 0 / 1, not 0 / 0
        self._views: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # as kernels/steps.py takes tables
        for place, name in enumerate(self.tables):
            param, is_bias = params.get(name), name.endswith("bias.weight")
            if param is None:  # a bias that the model lacks: zeros, which a rate of 0 leaves unchanged
                rows = len(self._views[place % 2][0])
                zeros = np.zeros(rows if is_bias else (1, model.user.embedding_dim), np.float32)  # of no features
                self._views.append((zeros, zeros.copy(), zeros.copy()))  # sums are written, at any rate
                continue
            group = groups.get(param, {})
            if group and param.requires_grad:
                decay = model.l2 + float(group["weight_decay"])
                self._numbers[place] = float(group["lr"]), decay, float(group.get("eps", 1.0))
            table = _private(hot, name, param.detach().numpy())
            sums = table  # SGD has none
            if self._rule is not SGD:
                state = optimizer.state.get(param, {}).get("sum")
                shape = len(param) if self._rule is RowWiseAdagrad else param.shape
                own = np.ones(shape, np.float32) if state is None else state.numpy()  # none of a frozen table: rate 0
                sums = _private(hot, f"{name}.sum", own)
            if is_bias:
                table, sums = table.reshape(-1), sums.reshape(-1)  # views (rows,)
            self._views.append((table, sums, sums))


def _private(hot: Hot, name: str, shared: np.ndarray) -> np.ndarray:
    found = hot.get(name)
    if found is None or len(found.rows) != len(shared) or not np.array_equal(found.rows, np.arange(len(shared))):
        return shared
    return found.local


class RatingsUpdate(FactorizationUpdate):
    """Fused update of a MatrixFactorization, rating by rating."""

    sides = (Side("user", (TABLES[0], TABLES[2])), Side("item", (TABLES[1], TABLES[3])))

    def __init__(self, rule: type, factors: int) -> None:
        super().__init__(rule)
        self.name = f"matrix factorisation, {counted(factors, 'factor')}, {RULES[rule]}"
        self.kernels = signatures.ratings(rule.__name__, factors)  # one kernel for each width

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind as FusedUpdate says. Raises ModelError if the data names rows that the tables lack."""
        from hogwild.kernels.matrix_factorization import adagrad, row_adagrad, sgd, width_of

        super().bind(model, optimizer, arrays, hot)
        self._kernel = {SGD: sgd, Adagrad: adagrad, RowWiseAdagrad: row_adagrad}[self._rule]
        samples = (arrays["user"], arrays["item"], arrays["rating"], np.float32(model.mean.item()))  # type: ignore[operator]
        self._bound = (width_of(self._views[0][0]), samples, tuple(self._views), self._numbers)

    def arrays_of(self, model: nn.Module, inputs: Sequence[Tensor], target: Tensor) -> Arrays:
        """Return the ratings of a batch (user (B,), item (B,)), rating (B,)."""
        assert isinstance(model, Factors)
        if len(inputs) != 2 or not inputs[0].shape == inputs[1].shape == target.shape or target.is_complex():
            raise ValueError("a batch must be (user, item), rating, all (B,)")
        user = ids_of("users", inputs[0], model.user.num_embeddings)
        item = ids_of("items", inputs[1], model.item.num_embeddings)
        return {"user": user, "item": item, "rating": target.float().numpy()}

    def run(self, chunk: Chunk) -> Tally:
        """Update the ratings; those with a NaN or infinite slope are counted and not applied."""
        batches = (chunk.rows, np.array([0, len(chunk.rows)]), np.array([chunk.rate], np.float32), NOWHERE)
        _, _, loss, applied, _ = self._kernel(batches, (ALONE, 0, True), *self._bound)
        return Tally(loss, applied, len(chunk.rows) - applied)

    def sweep(
        self, borders: np.ndarray, rates: np.ndarray, columns: np.ndarray, place: GridPlace, insist: bool
    ) -> Swept:
        """Update as `run` does, batch after batch."""
        claims = (place.words, place.own, insist)
        return Swept(*self._kernel((_NONE, borders, rates, columns), claims, *self._bound))


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
        return why_not(self, optimizer, [SGD, Adagrad]) or RankingUpdate(
            type(optimizer), self.tries, loss.alpha, has_features=bool(self.features)
        )


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
    # Users have no bias: it is the same for both items of a pair.
    tables: tuple[str, ...] = (TABLES[0], TABLES[1], TABLES[3])

    def __init__(self, rule: type, tries: int, alpha: float, *, has_features: bool = False) -> None:
        super().__init__(rule)
        self.name = f"{'WARP' if tries else 'Bayesian personalised ranking'}, {RULES[rule]}"
        if has_features:
            self.name += ", rows as sums of features"
            self.tables += ("user_feature.weight", "item_feature.weight", "item_feature_bias.weight")
        self.kernels = signatures.pairs(rule.__name__, has_features=has_features)
        self._choice, self._has_features = (tries, np.float32(alpha)), has_features

    def bind(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind as FusedUpdate says. Raises ModelError if the data names rows that the tables lack."""
        from hogwild.kernels import bpr
        from hogwild.kernels.pair_order import items_by_user

        super().bind(model, optimizer, arrays, hot)
        assert isinstance(model, Factors)
        self._kernel = bpr.hybrid if self._has_features else bpr.plain
        self._samples = (arrays["user"], arrays["item"], arrays["rating"])
        bounds, had, _ = items_by_user(arrays["user"], arrays["item"], model.user.num_embeddings)
        self._owned = bounds, had, drawable_items(arrays["item"], model.item.num_embeddings)
        members = []
        for side in ("user", "item") if self._has_features else ():
            rows = getattr(model, side).num_embeddings
            none = np.zeros(rows + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
            has = side in model.features
            members.append(tuple(part.numpy() for part in model.members(side)) if has else none)
        self._members = tuple(members)

    def run(self, chunk: Chunk) -> Tally:
        """Update the pairs; those with a NaN or infinite margin are counted and not applied."""
        numbers = self._numbers.copy()
        numbers[:, 0] *= np.float32(chunk.rate)
        choice, rule = (np.uint64(chunk.seed), *self._choice), signatures.RULES[self._rule.__name__]
        loss, applied, alone = self._kernel(
            chunk.rows, self._samples, self._owned, choice, tuple(self._views), self._members, rule, numbers
        )
        return Tally(loss, applied, len(chunk.rows) - applied - alone)
