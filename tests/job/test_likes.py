"""Implicit data: a ranking loss takes every pair as a like, so what is none is left out, counted and said. With
features of users and items a new item is recommended for its features, and a run continues by their names."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import hogwild
from hogwild.config.load import job_from_mapping
from hogwild.data import Ratings
from hogwild.data.ratings import read_features
from hogwild.errors import DataError
from hogwild.feeds.row_reader import InTurn
from hogwild.job.build import build
from hogwild.job.parts import Parts
from hogwild.losses import BprLoss, WarpLoss
from hogwild.models import BprFactorization, WarpFactorization
from hogwild.planning.device_placement import planned
from tests.job.conftest import Say

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")


PAIRS = [(f"u{n}", f"i{k}", (n + k) % 4) for n in range(8) for k in range(8)]


def parts_of(folder: Path, pairs: list[tuple[str, str, float]], kind: str, val: Any = None) -> Parts:
    file = folder / f"{len(pairs)}.csv"
    file.write_text("user,item,rating\n" + "".join(f"{user},{item},{value}\n" for user, item, value in pairs))
    whole = {"class_path": "hogwild.data.Ratings", "init_args": {"path": str(file)}}
    sections: dict[str, Any] = {
        "name": "likes",
        "model": {"class_path": f"hogwild.models.{kind}Factorization", "init_args": {"factors": 2}},
        "loss": {"class_path": f"hogwild.losses.{kind}Loss"},
        "data": {"train": whole, "val": val or whole, "batch_size": 8},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "train": {"procs": 0},
    }
    return build(planned(job_from_mapping(sections, "test")), None)


def rows(parts: Parts, side: str = "train") -> list[list[float]]:
    packed = getattr(parts, side).packed
    return [values.tolist() for values in packed.arrays().values()]


@pytest.mark.parametrize("kind", ["Bpr", "Warp"])
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_pairs_without_a_value_above_0_are_left_out_of_both_parts(tmp_path: Path, kind: str, low: float) -> None:
    pairs = [(user, item, 1.0 if value else low) for user, item, value in PAIRS if user != "u0" and item != "i0"]
    likes = [pair for pair in pairs if pair[2] > 0]
    found, wanted = parts_of(tmp_path, pairs, kind), parts_of(tmp_path, likes, kind)
    assert rows(found) == rows(wanted) and rows(found, "val") == rows(wanted, "val")
    less = len(pairs) - len(likes)
    for what in ("data.train", "data.val"):
        words = f"{what}: {less} of {len(pairs)} pairs are left out: a value of 0 or less is no like"
        assert words in found.notes and not any("no like" in note for note in wanted.notes)
    divided = parts_of(tmp_path, pairs, kind, {"fraction": 0.3})
    assert divided.val is not None
    assert divided.train.plan.samples + divided.val.plan.samples == len(likes)


def test_ratings_of_other_losses_keep_their_zeros_and_likes_of_many_values_are_said(tmp_path: Path) -> None:
    likes = [pair for pair in PAIRS if pair[2]]
    notes = parts_of(tmp_path, likes, "Bpr").notes
    assert "data.train: each pair is a like, with any value from 1 to 3" in notes
    with pytest.raises(DataError, match=r"data\.train: no pair has a value above 0") as error:
        parts_of(tmp_path, [(user, item, 0) for user, item, _ in PAIRS], "Bpr")
    assert error.value.code == "data/empty"


@pytest.mark.parametrize(("kind", "loss"), [(BprFactorization, BprLoss), (WarpFactorization, WarpLoss)])
def test_a_data_set_of_ones_own_is_trained_on_its_likes(kind: Any, loss: Any, tmp_path: Path) -> None:
    user, item = (torch.from_numpy(array) for array in np.divmod(np.arange(64), 8))
    value = torch.tensor([float(pair[2] > 1) for pair in PAIRS])
    tables: list[torch.Tensor] = []
    for name, data in (
        ("all", TensorDataset(user, item, value)),
        ("likes", TensorDataset(user[value > 0], item[value > 0], value[value > 0])),
    ):
        torch.manual_seed(0)
        model = kind(8, 8, 2)
        rule = torch.optim.SGD(model.parameters(), lr=0.5)
        hogwild.train(model, data, loss(), rule, procs=0, epochs=2, batch_size=4, run_dir=tmp_path / name)
        tables.append(model.item.weight.detach())
    assert torch.equal(*tables)


class Stream(IterableDataset[tuple[Any, ...]]):
    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for place, value in enumerate(self.values):
            yield torch.tensor(place % 8), torch.tensor(place % 5), torch.tensor(value)


@pytest.mark.parametrize("first", [0.0, -2.0])
def test_a_stream_with_another_value_is_refused(first: float, tmp_path: Path) -> None:
    model = BprFactorization(8, 8, 2)
    rule = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(
        DataError, match=rf"is {first:g}; BprLoss takes numbers above 0: each sample is a like"
    ) as error:
        hogwild.train(model, Stream([first] + [1.0] * 15), BprLoss(), rule, procs=0, batch_size=4, epochs=1)
    assert error.value.code == "data/labels"


@pytest.mark.parametrize("kind", ["Bpr", "Warp"])
def test_likes_of_everything_rank_nothing_and_are_refused(tmp_path: Path, kind: str) -> None:
    """The mean over no items is NaN: every batch was skipped, and the advice was another learning rate."""
    with pytest.raises(DataError, match="each of the 8 users has each of the 8 items") as error:
        parts_of(tmp_path, [(user, item, 1 + value) for user, item, value in PAIRS], kind)
    assert error.value.code == "data/empty"
    parts_of(tmp_path, [(user, item, 1 + value) for user, item, value in PAIRS[1:]], kind)


KINDS, USERS, ITEMS = ("song", "play", "film", "book"), 60, 48
JOB = """\
name: shop
model: {class_path: hogwild.models.BprFactorization, init_args: {factors: 4}}
loss: {class_path: hogwild.losses.BprLoss}
data:
  train: {class_path: hogwild.data.Ratings, init_args: {path: pairs.csv, item_features: kinds.tsv}}
  batch_size: 100
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.2}}
train: {procs: 0, epochs: 20}
log: {tensorboard: false}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> Say:
    """A world where each user takes things of one kind only, and 8 things nobody has taken yet."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    pairs = [
        (user, item) for user in range(USERS) for item in range(ITEMS) if item % 4 == user % 4 and rng.random() < 0.6
    ]
    lines = [f"u{user},i{item}" for user, item in pairs]
    Path("pairs.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    kinds = [f"i{item}\t{KINDS[item % 4]}" for item in range(ITEMS)] + [f"new{k}\t{KINDS[k % 4]}" for k in range(8)]
    Path("kinds.tsv").write_text("\n".join(kinds) + "\n")
    Path("job.yaml").write_text(JOB)
    return say


def right_kind(run: str) -> float:
    """Return the share of users for whom the best two of the new items are of the kind that they take."""
    ranker = hogwild.load(run).ranker()
    ranker.allow([f"new{k}" for k in range(8)])
    best = [{name for name, _ in ranker.for_user(f"u{user}", top=2).items} for user in range(USERS)]
    return sum(found == {f"new{user % 4}", f"new{user % 4 + 4}"} for user, found in enumerate(best)) / USERS


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["Bpr", "Warp"])
def test_a_new_item_is_recommended_for_its_features(kind: str, shop: Say) -> None:
    classes = [f"model.class_path=hogwild.models.{kind}Factorization", f"loss.class_path=hogwild.losses.{kind}Loss"]
    status, said = shop("train", "job.yaml", "--run-dir", "one", "train.procs=2", *classes)
    assert status == 0, said
    assert "8 items with features and without ratings" in said and "rows as sums of features" in said
    assert right_kind("one") > 0.95
    like = [name for name, _ in hogwild.load("one").similar("new1", kind="items", top=5)]
    assert all(int(name.strip("inew")) % 4 == 1 for name in like)
    kinds = Path("kinds.tsv").read_text()
    own = "\n".join(f"{line.split()[0]}\t{line.split()[0]}" for line in kinds.splitlines())  # a feature for each item
    Path("kinds.tsv").write_text(own)
    assert shop("train", "job.yaml", "--run-dir", "two", *classes)[0] == 0
    assert right_kind("two") < 0.5, "nothing is known of new items that share no feature with others"


def test_a_run_continues_by_the_names_of_features(shop: Say) -> None:
    assert shop("train", "job.yaml", "--run-dir", "one")[0] == 0
    with Path("kinds.tsv").open("a") as file:
        file.write("late\tfilm\nlate\tan opera\n")  # first in the order of names
    more = ["--continue", "one", "optimizer.init_args.lr=0.0", "train.epochs=1"]
    status, said = shop("train", "job.yaml", "--run-dir", "two", *more)
    assert status == 0 and "item_features by name: 4 kept, 1 new, 0 gone" in said, said
    before, after = hogwild.load("one"), hogwild.load("two")
    old, new = (run.model.item_feature.weight for run in (before, after))  # type: ignore[union-attr]
    for row, name in enumerate(before.names["item_features"]):
        assert old[row].tolist() == new[after.names["item_features"].index(name)].tolist()
    assert right_kind("two") == right_kind("one")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("i1\tsong\ni2\tplay\tmuch\n", ":2: the weight 'much' must be a finite number"),
        ("i1,song,nan\n", ":1: the weight 'nan' must be a finite number"),
        ("i1\tsong\t1\t2\n", ":1: .*a line must be NAME, FEATURE"),
        ("i1\t\n", ":1: .*a line must be NAME, FEATURE"),
        ("i1\tsong\t1e39\n", ":1: the weight '1e39' must be a finite number, up to 3.4e\\+38"),
        ("i1\tsong\t3e38\ni1\tsong\t3e38\n", ":2: the weight '3e38' must be a finite number"),
        ('i0,play\ni1,"song\ni2,play\n', ":2: unexpected end of data"),
        ('i0,play\ni1,"song\ni2,play"\n', ":2: a field has more than one line"),
        ('i1,"song\n' + "i2,play\n" * 20_000, ":1: field larger than field limit"),
        ("i1\tsong\ri2\tplay\r", "line 1: lines end with a carriage return only"),
        ("\n", "has no features"),
    ],
)
def test_a_bad_line_is_named(content: str, problem: str, shop: Say) -> None:
    Path("kinds.tsv").write_text(content)
    with pytest.raises(DataError, match=problem):
        Ratings(Path("pairs.csv").resolve(), item_features=Path("kinds.tsv").resolve()).pack(
            InTurn(1), "data.train", None, "fail"
        )


def test_features_have_weights_and_a_header(shop: Say) -> None:
    Path("kinds.tsv").write_text('item,feature,weight\ni0,song,0.5\ni0,song,1\nnew,"song, short"\n')
    packed = Ratings(Path("pairs.csv").resolve(), item_features=Path("kinds.tsv").resolve()).pack(
        InTurn(1), "data.train", None, "fail"
    )
    names = packed.names
    row, new = [*names["items"]].index("i0"), len(names["items"]) - 1
    assert names["item_features"] == ["song", "song, short"] and names["items"][new] == "new"
    assert names["features_of_items"] == [f"{row} 0 1.5", f"{new} 1 1.0"]
    assert packed.spec.sizes["items"] == len(names["items"]) and packed.spec.sizes["item_features"] == 2


def test_an_empty_line_before_the_first_one_does_not_hide_its_tabs(shop: Say) -> None:
    Path("kinds.tsv").write_text("\r\ni0\tsong, short\r\n")
    assert read_features(Path("kinds.tsv")) == {("i0", "song, short"): 1.0}
