"""`hogwild export`: what comes out is what was trained, to the bit; nothing is replaced unasked or half written."""

import json
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.inference.word_vectors import WordVectors
from hogwild.storage.checkpoint_format import MODEL, checkpoint_name

UPDATES = 4


class Tied(nn.Module):
    """Two names for one parameter, buffers that change, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.decode = nn.Linear(6, 6)
        self.decode.weight = self.encode.weight
        self.words = "fresh"

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.relu(self.norm(self.encode(x))))

    def get_extra_state(self) -> dict[str, str]:
        return {"words": self.words}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.words = state["words"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tied, Path]:
    """A model, and the run directory it was trained in."""
    torch.manual_seed(0)
    model = Tied()
    model.words = "trained"
    x = torch.randn(32, 6)
    run = tmp_path_factory.mktemp("export") / "run"
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, TensorDataset(x, x), nn.MSELoss(), rule, procs=0, batch_size=8, run_dir=run, name="tied")
    return model.eval(), run


@pytest.fixture
def run(trained: tuple[Tied, Path], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(trained[1], tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs the command in a folder of its own; answers status, standard output and standard error."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main.run(["export", *map(str, arguments)])
        return status, *capsys.readouterr()

    yield call
    assert not [name for name in folder.iterdir() if name.name.startswith(".")], "nothing half written stays"


def probe() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_a_safetensors_export_gives_a_fresh_model_the_same_outputs(
    trained: tuple[Tied, Path], export: Callable[..., tuple[int, str, str]]
) -> None:
    model, run = trained
    status, out, _ = export(run)
    assert (status, out) == (0, f"tied-{checkpoint_name(UPDATES)}.safetensors\n")
    fresh = Tied()
    missing, unexpected = fresh.load_state_dict(safetensors.torch.load_file(out.strip()), strict=False)
    assert {*missing} == {"_extra_state", "decode.weight"} and not unexpected, "no tensor; the other name of a tied one"
    assert torch.equal(fresh.eval()(probe()), model(probe()))
    with safetensors.safe_open(out.strip(), "pt") as file:
        words = file.metadata()
    assert (words["hogwild.job"], words["hogwild.updates"]) == ("tied", str(UPDATES))
    assert words["decode.weight"] == "encode.weight", "the checkpoint's own words are kept"
    saved = run / "checkpoints" / "latest" / MODEL
    assert tensor_bytes(Path(out.strip())) == tensor_bytes(saved) and Path(out.strip()).stat().st_size % 4 == 0


def tensor_bytes(file: Path) -> bytes:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0, "tensors begin at a multiple of 8, where they can be mapped"
    return content[8 + size :]


def test_a_state_dict_loads_safely_into_the_stock_module(
    trained: tuple[Tied, Path], export: Callable[..., tuple[int, str, str]]
) -> None:
    model, run = trained
    status, out, _ = export(run / "checkpoints" / "latest", "--format", "state_dict", "--out", "model.pt")
    assert (status, out) == (0, "model.pt\n")
    fresh = Tied()
    fresh.load_state_dict(torch.load("model.pt", weights_only=True))
    assert torch.equal(fresh.eval()(probe()), model(probe()))
    assert fresh.words == "trained" and fresh.decode.weight is fresh.encode.weight


def test_the_best_is_taken_before_the_latest_unless_another_is_asked_for(
    run: Path, export: Callable[..., tuple[int, str, str]]
) -> None:
    folder = run / "checkpoints"
    best = with_update(folder, 2)
    (folder / "best").unlink(missing_ok=True)
    (folder / "best").symlink_to(best)
    assert export(run)[1] == f"tied-{best}.safetensors\n"
    assert export(run, "--which", "latest")[1] == f"tied-{checkpoint_name(UPDATES)}.safetensors\n"
    assert export(run, "--which", "best", "--out", ".", "--force")[1] == f"tied-{best}.safetensors\n"
    status, _, err = export(folder / "latest", "--which", "best")
    assert status == 2 and "is already a checkpoint" in err
    (folder / "best").unlink()
    status, _, err = export(run, "--which", "best")
    assert status == 3 and "use --which latest for the last" in err


def with_update(folder: Path, update: int) -> str:
    """Another checkpoint of the same content."""
    from hogwild.storage import checkpoint

    tensors = safetensors.torch.load_file(folder / "latest" / MODEL)
    return checkpoint.write(folder, checkpoint_name(update), {"model": tensors}, tensors, {}).name


def test_nothing_is_replaced_without_force(trained: tuple[Tied, Path], export: Callable[..., Any]) -> None:
    mine = Path("mine.safetensors")
    mine.write_text("mine")
    status, out, err = export(trained[1], "--out", mine)
    assert (status, out, mine.read_text()) == (2, "", "mine") and "--force" in err
    assert export(trained[1], "--out", mine, "--force")[0] == 0 and mine.stat().st_size > 100


def test_a_damaged_checkpoint_is_never_exported(run: Path, export: Callable[..., Any]) -> None:
    model = run / "checkpoints" / checkpoint_name(UPDATES) / MODEL
    content = bytearray(model.read_bytes())
    content[-3] ^= 1
    model.write_bytes(content)
    for format_ in ("safetensors", "state_dict"):
        status, out, err = export(run, "--format", format_)
        assert (status, out) == (1, "") and f"{MODEL} is damaged" in err
    assert not list(Path().iterdir())


@pytest.mark.parametrize("format_", ["safetensors", "state_dict"])
def test_a_disk_that_takes_no_more_leaves_no_half_of_a_file(
    format_: str, trained: tuple[Tied, Path], export: Callable[..., Any]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        status, out, err = export(trained[1], "--format", format_)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, out) == (1, "") and "cannot be written" in err and "Traceback" not in err
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["RUN", "--example", "x.npz"], 2, "--example is for --format torch-export or onnx"),
        (["RUN", "--format", "torch-export"], 2, "--example FILE"),
        (["RUN", "--format", "word2vec"], 2, "its model has no vectors of words"),
        (["RUN", "--format", "parquet", "--kind", "tags"], 2, "its model has no vectors of tags"),
        (["RUN", "--kind", "items"], 2, "--kind is for --format parquet, npz, word2vec, fasttext"),
        (["RUN", "--out", "no/such/file"], 3, "there is no folder"),
    ],
)
def test_what_cannot_be_exported_is_said(
    arguments: list[str], status: int, said: str, trained: tuple[Tied, Path], export: Callable[..., Any]
) -> None:
    ended, out, err = export(*(str(trained[1]) if each == "RUN" else each for each in arguments))
    assert (ended, out) == (status, "") and said in err and "Traceback" not in err


def test_a_run_without_a_checkpoint_and_one_without_its_links_say_what_is_there(
    run: Path, export: Callable[..., Any]
) -> None:
    folder = run / "checkpoints"
    for name in ("latest", "best"):
        (folder / name).unlink(missing_ok=True)
    status, _, err = export(run)
    assert status == 3 and checkpoint_name(UPDATES) in err
    shutil.rmtree(folder / checkpoint_name(UPDATES))
    status, _, err = export(run)
    assert status == 3 and "the job ended before it" in err


def test_a_checkpoint_far_from_its_run_is_named_after_no_job(run: Path, export: Callable[..., Any]) -> None:
    moved = run.parent / "kept" / checkpoint_name(UPDATES)
    shutil.copytree(run / "checkpoints" / checkpoint_name(UPDATES), moved)
    assert export(moved)[1] == f"model-{moved.name}.safetensors\n"


def test_the_metrics_of_a_checkpoint_come_along(run: Path, export: Callable[..., Any]) -> None:
    from hogwild.storage import checkpoint

    tensors = safetensors.torch.load_file(run / "checkpoints" / "latest" / MODEL)
    meta = {"update": 9, "samples": 72, "metrics": {"loss": 0.5}}
    path = checkpoint.write(run / "checkpoints", checkpoint_name(9), {"model": tensors}, tensors, meta)
    with safetensors.safe_open(export(path)[1].strip(), "pt") as file:
        words = file.metadata()
    assert json.loads(words["hogwild.metrics"]) == {"loss": 0.5} and words["hogwild.samples"] == "72"


# ---- programs and vectors


class Branching(nn.Module):
    """Its way depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


