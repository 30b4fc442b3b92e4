"""Sparse rows from text: the libsvm (svmlight) format, as written by the LIBSVM collection and scikit-learn."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from hogwild.data.locate import bad_argument, choice
from hogwild.data.text_parsing import passes
from hogwild.data.text_parsing.passes import Finds, LinesStep, Parsed, Parsing, Pass, Run, TextLines, begins_of, zeros
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed, PackedSpec
from hogwild.shared_memory.region import Region

MOST_INDEX = 2**31 - 2
LARGEST_CLASS = 1 << 24  # a float32 represents every whole number up to it


class LibSvm(passes.PackedFile):
    """Rows `label index:value index:value … # comment`, plain or .gz; packed as `csr`: `indptr` (N+1,) int64, `indices`
    (nnz,) int32 from 0 on, `values` (nnz,) float32, `target` (N,). A row's features are sorted most frequent first, by
    the counts in this file. A row may have no feature; an empty line is no row.

    Sizes: features and, with `labels: classes`, classes. Names: `first`, the index of the first feature as written;
    `classes`, the labels.

    Validation data uses the training data's sizes, first index and classes: unknown features, and rows of an unknown
    class, are left out, counted and reported.

    Needs numba (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file,
    line and rule.

    Arguments:
        path: file, plain or .gz.
        features: their number, if the last ones do not occur in the file; a line with a higher index is bad.
        one_based: whether indices begin with 1; auto: yes unless there is a 0.
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
        who = f"LibSvm(path={str(path)!r})"
        choice(who, "one_based", one_based, ("auto", True, False))
        choice(who, "labels", labels, ("auto", "real", "classes"))
        choice(who, "normalise", normalise, (None, "l2"))
        if features is not None and (type(features) is not int or not 0 < features < MOST_INDEX):
            raise bad_argument(f"{who}: features must be a whole number from 1 to 2147483645, got {features!r}")
        advice = "It is your own file in libsvm format, one row per line: label index:value index:value …"
        self.path = passes.find_text(who, path, root, advice)
        self.features, self.one_based, self.labels, self.normalise = features, one_based, labels, normalise

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _LibSvmParsing(self, what, like, on_bad_line)


@dataclass(frozen=True, slots=True)
class _LibSvmParse(LinesStep):
    """Pass that parses rows as written: a piece's rows start at `rows[piece]`, its values at `places[piece]`."""

    spec: PackedSpec
    rows: np.ndarray
    places: np.ndarray
    least: int
    most: int
    leaves_out: bool

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.lines import ITEMS, libsvm

        found = self.found(regions)[piece]
        found[ITEMS:] = 0
        raw = self.spec.attach(regions["raw"]).arrays()
        libsvm(
            self.lines.piece(piece, regions), self.least, self.most, self.leaves_out,
            raw["lengths"], raw["indices"], raw["values"], raw["labels"],
            int(self.rows[piece]), int(self.rows[piece + 1]), int(self.places[piece]), int(self.places[piece + 1]),
            found,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Order(LinesStep):
    """Pass that sorts each row's features by frequency and closes the gaps between pieces: a piece's rows go to
    `to_rows[piece]` and on, its values to `to_places[piece]` and on."""

    parse: _LibSvmParse
    spec: PackedSpec
    to_rows: np.ndarray
    to_places: np.ndarray
    base: int
    features: int
    unit: bool

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.ordering import by_frequency

        raw, out = self.parse.spec.attach(regions["raw"]).arrays(), self.spec.attach(regions["out"]).arrays()
        begin = int(self.parse.rows[piece])
        to, end = int(self.to_rows[piece]), int(self.to_rows[piece + 1])
        counts = regions["counts"].array("i8", (self.features,))
        longest = int(raw["lengths"][begin : begin + end - to].max(initial=0))
        keys, floats = np.empty((2, longest), np.int64), np.empty((2, longest), np.float32)
        by_frequency(
            raw["lengths"], raw["indices"], raw["values"], raw["labels"], begin, begin + end - to,
            int(self.parse.places[piece]), self.base, counts, self.unit,
            out["indptr"], out["indices"], out["values"], regions["labels"].array("f4", (out["target"].shape[0],)),
            regions["twice"].array("u1", (out["target"].shape[0],)), to, int(self.to_places[piece]), keys, floats,
        )  # fmt: skip


class _LibSvmParsing(Parsing):
    source: LibSvm
    kind = "libsvm"
    options = ("features", "one_based", "labels", "normalise")
    rules: ClassVar[Mapping[int, str]] = {
        1: "a line begins with its label, a number, not TOKEN",
        2: "behind the label stand pairs index:value, not TOKEN",
        3: "TOKEN: the value behind the colon must be a number",
        4: "TOKEN is NaN or infinite; clean the data first",
        5: "TOKEN: features are numbered from 1 on (one_based: false, where they begin with 0)",
        6: "TOKEN: the index is past the last feature",
        10: "TOKEN: an index is not negative",
    }

    def parse(self, run: Run) -> Parsed:
        finds = passes.counted(run, self.what, *TextLines.of(self.source.path), "libsvm")
        return self._finished(self._ordered(run, self._rows(run, finds), finds), finds)

    # ---- passes

    def _rows(self, run: Run, finds: Finds) -> _LibSvmParse:
        """Parse the rows as written."""
        from hogwild.kernels.parsing.lines import ITEMS, LEAST, LINES, MOST

        lines, found = finds.lines, finds.found
        rows, places = begins_of(found[:, LINES]), begins_of(found[:, ITEMS])
        kinds = {"lengths": "int64", "labels": "float32"}
        shapes = {name: (kind, (int(rows[-1]),)) for name, kind in kinds.items()}
        shapes |= {"indices": ("int32", (int(places[-1]),)), "values": ("float32", (int(places[-1]),))}
        spec = PackedSpec.laid_out("csr", 0, shapes, {})
        finds.regions["raw"] = Region.allocate("raw", spec.nbytes)
        least, most = self._bounds()
        while True:
            step = _LibSvmParse(lines, "libsvm", spec, rows, places, least, most, self.like is not None)
            run(Pass(self.what, lines.pieces, step, finds.regions))
            if self.source.features is None or self.source.one_based != "auto" or self.like is not None:
                break
            if most < self.source.features or found[:, LEAST].min() > 0 or found[:, MOST].max() <= most - 1:
                break
            most -= 1  # there was a 0, so the last index is one less: parse again, to find lines past it
        self.check_bad_lines(finds)
        return step

    def _bounds(self) -> tuple[int, int]:
        """Return the lowest and highest valid index, as written."""
        if self.like is not None:
            base = int(self.like.names["first"][0])
            return base, base + self.like.spec.sizes["features"] - 1
        least = 1 if self.source.one_based is True else 0
        if self.source.features is None:
            return least, MOST_INDEX
        return least, self.source.features - (self.source.one_based is False)

    def _ordered(self, run: Run, step: _LibSvmParse, finds: Finds) -> Packed:
        from hogwild.kernels.parsing.lines import ITEMS, ROWS

        (base, features), regions = self._numbering(finds), finds.regions
        to_rows, to_places = begins_of(finds.found[:, ROWS]), begins_of(finds.found[:, ITEMS])
        samples, items = int(to_rows[-1]), int(to_places[-1])
        sizes = {"features": features}
        arrays = {"indptr": ("int64", (samples + 1,)), "indices": ("int32", (items,)), "values": ("float32", (items,))}
        arrays["target"] = ("int64" if self.source.labels == "classes" else "float32", (samples,))
        spec = PackedSpec.laid_out("csr", samples, arrays, sizes)
        packed = Packed.allocate(self.region_name, spec, {"first": [base]})
        regions |= {"out": packed.region, "counts": self._counts(step, finds, base, features)}
        regions |= {"labels": zeros("labels", (samples,), "f4"), "twice": zeros("twice", (samples,), "u1")}
        unit = self.source.normalise is not None
        order = _Order(finds.lines, "libsvm", step, spec, to_rows, to_places, base, features, unit)
        run(Pass(self.what, finds.lines.pieces, order, regions))
        return packed

    def _numbering(self, finds: Finds) -> tuple[int, int]:
        """Return (the first feature's index as written, the number of features)."""
        from hogwild.kernels.parsing.lines import LEAST, MOST

        if self.like is not None:
            return int(self.like.names["first"][0]), self.like.spec.sizes["features"]
        base = int(finds.found[:, LEAST].min() > 0) if self.source.one_based == "auto" else int(self.source.one_based)
        return base, self.source.features or max(1, int(finds.found[:, MOST].max()) + 1 - base)

    def _counts(self, step: _LibSvmParse, finds: Finds, base: int, features: int) -> Region:
        """Return (F,) int64: the number of rows that name each feature."""
        from hogwild.kernels.parsing.lines import ITEMS

        region = zeros("counts", (features,), "i8")
        counts, indices = region.array("i8", (features,)), step.spec.attach(finds.regions["raw"]).arrays()["indices"]
        for begin, many in zip(step.places.tolist(), finds.found[:, ITEMS].tolist(), strict=False):
            some = np.bincount(indices[begin : begin + many])[base:]
            counts[: len(some)] += some
        return region

    # ---- result

    def _finished(self, packed: Packed, finds: Finds) -> Parsed:
        from hogwild.kernels.parsing.lines import UNSEEN

        keep = np.ones(packed.samples, bool)
        if unseen := finds.total(UNSEEN):
            self.left_out["unseen features"] = unseen
            self.notes.append(f"{unseen:,} values are left out: their features are past the training data's last one")
        self._twice(keep, finds)
        packed = self._labelled(packed, finds, keep)
        if not keep.all():
            packed = packed.copy_rows(self.region_name, np.flatnonzero(keep))
        return self.finished(packed)

    def _twice(self, keep: np.ndarray, finds: Finds) -> None:
        """Treat rows that name a feature twice as bad lines; the parser of single lines cannot see it."""
        twice = finds.regions["twice"].array("u1", (len(keep),))
        if not (many := int(twice.sum())):
            return
        words = f"{self._place_of(int(twice.argmax()), finds)}: a feature occurs twice"
        if self.on_bad_line != "skip":
            raise DataError(
                f"{words}; add the two values (data.on_bad_line: skip leaves such lines out and counts them)",
                code="data/bad-line",
            )
        keep[twice == 1] = False
        self.left_out["bad lines"] = self.left_out.get("bad lines", 0) + many
        self.notes.append(f"{many:,} rows name a feature twice and are left out; the first of them: {words}")

    def _place_of(self, row: int, finds: Finds) -> str:
        """Return the place of a row in the file, by parsing the rows of its piece again, line by line."""
        from hogwild.kernels.parsing.lines import FOUND, ROWS, libsvm

        begins = begins_of(finds.found[:, ROWS])
        piece = int(np.searchsorted(begins, row, side="right")) - 1
        content, left, at = finds.lines.piece(piece, finds.regions).tobytes(), row - int(begins[piece]), 0
        least, most = self._bounds()
        for line in content.split(b"\n"):
            found, many = np.zeros(FOUND, np.int64), line.count(b":")
            scratch = (
                np.zeros(1, np.int64),
                np.zeros(many, np.int32),
                np.zeros(many, np.float32),
                np.zeros(1, np.float32),
            )
            libsvm(np.frombuffer(line, np.uint8), least, most, self.like is not None, *scratch, 0, 1, 0, many, found)
            left -= int(found[ROWS])
            if left < 0:
                return f"{finds.place(piece, content, at)}: {passes.shown(line)!r}"
            at += len(line) + 1
        raise finds.lines.changed()

    def _labelled(self, packed: Packed, finds: Finds, keep: np.ndarray) -> Packed:
        """Write the targets, and set the number of classes."""
        labels = finds.regions["labels"].array("f4", (len(keep),))
        target, sizes, names = packed.arrays()["target"], dict(packed.spec.sizes), dict(packed.names)
        if self.source.labels == "classes":
            classes = self._classes(labels, finds)
            numbers = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
            keep &= (is_known := classes[numbers] == labels)
            target[:], sizes["classes"], names["classes"] = numbers, len(classes), classes.astype(np.int64)
            if unseen := int(np.count_nonzero(~is_known)):
                self.left_out["unseen classes"] = unseen
                self.notes.append(f"{unseen:,} rows are left out: the training data has none of their class")
        else:
            target[:] = labels
        return Packed(packed.region, replace(packed.spec, sizes=sizes), names)

    def _classes(self, labels: np.ndarray, finds: Finds) -> np.ndarray:
        """Return the classes (C,) float32, ascending. Raises DataError for a label that is not a class."""
        is_wrong = (labels != np.floor(labels)) | (np.abs(labels) > LARGEST_CLASS)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise DataError(
                f"{self._place_of(row, finds)}: labels: classes are whole numbers up to {LARGEST_CLASS:,}, not "
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
