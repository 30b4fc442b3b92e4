"""Items that a job pads, nests or gives to its own function, wherever its model is used: the batches, and so the
answers, are those of its evaluations."""

import io
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.errors import DataError, HogwildError
from hogwild.inference import inputs, programs
from hogwild.models import SequenceClassifier
from tests.helpers.predicting import Say

HERE = __name__
ITEMS = 600  # three batches of an evaluation, whose widths differ


def sequences(seed: int) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    lengths = (torch.arange(ITEMS).flip(0) // 60 + torch.randint(2, 4, (ITEMS,), generator=chance)).tolist()
    return [torch.randint(1, 10, (length,), generator=chance) for length in lengths]


class Ragged(Dataset[Any]):
    """Sequences of their own lengths; `late`: behind a field that has one length."""

    def __init__(self, seed: int = 0, late: bool = False) -> None:
        self.sequences, self.late = sequences(seed), late

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, row: int) -> Any:
        whole = self.sequences[row]
        return (whole[:2].float(), whole, len(whole) % 2) if self.late else (whole, len(whole) % 2)


class ByName(Ragged):
    """Items that are dicts, with a target in them."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"symbols": self.sequences[row], "odd": len(self.sequences[row]) % 2}


class Nested(Ragged):
    def __getitem__(self, row: int) -> tuple[dict[str, Tensor], int]:
        whole = self.sequences[row]
        return {"first": whole[0], "second": whole[1]}, len(whole) % 2


def longest_first(items: list[dict[str, Any]]) -> tuple[dict[str, Tensor], Tensor]:
    """A collate_fn: what it makes of an item depends on the others, and its mask is not finite."""
    width = max(len(one["symbols"]) for one in items)
    x = torch.stack([nn.functional.pad(one["symbols"], (0, width - len(one["symbols"]))) for one in items])
    mask = torch.zeros(x.shape).masked_fill(x == 0, -torch.inf)
    return {"x": x, "mask": mask}, torch.tensor([one["odd"] for one in items])


def noised(*fields: Tensor) -> tuple[Tensor, ...]:
    """A transform: of training batches alone."""
    return (*fields[:-2], fields[-2] * 0 + 1, fields[-1])


class Mean(nn.Module):
    """Reads the padding, too, so its answer depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.out(self.table(x).mean(1)) + lengths.unsqueeze(1) / 100


class Late(Mean):
    def forward(self, pair: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(x, lengths) + pair


class OfDict(Mean):
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        if "first" in batch:
            return self.out(self.table(batch["first"]) - self.table(batch["second"]))
        return self.out(self.table(batch["x"]).mean(1)) + batch["mask"].exp().mean(1, keepdim=True)


def job(model: str, data: str, **settings: Any) -> dict[str, Any]:
    of = settings.pop("arguments", {})
    class_path = f"{HERE}.{data}"
    parts = {
        "train": {"class_path": class_path, "init_args": {"seed": 0, **of}},
        "val": {"class_path": class_path, "init_args": {"seed": 1, **of}},
    }
    return {
        "model": {"class_path": model if "." in model else f"{HERE}.{model}"},
        "loss": {"class_path": "torch.nn.CrossEntropyLoss"},
        "data": {**parts, "batch_size": 64, **settings},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}},
        "train": {"procs": 0, "epochs": 1},
        "log": {"tensorboard": False},
    }


JOBS = {
    "padded": job("Mean", "Ragged", padding={"value": 0}),
    "padded behind another field": job("Late", "Ragged", padding={"value": 0}, arguments={"late": True}),
    "by a function": job("OfDict", "ByName", collate={"class_path": f"{HERE}.longest_first"}),
    "nested": job("OfDict", "Nested"),
    "transformed": job("Mean", "Ragged", padding={"value": 0}, transform={"class_path": f"{HERE}.noised"}),
}


@pytest.fixture
def trained(say: Say, tmp_path: Path) -> Callable[..., Path]:
    def train(described: Mapping[str, Any], name: str = "run") -> Path:
        (tmp_path / "job.yaml").write_text(json.dumps(described))
        status, _, said = say("train", tmp_path / "job.yaml", "--run-dir", tmp_path / name)
        assert status == 0, said
        return tmp_path / name

    return train


def evaluated(say: Say, run: Path) -> Tensor:
    status, _, said = say("eval", run, "--predictions", run / "out.npz")
    assert status == 0, said
    return torch.from_numpy(np.load(run / "out.npz")["outputs"])


