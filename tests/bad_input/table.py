"""The table of bad inputs that are tried as commands: crime -> what is given, exit status, code, words. Rules of job
files are in `jobs.py`. An exception is shown with the user's line, whatever lies below it. Data files lie in `damaged`
in the user's folder, one for each code: what else can be wrong with a file of each kind is tested at its reader, in
tests/data."""

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.bad_input import guilty


@dataclass(frozen=True, slots=True)
class Row:
    """A bad input, and its answer. `code` is `config/invalid` where the lines have several; `words` name
    the place and the rule."""

    command: tuple[str, ...]
    status: int
    code: str
    words: tuple[str, ...]


def job(*changes: str) -> tuple[str, ...]:
    """The good job of the user's folder, with something changed."""
    return ("train", "job.yaml", *changes)


def check(*changes: str) -> tuple[str, ...]:
    """The same without torch: for what is wrong with the file itself."""
    return ("check", "job.yaml", *changes)


def model(name: str) -> tuple[str, ...]:
    return job(f"model.class_path=guilty.{name}")


def items(how: str) -> tuple[str, ...]:
    return job(f"data.train={{class_path: guilty.Items, init_args: {{how: {how}}}}}")


def reads(class_name: str, **arguments: str) -> tuple[str, ...]:
    """A dry run of the good job on files of the folder `damaged`, by a data class of ours."""
    given = ", ".join(f"{name}: {value}" for name, value in arguments.items())
    change = f"data.train={{class_path: hogwild.data.{class_name}, init_args: {{{given}}}}}"
    return ("train", "job.yaml", change, "--dry-run")


TEXTS = {  # name in the user's folder -> text
    "job.yaml": (
        "model: {class_path: guilty.Net}\n"
        "data: {train: {class_path: guilty.blobs}, batch_size: 8}\n"
        "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}\n"
        "train: {procs: 1}\n"
    ),
    "four.yaml": (
        "model: {class_pth: guilty.Net}\n"
        "data: {train: {class_path: guilty.blobs}, batch_size: 0}\n"
        "train: {epochs: many}\n"
        "sede: 1\n"
    ),
    "digits.yaml": "",
}

