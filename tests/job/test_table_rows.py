"""Columns, categories and classes of a table are rows of the next run's model; tables with spare rows, and kinds of the
same size, are matched by name or refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

import hogwild
from hogwild.config.schema import Component
from hogwild.data import Csv, Npz
from hogwild.errors import ModelError, UsageError
from hogwild.job.data import names_of, sizes_for
from hogwild.job.initial_values import load_initial
from hogwild.user_code import build
from tests.job.conftest import Say
from tests.job.test_continued import written as write_run
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

NUMBERS, COLUMNS, VALUES = "abcd", ["K", "L", "M"], ["u", "v", "w", "x"]
WIDTH = 3


def drawn(folder: Path, rng: random.Random) -> Csv:
    """A table with some of the columns, categories and classes, in any order."""
    numbers = rng.sample(NUMBERS, rng.randint(1, 4))
    listed = {name: rng.sample(VALUES, rng.randint(1, 4)) for name in rng.sample(COLUMNS, rng.randint(1, 3))}
    listed["y"] = rng.sample(VALUES, rng.randint(2, 4))
    columns = [*numbers, *listed]
    rng.shuffle(columns)
    row = ["1" if name in numbers else listed[name][0] for name in columns]
    file = folder / "table.csv"
    file.write_text(",".join(columns) + "\n" + ",".join(row) + "\n")
    return Csv(file, "y", categorical=listed)


def named_parts(table: Csv, tensors: dict[str, Any]) -> dict[Any, Tensor]:
    """Each number of a `Tabular` under the names it stands for. `tensors`: of the model, or of an optimizer's state."""
    names = table.vocabularies
    found: dict[Any, Tensor] = {}
    for number, column in enumerate(names["categories"]):
        for row, value in enumerate(names[f"category {column}"]):
            found[column, value] = tensors[f"columns.{number}.weight"][row]
    first = tensors["layers.layers.0.weight"]
    for place, column in enumerate(names["features"]):
        found["first", column] = first[:, place]
        if "scale.running_mean" in tensors:
            found["mean", column] = tensors["scale.running_mean"][place]
    for number, column in enumerate(names["categories"]):
        begin = len(names["features"]) + number * WIDTH
        found["first", column] = first[:, begin : begin + WIDTH]
    for row, label in enumerate(names["classes"]):
        found["class", label] = tensors["layers.layers.2.weight"][row]
        found["bias", label] = tensors["layers.layers.2.bias"][row]
    return found


@pytest.mark.parametrize("life", range(4))
def test_columns_categories_and_classes_keep_their_values_and_state_through_ten_runs(life: int, tmp_path: Path) -> None:
    component = Component(class_path="hogwild.models.Tabular", init_args={"hidden": [5], "width": WIDTH})
    rng = random.Random(life)
    values, states = dict[Any, Tensor](), dict[Any, Tensor]()
    for number in range(10):
        table = drawn(tmp_path, rng)
        names = names_of(table, None) or {}
        model = build(component, **sizes_for(component, names["sizes"]))
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        if number:
            load_initial(model, str(tmp_path / str(number - 1)), names, component).give_state(model, optimizer)
        sums = {name: optimizer.state[parameter]["sum"] for name, parameter in model.named_parameters()}
        own, of_state = named_parts(table, dict(model.state_dict())), named_parts(table, sums)
        assert all(torch.equal(own[key], values[key]) for key in own.keys() & values.keys())
        assert all(torch.equal(of_state[key], states[key]) for key in of_state.keys() & states.keys())
        with torch.no_grad():  # "training"
            for tensor in (*sums.values(), *model.parameters(), model.scale.running_mean):
                tensor += torch.rand(tensor.shape)
        values = {key: value.clone() for key, value in named_parts(table, dict(model.state_dict())).items()}
        states = {key: value.clone() for key, value in named_parts(table, sums).items()}
        write_run(tmp_path / str(number), model, optimizer, names)


FIELDS = {"FieldFactorizationMachine": ("factors", 4), "DeepFm": ("layers.layers.0.weight", 8)}


