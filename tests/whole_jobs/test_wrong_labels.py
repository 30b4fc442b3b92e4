"""The sample that the error of a wrong label names: of the data set as the user gave it, however it is split, shuffled,
packed, streamed and read; with the line of its file where there is one."""

import re
from pathlib import Path

import pytest

from hogwild.cli import main
from tests.helpers.jobs import in_turn

SAMPLES, WRONG, FIRST_LINE = 200, 133, 3  # of the tables: a header, then an empty line
OWN = """
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

def tensors(wrong={wrong}):
    y = torch.arange({samples}) % 2
    y[wrong] = 7
    return TensorDataset(torch.randn({samples}, 4), y)

class Items(Dataset):
    def __init__(self, wrong={wrong}):
        self.all = tensors(wrong)
    def __len__(self):
        return len(self.all)
    def __getitem__(self, index):
        return self.all[index]

class Rows(Items):
    def rows(self, start, stop):
        return tuple(field[start:stop] for field in self.all.tensors)

def a_part():
    whole = torch.randperm({samples}, generator=torch.Generator().manual_seed(3)).tolist()
    return Subset(Items(whole[{wrong}]), whole)
"""
JOB = """
model: {class_path: hogwild.models.Mlp, init_args: {features: 4, hidden: [], classes: 2}}
data: {train: {class_path: mine.tensors}, batch_size: 8}
train: {procs: 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(wrong=WRONG, samples=SAMPLES))
    (tmp_path / "job.yaml").write_text(JOB)
    labels = [7 if k == WRONG else k % 2 for k in range(SAMPLES)]
    rows = [f"{k},{k % 5},{k % 3},{k % 7},{label}" for k, label in enumerate(labels)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,label", "", *rows]) + "\n")
    rows[10] = rows[10].replace("10,", ",", 1)
    (tmp_path / "holes.csv").write_text("\n".join(["a,b,c,d,label", "", *rows]) + "\n")
    (tmp_path / "rows.svm").write_text("".join(f"{label} 1:{k % 5} 4:1\n" for k, label in enumerate(labels)))
    return tmp_path


def csv(name: str, **arguments: str) -> str:
    given = "".join(f", {key}: {value}" for key, value in arguments.items())
    return f"{{class_path: hogwild.data.Csv, init_args: {{path: {name}, target: label, target_type: class{given}}}}}"


SVM = "{class_path: hogwild.data.LibSvm, init_args: {path: rows.svm, features: 4, labels: classes}}"
SPARSE = "model={class_path: hogwild.models.SparseLinear, init_args: {features: 4, classes: 2}}"
SPLIT = "data.val={fraction: 0.3}"
SOURCES = {
    "tensors": (["data.train.class_path=mine.tensors"], WRONG, "is 7;"),
    "items": (["data.train.class_path=mine.Items"], WRONG, "is 7;"),
    "rows": (["data.train.class_path=mine.Rows"], WRONG, "is 7;"),
    "a part that the user made": (["data.train.class_path=mine.a_part"], WRONG, "is 7;"),
    "a table": ([f"data.train={csv('table.csv')}"], WRONG, f"(TABLE: line {WRONG + FIRST_LINE}) is 7;"),
    "a table with rows left out": ([f"data.train={csv('holes.csv', missing='drop')}"], WRONG - 1,
        f"(HOLES: line {WRONG + FIRST_LINE}) is 7;"),
    "packed rows": ([f"data.train={SVM}", SPARSE], WRONG, "is 2 (7 in the file);"),
}  # fmt: skip


@pytest.mark.processes
@pytest.mark.parametrize("changes", [[], [SPLIT], [SPLIT, "seed=2"], [SPLIT, "seed=3", "data.shuffle=chunked"]])
@pytest.mark.parametrize("source", SOURCES)
def test_a_wrong_label_is_named_by_its_sample_in_the_data_that_the_user_gave(
    source: str, changes: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For some seeds it is in the part that is trained on, for others in the one that is evaluated."""
    data, sample, words = SOURCES[source]
    words = words.replace("TABLE", str(folder / "table.csv")).replace("HOLES", str(folder / "holes.csv"))
    assert main.run(["train", "job.yaml", *data, *changes, "--dry-run"]) == 1
    err = capsys.readouterr().err
    assert f"data.train: the label of sample {sample} {words}" in err
    assert "code data/labels: " in err


def test_a_wrong_label_of_separate_data_is_named_by_its_sample_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "{class_path: mine.Items, init_args: {wrong: []}}"
    changes = [f"data.train={good}", f"data.val={csv('table.csv')}"]
    assert main.run(["train", "job.yaml", *changes, "--dry-run"]) == 1
    place = f"{folder / 'table.csv'}: line {WRONG + FIRST_LINE}"
    assert f"data.val: the label of sample {WRONG} ({place}) is 7;" in capsys.readouterr().err


@pytest.mark.processes
def test_several_workers_that_stream_shuffled_data_name_the_sample_and_its_line(folder: Path) -> None:
    """A batch of one bad sample is put aside; which one it is, is in the event."""
    jobs = {
        f"{source}-{number}": [str(folder / "job.yaml"), *SOURCES[source][0], *changes, *STREAM]
        for source in ("items", "a table with rows left out")
        for number, changes in enumerate(([], [SPLIT], ["data.shuffle=chunked"]))
    }
    ended = in_turn(folder / "jobs", jobs)
    for name, job in ended.items():
        source = name.rpartition("-")[0]
        sample, words = SOURCES[source][1:]
        place = f" ({folder / 'holes.csv'}: line {WRONG + FIRST_LINE})" if "line" in words else ""
        sample_of = rf"(the label of sample|item) {sample}{re.escape(place)}"  # the former in the part that is held out
        named = rf"data\.train: {sample_of}( is|, in batch \d+ of epoch 0, has label) 7;"
        assert re.search(named, job.stderr), (name, job.stderr)


STREAM = ["data.feed=stream", "train.procs=2", "data.loaders=2", "seed=2"]