COMMANDS: dict[str, Row] = {
    "a misspelt command": Row(("trian",), 2, "usage/unknown-command",
        ("unknown command 'trian'", "did you mean 'train'?")),
    "a field as option": Row(("train", "job.yaml", "--resume", "run", "--epochs", "3"), 2, "usage/field-as-option",
        ("--epochs is not an option; write train.epochs=3",
        "Try: hogwild train job.yaml --resume run train.epochs=3\n")),
    "two fields as options": Row(check("--workers", "2", "--seed=3"), 2, "usage/field-as-option",
        ("write train.procs=2; --seed is not an option", "Try: hogwild check job.yaml train.procs=2 seed=3\n")),
    "a field as option without its value": Row(check("--pin", "seed=3"), 2, "usage/field-as-option",
        ("--pin is not an option; write train.pin=VALUE", "Try: hogwild check job.yaml train.pin=VALUE seed=3\n")),
    "a field as option with blanks": Row(check("--model.init_args.sizes", "[1, 2]"), 2, "usage/field-as-option",
        ("write model.init_args.sizes='[1, 2]'", "Try: hogwild check job.yaml 'model.init_args.sizes=[1, 2]'\n")),
    "a field of two sections as option": Row(check("--every-s", "1"), 2, "usage/field-as-option",
        ("write checkpoint.every_s=1 or log.every_s=1", "Try: hogwild check job.yaml checkpoint.every_s=1\n")),
    "an option nobody knows": Row(("check", "job.yaml", "--depe"), 2, "usage/arguments",
        ("No such option: --depe", "--deep", "hogwild check --help")),
    "an option without its value": Row(("check", "--data-dir"), 2, "usage/arguments", ("--data-dir", "an argument")),
    "an option that is no number": Row(("chaos", "job.yaml", "--kills", "many"), 2, "usage/arguments",
        ("--kills", "integer")),
    "a number out of range": Row(("chaos", "job.yaml", "--kills", "0"), 2, "usage/arguments",
        ("Invalid value for '--kills'",)),
    "a word too many": Row(("doctor", "now"), 2, "usage/arguments", ("now", "Try: hogwild doctor --help")),
    "a word too few": Row(("report",), 2, "usage/arguments", ("RUN", "Try: hogwild report --help")),
    "two job files": Row(("check", "job.yaml", "four.yaml"), 2, "usage/contradiction",
        ("only one job file is allowed, got job.yaml and four.yaml", "key=value")),
    "four errors in a job file": Row(("train", "four.yaml"), 2, "config/invalid",
        ("four.yaml:1:", "did you mean 'class_path'?", "batch_size", "epochs", "'seed'?", "nothing was started")),
    "a wrong field on the command line": Row(check("train.epochs=0"), 2, "config/out-of-range",
        ("command line: train.epochs: must be >= 1, got 0",)),
    "procs that are no number": Row(job("--procs", "many"), 2, "config/wrong-type",
        ("command line: train.procs", "auto or a whole number", "'many'")),
    "no such job file": Row(("train", "nowhere.yaml"), 3, "run/job-file-not-found",
        ("nowhere.yaml", "No such file", "looked for /")),
    "a folder as job file": Row(("train", "damaged/"), 3, "run/job-file-not-found", ("damaged",)),
    "too few slots for an exchange": Row(job("data.feed=stream", "data.slots=9", "train.exchange=delta",
        "train.sync_every=4", "data.loaders=2"), 2, "config/contradiction",
        ("data.slots: must be >= 12 for 1 workers, 2 loaders and exchanges of 4 batches, got 9",)),
    "a data folder that is not there": Row(("plan", "job.yaml", "--data-dir", "nowhere"), 3, "data/folder-not-found",
        ("--data-dir nowhere", "no such folder")),
    "a list of what there is not": Row(("list", "mdels"), 2, "usage/bad-value",
        ("cannot list 'mdels'", "choose models, data, configs, losses, metrics, tasks")),
    "arguments of what has none": Row(("list", "tasks", "--arguments"), 2, "usage/bad-value",
        ("choose models, data, losses, metrics",)),
    "a window that is none": Row(job("--profile", "soon"), 2, "usage/bad-value", ("--profile soon: must be A:B",)),
    "a window backwards": Row(job("--profile", "5:2"), 2, "usage/bad-value", ("--profile 5:2", "0 <= A < B")),
    "a resume and a job file": Row(job("--resume", "run"), 2, "usage/contradiction",
        ("--resume takes the job and the folder from the run", "job.yaml")),
    "a resume and a run directory": Row(("train", "--resume", "run", "--run-dir", "other"), 2, "usage/contradiction",
        ("--run-dir", "not allowed")),
    "a run that is not there": Row(("train", "--resume", "nowhere"), 3, "run/not-found", ("nowhere", "no such folder")),
    "a run that is none": Row(("train", "--resume", "damaged"), 3, "run/not-a-run", ("not a run", "resolved.yaml")),
    "faults without time between": Row(("chaos", "job.yaml", "--every", "0"), 2, "usage/bad-value",
        ("--every 0: must be > 0",)),
    "faults at no time": Row(("chaos", "job.yaml", "--every", "nan"), 2, "usage/bad-value",
        ("--every nan: must be > 0",)),
    "a fault nobody knows": Row(("chaos", "job.yaml", "--faults", "kill,stopp"), 2, "usage/bad-value",
        ("--faults: unknown kind 'stopp'; did you mean 'stop'? (kinds: kill, ",)),
    "chaos without workers": Row(("chaos", "job.yaml", "train.procs=0"), 2, "usage/bad-value",
        ("train.procs: 0", "no worker to kill")),
    "faults of loaders that may not be there": Row(("chaos", "job.yaml", "--faults", "loader-kill"), 2,
        "usage/bad-value", ("loader-kill hits loaders, which read streamed data, but with data.feed: auto",)),
    "faults of loaders that are not there": Row(("chaos", "job.yaml", "--faults", "kill,loader-stop",
        "data.feed=resident"), 2, "usage/bad-value", ("but this job has no loaders (data.feed: resident)",)),
    "a report of nothing": Row(("report", "nowhere"), 3, "run/not-found", ("run nowhere: there is no such folder",)),
    "a report of what is no run": Row(("report", "damaged"), 3, "run/not-a-run",
        ("run damaged: not a run", "resolved.yaml")),
    "an evaluation of nothing": Row(("eval", "nowhere"), 3, "run/not-found", ("nowhere: there is no such folder",)),
    "an evaluation of which": Row(("eval", "damaged", "--which", "worst"), 2, "usage/bad-value",
        ("--which worst: must be best or latest",)),
    "an export of what is no run": Row(("export", "damaged"), 3, "export/no-checkpoint",
        ("neither a run (no folder checkpoints/) nor a checkpoint",)),
    "an unknown format": Row(("export", "damaged", "--format", "hdf5"), 2, "usage/bad-value",
        ("--format hdf5: must be safetensors or state_dict or torch-export or onnx or parquet or npz or word2vec or",)),
    "a task nobody wrote": Row(("init", "minst"), 2, "usage/unknown-task",
        ("unknown task 'minst'", "did you mean 'mnist'?")),
    "a job file that is there": Row(("init", "digits"), 2, "usage/file-exists",
        ("digits.yaml already exists", "replace it with --force")),
    "a job file in no folder": Row(("init", "digits", "--out", "no/where.yaml"), 3, "usage/no-folder",
        ("there is no folder", "create it first")),
    "a job file in a file": Row(("init", "digits", "--out", "/dev/null/job.yaml"), 1, "run/output-not-written",
        ("cannot be written",)),
}  # fmt: skip


