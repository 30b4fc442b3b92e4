"""Data that has changed behind a run, and models whose rows stand for names: no row ever changes its name."""

import json
import random
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn, optim
from torch.utils.data import Dataset, TensorDataset

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.cli import main
from hogwild.config.load import load_job
from hogwild.config.schema import Component, InitFrom
from hogwild.errors import DataError, ModelError
from hogwild.job.build import build as from_file
from hogwild.job.initial_values import load_initial
from hogwild.planning.device_placement import planned
from hogwild.storage import checkpoint
from hogwild.user_code import build
from tests.job.conftest import Say
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

RATED = [(user, item) for user in range(6) for item in range(5) if (user + item) % 3]


def table(users: Sequence[str], file: Path, more: str = "") -> None:
    lines = [f"{users[user]},I{item},{1 + (3 * user + item) % 5}" for user, item in RATED if user < len(users)]
    file.write_text("\n".join(["user,item,rating", *lines]) + f"\n{more}")


USERS = [f"C{number:05d}" for number in range(1, 7)]
OTHERS = ["C00001", "C00002", "C00003", "C000035", *USERS[4:]]  # the fourth has another name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ratings, their job and its run, made once."""
    folder = tmp_path_factory.mktemp("identity")
    table(USERS, folder / "ratings.csv")
    (folder / "held.csv").write_text("user,item,rating\nC00001,I1,3\nC00004,I0,2\n")
    train, held = (
        {"class_path": "hogwild.data.Ratings", "init_args": {"path": f"{one}.csv"}} for one in ("ratings", "held")
    )
    job = {
        "model": {"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 3}},
        "loss": {"class_path": "torch.nn.MSELoss"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}},
        "data": {"train": train, "val": held, "batch_size": 4},
        "train": {"procs": 0, "epochs": 1},
        "log": {"tensorboard": False},
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    assert main.run(["train", str(folder / "job.yaml"), "--run-dir", str(folder / "run"), "--no-progress"]) == 0
    return folder.rename(folder.with_name("moved"))  # where it was, nothing is found any more


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it: another place, other times."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, symlinks=True)
    monkeypatch.chdir(copy)  # where its files are looked for as well
    return copy


def users_of(run: Path) -> dict[str, Tensor]:
    """Name -> row, as the newest checkpoint and names.json have them."""
    rows = checkpoint.load((run / "checkpoints" / "latest").resolve())["model"]["user.weight"]
    return dict(zip(json.loads((run / "names.json").read_text())["names"]["users"], rows, strict=True))


RESUME = ("train", "--resume", "run", "train.epochs=2", "--no-progress")
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one has another name": (
        lambda folder: table(OTHERS, folder / "ratings.csv"),
        "names: users: row 3 was 'C00004', now 'C000035' (1 of 6 differ, now 6); digest was ",
    ),
    "one left": (
        lambda folder: table(USERS[:5], folder / "ratings.csv"),
        "users: row 5 was 'C00006', now nothing (1 of 6 differ, now 5)",
    ),
    "one left and one came": (
        lambda folder: table(["C00000", *USERS[:2], *USERS[3:]], folder / "ratings.csv"),
        "users: row 0 was 'C00001', now 'C00000' (3 of 6 differ, now 6)",
    ),
    "one more rating": (
        lambda folder: table(USERS, folder / "ratings.csv", "C00001,I0,1\n"),
        "data.train: samples: was 20, now 21",
    ),
    "columns that were swapped": (
        lambda folder: [
            file.write_text(file.read_text().replace("user,item", "item,user")) for file in folder.glob("*.csv")
        ],
        "names: users: row 0 was 'C00001', now 'I0' (6 of 6 differ, now 5)",
    ),
    "other validation data": (
        lambda folder: (folder / "held.csv").write_text("user,item,rating\nC00001,I1,3\nC00004,I0,1\n"),
        "data.val: rating: was float32 () ",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_resume_with_other_data_is_refused_and_says_what_differs(name: str, folder: Path, say: Say) -> None:
    change, words = CHANGES[name]
    before = {file: file.read_bytes() for file in (folder / "run").rglob("*") if file.is_file()}
    change(folder)
    status, said = say(*RESUME)
    assert status == 1 and "code data/changed" in said and words in said
    assert {file: file.read_bytes() for file in (folder / "run").rglob("*") if file.is_file()} == before


def test_the_same_content_elsewhere_and_in_another_order_of_lines_is_the_same_data(folder: Path, say: Say) -> None:
    lines = (folder / "ratings.csv").read_text().splitlines(keepends=True)
    (folder / "ratings.csv").write_text(lines[0] + "".join(reversed(lines[1:])))
    status, said = say(*RESUME)
    assert status == 0, said


def without_identity(run: Path) -> None:
    path = (run / "checkpoints" / "latest").resolve()
    state = checkpoint.load(path)
    del state["data"]
    checkpoint.write(path.parent, path.name, state, state["model"], {"samples": 20, "metrics": {}})


def test_an_old_checkpoint_goes_on_with_a_note_if_the_names_are_the_same(folder: Path, say: Say) -> None:
    without_identity(folder / "run")
    table(OTHERS, folder / "ratings.csv")
    status, said = say(*RESUME)
    assert status == 1 and "3 was 'C00004', now 'C000035'" in said
    table(USERS, folder / "ratings.csv")
    status, said = say(*RESUME)
    assert status == 0 and "does not say what data it was made with" in said


def test_an_evaluation_with_other_names_is_refused_and_with_other_samples_is_none_of_ours(
    folder: Path, say: Say
) -> None:
    (folder / "held.csv").write_text("user,item,rating\nC00001,I1,3\nC00004,I0,1\n")
    assert say("eval", "run")[0] == 0
    table(OTHERS, folder / "ratings.csv")
    status, said = say("eval", "run")
    assert status == 1 and "code data/changed" in said


def test_what_a_user_had_in_the_runs_data_stays_whatever_happens_to_the_file(folder: Path) -> None:
    """User 3 has I1, I2 and I4, and the held-out I0."""
    for change in (lambda: None, lambda: table(["A0", *USERS], folder / "ratings.csv"), (folder / "held.csv").unlink):
        change()
        found = hogwild.load("run").ranker(), hogwild.load("run").ranker(held_out=True)
        names = [{name for name, _ in ranker.for_user("C00004").items} for ranker in found]
        assert names == [{"I3"}, {"I0", "I3"}]


def test_the_model_of_an_old_checkpoint_goes_on_with_grown_data_by_name(folder: Path, say: Say) -> None:
    without_identity(folder / "run")
    before = users_of(folder / "run")
    table(["A0", *USERS[:2], *USERS[3:]], folder / "ratings.csv")
    start = ("model.init_from=run", "optimizer.init_args.lr=0.0", "data.val=null")
    status, said = say("train", "job.yaml", "--run-dir", "grown", "--no-progress", *start)
    assert status == 0 and "users by name: 5 kept, 1 kept that the data lacks, 1 new, 0 gone" in said, said
    after = users_of(folder / "grown")
    assert [*after] == ["A0", *USERS[:2], *USERS[3:], USERS[2]]
    assert all(torch.equal(after[name], before[name]) for name in before.keys() & after.keys())
    assert not any(torch.equal(after["A0"], row) for row in before.values())


def test_a_checkpoint_away_from_its_run_is_taken_where_the_names_are_its_own(folder: Path) -> None:
    path = (folder / "run/checkpoints/latest").resolve()
    alone = shutil.copytree(path, folder / "some" / "where" / path.name)

    def note() -> str:
        data = f"data.train.init_args.path={folder / 'ratings.csv'}"
        job = load_job(folder / "job.yaml", [f"model.init_from={alone}", data, "data.val=null"])
        return from_file(planned(job), None).notes[0]

    assert "5 of the model's 5 tensors" in note()
    (alone / "names.json").unlink()
    table(OTHERS, folder / "ratings.csv")
    with pytest.raises(ModelError, match=r"no names\.json beside it or in its run names them") as refused:
        note()
    assert refused.value.code == "model/init-names"
    names = json.loads((folder / "run" / "names.json").read_text())
    (alone / "names.json").write_text(json.dumps(names))
    assert "users by name: 5 kept, 1 kept that the data lacks, 1 new, 0 gone" in note()
    names["names"]["users"].reverse()
    (alone / "names.json").write_text(json.dumps(names))
    with pytest.raises(ModelError, match=re.escape(f"{alone}: its names.json does not belong to it")):
        note()


# ---- every model whose rows have names ------------------------------------------------------------------------------

Labels = Mapping[str, Sequence[Any]]


class OwnHead(nn.Module):
    """A hidden layer as wide as there may be classes, and rows of users that it counts in its own way."""

    def __init__(
        self, classes: int, users: int = 6, words: int = 6, sorts: int = 6, colours: int = 6, hidden: int = 4
    ) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(hidden, hidden), nn.Linear(hidden, classes)
        self.padded = nn.Embedding(users + 1, 5)
        self.rounded, self.together = nn.Embedding(-(-words // 8) * 8, 5), nn.Embedding(sorts + colours, 5)


OWN = f"{__name__}.OwnHead"
HOME = "hogwild.models."
# model -> (its arguments, what the dimensions of its tensors stand for)
MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, ...]]]] = {
    f"{HOME}MatrixFactorization": (
        {"factors": 4, "mean": 3.0},
        {
            "user.weight": ("users",),
            "item.weight": ("items",),
            "user_bias.weight": ("users",),
            "item_bias.weight": ("items",),
        },
    ),
    f"{HOME}BprFactorization": (
        {"factors": 4},
        {"user.weight": ("users",), "item.weight": ("items",), "item_bias.weight": ("items",)},
    ),
    f"{HOME}WarpFactorization": (
        {"factors": 4},
        {"user.weight": ("users",), "item.weight": ("items",), "item_bias.weight": ("items",)},
    ),
    f"{HOME}SkipGram": ({"dim": 4}, {"input.weight": ("words",), "output.weight": ("words",)}),
    f"{HOME}ComplEx": ({"dim": 4}, {"entities.weight": ("entities",), "relations.weight": ("relations*2",)}),
    f"{HOME}TransE": (
        {"dim": 4, "reciprocal": False},
        {"entities.weight": ("entities",), "relations.weight": ("relations",)},
    ),
    f"{HOME}CharRnn": (
        {"embedding": 4, "hidden": 4},
        {"embed.weight": ("symbols",), "out.weight": ("symbols",), "out.bias": ("symbols",)},
    ),
    f"{HOME}SequenceClassifier": (
        {"embedding": 4, "hidden": 4},
        {"embed.weight": ("symbols",), "out.weight": ("classes",), "out.bias": ("classes",)},
    ),
    f"{HOME}SparseLinear": ({}, {"weight": ("features", "classes"), "bias": ("classes",)}),
    f"{HOME}FactorizationMachine": ({"factors": 4}, {"weight": ("features",), "factors": ("features",)}),
    OWN: ({}, {"head.weight": ("classes",), "head.bias": ("classes",)}),
}