@pytest.mark.parametrize("model", FIELDS)
def test_the_fields_of_a_row_are_told_by_name(model: str, tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    component, (name, width) = Component(class_path=f"hogwild.models.{model}"), FIELDS[model]
    sides = []
    for fields in (["site", "user", "hour"], ["hour", "page", "site"]):
        names = {"fields": fields, "features": [f"{field}=1" for field in fields]}
        found = {"names": names, "sizes": {"fields": 3, "features": 3}}
        sides.append((build(component, fields=3, features=3), found))
    (old, theirs), (new, ours) = sides
    write_run(tmp_path / "run", old, torch.optim.SGD(old.parameters(), lr=1), theirs)
    fresh = new.state_dict()[name].clone()
    note = load_initial(new, str(tmp_path / "run"), ours, component).note
    before, after = (side.state_dict()[name].unflatten(1, (3, width)) for side in (old, new))
    rows = (2, 0) if name == "factors" else slice(None)  # hour and site, if there are rows of features
    mine = (0, 2) if name == "factors" else slice(None)
    assert torch.equal(after[mine, 0], before[rows, 2]) and torch.equal(after[mine, 2], before[rows, 0])
    assert torch.equal(after[:, 1], fresh.unflatten(1, (3, width))[:, 1])
    assert "fields by name: 2 kept, 1 new, 1 gone" in note


@pytest.mark.parametrize("model", ["FactorizationMachine", "SparseLinear"])
def test_a_model_without_fields_goes_on_with_columns_in_another_order(model: str, tmp_path: Path) -> None:
    """Eight factors are no two numbers for each of four fields."""
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    component = Component(class_path=f"hogwild.models.{model}")
    sides = []
    for fields in ("abcd", "dcb"):
        names = {"fields": [*fields], "features": [f"{field}=1" for field in fields]}
        sides.append((build(component, features=len(fields)), {"names": names, "sizes": {"features": len(fields)}}))
    (old, theirs), (new, ours) = sides
    write_run(tmp_path / "run", old, torch.optim.SGD(old.parameters(), lr=1), theirs)
    note = load_initial(new, str(tmp_path / "run"), ours, component).note
    assert "features by name: 3 kept, 0 new, 1 gone; columns that the data lacks now: a" in note
    for name, value in new.state_dict().items():
        rows = old.state_dict()[name]
        assert torch.equal(value, rows[[3, 2, 1]] if len(rows) == 4 else rows)


class Mf(nn.Module):
    """More rows than names."""

    def __init__(self, n_users: int = 8, n_items: int = 8) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(n_users, 2), nn.Embedding(n_items, 2)


def named(users: str, items: str = "ab") -> dict[str, Any]:
    return {"names": {"users": [*users], "items": [*items]}, "sizes": {"users": len(users), "items": len(items)}}


@pytest.mark.parametrize("component", [None, Component(class_path=f"{__name__}.Mf")])
def test_a_table_of_more_rows_than_names_that_nothing_tells_is_refused_when_a_name_is_new(
    component: Component | None, tmp_path: Path
) -> None:
    old, new = Mf(), Mf()
    write_run(tmp_path / "run", old, torch.optim.SGD(old.parameters(), lr=1), named("pqr"))
    load_initial(new, str(tmp_path / "run"), named("pqr"), component)
    assert torch.equal(new.user.weight, old.user.weight)
    with pytest.raises(ModelError, match=r"user\.weight has rows for users, which differ now: none of 8") as told:
        load_initial(new, str(tmp_path / "run"), named("npqr"), component)
    assert told.value.code == "model/init-names"


def test_the_first_rows_of_a_larger_table_have_the_names_if_its_argument_says_so(tmp_path: Path) -> None:
    arguments = {"users": 10, "items": 4, "factors": 3, "mean": 0.0}
    component = Component(class_path="hogwild.models.MatrixFactorization", init_args=arguments)
    old, new = build(component), build(component)
    write_run(tmp_path / "run", old, torch.optim.SGD(old.parameters(), lr=1), named("pqr"))
    fresh = new.user.weight.detach().clone()
    note = load_initial(new, str(tmp_path / "run"), named("rnp"), component).note
    assert torch.equal(new.user.weight[[0, 2]], old.user.weight[[2, 0]])
    assert torch.equal(new.user.weight[[1, *range(3, 10)]], fresh[[1, *range(3, 10)]])
    assert "users by name: 2 kept, 1 new, 1 gone" in note and "items" not in note


def test_arrays_that_a_model_takes_by_their_order_are_refused_in_another(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", a=np.ones((4, 2)), b=np.ones((4, 2)), y=np.zeros(4, int))
    one, other = (names_of(Npz(tmp_path / "data.npz", inputs), None) or {} for inputs in (["a", "b"], ["b", "a"]))
    old, new = Mf(), Mf()
    write_run(tmp_path / "run", old, torch.optim.SGD(old.parameters(), lr=1), one)
    load_initial(new, str(tmp_path / "run"), one, None)
    assert torch.equal(new.user.weight, old.user.weight)
    with pytest.raises(ModelError, match=r"its inputs were a, b, those of data\.train are b, a") as told:
        load_initial(new, str(tmp_path / "run"), other, None)
    assert told.value.code == "model/init-names"


def test_one_array_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", a=np.ones((4, 2)), b=np.ones((4, 2)), y=np.zeros(4, int))
    one, other = (names_of(Npz(tmp_path / "data.npz", name), None) or {} for name in "ab")
    model = nn.Linear(2, 1)
    write_run(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=1), one)
    load_initial(model, str(tmp_path / "run"), one, None)
    with pytest.raises(ModelError, match=r"its inputs were a, those of data\.train are b"):
        load_initial(model, str(tmp_path / "run"), other, None)
    with pytest.raises(UsageError, match="array 'y' is named twice in inputs, or is the target, too"):
        Npz(tmp_path / "data.npz", ["a", "y"])
    with pytest.raises(UsageError, match="array 'a' is named twice"):
        Npz(tmp_path / "data.npz", ["a", "a"])


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)


