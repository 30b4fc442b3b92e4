"""Bad inputs, a part of the table: exceptions of user code, shown with the user's line, whatever lies below it."""

from pathlib import Path

from tests.bad_input import guilty
from tests.bad_input.row import Row, items, job, model

_LINES = Path(guilty.__file__ or "").read_text().splitlines()


def at(text: str) -> str:
    """`guilty.py:LINE)` of the only line that holds `text`: the end of a message."""
    (line,) = [number for number, each in enumerate(_LINES, 1) if text in each]
    return f"/guilty.py:{line})"


def data(name: str, *changes: str) -> tuple[str, ...]:
    how = "" if name == "StreamRaises" else ", init_args: {how: raises}"
    return job(f"data.train={{class_path: guilty.{name}{how}}}", *changes)


FRAMES: dict[str, Row] = {
    "a model that raises, with its line": Row(
        model("RaisesInTheConstructor"), 1, "config/constructor-raised", ("no weights today", at("no weights today"))
    ),
    "a constructor that raises inside torch": Row(
        model("LoadsNothing"), 1, "config/constructor-raised", ("Missing key(s)", at("the line of missing keys"))
    ),
    "a forward that raises, with its line": Row(
        model("RaisesInForward"), 1, "model/forward-failed", ("KeyError: 'no such layer'", at("no such layer"))
    ),
    "a forward that raises inside torch": Row(
        model("RaisesBelowTorch"), 1, "model/forward-failed", ("shapes cannot be multiplied", at("the line of a shape"))
    ),
    "a loss that raises inside torch": Row(
        job("loss.class_path=guilty.raises_in_a_loss"),
        1,
        "model/forward-failed",
        ("raises_in_a_loss cannot compute a loss", at("the line of a loss")),
    ),
    "a transform that raises": Row(
        job("data.transform={class_path: guilty.raises_in_a_transform}"),
        1,
        "data/transform",
        ("data.transform raised on the first samples IndexError", at("the line of a transform")),
    ),
    "a metric that raises": Row(
        job("data.val={fraction: 0.5}", "evaluate.metrics=[guilty.raises_in_a_metric]"),
        1,
        "model/metric",
        ("raises_in_a_metric: LookupError: nothing to compare", at("nothing to compare")),
    ),
    "a collate_fn that raises": Row(
        job("data.feed=stream", "data.collate={class_path: guilty.raises_in_collate}"),
        1,
        "data/item-raised",
        ("data.collate on the first records raised", at("the line of a collate")),
    ),
    "an optimizer that raises": Row(
        job("optimizer={class_path: guilty.RaisesInStep, init_args: {lr: 0.1}}"),
        1,
        "optimizer/trial-step",
        ("RaisesInStep failed in a trial step", "RuntimeError: not today", at("not today")),
    ),
    "an item that raises, with its line": Row(
        items("raises"), 1, "data/item-raised", ("item 5 raised OSError: disk on fire", at("disk on fire"))
    ),
    "an item that exits, with its line": Row(
        items("exits"), 1, "data/item-raised", ("item 5 raised SystemExit: 4", at("sys.exit(4)"))
    ),
    "an item that raises inside a library": Row(
        data("BelowALibrary"), 1, "data/item-raised", ("item 5 raised JSONDecodeError", at("the line of a library"))
    ),
    "an item that raises from another error": Row(
        data("WithACause"), 1, "data/item-raised", ("item 5 raised ValueError: no picture", at("no picture"))
    ),
    "rows that raise": Row(
        data("RowsRaise"), 1, "data/item-raised", ("of RowsRaise raised EOFError", at("the file ended"))
    ),
    "a stream that raises": Row(
        data("StreamRaises"),
        1,
        "data/item-raised",
        ("the first records of StreamRaises raised ConnectionError: the server left", at("the server left")),
    ),
    "a length that raises, with its line": Row(
        job("data.train={class_path: guilty.LengthRaises}"), 1, "data/no-length", ("LengthRaises", at("nobody counted"))
    ),
    "a lock, with the rule": Row(
        model("HoldsALock"), 1, "model/not-picklable", ("in its attribute lock", "cannot get locks, open files")
    ),
    "a module that raises, with its line": Row(
        job("model.class_path=divides_by_zero.Net"),
        2,
        "config/import-failed",
        ("importing divides_by_zero raised ZeroDivisionError", "/divides_by_zero.py:1)"),
    ),
    "a module that is not Python, with its line": Row(
        job("model.class_path=not_python.Net"),
        2,
        "config/import-failed",
        ("importing not_python raised SyntaxError: invalid syntax (", "/not_python.py:1)"),
    ),
    "a module that lacks a library, with its line": Row(
        job("model.class_path=needs_a_library.Net"),
        2,
        "config/import-failed",
        ("raised ModuleNotFoundError: No module named 'a_library_nobody_has' (", "/needs_a_library.py:1)"),
    ),
    "a class of a name that only an import gives": Row(
        job("loss.class_path=nn.CrossEntropyLoss"),
        2,
        "config/no-such-module",
        ("there is no module 'nn'", "did you mean 'torch.nn.CrossEntropyLoss'?"),
    ),
    "an optimizer of a name that only an import gives": Row(
        job("optimizer.class_path=optim.Adam"),
        2,
        "config/no-such-module",
        ("there is no module 'optim'", "did you mean 'torch.optim.Adam'?"),
    ),
}
