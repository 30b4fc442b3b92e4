"""model.init_from with vectors by name: which rows get one, and what is refused."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hogwild
from hogwild.config.schema import Component, InitFrom
from hogwild.errors import HogwildError
from hogwild.inference.word_vectors import WordVectors
from hogwild.job.initial_values import load_initial
from hogwild.models import SkipGram
from hogwild.user_code import build
from tests.job.conftest import Say

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


def written(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("component", [COMPONENT, None])
def test_a_word_has_its_vector_from_the_file_and_all_else_is_as_it_was(
    name: str, component: Component | None, tmp_path: Path
) -> None:
    model = Reader(4, 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    path = written(tmp_path, name, FILES[name])
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
    path, names = written(tmp_path, "v.txt", FILES["vectors.txt"]), {"names": {"words": WORDS}, "sizes": {"words": 4}}
    component = Component(class_path="hogwild.models.SkipGram", init_args={"dim": 3})
    model = SkipGram(4, dim=3)
    note = load_initial(model, str(path), names, component).note
    assert "in input.weight; 2 begin as the constructor made them; skip input.weight to fill output.weight" in note
    assert model.input.weight[0].tolist() == KNOWN["the"] and not model.output.weight.any()
    model = SkipGram(4, dim=3)
    load_initial(model, InitFrom(path=str(path), skip=["input.*"]), names, component)
    assert model.output.weight[0].tolist() == KNOWN["the"] and not model.output.weight[1].any()


BAD: Mapping[str, tuple[bytes, dict[str, Any], str]] = {
    "another dimension": (b"1 2\nthe 1 2\n", {}, "its vectors have 2 numbers, but word.weight has rows of 3"),
    "no word known": (b"1 3\ndog 1 2 3\n", {}, "none of its 1 names is one of the data's 4 words, as 'the'"),
    "no names": (b"the 1 2 3\n", {"names": {}, "sizes": {}}, "the data names: nothing"),
    "names without a table": (b"the 1 2 3\n", {"names": {"words": ["the"]}, "sizes": {}}, "the data names: words"),
    "not finite": (b"the 1 nan 3\n", {}, "some of its vectors are NaN or infinite"),
    "cut off": (b"3 3\nthe 1 2 3\n", {}, "promises 3 words, but the file holds 1"),
    "a row too short": (b"the 1 2 3\ncat 1 2\n", {}, "line 2: must have a word and 3 numbers"),
    "a word twice": (b"the 1 2 3\nthe 1 2 3\n", {}, "the word 'the' occurs twice"),
}


@pytest.mark.parametrize("what", BAD)
def test_vectors_that_do_not_fit_are_refused_and_nothing_is_changed(what: str, tmp_path: Path) -> None:
    content, names, words = BAD[what]
    model, path = Reader(4, 2), written(tmp_path, "v.txt", content)
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
    written(tmp_path, "v.txt", FILES["vectors.txt"])
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
    path = written(tmp_path, "v.txt", b"2 3\n1 5 6 7\n2 7 8 9\n")
    component = Component(class_path="hogwild.models.MatrixFactorization", init_args={"factors": 3, "mean": 0.0})
    names = {"names": {"users": [1, 2, 3], "items": [2, 4]}, "sizes": {"users": 3, "items": 2}}
    model = build(component, **names["sizes"])
    with pytest.raises(HogwildError, match="its names are those of 2 users and 1 items: nothing says whose") as refused:
        load_initial(model, str(path), names, component)
    assert refused.value.code == "model/init-names" and "skip, of user.weight, item.weight" in str(refused.value)
    load_initial(model, InitFrom(path=str(path), skip=["user.weight"]), names, component)
    assert model.item.weight[0].tolist() == [7.0, 8.0, 9.0]
