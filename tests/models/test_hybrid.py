"""Users and items as sums of their features' rows: kernels against autograd, and what scores come from."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adagrad

from hogwild.errors import ModelError
from hogwild.kernels.fused import Chunk, Tally
from hogwild.models import BprFactorization, MatrixFactorization, WarpFactorization

pytest.importorskip("numba")
from tests.models.test_matrix_factorization import (
    FACTORS,
    ITEMS,
    RULES,
    USERS,
    ToldWarp,
    autograd_step,
    bound,
    kernels_draws,
    ratings,
    rows,
    same,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

NAMES = {
    "user_features": ["young", "old"],
    "features_of_users": ["0 1 0.5", "3 0 1.0", "3 1 -2.0", "4 0 1.0"],
    "item_features": ["slow", "loud", "new"],
    # Items have common features, with equal and with other weights; some have none.
    "features_of_items": [*(f"{item} 0 1.0" for item in range(6)), "1 1 0.5", "2 1 2.0", "3 2 -1.0", "8 2 0.3"],
}


class ToldBpr(BprFactorization):
    """Draws what it is told."""

    others: tuple[int, ...] = ()

    def _draw(self, user: Any, item: Any, number: int) -> Any:
        return torch.full(item.shape, self.others[0])


def hybrid(kind: type[BprFactorization], **options: Any) -> BprFactorization:
    torch.manual_seed(1)
    model = kind(USERS, ITEMS, FACTORS, user_features=2, item_features=3, **options)
    model.on_names(
        {key: sorted(value, key=lambda e: e.split()[:2]) if "of" in key else value for key, value in NAMES.items()}
    )
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(std=0.6)
    return model


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
@pytest.mark.parametrize("kind", [ToldBpr, ToldWarp])
def test_a_pair_moves_the_rows_and_those_of_its_features_as_autograd_does(kind: Any, rule: str, l2: float) -> None:
    model, twin, data = hybrid(kind, l2=l2), hybrid(kind, l2=l2), ratings(density=0.4)
    if kind is ToldWarp:
        twin.on_data(data, None)  # counts the other items of a user
    optimizer, other = RULES[rule](model.parameters()), RULES[rule](twin.parameters())
    update = bound(model, optimizer, data, alpha=0.7)
    for at in range(len(data["user"])):
        twin.others = kernels_draws(data, at, at, max(1, twin.tries))  # type: ignore[assignment]
        tally = update.run(Chunk(rows(at), seed=at))
        assert tally == Tally(pytest.approx(autograd_step(twin, other, data, at, 0.7), rel=1e-4), 1)
        same(model, twin)


@pytest.mark.parametrize("rule", [SGD, Adagrad])
@pytest.mark.parametrize("kind", [BprFactorization, WarpFactorization])
def test_without_any_feature_of_a_row_it_is_the_plain_model(kind: Any, rule: Any) -> None:
    data, plain = ratings(), kind(USERS, ITEMS, FACTORS)
    model = kind(USERS, ITEMS, FACTORS, item_features=3)
    model.load_state_dict(plain.state_dict(), strict=False)
    every = np.arange(len(data["user"]))
    tallies = [bound(one, rule(one.parameters(), lr=0.1), data).run(Chunk(every, seed=3)) for one in (model, plain)]
    assert tallies[0] == Tally(pytest.approx(tallies[1].loss, rel=1e-5), tallies[1].applied)
    for name, param in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), param, atol=1e-5, rtol=1e-5)


def test_scores_tables_and_forward_are_of_the_sums() -> None:
    model = hybrid(BprFactorization).eval()
    table, bias = model.item_feature.weight, model.item_feature_bias.weight  # type: ignore[union-attr]
    item = model.item.weight[2] + table[0] + 2 * table[1]
    user = model.user.weight[3] + model.user_feature.weight[0] - 2 * model.user_feature.weight[1]  # type: ignore[operator]
    wanted = user @ item + (model.item_bias.weight[2] + bias[0] + 2 * bias[1]).squeeze()
    torch.testing.assert_close(model.scores(torch.tensor([3]))[0, 2], wanted)
    torch.testing.assert_close(model.vectors("items")[2], item)
    users, items, offsets = model.score_tables()
    torch.testing.assert_close(users[3] @ items[2] + offsets[2], wanted)
    margin = model._margins(torch.tensor([3]), torch.tensor([2]), torch.tensor([7]))
    torch.testing.assert_close(
        margin, (model.scores(torch.tensor([3]))[0, [2]] - model.scores(torch.tensor([3]))[0, 7])
    )


def test_a_model_without_rows_for_the_datas_features_is_refused() -> None:
    for model in (MatrixFactorization(USERS, ITEMS), BprFactorization(USERS, ITEMS, item_features=3)):
        with pytest.raises(ModelError, match=r"2 user_features, .* rows for 0"):
            model.on_names(NAMES)