def drawn(kinds: set[str], rng: random.Random) -> dict[str, Any]:
    """As names.json has it; the few names there are make most of every two draws equal in part."""
    names: dict[str, list[Any]] = {}
    sizes: dict[str, int] = {}
    for kind in sorted(kinds):
        some = [
            number if kind == "classes" else f"{kind} {number}" for number in rng.sample(range(8), rng.randint(2, 6))
        ]
        sizes[kind] = len(some)
        names |= {"first": [rng.randint(0, 1)]} if kind == "features" else {kind: some}
    return {"names": names, "sizes": sizes}


def rows_in(names: dict[str, Any], kind: str) -> list[str]:
    """Return each row's name."""
    kind, _, twice = kind.partition("*")
    if kind == "features":
        return [f"{names['names']['first'][0] + row}" for row in range(names["sizes"][kind])]
    rows = [str(name) for name in names["names"][kind]]
    return [*rows, *(f"inverse of {row}" for row in rows)] if twice else rows


@pytest.mark.slow
@pytest.mark.parametrize("path", MODELS)
def test_no_row_ever_changes_its_name(path: str, tmp_path: Path) -> None:
    arguments, places = MODELS[path]
    kinds = {kind.partition("*")[0] for named in places.values() for kind in named}
    component = Component(class_path=path, init_args=arguments)
    rng = random.Random(path)
    for _ in range(40):
        theirs, ours = drawn(kinds, rng), drawn(kinds, rng)
        old, new = (build(component, **names["sizes"]) for names in (theirs, ours))
        saved = {name: torch.randn(value.shape) + 10 for name, value in old.state_dict().items()}
        save_file(saved, tmp_path / "model.safetensors")
        (tmp_path / "names.json").write_text(json.dumps(theirs))
        before = {name: value.clone() for name, value in new.state_dict().items()}
        load_initial(new, str(tmp_path / "model.safetensors"), ours, component)
        for name, value in new.state_dict().items():
            named = places.get(name, ())
            if name == "counts":  # of words, in an order that the data says
                continue
            if not named:
                assert torch.equal(value, saved[name].to(value.dtype)), name
                continue
            there = [{row: number for number, row in enumerate(rows_in(theirs, kind))} for kind in named]
            for place in (
                torch.cartesian_prod(*map(torch.arange, value.shape[: len(named)])).reshape(-1, len(named)).tolist()
            ):
                row = [rows_in(ours, kind)[number] for kind, number in zip(named, place, strict=True)]
                is_known = all(one in known for one, known in zip(row, there, strict=True))
                source = tuple(known.get(one, -1) for one, known in zip(row, there, strict=True))
                wanted = saved[name][source] if is_known else before[name][tuple(place)]
                assert torch.equal(value[tuple(place)], wanted), (name, row)


