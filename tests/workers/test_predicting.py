"""A large file is predicted by several processes: the answer is that of one, whoever dies."""

import gzip
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hogwild.cli import main
from hogwild.config.schema import Supervise
from hogwild.data import libsvm
from hogwild.data.npz import NpzRows
from hogwild.errors import DataError, HogwildError, RunError
from hogwild.inference import inputs
from hogwild.inference.inputs import Ranges
from hogwild.inference.predict import Meaning, Predictor, encode_csv, writing
from hogwild.workers.child.loader import CUT_WORDS
from hogwild.workers.loading.predicting import BlockWork, predicted_parts
from hogwild.workers.messages import Report
from tests.helpers.predicting import Say, linear, train

ROWS = 64  # in blocks of 5: 13


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "BLOCK_ROWS", 5)
    monkeypatch.setattr(libsvm, "PIECE", 64)


class Deadly(nn.Module):
    """Kills its process at the row whose value is 31, as long as there is no file `spared`."""

    def __init__(self, spared: Path, makes_it: bool) -> None:
        super().__init__()
        self.spared, self.makes_it = spared, makes_it
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        if 31.0 in x and not self.spared.exists():
            if self.makes_it:
                self.spared.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x * self.weight


def predictor(folder: Path, model: nn.Module, x: np.ndarray) -> Predictor:
    np.savez(folder / "x.npz", x=x[:, None].astype(np.float32))
    return Predictor(model, Ranges(NpzRows(folder / "x.npz", "x")), Meaning(None))


def run(given: Predictor, folder: Path) -> tuple[list[str], list[str]]:
    """Write the answer with two processes to out.csv; return its lines, and what was said."""
    said: list[str] = []
    (folder / "parts").mkdir()
    with writing(folder / "out.csv") as writer:
        for _, content in predicted_parts(given, encode_csv, 2, Supervise(), folder / "parts", said.append):
            writer.append(content)
    assert not list((folder / "parts").iterdir())
    return (folder / "out.csv").read_text().splitlines(), said


# ---- bookkeeping: pure


def work(cuts: int, slots: int = 4, attempts: float = 3) -> BlockWork:
    return BlockWork(iter([(k, k + 1) for k in range(cuts)]), np.zeros((slots, CUT_WORDS), np.int64), attempts)


def test_blocks_are_taken_in_their_order_and_no_more_wait_than_there_are_slots() -> None:
    blocks = work(6)
    assert [blocks.request(0), blocks.request(1), blocks.request(0), blocks.request(1)] == [1, 2, 3, 4]
    blocks.answered(1, 0, 4)
    blocks.answered(1, 0, 2)
    assert blocks.next_done is None and blocks.request(1) is None, "the first one is at work, and has the slot of 5"
    blocks.answered(0, 0, 1)
    assert blocks.next_done == 1
    blocks.take()
    assert blocks.next_done == 2 and blocks.request(1) == 5
    blocks.take()
    assert [blocks.request(1), blocks.request(0), blocks.is_finished] == [6, None, False]
    for loader, number in ((0, 3), (1, 5), (1, 6)):
        blocks.answered(loader, 0, number)
    while blocks.next_done:
        blocks.take()
    assert blocks.request(0) is None and blocks.is_finished and blocks.taken == 6


def test_the_block_that_a_process_died_at_is_charged_and_all_it_held_come_again() -> None:
    blocks = work(9, attempts=2)
    assert [blocks.request(0), blocks.request(0)] == [1, 2]
    assert blocks.lost(0, 1, 0, "killed").error is None
    assert [blocks.request(1), blocks.request(1)] == [1, 2]
    error = blocks.lost(1, 1, 0, "killed").error
    assert error is not None and error.code == "run/predictors-died" and "block 1 of the input" in str(error)


def test_a_block_that_cannot_be_predicted_is_told_after_those_before_it() -> None:
    blocks = work(9)
    assert [blocks.request(0), blocks.request(1)] == [1, 2]
    blocks.refused(1, Report("bad-batch", "no number", "DataError", code="data/csv-value", item=2))
    assert blocks.next_done is None and blocks.request(1) is None, "what follows does not matter"
    blocks.answered(0, 0, 1)
    assert blocks.next_done == 1
    blocks.take()
    with pytest.raises(DataError, match="no number") as raised:
        _ = blocks.next_done
    assert raised.value.code == "data/csv-value"


