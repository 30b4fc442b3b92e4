"""Pickles for other processes, with the code of classes and functions that they cannot import: those of a script or a
notebook. Cloudpickle, with two things more, for the traceback of an exception there: code keeps the name of its file
(cloudpickle 3.1.1 and later write `<dynamic-code>`), and the source that only this process has travels along."""

import io
import linecache
import sys
from collections import ChainMap
from collections.abc import Callable
from pickle import PickleBuffer
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from hogwild.user_code import cell_of


def dumps(thing: Any) -> bytes:
    """Return the pickle of an object; `pickle.loads` reads it. Raises whatever pickling it raises."""
    file = io.BytesIO()
    _WithTensors(file).dump(thing)
    return file.getvalue()


def dumps_apart(thing: Any) -> tuple[bytes, list[PickleBuffer]]:
    """Return the pickle without the numbers of tensors and arrays, and these: `pickle.loads(content, buffers=…)` makes
    views of what it is given. Nothing large is copied."""
    file, buffers = io.BytesIO(), list[PickleBuffer]()
    _WithTensors(file, buffer_callback=buffers.append).dump(thing)
    return file.getvalue(), buffers


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


class _WithTensors(Pickler):
    """Writes plain tensors as their storage's bytes: torch pickles each by a `torch.save` of its own, 150 us for a
    sentence, and a storage once for each of its views."""

    def __init__(self, file: io.BytesIO, **options: Any) -> None:
        super().__init__(file, **options)
        self._torch, self._storages = sys.modules.get("torch"), dict[tuple[int, int], _Storage]()

    def reducer_override(self, thing: Any) -> Any:
        torch = self._torch
        if torch is None or type(thing) is not torch.Tensor or not _is_plain(thing, torch):
            return super().reducer_override(thing)
        storage = thing.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if (kept := self._storages.get(key)) is None:
            kept = self._storages[key] = _Storage(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        return _tensor, (kept, thing.dtype, thing.storage_offset(), tuple(thing.shape), thing.stride())


class _Storage:
    """The bytes under one or more tensors: an object, so that a pickle holds them once."""

    def __init__(self, content: Any) -> None:
        self.content = content  # (n,) uint8

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _storage, (PickleBuffer(self.content),)


def _is_plain(tensor: Any, torch: Any) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.untyped_storage().nbytes() > 0
        and not tensor.__dict__
    )


def _storage(content: Any) -> Any:
    import torch

    return torch.frombuffer(content, dtype=torch.uint8)


def _tensor(storage: Any, dtype: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    import torch

    return torch.empty(0, dtype=dtype).set_(storage.untyped_storage(), offset, shape, strides)
