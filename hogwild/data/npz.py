"""A user's own arrays from one .npz file, as written by `numpy.savez`. Nothing in the file is ever executed."""

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hogwild.data.input_rows import SAMPLE, InputRows
from hogwild.data.locate import bad_argument, find_file, reading
from hogwild.data.text_file import HEAD, refuse_other_kind, refuse_packed
from hogwild.errors import DataError

CHUNK = 1 << 20  # bytes read at a time
# torch supports few operations on unsigned types above 8 bits: convert each to a signed type that can hold it.
_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}


class Npz(TensorDataset):
    """One sample per row of the named arrays: tensors are the inputs in order, then the target.

    Floats of any width become float32. Integer and bool targets become int64 (class numbers; store float targets for a
    regression or a BCE loss), integer inputs keep their type. Raises NotFoundError if the file is missing, DataError if
    it is damaged, lacks an array, or has an array without rows, with another number of rows, or with values that are
    not numbers (pickled objects too).

    Arguments:
        path: file, as numpy.savez writes it.
        inputs: name of the input array, or a list of names.
        target: name of the target array; null: samples to predict, without a target."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        inputs: str | Sequence[str] = "x",
        target: str | None = "y",
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        advice = "It is your own file: write it with numpy.savez(path, x=..., y=...)."
        file = find_file(f"Npz(path={str(Path(os.path.expanduser(path)))!r})", path, root, advice)
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        if target in names or len({*names}) < len(names):
            twice = next(name for name in names if name == target or names.count(name) > 1)
            raise bad_argument(f"Npz: array {twice!r} is named twice in inputs, or is the target, too")
        arrays = [one.read(0, one.shape[0]) for one in _stored(file, names if target is None else [*names, target])]
        tensors = [_input_tensor(file, name, array) for name, array in zip(names, arrays, strict=False)]
        known = torch.empty(len(arrays[0]), 0)
        if target is not None:
            _check_signed_range(file, target, arrays[-1])
            known = _tensor(arrays[-1], np.float32 if arrays[-1].dtype.kind == "f" else np.int64)
        super().__init__(*tensors, known)
        self.path, self.inputs = file, tuple(names)

    def read_like(self, trained: "Npz") -> None:
        """Give the inputs of this file, to validate, in the order of the training data's arrays. Raises DataError for
        one that is missing."""
        self.order_inputs(trained.inputs, "data.val")

    def order_inputs(self, names: Sequence[str], what: str) -> None:
        """Give the inputs in this order. `what` is this data set. Raises DataError for one that is missing."""
        if {*names} != {*self.inputs}:
            raise DataError(
                f"{what}: {self.path}: its inputs are {', '.join(self.inputs)}, those of data.train "
                f"{', '.join(names)}; give both the same inputs",
                code="data/val-unlike-train",
            )
        *inputs, target = self.tensors
        self.tensors = (*(inputs[self.inputs.index(name)] for name in names), target)
        self.inputs = tuple(names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the inputs, which a model takes by their order."""
        return self.inputs

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that a model takes from the arrays. Class numbers y (N,) need outputs up to the largest."""
        first, *others, target = self.tensors
        is_class = target.dtype == torch.int64 and target.dim() == 1
        outputs = int(target.max()) + 1 if is_class else target[0].numel()
        inputs = {} if others else {"features": first[0].numel()}
        channels = {"channels": first.shape[1]} if first.dim() == 4 else {}
        return {**inputs, **channels, "classes": outputs, "outputs": outputs}

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], _: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict."""
        return {**arguments, "target": None}


