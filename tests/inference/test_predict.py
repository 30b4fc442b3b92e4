"""`hogwild predict` and `Trained.predict`: rows without targets, from files and streams, as people read them."""

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import csv as pyarrow_csv
from pyarrow import parquet
from torch.utils.data import TensorDataset

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.data import Clicks, Csv, Npz
from hogwild.inference import inputs
from hogwild.job.data import match_names
from tests.helpers.predicting import Say, linear, train

COLOURS = ("red", "green", "blue")
SPARSE = {"class_path": "hogwild.models.SparseLinear"}
ROWS = [(0.5 * k - 3, k % 3, 1 - 0.25 * k) for k in range(12)]  # a, colour, b


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows are several blocks."""
    monkeypatch.setattr(inputs, "BLOCK_ROWS", 5)


@pytest.fixture
def coloured(say: Say, tmp_path: Path) -> Path:
    """A run that learns the colour (three names) from a and b; the file has an id, too."""
    lines = [f"{k},{a},{COLOURS[colour]},{b}" for k, (a, colour, b) in enumerate(ROWS)]
    (tmp_path / "colours.csv").write_text("\n".join(["id,a,colour,b", *lines, ""]))
    arguments = {
        "path": str(tmp_path / "colours.csv"), "target": "colour", "leave_out": ["id"],
        "categorical": {"colour": [*COLOURS]},
    }  # fmt: skip
    return train(say, tmp_path, "Csv", arguments, "torch.nn.CrossEntropyLoss", linear(2, 3))


def logits(run: Path) -> torch.Tensor:
    """Return the output of the model of `coloured` for all rows (N, 3)."""
    found: torch.Tensor = hogwild.load(run).model(torch.tensor([(a, b) for a, _, b in ROWS])).detach()
    return found


def table(lines: list[str]) -> dict[str, list[str]]:
    names, *rows = csv.reader(lines)
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def unlabelled(file: Path, *, header: str = "b,customer,a", row: str = "{b},c-{k},{a}") -> Path:
    """The rows without colours, columns in another order, and one more."""
    rows = [row.format(k=k, a=a, b=b) for k, (a, _, b) in enumerate(ROWS)]
    file.write_text("\n".join([header, *rows, ""]))
    return file


# ---- what comes out


def test_a_classifier_answers_with_names_and_probabilities(say: Say, coloured: Path, tmp_path: Path) -> None:
    status, lines, said = say("predict", coloured, unlabelled(tmp_path / "new.csv"), "--id", "customer")
    assert status == 0, said
    found, wanted = table(lines), logits(coloured)
    assert [*found] == ["customer", "predicted", *(f"probability_{name}" for name in COLOURS)]
    assert found["customer"] == [f"c-{k}" for k in range(12)]
    assert found["predicted"] == [COLOURS[number] for number in wanted.argmax(1)]
    answered = torch.tensor([[float(found[f"probability_{name}"][k]) for name in COLOURS] for k in range(12)])
    torch.testing.assert_close(answered, wanted.softmax(1))


def test_raw_answers_are_the_models_outputs(say: Say, coloured: Path, tmp_path: Path) -> None:
    status, lines, _ = say("predict", coloured, unlabelled(tmp_path / "new.csv"), "--raw")
    found, wanted = table(lines), logits(coloured)
    assert status == 0 and [*found] == ["sample", "output_0", "output_1", "output_2"]
    assert found["sample"] == [str(k) for k in range(12)]
    answered = hogwild.load(coloured).predict(tmp_path / "new.csv", raw=True)
    assert np.array(found["output_2"], np.float32).tolist() == answered[:, 2].tolist(), "every digit of a float32"
    torch.testing.assert_close(answered, wanted)
    torch.testing.assert_close(hogwild.load(coloured).predict(tmp_path / "new.csv"), wanted.softmax(1))


def test_files_of_every_kind_hold_the_same_answers(say: Say, coloured: Path, tmp_path: Path) -> None:
    new = unlabelled(tmp_path / "new.csv")
    for ending in ("csv", "npz", "parquet"):
        out = tmp_path / f"out.{ending}"
        status, lines, _ = say("predict", coloured, new, "--id", "customer", "--out", out)
        assert status == 0 and lines == [f"12 predictions: {out}"]
    _, printed, _ = say("predict", coloured, new, "--id", "customer")
    assert (tmp_path / "out.csv").read_text().splitlines() == printed
    arrays = np.load(tmp_path / "out.npz")
    found = table(printed)
    assert arrays["customer"].tolist() == found["customer"] and arrays["predicted"].tolist() == found["predicted"]
    assert arrays["classes"].tolist() == [*COLOURS]
    torch.testing.assert_close(torch.from_numpy(arrays["probabilities"]), logits(coloured).softmax(1))
    stored = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert [*stored] == [*found] and stored["predicted"] == found["predicted"]
    assert stored["probability_red"] == arrays["probabilities"][:, 0].tolist()
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".tmp")]


@pytest.mark.parametrize(
    "name", ["predicted", "probability_red", "classes", "probabilities", "file", "allow_pickle", "sample", "output"]
)
def test_ids_keep_their_column_beside_one_of_the_answers_of_the_same_name(
    name: str, say: Say, coloured: Path, tmp_path: Path
) -> None:
    new = unlabelled(tmp_path / "new.csv", header=f"b,{name},a")
    raw = ["--raw"] if name == "output" else []
    status, lines, said = say("predict", coloured, new, "--id", name, *raw)
    assert status == 0, said
    ids, (header, *_) = [f"c-{k}" for k in range(12)], csv.reader(lines)
    assert len({*header}) == len(header) == (4 if raw else 5)
    assert table(lines)[name] == ids
    likeliest = [COLOURS[number] for number in logits(coloured).argmax(1)]
    if not raw:
        assert table(lines)["predicted_" if name == "predicted" else "predicted"] == likeliest
    for ending in ("npz", "parquet"):
        assert say("predict", coloured, new, "--id", name, *raw, "--out", tmp_path / f"out.{ending}")[0] == 0
    arrays, stored = np.load(tmp_path / "out.npz"), parquet.read_table(tmp_path / "out.parquet")
    assert arrays[name].tolist() == ids == stored.column(name).to_pylist()
    assert stored.column_names == header and len(arrays.files) == (2 if raw else 4)


@pytest.mark.parametrize(
    ("loss", "names", "answer"),
    [
        ("torch.nn.BCEWithLogitsLoss", ["sample", "predicted", "probability"], torch.sigmoid),
        ("torch.nn.functional.binary_cross_entropy_with_logits", ["sample", "predicted", "probability"], torch.sigmoid),
        ("hogwild.losses.HingeLoss", ["sample", "predicted", "output"], lambda x: x),
        ("torch.nn.MSELoss", ["sample", "output"], lambda x: x),
    ],
)
def test_the_loss_says_what_one_output_means(
    loss: str, names: list[str], answer: Callable[[torch.Tensor], torch.Tensor], say: Say, tmp_path: Path
) -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 2)
    np.savez(tmp_path / "t.npz", x=x, y=(x.sum(1, keepdims=True) > 0).astype(np.float32))
    run = train(say, tmp_path, "Npz", {"path": str(tmp_path / "t.npz")}, loss, linear(2, 1))
    np.savez(tmp_path / "new.npz", x=x)
    status, lines, said = say("predict", run, tmp_path / "new.npz")
    assert status == 0, said
    output = hogwild.load(run).model(torch.from_numpy(x)).detach()
    found = table(lines)
    assert [*found] == names
    assert [float(one) for one in found[names[-1]]] == pytest.approx(answer(output)[:, 0].tolist(), rel=1e-6)
    if "predicted" in found:
        assert found["predicted"] == [str(int(one > 0)) for one in output[:, 0]]
    np.savez(tmp_path / "named.npz", x=x, output=np.arange(100, 116))
    status, lines, _ = say("predict", run, tmp_path / "named.npz", "--id", "output")
    again = table(lines)
    assert status == 0 and again["output"] == [*map(str, range(100, 116))]
    assert again["output_" if names[-1] == "output" else names[-1]] == found[names[-1]]


# ---- where rows come from


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("id,a,colour,b", "7,{a},red,{b}"),  # as in training
        ("id,a,colour,b", "7,{a},,{b}"),  # a target that is missing
        ("id,a,colour,b", "7,{a},mauve,{b}"),  # one that nobody knows
        ("a,b", "{a},{b}"),
        ("b,note,a", '{b},"new, and ""quoted""",{a}'),
    ],
)
def test_a_table_is_read_by_names_and_needs_no_target(
    header: str, row: str, say: Say, coloured: Path, tmp_path: Path
) -> None:
    found = hogwild.load(coloured).predict(unlabelled(tmp_path / "new.csv", header=header, row=row), raw=True)
    torch.testing.assert_close(found, logits(coloured))


