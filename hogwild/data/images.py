"""A user's own images, one folder per class, read by Pillow."""

import hashlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hogwild.data.input_rows import numbers_like
from hogwild.data.locate import bad_argument, find_folder, read, reading, require
from hogwild.errors import DataError, did_you_mean

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MODES = {1: "L", 3: "RGB"}
VERSION = 2  # of this class's output for a file; part of the fingerprint
SHOWN = 5  # names in a message
PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}  # folders that are no classes
log = logging.getLogger(__name__)


class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """One sample per image below `path`, or `path`/`split`: x (C, H, W) float32 in [0, 1], y () int64; `rows` returns x
    (N, C, H, W) and y (N,).

    Every folder there is a class; its number is its place among the sorted names. Images in subfolders of a
    class folder are included, in the order of their names. Files that are not images (by extension: bmp, gif, jpg,
    jpeg, pgm, png, ppm, tif, tiff, webp) are not read, and their number is logged.

    Every image is rotated by its EXIF orientation, converted to `channels` (3: RGB, 1: grey; transparency is dropped;
    16-bit grey is scaled) and resized by Pillow's bilinear filter, ignoring its proportions. Of several frames the
    first is used.

    Needs Pillow (pip install 'hogwild[images]'). Raises NotFoundError, UsageError for arguments, and DataError naming
    the file: no classes, an empty class, an unreadable image, with Pillow's message.

    Arguments:
        path: folder with a folder for each class.
        size: [height, width] in pixels, or one number for both.
        split: name of a folder in `path` that holds the folders of the classes, such as train.
        channels: 3, RGB, or 1, grey.
        mean: one number per channel in units of [0, 1], subtracted from the pixels.
        deviation: one number per channel in units of [0, 1]; the pixels are divided by it after that.
        classes: folder names, to fix the numbers if a split may lack a class; other folders are then an error."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        size: int | Sequence[int],
        split: str | None = None,
        channels: int = 3,
        mean: Sequence[float] | None = None,
        deviation: Sequence[float] | None = None,
        classes: Sequence[str] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"ImageFolder(path={str(path)!r})"
        require("PIL.Image", "hogwild.data.ImageFolder", "Pillow", "images")
        pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, Sequence) else ()
        if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
            raise bad_argument(f"{who}: size must be [height, width] in pixels, or one number for both, got {size!r}")
        self.size: tuple[int, int] = (pair[0], pair[1])
        if channels not in MODES:
            raise bad_argument(f"{who}: channels must be 3 (RGB) or 1 (grey), got {channels!r}")
        self._mode = MODES[channels]
        self._mean = _per_channel(who, "mean", mean, channels, 0.0)
        self._deviation = _per_channel(who, "deviation", deviation, channels, 1.0)
        part = f" with a part {split!r}" if split else ""
        self.folder = find_folder(who, Path(path) / (split or ""), root, "It has a folder for each class.", part)
        self.classes = _classes(self.folder, classes, who)
        self._names, counts = _pictures(self.folder, self.classes)
        self._labels = np.repeat(np.arange(len(counts)), counts)

    def read_like(self, trained: "ImageFolder") -> None:
        """Number the classes of these images, to validate, as the training data does. Raises DataError for a class
        that it does not have."""
        numbers = numbers_like("class", trained.classes, self.classes, self.folder)
        self._labels = np.array(numbers)[self._labels]
        self.classes = trained.classes

    @property
    def alike(self) -> dict[str, Any]:
        """The arguments that training and validation data share."""
        return {"mean": self._mean.tolist(), "deviation": self._deviation.tolist()}

    @property
    def vocabularies(self) -> dict[str, list[str]]:
        """The names of the classes, by number."""
        return {"classes": list(self.classes)}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that a model takes from the images."""
        channels = len(self._mean)
        return {"classes": len(self.classes), "channels": channels, "features": channels * self.size[0] * self.size[1]}

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        count = len(self)
        if not -count <= position < count:
            raise IndexError(f"picture {position} of {count}")
        x, y = self.rows(position % count, position % count + 1)
        return x[0], y[0]

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return images [start, stop): x (stop - start, C, H, W) float32, y (stop - start,) int64. Raises DataError
        naming a file that cannot be read."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"pictures {start} to {stop} of {len(self)}")
        pixels = np.empty((stop - start, *self.size, len(self._mean)), np.uint8)
        for picture, name in zip(pixels, self._names[start:stop], strict=True):
            picture[:] = self._pixels(self.folder / name)
        x = np.empty((stop - start, len(self._mean), *self.size), np.float32)
        scale = np.float32(1) / (255 * self._deviation)
        np.multiply(pixels.transpose(0, 3, 1, 2), scale[:, None, None], out=x)
        if self._mean.any():
            x -= (self._mean / self._deviation)[:, None, None]
        return torch.from_numpy(x), torch.from_numpy(self._labels[start:stop].astype(np.int64))

    def fingerprint(self) -> str:
        """Return a hash of every image's name, size and content, and of every argument that changes a sample."""
        digest = hashlib.sha256(
            repr((VERSION, self.classes, self.size, self._mode, self._mean.tolist(), self._deviation.tolist())).encode()
        )
        for name in self._names:
            content = read(self.folder / name)
            digest.update(f"{len(os.fsencode(name))} {len(content)} ".encode() + os.fsencode(name))
            digest.update(content)
        return digest.hexdigest()

    def _pixels(self, file: Path) -> np.ndarray:
        """Return one image (H, W, C) uint8."""
        from PIL import Image, ImageOps

        height, width = self.size
        try:
            with warnings.catch_warnings(), Image.open(file) as opened:
                warnings.simplefilter("ignore")  # about odd metadata; unreadable files raise
                opened.draft(self._mode, (max(self.size),) * 2)  # decodes a large JPEG at 1/2, 1/4 …
                whole = _eight_bits(ImageOps.exif_transpose(opened))
                small = whole.convert(self._mode).resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{file}: cannot be read as a picture: {error or type(error).__name__}; replace or remove it",
                code="data/broken-image",
            ) from error
        return np.asarray(small, np.uint8).reshape(height, width, len(self._mean))