def named(**names: list[Any]) -> dict[str, Any]:
    return {"names": names, "sizes": {kind: len(values) for kind, values in names.items()}}


UNTOLD: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "a row before the first": (named(classes=[1], users=["a", "b"]), named(classes=[1], users=["b", "a"]), True),
    "sizes that are rounded up": (named(classes=[1], words=["a", "b"]), named(classes=[1], words=["b", "a"]), True),
    "two kinds in one table": (
        named(classes=[1], sorts=["a", "b"], colours=["c"]),
        named(classes=[1], sorts=["b", "a"], colours=["c"]),
        True,
    ),
    "an object of the caller's": (named(classes=[1, 2]), named(classes=[2, 1]), False),
    "an argument of another name": (
        named(classes=[1], people=["a", "b", "c", "d"]),
        named(classes=[1], people=["d", "c"]),
        True,
    ),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_rows_that_cannot_be_told_are_refused_unless_all_names_are_the_same(name: str, tmp_path: Path) -> None:
    theirs, ours, is_built = UNTOLD[name]
    component = Component(class_path=OWN)
    sizes = {kind: size for kind, size in theirs["sizes"].items() if kind != "people"}
    old, new = (build(component, **sizes) for _ in range(2))
    save_file(old.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "names.json").write_text(json.dumps(theirs))
    before = {key: value.clone() for key, value in new.state_dict().items()}
    with pytest.raises(
        ModelError, match=r"which differ now: none of \d in the file can be matched to the \d here; or add"
    ) as refused:
        load_initial(new, str(tmp_path / "model.safetensors"), ours, component if is_built else None)
    assert refused.value.code == "model/init-names"
    assert all(torch.equal(value, before[key]) for key, value in new.state_dict().items())
    load_initial(new, str(tmp_path / "model.safetensors"), theirs, component if is_built else None)
    assert all(torch.equal(value, old.state_dict()[key]) for key, value in new.state_dict().items())