# ---- processes


@pytest.mark.whole
@pytest.mark.processes
def test_a_predictor_that_is_killed_is_replaced_and_no_row_is_lost(tmp_path: Path) -> None:
    given = predictor(tmp_path, Deadly(tmp_path / "spared", makes_it=True), np.arange(ROWS))
    lines, said = run(given, tmp_path)
    assert lines == ["sample,output", *(f"{k},{2.0 * k}" for k in range(ROWS))]
    assert len(said) == 1 and "SIGKILL" in said[0] and "its rows are predicted again" in said[0]


@pytest.mark.processes
def test_a_block_that_kills_every_process_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    given = predictor(tmp_path, Deadly(tmp_path / "spared", makes_it=False), np.arange(ROWS))
    (tmp_path / "out.csv").write_text("from before")
    with pytest.raises(
        RunError, match=r"block 7 of the input has ended 3 processes, the last one: .*SIGKILL"
    ) as raised:
        run(given, tmp_path)
    assert raised.value.code == "run/predictors-died"
    assert (tmp_path / "out.csv").read_text() == "from before" and not list(tmp_path.glob(".tmp*"))


@pytest.mark.processes
def test_a_wrong_row_is_the_error_it_is_in_one_process(tmp_path: Path) -> None:
    x = np.arange(ROWS, dtype=np.float32)
    x[[33, 60]] = np.nan
    given = predictor(tmp_path, nn.Linear(1, 1), x)
    with pytest.raises(HogwildError) as alone:
        [*given.parts(encode_csv)]
    with pytest.raises(type(alone.value)) as shared:
        run(given, tmp_path)
    assert str(shared.value) == str(alone.value) and shared.value.code == alone.value.code
    assert not list(tmp_path.glob("*out.csv*"))


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["csv", "parquet", "svm", "svm.gz"])
def test_a_file_has_the_same_answer_with_more_processes(
    kind: str,
    say: Say,
    tmp_path: Path,
) -> None:
    is_sparse = kind.startswith("svm")
    if is_sparse:
        pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
        lines = [f"{k % 2} {1 + k % 3}:{k} 4:0.5{'' if k % 5 else ' # five'}" for k in range(ROWS)]
        model, loss, arguments = {"class_path": "hogwild.models.SparseLinear"}, "hogwild.losses.LogisticLoss", {}
    else:
        lines = ["a,who,y", *(f"{k / 7},row {k},{k}" for k in range(ROWS))]
        arguments = {"target": "y", "leave_out": ["who"]}
        model, loss = linear(1, 1), "torch.nn.MSELoss"
    file = tmp_path / f"table.{kind if is_sparse else 'csv'}"
    content = "\n".join([*lines, ""]).encode()
    file.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    data = "LibSvm" if is_sparse else "Csv"
    trained = train(say, tmp_path, data, {"path": str(file)} | arguments, loss, model)
    if kind == "parquet":
        from pyarrow import csv, parquet

        parquet.write_table(csv.read_csv(file), tmp_path / "table.parquet", row_group_size=24)
        file = tmp_path / "table.parquet"
    options = [] if is_sparse else ["--id", "who"]
    _, wanted, _ = say("predict", trained, file, *options)
    status, found, said = say("predict", trained, file, *options, "--procs", 2)
    assert status == 0, said
    assert found == wanted and len(found) == 1 + ROWS
    out = tmp_path / "out.npz"
    status, _, said = say("predict", trained, file, *options, "--procs", 2, "--out", out)
    assert status == 0, said
    assert len(np.load(out)["probabilities" if is_sparse else "outputs"]) == ROWS
    assert not list(tmp_path.glob(".tmp*"))


def test_what_one_process_must_read_is_not_for_several(tmp_path: Path, say: Say) -> None:
    (tmp_path / "ratings.csv").write_text("user,item,rating\nann,film,1\nbob,film,2\nann,song,3\n")
    model = {"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 2}}
    given = train(say, tmp_path, "Ratings", {"path": str(tmp_path / "ratings.csv")}, "torch.nn.MSELoss", model)
    status, _, said = say("predict", given, tmp_path / "ratings.csv", "--procs", 2)
    assert status == 2 and "--procs 2: its file is parsed as a whole, by one process" in said
    assert main.run(["predict", str(given), "x.csv", "--procs", "0"]) == 2
