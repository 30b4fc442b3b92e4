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
    from hogwild.data.follow import Follow, sparse_rows
    from hogwild.data.ids import key_of
    from hogwild.data.images import ImageFolder
    from hogwild.data.kafka import Kafka
    from hogwild.data.libsvm import LibSvm
    from hogwild.data.mnist import FashionMnist, Mnist
    from hogwild.data.npz import Npz
    from hogwild.data.ratings import Jester, Ratings
    from hogwild.data.rollout import Rollout
    from hogwild.data.text import Text, WordPairs
    from hogwild.data.triples import Triples
    from hogwild.feeds.packed import Packed
    from hogwild.feeds.waiting import pause

__all__ = [
    "CATALOG", "Characters", "Clicks", "Csv", "Digits", "FashionMnist", "Follow", "ImageFolder", "Jester", "Kafka",
    "LibSvm", "Mnist", "Names", "Npz", "Packed", "Ratings", "Rollout", "Speakers", "Text", "Triples", "WordPairs",
    "key_of", "pause", "sparse_rows",
]  # fmt: skip

_HOMES = {
    "feeds.packed": ("Packed",),  # the return type of `pack` in your own data set
    "feeds.waiting": ("pause",),  # of an iterable that waits for its next record
    "data.csv.dataset": ("Csv",),
    "data.csv.clicks": ("Clicks",),
    "data.follow": ("Follow", "sparse_rows"),
    "data.kafka": ("Kafka",),
    "data.ids": ("key_of",),  # what stands for a name in a tensor
    "data.images": ("ImageFolder",),
    "data.digits": ("Digits",),
    "data.mnist": ("Mnist", "FashionMnist"),
    "data.npz": ("Npz",),
    "data.libsvm": ("LibSvm",),
    "data.ratings": ("Ratings", "Jester"),
    "data.rollout": ("Rollout",),  # base class of data made from the model
    "data.triples": ("Triples",),
    "data.text": ("Text", "WordPairs"),
    "data.characters": ("Characters", "Speakers", "Names"),
}
CATALOG = tuple(
    name for names in _HOMES.values() for name in names if name[0].isupper() and name not in ("Packed", "Rollout")
)  # for job files


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"hogwild.{home}"), name)
    raise AttributeError(f"module 'hogwild.data' has no attribute {name!r}; it has {', '.join(CATALOG)}")