def test_a_file_without_names_has_no_rows_for_them(tmp_path: Path) -> None:
    component = Component(class_path=OWN)
    old, new = (build(component, classes=3) for _ in range(2))
    path = tmp_path / "model.safetensors"
    save_file(old.state_dict(), path)
    with pytest.raises(ModelError, match=r"head\.\w+ has rows for classes, but no names\.json") as refused:
        load_initial(new, str(path), named(classes=["a", "b", "c"]), component)
    assert refused.value.code == "model/init-names"

    skipping = InitFrom(path=str(path), skip=["head.*"])
    assert "6 of the model's" not in load_initial(new, skipping, named(classes=["a", "b", "c"]), component).note
    assert torch.equal(new.body.weight, old.body.weight)


# ---- data of a caller's own -----------------------------------------------------------------------------------------


class Measured(Dataset):
    """Ids, and measurements that are others whenever they are read."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.tensor([random.random()]), self.ids[row]


def call(data: Dataset, run: Path, **settings: Any) -> hogwild.TrainResult:
    model = nn.Linear(1, 4)
    rule = optim.SGD(model.parameters(), lr=0.1)
    return hogwild.train(model, data, nn.CrossEntropyLoss(), rule, procs=0, batch_size=4, **{"run_dir": run} | settings)


IDS = [0, 1, 2, 3] * 3
X = torch.arange(12.0)[:, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "other", "settings", "words"),
    [
        (Measured(IDS), Measured(IDS[::-1]), {"feed": "resident"}, "data.train: field 1: was int64 () "),
        (Measured(IDS), Measured(IDS[:8]), {}, "data.train: samples: was 12, now 8"),
        (Measured(IDS), Measured(IDS[:8]), {"feed": "stream"}, "data.train: samples: was 12, now 8"),
        (Measured(IDS), Measured(IDS), {"feed": "resident"}, ""),
        (
            TensorDataset(X, torch.tensor(IDS)),
            TensorDataset(X + 1, torch.tensor(IDS)),
            {},
            "field 0: was float32 (1,) ",
        ),
        (
            TensorDataset(X, torch.tensor(IDS)),
            TensorDataset(X.clone(), torch.tensor(IDS)),
            {"val": {"fraction": 0.25}},
            "",
        ),
    ],
    ids=["ids", "fewer", "a shorter stream", "measurements", "ready tensors", "the same tensors"],
)
def test_a_call_goes_on_with_its_own_data(data: Any, other: Any, settings: Any, words: str, tmp_path: Path) -> None:
    call(data, tmp_path / "run", **settings)
    more = {"run_dir": None, "resume": tmp_path / "run", "epochs": 2, **settings}
    if not words:
        assert call(other, tmp_path, **more).state == "succeeded"
        return
    with pytest.raises(DataError) as refused:
        call(other, tmp_path, **more)
    assert refused.value.code == "data/changed" and words in str(refused.value)
