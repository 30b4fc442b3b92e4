"""The version, and where the code lies. Below everything, so that nothing imports the face of the package for it."""

from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).resolve().parent
PACKAGE_ROOT = str(PACKAGE.parent)  # the folder that comes first on sys.path, so that `hogwild` and `workers` are ours
