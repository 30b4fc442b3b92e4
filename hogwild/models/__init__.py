"""Models that ship with hogwild, one file per family. Any other `nn.Module` is named in a job by its own
class path; nothing is registered. Importing this package imports no torch: a class is loaded at its first
use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.models.convnet import ConvNet
    from hogwild.models.lenet import LeNet
    from hogwild.models.linear import LogisticRegression
    from hogwild.models.mlp import Mlp
    from hogwild.models.tabular import Tabular

__all__ = ["CATALOG", "ConvNet", "LeNet", "LogisticRegression", "Mlp", "Tabular"]

# What `hogwild list models` prints.
CATALOG: dict[str, str] = {
    "LogisticRegression": "one linear layer; convex with a cross-entropy loss (features, classes)",
    "Mlp": "fully connected layers with ReLU and dropout (features, hidden, classes, dropout)",
    "LeNet": "two 5x5 convolutions of 10 and 20 channels, then 320-50-classes, for 28x28 images",
    "ConvNet": "3x3 convolutions, group norm, pooling, for pictures of any size (classes, channels, widths)",
    "Tabular": "a table's numbers and categories (features, outputs, categories, hidden, width, dropout)",
}

_HOMES = {
    "LogisticRegression": "hogwild.models.linear",
    "Mlp": "hogwild.models.mlp",
    "LeNet": "hogwild.models.lenet",
    "ConvNet": "hogwild.models.convnet",
    "Tabular": "hogwild.models.tabular",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hogwild.models' has no attribute {name!r}; it has {', '.join(CATALOG)}")
