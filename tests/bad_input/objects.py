"""Bad inputs, a part of the table: class paths, and what the user's own code makes or raises (`guilty.py`). An
exception is shown with the user's line, whatever lies below it."""

from pathlib import Path

from tests.bad_input import guilty
from tests.bad_input.row import Row, items, job, model

_LINES = Path(guilty.__file__ or "").read_text().splitlines()


def at(text: str) -> str:
    """Return `guilty.py:LINE)` of the only line that holds `text`: the end of a message."""
    (line,) = [number for number, each in enumerate(_LINES, 1) if text in each]
    return f"/guilty.py:{line})"


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
        ("importing divides_by_zero raised ZeroDivisionError", "/divides_by_zero.py:1)")),
    "exits when imported": Row(job("model.class_path=exits_when_imported.Net"), 2, "config/import-failed",
        ("raised SystemExit: 5",)),
    "needs a library": Row(job("model.class_path=needs_a_library.Net"), 2, "config/import-failed",
        ("raised ModuleNotFoundError: No module named 'a_library_nobody_has' (", "/needs_a_library.py:1)")),
    "not Python": Row(job("model.class_path=not_python.Net"), 2, "config/import-failed",
        ("importing not_python raised SyntaxError: invalid syntax (", "/not_python.py:1)")),
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
    "nothing held back": Row(job("data.val={fraction: 0.001}"), 1, "data/split", ("data.val.fraction", "leaves 0")),
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
