"""Files of predictions, written block by block: .csv, .npz, .parquet, or CSV on standard output.

    any process: encode(scores) ──► bytes ──► the one writer: append(bytes), in the order of the rows ──► finish()

A file is written beside its place, and gets its name at the end: it is complete, or absent."""

import contextlib
import csv
import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from hogwild.data.locate import require
from hogwild.errors import RunError
from hogwild.inference.scores import Columns, Scores
from hogwild.storage.files import temporary

ENDINGS = (".csv", ".npz", ".parquet")
GROUP_ROWS = 1 << 17  # of a Parquet file


class InColumns(Protocol):
    def columns(self) -> Columns: ...


Encode = Callable[[Any, bool], bytes]  # (rows, whether they are the first): may be sent to another process


def encode_csv(rows: InColumns, is_first: bool) -> bytes:
    """Return lines; before the first ones the names of the columns. Numbers are as short as their type allows."""
    columns, text = rows.columns(), io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if is_first:
        lines.writerow([name for name, _ in columns])
    lines.writerows(zip(*(values.astype(str).tolist() for _, values in columns), strict=True))
    return text.getvalue().encode()


def encode_arrays(scores: Scores, is_first: bool) -> bytes:
    """Return the arrays as an .npz file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # not np.savez, which has parameters that a column's name may be
        for name, array in scores.arrays(is_first):
            with archive.open(f"{name}.npy", "w") as place:
                np.lib.format.write_array(place, array, allow_pickle=False)
    return content.getvalue()


def encode_table(rows: InColumns, is_first: bool) -> bytes:
    """Return the columns as a stream of Arrow."""
    import pyarrow
    from pyarrow import ipc

    table = pyarrow.table(dict(rows.columns()))
    content = io.BytesIO()
    with ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table)
    return content.getvalue()


def encoder_for(file: Path | None) -> Encode:
    """Return the encoder of a file by its ending; of CSV for standard output."""
    return {".npz": encode_arrays, ".parquet": encode_table}.get(file.suffix if file else "", encode_csv)


class _Csv:
    def __init__(self, aside: Path, opened: ExitStack) -> None:
        self._stream = opened.enter_context(aside.open("wb"))

    def append(self, content: bytes) -> None:
        self._stream.write(content)

    def finish(self) -> None:
        self._stream.flush()


class _Npz:
    """Arrays of unknown length and, for texts, of unknown width: kept apart until the end, without a name."""

    def __init__(self, aside: Path, opened: ExitStack) -> None:
        self._aside, self._opened = aside, opened
        self._kept: dict[str, BinaryIO] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def append(self, content: bytes) -> None:
        for name, array in np.load(io.BytesIO(content)).items():
            if name not in self._kept:
                self._kept[name] = self._opened.enter_context(tempfile.TemporaryFile(dir=self._aside.parent))  # noqa: SIM115
                self._shapes[name], self._dtypes[name] = (0, *array.shape[1:]), array.dtype
            rows, *rest = self._shapes[name]
            self._shapes[name] = (rows + len(array), *rest)
            self._dtypes[name] = np.promote_types(self._dtypes[name], array.dtype)
            np.save(self._kept[name], array)

    def finish(self) -> None:
        with zipfile.ZipFile(self._aside, "w") as archive:
            for name, kept in self._kept.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as target:
                    dtype, shape = self._dtypes[name], self._shapes[name]
                    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(target, described)
                    end = kept.tell()
                    kept.seek(0)
                    while kept.tell() < end:
                        target.write(np.load(kept).astype(dtype).tobytes())


class _Parquet:
    def __init__(self, aside: Path, opened: ExitStack) -> None:
        self._aside, self._opened = aside, opened
        self._writer: Any = None
        self._waiting: list[Any] = []

    def append(self, content: bytes) -> None:
        from pyarrow import ipc

        self._waiting.append(ipc.open_stream(content).read_all())
        if sum(len(table) for table in self._waiting) >= GROUP_ROWS:
            self._write()

    def finish(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow
        from pyarrow import parquet

        if self._waiting:
            table = pyarrow.concat_tables(self._waiting)
            if self._writer is None:
                self._writer = self._opened.enter_context(parquet.ParquetWriter(self._aside, table.schema))
            self._writer.write_table(table)
            self._waiting.clear()


@contextlib.contextmanager
def made_whole(file: Path) -> Iterator[Path]:
    """Yield a place beside `file`, which becomes the file after the block, and not if the block raises. Raises
    RunError."""
    try:
        with temporary(file) as aside:
            yield aside
            aside.replace(file)
    except OSError as error:
        raise RunError(
            f"{file}: cannot be written: {error.strerror or error}", code="run/output-not-written"
        ) from error


@contextlib.contextmanager
def writing(file: Path) -> Iterator[_Csv | _Npz | _Parquet]:
    """Yield the writer of a file, which is there after the block, and not if the block raises. Raises RunError, and
    UsageError without pyarrow."""
    if file.suffix == ".parquet":
        require("pyarrow.parquet", f"--out {file}", "pyarrow", "csv")
    kinds: dict[str, type[_Csv | _Npz | _Parquet]] = {".npz": _Npz, ".parquet": _Parquet}
    with made_whole(file) as aside, ExitStack() as opened:
        writer = kinds.get(file.suffix, _Csv)(aside, opened)
        yield writer
        writer.finish()
