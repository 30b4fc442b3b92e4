"""Lock-free asynchronous training of any `nn.Module` by N processes over one shared set of parameters.

The library has one call, `hogwild.train(model, dataset, loss, optimizer, procs=4)`; everything else is a job file and
the command line. Importing this package does not import torch: `train` is loaded at its first use."""

from typing import TYPE_CHECKING, Any

from hogwild.errors import HogwildError
from hogwild.version import __version__

if TYPE_CHECKING:
    from hogwild.api import TrainInterrupted, TrainResult, close, load, train
    from hogwild.service.client import Client

__all__ = ["Client", "HogwildError", "TrainInterrupted", "TrainResult", "__version__", "close", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in ("train", "close", "load", "TrainInterrupted", "TrainResult"):
        from hogwild import api

        return getattr(api, name)
    if name == "Client":
        from hogwild.service.client import Client

        return Client
    raise AttributeError(f"module 'hogwild' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
