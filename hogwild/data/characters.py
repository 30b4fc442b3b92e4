"""Texts as character numbers: consecutive windows for next-character prediction, and short texts with a class each (the
speaker of a line, the language of a name)."""

import logging
import operator
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from hogwild.data.input_rows import numbers_like
from hogwild.data.locate import Wanted, bad_argument, beside, choice, find, find_folder, folders
from hogwild.data.text_file import text_of
from hogwild.errors import DataError, NotFoundError
from hogwild.formatting import counted

log = logging.getLogger(__name__)
FILE = "input.txt"
ADVICE = (
    "tinyshakespeare is one file of 1,115,394 characters, published by A. Karpathy (karpathy/char-rnn on GitHub, "
    "data/tinyshakespeare/input.txt); to use your own UTF-8 text, set path."
)
HELD_BACK = 10  # every tenth speech is validation data
SPLITS = ("train", "val", "all")
NAMES_ADVICE = (
    "It is a folder with one .txt file per class and one name per line, as in the archive of the tutorial on "
    "classifying names with a character-level RNN (download.pytorch.org/tutorial/data.zip: data/names)."
)


class Characters(TensorDataset):
    """Windows of a text: x (N, steps) int64, the numbers of `steps` characters, and y (N, steps) int64, the numbers of
    the characters that follow each of them. Window i + 1 begins where window i ends, as `data.lanes` requires;
    characters at the end that fill no window are left out.

    A character's number is its place among all characters of the whole file, sorted: `vocabularies["symbols"]`.
    tinyshakespeare has 65. The data set's own folder is `tinyshakespeare`. Raises NotFoundError if there is no such
    file, DataError if it is not UTF-8 or too short, UsageError for invalid arguments.

    Arguments:
        steps: characters of a window.
        split: train, val or all.
        fraction: part of the text, its end, that is split val.
        path: file, a text in UTF-8."""

    vocabularies: Mapping[str, list[str]] = {}

    def __init__(
        self,
        steps: int = 64,
        split: str = "train",
        fraction: float = 0.1,
        path: str | os.PathLike[str] = FILE,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Characters(path={str(path)!r})"
        choice("Characters", "split", split, SPLITS)
        if type(steps) is not int or steps < 1:
            raise bad_argument(f"{who}: steps must be a whole number >= 1, got {steps!r}")
        _check_fraction(who, fraction)
        self.path = _find(who, path, root)
        self.alike = {f"the fraction of {self.path}": fraction}  # of another one they would overlap
        text = text_of(self.path, "text")
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)  # the Unicode numbers
        symbols, numbers = np.unique(codes, return_inverse=True)
        self.vocabularies = {"symbols": [chr(code) for code in symbols.tolist()]}
        begin = len(text) - round(len(text) * fraction)
        part = {"train": numbers[:begin], "val": numbers[begin:], "all": numbers}[split]
        windows = (len(part) - 1) // steps
        if windows < 1:
            raise DataError(
                f"{self.path}: split {split} has {len(part):,} characters, too few for a window of {steps} + 1",
                code="data/empty",
            )
        used = torch.from_numpy(part[: windows * steps + 1].astype(np.int64))
        super().__init__(used[:-1].view(windows, steps), used[1:].view(windows, steps))

    def read_like(self, trained: "Characters") -> None:
        """Number the characters of this text, to validate, as the training data does. Raises DataError for a character
        that it does not have."""
        symbols = self.vocabularies["symbols"]
        numbers = torch.tensor(numbers_like("symbol", trained.vocabularies["symbols"], symbols, self.path))
        self.tensors, self.vocabularies = tuple(numbers[each] for each in self.tensors), trained.vocabularies


# ---- texts with a class ---------------------------------------------------------------------------------------------


