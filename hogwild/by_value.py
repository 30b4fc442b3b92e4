"""Pickles for other processes, with the code of classes and functions that they cannot import: those of a script or a
notebook. Cloudpickle, with two things more, for the traceback of an exception there: code keeps the name of its file
(cloudpickle 3.1.1 and later write `<dynamic-code>`), and the source that only this process has travels along."""

import io
import linecache
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from hogwild.user_code import cell_of


def dumps(thing: Any) -> bytes:
    """Return the pickle of an object; `pickle.loads` reads it. Raises whatever pickling it raises."""
    file = io.BytesIO()
    Pickler(file).dump(thing)
    return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    make, arguments, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    entry = linecache.cache.get(code.co_filename, ())
    # A cell of a notebook has no file: IPython keeps its lines, and no time of a change.
    lines = entry[2] if len(entry) > 2 and entry[1] is None else []
    return _named_code, (cell_of(code.co_filename) or code.co_filename, lines, make, arguments)


def _named_code(file: str, lines: list[str], make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    if lines:
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    return make(*arguments).replace(co_filename=file)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes one pickle. `torch.save` takes this module as its `pickle_module`, too."""

    dispatch_table: ClassVar = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)