@pytest.fixture
def rows() -> Path:
    """Five rows to predict."""
    np.savez("rows.npz", x=probe().numpy())
    return Path("rows.npz")


def test_a_program_of_torch_gives_the_models_outputs_for_any_number_of_rows(
    trained: tuple[Tied, Path], export: Callable[..., Any], rows: Path
) -> None:
    status, out, err = export(trained[1], "--format", "torch-export", "--example", rows)
    assert status == 0, err
    assert out == f"tied-{checkpoint_name(UPDATES)}.pt2\n"
    program = torch.export.load(out.strip()).module()
    for x in (probe(), torch.randn(9, 6), torch.randn(1, 6)):
        torch.testing.assert_close(program(x), trained[0](x))


def test_an_onnx_model_gives_the_models_outputs_for_any_number_of_rows(
    trained: tuple[Tied, Path], export: Callable[..., Any], rows: Path
) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'hogwild[onnx]'")
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'hogwild[onnx]'")
    from onnx.reference import ReferenceEvaluator

    status, out, err = export(trained[1], "--format", "onnx", "--example", rows)
    assert status == 0, err
    model = onnx.load(out.strip())
    onnx.checker.check_model(model, full_check=True)
    for x in (probe(), torch.randn(9, 6)):
        (found,) = ReferenceEvaluator(model).run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), trained[0](x).detach())


