"""model.init_from: what is taken from a file, what is not, and what is refused."""

import gzip
import json
import os
import pickle
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.config.schema import Component, InitFrom
from hogwild.errors import HogwildError, ModelError
from hogwild.inference.word_vectors import WordVectors
from hogwild.job.initial_values import load_initial, read_tensors
from hogwild.models import SkipGram
from hogwild.user_code import build
from tests.job.conftest import Say
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

DATA = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3)


class Net(nn.Module):
    def __init__(self, seed: int, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)))


def spec(path: Path, *skip: str) -> InitFrom:
    return InitFrom(path=str(path), skip=[*skip])


def saved(folder: Path, values: Any, name: str = "base.pt") -> Path:
    torch.save(values, folder / name)
    return folder / name


def files(folder: Path) -> Mapping[str, Path]:
    """The same tensors in every form that is taken."""
    state = Net(1).state_dict()
    run = folder / "run"
    model = Net(1)
    rule = optim.SGD(model.parameters(), lr=0.0)
    hogwild.train(model, DATA, nn.CrossEntropyLoss(), rule, val=DATA, procs=0, batch_size=16, run_dir=run)
    model.load_state_dict(state)
    save_file(dict(state), folder / "base.safetensors")
    return {
        "state_dict": saved(folder, state),
        "wrapped": saved(folder, {"epoch": 3, "state_dict": state}, "wrapped.pth"),
        "under model": saved(folder, {"model": state}, "model.bin"),
        "safetensors": folder / "base.safetensors",
        "run": run,
        "checkpoint": (run / "checkpoints" / "latest").resolve(),
    }


def test_every_form_of_a_file_gives_the_same_parameters(tmp_path: Path) -> None:
    for form, path in files(tmp_path).items():
        model = Net(2)
        note = load_initial(model, str(path)).note
        assert "9 of the model's 9 tensors are from this file" in note, form
        assert all(map(torch.equal, model.parameters(), Net(1).parameters())), form


def test_what_is_missing_unexpected_or_skipped_is_listed(tmp_path: Path) -> None:
    state = Net(1).state_dict()
    del state["body.bias"]
    state["old.weight"] = torch.ones(2)
    model, before = Net(2), Net(2)
    note = load_initial(model, spec(saved(tmp_path, state), "head.*")).note
    assert "6 of the model's 9 tensors are from this file" in note
    assert "missing there, as the constructor made them: body.bias;" in note
    assert "not in the model, not used: old.weight;" in note
    assert note.endswith("left out by skip: head.bias, head.weight")
    assert torch.equal(model.body.weight, Net(1).body.weight)
    assert torch.equal(model.body.bias, before.body.bias) and torch.equal(model.head.weight, before.head.weight)


def test_a_head_of_another_size_is_an_error_that_says_how_to_leave_it_out(tmp_path: Path) -> None:
    path = saved(tmp_path, Net(1, classes=7).state_dict())
    model = Net(2)
    with pytest.raises(ModelError) as raised:
        load_initial(model, str(path))
    assert raised.value.code == "model/init-mismatch"
    assert "head.weight is (7, 5) in the file and (3, 5) in the model" in str(raised.value)
    assert 'skip: ["head.*"]' in str(raised.value)
    assert all(map(torch.equal, model.parameters(), Net(2).parameters()))
    load_initial(model, spec(path, "head.*"))
    assert torch.equal(model.body.weight, Net(1, classes=7).body.weight)


def cut(folder: Path) -> Path:
    path = saved(folder, Net(1).state_dict())
    path.write_bytes(path.read_bytes()[:200])
    return path


def cut_pickle(folder: Path) -> Path:
    path = folder / "old.pt"
    torch.save(Net(1).state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:300])
    return path