class NpzRows:
    """Inputs to predict, read in ranges: of a file larger than memory, too. For one process and one reader; picklable.
    Raises as `Npz` does. `inputs`: names of the arrays; None: the only one, or those of `wanted`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        inputs: str | Sequence[str] | None,
        root: str | os.PathLike[str] | None = None,
        wanted: Sequence[str] = (),
    ) -> None:
        self.path = find_file(f"the file {str(path)!r}", path, root, "It is your own file, as numpy.savez writes it.")
        _check_archive(self.path)
        with zipfile.ZipFile(self.path) as archive:
            there = [name.removesuffix(".npy") for name in archive.namelist()]
        if inputs is None:
            inputs = there if len(there) == 1 else wanted
        self._names = [inputs] if isinstance(inputs, str) else list(inputs)
        self._ids = ""
        self._open: dict[str, _StoredArray] = {}
        _check_names(self.path, self._names, there)
        counts = {name: self._shape(name)[0] for name in self._names}
        _check_lengths(self.path, counts)
        self._rows = counts[self._names[0]]

    def __len__(self) -> int:
        return self._rows

    def identify(self, name: str) -> None:
        """Name rows by the values of this array (N,), in `inputs_of`. Raises DataError."""
        with zipfile.ZipFile(self.path) as archive:
            _check_names(self.path, [name], [one.removesuffix(".npy") for one in archive.namelist()])
        self._ids = name
        shape = self._shape(name)
        _check_lengths(self.path, {self._names[0]: len(self), name: shape[0]})
        if len(shape) != 1:
            raise DataError(f"{self.path}: array {name!r} must have one id per row", code="data/wrong-arrays")

    def inputs_of(self, start: int, stop: int) -> InputRows:
        """Return rows [start, stop)."""
        names = {self._ids: self._member(self._ids).read(start, stop)} if self._ids else {SAMPLE: range(start, stop)}
        arrays = ((name, self._member(name).read(start, stop)) for name in self._names)
        return InputRows(names, tuple(_input_tensor(self.path, name, array) for name, array in arrays))

    def close(self) -> None:
        """Close the file; it is opened again when it is read."""
        for member in self._open.values():
            member.close()
        self._open.clear()

    def _shape(self, name: str) -> tuple[int, ...]:
        try:
            return self._member(name).shape
        finally:
            self.close()

    def _member(self, name: str) -> "_StoredArray":
        if name not in self._open:
            self._open[name] = _StoredArray(self.path, name, can_be_text=name == self._ids)
        return self._open[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


class _StoredArray:
    """An array of an archive, read in ranges of rows; fast in ascending order."""

    def __init__(self, file: Path, name: str, *, can_be_text: bool) -> None:
        self._file, self._name = file, name
        with contextlib.ExitStack() as opened, _explained(file, name):
            archive = opened.enter_context(zipfile.ZipFile(file))
            self._stream: Any = opened.enter_context(archive.open(f"{name}.npy"))
            version = np.lib.format.read_magic(self._stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, is_fortran, self._dtype = read(self._stream)
            self._begin = self._stream.tell()
            _check_kind(file, name, self._dtype, len(self.shape), can_be_text=can_be_text)
            self._row_bytes = self._dtype.itemsize * math.prod(self.shape[1:])
            self._whole: np.ndarray | None = None
            if is_fortran and len(self.shape) > 1:
                self._stream.seek(0)
                self._whole = np.lib.format.read_array(self._stream)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def read(self, start: int, stop: int) -> np.ndarray:
        if self._whole is not None:
            found: np.ndarray = self._whole[start:stop]
            return found
        with _explained(self._file, self._name):
            self._stream.seek(self._begin + start * self._row_bytes)
            rows = np.empty((stop - start, *self.shape[1:]), self._dtype)
            content, at = memoryview(rows.reshape(-1).view(np.uint8).data), 0
            while at < len(content):  # of a packed member, a read of all at once would need the memory twice
                if not (count := self._stream.readinto(content[at : at + CHUNK])):
                    raise EOFError("it ends too early")
                at += count
            return rows


def _stored(file: Path, names: Sequence[str]) -> Iterator["_StoredArray"]:
    """Yield the named arrays: they exist, and have the same number of rows, at least one."""
    _check_archive(file)
    with zipfile.ZipFile(file) as archive:
        _check_names(file, names, [name.removesuffix(".npy") for name in archive.namelist()])
    counts = {}
    for name in names:
        with contextlib.closing(_StoredArray(file, name, can_be_text=False)) as array:
            counts[name] = array.shape[0]
    _check_lengths(file, counts)
    for name in names:
        with contextlib.closing(_StoredArray(file, name, can_be_text=False)) as array:
            yield array


def _check_archive(file: Path) -> None:
    if not zipfile.is_zipfile(file):
        with reading(file), open(file, "rb") as stream:
            head = stream.read(HEAD)
        refuse_packed(file, b"" if head.startswith(b"PK") else head)
        refuse_other_kind(file, head, "bytes")
        raise DataError(
            f"{file}: not an .npz file, or truncated ({file.stat().st_size:,} bytes without a zip directory)",
            code="data/wrong-format",
        )


def _check_names(file: Path, names: Sequence[str], there: Sequence[str]) -> None:
    absent = [name for name in names if name not in there]
    if absent or not names:
        wanted = ", ".join(absent) or "to be chosen: its arrays must have the names of the model's inputs"
        raise DataError(
            f"{file}: no array named {wanted}; it holds {', '.join(there) or 'none'}", code="data/wrong-arrays"
        )


def _check_lengths(file: Path, rows: Mapping[str, int]) -> None:
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        raise DataError(f"{file}: the arrays must have the same number of rows, found {counts}", code="data/fields")
    if not any(rows.values()):
        raise DataError(f"{file}: contains no samples: its arrays have no rows", code="data/empty")


@contextlib.contextmanager
def _explained(file: Path, name: str) -> Iterator[None]:
    """Turn errors of reading into DataError. numpy refuses pickled objects; our error tells how to fix the file."""
    try:
        yield
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if "allow_pickle" in str(error):
            raise _refused_objects(file, name) from error
        raise DataError(
            f"{file}: array {name!r} is damaged: {error}; write or get the file again", code="data/damaged-file"
        ) from error


def _refused_objects(file: Path, name: str) -> DataError:
    return DataError(
        f"{file}: array {name!r} holds Python objects, which are never loaded (they can run code); "
        "store it as numbers, for example with numpy.asarray(values, dtype=numpy.float32)",
        code="data/wrong-arrays",
    )


def _check_kind(file: Path, name: str, dtype: np.dtype, axes: int, *, can_be_text: bool) -> None:
    if axes == 0:
        raise DataError(
            f"{file}: {name!r} is not an array of samples: it must have at least one dimension",
            code="data/wrong-arrays",
        )
    if dtype.hasobject:
        raise _refused_objects(file, name)
    if dtype.kind not in ("fiubU" if can_be_text else "fiub"):
        raise DataError(
            f"{file}: array {name!r} has type {dtype}: must be floats, integers or bool", code="data/wrong-arrays"
        )


def _input_tensor(file: Path, name: str, array: np.ndarray) -> Tensor:
    """Return float32 (N, ...), or the integers in this machine's byte order."""
    if array.dtype.kind == "f":
        return _tensor(array, np.float32)
    _check_signed_range(file, name, array)
    return _tensor(array, _WIDER.get(array.dtype.name, array.dtype.newbyteorder("=")))


def _check_signed_range(file: Path, name: str, array: np.ndarray) -> None:
    if array.dtype.name == "uint64" and int(array.max(initial=0)) > np.iinfo(np.int64).max:
        raise DataError(
            f"{file}: array {name!r} contains {array.max()}, which does not fit into a signed 64-bit number",
            code="data/bad-value",
        )


def _tensor(array: np.ndarray, dtype: np.dtype | type) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