def test_parquet_is_read_by_names(say: Say, coloured: Path, tmp_path: Path) -> None:
    columns = {
        "b": pyarrow.array([b for *_, b in ROWS], pyarrow.float32()),
        "lists": [[1], [2]] * 6,  # no column that is used
        "a": [a for a, *_ in ROWS],
        "customer": list(range(100, 112)),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet", row_group_size=5)
    status, lines, said = say("predict", coloured, tmp_path / "new.parquet", "--raw", "--id", "customer")
    assert status == 0, said
    found = table(lines)
    assert found["customer"] == [str(number) for number in range(100, 112)]
    assert [float(one) for one in found["output_0"]] == pytest.approx(logits(coloured)[:, 0].tolist())
    parquet.write_table(pyarrow.table({"a": [1.0], "c": [2]}), tmp_path / "less.parquet")
    status, _, said = say("predict", coloured, tmp_path / "less.parquet")
    assert (
        status == 2
        and "column 'b' of the training data is missing, it has 'c', which the training data does not have" in said
    )


def test_one_table_has_the_same_answers_in_every_form(say: Say, coloured: Path, tmp_path: Path) -> None:
    """The run was trained on commas; the header says what else separates the columns."""
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"b": [b for *_, b in ROWS], "customer": range(12), "a": [a for a, *_ in ROWS]})
    for name, sign in (("new.csv", ","), ("new.csv.gz", ","), ("new.tsv", "\t"), ("semicolons.csv", ";")):
        rows.to_csv(tmp_path / name, sep=sign)
    rows.to_parquet(tmp_path / "new.parquet", index=True)
    trained, wanted = hogwild.load(coloured), logits(coloured)
    for name in ("new.csv", "new.csv.gz", "new.tsv", "semicolons.csv", "new.parquet"):
        torch.testing.assert_close(trained.predict(tmp_path / name, raw=True), wanted)
    for table in (rows, pyarrow.table(rows)):
        torch.testing.assert_close(trained.predict(table, raw=True), wanted)
    with pytest.raises(hogwild.HogwildError, match=r"DataFrame.*column 'b' of the training data is missing"):
        trained.predict(rows[["a"]])


