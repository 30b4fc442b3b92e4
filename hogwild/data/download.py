"""Download of published files: written under a temporary name, synced, compared with a known checksum, renamed.

Mirrors are trusted only as far as the checksum, so any address works, even http. Nothing is downloaded unless a job
says `download: true`."""

import contextlib
import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import DataError, HogwildError, NotFoundError
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
    return [_fetch_one(file, mirrors, folder, who, silence_s) for file in files]


def _fetch_one(file: Published, mirrors: Sequence[str], folder: Path, who: str, silence_s: float) -> Path:
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
    raise _failure(file, folder, who, said, is_damaged)


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


def _failure(file: Published, folder: Path, who: str, said: Sequence[str], is_damaged: bool) -> HogwildError:
    lines = [
        f"{who}: cannot download {file.name} into {folder}:",
        *said,
        f"Without a connection, copy the file into {folder} yourself; its checksum is {file.checksum}. Behind a proxy "
        "set https_proxy; choose another mirror with init_args.mirror.",
    ]
    kind, code = (DataError, "data/checksum") if is_damaged else (NotFoundError, "data/download")
    return kind("\n".join(lines), code=code)
