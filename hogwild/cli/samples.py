"""Sample data of `hogwild init`: small, invented, in the formats of the data sets it stands for.

samples.zip: a folder per sample with its files, and beside it NAME.txt, a sentence about it for the job file."""

import zipfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("samples.zip")


def about_sample(name: str) -> str:
    """Return a sentence about a sample."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        return archive.read(f"{name}.txt").decode().strip()


def sample_files(name: str) -> dict[str, bytes]:
    """Return the files of a sample: path below samples/ -> content."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        paths = [path for path in archive.namelist() if path.startswith(f"{name}/")]
        return {path.removeprefix(f"{name}/"): archive.read(path) for path in paths}
