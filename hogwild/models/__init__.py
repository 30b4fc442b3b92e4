"""Models that ship with hogwild, one file per family. A job names any other `nn.Module` by its own class path; nothing
is registered. Importing this package does not import torch: a class is loaded on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.models.char_rnn import CharRnn, SequenceClassifier
    from hogwild.models.click_rows import DeepFm, FieldFactorizationMachine
    from hogwild.models.convnet import ConvNet, LeNet
    from hogwild.models.implicit_factorization import BprFactorization, WarpFactorization
    from hogwild.models.knowledge_graph import ComplEx, DistMult, RotatE, TransE
    from hogwild.models.lstm_cell import CustomLstm
    from hogwild.models.matrix_factorization import MatrixFactorization
    from hogwild.models.mlp import LogisticRegression, Mlp, Tabular
    from hogwild.models.skipgram import SkipGram
    from hogwild.models.sparse_linear import FactorizationMachine, SparseLinear

__all__ = [
    "CATALOG", "BprFactorization", "CharRnn", "ComplEx", "ConvNet", "CustomLstm", "DeepFm", "DistMult",
    "FactorizationMachine", "FieldFactorizationMachine", "LeNet", "LogisticRegression", "MatrixFactorization", "Mlp",
    "RotatE", "SequenceClassifier", "SkipGram", "SparseLinear", "Tabular", "TransE", "WarpFactorization",
]  # fmt: skip

# The output of `hogwild list models`.
CATALOG: dict[str, str] = {
    "LogisticRegression": "one linear layer; convex with a cross-entropy loss (features, classes)",
    "Mlp": "fully connected layers with ReLU and dropout (features, hidden, classes, dropout)",
    "LeNet": "two 5x5 convolutions of 10 and 20 channels, then 320-50-classes, for 28x28 images",
    "ConvNet": "3x3 convolutions, group norm, pooling, for pictures of any size (classes, channels, widths)",
    "Tabular": "a table's numbers and categories (features, outputs, categories, hidden, width, dropout)",
    "CharRnn": "next character of a text, with a state: lstm, gru, custom (symbols, embedding, hidden, layers, cell)",
    "SequenceClassifier": "classes of sequences of any length (symbols, classes, embedding, hidden, layers, cell)",
    "SparseLinear": "sparse rows, a weight per feature: logistic, hinge, squared, softmax (features, classes, bias)",
    "SkipGram": "word vectors, CBOW, subwords; loss: NegativeSampling (words, dim, window, negatives, cbow, buckets)",
    "FactorizationMachine": "sparse rows, with interactions of every two features (features, factors)",
    "FieldFactorizationMachine": "clicks: interactions by a vector for each other column (features, fields, factors)",
    "DeepFm": "clicks: a factorisation machine and a network over its vectors (features, fields, factors, hidden)",
    "ComplEx": "knowledge graph, complex vectors (entities, relations, dim, negatives, reciprocal, n3, dropout)",
    "DistMult": "knowledge graph, real vectors; arguments as ComplEx, losses in hogwild.losses",
    "RotatE": "knowledge graph, rotations: head turned by relation is near tail; arguments as ComplEx",
    "TransE": "knowledge graph, translations: head + relation is near tail; arguments as ComplEx",
    "BprFactorization": "ranking of items per user (BPR), from purchases or views (users, items, factors, l2)",
    "WarpFactorization": "as BprFactorization, for the top of the list (WARP) (users, items, factors, l2, tries)",
    "MatrixFactorization": "users and items, biases and products, for ratings (users, items, factors, bias, mean, l2)",
}

_HOMES = {
    "lstm_cell": ("CustomLstm",),  # a layer, for your own models
    "char_rnn": ("CharRnn", "SequenceClassifier"),
    "sparse_linear": ("SparseLinear", "FactorizationMachine"),
    "click_rows": ("FieldFactorizationMachine", "DeepFm"),
    "skipgram": ("SkipGram",),
    "mlp": ("LogisticRegression", "Mlp", "Tabular"),
    "convnet": ("LeNet", "ConvNet"),
    "knowledge_graph": ("ComplEx", "DistMult", "RotatE", "TransE"),
    "matrix_factorization": ("MatrixFactorization",),
    "implicit_factorization": ("BprFactorization", "WarpFactorization"),
}


_WITH_KERNELS = (
    *("sparse_linear", "click_rows", "skipgram", "knowledge_graph"),
    *("matrix_factorization", "implicit_factorization"),
)


def has_kernels(class_path: str) -> bool:
    """Return whether this is a model of ours that compiled kernels may train."""
    package, _, name = class_path.rpartition(".")
    return package == "hogwild.models" and any(name in _HOMES[home] for home in _WITH_KERNELS)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"hogwild.models.{home}"), name)
    raise AttributeError(f"module 'hogwild.models' has no attribute {name!r}; it has {', '.join(CATALOG)}")
