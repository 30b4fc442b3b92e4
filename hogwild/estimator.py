"""scikit-learn estimators that `hogwild.train` fits: Classifier, Regressor, Recommender. Needs scikit-learn
(pip install 'hogwild[sklearn]').

    GridSearchCV(hogwild.estimator.Classifier(), {"lr": [0.01, 0.001]}).fit(X, y)

Each fit is a job with a run directory of its own: a temporary one, unless `settings` names another. After a fit with
workers as many processes wait for the next one, as after `hogwild.train`."""

import contextlib
import io
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

from hogwild.api import train
from hogwild.errors import UsageError
from hogwild.feeds.packed import Packed
from hogwild.inference.recommend import Had, ItemRanker
from hogwild.losses import BprLoss
from hogwild.models import BprFactorization, MatrixFactorization, Mlp
from hogwild.optimizers import RowWiseAdagrad
from hogwild.train_result import TrainResult

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

BATCH = 4096  # rows predicted at once
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

    def _train(self, make: Callable[[], nn.Module], data: Any, loss: Any, optimizer: Callable[..., Optimizer]) -> None:
        """Train `make()` on the data; set `model_` and `result_`. torch's own generator stays as it is."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own = dict(self.settings or {})
        settings: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "procs": self.procs}
        with contextlib.ExitStack() as stack:
            if not {"run_dir", "resume"} & own.keys():
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hogwild-"))
                settings |= {"run_dir": f"{folder}/run", "checkpoint": {"every_s": None, "keep_best": False}}
            if not self.verbose:
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = make()
            rule = optimizer(model.parameters(), lr=self.lr)
            self.result_: TrainResult = train(model, data, loss, rule, **{"seed": seed, **settings, **own})
        self.model_: Any = model.eval()

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
        self._train(make, data, loss if self.loss is None else self.loss, self.optimizer)
        return self

    def _outputs(self, x: ArrayLike) -> Tensor:
        """Return the model's outputs (N, outputs)."""
        check_is_fitted(self)
        rows = torch.tensor(validate_data(self, x, dtype=np.float32, reset=False))
        with torch.no_grad():
            return torch.cat([self.model_(part) for part in rows.split(BATCH)])


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
    `BprFactorization`. X has a row per pair: a user, an item and perhaps a rating; ids of any type, in an array or a
    data frame. Ratings may also be given as y. After `fit` it has `users_`, `items_`, `model_` and `result_`.

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
        """Fit to X (N, 2), or (N, 3) with ratings. Raises UsageError for other columns."""
        names, rating = _columns(X, y)
        (self.users_, user), (self.items_, item) = (np.unique(ids, return_inverse=True) for ids in names)
        users, items = len(self.users_), len(self.items_)
        order = np.lexsort((item, user))
        user, item = user[order].astype(np.int32), item[order].astype(np.int32)
        self._had = Had(np.searchsorted(user, np.arange(users + 1)), item)
        target = np.ones(len(user), np.float32) if rating is None else rating[order]
        arrays = {"user": user, "item": item, "rating": target}
        names_of = {"users": self.users_, "items": self.items_}
        data = Packed.of("ratings", "table", arrays, {"users": users, "items": items}, names_of)
        self.has_ratings_ = rating is not None
        if self.has_ratings_:
            made = partial(MatrixFactorization, users, items, self.factors, l2=self.l2)
            self._train(made, data, nn.MSELoss(), RowWiseAdagrad)
        else:
            l2 = 0.05 if self.l2 is None else self.l2
            self._train(partial(BprFactorization, users, items, self.factors, l2), data, BprLoss(), Adagrad)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the rating, or the score, of each pair (N,). An unknown user is an average one, an unknown item, too:
        only the biases count."""
        check_is_fitted(self, "model_")
        (users, items), _ = _columns(X, None)
        user, item = _numbers(self.users_, users), _numbers(self.items_, items)
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
        (users, items), rating = _columns(X, y)
        if rating is not None and getattr(self, "has_ratings_", True):
            return -float(np.sqrt(np.mean((self.predict(X) - rating) ** 2)))
        check_is_fitted(self, "model_")
        names, which = np.unique(users, return_inverse=True)
        item = _numbers(self.items_, items)[np.argsort(which, kind="stable")]
        shares: list[Array] = []
        for user, found in zip(
            _numbers(self.users_, names), np.split(item, np.cumsum(np.bincount(which))[:-1]), strict=True
        ):
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
        the user has; for an unknown user, the most popular items. Raises UsageError if there are not so many items."""
        return self.ranker().for_user(user, top).items


def _columns(x: Any, y: Any) -> tuple[tuple[Array, Array], Array | None]:
    """Return (users, items) and the ratings (N,) float32, or None. Columns of a data frame keep their types."""
    if hasattr(x, "iloc"):
        columns = [x.iloc[:, place].to_numpy() for place in range(x.shape[1])]
    else:
        table = x if isinstance(x, np.ndarray) else np.array(x, object)
        columns = [*table.T] if table.ndim == 2 else []
    if len(columns) not in (2, 3) or not len(columns[0]) or (y is not None and len(y) != len(columns[0])):
        raise UsageError(
            "a Recommender needs rows of a user, an item and perhaps a rating, which may also be y, got X of shape "
            f"{np.shape(x)} and {'no y' if y is None else f'y of shape {np.shape(y)}'}",
            code="usage/ratings",
        )
    given = columns[2] if len(columns) == 3 else y
    rating = None if given is None else np.asarray(given, np.float32)
    if rating is not None and not np.isfinite(rating).all():
        row = int(np.argmin(np.isfinite(rating)))
        raise UsageError(f"rating {rating[row]} in row {row}: ratings must be finite", code="usage/ratings")
    return (_plain(columns[0]), _plain(columns[1])), rating


def _plain(ids: Array) -> Array:
    """Return the ids with a type of their own: columns of a list of rows are objects."""
    return np.array(ids.tolist()) if ids.dtype == object else ids


def _numbers(names: Array, wanted: Array) -> NDArray[np.int64]:
    """Return the place of each wanted name (N,), -1 for unknown ones."""
    places = {name: number for number, name in enumerate(names.tolist())}
    return np.array([places.get(name, -1) for name in wanted.tolist()], np.int64)
