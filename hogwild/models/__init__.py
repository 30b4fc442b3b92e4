"""Models that ship with hogwild, one file per family. A job names any other `nn.Module` by its own class path; nothing
is registered. Importing this package does not import torch: a class is loaded on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.models.char_rnn import CharRnn, CustomLstm, SequenceClassifier
    from hogwild.models.convnet import ConvNet, LeNet
    from hogwild.models.knowledge_graph import ComplEx, DistMult, RotatE, TransE
    from hogwild.models.matrix_factorization import BprFactorization, MatrixFactorization, WarpFactorization
    from hogwild.models.mlp import LogisticRegression, Mlp, Tabular
    from hogwild.models.named_factorization import NamedBprFactorization, NamedFactorization
    from hogwild.models.named_words import NamedSkipGram
    from hogwild.models.skipgram import SkipGram
    from hogwild.models.sparse_linear import (
        DeepFm,
        FactorizationMachine,
        FieldFactorizationMachine,
        NamedFactorizationMachine,
        NamedLinear,
        SparseLinear,
    )

__all__ = [
    "CATALOG", "BprFactorization", "CharRnn", "ComplEx", "ConvNet", "CustomLstm", "DeepFm", "DistMult",
    "FactorizationMachine", "FieldFactorizationMachine", "LeNet", "LogisticRegression", "MatrixFactorization", "Mlp",
    "NamedBprFactorization", "NamedFactorization", "NamedFactorizationMachine", "NamedLinear", "NamedSkipGram",
    "RotatE", "SequenceClassifier", "SkipGram", "SparseLinear", "Tabular", "TransE", "WarpFactorization",
]  # fmt: skip

_HOMES = {
    "char_rnn": ("CustomLstm", "CharRnn", "SequenceClassifier"),  # the first is a layer, for your own models
    "sparse_linear": (
        "SparseLinear",
        "FactorizationMachine",
        "FieldFactorizationMachine",
        "DeepFm",
        "NamedLinear",
        "NamedFactorizationMachine",
    ),
    "skipgram": ("SkipGram",),
    "mlp": ("LogisticRegression", "Mlp", "Tabular"),
    "convnet": ("LeNet", "ConvNet"),
    "knowledge_graph": ("ComplEx", "DistMult", "RotatE", "TransE"),
    "matrix_factorization": ("MatrixFactorization", "BprFactorization", "WarpFactorization"),
    "named_factorization": ("NamedFactorization", "NamedBprFactorization"),
    "named_words": ("NamedSkipGram",),
}
# Those that a job file may name.
CATALOG = tuple(name for names in _HOMES.values() for name in names if name != "CustomLstm")
_WITH_KERNELS = {*_HOMES} - {"char_rnn", "mlp", "convnet"}


def has_kernels(class_path: str) -> bool:
    """Return whether this is a model of ours that compiled kernels may train."""
    package, _, name = class_path.rpartition(".")
    return package == "hogwild.models" and any(name in _HOMES[home] for home in _WITH_KERNELS)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"hogwild.models.{home}"), name)
    raise AttributeError(f"module 'hogwild.models' has no attribute {name!r}; it has {', '.join(CATALOG)}")
