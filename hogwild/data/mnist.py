"""MNIST and Fashion-MNIST from their four original files: the same format, sizes and classes, but other images.

The IDX format, plain or packed:

byte  0, 1   zero
      2      type of a value (8: unsigned byte)
      3      number of dimensions D
      4 ...  D sizes, 4 bytes each, most significant byte first
      then the values, the last dimension fastest

Nothing is downloaded unless a job says `download: true`: into a temporary name, synced, compared with a known checksum,
renamed. Mirrors are trusted only as far as the checksum, so any address works, even http."""

import contextlib
import hashlib
import http.client
import logging
import math
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from hogwild.data.locate import Wanted, choice, find, folders
from hogwild.data.text_file import content_of
from hogwild.errors import DataError, NotFoundError, UsageError
from hogwild.storage.artifact_cache import cache_root
from hogwild.storage.files import sync_folder, temporary
from hogwild.storage.published_folder import HashedFile, sweep_stale

SILENCE_S = 30.0  # give up on a server that sends nothing for so long
MOST_BYTES = 1 << 30  # no data set of ours is larger: an endless answer must not fill the disk
CHUNK = 1 << 18
AGENT = "hogwild (a data set's own files, fetched once)"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A published file. `checksum` is hexadecimal: md5 with 32 digits or sha256 with 64."""

    name: str
    checksum: str

    def digest(self) -> Any:
        return hashlib.sha256() if len(self.checksum) == 64 else hashlib.md5(usedforsecurity=False)


class _NotSent(Exception):
    """A mirror's answer, or the lack of one, in words."""


class _NotAsPublished(_NotSent):
    """The received file is not the published one."""


def fetch(
    files: Sequence[Published], mirrors: Sequence[str], folder: Path, who: str, silence_s: float = SILENCE_S
) -> list[Path]:
    """Download every file into `folder`, each from the first of the `mirrors` (addresses of folders) that sends the
    published content. Several processes may do so at once.

    Raises NotFoundError if no mirror has it, with each mirror's answer and the manual steps, and DataError if one sent
    another file, or if the folder is not writable."""
    return [_fetched(file, mirrors, folder, who, silence_s) for file in files]


def _fetched(file: Published, mirrors: Sequence[str], folder: Path, who: str, silence_s: float) -> Path:
    said: list[str] = []
    is_damaged = False
    path = folder / file.name
    for mirror in mirrors:
        address = f"{mirror.rstrip('/')}/{file.name}"
        log.warning("%s: fetching %s into %s", who, address, folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with temporary(path) as aside:
                _receive(file, address, aside, silence_s)
                aside.replace(path)
            sync_folder(folder)
            sweep_stale(folder, path.stat().st_mtime, file.name)
            return path
        except _NotSent as error:
            is_damaged = is_damaged or isinstance(error, _NotAsPublished)
            said.append(f"  {address}: {error}")
        except OSError as error:  # of our own disk: those of the network are `_NotSent`
            raise DataError(
                f"{who}: cannot write into {folder}: {error.strerror or error}; choose another folder with "
                "init_args.root or --data-dir",
                code="data/download-folder",
            ) from error
    kind, code = (DataError, "data/checksum") if is_damaged else (NotFoundError, "data/download")
    lines = [
        f"{who}: cannot download {file.name} into {folder}:",
        *said,
        f"Without a connection, copy the file into {folder} yourself; its checksum is {file.checksum}. Behind a proxy "
        "set https_proxy; choose another mirror with init_args.mirror.",
    ]
    raise kind("\n".join(lines), code=code)


def _receive(file: Published, address: str, aside: Path, silence_s: float) -> None:
    with contextlib.closing(HashedFile(aside, file.digest())) as stream:
        for chunk in _sent(address, silence_s):
            stream.write(chunk)
            if stream.error is not None:
                break
            if stream.size > MOST_BYTES:
                raise _NotAsPublished(f"sends more than {MOST_BYTES:,} bytes")
        entry = stream.finish()
    algorithm = file.digest().name
    if entry[algorithm] != file.checksum:
        raise _NotAsPublished(
            f"sent {entry['size']:,} bytes with the {algorithm} sum {entry[algorithm]}; it must be {file.checksum}. "
            "They were not kept"
        )


def _sent(address: str, silence_s: float) -> Iterator[bytes]:
    """Yield what a mirror sends. Raises _NotSent."""
    try:
        request = urllib.request.Request(address, headers={"User-Agent": AGENT})
        with urllib.request.urlopen(request, timeout=silence_s) as answer:
            while chunk := answer.read(CHUNK):
                yield chunk
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _NotSent(_reason(error, silence_s)) from error


def _reason(error: Exception, silence_s: float) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:  # it holds the connection
            return f"answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer for {silence_s:g} s"
    if isinstance(cause, http.client.IncompleteRead):
        return f"the connection ended after {len(cause.partial):,} bytes"
    return f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__}"


