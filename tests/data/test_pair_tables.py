"""Pairs of users and items in memory: sparse matrices, data frames, arrays; the same table in any of them is the same
data, by its columns' names."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'hogwild[sklearn]'")

import hogwild
from hogwild.data.pair_tables import PairTable, as_data
from hogwild.errors import UsageError
from hogwild.estimator import Recommender
from hogwild.losses import BprLoss
from hogwild.models import BprFactorization, MatrixFactorization
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)


class Stream:
    """A data frame of another library: it only has Arrow's interchange, as polars' has."""

    def __init__(self, table: pyarrow.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Interchange:
    """A data frame that only has the interchange protocol of before."""

    def __init__(self, table: pyarrow.Table) -> None:
        self._table = table

    def __dataframe__(self, **options: Any) -> Any:
        return self._table.__dataframe__(**options)


def forms(users: list[Any], items: list[Any], ratings: list[float], order: list[int]) -> dict[str, Any]:
    """The table in every form, the columns of those with names in this order, beside one of text."""
    named = [("user_id", users), ("movieId", items), ("rating", ratings), ("title", ["a b"] * len(users))]
    columns = dict([named[place] for place in order])
    frame = pd.DataFrame(columns)
    arrow = pyarrow.table(columns)
    return {
        "rows": [*zip(users, items, ratings, strict=True)],
        "array": np.array([*zip(users, items, ratings, strict=True)], object),
        "frame": frame,
        "categories": frame.astype({"user_id": "category"}),
        "records": frame.to_records(index=False),
        "arrow": arrow,
        "stream": Stream(arrow),
        "interchange": Interchange(arrow),
    }


ids = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.lists(st.sampled_from(["a", "b c", "é", "7", "07"]), min_size=1, max_size=12),
)


@given(ids, st.permutations(range(4)), st.randoms())
def test_a_table_is_the_same_data_in_any_form_and_any_order_of_columns(
    users: list[Any], order: list[int], random: Any
) -> None:
    items, ratings = [random.randrange(5) for _ in users], [float(random.randrange(1, 6)) for _ in users]
    for form, table in forms(users, items, ratings, order).items():
        found = PairTable.of(table)
        assert found.users.tolist() == users and found.items.tolist() == items, form
        assert found.rating is not None and found.rating.tolist() == ratings and not found.note, form


def test_ids_of_floats_and_of_text_are_whole_numbers_without_a_point() -> None:
    for users in ([7.0, 8.0], np.array([7.0, 8.0]), pd.array([7, 8], dtype="Int64")):
        found = PairTable.of(pd.DataFrame({"item": [1, 2], "user": users}))
        assert found.users.tolist() == [7, 8] and found.users.dtype == np.int64
    found = PairTable.of(pd.DataFrame({"item": [1, 2], "user": ["7.0", " 8 "]}))
    assert found.users.tolist() == ["7", "8"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"user": [1, 2], "what": [3, 4]}, "the columns are user, what; one of user and item has no column"),
        ({"user": [1], "item": [2], "stars_given": [3]}, "the columns are user, item, stars_given; stars_given may be"),
        ({"user": [1, None], "item": [2, 3]}, "row 1 has no user"),
        ({"user": ["a", None], "item": [2, 3]}, "row 1 has no user"),
        ({"user": [1], "item": [2], "rating": ["good"]}, "the ratings are no numbers"),
        ({"i1": [1.0], "i2": [0.0], "i3": [2.0], "i4": [1.0]}, "rows of a user, an item and perhaps a rating"),
    ],
)
def test_columns_that_leave_it_open_are_refused_by_name(table: dict[str, Any], words: str) -> None:
    for form in (pd.DataFrame(table), Stream(pyarrow.table(table))):
        with pytest.raises(UsageError) as error:
            PairTable.of(form)
        assert words in str(error.value) and error.value.code == "usage/ratings"


def test_ids_that_floats_cannot_hold_are_refused_and_long_ones_stay_apart() -> None:
    for table in (np.array([[2.0**53 + 2, 1]]), pd.DataFrame({"user": [1], "item": np.float32([2**24 + 2])})):
        with pytest.raises(UsageError, match="lost digits of whole numbers"):
            PairTable.of(table)
    for users in ([2**63 + 1, 2**63 + 2], [2**63 + 1, -1], [2**70, 2**70 + 1]):
        found = PairTable.of(pd.DataFrame({"user": pd.Series(users, dtype=object), "item": [1, 1]}))
        assert [*map(str, found.users)] == [*map(str, users)]


@pytest.mark.parametrize(
    ("table", "y", "words"),
    [
        ({"weight": [1, 1], "rating": [5, 4]}, None, "both 'weight' and 'rating' may be the rating"),
        ({"rating": [5, 4]}, [1, 2], "'rating' may be ratings, and so may y"),
        ({"userId": [8, 9]}, None, "both 'user' and 'userId' may be the user"),
        ({"rating": [5, 4], "item": [3, 3], "user": [1, 1]}, None, "user 1 rated item 3 twice, the second time in row"),
        ({}, [[1, 2], [3, 4]], "ratings of shape (2, 2) are no number per row"),
    ],
)
def test_two_columns_for_one_thing_and_two_ratings_of_one_pair_are_refused(table: Any, y: Any, words: str) -> None:
    frame = pd.DataFrame({"user": [1, 2], "item": [3, 4]} | table)
    with pytest.raises(UsageError) as error:
        made().fit(frame, y)
    assert words in str(error.value) and error.value.code == "usage/ratings"


def test_rows_of_different_lengths_are_no_table() -> None:
    with pytest.raises(UsageError, match="got X of 2 rows that are no table"):
        PairTable.of([(1, "x", 5), (2, "y")])


def test_repeats_without_ratings_are_counted_and_equal_ratings_are_said() -> None:
    frame = pd.DataFrame({"item": [3, 3, 4], "user": [1, 1, 2]})
    packed, _, notes = as_data(BprFactorization(3, 9), frame, None)
    assert packed.arrays()["rating"].tolist() == [2.0, 1.0] and packed.samples == 2
    assert "dataset: 1 rows repeat a user and an item: repeats are counted" in notes
    _, _, notes = as_data(MatrixFactorization(3, 9), frame[1:].assign(rating=[5, 5]), None)
    assert "dataset: each rating is 5: leave them out to rank items" in notes
    rated, val = frame[1:].assign(rating=[5, 4]), frame[1:]
    assert "val: it has no ratings: each is 1" in as_data(MatrixFactorization(3, 9), rated, val)[2]


def test_levels_of_an_index_are_columns_as_groupby_leaves_them() -> None:
    frame = pd.DataFrame({"item": [3, 4], "user": [1, 2], "rating": [5.0, 4.0]})
    for table in (frame.set_index("user"), frame.groupby(["item", "user"])["rating"].mean()):
        found = PairTable.of(table)
        assert (found.users.tolist(), found.items.tolist()) == ([1, 2], [3, 4])
        assert found.rating is not None and found.rating.tolist() == [5.0, 4.0]


def test_columns_of_unknown_names_are_taken_by_place_and_that_is_said() -> None:
    found = PairTable.of(pd.DataFrame({"who": [1], "what": [2], "how": [3]}))
    assert (found.users.tolist(), found.items.tolist()) == ([1], [2]) and found.note
    assert found.rating is not None and found.rating.tolist() == [3.0]
    assert found.note == "columns by place, user, item, rating: who, what, how"


def test_ids_that_white_space_alone_tells_apart_are_one_and_that_is_said() -> None:
    found = PairTable.of([("a", "x", 1.0), (" a", "y", 1.0), (" b", "z ", 1.0)])
    assert found.users.tolist() == ["a", "a", "b"]
    assert found.note == "white space around an id does not count, so 1 id less: ' a' counts as 'a'"


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array, sparse.lil_matrix])
def test_a_sparse_matrix_has_the_pairs_whose_value_is_not_0(kind: Any) -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0], [5, 0, 1]])
    found = PairTable.of(kind(dense))
    assert {*zip(found.users.tolist(), found.items.tolist(), found.rating.tolist(), strict=True)} == {  # type: ignore[union-attr]
        (0, 1, 2.0), (2, 0, 5.0), (2, 2, 1.0)
    }  # fmt: skip
    assert found.note == "values of the matrix are ratings, from 1 to 5"
    plain = PairTable.of(kind(dense > 0))
    assert plain.rating is None and plain.users.tolist() == [0, 2, 2] and not plain.note
    twice = sparse.coo_matrix(([1, 2, 0], ([0, 0, 1], [0, 0, 1])), shape=(2, 2))
    added = PairTable.of(twice)
    assert added.users.tolist() == [0] and added.items.tolist() == [0]
    assert added.rating is not None and added.rating.tolist() == [3.0] and added.is_plain
    assert added.note == "1 stored values of 0 are no pairs"
    small = sparse.coo_matrix((np.array([100, 100, 1], np.int8), ([0, 0, 1], [0, 0, 1])))
    assert PairTable.of(small).rating.tolist() == [200.0, 1.0]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="without a value"):
        PairTable.of(kind((3, 3)))


# ---- the estimator


def rated(users: Any = int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((12, 9)) < 0.5)
    return pd.DataFrame({"item": pairs[:, 1], "user": [users(one) for one in pairs[:, 0]]}), pairs


def made() -> Recommender:
    return Recommender(3, epochs=3, batch_size=8, random_state=0)


def test_a_recommender_knows_an_id_however_it_is_written(caplog: pytest.LogCaptureFixture) -> None:
    frame, pairs = rated(float)
    found = made().fit(frame)
    assert found.users_.dtype.kind == "i"
    had = {*pairs[pairs[:, 0] == 7, 1].tolist()}
    for user in (7, 7.0, "7", " 7 ", "7.0", np.float32(7)):
        assert {item for item, _ in found.recommend(user, 9)} == {*range(9)} - had
    assert not caplog.records
    assert [found.predict([(user, 3)])[0] for user in (7.0, "7")] == [found.predict([(7, 3)])[0]] * 2
    assert not caplog.records
    found.recommend("nobody", 1)
    found.predict([("nobody", 3), (7, 3), ("nobody", 99)])
    assert [one.getMessage() for one in caplog.records] == [
        "user 'nobody' is not in the training data: these are the most popular items",
        "unknown in 3 pairs: the user of 2, the item of 1",
    ]


def test_a_recommender_fits_a_matrix_as_it_fits_its_pairs() -> None:
    frame, pairs = rated()
    matrix = sparse.csr_matrix((np.ones(len(pairs)), pairs.T), shape=(20, 9))
    found, wanted = made().fit(matrix), made().fit(frame)
    assert np.array_equal(found.users_, wanted.users_) and found.recommend(7) == wanted.recommend(7)
    graded = sparse.csr_matrix((1 + pairs.sum(1) % 5, pairs.T))
    with_ratings = made().fit(frame.assign(rating=1 + pairs.sum(1) % 5))
    assert made().fit(graded).recommend(7) == with_ratings.recommend(7)
    with pytest.raises(UsageError, match="a part of a sparse matrix does not say which users its rows are"):
        found.score(matrix)


@settings(max_examples=12, deadline=None)
@given(
    orders=st.tuples(st.permutations(range(3)), st.permutations(range(3))), seed=st.integers(0, 99), rated=st.booleans()
)
def test_rows_columns_and_types_in_any_order_give_the_same_recommender(orders: Any, seed: int, rated: bool) -> None:
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(rng.random((6, 5)) < 0.6)
    table = pd.DataFrame({"user_id": pairs[:, 0], "movieId": [f"m{one}" for one in pairs[:, 1]]})
    table["rating" if rated else "date"] = rng.integers(1, 6, len(table)) if rated else "2027-05-31"
    columns = [*table.columns]
    forms = (
        table[[columns[place] for place in orders[0]]],
        table.sample(frac=1, random_state=seed)[[columns[place] for place in orders[1]]].astype(
            {"movieId": "category"}
        ),
        Stream(pyarrow.table(table.astype({"user_id": float}).iloc[::-1].reset_index(drop=True))),
    )
    fits = [made().fit(form) for form in forms]
    assert fits[0].has_ratings_ == rated
    for other in fits[1:]:
        assert np.array_equal(other.predict(table), fits[0].predict(table))
        assert [other.recommend(user, 5) for user in range(7)] == [fits[0].recommend(user, 5) for user in range(7)]


# ---- hogwild.train


def trained(table: Any, model: Any = None, **more: Any) -> tuple[Any, hogwild.TrainResult]:
    torch.manual_seed(0)
    model = BprFactorization(12, 9, 3) if model is None else model
    rule = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loss = BprLoss() if isinstance(model, BprFactorization) else torch.nn.MSELoss()
    return model, hogwild.train(model, table, loss, rule, **{"procs": 0, "epochs": 2, "batch_size": 8, **more})


def test_a_call_trains_on_pairs_in_any_form_alike(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    frame, pairs = rated()
    tables = {
        "frame": frame, "arrow": Stream(pyarrow.table(frame)), "records": frame.to_records(index=False),
        "array": pairs, "matrix": sparse.coo_matrix((np.ones(len(pairs)), pairs.T)),
        "words": frame.assign(user=[f"u{user:02}" for user in frame["user"]]),
    }  # fmt: skip
    found = {name: trained(table, run_dir=tmp_path / name)[0] for name, table in tables.items()}
    said = capfd.readouterr().err
    assert "dataset: users: row n is id n" in said and "dataset: users: row 0 is u00, and so on, sorted by id" in said
    for name, model in found.items():
        assert torch.equal(model.user.weight, found["frame"].user.weight), name
    run = hogwild.load(tmp_path / "words", model=found["words"])
    assert run.recommend("u07").items == hogwild.load(tmp_path / "frame", model=found["frame"]).recommend(7.0).items


def test_a_run_predicts_pairs_in_any_form_by_their_names_in_their_order(tmp_path: Any) -> None:
    frame, pairs = rated(lambda one: f"u{one}")
    table = frame.assign(rating=1.0 + pairs.sum(1) % 5)
    model, _ = trained(table, MatrixFactorization(12, 9, 3), run_dir=tmp_path / "run")
    run, asked = hogwild.load(tmp_path / "run", model=model), frame.iloc[::-1].astype({"item": float})
    rows = [torch.tensor(pairs[::-1, place].copy()) for place in (0, 1)]
    users = torch.tensor([[*np.unique(frame["user"])].index(f"u{one}") for one in rows[0].tolist()])
    wanted = model(users, rows[1]).detach()
    for form in (asked, Stream(pyarrow.table(asked)), asked[["user", "item"]].to_numpy()):
        assert torch.allclose(run.predict(form).flatten(), wanted.flatten(), atol=1e-5)
    with pytest.raises(UsageError, match="row 1 of the table: 'nobody' is not among the users") as error:
        run.predict(pd.DataFrame({"item": [1, 1], "user": ["u3", "nobody"]}))
    assert error.value.code == "usage/unknown-name"


def test_validation_pairs_have_the_rows_of_the_training_pairs() -> None:
    frame, _ = rated(lambda one: f"u{one}")
    val = pd.DataFrame({"user": ["u7", "stranger", "u3"], "item": [1.0, 1.0, 99.0], "rating": [1, 1, 1]})
    train, held, notes = as_data(MatrixFactorization(12, 9), frame, val)
    assert held.arrays()["user"].tolist() == [[*train.names["users"]].index("u7")]
    assert "val: 2 of 3 pairs are left out: dataset lacks their user or item" in notes


def test_equal_values_of_a_validation_matrix_are_its_ratings() -> None:
    train = sparse.csr_array([[5, 3], [4, 1]])
    _, held, _ = as_data(MatrixFactorization(2, 2), train, sparse.csr_array([[4, 0], [0, 4]]))
    assert held.arrays()["rating"].tolist() == [4.0, 4.0]


def test_validation_pairs_go_with_a_recommenders_own_data() -> None:
    frame, _ = rated(lambda one: f"u{one}")
    found = Recommender(3, epochs=1, procs=0, settings={"val": frame.iloc[::-1], "evaluate": {"metrics": ["auc"]}})
    history = found.fit(frame.sample(frac=1, random_state=0)).result_.history
    assert len(history["loss"]) == 1
    with pytest.raises(UsageError, match="val is a DataFrame"):
        as_data(MatrixFactorization(12, 9), [], frame)


def test_ids_beyond_the_models_rows_are_numbered_in_their_order() -> None:
    frame = pd.DataFrame({"user": [100, 300, 200], "item": [0, 1, 2], "rating": [1.0, 2.0, 3.0]})
    packed, _, notes = as_data(MatrixFactorization(3, 9), frame, None)
    assert packed.arrays()["user"].tolist() == [0, 1, 2] and packed.names["users"].tolist() == [100, 200, 300]
    assert packed.arrays()["rating"].tolist() == [1.0, 3.0, 2.0]
    assert notes[0] == "dataset: users: row 0 is 100, and so on, sorted by id"


@pytest.mark.parametrize(
    "form", [pd.DataFrame, lambda one: Stream(pyarrow.table(one)), lambda one: np.array([*one.values()]).T]
)
def test_a_table_of_something_else_is_refused_with_the_way_to_train_on_it(form: Any) -> None:
    table = form({"x": [0.1, 0.2], "y": [1.0, 2.0]})
    with pytest.raises(
        UsageError, match=r"say what is input and what is target: TensorDataset\(torch\.tensor"
    ) as error:
        trained(table, torch.nn.Linear(1, 1))
    assert error.value.code == "usage/objects"