def test_parquet_has_the_rules_of_text_for_categories_and_missing_values(say: Say, tmp_path: Path) -> None:
    """Booleans are numbers, dictionaries text; a job on a Parquet file is one on its CSV."""
    columns = {"a": [0.5, None, 2.0, 1.0] * 4, "is": [True, False] * 8, "c": ["u", "v", None, "w"] * 4, "y": [1.0] * 16}
    stored = pyarrow.table(columns)
    stored = stored.set_column(2, "c", stored.column("c").dictionary_encode())
    parquet.write_table(stored, tmp_path / "t.parquet")
    lines = [f"{'' if a is None else a},{int(b)},{c or ''},{y}" for a, b, c, y in zip(*columns.values(), strict=True)]
    (tmp_path / "colours.csv").write_text("\n".join(["a,is,c,y", *lines, ""]))
    arguments = {"target": "y", "categorical": {"c": {"values": ["u", "v"], "other": True}}, "missing": "mean"}
    read = [hogwild.data.Csv(tmp_path / name, **arguments).rows(0, 16) for name in ("t.parquet", "colours.csv")]
    assert [field.tolist() for field in read[0]] == [field.tolist() for field in read[1]]


def test_a_missing_value_to_predict_or_to_validate_with_is_the_training_datas_mean(say: Say, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,y\n1,10,0\n3,,1\n,50,2\n")
    arguments: Any = {"path": str(tmp_path / "t.csv"), "target": "y", "missing": "mean"}
    run = train(say, tmp_path, "Csv", arguments, "torch.nn.MSELoss", linear(2, 1))
    trained = hogwild.load(run)
    wanted = trained.model(torch.tensor([[2.0, 30.0], [7.0, 30.0]])).tolist()
    (tmp_path / "new.csv").write_text("b,a\n,\n,7\n")  # b has no mean of its own, and that of a is 7
    assert trained.predict(tmp_path / "new.csv").tolist() == wanted
    assert trained.predict(pyarrow.table({"a": [None, 7.0], "b": pyarrow.nulls(2)})).tolist() == wanted
    (tmp_path / "val.csv").write_text("y,b,a\n0,9,\n0,,7\n")
    val = Csv(tmp_path / "val.csv", "y", missing="mean")
    match_names(Csv(**arguments), val)
    assert val.rows(0, 2)[0].tolist() == [[2, 9], [7, 30]]


@pytest.mark.parametrize("form", ["csv", "table"])
def test_a_value_that_the_training_data_lacks_is_said_once_for_each_column(
    form: str, say: Say, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.csv").write_text("site,user,y\nnews,7,0\nshop,8,1\n")
    arguments = {"path": str(tmp_path / "t.csv"), "target": "y", "hash": {"user": 5}}
    run = train(say, tmp_path, "Clicks", arguments, "hogwild.losses.LogisticLoss", SPARSE)
    rows = ["shop,7.0", "news,9", *["mail,1", "chat,2"] * 9]
    (tmp_path / "new.csv").write_text("\n".join(["site,user", *rows]))
    new = tmp_path / "new.csv" if form == "csv" else pyarrow_csv.read_csv(tmp_path / "new.csv")
    hogwild.load(run).predict(new)
    (said,) = [message for message in caplog.messages if "is not in the training data" in message]
    assert "column 'site': 'mail' is not in the training data" in said
    caplog.clear()
    hogwild.load(run).predict(pyarrow.table({"site": ["shop", None], "user": [7.0, 1e6]}))
    assert not caplog.messages


def test_a_data_set_to_predict_is_read_by_the_training_datas_names(say: Say, tmp_path: Path) -> None:
    table = pyarrow.table({"a": [1.0, 2, None], "c": ["u", "v", "u"], "b": [5.0, 7, 9], "y": [0.0, 1, 0]})
    pyarrow_csv.write_csv(table, tmp_path / "t.csv")
    arguments: Any = {
        "path": str(tmp_path / "t.csv"),
        "target": "y",
        "missing": "mean",
        "categorical": {"c": ["u", "v"]},
    }
    model = {"class_path": "hogwild.models.Tabular", "init_args": {"hidden": []}}
    trained = hogwild.load(train(say, tmp_path, "Csv", arguments, "torch.nn.MSELoss", model))
    wanted = trained.predict(tmp_path / "t.csv").tolist()
    other = Csv(table.select(["y", "b", "c", "a"]), "y", categorical={"c": ["v", "u"]}, missing="mean")
    before = [field.tolist() for field in other.rows(0, 3)]
    assert trained.predict(other).tolist() == wanted
    assert [field.tolist() for field in other.rows(0, 3)] == before, "the data set itself stays as it is"
    with pytest.raises(hogwild.HogwildError, match="column 'a' of the training data is missing"):
        trained.predict(Csv(table.select(["y", "b", "c"]), "y", categorical={"c": ["v", "u"]}))


def test_arrays_and_clicks_to_predict_are_taken_by_names(say: Say, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", a=np.array([1.5, 2]), b=np.array([3.0, 5]), y=np.zeros((2, 1)))
    arguments: Any = {"path": str(tmp_path / "t.npz"), "inputs": ["a", "b"]}
    difference = {"class_path": f"{__name__}.Difference"}
    trained = hogwild.load(train(say, tmp_path, "Npz", arguments, "torch.nn.MSELoss", difference))
    wanted = trained.predict(tmp_path / "t.npz").tolist()
    assert trained.predict(Npz(tmp_path / "t.npz", ["b", "a"])).tolist() == wanted
    with pytest.raises(hogwild.HogwildError, match=r"input: .*its inputs are b, those of data\.train a, b"):
        trained.predict(Npz(tmp_path / "t.npz", ["b"]))
    table = pyarrow.table({"site": ["news", "shop"], "user": [7, 8], "y": [0, 1]})
    pyarrow_csv.write_csv(table, tmp_path / "t.csv")
    arguments = {"path": str(tmp_path / "t.csv"), "target": "y"}
    (tmp_path / "clicks").mkdir()
    trained = hogwild.load(train(say, tmp_path / "clicks", "Clicks", arguments, "hogwild.losses.LogisticLoss", SPARSE))
    wanted = trained.predict(tmp_path / "t.csv").tolist()
    assert trained.predict(Clicks(table.select(["user", "y", "site"]), "y")).tolist() == wanted


class Difference(torch.nn.Module):
    """Takes its inputs by their order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([1.0]))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a - 2 * b) * self.scale)[:, None]


def test_arrays_are_read_by_names_compressed_or_not(say: Say, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float64).reshape(16, 2)
    np.savez(tmp_path / "t.npz", x=x, y=x.sum(1, keepdims=True))
    run = train(say, tmp_path, "Npz", {"path": str(tmp_path / "t.npz")}, "torch.nn.MSELoss", linear(2, 1))
    trained = hogwild.load(run)
    wanted = trained.model(torch.from_numpy(x).float()).detach()
    who = np.array([f"row {k}" for k in range(16)])
    np.savez(tmp_path / "new.npz", x=x, who=who)
    np.savez_compressed(tmp_path / "small.npz", who=who, x=np.asfortranarray(x))
    for name in ("new.npz", "small.npz"):
        torch.testing.assert_close(trained.predict(tmp_path / name), wanted)
        _, lines, _ = say("predict", run, tmp_path / name, "--id", "who")
        assert table(lines)["who"] == who.tolist()
    torch.testing.assert_close(trained.predict(TensorDataset(torch.from_numpy(x).float())), wanted)


def test_a_run_on_tensors_reads_arrays_named_as_its_forward(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 32).reshape(16, 2)
    model = torch.nn.Linear(2, 1)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(x, x[:, :1])
    hogwild.train(model, data, torch.nn.MSELoss(), rule, procs=0, batch_size=8, run_dir=tmp_path / "run")
    trained = hogwild.load(tmp_path / "run", model=torch.nn.Linear(2, 1))
    for arrays in ({"anything": x}, {"input": x, "more": x}):
        np.savez(tmp_path / "new.npz", **{name: one.numpy() for name, one in arrays.items()})
        torch.testing.assert_close(trained.predict(tmp_path / "new.npz"), model(x).detach())
    np.savez(tmp_path / "new.npz", first=x.numpy(), second=x.numpy())
    with pytest.raises(hogwild.HogwildError, match="no array named input; it holds first, second"):
        trained.predict(tmp_path / "new.npz")


@pytest.fixture
def sparse(say: Say, tmp_path: Path) -> Path:
    (tmp_path / "rows.svm").write_text("".join(f"{'+1' if k % 2 else '-1'} {1 + k % 2}:1 3:0.5\n" for k in range(40)))
    loss = "hogwild.losses.LogisticLoss"
    return train(say, tmp_path, "LibSvm", {"path": str(tmp_path / "rows.svm")}, loss, SPARSE)


@pytest.mark.parametrize(
    "text",
    [
        "+1 1:1 3:0.5\n-1 2:1 3:0.5 77:3\n+1 3:1\n",
        "1:1 3:0.5\n\n# without labels\n2:1 3:0.5 77:3\n  3:1",
        "\ufeff1:1 3:0.5\n2:1 3:0.5\n+1 3:1\n",
        "5 1:1 3:0.5\n2:1 3:0.5\n-0.5 3:1 # some of another kind\n",
    ],
)
def test_sparse_rows_need_no_labels(text: str, sparse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hogwild.data.libsvm.PIECE", 16)
    (tmp_path / "new.svm").write_text(text)
    trained = hogwild.load(sparse)
    weight, bias = trained.model.weight[:, 0], trained.model.bias
    wanted = torch.stack([weight[0] + weight[2] / 2, weight[1] + weight[2] / 2, weight[2]]).detach() + bias.detach()
    torch.testing.assert_close(trained.predict(tmp_path / "new.svm", raw=True), wanted)


def test_classes_of_sparse_rows_have_their_labels_and_a_file_may_have_any(say: Say, tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("".join(f"{(3, 7, 20)[k % 3]} {1 + k % 3}:1\n" for k in range(60)))
    arguments = {"path": str(tmp_path / "rows.svm"), "labels": "classes"}
    run = train(say, tmp_path, "LibSvm", arguments, "torch.nn.CrossEntropyLoss", SPARSE)
    (tmp_path / "new.svm").write_text("99 1:1\n2:1\n-0.5 3:1\n")
    status, lines, said = say("predict", run, tmp_path / "new.svm")
    assert status == 0, said
    assert [*table(lines)] == ["sample", "predicted", "probability_3", "probability_7", "probability_20"]
    assert table(lines)["predicted"] == ["3", "7", "20"]


def test_ratings_are_answered_in_the_order_of_their_file_by_user_and_item(say: Say, tmp_path: Path) -> None:
    users, items = ("ann", "bob", "cid"), ("film", "song", "book")
    lines = [f"{user},{item},{1 + len(user + item) % 5}" for user in users for item in items]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    model = {"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 2}}
    run = train(say, tmp_path, "Ratings", {"path": str(tmp_path / "ratings.csv")}, "torch.nn.MSELoss", model)
    (tmp_path / "pairs.csv").write_text("item,user\nsong,bob\nfilm,ann\nfilm,cid\nsong,bob\n")
    status, printed, said = say("predict", run, tmp_path / "pairs.csv")
    assert status == 0, said
    found = table(printed)
    assert (found["user"], found["item"]) == (["bob", "ann", "cid", "bob"], ["song", "film", "film", "song"])
    trained = hogwild.load(run)
    rows = [
        (users.index(user), trained.names["items"].index(item))
        for user, item in zip(found["user"], found["item"], strict=True)
    ]
    wanted = [trained.model(torch.tensor([user]), torch.tensor([item])).item() for user, item in rows]
    assert [float(one) for one in found["output"]] == pytest.approx(wanted)
    assert trained.predict(tmp_path / "pairs.csv").tolist() == pytest.approx(wanted)


# ---- a stream


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a pipe to write into; the other one is standard input."""
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    os.close(reader)
    yield writer
    os.dup2(kept, 0)
    os.close(kept)


def test_rows_of_a_stream_are_answered_as_they_come(standard_input: int, coloured: Path) -> None:
    """Also in the middle of a value, and of a quoted one with a line end in it."""
    parts = iter((b"b,no", b"te,a\n1,x", b',2\n3,"a\nb', b'",4\n5,y,', b"6\n7,z,8"))
    os.write(standard_input, next(parts) + next(parts) + next(parts))
    predictor = hogwild.load(coloured).predictor("-", ids="note", raw=True)
    blocks = predictor.inputs.blocks()
    first = next(blocks)
    assert first.names["note"] == ["x"] and first.inputs[0].tolist() == [[2.0, 1.0]]
    os.write(standard_input, next(parts))
    assert next(blocks).names["note"] == ["a\nb"]
    os.write(standard_input, next(parts))
    os.close(standard_input)
    assert [(block.names["note"], block.inputs[0].tolist()) for block in blocks] == [
        (["y"], [[6.0, 5.0]]),
        (["z"], [[8.0, 7.0]]),
    ]


def test_a_stream_gives_the_answers_of_the_file(standard_input: int, say: Say, coloured: Path, tmp_path: Path) -> None:
    new = unlabelled(tmp_path / "new.csv")
    _, wanted, _ = say("predict", coloured, new)
    os.write(standard_input, new.read_bytes())
    os.close(standard_input)
    status, found, _ = say("predict", coloured, "-")
    assert status == 0 and table(found)["predicted"] == table(wanted)["predicted"]
    for name, values in table(wanted).items():  # as one block, which may round in another way
        if name.startswith("probability"):
            assert [*map(float, table(found)[name])] == pytest.approx([*map(float, values)], rel=1e-5)


def test_sparse_rows_come_through_a_stream(standard_input: int, say: Say, sparse: Path, tmp_path: Path) -> None:
    (tmp_path / "new.svm").write_text("1:1 3:0.5\n2:1\n")
    _, wanted, _ = say("predict", sparse, tmp_path / "new.svm")
    os.write(standard_input, (tmp_path / "new.svm").read_bytes())
    os.close(standard_input)
    assert say("predict", sparse, "-") == (0, wanted, "") and len(wanted) == 3


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (b"", "data/empty", "standard input: is empty"),
        (b"a,b\n", "data/empty", "standard input: contains no samples"),
        (b"a,b\n1,2\n3,x\n", "data/csv-value", "standard input: line 3: column 'b': 'x' must be a number"),
        (b'a,b\n1,2\n3,"4\n', "data/csv-quotes", "after line 3: a quote"),
        (b"a,c\n1,2\n", "data/csv-columns", "column 'b' of the training data is missing"),
    ],
)
def test_a_wrong_stream_is_told(
    text: bytes, code: str, words: str, standard_input: int, say: Say, coloured: Path
) -> None:
    os.write(standard_input, text)
    os.close(standard_input)
    status, _, said = say("predict", coloured, "-")
    assert status != 0 and words in said and code in said and "Traceback" not in said


# ---- what cannot be


@pytest.mark.parametrize(
    ("content", "arguments", "code", "words"),
    [
        (
            "a,c\n1,2\n",
            [],
            "data/csv-columns",
            "column 'b' of the training data is missing, it has 'c', which the training data does not have",
        ),
        ("a,b\n1,2\n", ["--id", "customer"], "data/csv-columns", "there is no column 'customer'"),
        ("a,b\n1,x\n", [], "data/csv-value", "line 2: column 'b': 'x' must be a number"),
        ("a,b\n1,\n", [], "data/csv-missing", "line 2: column 'b'"),
        ("", [], "data/empty", "is empty"),
        ("a,b\n", [], "data/empty", "contains no samples"),
        ("a,b\n1,2\n", ["--out", "x.txt"], "usage/bad-value", "must end in .csv, .npz or .parquet"),
        ("a,b\n1,2\n", ["--which", "newest"], "usage/bad-value", "--which newest"),
        ("a,b\n1,2\n", ["--out", "new.csv"], "usage/contradiction", "--out new.csv: is the file to predict"),
    ],
)
def test_a_wrong_file_is_told_and_nothing_is_written(
    content: str,
    arguments: list[str],
    code: str,
    words: str,
    say: Say,
    coloured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text(content)
    arguments = arguments if "--out" in arguments else [*arguments, "--out", str(tmp_path / "out.csv")]
    status, _, said = say("predict", coloured, tmp_path / "new.csv", *arguments)
    assert status != 0 and words in said and code in said and "Traceback" not in said
    assert not list(tmp_path.glob("*out.csv*")) and (tmp_path / "new.csv").read_text() == content


@pytest.mark.parametrize("name", ["x.npz", "x.svm"])
def test_a_file_of_another_kind_is_known_by_its_ending(name: str, say: Say, coloured: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("1:1\n")
    status, _, said = say("predict", coloured, tmp_path / name)
    assert status == 2 and "usage/other-kind-of-file" in said and "reads .csv, .tsv, .parquet" in said


def test_a_table_is_known_by_its_content_and_not_by_its_name(say: Say, coloured: Path, tmp_path: Path) -> None:
    as_text = say("predict", coloured, unlabelled(tmp_path / "new.csv"))
    assert as_text[0] == 0 and as_text == say("predict", coloured, unlabelled(tmp_path / "new.parquet"))
    (tmp_path / "new.parquet").write_bytes(b"PAR1\0\0")
    status, _, said = say("predict", coloured, tmp_path / "new.parquet")
    assert status != 0 and "data/wrong-format" in said and "cannot be read as Parquet" in said


def test_sparse_rows_have_no_ids_and_arrays_no_stream(
    standard_input: int, say: Say, sparse: Path, tmp_path: Path
) -> None:
    os.close(standard_input)
    (tmp_path / "new.svm").write_text("1:1 2\n")
    assert "usage/no-ids" in say("predict", sparse, tmp_path / "new.svm", "--id", "x")[2]
    status, _, said = say("predict", sparse, tmp_path / "new.svm")
    assert status != 0 and "line 1: behind the label stand pairs index:value, not '2'" in said
    (tmp_path / "new.svm").write_text("# nothing\n")
    assert "data/empty" in say("predict", sparse, tmp_path / "new.svm")[2]


def test_a_model_of_words_predicts_no_rows(say: Say, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the king and the queen\nthe man and the woman\n" * 200)
    model = {"class_path": "hogwild.models.SkipGram", "init_args": {"dim": 8, "sample": 0}}
    loss = "hogwild.losses.NegativeSampling"
    run = train(say, tmp_path, "Text", {"path": str(tmp_path / "text.txt")}, loss, model)
    status, _, said = say("predict", run, tmp_path / "text.txt")
    assert status == 2 and "usage/no-predictions" in said and "use similar" in said


def test_inputs_that_do_not_fit_the_model_are_told(coloured: Path) -> None:
    with pytest.raises(hogwild.HogwildError, match=r"Linear cannot take the inputs \(\(5, 7\) float32\)") as raised:
        hogwild.load(coloured).predict(TensorDataset(torch.zeros(6, 7)))
    assert raised.value.code == "model/forward-failed"