@pytest.mark.parametrize("name", JOBS)
def test_the_answers_are_those_of_an_evaluation_to_the_last_digit(
    name: str, say: Say, trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "BLOCK_ROWS", 256)  # of items that are only nested; for the others the job decides
    run = trained(JOBS[name])
    of = JOBS[name]["data"]["val"]
    val = globals()[of["class_path"].rpartition(".")[2]](**of["init_args"])
    assert torch.equal(hogwild.load(run).predict(val, raw=True), evaluated(say, run))


def test_the_fields_to_pad_are_those_of_the_training_data_also_for_one_row(trained: Callable[..., Path]) -> None:
    model = hogwild.load(trained(JOBS["padded behind another field"]))
    pair, whole, _ = Ragged(1, late=True)[0]
    found = model.predict([(pair, whole, 0)], raw=True)
    assert torch.equal(found, model.model(pair[None], whole[None], torch.tensor([len(whole)])).detach())


class Flowing(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(Ragged(1)[row] for row in range(ITEMS))


def test_items_need_no_target_and_may_come_one_after_the_other(trained: Callable[..., Path]) -> None:
    model, val = hogwild.load(trained(JOBS["padded"])), Ragged(1)
    wanted = model.predict(val)
    assert torch.equal(model.predict(val.sequences), wanted), "tensors alone"
    assert torch.equal(model.predict([one.tolist() for one in val.sequences]), wanted), "lists of numbers"
    assert torch.equal(model.predict(Flowing()), wanted) and torch.equal(model.predict(iter(val.sequences)), wanted)


@pytest.mark.parametrize(
    ("name", "items", "words"),
    [
        ("padded", [torch.tensor([1]), torch.tensor(2)], "item 1 has a single number as field 0"),
        ("padded", [torch.tensor([1]), torch.tensor([[2]])], "item 1 field 0 is .* only the first dimension may vary"),
        ("padded", [], "contains no samples"),
        ("padded", iter([]), "contains no samples"),
        ("padded", [torch.tensor([1.5, torch.nan])], "input 0 of sample 0 is NaN"),
        ("by a function", [{"symbols": torch.tensor([1])}], "items 0 to 0 raised KeyError: 'odd'.*give a target too"),
        ("nested", [({"first": torch.tensor(1)}, 0), ({"second": torch.tensor(1)}, 0)], "item 1 is nested as"),
    ],
)  # fmt: skip
def test_items_that_make_no_batch_are_told(name: str, items: Any, words: str, trained: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=words):
        hogwild.load(trained(JOBS[name])).predict(items)


def test_a_function_that_cannot_be_imported_is_given_again(tmp_path: Path) -> None:
    model, data = OfDict(), ByName()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(
        model, data, nn.CrossEntropyLoss(), rule, procs=0, epochs=1, run_dir=tmp_path / "run",
        collate=lambda items: longest_first(items),
    )  # fmt: skip
    with pytest.raises(HogwildError, match="collate="):
        hogwild.load(tmp_path / "run").predict(data)
    found = hogwild.load(tmp_path / "run", collate=longest_first).predict(data, raw=True)
    parts = [longest_first([data[row] for row in range(start, min(ITEMS, start + 256))])[0] for start in (0, 256, 512)]
    assert torch.equal(found, torch.cat([model.eval()(part).detach() for part in parts]))


# ---- texts


@pytest.fixture
def names(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of the shipped job of names."""
    monkeypatch.chdir(tmp_path)
    assert say("init", "names")[0] == 0
    status, _, said = say("train", "names.yaml", "--run-dir", "run", "train.procs=0", "train.epochs=1")
    assert status == 0, said
    return tmp_path / "run"


def test_the_shipped_classifier_of_names_predicts_lines_of_text(
    names: Path, say: Say, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["Gal", "Net", "Raldor"]
    (tmp_path / "new.txt").write_text("Gal\n\n  Net\nRaldor")
    status, lines, said = say("predict", names, "new.txt")
    assert status == 0, said
    assert lines[0].startswith("text,predicted,probability_") and [one.split(",")[0] for one in lines[1:]] == texts
    read, write = os.pipe()
    os.write(write, b"Gal\nNet\nRaldor\n")
    os.close(write)
    with open(read) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        os.dup2(read, 0)
        assert say("predict", names, "-")[:2] == (0, lines)
    model = hogwild.load(names)
    answers = model.predict(texts)
    assert torch.equal(answers, model.predict("new.txt")) and answers.shape == (3, len(model.names["classes"]))
    (tmp_path / "parts").mkdir()
    for k, text in enumerate(texts):
        (tmp_path / "parts" / f"{k}.txt").write_text(f"{text}\n")
    assert torch.equal(answers, model.predict("parts")), "a folder, as the training data is"
    assert (
        torch.equal(model.predict(["Gal\u03c9"]), model.predict(["Gal"])) and "left out of 1 text: 'ω'" in caplog.text
    )
    for wrong, words in (("gone.txt", "no such file"), ("\u03c9.txt", "no character of the training data")):
        (tmp_path / "\u03c9.txt").write_text("\u03c9\n")
        with pytest.raises(HogwildError, match=words):
            model.predict(wrong)
    with pytest.raises(DataError, match=r"has 41 elements in field 0, more than data\.padding\.longest 40"):
        model.predict(["a" * 41])


# ---- programs


def ran(program: io.BytesIO, *given: Any) -> Tensor:
    program.seek(0)
    found: Tensor = torch.export.load(program).module()(*given)
    return found


def test_a_program_takes_rows_and_sequences_of_any_number(trained: Callable[..., Path]) -> None:
    for name in ("padded", "by a function"):
        run = trained(JOBS[name], name.replace(" ", "-"))
        model, program = hogwild.load(run), io.BytesIO()
        programs.torch_export(model.model, model.example())(program)
        data = ByName(1) if name == "by a function" else Ragged(1)
        for rows in (range(1), range(7), range(300)):
            given = model.inputs_of([data[row] for row in rows])
            torch.testing.assert_close(ran(program, *given), model.model(*given))


CELLS = [
    {"cell": "lstm"}, {"cell": "gru", "pool": "mean"}, {"cell": "lstm", "bidirectional": True, "layers": 2},
    {"cell": "gru", "bidirectional": True, "pool": "mean"}, {"cell": "layer_norm"},
]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [CELLS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in CELLS[1:])],
    ids=lambda one: " ".join(map(str, one.values())),
)
def test_a_recurrent_program_takes_sequences_of_the_longest_length(
    arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = SequenceClassifier(10, 3, 4, 6, **arguments).eval()
    x, lengths = torch.randint(0, 10, (4, 5)), torch.tensor([5, 2, 1, 3])
    example = inputs.Example((x, lengths), (frozenset({0, 1}), frozenset({0})), (0,), 0, 7)
    program = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        programs.torch_export(model, example)(program)
    assert "sequences padded to 7 with 0" in caplog.text
    wide = nn.functional.pad(x, (0, 2))
    torch.testing.assert_close(ran(program, wide[:3], lengths[:3]), model(x, lengths)[:3])


# ---- the estimators


def with_length(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    x, y = (torch.stack(part) for part in zip(*items, strict=True))
    return x, x.abs().sum(1, keepdim=True), y


class Two(nn.Module):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.layer(x) + other.reshape(-1, 1)


@pytest.mark.parametrize("settings", [{"collate": with_length}, {"padding": {"value": 0}}, {"data": {"padding": {}}}])
def test_an_estimator_predicts_with_the_batches_that_it_was_fitted_with(settings: dict[str, Any]) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'hogwild[sklearn]'")
    from hogwild.estimator import Classifier, Regressor

    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    rows = torch.from_numpy(x)
    other = rows.abs().sum(1) if "collate" in settings else torch.full((40,), 3)
    for kind, y in ((Classifier, (x.sum(1) > 0).astype(int)), (Regressor, x.sum(1))):
        made = kind(Two, epochs=1, random_state=0, settings=settings).fit(x, y)
        wanted = made.model_(rows, other).detach()
        found = made.predict_proba(x) if kind is Classifier else made.predict(x)
        assert np.array_equal(found, (wanted.softmax(1) if kind is Classifier else wanted[:, 0]).numpy())


def test_weights_of_an_ordinary_run_are_used_as_before(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    x = torch.randn(30, 3)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, TensorDataset(x, x[:, :1]), nn.MSELoss(), rule, procs=0, epochs=1, run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "names.json").exists()
    assert torch.equal(hogwild.load(tmp_path / "run", model=nn.Linear(3, 1)).predict(TensorDataset(x)), model(x))