_LINES = Path(guilty.__file__ or "").read_text().splitlines()


def at(text: str) -> str:
    """Return `guilty.py:LINE)` of the only line that holds `text`: the end of a message."""
    (line,) = [number for number, each in enumerate(_LINES, 1) if text in each]
    return f"(guilty.py:{line})"


def data(name: str, *changes: str) -> tuple[str, ...]:
    how = "" if name == "StreamRaises" else ", init_args: {how: raises}"
    return job(f"data.train={{class_path: guilty.{name}{how}}}", *changes)


VAST = ("model.class_path=guilty.TakesWholeNumbers", "loss.class_path=guilty.distance_to_whole_numbers")

OBJECTS: dict[str, Row] = {
    # class paths
    "no such module": Row(job("model.class_path=gilty.Net"), 2, "config/no-such-module",
        ("there is no module 'gilty'", "'guilty'?")),
    "no such class": Row(model("Nett"), 2, "config/no-such-name",
        ("guilty has no 'Nett'", "did you mean 'Net'?", "guilty.py")),
    "not a class": Row(model("NOT_A_CLASS"), 2, "config/not-callable",
        ("must name a class or a function, but it is a int",)),
    "raises when imported": Row(job("model.class_path=divides_by_zero.Net"), 2, "config/import-failed",
        ("importing divides_by_zero raised ZeroDivisionError", "(divides_by_zero.py:1)")),
    "exits when imported": Row(job("model.class_path=exits_when_imported.Net"), 2, "config/import-failed",
        ("raised SystemExit: 5",)),
    "needs a library": Row(job("model.class_path=needs_a_library.Net"), 2, "config/import-failed",
        ("raised ModuleNotFoundError: No module named 'a_library_nobody_has' (", "(needs_a_library.py:1)")),
    "not Python": Row(job("model.class_path=not_python.Net"), 2, "config/import-failed",
        ("importing not_python raised SyntaxError: invalid syntax (", "(not_python.py:1)")),
    "an unknown argument": Row(job("model.init_args.nrom=true"), 2, "config/unknown-argument",
        ("init_args.nrom", "did you mean 'norm'?")),
    # the model
    "raises in its constructor": Row(model("RaisesInTheConstructor"), 1, "config/constructor-raised",
        ("ValueError: no weights today", at("no weights today"))),
    "exits in its constructor": Row(model("ExitsInTheConstructor"), 1, "config/constructor-raised",
        ("raised SystemExit: 7", "guilty.py:")),
    "not a module": Row(model("blobs"), 1, "model/not-a-module", ("returned a TensorDataset, not an nn.Module",)),
    "on meta": Row(model("OnMeta"), 1, "model/device", ("first.weight", "meta")),
    "lazy": Row(model("LazyNotYetShaped"), 1, "model/lazy", ("spare", "lazy")),
    "without parameters": Row(model("WithoutParameters"), 1, "model/no-parameters", ("no parameter to train",)),
    "frozen by the job": Row(job("model.freeze=['*']"), 1, "model/no-parameters",
        ("no parameter to train after model.freeze",)),
    "scripted with Python in it": Row(model("scripted_with_python"), 1, "model/scripted",
        ("TorchScript cannot save it", "nn.Module")),
    "made anew when it is read": Row(model("MadeAnew"), 1, "model/rebuilt", ("first.weight becomes another object",)),
    "keeps a view": Row(model("KeepsAView"), 1, "model/view", ("(KeepsAView)", "attribute table", "first.weight")),
    "hides parameters": Row(model("HidesParameters"), 1, "model/own-parameters", ("HidesParameters", "parameters()")),
    "overlapping": Row(model("overlapping"), 1, "model/overlapping", ("first.weight", "first.bias", "same memory")),
    "holds a lock": Row(model("HoldsALock"), 1, "model/not-picklable",
        ("in its attribute lock", "cannot get locks, open files")),
    "returns a tuple": Row(model("ReturnsATuple"), 1, "model/forward-failed",
        ("must be Tensor, not tuple", "(3, 4) float32")),
    "raises in forward": Row(model("RaisesInForward"), 1, "model/forward-failed",
        ("RaisesInForward", "KeyError: 'no such layer'", at("no such layer"))),
    # the loss and the optimizer
    "a loss per sample": Row(job("loss.class_path=guilty.a_loss_per_sample"), 1, "model/bad-loss",
        ("(3,) float32", "one floating-point")),
    "no loss": Row(job("loss.class_path=guilty.no_loss"), 1, "model/bad-loss", ("returned a NoneType",)),
    "a plain float": Row(job("loss.class_path=guilty.a_plain_float"), 1, "model/bad-loss", ("returned a float",)),
    "a group of nobody": Row(job("optimizer.groups=[{params: [frist.*]}]"), 1, "optimizer/no-match",
        ("optimizer.groups[0].params[0]: 'frist.*' matches no trained parameter", "similar names: first.")),
    "a group that is left nothing": Row(job("optimizer.groups=[{params: ['*']}, {params: [first.*]}]"), 1,
        "optimizer/empty-group", ("optimizer.groups[1]: optimizer.groups[0] matched all its parameters",)),
    "takes no parameters": Row(job("optimizer={class_path: guilty.nothing}"), 1, "config/constructor-raised",
        ("guilty.nothing() raised TypeError",)),
    "makes no optimizer": Row(job("optimizer={class_path: guilty.of}"), 1, "optimizer/not-one",
        ("a list, not a torch.optim.Optimizer",)),
    "refuses these shapes": Row(job("optimizer={class_path: torch.optim.Muon}"), 1, "config/constructor-raised",
        ("Muon", "2D")),
    # the data
    "empty": Row(job("data.train.init_args.samples=0"), 1, "data/empty", ("data.train: the data set is empty",)),
    "a label out of range": Row(job("data.train.init_args.wrong_label_at=17"), 1, "data/labels",
        ("data.train: the label of sample 17 is 7", "[0, 1]")),
    "a label out of range in data.val": Row(job("data.val={class_path: guilty.blobs, init_args: {wrong_label_at: 3}}"),
        1, "data/labels", ("data.val: the label of sample 3 is 7",)),
    "NaN": Row(job("data.train.init_args.nan_at=11"), 1, "data/not-finite",
        ("data.train: input 0 of sample 11 is NaN",)),
    "data.val of another type": Row(job("data.val={class_path: guilty.blobs, init_args: {dtype: float64}}"), 1,
        "data/val-unlike-train", ("data.val has samples of (4,) float64", "data.train of (4,) float32")),
    "another type than the model's": Row(job("data.train.init_args.dtype=float64"), 1, "model/forward-failed",
        ("same dtype", "(3, 4) float64")),
    "one sample for BatchNorm": Row(job("data.train.init_args.samples=1", "model.init_args.norm=true"), 1,
        "data/batch-norm", ("BatchNorm cannot train on a batch of one",)),
    "all dropped": Row(job("data.batch_size=100", "data.drop_last=true"), 1, "data/no-batch",
        ("fewer than data.batch_size 100",)),
    "nothing held back": Row(job("data.val={fraction: 0.001}"), 1, "data/split",
        ("data.val.fraction", "leaves none to evaluate", "data.val=null")),
    "an item that raises": Row(items("raises"), 1, "data/item-raised",
        ("data.train: reading item 5 raised OSError: disk on fire", at("disk on fire"))),
    "an item that exits": Row(items("exits"), 1, "data/item-raised",
        ("data.train: reading item 5 raised SystemExit: 4", at("sys.exit(4)"))),
    "an item that is longer": Row(items("longer"), 1, "data/unlike-items",
        ("item 5, field 0 has shape (5,), item 0 has (4,)",)),
    "an item of another type": Row(items("wider"), 1, "data/unlike-items", ("item 5, field 0 is torch.float64",)),
    "an item without a target": Row(items("alone"), 1, "data/bad-item", ("item 5 is a tuple of 1",)),
    "an item with a word": Row(items("a word"), 1, "data/bad-item", ("item 5 cannot be converted to tensors",)),
    "an item that is a map": Row(items("a map"), 1, "data/bad-item", ("item 5 is a dict",)),
    "an item of three": Row(items("three"), 1, "data/unlike-items", ("item 5 has 3 fields, item 0 has 2",)),
    "a stream": Row(job("data.train={class_path: guilty.Stream}", "data.feed=resident"), 1, "data/stream",
        ("IterableDataset",)),
    "no length": Row(job("data.train={class_path: guilty.WithoutLength}"), 1, "data/no-length", ("has no len()",)),
    "a length that raises": Row(job("data.train={class_path: guilty.LengthRaises}"), 1, "data/no-length",
        ("LengthRaises", at("nobody counted"))),
    "items larger than memory": Row(job("data.train={class_path: guilty.LargerThanAnyMemory}", "data.feed=resident"),
        1, "run/memory-short", ("1,000,000,000,000,000 items", "are free")),
    "tensors larger than memory": Row(job("data.train={class_path: guilty.vast}", *VAST), 1, "run/memory-short",
        ("the job needs", "TiB of memory", "are free")),
    "an argument left out": Row(job("model.class_path=guilty.NeedsASize"), 2, "config/missing-argument",
        ("init_args.size: is required",)),
    # exceptions below libraries, with the user's line
    "a constructor that raises inside torch": Row(model("LoadsNothing"), 1, "config/constructor-raised",
        ("Missing key(s)", at("the line of missing keys"))),
    "a forward that raises inside torch": Row(model("RaisesBelowTorch"), 1, "model/forward-failed",
        ("shapes cannot be multiplied", at("the line of a shape"))),
    "a loss that raises inside torch": Row(job("loss.class_path=guilty.raises_in_a_loss"), 1, "model/forward-failed",
        ("raises_in_a_loss cannot compute a loss", at("the line of a loss"))),
    "a transform that raises": Row(job("data.transform={class_path: guilty.raises_in_a_transform}"), 1,
        "data/transform", ("data.transform raised on the first samples IndexError", at("the line of a transform"))),
    "a metric that raises": Row(job("data.val={fraction: 0.5}", "evaluate.metrics=[guilty.raises_in_a_metric]"), 1,
        "model/metric", ("raises_in_a_metric: LookupError: nothing to compare", at("nothing to compare"))),
    "a collate_fn that raises": Row(job("data.feed=stream", "data.collate={class_path: guilty.raises_in_collate}"), 1,
        "data/item-raised", ("data.collate on the first records raised", at("the line of a collate"))),
    "an optimizer that raises": Row(job("optimizer={class_path: guilty.RaisesInStep, init_args: {lr: 0.1}}"), 1,
        "optimizer/trial-step", ("RaisesInStep failed in a trial step", "RuntimeError: not today", at("not today"))),
    "an item that raises inside a library": Row(data("BelowALibrary"), 1, "data/item-raised",
        ("item 5 raised JSONDecodeError", at("the line of a library"))),
    "an item that raises from another error": Row(data("WithACause"), 1, "data/item-raised",
        ("item 5 raised ValueError: no picture", at("no picture"))),
    "rows that raise": Row(data("RowsRaise"), 1, "data/item-raised",
        ("of RowsRaise raised EOFError", at("the file ended"))),
    "a stream that raises": Row(data("StreamRaises"), 1, "data/item-raised",
        ("the first records of StreamRaises raised ConnectionError: the server left", at("the server left"))),
    "a class of a name that only an import gives": Row(job("loss.class_path=nn.CrossEntropyLoss"), 2,
        "config/no-such-module", ("there is no module 'nn'", "did you mean 'torch.nn.CrossEntropyLoss'?")),
}  # fmt: skip


