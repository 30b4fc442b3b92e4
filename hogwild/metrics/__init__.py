"""Metrics: values that an evaluation computes in addition to the loss.

A job names built-in metrics by their short names (`hogwild list metrics`), and your own functions by class path. The
names below are such functions. Importing this package does not import torch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.metrics.built_in import hits_1, hits_3, hits_10, mrr, spearman

__all__ = ["hits_1", "hits_3", "hits_10", "mrr", "spearman"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("hogwild.metrics.built_in"), name)
    raise AttributeError(f"module 'hogwild.metrics' has no attribute {name!r}; it has {', '.join(__all__)}")