class LabelledLines(Dataset[tuple[Tensor, int]]):
    """Base class. An item is (the numbers of the text's characters (L,) int64, class); each has its own length L, for a
    feed that pads (`data.padding`). `vocabularies`: `symbols`, the characters by number, and `classes`, by number."""

    vocabularies: Mapping[str, list[str]] = {}

    def __init__(self, texts: Sequence[str], labels: Sequence[int], symbols: Iterable[str], classes: list[str]) -> None:
        self.vocabularies = {"symbols": sorted(symbols), "classes": classes}
        self._number = {symbol: number for number, symbol in enumerate(self.vocabularies["symbols"])}
        self.texts = self._texts = list(texts)  # as they are written, and as they are numbered
        self.labels = list(labels)

    def read_like(self, trained: "LabelledLines") -> None:
        """Number the characters and classes of these texts, to validate, as the training data does. Raises DataError
        for one that it does not have."""
        ours, theirs = self.vocabularies, trained.vocabularies
        numbers_like("symbol", theirs["symbols"], ours["symbols"], type(self).__name__)
        classes = numbers_like("class", theirs["classes"], ours["classes"], type(self).__name__)
        self.labels = [classes[label] for label in self.labels]
        self.vocabularies, self._number = theirs, trained._number

    @classmethod
    def of_texts(cls, texts: Sequence[str], names: Mapping[str, Sequence[str]]) -> "LabelledLines":
        """Return texts without classes, numbered by the `names` of training data."""
        made = LabelledLines(texts, [0] * len(texts), names["symbols"], [])
        made.number_by(names)
        return made

    def number_by(self, names: Mapping[str, Sequence[str]]) -> None:
        """Number the characters as the training data does, to predict; those that it does not have are left out, with a
        warning. Raises DataError for a text that has no others."""
        self.vocabularies = {**self.vocabularies, "symbols": [*names["symbols"]]}
        self._number = {symbol: number for number, symbol in enumerate(names["symbols"])}
        if not (unknown := {*"".join(self._texts)} - self._number.keys()):
            return
        kept = ["".join(filter(self._number.__contains__, text)) for text in self._texts]
        if "" in kept:
            text = self._texts[kept.index("")]
            words = f"{text[:60]!r} has no character of the training data, which could say something about it"
            raise DataError(words, code="data/unknown-character")
        many = counted(sum(map(operator.ne, kept, self._texts)), "text")
        listed = ", ".join(map(repr, sorted(unknown)[:12])) + (", …" if len(unknown) > 12 else "")
        log.warning("characters that the training data does not have are left out of %s: %s", many, listed)
        self._texts = kept

    @property
    def longest(self) -> int:
        """Length of the longest text in characters: the maximal width of a batch."""
        return max(map(len, self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        number = self._number
        codes = [number[symbol] for symbol in self._texts[place]]
        return torch.tensor(codes, dtype=torch.int64), self.labels[place]


class Speakers(LabelledLines):
    """Lines of tinyshakespeare and their speakers. Every tenth speech, with all its lines, is split val. Other plays
    work too: speeches separated by an empty line, each starting with a line `NAME:`. Raises NotFoundError if there is
    no such file, DataError if it has no speeches.

    Arguments:
        split: train, val or all.
        classes: speakers, the most frequent ones by lines.
        longest: characters; longer lines are left out.
        path: file, a text in UTF-8.
        lines: of a text: every run of so many lines of a speech (all lines of a shorter one), cut to the first
            `longest` characters."""

    def __init__(
        self,
        split: str = "train",
        classes: int = 10,
        longest: int = 120,
        path: str | os.PathLike[str] = FILE,
        root: str | os.PathLike[str] | None = None,
        lines: int = 1,
    ) -> None:
        who = f"Speakers(split={split!r})"
        if lines < 1:
            raise DataError(f"{who}: lines must be >= 1, got {lines}", code="data/wrong-format")
        choice("Speakers", "split", split, SPLITS)
        self.path = _find(who, path, root)
        speeches = _speeches(text_of(self.path, "text"))
        counts = Counter[str]()
        for speaker, said in speeches:
            counts[speaker] += sum(len(line) <= longest for line in said)
        speakers = [speaker for speaker, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:classes]]
        number = {speaker: label for label, speaker in enumerate(speakers)}
        symbols = {symbol for _, said in speeches for line in said for symbol in line}
        symbols |= {"\n"} if lines > 1 else set()
        texts: list[str] = []
        labels: list[int] = []
        for place, (speaker, said) in enumerate(speeches):
            is_held = place % HELD_BACK == HELD_BACK - 1
            if speaker in number and (split == "all" or is_held == (split == "val")):
                short = [line for line in said if len(line) <= longest]
                starts = range(max(1, len(short) - lines + 1)) if short else ()  # a shorter speech is one run
                kept = ["\n".join(short[start : start + lines])[:longest] for start in starts]
                texts += kept
                labels += [number[speaker]] * len(kept)
        if not texts:
            raise DataError(
                f"{self.path}: split {split} has no speech (an empty line, a line `NAME:` and text)", code="data/empty"
            )
        super().__init__(texts, labels, symbols, speakers)


def _speeches(text: str) -> list[tuple[str, list[str]]]:
    """Return (speaker, non-empty lines) of each speech."""
    found = []
    for is_empty, block in groupby(text.splitlines(), key=lambda line: not line.strip()):
        if not is_empty:
            first, *lines = block
            if first.endswith(":") and lines:
                found.append((first[:-1], lines))
    return found


class Names(LabelledLines):
    """Names by class, in the layout of PyTorch's tutorial: a folder `path` with one .txt file per class, named after
    the class, and a name per line, UTF-8. A name that occurs twice in a file counts once. Raises NotFoundError if there
    is no such folder, DataError for fewer than two classes, an empty split, or text that is not UTF-8.

    Arguments:
        path: folder of .txt files.
        split: train, val or all.
        fraction: part of each class's names, spread evenly, that is split val."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "names",
        split: str = "train",
        fraction: float = 0.1,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Names(path={str(path)!r})"
        choice("Names", "split", split, SPLITS)
        _check_fraction(who, fraction)
        self.path = find_folder(who, path, root, NAMES_ADVICE)
        self.alike = {f"the fraction of {self.path}": fraction}
        files = sorted(self.path.glob("*.txt"))
        if len(files) < 2:
            raise DataError(f"{self.path}: needs two .txt files (classes) or more, has {len(files)}. {NAMES_ADVICE}",
                            code="data/wrong-format")  # fmt: skip
        texts: list[str] = []
        labels: list[int] = []
        symbols: set[str] = set()
        for label, file in enumerate(files):
            names = [*dict.fromkeys(name for line in text_of(file, "text").splitlines() if (name := line.strip()))]
            symbols.update(*names)
            # For every n, `fraction` of the first n are held back.
            is_val = [int((place + 1) * fraction) > int(place * fraction) for place in range(len(names))]
            pairs = zip(names, is_val, strict=True)
            chosen = [name for name, is_held in pairs if split == "all" or is_held == (split == "val")]
            texts += chosen
            labels += [label] * len(chosen)
        if not texts:
            raise DataError(f"{self.path}: split {split} has no name in any file", code="data/empty")
        super().__init__(texts, labels, symbols, [file.stem for file in files])


# ---- files ----------------------------------------------------------------------------------------------------------


def texts_in(path: Path) -> list[str]:
    """Return the lines of a text file, or of all .txt files of a folder, without white space around them and without
    empty ones. Raises NotFoundError, DataError."""
    if not path.exists():
        raise NotFoundError(f"{path}: there is no such file or folder", code="data/not-found")
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    return [line for file in files for one in text_of(file, "text").splitlines() if (line := one.strip())]


def _check_fraction(who: str, fraction: float) -> None:
    """Raise UsageError unless `fraction` is a number between 0 and 1."""
    if not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise bad_argument(f"{who}: fraction must be a number between 0 and 1, got {fraction!r}")


def _find(who: str, path: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> Path:
    """Return the path of tinyshakespeare, or of the user's own file. Raises NotFoundError."""
    return find([Wanted((str(path),))], [*folders(root, "tinyshakespeare"), *beside()], who, ADVICE)[0]
