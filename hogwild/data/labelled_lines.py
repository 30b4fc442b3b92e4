"""Short texts that belong to a class each: who is speaking, from which language a name comes.

An item is (the numbers of the text's characters (L,) int64, class), each of its own length L: for a feed that pads
(`data.padding`)."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hogwild.data.characters import ADVICE, FILE, OWN_FOLDER, check_fraction, find_own, text_of
from hogwild.data.locate import beside, check_split, folders
from hogwild.errors import DataError, NotFoundError

HELD_BACK = 10  # every tenth speech is for validation
NAMES_ADVICE = (
    "It is a folder with one .txt file per class and one name per line, as in the archive of the tutorial on "
    "classifying names with a character-level RNN (download.pytorch.org/tutorial/data.zip: data/names)."
)


class LabelledLines(Dataset[tuple[Tensor, int]]):
    """`vocabularies`: symbols, the characters by number, and classes, by number."""

    vocabularies: Mapping[str, list[str]] = {}

    def __init__(self, texts: Sequence[str], labels: Sequence[int], symbols: Iterable[str], classes: list[str]) -> None:
        self.vocabularies = {"symbols": sorted(symbols), "classes": classes}
        self._number = {symbol: number for number, symbol in enumerate(self.vocabularies["symbols"])}
        self._texts, self.labels = list(texts), list(labels)

    @property
    def longest(self) -> int:
        """Characters of the longest text: how wide a batch can become."""
        return max(map(len, self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        number = self._number
        codes = [number[symbol] for symbol in self._texts[place]]
        return torch.tensor(codes, dtype=torch.int64), self.labels[place]


class Speakers(LabelledLines):
    """Who is speaking: a line of at most `longest` characters in tinyshakespeare, and which of its `classes` most
    frequent speakers (by lines) says it. Every tenth speech is of split val, with all its lines. A file of another play
    does as well: speeches with an empty line between them, each begun by a line `NAME:`.

    With `lines` a text is every run of so many lines of a speech (all of a shorter one), of which the first `longest`
    characters are read.

    Raises NotFoundError where there is no such file, DataError for one without speeches."""

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
        check_split("Speakers", split, ("train", "val"))
        self.path = find_own(who, path, root, OWN_FOLDER, ADVICE)
        speeches = _speeches(text_of(self.path))
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
            if speaker in number and (place % HELD_BACK == HELD_BACK - 1) == (split == "val"):
                kept = _runs([line for line in said if len(line) <= longest], lines, longest)
                texts += kept
                labels += [number[speaker]] * len(kept)
        if not texts:
            raise DataError(
                f"{self.path}: split {split} has no speech (an empty line, a line `NAME:` and text)",
                code="data/empty",
            )
        super().__init__(texts, labels, symbols, speakers)


def _runs(said: list[str], lines: int, longest: int) -> list[str]:
    """Every run of so many lines, and what is said in fewer as one."""
    starts = range(max(1, len(said) - lines + 1)) if said else ()
    return ["\n".join(said[start : start + lines])[:longest] for start in starts]


def _speeches(text: str) -> list[tuple[str, list[str]]]:
    """(speaker, lines that are not empty) of each."""
    found = []
    for is_empty, block in groupby(text.splitlines(), key=lambda line: not line.strip()):
        if not is_empty:
            first, *lines = block
            if first.endswith(":") and lines:
                found.append((first[:-1], lines))
    return found


class Names(LabelledLines):
    """Names by class, in the layout of PyTorch's tutorial: a folder `path` with one .txt file per class, called as the
    class, and a name per line, UTF-8. Of every class the same `fraction` of its names, spread evenly, is of split val.
    A name that is in a file twice counts once.

    `path` is looked for below `root`, below DIR, beside the job file and in the current folder. Raises NotFoundError
    where there is no such folder, DataError for fewer than two classes, an empty split, or no UTF-8."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "names",
        split: str = "train",
        fraction: float = 0.1,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Names(path={str(path)!r})"
        check_split("Names", split, ("train", "val"))
        check_fraction(who, fraction)
        self.path = _folder(who, Path(path), root)
        files = sorted(self.path.glob("*.txt"))
        if len(files) < 2:
            raise DataError(f"{self.path}: needs two .txt files (classes) or more, has {len(files)}. {NAMES_ADVICE}",
                            code="data/wrong-format")  # fmt: skip
        texts: list[str] = []
        labels: list[int] = []
        symbols: set[str] = set()
        for label, file in enumerate(files):
            names = [*dict.fromkeys(name for line in text_of(file).splitlines() if (name := line.strip()))]
            symbols.update(*names)
            chosen = [name for place, name in enumerate(names) if _is_held_back(place, fraction) == (split == "val")]
            texts += chosen
            labels += [label] * len(chosen)
        if not texts:
            raise DataError(f"{self.path}: split {split} has no name in any file", code="data/empty")
        super().__init__(texts, labels, symbols, [file.stem for file in files])


def _is_held_back(place: int, fraction: float) -> bool:
    """So many of the first n, for every n, as `fraction` of n says."""
    return int((place + 1) * fraction) > int(place * fraction)


def _folder(who: str, path: Path, root: str | os.PathLike[str] | None) -> Path:
    looked = [folder / path for folder in [*folders(root, None), *beside()]]
    for folder in looked:
        if folder.is_dir():
            return folder
    raise NotFoundError(
        f"{who}: there is no such folder. Looked for:\n"
        + "\n".join(f"  {one}" for one in looked)
        + f"\n{NAMES_ADVICE}",
        code="data/not-found",
    )