def written(folder: Path, content: bytes, name: str = "model.bin") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def scripted(folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, of torch.jit
        torch.jit.script(nn.Linear(2, 2)).save(folder / "scripted.pt")
    return folder / "scripted.pt"


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 438007537\n"


def cut_safetensors(folder: Path) -> Path:
    save_file(dict(Net(1).state_dict()), folder / "x.safetensors")
    (folder / "x.safetensors").write_bytes((folder / "x.safetensors").read_bytes()[:-9])
    return folder / "x.safetensors"


def not_finite(folder: Path) -> Path:
    state = Net(1).state_dict()
    state["body.weight"][0, 0] = float("nan")
    return saved(folder, state)


BAD = {
    "not there": (lambda folder: folder / "no.pt", "model/init-not-found", "there is no "),
    "cut": (cut, "model/init-unreadable", "a zip archive without its end"),
    "cut safetensors": (cut_safetensors, "model/init-unreadable", "cannot be read"),
    "a cut pickle": (cut_pickle, "model/init-unreadable", "truncated"),
    "an empty file": (lambda folder: written(folder, b""), "model/init-unreadable", "is empty"),
    "a pointer of git-LFS": (
        lambda folder: written(folder, LFS),
        "model/init-unreadable",
        "the file itself was not downloaded",
    ),
    "such a pointer as safetensors": (
        lambda folder: written(folder, LFS, "model.safetensors"),
        "model/init-unreadable",
        "the file itself was not downloaded",
    ),
    "a web page": (
        lambda folder: written(folder, b"<!DOCTYPE html><html><body>404"),
        "model/init-unreadable",
        "is not a file of torch.save: it begins with b'<!DOCTYPE html",
    ),
    "a pickle of Python's": (
        lambda folder: written(folder, pickle.dumps({"a": 1})),
        "model/init-unreadable",
        "a pickle that torch.save did not write",
    ),
    "a TorchScript archive": (scripted, "model/init-unreadable", "save the state_dict() of that module"),
    "a whole model": (lambda folder: saved(folder, Net(1)), "model/init-unreadable", "save only model.state_dict()"),
    "no tensors": (
        lambda folder: saved(folder, {"epoch": 3}),
        "model/init-unreadable",
        "a dict of epoch, not a state_dict",
    ),
    "an empty folder": (lambda folder: folder, "model/init-unreadable", "neither a checkpoint"),
    "NaN": (not_finite, "model/init-mismatch", "body.weight is NaN or infinite"),
    "other names": (
        lambda folder: saved(folder, {f"module.{k}": v for k, v in Net(1).state_dict().items()}),
        "model/init-mismatch",
        "Its names begin with 'module.'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_before_anything_changes(what: str, tmp_path: Path) -> None:
    make, code, words = BAD[what]
    model = Net(2)
    with pytest.raises(HogwildError) as raised:
        load_initial(model, str(make(tmp_path)))
    assert raised.value.code == code and words in str(raised.value)
    assert "weights_only" not in str(raised.value), "torch's advice would run whatever the file holds"
    assert all(map(torch.equal, model.parameters(), Net(2).parameters()))


def test_a_pickle_that_is_cut_anywhere_is_refused_in_words_about_the_file(tmp_path: Path) -> None:
    """Where byte N falls depends on the addresses that torch writes into it."""
    path = tmp_path / "old.pt"
    torch.save(Net(1).state_dict(), path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for length in range(8, len(whole), 11):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"truncated|damaged|unexpected EOF") as raised:
            load_initial(Net(2), str(path))
        assert raised.value.code == "model/init-unreadable"


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_was_overwritten_is_read_or_refused_and_nothing_else(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "base.pt"
    torch.save(Net(1).state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole, draw = path.read_bytes(), random.Random(0)
    refused: list[ModelError] = []
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(4, len(whole))] = draw.randrange(256)
        path.write_bytes(damaged if draw.random() < 0.5 else whole[: draw.randrange(1, len(whole))])
        try:
            read_tensors(path)
        except ModelError as error:
            refused.append(error)
    assert len(refused) > 100 and {error.code for error in refused} == {"model/init-unreadable"}
    assert [str(error) for error in refused if "weights_only" in str(error)] == []


def test_a_skip_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"init_from.skip\[0\]: 'haed.\*' matches no tensor; similar names: .*head"):
        load_initial(Net(2), spec(saved(tmp_path, Net(1).state_dict()), "haed.*"))


# ---- in a job --------------------------------------------------------------------------------------------------------


def call(net: nn.Module, folder: Path, **settings: Any) -> Any:
    common = {"procs": 0, "batch_size": 16, "run_dir": folder / "run", "seed": 3}
    return hogwild.train(
        net, DATA, nn.CrossEntropyLoss(), optim.SGD(net.parameters(), lr=0.1), **{**common, **settings}
    )


class Renames(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(w=state.pop("weight")))


def test_names_that_only_the_models_own_state_dict_knows_are_an_error_and_not_said_to_be_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, Renames().state_dict())
    with pytest.raises(ModelError, match=r"base.pt: w: the model's state_dict\(\) has these names, but its load"):
        load_initial(Renames(), str(path))


@pytest.mark.slow
def test_a_call_begins_with_the_file_and_a_resume_does_not_read_it(tmp_path: Path) -> None:
    path = saved(tmp_path, Net(1).state_dict())
    settings = {"model": {"init_from": str(path)}}
    ours, plain = Net(2), Net(1)
    call(ours, tmp_path, **settings, max_updates=1)
    call(plain, tmp_path / "plain", max_updates=1)
    assert all(map(torch.equal, ours.parameters(), plain.parameters()))
    assert "9 of the model's 9" in (tmp_path / "run" / "logs" / "supervisor.log").read_text()
    path.unlink()
    again = Net(2)
    call(again, tmp_path, **settings, epochs=2, run_dir=None, resume=tmp_path / "run")
    call(plain, tmp_path / "plain", epochs=2, run_dir=None, resume=tmp_path / "plain" / "run")
    assert all(map(torch.equal, again.parameters(), plain.parameters()))


def test_a_resume_without_a_checkpoint_begins_with_the_file_again(tmp_path: Path) -> None:
    path = saved(tmp_path, Net(1).state_dict())
    settings = {"model": {"init_from": str(path)}}
    first, second = Net(2), Net(2)
    call(first, tmp_path, **settings)
    for entry in [*(tmp_path / "run" / "checkpoints").iterdir()]:
        entry.rename(tmp_path / entry.name)
    call(second, tmp_path, **settings, run_dir=None, resume=tmp_path / "run")
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert torch.equal(first.norm.running_mean, second.norm.running_mean)


@pytest.mark.processes
def test_the_command_line_finds_it_beside_the_job_file_and_check_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    torch.manual_seed(0)
    state = {"layers.0.weight": torch.randn(8, 64), "layers.0.bias": torch.randn(8), "more": torch.ones(1)}
    saved(folder, state)
    (folder / "job.yaml").write_text(
        "model:\n  class_path: hogwild.models.Mlp\n  init_args: {features: 64, hidden: 8, classes: 10}\n"
        "  init_from: base.pt\ndata: {train: {class_path: hogwild.data.Digits, init_args: {split: test}}}\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main.run(["check", str(folder / "job.yaml"), "--deep", "--json"]) == 0
    (note,) = (one for one in json.loads(capfd.readouterr().out)["notes"] if "init_from" in one)
    assert "2 of the model's 4 tensors" in note and note.endswith("not in the model, not used: more")
    os.unlink(folder / "base.pt")
    assert main.run(["check", str(folder / "job.yaml"), "--deep"]) == 3
    assert f"looked for {folder / 'base.pt'}, {tmp_path / 'elsewhere' / 'base.pt'}" in capfd.readouterr().err


WORDS = ["the", "cat", "sat", "."]
KNOWN = {"sat": [1.5, -2.0, 0.25], "the": [3.0, 4.0, 5.0], "dog": [7.0, 8.0, 9.0], "New York": [1.0, 1.0, 1.0]}


class Reader(nn.Module):
    """Two tables, the second of words; the first has as many rows as there are tags."""

    def __init__(self, words: int, tags: int, dim: int = 3) -> None:
        super().__init__()
        self.tag, self.word = nn.Embedding(tags, 2), nn.Embedding(words, dim)
        self.head = nn.Linear(dim, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.word(x).mean(1))
        return found


NAMES = {"names": {"tags": ["noun", "verb"], "words": WORDS}, "sizes": {"tags": 2, "words": 4}}
COMPONENT = Component(class_path=f"{__name__}.Reader")


def lines(*, header: bool, spaces: bool = False) -> bytes:
    known = {word: numbers for word, numbers in KNOWN.items() if spaces or " " not in word}
    rows = "".join(f"{word} {' '.join(map(str, numbers))}\n" for word, numbers in known.items())
    return (f"{len(known)} 3\n" if header else "").encode() + rows.encode()


def binary() -> bytes:
    rows = (word.encode() + b" " + np.array(numbers, "<f4").tobytes() + b"\n" for word, numbers in KNOWN.items())
    known = [row for row in rows if not row.startswith(b"New")]
    return f"{len(known)} 3\n".encode() + b"".join(known)


FILES = {
    "vectors.txt": lines(header=True),
    "vectors.vec": lines(header=True).replace(b"\n", b" \n"),  # as fastText ends its rows
    "glove.txt": lines(header=False, spaces=True),
    "more than the header says.txt": lines(header=True) + b"the 9 9 9\n",
    "no end of line.txt": lines(header=False)[:-1],
    "windows.txt": lines(header=False).replace(b"\n", b"\r\n") + b"\r\n",
    "not utf-8.txt": b"\xff\xfe 1 2 3\n" + lines(header=False),
    "vectors.bin": binary(),
    "vectors.txt.gz": gzip.compress(lines(header=True)),
    "vectors.bin.gz": gzip.compress(binary()),
}


def vectors_in(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("component", [COMPONENT, None])
def test_a_word_has_its_vector_from_the_file_and_all_else_is_as_it_was(
    name: str, component: Component | None, tmp_path: Path
) -> None:
    model = Reader(4, 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    path = vectors_in(tmp_path, name, FILES[name])
    note = load_initial(model, str(path), NAMES, component).note
    wanted = before["word.weight"].clone()
    wanted[0], wanted[2] = torch.tensor(KNOWN["the"]), torch.tensor(KNOWN["sat"])
    assert torch.equal(model.word.weight, wanted)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before.keys() - {"word.weight"})
    assert note == (
        f"model.init_from: {path}: 2 of 4 words have their vector from there, in word.weight; "
        "2 begin as the constructor made them"
    )


def test_the_first_of_several_tables_is_filled_unless_it_is_skipped(tmp_path: Path) -> None:
    path, names = (
        vectors_in(tmp_path, "v.txt", FILES["vectors.txt"]),
        {"names": {"words": WORDS}, "sizes": {"words": 4}},
    )
    component = Component(class_path="hogwild.models.SkipGram", init_args={"dim": 3})
    model = SkipGram(4, dim=3)
    note = load_initial(model, str(path), names, component).note
    assert "in input.weight; 2 begin as the constructor made them; skip input.weight to fill output.weight" in note
    assert model.input.weight[0].tolist() == KNOWN["the"] and not model.output.weight.any()
    model = SkipGram(4, dim=3)
    load_initial(model, InitFrom(path=str(path), skip=["input.*"]), names, component)
    assert model.output.weight[0].tolist() == KNOWN["the"] and not model.output.weight[1].any()


BAD_VECTORS: Mapping[str, tuple[bytes, dict[str, Any], str]] = {
    "another dimension": (b"1 2\nthe 1 2\n", {}, "its vectors have 2 numbers, but word.weight has rows of 3"),
    "no word known": (b"1 3\ndog 1 2 3\n", {}, "none of its 1 names is one of the data's 4 words, as 'the'"),
    "no names": (b"the 1 2 3\n", {"names": {}, "sizes": {}}, "the data names: nothing"),
    "names without a table": (b"the 1 2 3\n", {"names": {"words": ["the"]}, "sizes": {}}, "the data names: words"),
    "not finite": (b"the 1 nan 3\n", {}, "some of its vectors are NaN or infinite"),
    "cut off": (b"3 3\nthe 1 2 3\n", {}, "promises 3 words, but the file holds 1"),
    "a row too short": (b"the 1 2 3\ncat 1 2\n", {}, "line 2: must have a word and 3 numbers"),
    "a word twice": (b"the 1 2 3\nthe 1 2 3\n", {}, "the word 'the' occurs twice"),
}


@pytest.mark.parametrize("what", BAD_VECTORS)
def test_vectors_that_do_not_fit_are_refused_and_nothing_is_changed(what: str, tmp_path: Path) -> None:
    content, names, words = BAD_VECTORS[what]
    model, path = Reader(4, 2), vectors_in(tmp_path, "v.txt", content)
    before = model.word.weight.detach().clone()
    with pytest.raises(HogwildError, match=words) as refused:
        load_initial(model, str(path), names or NAMES, COMPONENT)
    assert str(path) in str(refused.value)
    assert torch.equal(model.word.weight, before)


@pytest.mark.whole
@pytest.mark.processes
def test_jobs_begin_with_a_file_and_with_a_run_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 20)
    job = {
        "model": {"class_path": "hogwild.models.SkipGram", "init_args": {"dim": 3}, "init_from": "v.txt"},
        "loss": {"class_path": "hogwild.losses.NegativeSampling"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.0}},
        "data": {"train": {"class_path": "hogwild.data.Text", "init_args": {"path": "text"}}, "batch_size": 64},
        "train": {"procs": 0, "epochs": 1},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    vectors_in(tmp_path, "v.txt", FILES["vectors.txt"])
    status, said = say("train", "job.yaml", "--run-dir", "one", "--no-progress")
    assert status == 0 and "2 of 5 words have their vector from there, in input.weight" in said, said
    vectors: WordVectors = hogwild.load("one").vectors
    assert vectors["sat"].tolist() == KNOWN["sat"]
    names = {"names": {"tags": ["noun"], "words": ["mat", "dog"]}, "sizes": {"tags": 1, "words": 2}}
    model = Reader(2, 1)
    before = model.word.weight[1].clone()
    note = load_initial(model, "one", names, COMPONENT).note
    assert "1 of 2 words have their vector from there, in word.weight" in note
    assert torch.equal(model.word.weight[0], torch.from_numpy(vectors["mat"]))
    assert torch.equal(model.word.weight[1], before)


def test_names_of_two_kinds_do_not_say_whose_vectors_they_are(tmp_path: Path) -> None:
    """Users and items that are numbers: the users got the items' vectors."""
    path = vectors_in(tmp_path, "v.txt", b"2 3\n1 5 6 7\n2 7 8 9\n")
    component = Component(class_path="hogwild.models.MatrixFactorization", init_args={"factors": 3, "mean": 0.0})
    names = {"names": {"users": [1, 2, 3], "items": [2, 4]}, "sizes": {"users": 3, "items": 2}}
    model = build(component, **names["sizes"])
    with pytest.raises(HogwildError, match="its names are those of 2 users and 1 items: nothing says whose") as refused:
        load_initial(model, str(path), names, component)
    assert refused.value.code == "model/init-names" and "skip, of user.weight, item.weight" in str(refused.value)
    load_initial(model, InitFrom(path=str(path), skip=["user.weight"]), names, component)
    assert model.item.weight[0].tolist() == [7.0, 8.0, 9.0]
