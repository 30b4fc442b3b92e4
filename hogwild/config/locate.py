"""The places of job files: the embedded ones in a checkout or a wheel, and the user's own; and of shipped texts."""

import re
from pathlib import Path

from hogwild.config.strict_yaml import decode
from hogwild.errors import NotFoundError, did_you_mean
from hogwild.host.background_thread import Background
from hogwild.version import PACKAGE

LOOK_S = 0.1  # for a signal, while a pipe is read


def list_configs() -> list[Path]:
    """Return the embedded job files, sorted by name."""
    return sorted(shipped("configs").glob("*.yaml"))


def default_config(name: str) -> Path:
    """Return the path of the embedded job file `name` (without .yaml). Raises NotFoundError."""
    path = shipped("configs") / f"{name}.yaml"
    if not path.is_file():
        known = [config.stem for config in list_configs()]
        raise NotFoundError(
            f"no embedded job file {name!r} in {path.parent}{did_you_mean(name, known)} (there: {known})",
            code="run/job-file-not-found",
        )
    return path


_copies: dict[Path, Path] = {}


def read_copy(job_file: str, copy: str) -> None:
    """Let this process read a job file's text from a copy: for trials of a search, whose file may change meanwhile. It
    keeps its name, and its folder, where user code and data lie."""
    _copies[Path(job_file)] = Path(copy)


def read_job_file(path: Path) -> str:
    """Return the text of a job file. Raises NotFoundError if there is none, ConfigError if it is no text."""
    try:
        return decode(_content(_copies.get(path, path)), str(path))
    except IsADirectoryError:
        hint = "; to go on with a run: train --resume" if (path / "resolved.yaml").exists() else ""
        raise NotFoundError(f"{path} is a folder, not a job file{hint}", code="run/job-file-not-found") from None
    except OSError as error:
        raise NotFoundError(_not_found(path, error), code="run/job-file-not-found") from None


def _content(path: Path) -> bytes:
    """Return the bytes of a file. A pipe or terminal is read in a thread: Python's handler of a signal that arrives
    after its last check and before the read begins would run only when the read is over."""
    if not (path.is_fifo() or path.is_char_device()):
        return path.read_bytes()
    reader, content = Background("job file"), list[bytes]()
    reader.submit(path.read_bytes, content.append)
    while not reader.wait(LOOK_S):
        pass
    reader.close()
    return content[0]


def reopenable(job_file: Path, text: str, folder: Path) -> Path:
    """Return a path from which a child process can read the job file. A pipe has been read and would be empty now: its
    text is written to `folder`."""
    if job_file.is_file():
        return job_file
    copy = folder / "job.yaml"
    copy.write_text(text, "utf-8")
    return copy


def shipped(name: str) -> Path:
    """Return the path of a file or folder that is in the package in a wheel, and beside the package in a checkout."""
    return PACKAGE / name if (PACKAGE / name).exists() else PACKAGE.parent / name


def _not_found(path: Path, error: OSError) -> str:
    place = path.absolute()
    nearby = [file.name for file in place.parent.glob("*.y*ml")] if place.parent.is_dir() else []
    # In an installed package, `configs/mnist.yaml` of the documentation is in another folder.
    embedded = next(
        (f"; an embedded job file of that name is {one}" for one in list_configs() if one.name == path.name), ""
    )
    close = did_you_mean(place.name, nearby) or embedded
    return f"job file {path}: {error.strerror or error} (looked for {place}){close}"


def first_sentence(job_file: Path) -> str:
    """Return the start of a job file's first comment, up to the first full stop or colon; "" without a comment."""
    words: list[str] = []
    for line in job_file.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# yaml-language-server"):
            words += line[1:].split()
    return re.split(r"[.:](?: |$)", " ".join(words), maxsplit=1)[0]
