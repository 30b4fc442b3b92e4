"""Download of published files: written under a temporary name, synced, compared with a known checksum, renamed.

Mirrors are trusted only as far as the checksum, so any address works, even http. Nothing is downloaded unless a job
says `download: true`."""

import contextlib
import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import DataError, HogwildError, NotFoundError
from hogwild.storage.files import sync_folder, temporary
from hogwild.storage.published_folder import sweep_stale

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


class _NotAsPublished(Exception):
    """The received file is not the published one."""


def cache_folder(own: str) -> Path:
    """Return the default folder for downloads: XDG_CACHE_HOME, else ~/.cache, as freedesktop.org specifies."""
    named = os.environ.get("XDG_CACHE_HOME")
    base = Path(named) if named and Path(named).is_absolute() else Path.home() / ".cache"
    return base / "hogwild" / own


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
    for mirror in mirrors:
        address = f"{mirror.rstrip('/')}/{file.name}"
        log.warning("%s: fetching %s into %s", who, address, folder)
        try:
            with _folder_errors(folder, who):
                folder.mkdir(parents=True, exist_ok=True)
            with temporary(folder / file.name) as aside:
                _receive(file, address, aside, who, silence_s)
                with _folder_errors(folder, who):
                    aside.replace(folder / file.name)
                    sync_folder(folder)
                    sweep_stale(folder, (folder / file.name).stat().st_mtime, file.name)
            return folder / file.name
        except _NotAsPublished as error:
            is_damaged = True
            said.append(f"  {address}: {error}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            said.append(f"  {address}: {_reason(error, silence_s)}")
    raise _failure(file, folder, who, said, is_damaged)


@contextlib.contextmanager
def _folder_errors(folder: Path, who: str) -> Iterator[None]:
    """Turn errors of our own disk into DataError, to separate them from network errors: both are OSErrors."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{who}: cannot write into {folder}: {error.strerror or error}; choose another folder with init_args.root "
            "or --data-dir",
            code="data/download-folder",
        ) from error


def _receive(file: Published, address: str, aside: Path, who: str, silence_s: float) -> None:
    digest, size = file.digest(), 0
    request = urllib.request.Request(address, headers={"User-Agent": AGENT})
    with urllib.request.urlopen(request, timeout=silence_s) as answer:
        with _folder_errors(aside.parent, who):
            stream = open(aside, "wb")  # noqa: SIM115 closed two lines below, whatever the net says meanwhile
        with stream:
            while chunk := answer.read(CHUNK):
                size += len(chunk)
                if size > MOST_BYTES:
                    raise _NotAsPublished(f"sends more than {MOST_BYTES:,} bytes")
                digest.update(chunk)
                with _folder_errors(aside.parent, who):
                    stream.write(chunk)
            with _folder_errors(aside.parent, who):
                stream.flush()
                os.fsync(stream.fileno())
    found = digest.hexdigest()
    if found != file.checksum:
        raise _NotAsPublished(
            f"sent {size:,} bytes with the {digest.name} sum {found}; it must be {file.checksum}. They were not kept"
        )


def _reason(error: Exception, silence_s: float) -> str:
    """Return a mirror's answer, or the lack of one, in words."""
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
