"""Lock-free asynchronous training of any `nn.Module` by N processes over one shared set of parameters.

The library has two calls, `hogwild.train(model, dataset, loss, optimizer, procs=4)` and `hogwild.search(job, space)`;
everything else is a job file and the command line. Importing this package does not import torch: both are loaded at
their first use."""

from typing import TYPE_CHECKING, Any

from hogwild.errors import HogwildError
from hogwild.version import __version__

if TYPE_CHECKING:
    from hogwild.api import TrainInterrupted, TrainResult, close, load, train
    from hogwild.searching.call import SearchInterrupted, SearchResult, search
    from hogwild.service.client import Client

__all__ = [
    "Client",
    "HogwildError",
    "SearchInterrupted",
    "SearchResult",
    "TrainInterrupted",
    "TrainResult",
    "__version__",
    "close",
    "load",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in ("train", "close", "load", "TrainInterrupted", "TrainResult"):
        from hogwild import api

        return getattr(api, name)
    if name in ("search", "SearchInterrupted", "SearchResult"):
        from hogwild.searching import call

        return getattr(call, name)
    if name == "Client":
        from hogwild.service.client import Client

        return Client
    raise AttributeError(f"module 'hogwild' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