IMAGES, CLASSES = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
MNIST = "data.train={class_path: hogwild.data.Mnist}"


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def idx(magic: int, *shape: int, values: bytes) -> bytes:
    return struct.pack(f">{1 + len(shape)}i", magic, *shape) + values


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "PNG")
    return stream.getvalue()


X, Y = np.zeros((3, 4), np.float32), np.zeros(3, np.int64)

# Below `damaged`.
DAMAGED: dict[str, bytes] = {
    f"mnist/{IMAGES}": idx(2051, 60_000, 28, 28, values=bytes(1000)),
    f"mnist/{CLASSES}": idx(2049, 60_000, values=bytes(60_000)),
    f"swapped/{IMAGES}": idx(2049, 2, values=bytes(2)),
    f"swapped/{CLASSES}": idx(2049, 2, values=bytes(2)),
    f"eleven/{IMAGES}": idx(2051, 2, 28, 28, values=bytes(2 * 784)),
    f"eleven/{CLASSES}": idx(2049, 2, values=b"\x00\x0b"),
    "rows.npz": npz(x=X, y=Y[:2]),
    "no_rows.npz": npz(x=X[:0], y=Y[:0]),
    "objects.npz": npz(x=X, y=np.array([None, {}, "a"], dtype=object)),
    "good.csv": b"a,b,price\n1,2,3\n4,5,6\n",
    "words.csv": b"a,b,price\n1,2,3\n4,five,6\n",
    "gaps.csv": b"a,b,price\n1,2,3\n4,,6\n",
    "short.csv": b"a,b,price\n1,2,3\n4,5\n",
    "semicolons.csv": b"a;b;price\n1;2;3\n",
    "quote.csv": b'a,b,price\n1,2,3\n4,"5,6\n',
    "latin.csv": "größe,b,price\n1,2,3\n".encode("latin-1"),
    "old.csv": b"a,b,price\r1,2,3\r",
    "pictures/cat/one.png": picture(),
    "pictures/dog/torn.png": picture()[:40],
    "loose/one.png": picture(),
    "pair.svm": b"1 1:1\n-1 2\n",
    "real.svm": b"1 1:1\n0.5 2:1\n",
    "torn.svm.gz": b"\x1f\x8b\x08rest",
    "twice.dat": b"1::2::3::0\n5::5::5::0\n1::2::4::0\n",
    "columns.csv": b"who,when,what,how\n1,2,3,4\n",
}


