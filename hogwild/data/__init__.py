"""Data sets that ship with hogwild. Any other map-style `torch.utils.data.Dataset` is named in a job by its
class path.

Each class is a `torch.utils.data.TensorDataset`: `dataset[i]` is one sample, `dataset.tensors` is all of it
in memory, samples first, inputs first and the target last. Importing this package imports no torch; a class
is loaded at its first use. `hogwild.data.files` says where data files are looked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.data.digits import Digits
    from hogwild.data.mnist import FashionMnist, Mnist
    from hogwild.data.npz import Npz

__all__ = ["CATALOG", "Digits", "FashionMnist", "Mnist", "Npz"]

# What `hogwild list data` prints.
CATALOG: dict[str, str] = {
    "Digits": "1,797 handwritten digits of 8x8 pixels, bundled: needs no file (split)",
    "Mnist": "handwritten digits, 28x28, the four original IDX files, plain or .gz (split, root, normalize)",
    "FashionMnist": "pictures of clothes, 28x28, the same four IDX files (split, root, normalize)",
    "Npz": "your own arrays from one .npz file (path, inputs, target, root)",
}

_HOMES = {
    "Digits": "hogwild.data.digits",
    "Mnist": "hogwild.data.mnist",
    "FashionMnist": "hogwild.data.mnist",
    "Npz": "hogwild.data.npz",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hogwild.data' has no attribute {name!r}; it has {', '.join(CATALOG)}")
