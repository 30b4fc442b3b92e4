"""Search for data files, and the error message when they are missing.

The order: `init_args.root` of the data class, DIR/its own folder, DIR. DIR is `--data-dir`, else the environment
variable HOGWILD_DATA. A user's own file (Npz, Csv) may also lie beside the job file, or in the current folder. All
files of one data set come from one folder: images and labels are never mixed."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import DataError, NotFoundError, UsageError
from hogwild.user_code import data_folders

_chosen: Path | None = None


def set_data_dir(path: str | os.PathLike[str] | None) -> None:
    """Set DIR for this process, in place of HOGWILD_DATA; None restores the variable. For `--data-dir`."""
    global _chosen
    _chosen = None if path is None else Path(os.path.expanduser(path)).absolute()


def data_dir() -> Path | None:
    """Return DIR as an absolute path, or None if it is not set."""
    if _chosen is not None:
        return _chosen
    named = os.environ.get("HOGWILD_DATA")
    return Path(os.path.expanduser(named)).absolute() if named else None


def folders(
    root: str | os.PathLike[str] | None,
    own: str | None,
    last: Sequence[Path] | None = None,
    directory: Path | None = None,
) -> list[Path]:
    """Return the folders to search, in order. `own` is the data set's own folder below DIR; a relative `root` lies
    beside the job file, or in the current folder. `last` and `directory`: `beside()` and DIR of another process."""
    directory = data_dir() if last is None else directory
    last = beside() if last is None else last
    found = [] if root is None else [folder / Path(os.path.expanduser(root)) for folder in last]
    if directory is not None:
        found += [directory / own] if own else []
        found.append(directory)
    return list(dict.fromkeys(found))


def beside() -> list[Path]:
    """Return the last folders to search for a user's own file: the job file's folder, then the current one; for a run
    that is read, those of its training first."""
    return data_folders()


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file under any of its `names`, the usual name first."""

    names: tuple[str, ...]

    def inside(self, folder: Path) -> Path | None:
        return next((folder / name for name in self.names if (folder / name).is_file()), None)


def find(wanted: Sequence[Wanted], where: Sequence[Path], who: str, advice: str) -> list[Path]:
    """Return the paths of all `wanted` files, from the first folder of `where` that has every one of them.

    Raises NotFoundError with the missing files of every folder, the data set `who`, and `advice` on how to get them."""
    for folder in where:
        paths = [path for file in wanted if (path := file.inside(folder))]
        if len(paths) == len(wanted):
            return paths
    looked = []
    for folder in where:
        absent = [file.names[0] for file in wanted if file.inside(folder) is None]
        missing = f"does not hold {', '.join(absent)}"
        if not folder.is_dir():
            missing = "no such folder"
        elif (folder / absent[0]).is_dir():
            missing = f"{folder / absent[0]} is a folder, not a file; name the file in it"
        looked.append(f"  {folder}: {missing}")
    names = " and ".join(file.names[0] for file in wanted)
    raise NotFoundError(
        "\n".join(
            [
                f"{who}: no folder holds {names}. Looked in:",
                *(looked or ["  nowhere: no data folder is set"]),
                advice,
                "Set the folder with --data-dir DIR, the environment variable HOGWILD_DATA=DIR or init_args.root in the"
                " job file.",
            ]
        ),
        code="data/not-found",
    )


def find_file(who: str, path: str | os.PathLike[str], root: str | os.PathLike[str] | None, advice: str) -> Path:
    """Return the path of a user's own file. Raises NotFoundError with the searched folders."""
    given = Path(os.path.expanduser(path))
    name = given.name if given.is_absolute() else str(given)
    return find([Wanted((name,))], places_of(path, root), who, advice)[0]


def places_of(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    last: Sequence[Path] | None = None,
    directory: Path | None = None,
) -> list[Path]:
    """Return the folders to search for a user's own file, each once; `last` and `directory` as for `folders`."""
    given = Path(os.path.expanduser(path))
    found = [*folders(root, None, last, directory), *(beside() if last is None else last)]
    return [given.parent] if given.is_absolute() else list(dict.fromkeys(found))


def find_folder(
    who: str, path: str | os.PathLike[str], root: str | os.PathLike[str] | None, advice: str, what: str = ""
) -> Path:
    """Return the path of a user's own folder, `what` it is. Raises NotFoundError with the searched places."""
    given = Path(os.path.expanduser(path))
    places = list(dict.fromkeys(folder / given for folder in places_of(path, root)))
    for place in places:
        if place.is_dir():
            return place
    looked = "\n".join(f"  {place}: {'is a file' if place.exists() else 'no such folder'}" for place in places)
    raise NotFoundError(
        f"{who}: there is no such folder{what}. Looked at:\n{looked}\n{advice}\n"
        "Set the folder with --data-dir DIR, the environment variable HOGWILD_DATA=DIR or init_args.root.",
        code="data/not-found",
    )


def read(path: Path) -> bytes:
    """Return the whole content. Raises DataError naming the file if it cannot be read."""
    with reading(path):
        return path.read_bytes()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into DataError naming the file or folder."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}", code="data/unreadable") from error


def require(module: str, who: str, package: str, extra: str) -> None:
    """Import `module` from `package`. Raises UsageError naming the `extra` that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{who} needs {package} ({error}): pip install 'hogwild[{extra}]'", code="usage/missing-extra"
        ) from error


def choice(who: str, name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise UsageError unless an argument is one of the allowed values."""
    if value not in allowed:
        raise bad_argument(f"{who}: {name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def bad_argument(message: str) -> UsageError:
    """Return the error for an argument in init_args that a data set refuses."""
    return UsageError(message, code="config/bad-argument")
