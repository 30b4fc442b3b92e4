"""Rows, pairs, arrays, classes and files in another order are the same data: LibSvm, Npz and ImageFolder as training
data, as validation data, in the next run and as rows to predict. (Tables: test_names.py in tests/job, and
test_same_table.py.)"""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.config.schema import Component, Data
from hogwild.data import ImageFolder, LibSvm, Npz
from hogwild.data.npz import NpzRows
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.inference.inputs import TrainedOn
from hogwild.job.data import match_names, names_of, sizes_for
from hogwild.job.initial_values import load_initial
from hogwild.job.row_names import KnownNames
from hogwild.user_code import build
from tests.job.test_continued import written as write_run

RANDOM = st.randoms(use_true_random=False)

# ---- LibSvm: a row is a label and the value of each feature, as written

Row = tuple[int, dict[int, float]]


@st.composite
def sparse_rows(draw: st.DrawFn) -> list[Row]:
    base = draw(st.integers(0, 1))
    pairs = st.dictionaries(st.integers(base, 6), st.sampled_from([-1.5, 0.25, 1.0, 3.0]), max_size=5)
    rows = draw(st.lists(st.tuples(st.sampled_from([-1, 2, 7]), pairs), min_size=1, max_size=8))
    return [(2, {base: 1.0, 6: 1.0}), (-1, {base: 2.0}), (7, {}), *rows]  # so that each name is there


def written(path: Path, rows: list[Row], rng: random.Random, *, labels: bool = True) -> Path:
    lines = []
    for label, pairs in rows:
        shuffled = rng.sample([*pairs.items()], len(pairs))
        words = [f"{index}:{value}" for index, value in shuffled] + rng.choice([[], ["# 9:9"]])
        lines.append(" ".join([str(label), *words] if labels else words) + "\n")
    path.write_text("".join(lines))
    return path


def read(packed: Packed) -> list[Row]:
    arrays, first = packed.arrays(), int(packed.names["first"][0])
    classes = [int(name) for name in packed.names["classes"]]
    found = []
    for row, (begin, end) in enumerate(pairwise(arrays["indptr"].tolist())):
        indices, values = (arrays[name][begin:end].tolist() for name in ("indices", "values"))
        pairs = {first + index: value for index, value in zip(indices, values, strict=True)}
        found.append((classes[int(arrays["target"][row])], pairs))
    return found