# ---- the data sets --------------------------------------------------------------------------------------------------

SIDE = 28
CLASSES = 10
_STEMS = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 8
_KINDS = {1: "labels (1 dimension)", 3: "images (3 dimensions)"}


class Mnist(TensorDataset):
    """Handwritten digits: x (N, 1, 28, 28) float32, y (N,) int64 in 0..9; 60,000 train and 10,000 test
    samples.

    Files: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, each also
    with .gz and also spelt train-images.idx3-ubyte; searched as `hogwild.data.locate` says; the data set's own folder
    is `mnist`. Raises NotFoundError for missing files and DataError for invalid ones.

    Arguments:
        split: train or test.
        normalize: subtract the mean of the training pixels and divide by their deviation; without it x is in [0, 1].
        download: fetch missing files, compare them with the published checksums, and store them in `root`, else
            DIR/own folder, else the user's cache folder (~/.cache/hogwild/mnist).
        mirror: address of a folder to download from instead of the published ones."""

    sizes: ClassVar[Mapping[str, int]] = {"features": SIDE * SIDE, "channels": 1, "classes": CLASSES}
    own_folder: ClassVar[str] = "mnist"
    mean: ClassVar[float] = 0.1307
    deviation: ClassVar[float] = 0.3081
    advice: ClassVar[str] = (
        "MNIST is published by Y. LeCun, C. Cortes and C. Burges (yann.lecun.com/exdb/mnist): four files, "
        "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz, usable as they are; download: true fetches them."
    )
    # The first publisher's own site now asks for a password.
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    published: ClassVar[tuple[Published, ...]] = (  # SHA-256 of files with the right published MD5 sums
        Published("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        Published("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        Published("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        Published("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )

    def __init__(
        self,
        split: str = "train",
        root: str | os.PathLike[str] | None = None,
        normalize: bool = True,
        download: bool = False,
        mirror: str | None = None,
    ) -> None:
        who = f"{type(self).__name__}(split={split!r})"
        choice(type(self).__name__, "split", split, tuple(_STEMS))
        wanted = [_wanted(_STEMS[split], "images", 3), _wanted(_STEMS[split], "labels", 1)]
        where = folders(root, self.own_folder)
        if mirror is not None and not download:
            raise UsageError(f"{who}: mirror has no effect without download: true", code="config/contradiction")
        if download:
            where = self._downloaded(wanted, where, mirror, who)
        image_file, label_file = find(wanted, where, who, self.advice)
        images, labels = read_idx(image_file, 3), read_idx(label_file, 1)  # (N, 28, 28) and (N,) uint8
        if images.shape[1:] != (SIDE, SIDE):
            raise DataError(
                f"{image_file}: images must be {SIDE} x {SIDE}, its header says {images.shape[1:]}",
                code="data/wrong-format",
            )
        if len(images) != len(labels):
            raise DataError(
                f"{image_file} holds {len(images):,} images, {label_file} holds {len(labels):,} labels: "
                "the numbers must be equal; the two files do not belong together",
                code="data/fields",
            )
        if labels.max() >= CLASSES:
            at = int(labels.argmax())
            raise DataError(
                f"{label_file}: label {labels[at]} of sample {at:,} is out of range: must be < {CLASSES}",
                code="data/bad-value",
            )
        self.alike = {"normalize": normalize}
        mean, deviation = (self.mean, self.deviation) if normalize else (0.0, 1.0)
        # Written directly into the tensor: one pass to widen, one in place, and no second copy of the floats.
        x = torch.empty((len(images), 1, SIDE, SIDE), dtype=torch.float32)
        values = x.numpy()[:, 0]
        np.multiply(images, np.float32(1 / (255 * deviation)), out=values, dtype=np.float32)
        if mean:
            values -= np.float32(mean / deviation)
        super().__init__(x, torch.from_numpy(labels.astype(np.int64)))

    def _downloaded(self, wanted: list[Wanted], where: list[Path], mirror: str | None, who: str) -> list[Path]:
        """Return folders, one of which now holds all wanted files. A named root is the user's and gets the files
        directly; DIR gets a subfolder, because both data sets use the same file names."""
        own = cache_root() / self.own_folder
        if any(all(file.inside(folder) for file in wanted) for folder in [*where, own]):
            return [*where, own]
        home = where[0] if where else own
        names = {name for file in wanted if file.inside(home) is None for name in file.names}
        fetch([file for file in self.published if file.name in names], [mirror] if mirror else self.mirrors, home, who)
        return [home]


class FashionMnist(Mnist):
    """Images of ten kinds of clothes; shapes, splits, files and errors as for `Mnist`; the own folder is
    `fashion_mnist`. The files have the same names as MNIST's: keep the two in separate folders."""

    own_folder: ClassVar[str] = "fashion_mnist"
    mean: ClassVar[float] = 0.2860
    deviation: ClassVar[float] = 0.3530
    advice: ClassVar[str] = (
        "Fashion-MNIST is published by Zalando Research (zalandoresearch/fashion-mnist on GitHub): four "
        "files, {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz, usable as they are; download: true fetches them."
    )
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    )
    published: ClassVar[tuple[Published, ...]] = (  # MD5, from the publishers' README
        Published("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Published("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Published("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Published("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    )


def _wanted(stem: str, kind: str, dimensions: int) -> Wanted:
    """Return both spellings in use: the original one, and the one that some archives unpack to."""
    spellings = (f"{stem}-{kind}-idx{dimensions}-ubyte", f"{stem}-{kind}.idx{dimensions}-ubyte")
    return Wanted(tuple(name + end for name in spellings for end in ("", ".gz")))


# ---- the IDX format -------------------------------------------------------------------------------------------------


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the values of an IDX file of unsigned bytes as an array of `dimensions` dimensions, uint8.

    Raises DataError with the file, the found and the expected value: damaged, not an IDX file, another number of
    dimensions, fewer or more bytes than the header promises, no items."""
    content = content_of(path, "bytes")
    expected, found_magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions]), bytes(content[:4])
    if found_magic != expected:
        is_other = found_magic[:3] == expected[:3] and found_magic[3] in _KINDS
        hint = f": {_KINDS[found_magic[3]]} where" if is_other else ";"
        raise DataError(
            f"{path}: wrong magic number at byte 0: found {found_magic!r}{hint} {_KINDS[dimensions]} were "
            f"expected, which begin with {expected!r}",
            code="data/wrong-format",
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(
            f"{path}: truncated: the header is {start} bytes long, the file holds {len(content)}",
            code="data/truncated-file",
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    promised, found = math.prod(shape), len(content) - start
    if found != promised:
        what = "truncated" if found < promised else "has bytes after its end"
        raise DataError(
            f"{path}: {what}: the header promises {_times(shape)} = {promised:,} bytes of values after byte "
            f"{start}, the file holds {found:,}; get the file again",
            code="data/truncated-file",
        )
    if shape[0] == 0:
        raise DataError(f"{path}: contains no items: its header says {_times(shape)}", code="data/empty")
    return np.frombuffer(content, np.uint8, promised, start).reshape(shape)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
