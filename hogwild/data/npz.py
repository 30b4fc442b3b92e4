"""A user's own arrays from one .npz file, as written by `numpy.savez`. Nothing in the file is ever executed."""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hogwild.data.locate import find_file
from hogwild.errors import DataError

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
        file = find_file(f"Npz(path={str(Path(path).expanduser())!r})", path, root, advice)
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        arrays = _read(file, names if target is None else [*names, target])
        tensors = [_input_tensor(file, name, array) for name, array in zip(names, arrays, strict=False)]
        known = torch.empty(len(arrays[0]), 0) if target is None else _target_tensor(file, target, arrays[-1])
        super().__init__(*tensors, known)

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


def _read(file: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Return the named arrays: they exist, are readable, and have the same number of rows, at least one."""
    if not zipfile.is_zipfile(file):
        raise DataError(
            f"{file}: not an .npz file, or truncated ({file.stat().st_size:,} bytes without a zip directory)",
            code="data/wrong-format",
        )
    with np.load(file, allow_pickle=False) as archive:
        absent = [name for name in names if name not in archive.files]
        if absent:
            raise DataError(
                f"{file}: no array named {', '.join(absent)}; it holds {', '.join(archive.files) or 'none'}",
                code="data/wrong-arrays",
            )
        arrays = [_array(file, archive, name) for name in names]
    rows = {name: len(array) for name, array in zip(names, arrays, strict=True)}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        raise DataError(f"{file}: the arrays must have the same number of rows, found {counts}", code="data/fields")
    if not len(arrays[-1]):
        raise DataError(f"{file}: contains no samples: its arrays have no rows", code="data/empty")
    return arrays


def _array(file: Path, archive: "np.lib.npyio.NpzFile", name: str) -> np.ndarray:
    """Return one array of the archive. numpy refuses pickled objects; our error tells how to fix the file."""
    try:
        array = archive[name]
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{file}: array {name!r} holds Python objects, which are never loaded (they can run code); "
                "store it as numbers, for example with numpy.asarray(values, dtype=numpy.float32)",
                code="data/wrong-arrays",
            ) from error
        raise DataError(
            f"{file}: array {name!r} is damaged: {error}; write or get the file again", code="data/damaged-file"
        ) from error
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise DataError(
            f"{file}: {name!r} is not an array of samples: it must have at least one dimension",
            code="data/wrong-arrays",
        )
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{file}: array {name!r} has type {array.dtype}: must be floats, integers or bool", code="data/wrong-arrays"
        )
    return array


def _input_tensor(file: Path, name: str, array: np.ndarray) -> Tensor:
    """Return float32 (N, ...), or the integers in this machine's byte order."""
    if array.dtype.kind == "f":
        return _tensor(array, np.float32)
    _check_signed_range(file, name, array)
    return _tensor(array, _WIDER.get(array.dtype.name, array.dtype.newbyteorder("=")))


def _target_tensor(file: Path, name: str, array: np.ndarray) -> Tensor:
    """Return float32 or int64 (N, ...)."""
    _check_signed_range(file, name, array)
    return _tensor(array, np.float32 if array.dtype.kind == "f" else np.int64)


def _check_signed_range(file: Path, name: str, array: np.ndarray) -> None:
    if array.dtype.name == "uint64" and int(array.max(initial=0)) > np.iinfo(np.int64).max:
        raise DataError(
            f"{file}: array {name!r} contains {array.max()}, which does not fit into a signed 64-bit number",
            code="data/bad-value",
        )


def _tensor(array: np.ndarray, dtype: np.dtype | type) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
