"""Sparse rows from text: the libsvm (svmlight) format, as written by the LIBSVM collection and scikit-learn."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hogwild.data.input_rows import given_arguments
from hogwild.data.locate import bad_argument, choice, find_file, require
from hogwild.data.text_file import TextFile, TextStream, unmarked
from hogwild.data.text_parsing import PackedFile, Parsed, Parsing, Piece, Tell, begins_of, in_threads, problem, shown
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed, PackedSpec
from hogwild.kernels.signatures import has_numba

MOST_INDEX = 2**31 - 2
PIECE = 1 << 18  # bytes of rows that are predicted at once
ROW = re.compile(rb"^[^\S\n]*[^\s#]", re.MULTILINE)  # a line that is neither empty nor a comment
UNLABELLED = re.compile(rb"^(?=[^\S\n]*[0-9]+:)", re.MULTILINE)
EMPTY = re.compile(rb"^[^\S\n]*\n", re.MULTILINE)
LARGEST_CLASS = 1 << 24  # a float32 represents every whole number up to it
log = logging.getLogger(__name__)


class LibSvm(PackedFile):
    """Rows `label index:value index:value … # comment`, packed as `csr`: `indptr` (N+1,) int64, `indices`
    (nnz,) int32 from 0 on, `values` (nnz,) float32, `target` (N,). A row's features are sorted most frequent first, by
    the counts in this file. A row may have no feature; an empty line is no row.

    Sizes: features and, with `labels: classes`, classes. Names: `first`, the index of the first feature as written;
    `classes`, the labels.

    Validation data uses the training data's sizes, first index and classes: unknown features, and rows of an unknown
    class, are left out, counted and reported.

    Needs numba (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file,
    line and rule.

    Arguments:
        path: file, plain or packed.
        features: their number, if the last ones do not occur in the file; a line with a higher index is bad.
        one_based: whether indices begin with 1; auto: yes unless there is a 0, here or in the data of the run that this
            one goes on from.
        labels: real, as written, float32; classes: whole numbers, numbered from 0 on in ascending order, int64; auto is
            real.
        normalise: l2 divides each row by its Euclidean length."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        features: int | None = None,
        one_based: bool | Literal["auto"] = "auto",
        labels: Literal["auto", "real", "classes"] = "auto",
        normalise: Literal["l2"] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        self.init_args = given_arguments(self, locals())
        who = f"LibSvm(path={str(path)!r})"
        choice(who, "one_based", one_based, ("auto", True, False))
        choice(who, "labels", labels, ("auto", "real", "classes"))
        choice(who, "normalise", normalise, (None, "l2"))
        if features is not None and (type(features) is not int or not 0 < features < MOST_INDEX):
            raise bad_argument(f"{who}: features must be a whole number from 1 to 2147483645, got {features!r}")
        advice = "It is your own file in libsvm format, one row per line: label index:value index:value …"
        source: Any = path  # also a TextStream, to predict
        self.stream = source if isinstance(source, TextStream) else None
        if self.stream is None and not has_numba():  # not imported where the file was parsed before
            require("numba", who, "numba", "sparse")
        self.path = self.stream.path if self.stream else find_file(who, path, root, advice)
        self.features, self.one_based, self.labels, self.normalise = features, one_based, labels, normalise
        self.alike = {"normalise": normalise} | ({} if one_based == "auto" else {"one_based": one_based})
        self.is_one_based: bool | Literal["auto"] = one_based  # as `remember` knows it
        self._told = False  # that features are unknown

    def remember(self, names: Mapping[str, Sequence[Any]]) -> None:
        """Begin with 0 if the `features` of `names` do, also where this file lacks that feature."""
        features = names.get("features")
        if self.one_based == "auto" and isinstance(features, range) and features.start == 0:
            self.is_one_based = False

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], _: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict: any label will do."""
        return {**arguments, "labels": "auto"}

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _LibSvmParsing(self, what, like, on_bad_line)

    def pieces(self) -> Iterator[tuple[int, bytes, int, int]]:
        """Yield the text in pieces of whole lines with a row or more, to predict: the first byte, the text, the numbers
        of its first line and row. Those of a stream come once they are there. Raises DataError for an empty file."""
        contents = self.stream.lines() if self.stream else TextFile(self.path).lines(0, PIECE)
        begin, line, row, empty = 0, 1, 0, 0
        for content in contents:
            if rows := len(ROW.findall(unmarked(content))):
                self._check_empty_lines(content, line, empty)
                yield begin, content, line, row
            end = content.rstrip()
            empty = line + end.count(b"\n") + bool(end) if content.count(b"\n", len(end)) > bool(end) else 0
            begin, line, row = begin + len(content), line + content.count(b"\n"), row + rows
        if not row:
            raise DataError(f"{self.path}: contains no samples: there is no row", code="data/empty")

    def _check_empty_lines(self, content: bytes, line: int, before: int) -> None:
        """Raise DataError for an empty line between rows without labels. `before`: such a line before the piece."""
        if not UNLABELLED.search(content):
            return
        found = EMPTY.search(content.rstrip())
        if place := before or (found and line + content.count(b"\n", 0, found.start())):
            raise DataError(
                f"{self.path}: line {place:,}: is empty, among rows without labels: no row, or one without features? "
                "Remove it, or write a label, such as 0, before each row",
                code="data/bad-line",
            )

    def inputs_in(self, content: bytes, line: int, like: Packed) -> Packed:
        """Return the rows of a piece, with or without labels. `like`: the training data. Raises DataError for a bad
        line."""
        parsed = _PieceParsing(self, content, line, like).parse(lambda done, size: None)
        if parsed.left_out and not self._told:
            log.warning("%s: values are left out: their features are past the training data's last one", self.path)
            self._told = True
        return parsed.packed


class _LibSvmParsing(Parsing):
    source: LibSvm
    kind = "libsvm"
    options = ("features", "is_one_based", "labels", "normalise")
    rules: ClassVar[Mapping[int, str]] = {
        1: "a line begins with its label, a number, not TOKEN",
        2: "behind the label stand pairs index:value, not TOKEN",
        3: "TOKEN: the value behind the colon must be a number",
        4: "TOKEN is NaN or infinite; clean the data first",
        5: "TOKEN: features are numbered from 1 on (one_based: false, where they begin with 0)",
        6: "TOKEN: the index is past the last feature",
        7: "TOKEN: an index is not negative",
    }

    def parse(self, tell: Tell) -> Parsed:
        began_s = time.monotonic()
        require("numba", "hogwild.data.LibSvm", "numba", "sparse")
        from hogwild.kernels import libsvm

        libsvm.ready()  # compile the kernels, or load them from the cache
        self.compiling_s += time.monotonic() - began_s
        pieces = self._rows(tell)
        self.note_bad_lines(pieces)
        if self.like is not None:
            base, features = int(self.like.names["first"][0]), self.like.spec.sizes["features"]
        else:
            lowest, highest = _extremes(pieces)
            base = int(lowest > 0 if self.source.is_one_based == "auto" else self.source.is_one_based)
            features = self.source.features or max(1, highest + 1 - base)
        if self.source.is_one_based == "auto" and self.like is None:
            why = "no line has a 0" if base else "a line has a 0"
            self.notes.append(f"features are numbered from {base} on, as {why} (one_based)")
        packed, labels, twice = self._ordered(pieces, base, features)
        keep = np.ones(packed.samples, bool)
        if unseen := sum(int(piece.arrays[4][2]) for piece in pieces):
            self.left_out["unseen features"] = unseen
            self.notes.append(f"{unseen:,} values are left out: their features are past the training data's last one")
        if many := int(twice.sum()):  # these are bad lines, too; the parser of single lines cannot see it
            words = f"{self._place_of(int(twice.argmax()), pieces)}: a feature occurs twice"
            if self.on_bad_line != "skip":
                raise DataError(
                    f"{words}; add the two values (data.on_bad_line: skip leaves such lines out and counts them)",
                    code="data/bad-line",
                )
            keep[twice == 1] = False
            self.left_out["bad lines"] = self.left_out.get("bad lines", 0) + many
            self.notes.append(f"{many:,} rows name a feature twice and are left out; the first of them: {words}")
        packed = self._labelled(packed, labels, pieces, keep)
        if not keep.all():
            packed = packed.copy_rows(self.region_name, np.flatnonzero(keep))
        return self.finished(packed)

    def _rows(self, tell: Tell) -> list[Piece]:
        """Parse the rows as written."""
        least, most = self._bounds()
        pieces = self.pieces(partial(self._piece, least, most), tell, self.begin())
        if self.source.features is None or self.source.is_one_based != "auto" or self.like is not None:
            return pieces
        lowest, highest = _extremes(pieces)
        if lowest > 0 or highest < most:
            return pieces
        # There is a 0, so the last index is one less: parse again, to find lines past it.
        return self.pieces(partial(self._piece, least, most - 1), tell, self.begin())

    def _piece(self, least: int, most: int, content: bytes) -> Piece:
        """Parse a piece: the lengths, indices, values and labels of its rows; the lowest and the highest index, and the
        number of unseen ones."""
        from hogwild.kernels import libsvm

        text, found = np.frombuffer(content, np.uint8), np.zeros(libsvm.FOUND, np.int64)
        lines, items = content.count(b"\n") + (not content.endswith(b"\n")), content.count(b":")
        lengths, labels = np.empty(lines, np.int64), np.empty(lines, np.float32)
        indices, values = np.empty(items, np.int32), np.empty(items, np.float32)
        libsvm.parse(text, least, most, self.like is not None, lengths, indices, values, labels, found)
        rows, items, bad_lines, rule, begin, token = found[: libsvm.OVERFLOW].tolist()
        arrays = lengths[:rows], indices[:items], values[:items], labels[:rows], found[libsvm.LEAST :]
        piece = Piece(arrays, lines, rows, bad_lines)
        if bad_lines:
            line = content[begin:].split(b"\n", 1)[0]
            words = problem(self.rules[rule], line, line[max(token - begin, 0) :])
            piece.bad = content.count(b"\n", 0, begin), words
        return piece

    def _bounds(self) -> tuple[int, int]:
        """Return the lowest and highest valid index, as written."""
        if self.like is not None:
            base = int(self.like.names["first"][0])
            return base, base + self.like.spec.sizes["features"] - 1
        least = 1 if self.source.is_one_based is True else 0
        if self.source.features is None:
            return least, MOST_INDEX
        return least, self.source.features - (self.source.is_one_based is False)

    def _ordered(self, pieces: list[Piece], base: int, features: int) -> tuple[Packed, np.ndarray, np.ndarray]:
        """Return the rows, each most frequent feature first, without their targets; the labels (N,) float32, and (N,)
        uint8: 1 for a row that names a feature twice."""
        from hogwild.kernels.libsvm import by_frequency

        to_rows = begins_of(np.array([len(piece.arrays[0]) for piece in pieces]))
        to_places = begins_of(np.array([len(piece.arrays[1]) for piece in pieces]))
        samples, items = int(to_rows[-1]), int(to_places[-1])
        shapes = {"indptr": ("int64", (samples + 1,)), "indices": ("int32", (items,)), "values": ("float32", (items,))}
        shapes["target"] = ("int64" if self.source.labels == "classes" else "float32", (samples,))
        spec = PackedSpec.laid_out("csr", samples, shapes, {"features": features})
        packed = Packed.allocate(self.region_name, spec, {"first": [base]})
        out, labels, twice = packed.arrays(), np.empty(samples, np.float32), np.empty(samples, np.uint8)
        counts = np.zeros(features, np.int64)
        for piece in pieces:
            some = np.bincount(piece.arrays[1])[base:]
            counts[: len(some)] += some

        def order(number: int) -> None:
            *rows, _ = pieces[number].arrays
            by_frequency(
                *rows, base, counts, self.source.normalise is not None, out["indptr"], out["indices"], out["values"],
                labels, twice, int(to_rows[number]), int(to_places[number]),
            )  # fmt: skip

        for _ in in_threads(order, range(len(pieces))):
            pass
        return packed, labels, twice

    # ---- result

    def _place_of(self, row: int, pieces: list[Piece]) -> str:
        """Return the place of a row in the file, by parsing the rows of its piece again, line by line."""
        begins = begins_of(np.array([len(piece.arrays[0]) for piece in pieces]))
        number = int(np.searchsorted(begins, row, side="right")) - 1
        least, most = self._bounds()
        left, content = row - int(begins[number]), next(islice(self.contents(self.begin()), number, None))
        for at, line in enumerate(content.split(b"\n")):
            left -= self._piece(least, most, line).rows
            if left < 0:
                return f"{self.place(pieces[number].line + at)}: {shown(line)!r}"
        raise self.text.changed()

    def _labelled(self, packed: Packed, labels: np.ndarray, pieces: list[Piece], keep: np.ndarray) -> Packed:
        """Write the targets, and set the number of classes."""
        target, sizes, names = packed.arrays()["target"], dict(packed.spec.sizes), dict(packed.names)
        if self.source.labels == "classes":
            classes = self._classes(labels, pieces)
            numbers = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
            keep &= (is_known := classes[numbers] == labels)
            target[:], sizes["classes"], names["classes"] = numbers, len(classes), classes.astype(np.int64)
            if unseen := int(np.count_nonzero(~is_known)):
                self.left_out["unseen classes"] = unseen
                self.notes.append(f"{unseen:,} rows are left out: the training data has none of their class")
        else:
            target[:] = labels
        return Packed(packed.region, replace(packed.spec, sizes=sizes), names)

    def _classes(self, labels: np.ndarray, pieces: list[Piece]) -> np.ndarray:
        """Return the classes (C,) float32, ascending. Raises DataError for a label that is not a class."""
        is_wrong = (labels != np.floor(labels)) | (np.abs(labels) > LARGEST_CLASS)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise DataError(
                f"{self._place_of(row, pieces)}: labels: classes are whole numbers up to {LARGEST_CLASS:,}, not "
                f"{labels[row]:g}",
                code="data/bad-line",
            )
        if self.like is None:
            return np.unique(labels)
        if "classes" not in self.like.names:
            raise DataError(
                f"{self.source.path}: labels: classes, but data.train has labels: {self.like.spec.arrays[-1].dtype}; "
                "set labels: classes for both",
                code="data/val-unlike-train",
            )
        return np.asarray(self.like.names["classes"], np.float32)


class _PieceParsing(_LibSvmParsing):
    """The parsing of a piece of a file to predict, whose rows may lack their labels."""

    def __init__(self, source: LibSvm, content: bytes, line: int, like: Packed) -> None:
        super().__init__(source, "input", like, "fail", text=TextStream(source.path, -1))
        self._content, self._first_line = UNLABELLED.sub(b"0 ", unmarked(content)), line

    def begin(self) -> int:
        return 0

    def contents(self, begin: int) -> Iterator[bytes]:
        return iter((self._content,))

    def pieces(self, parse: Callable[[bytes], Piece], tell: Tell, begin: int, line: int = 1) -> list[Piece]:
        return super().pieces(parse, tell, begin, self._first_line)


class RowLines:
    """Parses whole lines of the file `path` by themselves, whatever their place: indices as they are written."""

    def __init__(self, path: Path) -> None:
        from hogwild.kernels import libsvm

        stream: Any = TextStream(path, -1)
        require("numba", f"LibSvm(path={str(path)!r})", "numba", "sparse")
        self._parsing = _LibSvmParsing(LibSvm(stream), "data.train", None, "fail", text=stream)
        libsvm.ready()

    def __call__(self, content: bytes, line: int) -> tuple[list[list[Any]], list[int]]:
        """Return ([indices (n,) int64 of each row, values (n,) float32, labels], the numbers of their lines within the
        content). `line`: lines before. Raises DataError for a bad line."""
        content = unmarked(content)
        piece = self._parsing._piece(0, MOST_INDEX, content)
        if piece.bad[1]:
            raise DataError(f"{self._parsing.place(line + 1 + piece.bad[0])}: {piece.bad[1]}", code="data/bad-line")
        lengths, indices, values, labels, _ = piece.arrays
        places = [number for number, one in enumerate(content.split(b"\n")) if ROW.match(one)]
        rows = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((indices, rows))
        is_same = (np.diff(rows[order]) == 0) & (np.diff(indices[order]) == 0)
        if is_same.any():
            place = places[int(rows[order][int(is_same.argmax())])]
            raise DataError(f"{self._parsing.place(line + 1 + place)}: a feature occurs twice", code="data/bad-line")
        cuts = begins_of(lengths)[1:-1]
        if not places:
            return [[], [], []], []
        return [np.split(indices.astype(np.int64), cuts), np.split(values, cuts), [*labels]], places


def _extremes(pieces: list[Piece]) -> tuple[int, int]:
    """Return the lowest and the highest index as written."""
    return min(int(piece.arrays[4][0]) for piece in pieces), max(int(piece.arrays[4][1]) for piece in pieces)