def test_without_its_packages_onnx_names_the_extra(
    trained: tuple[Tied, Path], export: Callable[..., Any], rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", ModuleType("onnx"))
    status, out, err = export(trained[1], "--format", "onnx", "--example", rows)
    assert (status, out) == (2, "") and "pip install 'hogwild[onnx]'" in err and not list(Path().glob("*.onnx"))


@pytest.mark.parametrize(
    ("count", "model", "code"),
    [(1, Tied, "export/no-example"), (5, Branching, "export/not-traceable")],
)
def test_what_cannot_be_traced_is_said(
    count: int, model: type[nn.Module], code: str, export: Callable[..., Any], tmp_path: Path
) -> None:
    made, x = model(), torch.rand(8, 6)  # a sum above 0, on which a branch depends
    rule = torch.optim.SGD(made.parameters(), lr=0.1)
    run = tmp_path / "other"
    hogwild.train(made, TensorDataset(x, x), nn.MSELoss(), rule, procs=0, batch_size=8, run_dir=run)
    np.savez("rows.npz", x=x[:count].numpy())
    status, out, err = export(run, "--format", "torch-export", "--example", "rows.npz")
    assert status != 0 and not out and code in err and "Traceback" not in err


def train(folder: Path, name: str, model: dict[str, Any], loss: str, data: dict[str, Any]) -> Path:
    """A run of a job file, trained in this process."""
    described = {
        "name": name, "model": model, "loss": {"class_path": loss}, "data": {"train": data, "batch_size": 64},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}},
        "train": {"procs": 0, "epochs": 1}, "log": {"tensorboard": False},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(described))
    assert main.run(["train", str(folder / f"{name}.yaml"), "--run-dir", str(folder / name)]) == 0
    return folder / name


def test_a_job_is_traced_with_its_training_data_and_recurrent_models_from_zero_state(
    tmp_path: Path, export: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question: " * 20)
    arguments = {"path": str(tmp_path / "text.txt"), "steps": 8}
    data = {"class_path": "hogwild.data.Characters", "init_args": arguments}
    model = {"class_path": "hogwild.models.CharRnn", "init_args": {"hidden": 8, "embedding": 4}}
    run = train(tmp_path, "letters", model, "torch.nn.CrossEntropyLoss", data)
    capsys.readouterr()
    status, out, err = export(run, "--format", "torch-export")
    assert status == 0, err
    x = hogwild.load(run).example().inputs[0][:3]
    torch.testing.assert_close(torch.export.load(out.strip()).module()(x), hogwild.load(run).model(x)[0])


@pytest.mark.parametrize(("ending", "buckets"), [("txt", 0), ("bin", 0), ("txt", 50)])
def test_vectors_of_words_are_loaded_again(
    ending: str, buckets: int, tmp_path: Path, export: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    (tmp_path / "text.txt").write_text("the king and the queen\nthe New\u00a0York and the 東\u3000京\n" * 200)
    data = {"class_path": "hogwild.data.Text", "init_args": {"path": str(tmp_path / "text.txt")}}
    model = {"class_path": "hogwild.models.SkipGram", "init_args": {"dim": 8, "sample": 0, "buckets": buckets}}
    run = train(tmp_path, "words", model, "hogwild.losses.NegativeSampling", data)
    capsys.readouterr()
    status, out, err = export(run, "--format", "word2vec", "--out", f"words.{ending}")
    assert status == 0, err
    found, wanted = WordVectors.load_word2vec(out.strip(), binary=ending == "bin"), hogwild.load(run).vectors
    assert found.names == wanted.names and np.array_equal(found.matrix, wanted.matrix)
    assert {"the", "New\u00a0York", "東\u3000京"} <= {*found.names}


class Places(Dataset):
    """Three places by number, and a number to learn."""

    vocabularies: ClassVar = {"words": ["Rome", "New York", "Los Angeles"]}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(index % 3), torch.tensor([float(index)])


class Twice(Places):
    vocabularies: ClassVar = {"words": ["Rome", "Oslo", "Rome"]}


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)

    def vectors(self, kind: str) -> Tensor:
        return self.table.weight


def test_vectors_that_cannot_be_exported_are_said_before_training(
    tmp_path: Path, export: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"class_path": f"{__name__}.Vectors"}
    run = train(tmp_path, "places", model, "torch.nn.MSELoss", {"class_path": f"{__name__}.Twice"})
    assert "note: 1 word such as 'Rome' cannot be written in word2vec's formats" in capsys.readouterr().err
    status, out, err = export(run, "--format", "word2vec")
    assert (status, out) == (2, "") and "'Rome' occurs twice" in err and not list(Path().glob("*.txt"))
    run = train(tmp_path, "others", model, "torch.nn.MSELoss", {"class_path": f"{__name__}.Places"})
    assert "word2vec" not in capsys.readouterr().err
    status, out, err = export(run, "--format", "word2vec")
    assert status == 0 and "note: 2 of 3 names, such as 'New York', are percent-encoded" in err
    assert "3 words, each with 1 number" in err
    assert [line.split()[0] for line in Path(out.strip()).read_text().splitlines()[1:]] == [
        *("Rome", "New%20York", "Los%20Angeles")
    ]
