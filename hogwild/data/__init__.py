"""Data sets that ship with hogwild. A job names any other map-style `torch.utils.data.Dataset` by its class path.

Each class is map-style: `dataset[i]` is one sample, inputs first and the target last. Digits, Mnist, FashionMnist and
Npz are `torch.utils.data.TensorDataset`s: `dataset.tensors` holds all data in memory, samples first. Csv and
ImageFolder read on demand: `dataset.rows(start, stop)` returns many samples at once, in any process, and
`dataset.fingerprint()` is their key in `hogwild.data.cache`. Importing this package does not import torch; a class is
loaded on first use. `hogwild.data.locate` documents where data files are searched."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.data.characters import Characters, Names, Speakers
    from hogwild.data.csv.clicks import Clicks
    from hogwild.data.csv.dataset import Csv
    from hogwild.data.digits import Digits
    from hogwild.data.images import ImageFolder
    from hogwild.data.libsvm import LibSvm
    from hogwild.data.mnist import FashionMnist, Mnist
    from hogwild.data.npz import Npz
    from hogwild.data.ratings import Jester, Ratings
    from hogwild.data.rollout import Rollout
    from hogwild.data.text import Text
    from hogwild.data.triples import Triples
    from hogwild.data.word_pairs import WordPairs
    from hogwild.feeds.packed import Packed

__all__ = [
    "CATALOG", "Characters", "Clicks", "Csv", "Digits", "FashionMnist", "ImageFolder", "Jester", "LibSvm", "Mnist",
    "Names", "Npz", "Packed", "Ratings", "Rollout", "Speakers", "Text", "Triples", "WordPairs",
]  # fmt: skip

# The output of `hogwild list data`.
CATALOG: dict[str, str] = {
    "Digits": "1,797 handwritten digits of 8x8 pixels, bundled: needs no file (split)",
    "Mnist": "handwritten digits, 28x28, the four original IDX files, also packed (split, root, normalize, download)",
    "FashionMnist": "pictures of clothes, 28x28, the same four IDX files (split, root, normalize, download)",
    "Npz": "your own arrays from one .npz file (path, inputs, target, root)",
    "Csv": "your own table as text, plain or packed (path, target, inputs, categorical, missing, target_type, …)",
    "Clicks": "a table of clicks as sparse rows: a feature for each column (path, target, buckets, hash, min_count)",
    "ImageFolder": "your own pictures, a folder per class (path, size, split, channels, mean, deviation, classes)",
    "LibSvm": "sparse rows as text, label index:value … (path, features, one_based, labels, normalise)",
    "Ratings": "ratings of items by users: u.data, ratings.dat, ratings.csv, your table (path, duplicates, holdout)",
    "Jester": "the Jester jokes: one line per person with 100 ratings, the original zip file (path, holdout)",
    "Triples": "a knowledge graph: head, relation and tail in three columns (path)",
    "Text": "a text as word numbers: text8, or one sentence per line, plain or packed (path, min_count, context)",
    "WordPairs": "word pairs with similarity scores, to evaluate word vectors: data.val of a text (path)",
    "Characters": "windows of a text, to predict the next character (steps, split, fraction, path)",
    "Speakers": "lines of tinyshakespeare and their speakers, of any length (split, classes, lines, longest)",
    "Names": "names by class, one .txt file per class, one name per line; of any length (path, split, fraction)",
}

_HOMES = {
    "feeds.packed": ("Packed",),  # the return type of `pack` in your own data set
    "data.csv.dataset": ("Csv",),
    "data.csv.clicks": ("Clicks",),
    "data.images": ("ImageFolder",),
    "data.digits": ("Digits",),
    "data.mnist": ("Mnist", "FashionMnist"),
    "data.npz": ("Npz",),
    "data.libsvm": ("LibSvm",),
    "data.ratings": ("Ratings", "Jester"),
    "data.rollout": ("Rollout",),  # base class of data made from the model
    "data.triples": ("Triples",),
    "data.text": ("Text",),
    "data.word_pairs": ("WordPairs",),
    "data.characters": ("Characters", "Speakers", "Names"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"hogwild.{home}"), name)
    raise AttributeError(f"module 'hogwild.data' has no attribute {name!r}; it has {', '.join(CATALOG)}")
