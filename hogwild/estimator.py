"""scikit-learn estimators that `hogwild.train` fits: Classifier, Regressor, Recommender. Needs scikit-learn
(pip install 'hogwild[sklearn]').

    GridSearchCV(hogwild.estimator.Classifier(), {"lr": [0.01, 0.001]}).fit(X, y)

Each fit is a job with a run directory of its own: a temporary one, unless `settings` names another. After a fit with
workers as many processes wait for the next one, as after `hogwild.train`."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.optim import Adagrad, Adam, Optimizer
from torch.utils.data import TensorDataset

from hogwild.api import TrainResult, train
from hogwild.data.ids import IdRows
from hogwild.data.pair_tables import PairTable, is_matrix, rows_of
from hogwild.errors import UsageError
from hogwild.formatting import one_line
from hogwild.inference.recommend import Had, ItemRanker
from hogwild.inference.trained_model import Trained
from hogwild.inference.word_vectors import WordVectors
from hogwild.losses import BprLoss
from hogwild.models import BprFactorization, MatrixFactorization, Mlp
from hogwild.optimizers import RowWiseAdagrad

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise UsageError(
        f"hogwild.estimator needs scikit-learn ({error}): pip install 'hogwild[sklearn]'", code="usage/missing-extra"
    ) from error

__all__ = ["Classifier", "Recommender", "Regressor"]

log = logging.getLogger(__name__)
Array = NDArray[Any]
Settings = Mapping[str, Any]


class _Trained(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base class: the call of `hogwild.train`."""

    lr: float
    epochs: int
    batch_size: int
    procs: int
    random_state: Any
    settings: Settings | None
    verbose: bool

    def _train(
        self,
        make: Callable[[], nn.Module],
        data: Any,
        loss: Any,
        optimizer: Callable[..., Optimizer],
        start: Callable[[nn.Module, Optimizer], None] = lambda model, rule: None,
        *,
        keeps_batching: bool = False,
    ) -> Optimizer:
        """Train `make()` on the data, from what `start` puts into it; set `model_` and `result_`. Return the optimizer.
        `keeps_batching`: predictions need the job's way to make batches. torch's own generator stays as it is."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own = dict(self.settings or {})
        settings: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "procs": self.procs}
        with contextlib.ExitStack() as stack:
            if not {"run_dir", "resume"} & own.keys():
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hogwild-"))
                keeps_best = "evaluate" in own  # its weights may be restored at the end
                settings |= {"run_dir": f"{folder}/run", "checkpoint": {"every_s": None, "keep_best": keeps_best}}
            if not self.verbose:
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = make()
            rule = optimizer(model.parameters(), lr=self.lr)
            start(model, rule)
            self.result_: TrainResult = train(model, data, loss, rule, **{"seed": seed, **settings, **own})
            if keeps_batching:
                given = own.get("collate", (own.get("data") or {}).get("collate"))
                self._trained = Trained.live(self.result_.run_dir, model, given if callable(given) else None)
        self.model_: Any = model.eval()
        return rule

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # scikit-learn's own
        return one_line(super().__repr__(N_CHAR_MAX))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.procs not in (0, 1)
        return tags


class _Network(_Trained):
    """Base class of Classifier and Regressor."""

    def __init__(
        self,
        model: Callable[[int, int], nn.Module] | None = None,
        *,
        hidden: Sequence[int] = (64,),
        loss: Any = None,
        optimizer: Callable[..., Optimizer] = Adam,
        lr: float = 0.01,
        epochs: int = 20,
        batch_size: int = 32,
        procs: int = 0,
        random_state: Any = None,
        settings: Settings | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.loss = loss
        self.optimizer = optimizer
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.procs = procs
        self.random_state = random_state
        self.settings = settings
        self.verbose = verbose

    def _fit(self, x: Array, y: Array, outputs: int, loss: nn.Module) -> Self:
        """Fit to x (N, features) float32 and y (N, …)."""
        features = x.shape[1]

        def make() -> nn.Module:
            return Mlp(features, self.hidden, outputs) if self.model is None else self.model(features, outputs)

        data = TensorDataset(torch.tensor(x), torch.tensor(y))
        self._train(make, data, loss if self.loss is None else self.loss, self.optimizer, keeps_batching=True)
        return self

    def _outputs(self, x: ArrayLike) -> Tensor:
        """Return the model's outputs (N, outputs)."""
        check_is_fitted(self)
        rows = torch.tensor(validate_data(self, x, dtype=np.float32, reset=False))
        found = self._trained.predict(TensorDataset(rows, self._no_targets(len(rows))), raw=True)
        if not isinstance(found, Tensor):
            words = f"the model returns a {type(found).__name__}; a {type(self).__name__} needs one tensor (B, outputs)"
            raise UsageError(f"{words}: call model_ itself", code="usage/no-predictions")
        return found

    def _no_targets(self, count: int) -> Tensor:
        """Return targets (N, …) that nothing reads; a function for `collate` gets them."""
        return torch.zeros(count, 1)


class Classifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A network as a classifier. After `fit` it has `classes_`, `n_features_in_`, `model_` (in evaluation mode) and
    `result_`, the TrainResult.

    Arguments:
        model: called as model(features, outputs), returns a module with outputs (B, outputs) for x (B, features)
            float32; None: `hogwild.models.Mlp`.
        hidden: widths of the hidden layers of the default model.
        loss: called as loss(output, target); None: cross-entropy, for Regressor the squared error.
        optimizer: called as optimizer(parameters, lr=lr).
        lr: learning rate.
        epochs: passes over the data.
        batch_size: rows per batch.
        procs: workers. 0 trains in this process, the quickest way for fits of seconds: a new process takes one to
            import torch. With 0 or 1 a fit can be repeated exactly.
        random_state: seed of initial values and order, as everywhere in scikit-learn.
        settings: further keywords of `hogwild.train`: val, evaluate, callbacks, run_dir, …
        verbose: whether to show what `hogwild.train` shows."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to X (N, features) and the classes y (N,), of any type."""
        x, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return self._fit(x, numbers.astype(np.int64), len(self.classes_), nn.CrossEntropyLoss())

    def _no_targets(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each class (N, classes): the softmax of the outputs."""
        return self._outputs(X).softmax(1).numpy()

    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable class (N,)."""
        places = self._outputs(X).argmax(1).numpy()
        found: Array = self.classes_[places]
        return found


class Regressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A network for one number per row. Arguments and attributes as Classifier's, without `classes_`; the loss gets
    output and target (B, 1)."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to X (N, features) and y (N,)."""
        x, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        return self._fit(x, np.asarray(y, np.float32).reshape(-1, 1), 1, nn.MSELoss())

    def predict(self, X: ArrayLike) -> Array:
        """Return a number per row (N,)."""
        return self._outputs(X)[:, 0].numpy()


class Recommender(_Trained):
    """A factorisation of who has or rates what: `hogwild.models.MatrixFactorization` with ratings, else
    `BprFactorization`. X has a row per pair: a user, an item and perhaps a rating, which may also be given as y; ids of
    any type. It is an array, or a data frame (pandas; polars, Arrow) whose columns count by name. Or it is a sparse
    matrix of a row per user and a column per item: of ratings, or all of one value; 0 is none. After `fit` it has
    `users_`, `items_`, `model_` and `result_`.

    Arguments:
        factors: numbers of a user's or an item's vector.
        l2: penalty on the rows that a pair touches; None: what suits the ratings, 0.05 without ratings.
        lr, epochs, batch_size, procs, random_state, settings, verbose: as Classifier's."""

    def __init__(
        self,
        factors: int = 32,
        *,
        l2: float | None = None,
        lr: float = 0.1,
        epochs: int = 10,
        batch_size: int = 1024,
        procs: int = 0,
        random_state: Any = None,
        settings: Settings | None = None,
        verbose: bool = False,
    ) -> None:
        self.factors = factors
        self.l2 = l2
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.procs = procs
        self.random_state = random_state
        self.settings = settings
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Fit to X (N, 2), or (N, 3) with ratings, or a sparse matrix. Raises UsageError for other columns."""
        pairs = PairTable.of(X, y)
        self.users_, self.items_ = np.unique(pairs.users), np.unique(pairs.items)
        self.has_ratings_, self._pairs = not pairs.is_plain, np.zeros((0, 2), np.int32)
        return self._learn(pairs, {"l2": self.l2} if self.has_ratings_ or self.l2 is not None else {"l2": 0.05})

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Go on with more pairs, `epochs` passes over these alone. Users and items keep their vectors, and the
        optimizer its state; new ones are added behind them. What users have adds up, for `recommend`. The first call is
        a `fit`. Raises UsageError for pairs with ratings if the former had none, and the reverse."""
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        pairs = PairTable.of(X, y)
        if pairs.is_plain == self.has_ratings_ and (pairs.shape is None or not self.has_ratings_):
            had, has = ("have", "none") if self.has_ratings_ else ("have none", "some")
            raise UsageError(f"the pairs before {had} ratings, and these have {has}", code="usage/ratings")
        self.users_, self.items_ = _grown(self.users_, pairs.users), _grown(self.items_, pairs.items)
        more = {"mean": float(self.model_.mean)} if self.has_ratings_ else {}
        return self._learn(pairs, {"l2": self.model_.l2, **more}, self.model_, self._rule)

    def _learn(
        self, pairs: PairTable, options: Settings, before: nn.Module | None = None, rule: Optimizer | None = None
    ) -> Self:
        """Train a model of `users_` and `items_` on the pairs; its first rows are those of the model `before`."""
        notes = [pairs.note] if pairs.note else []
        users, items = len(self.users_), len(self.items_)
        data = pairs.packed("ratings", self.users_, self.items_, notes)
        for note in notes:
            log.warning("%s", note)
        new = np.stack([data.arrays()[name] for name in ("user", "item")], 1)
        self._pairs = np.unique(np.concatenate([self._pairs, new]), axis=0)
        self._had = Had.of(users, {"user": self._pairs[:, 0], "item": self._pairs[:, 1]})
        kind: Any = MatrixFactorization if self.has_ratings_ else BprFactorization
        loss: nn.Module = nn.MSELoss() if self.has_ratings_ else BprLoss()
        made, start = partial(kind, users, items, self.factors, **options), partial(_take_rows, before, rule)
        self._rule = self._train(made, data, loss, RowWiseAdagrad if self.has_ratings_ else Adagrad, start)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the rating, or the score, of each pair (N,). An unknown user is an average one, an unknown item, too:
        only the biases count."""
        check_is_fitted(self, "model_")
        user, item = self._rows_of(_rows(X))
        with torch.no_grad():
            appeal = self.model_.item_appeal()
            own, other = torch.from_numpy(user.clip(0)), torch.from_numpy(item.clip(0))
            product = (self.model_.user.weight[own] * self.model_.item.weight[other]).sum(1)
            bias = self.model_.user_bias.weight[own, 0] if self.has_ratings_ else torch.zeros(len(user))
            is_user, is_item = torch.from_numpy(user >= 0), torch.from_numpy(item >= 0)
            found = torch.where(is_item, appeal[other], appeal.mean())
            found += torch.where(is_user, bias, 0.0) + torch.where(is_user & is_item, product, 0.0)
        return found.numpy()

    def score(self, X: ArrayLike, y: ArrayLike | None = None) -> float:
        """Return minus the RMSE of the ratings. Without ratings, the AUC: how often a pair's item has a higher score
        than those items that its user has neither here nor in the training data; the mean over the pairs of known
        items."""
        pairs = _rows(X, y)
        if pairs.rating is not None and getattr(self, "has_ratings_", True):
            return -float(np.sqrt(np.mean((self.predict(X) - pairs.rating) ** 2)))
        check_is_fitted(self, "model_")
        _, first, which = np.unique(pairs.users, return_index=True, return_inverse=True)
        users, items = self._rows_of(pairs)
        item = items[np.argsort(which, kind="stable")]
        shares: list[Array] = []
        for user, found in zip(users[first], np.split(item, np.cumsum(np.bincount(which))[:-1]), strict=True):
            had = found[found >= 0]
            of_user = self.model_.item_appeal() if user < 0 else self.model_.scores(torch.tensor([user]))[0]
            rated = of_user.detach().numpy()
            is_other = np.ones(len(rated), np.bool_)
            is_other[had] = False
            if user >= 0:
                is_other[self._had.pairs(np.array([user]))[1]] = False
            if is_other.any():
                shares.append(np.searchsorted(np.sort(rated[is_other]), rated[had]) / is_other.sum())
        return float(np.concatenate(shares).mean()) if shares else float("nan")

    def ranker(self) -> ItemRanker:
        """Return what recommends to many users, to somebody new, or some of the items only
        (`hogwild.inference.recommend`)."""
        check_is_fitted(self, "model_")
        return ItemRanker(self.model_, self.users_.tolist(), self.items_.tolist(), self._had)

    def recommend(self, user: Any, top: int | None = None) -> list[tuple[Any, float]]:
        """Return the `top` items with the highest score for a user, by default 10, and their scores, without those that
        the user has; for an unknown user, the most popular items. Warnings say so, and if there are not so many."""
        found = self.ranker().for_user(user, top)
        for note in found.notes:
            log.warning("%s", note)
        return found.items

    def similar_items(self, item: Any, top: int = 10) -> list[tuple[Any, float]]:
        """Return the `top` items with the nearest vectors, and their cosines, best first. Raises UsageError with
        similar names for an unknown item."""
        check_is_fitted(self, "model_")
        items = self.items_.tolist()
        known = items[IdRows(items).number(item, "items")]
        return WordVectors(items, self.model_.vectors("items").detach().numpy(), "items").most_similar(
            [known], topn=top
        )

    def _rows_of(self, pairs: PairTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of users and items (N,), -1 for unknown ones, which are counted in a warning."""
        rows = rows_of(self.users_, pairs.users), rows_of(self.items_, pairs.items)
        unknown = [int((one < 0).sum()) for one in rows]
        if any(unknown):
            log.warning("unknown in %s pairs: the user of %s, the item of %s", len(rows[0]), *unknown)
        return rows


def _grown(known: Array, ids: Array) -> Array:
    """Return the known names and behind them the new ones among `ids`."""
    different = np.unique(ids)
    new = different[rows_of(known, different) < 0]
    if known.dtype.kind == new.dtype.kind:
        return np.concatenate([known, new])
    return np.array([*known.tolist(), *new.tolist()], object)


def _take_rows(before: nn.Module | None, old: Optimizer | None, model: nn.Module, rule: Optimizer) -> None:
    """Copy the rows of the model `before` and of its optimizer's state, which are the first ones here."""
    if before is None or old is None:
        return
    with torch.no_grad():
        for there, here in zip(before.parameters(), model.parameters(), strict=True):
            here[: len(there)] = there
            for key, value in old.state[there].items():
                if value.ndim:
                    rule.state[here][key][: len(value)] = value


def _rows(x: Any, y: Any = None) -> PairTable:
    """Return the pairs in rows. Raises UsageError for a sparse matrix: a part of one, as cross-validation makes it, has
    other users in its rows."""
    if is_matrix(x):
        raise UsageError(
            "a part of a sparse matrix does not say which users its rows are: give rows of a user, an item and perhaps "
            "a rating, such as np.column_stack([m.row, m.col, m.data]) of m = X.tocoo()",
            code="usage/ratings",
        )
    return PairTable.of(x, y)