@settings(max_examples=60, deadline=None)
@given(rows=sparse_rows(), rng=RANDOM)
def test_sparse_rows_are_the_same_in_any_order_and_role(
    rows: list[Row], rng: random.Random, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    train = LibSvm(written(folder / "train.svm", rows, rng), labels="classes").pack(InTurn(0))
    assert read(train) == rows
    some = rng.sample(rows, rng.randint(1, len(rows)))  # perhaps without the first feature, or a class
    again = LibSvm(written(folder / "again.svm", rng.sample(rows, len(rows)), rng), labels="classes").pack(InTurn(0))
    assert again.spec.sizes == train.spec.sizes and str(again.names) == str(train.names)
    val = LibSvm(written(folder / "val.svm", some, rng), labels="classes").pack(InTurn(0), "data.val", train)
    assert read(val) == some and val.spec.sizes == train.spec.sizes
    names: Any = {key: list(values) for key, values in train.names.items()}
    component = Component(class_path="hogwild.data.LibSvm", init_args={"path": "train.svm", "labels": "classes"})
    trained = TrainedOn(Data(train=component), None, train.spec.sizes, names, InTurn(0), 0)
    for is_labelled in (True, False):
        wanted = [row for row in some if is_labelled or row[1]]  # a line without a label needs a pair
        if not wanted:
            continue
        file = written(folder / "new.svm", wanted, random.Random(1), labels=is_labelled)
        blocks = [*trained.of_file(str(file), None, torch.nn.Identity()).blocks()]
        found = []
        for block in blocks:
            indices, offsets, values = (one.tolist() for one in block.inputs[:3])
            ends = [*offsets, len(indices)]
            first = int(train.names["first"][0])
            found += [
                {first + index: value for index, value in zip(indices[a:b], values[a:b], strict=True)}
                for a, b in pairwise(ends)
            ]
        assert found == [pairs for _, pairs in wanted]


@pytest.mark.parametrize("life", range(3))
def test_features_and_classes_of_sparse_rows_keep_their_numbers_through_ten_runs(life: int, tmp_path: Path) -> None:
    component, rng = Component(class_path="hogwild.models.SparseLinear"), random.Random(life)
    kept, before = dict[Any, float](), dict[str, Any]()
    base = life % 2
    for number in range(10):
        labels, features = rng.sample([-1, 2, 7, 9], rng.randint(2, 4)), rng.sample(range(base, 9), rng.randint(1, 6))
        rows = [(label, dict.fromkeys(rng.sample(features, len(features)), 1.0)) for label in labels]
        if number == 0:
            rows[0][1][base] = 1.0
        data = LibSvm(written(tmp_path / "rows.svm", rows, rng), labels="classes")
        known = KnownNames()
        if number:
            known = KnownNames.kept(before, "keep")
            data.remember(known.names)
        packed, unseen = known.extend(data.pack(InTurn(0)))
        found: Any = names_of(None, packed)
        model = build(component, **sizes_for(component, packed.spec.sizes))
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        if number:
            load_initial(model, str(tmp_path / str(number - 1)), found, component, unseen)
        first, classes = found["names"]["first"][0], found["names"]["classes"]
        assert first == base
        weight = next(one for one in model.parameters() if one.dim() == 2 and len(one) == packed.spec.sizes["features"])
        own = {
            (first + row, label): (row, column) for row in range(len(weight)) for column, label in enumerate(classes)
        }
        assert all(weight[place] == kept[name] for name, place in own.items() if name in kept)
        with torch.no_grad():
            weight += torch.rand(weight.shape)
        kept = {name: weight[place].item() for name, place in own.items()}
        write_run(tmp_path / str(number), model, optimizer, found)
        before = found


# ---- Npz: arrays by name


@settings(max_examples=40, deadline=None)
@given(rng=RANDOM, rows=st.integers(1, 6))
def test_arrays_are_the_same_in_any_order_and_role(rng: random.Random, rows: int, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    arrays: dict[str, Any] = {
        "a": np.arange(rows, dtype="f4"), "b": np.arange(rows * 2).reshape(rows, 2), "c": np.arange(rows) * 0.5,
        "y": np.arange(rows) % 3, "other": np.zeros(rows), "id": np.array([f"r{row}" for row in range(rows)]),
    }  # fmt: skip

    def saved(name: str, order: list[int]) -> Path:
        np.savez(folder / name, **{key: arrays[key][order] for key in rng.sample([*arrays], len(arrays))})
        return folder / name

    names = rng.sample(["a", "b", "c"], rng.randint(1, 3))
    train = Npz(saved("train.npz", [*range(rows)]), names)
    order = rng.sample(range(rows), rows)
    val = Npz(saved("val.npz", order), rng.sample(names, len(names)))
    match_names(train, val)
    new = NpzRows(folder / "val.npz", names)
    new.identify("id")
    block = new.inputs_of(0, rows)
    assert block.names["id"].tolist() == [f"r{row}" for row in order]
    for place, field in enumerate(train.tensors):
        assert torch.equal(val.tensors[place], field[order]) and val.tensors[place].dtype == field.dtype
        assert place == len(names) or torch.equal(block.inputs[place], field[order])


# ---- ImageFolder: classes by the names of folders

SHADES = {"ant": 10, "bee": 60, "cat": 110, "dog": 160}


@settings(max_examples=25, deadline=None)
@given(rng=RANDOM)
def test_pictures_have_their_classes_names_in_any_role(rng: random.Random, tmp_path_factory: Any) -> None:
    image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'hogwild[images]'")
    folder = tmp_path_factory.mktemp("pictures")

    def drawn(part: str, names: list[str]) -> None:
        for name in names:
            (folder / part / name).mkdir(parents=True)
            for picture in rng.sample(["z", "a", "m"], rng.randint(1, 3)):
                image.new("L", (2, 2), SHADES[name]).save(folder / part / name / f"{picture}.png")

    def meant(data: ImageFolder) -> set[tuple[str, int]]:
        return {(data.classes[int(y)], round(float(x[0, 0, 0]) * 255)) for x, y in data}

    all_names = rng.sample([*SHADES], rng.randint(2, 4))
    some = rng.sample(all_names, rng.randint(1, len(all_names)))
    drawn("train", all_names)
    drawn("val", some)
    listed = rng.choice([None, rng.sample(all_names, len(all_names))])
    train = ImageFolder(folder / "train", 2, channels=1, classes=listed)
    val = ImageFolder(folder / "val", 2, channels=1, classes=rng.choice([None, rng.sample(all_names, len(all_names))]))
    match_names(train, val)
    assert meant(train) == {(name, SHADES[name]) for name in all_names}
    assert meant(val) == {(name, SHADES[name]) for name in some} and val.classes == train.classes
    component = Component(class_path="hogwild.models.Mlp", init_args={"hidden": []})
    then, now = (names_of(data, None) or {} for data in (train, ImageFolder(folder / "val", 2, channels=1)))
    old, new = (build(component, **sizes_for(component, found["sizes"])) for found in (then, now))
    write_run(folder / "run", old, torch.optim.SGD(old.parameters(), lr=1), then)
    load_initial(new, str(folder / "run"), now, component)
    weights = [dict(zip(found["names"]["classes"], model.layers[0].weight, strict=True)) for found, model in
               ((then, old), (now, new))]  # fmt: skip
    assert all(torch.equal(weights[1][name], weights[0][name]) for name in some)
