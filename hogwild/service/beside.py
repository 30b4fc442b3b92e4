"""Copies that go with a job: the modules of its file's folder, and small files that these may open."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hogwild.errors import UsageError
from hogwild.formatting import counted, size
from hogwild.service.folders import CACHE, MOST_BYTES, MOST_FILES, is_name
from hogwild.storage.files import file_bytes

MOST_OF_ONE = 1 << 20  # bytes of a file that is no module
MOST_OF_OTHERS = 4 << 20  # bytes of all of them
MOST_IN_FOLDER = 200  # files of a folder that is no package
NAMED = 5  # of those that are not copied


@dataclass(frozen=True, slots=True)
class Beside:
    """Files beside a job file, for the job's own code: `modules`, relative path -> text, are its folder's .py files and
    those of packages (folders with an __init__.py); `others` -> content are small files beside them and in further
    folders, such as a vocabulary. `left_out`: what is not copied. Without a .py file no code of the job opens any."""

    modules: dict[str, str]
    others: dict[str, bytes]
    left_out: list[str]

    @classmethod
    def of(cls, folder: Path, used: int) -> "Beside":
        """Look into the folder; `used`: bytes of the job file. Raises UsageError for modules that are larger than a
        service takes."""
        found, left_out = cls({}, {}, []), list[str]()
        others, total, folders = list[Path](), used, [folder]
        while folders:
            for entry in sorted(folders.pop().iterdir()):
                if entry.is_dir() and (entry / "__init__.py").is_file():
                    folders.append(entry)
                elif entry.suffix == ".py" and entry.is_file():
                    total += entry.stat().st_size
                    if total > MOST_BYTES:
                        raise UsageError(
                            f"the .py files in {folder} have more than {MOST_BYTES >> 20} MiB, which is the most that "
                            "is copied with a job; put the job file into a folder with the modules it needs",
                            code="service/too-large",
                        )
                    found.modules[str(entry.relative_to(folder))] = _text_of(entry)
                elif entry.is_dir() and _may_be_wanted(entry):
                    below = [*islice(_files_below(entry), MOST_IN_FOLDER + 1)]
                    others += below[:MOST_IN_FOLDER]
                    left_out += [f"more of {entry.name}/"] * (len(below) > MOST_IN_FOLDER)
                elif entry.is_file() and _may_be_wanted(entry):
                    others.append(entry)
        if not found.modules and not any(file.suffix == ".py" for file in others):
            return found
        left = min(MOST_OF_OTHERS, MOST_BYTES - total)
        for file in sorted(others, key=file_bytes):
            name, count = str(file.relative_to(folder)), file_bytes(file)
            is_small = count <= min(MOST_OF_ONE, left) and len(found.modules) + len(found.others) + 1 < MOST_FILES
            if is_small and is_name(name):
                with contextlib.suppress(OSError):  # the job may not read it either
                    found.others[name] = file.read_bytes()[:count]
                    left -= count
            else:
                left_out.append(f"{name} ({size(count)})")
        found.left_out.extend(left_out)
        return found

    @property
    def words(self) -> str:
        more = len(self.left_out) - NAMED
        named = ", ".join([*self.left_out[:NAMED], *([f"{counted(more, 'other')}"] if more > 0 else [])])
        return (
            f"not copied with the job: {named}. Its own code finds these by an absolute path only, data sets find them "
            f"as ever. Copied are {counted(len(self.modules), 'module')} and {counted(len(self.others), 'other file')} "
            f"(of {size(MOST_OF_ONE)} at most, {size(MOST_OF_OTHERS)} in all, {MOST_IN_FOLDER} in a folder)"
        )


def _may_be_wanted(entry: Path) -> bool:
    return not entry.name.startswith(".") and entry.name not in (CACHE, "runs")


def _files_below(folder: Path) -> Iterator[Path]:
    seen = {folder.resolve()}
    for where, folders, files in os.walk(folder, followlinks=True):
        inner = {one: Path(where, one).resolve() for one in sorted(folders) if _may_be_wanted(Path(one))}
        folders[:] = [one for one, place in inner.items() if place not in seen]  # a link may lead back
        seen.update(inner.values())
        yield from (file for name in sorted(files) if _may_be_wanted(file := Path(where, name)) and file.is_file())


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text ({error.reason})", code="service/bad-file") from None