def table(file: str, **arguments: str) -> tuple[str, ...]:
    return reads("Csv", **{"path": f"damaged/{file}", "target": "price", **arguments})


def mnist(folder: str) -> tuple[str, ...]:
    return reads("Mnist", split="train", root=f"damaged/{folder}")


def reader(class_name: str, file: str, **arguments: str) -> tuple[str, ...]:
    return reads(class_name, path=f"damaged/{file}", **arguments)


DATA_FILES: dict[str, Row] = {
    "a truncated file": Row(job(MNIST, "--data-dir", "damaged"), 1, "data/truncated-file",
        ("train-images-idx3-ubyte: truncated", "47,040,000", "holds 1,000")),
    "missing data": Row(job(MNIST, "--data-dir", "."), 3, "data/not-found",
        ("train-images-idx3-ubyte", "Looked in", "published by", "HOGWILD_DATA")),
    "labels for images": Row(mnist("swapped"), 1, "data/wrong-format", (IMAGES, "wrong magic number")),
    "an eleventh digit": Row(mnist("eleven"), 1, "data/bad-value", (CLASSES, "label 11 of sample 1", "must be < 10")),
    "an unknown split": Row(reads("Mnist", split="tran", root="damaged"), 2, "config/bad-argument",
        ("split must be one of", "'tran'")),
    "fewer targets": Row(reader("Npz", "rows.npz"), 1, "data/fields",
        ("rows.npz: the arrays must have the same number of rows",)),
    "no rows": Row(reader("Npz", "no_rows.npz"), 1, "data/empty", ("no_rows.npz: contains no samples",)),
    "pickled objects": Row(reader("Npz", "objects.npz"), 1, "data/wrong-arrays",
        ("array 'y' holds Python objects", "never loaded")),
    "a word in a column of numbers": Row(table("words.csv"), 1, "data/csv-value", ("words.csv: line 3", "'b'", "five")),
    "a gap": Row(table("gaps.csv"), 1, "data/csv-missing", ("gaps.csv: line 3", "'b'", "missing")),
    "a row too short": Row(table("short.csv"), 1, "data/csv-ragged", ("short.csv: line 3",)),
    "another delimiter": Row(table("semicolons.csv"), 1, "data/csv-delimiter",
        ("semicolons.csv: line 1", "is it ';'?")),
    "a target that is no column": Row(table("good.csv", target="prize"), 2, "data/csv-columns", ("prize", "price")),
    "a quote left open": Row(table("quote.csv"), 1, "data/csv-quotes", ("quote.csv: line 3",)),
    "a table in Latin-1": Row(table("latin.csv"), 1, "data/csv-encoding",
        ("latin.csv: line 1", "is not utf-8 text", "latin-1")),
    "lines of an old Macintosh": Row(table("old.csv"), 1, "data/csv-line-ends", ("old.csv: line 1", "carriage return")),
    "a torn picture": Row(reader("ImageFolder", "pictures", size="4"), 1, "data/broken-image",
        ("torn.png: cannot be read as a picture",)),
    "pictures without classes": Row(reader("ImageFolder", "loose", size="4"), 1, "data/image-classes",
        ("it has no class folders",)),
    "an index without a value": Row(reader("LibSvm", "pair.svm"), 1, "data/bad-line",
        ("pair.svm: line 2", "pairs index:value", "'2'", "data.on_bad_line: skip")),
    "half a class": Row(reader("LibSvm", "real.svm", labels="classes"), 1, "data/bad-line",
        ("real.svm: line 2", "whole numbers", "not 0.5")),
    "rows cut off in gzip": Row(reader("LibSvm", "torn.svm.gz"), 1, "data/damaged-file",
        ("torn.svm.gz", "damaged or truncated gzip")),
    "a film rated twice": Row(reader("Ratings", "twice.dat"), 1, "data/duplicate-rating",
        ("twice.dat: line 1 and", "twice.dat: line 3", "user 1 rated item 2 twice", "duplicates: last")),
    "columns nobody knows": Row(reader("Ratings", "columns.csv"), 1, "data/rating-columns",
        ("columns.csv", "who, when, what, how", "columns=")),
}  # fmt: skip


TABLE: dict[str, Row] = COMMANDS | OBJECTS | DATA_FILES
assert len(TABLE) == len(COMMANDS) + len(OBJECTS) + len(DATA_FILES), "a crime stands in two parts"


def write_files(folder: Path) -> None:
    """Write the files that the commands of the table name."""
    damaged = {f"damaged/{name}": content for name, content in DAMAGED.items()}
    texts = {name: text.encode() for name, text in TEXTS.items()}
    for name, content in {**texts, **damaged}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
