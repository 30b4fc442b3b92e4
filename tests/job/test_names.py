"""Names, not places: columns, categories, classes, characters and arrays of the validation data are those of the
training data, in whatever order another file has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from hogwild.data import Characters, Csv, ImageFolder, LibSvm, Names, Npz
from hogwild.errors import DataError, HogwildError
from hogwild.job.data import match_names
from hogwild.storage import checkpoint
from tests.job.conftest import Say
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

COLUMNS = ("age", "city", "height", "kind", "w", "y")
TABLE = [
    {"age": k, "city": "abc"[k % 3], "height": k / 8, "kind": "pq"[k // 2 % 2], "w": 1 + k % 2, "y": k % 4}
    for k in range(12)
]
Table = list[dict[str, Any]]


def written(path: Path, columns: Any = COLUMNS, table: Table = TABLE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(columns), *(",".join(str(row[one]) for one in columns) for row in table)]))
    return path


def samples(data: Any) -> list[Tensor]:
    return [torch.stack([torch.as_tensor(one) for one in field]) for field in zip(*data, strict=True)]


def assert_same(ours: Any, theirs: Any) -> None:
    pairs = zip(samples(ours), samples(theirs), strict=True)
    assert all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


CATEGORIES: dict[Any, Any] = {"city": ["a", "b", "c"], "kind": {"values": ["p"], "other": True}}


@settings(max_examples=40, deadline=None)
@given(
    columns=st.permutations(COLUMNS),
    cities=st.permutations(["a", "b", "c"]),
    classes=st.permutations([0, 1, 2, 3]),
    target=st.sampled_from(["y", -1, "class", ["y", "age"]]),
    missing=st.sampled_from(["fail", "drop", 0.0]),
)
def test_a_table_in_another_order_validates_as_the_same_table(
    columns: list[str], cities: list[str], classes: list[int], target: Any, missing: Any, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("table")
    arguments: dict[str, Any] = {"target": target, "weight": "w", "missing": missing if target != -1 else 0.0}
    mine, theirs = dict(CATEGORIES), {"kind": CATEGORIES["kind"], "city": cities}
    if target == "class":
        arguments["target"], mine["y"], theirs["y"] = "y", [3, 2, 1, 0], classes
    train = Csv(written(folder / "train.csv"), categorical=mine, **arguments)
    other = arguments | ({"target": ["age", "y"]} if target == ["y", "age"] else {})
    if target == -1 and columns[-1] == "w":
        return  # one column as target and weight: an error
    val = Csv(written(folder / "val.csv", columns), categorical=theirs, **other)
    match_names(train, val)
    assert_same(val, train)
    assert_same(zip(*next(val.parts()), strict=True), train)


def test_a_column_that_is_missing_or_exchanged_is_named_with_the_one_in_its_place(tmp_path: Path) -> None:
    train = Csv(written(tmp_path / "train.csv"), "y", inputs=["age", "height"])
    table = [{**row, "weight": row["height"]} for row in TABLE]
    val = Csv(written(tmp_path / "val.csv", ("age", "weight", "y"), table), "y")
    with pytest.raises(HogwildError, match="column 'height' of the training data is missing, it has 'weight'") as told:
        match_names(train, val)
    assert told.value.code == "data/csv-columns"
    more = Csv(written(tmp_path / "more.csv", ("weight", "y", "height", "age"), table), "y")
    match_names(train, more)  # a column more is no input
    assert_same(more, train)


def pictures(folder: Path, **classes: int) -> Path:
    image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'hogwild[images]'")
    for name, shade in classes.items():
        (folder / name).mkdir(parents=True)
        image.new("L", (2, 2), shade).save(folder / name / "one.png")
    return folder


def test_a_folder_with_a_class_that_the_training_data_lacks_is_refused(tmp_path: Path) -> None:
    train = ImageFolder(pictures(tmp_path / "train", cat=10, dog=20, owl=30), 2, channels=1)
    other = ImageFolder(pictures(tmp_path / "other", ant=1, cat=10), 2, channels=1)
    with pytest.raises(DataError, match=r"class 'ant' is not in data\.train, which has 'cat', 'dog', 'owl'"):
        match_names(train, other)


def test_other_arrays_than_those_of_the_training_data_are_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", a=np.arange(4.0), b=np.arange(4.0), y=np.arange(4))
    with pytest.raises(DataError, match=r"its inputs are a, y, those of data\.train a, b"):
        match_names(Npz(tmp_path / "data.npz", ["a", "b"]), Npz(tmp_path / "data.npz", ["a", "y"], "b"))


def test_a_text_with_fewer_characters_has_the_training_texts_numbers(tmp_path: Path) -> None:
    for name, text in {"train": "abcabd", "val": "bdbdb", "odd": "abxab"}.items():
        (tmp_path / name).write_text(text)
    train, val, odd = (Characters(2, fraction=0.1, path=tmp_path / name) for name in ("train", "val", "odd"))
    match_names(train, val)
    assert val[0][0].tolist() == [1, 3] and val.vocabularies == train.vocabularies
    with pytest.raises(DataError, match="symbol 'x'"):
        match_names(train, odd)


class Listed(Dataset):
    """A user's data set, as torchvision's: what its numbers stand for is in `classes`."""

    def __init__(self, *classes: str) -> None:
        self.classes = [*classes]

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        raise IndexError


def test_a_users_own_classes_in_another_order_are_refused() -> None:
    match_names(Listed("cat", "dog"), Listed("cat", "dog"))
    with pytest.raises(DataError, match=r"classes: number 0 is 'dog', but 'cat' in data\.train") as told:
        match_names(Listed("cat", "dog"), Listed("dog"))
    assert told.value.code == "data/val-unlike-train"


JOB: dict[str, Any] = {
    "model": {"class_path": "hogwild.models.Tabular", "init_args": {"hidden": []}},
    "loss": {"class_path": "torch.nn.MSELoss"},
    "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
    "data": {
        "train": {"class_path": "hogwild.data.Csv", "init_args": {"path": "train.csv", "target": "y"}},
        "val": {"class_path": "hogwild.data.Csv", "init_args": {"path": "val.csv", "target": "y"}},
        "batch_size": 4,
    },
    "train": {"procs": 0, "epochs": 1},
    "evaluate": {"metrics": ["rmse"]},
    "log": {"tensorboard": False},
}


def recorded_in(run: Path) -> dict[str, float]:
    """The metrics of the last evaluation while training."""
    found: dict[str, float] = checkpoint.load((run / "checkpoints" / "latest").resolve())["metrics"]
    return found


def test_a_job_and_its_evaluation_read_validation_data_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    table = [{"a": k, "b": 10.0 - k * k, "y": 3 * k} for k in range(12)]
    written(tmp_path / "train.csv", "aby", table)
    figures, recorded = [], []
    for number, columns in enumerate(("aby", "yba")):
        written(tmp_path / "val.csv", columns, table)
        status, said = say("train", "job.yaml", "--run-dir", f"run{number}", "--no-progress")
        assert status == 0, said
        status, said = say("eval", "run0", "--json")  # with the file of this round
        assert status == 0, said
        figures.append(json.loads(said[said.index("{") :])["metrics"])
        recorded.append(recorded_in(tmp_path / f"run{number}"))
    assert figures[0] == figures[1]
    assert recorded[0] == recorded[1] != {}


def test_arguments_that_give_the_inputs_another_meaning_are_the_same_in_both(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("L", (4, 4), 9).save(tmp_path / "pictures" / name / "1.png")
        (tmp_path / f"{name}.txt").write_text("ann\nbob\ncy\ndora\n" * 20)
    (tmp_path / "rows").write_text("1 1:1 2:3\n0 2:1\n")
    pictures, text, rows = tmp_path / "pictures", tmp_path / "a.txt", tmp_path / "rows"
    pairs: list[tuple[Any, Any, str]] = [
        (ImageFolder(pictures, 4), ImageFolder(pictures, 4, mean=[0.5] * 3), r"mean is \[0.5, .*\[0.0, 0.0, 0.0\] in"),
        (ImageFolder(pictures, 4, deviation=[2] * 3), ImageFolder(pictures, 4), r"deviation is \[1.0, .* \[2.0, 2.0"),
        (LibSvm(rows, normalise="l2"), LibSvm(rows), "normalise is None, but 'l2' in data.train"),
        (LibSvm(rows, one_based=True), LibSvm(rows, one_based=False), "one_based is False, but True in data.train"),
        (Characters(4, path=text), Characters(4, "val", 0.5, text), "the fraction of .*a.txt is 0.5, but 0.1 in"),
        (Names(tmp_path), Names(tmp_path, "val", 0.5), "the fraction of .* is 0.5, but 0.1 in data.train"),
    ]
    for train, val, words in pairs:
        with pytest.raises(DataError, match=f"data.val: {words}") as error:
            match_names(train, val)
        assert error.value.code == "data/val-unlike-train"
    match_names(Characters(4, path=text), Characters(4, "val", 0.5, tmp_path / "b.txt"))
    match_names(LibSvm(rows, one_based=True), LibSvm(rows))


def test_jobs_of_packed_data_have_the_same_check(tmp_path: Path, say: Say) -> None:
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    (tmp_path / "rows").write_text("1 1:1 2:3\n0 2:1\n" * 9)
    rows: dict[str, Any] = {"class_path": "hogwild.data.LibSvm", "init_args": {"path": str(tmp_path / "rows")}}
    normed = {**rows, "init_args": {**rows["init_args"], "normalise": "l2"}}
    job = {
        "model": {"class_path": "hogwild.models.SparseLinear"},
        "loss": {"class_path": "hogwild.losses.LogisticLoss"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "data": {"train": normed, "val": rows},
        "train": {"procs": 0, "epochs": 1},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    status, said = say("train", str(tmp_path / "job.yaml"), "--run-dir", str(tmp_path / "run"))
    assert status == 1 and "data.val: normalise is None, but 'l2' in data.train; give both the same" in said, said
