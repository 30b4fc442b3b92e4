"""A text as character numbers: consecutive windows for next-character prediction."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from hogwild.data.locate import Wanted, beside, choice, find, folders, read
from hogwild.errors import DataError, UsageError

OWN_FOLDER, FILE = "tinyshakespeare", "input.txt"
ADVICE = (
    "tinyshakespeare is one file of 1,115,394 characters, published by A. Karpathy (karpathy/char-rnn on GitHub, "
    "data/tinyshakespeare/input.txt); to use your own UTF-8 text, set path."
)


class Characters(TensorDataset):
    """Windows of a text: x (N, steps) int64, the numbers of `steps` characters, and y (N, steps) int64, the numbers of
    the characters that follow each of them. Window i + 1 begins where window i ends, as `data.lanes` requires;
    characters at the end that fill no window are left out.

    The last `fraction` of the text is split val, the rest is split train. A character's number is its place among all
    characters of the whole file, sorted: `vocabularies["symbols"]`. tinyshakespeare has 65. `path` is searched as
    `hogwild.data.locate` says; the data set's own folder is `tinyshakespeare`.

    Raises NotFoundError if there is no such file, DataError if it is not UTF-8 or too short, UsageError for invalid
    arguments."""

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
        choice("Characters", "split", split, ("train", "val"))
        if type(steps) is not int or steps < 1:
            raise UsageError(f"{who}: steps must be a whole number >= 1, got {steps!r}", code="config/bad-argument")
        check_fraction(who, fraction)
        self.path = find_own(who, path, root, OWN_FOLDER, ADVICE)
        text = text_of(self.path)
        symbols, numbers = np.unique(as_codes(text), return_inverse=True)
        self.vocabularies = {"symbols": [chr(code) for code in symbols.tolist()]}
        begin = len(text) - round(len(text) * fraction)
        part = numbers[:begin] if split == "train" else numbers[begin:]
        windows = (len(part) - 1) // steps
        if windows < 1:
            raise DataError(
                f"{self.path}: split {split} has {len(part):,} characters, too few for a window of {steps} + 1",
                code="data/empty",
            )
        used = torch.from_numpy(part[: windows * steps + 1].astype(np.int64))
        super().__init__(used[:-1].view(windows, steps), used[1:].view(windows, steps))


def check_fraction(who: str, fraction: float) -> None:
    """Raise UsageError unless `fraction` is a number between 0 and 1."""
    if not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise UsageError(
            f"{who}: fraction must be a number between 0 and 1, got {fraction!r}", code="config/bad-argument"
        )


def find_own(
    who: str, path: str | os.PathLike[str], root: str | os.PathLike[str] | None, own: str | None, advice: str
) -> Path:
    """Return the path of a file that may be the user's own. Raises NotFoundError."""
    (found,) = find([Wanted((str(path),))], [*folders(root, own), *beside()], who, advice)
    return found


def text_of(path: Path) -> str:
    """Return the file's text. Raises DataError if it is not UTF-8."""
    content = read(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: line {line:,}: not UTF-8 ({error.reason}); convert the file",
            code="data/wrong-format",
        ) from None


def as_codes(text: str) -> np.ndarray:
    """Return the Unicode numbers of the characters, (characters,) uint32."""
    codes: np.ndarray = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return codes