def test_two_kinds_of_the_same_size_are_never_told_apart_by_length(tmp_path: Path) -> None:
    both = named("pqrs", "abcd")
    old = build(Component(class_path="hogwild.models.MatrixFactorization", init_args={"factors": 3}), users=4, items=4)
    write_run(tmp_path / "run", old, torch.optim.SGD(old.parameters(), lr=1), both)
    with pytest.raises(ModelError, match="there are as many users and items") as told:
        load_initial(Vectors(), str(tmp_path / "run"), both, None)
    assert told.value.code == "model/init-names"


CLASSIFY = {
    "model": {"class_path": "hogwild.models.Tabular", "init_args": {"hidden": [4]}},
    "loss": {"class_path": "torch.nn.CrossEntropyLoss"},
    "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.0}},
    "train": {"procs": 0, "epochs": 1},
    "log": {"tensorboard": False},
}


def test_a_classifier_goes_on_with_exchanged_columns_and_a_new_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.chdir(tmp_path)

    def train(run: str, columns: str, classes: list[str], *more: str) -> str:
        rows = [{"a": k, "b": 100 - 7 * k, "y": classes[k % len(classes)]} for k in range(24)]
        lines = [",".join(columns), *(",".join(str(row[one]) for one in columns) for row in rows)]
        (tmp_path / "table.csv").write_text("\n".join(lines))
        arguments = {"path": "table.csv", "target": "y", "categorical": {"y": classes}}
        data = {"train": {"class_path": "hogwild.data.Csv", "init_args": arguments}, "batch_size": 8}
        (tmp_path / "job.yaml").write_text(json.dumps(CLASSIFY | {"data": data}))
        status, said = say("train", "job.yaml", "--run-dir", run, "--no-progress", *more)
        assert status == 0, said
        return said

    train("one", "aby", ["no", "yes"])
    said = train("two", "yba", ["yes", "perhaps", "no"], "--continue", "one")
    assert "features by name: 2 kept, 0 new, 0 gone; classes by name: 2 kept, 1 new, 0 gone" in said
    one, two = (hogwild.load(tmp_path / run).model.state_dict() for run in ("one", "two"))
    assert torch.equal(two["layers.layers.0.weight"], one["layers.layers.0.weight"][:, [1, 0]])
    assert torch.equal(two["layers.layers.2.weight"][[0, 2]], one["layers.layers.2.weight"][[1, 0]])
