"""The version, and the folder of the code. Lowest module: nothing must import the package's `__init__` for these."""

from pathlib import Path

__version__ = "0.2.0"

PACKAGE = Path(__file__).resolve().parent
PACKAGE_ROOT = str(PACKAGE.parent)  # the folder that comes first on sys.path, so that `hogwild` is ours