def _eight_bits(picture: Any) -> Any:
    """Convert a 16-bit grey image to 8 bits: Pillow's own conversion clips everything above 255. Palettes with
    transparency go through RGBA, as Pillow requires. Raises ValueError for numbers of an unknown scale."""
    from PIL import Image

    if picture.mode[0] in "IF":
        values = np.asarray(picture, np.float32)
        if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
            found = f"from {values.min():g} to {values.max():g}"
            raise ValueError(f"its grey values, {found}, are not of 8 or 16 bits; save it as one of these")
        return Image.fromarray((values / 257).round().astype(np.uint8))  # 65,535 becomes 255
    return picture.convert("RGBA") if picture.mode == "P" and "transparency" in picture.info else picture


def _classes(folder: Path, wanted: Sequence[str] | None, who: str) -> tuple[str, ...]:
    entries = _listed(folder)
    there = tuple(entry.name for entry in entries if entry.is_dir())
    beside_them = [entry.name for entry in entries if not entry.is_dir()]
    if not there:
        found = f"it holds {len(beside_them)} files" if beside_them else "it is empty"
        raise DataError(
            f"{folder}: it has no class folders ({found}); put the pictures of each class into a separate "
            "folder" + ("" if not beside_them else ", or choose a part with split"),
            code="data/image-classes",
        )
    if wanted is None and PARTS.issuperset(name.lower() for name in there):
        raise DataError(
            f"{folder}: its folders {', '.join(there)} are parts, not classes: choose one with split, or name them in "
            "classes if they are classes",
            code="data/image-classes",
        )
    if beside_them:
        log.warning("%s: %s next to the class folders skipped: %s", folder, *_counted(beside_them))
    if wanted is None:
        return there
    if isinstance(wanted, str) or not wanted or len(set(wanted)) < len(wanted):
        raise bad_argument(f"{who}: classes must be a list of different folder names, got {wanted!r}")
    unknown = [name for name in there if name not in wanted]
    if unknown:
        near = did_you_mean(unknown[0], wanted)
        raise DataError(
            f"{folder / unknown[0]}: is not one of the classes ({', '.join(wanted[:12])}){near}; add it or move it",
            code="data/image-classes",
        )
    return tuple(wanted)


def _pictures(folder: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the paths of all images below `folder`, class by class, and the number per class. A requested class
    without a folder has none."""
    names, counts, others = list[str](), list[int](), list[str]()
    for name in classes:
        before = len(names)
        for file in _walk(folder / name) if (folder / name).is_dir() else ():
            is_picture = file.lower().endswith(EXTENSIONS)
            (names if is_picture else others).append(os.path.relpath(file, folder))
        counts.append(len(names) - before)
        if not counts[-1] and (folder / name).is_dir():
            raise DataError(
                f"{folder / name}: this class has no picture ({', '.join(EXTENSIONS)}); remove the folder, or fill it",
                code="data/image-classes",
            )
    if others:
        log.warning("%s: %s skipped (not a picture by extension): %s", folder, *_counted(others))
    if not names:
        raise DataError(f"{folder}: holds no picture of any of the classes {', '.join(classes)}", code="data/empty")
    return names, counts


def _walk(folder: Path) -> Iterator[str]:
    """Yield every file below, in the order of the names."""
    for entry in _listed(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield entry.path


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries, sorted by name; hidden ones (.DS_Store) are skipped."""
    with reading(folder), os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _counted(names: Sequence[str]) -> tuple[str, str]:
    more = ", …" if len(names) > SHOWN else ""
    return f"{len(names):,} file{'s' * (len(names) > 1)}", ", ".join(names[:SHOWN]) + more


def _per_channel(who: str, what: str, given: Any, channels: int, otherwise: float) -> np.ndarray:
    """Return one value per channel, (channels,) float32."""
    values = [otherwise] * channels if given is None else given
    is_list = isinstance(values, Sequence) and not isinstance(values, str) and len(values) == channels
    numbers = is_list and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    if not numbers or not np.isfinite(values).all() or (what == "deviation" and min(values) <= 0):
        rule = "positive numbers" if what == "deviation" else "numbers"
        raise bad_argument(f"{who}: {what} must be a list of {channels} {rule}, one per channel, got {given!r}")
    return np.array(values, np.float32)
