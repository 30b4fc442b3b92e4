"""Torch without its compiler. Four methods of `torch.optim.Optimizer` (add_param_group, state_dict, load_state_dict and
zero_grad) are decorated so that their first call imports torch._dynamo, and with it sympy, torch.distributed and
torch._inductor: a second or more, in a process that compiles nothing (torch/_compile.py, `_disable_dynamo`)."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._compile import _disable_dynamo

COMPILER = "torch._dynamo"
CACHED = "__dynamo_disable"  # attribute in which torch's decorator caches the function to call


@contextlib.contextmanager
def sparing_the_compiler() -> Iterator[None]:
    """Make those methods call their plain functions, as they do without a compiler: the decorator only prevents
    tracing. Does nothing once torch._dynamo was imported, and is undone afterwards, so that a program that compiles
    later finds torch unchanged. Main thread only: the change affects the whole process."""
    if COMPILER in sys.modules:
        yield
        return
    spared = [function for function in _disabled(torch.optim.Optimizer) if not hasattr(function, CACHED)]
    for function in spared:
        setattr(function, CACHED, function)
    try:
        yield
    finally:
        for function in spared:
            if getattr(function, CACHED, None) is function:
                delattr(function, CACHED)


def _disabled(owner: type) -> list[Callable[..., Any]]:
    """Return the plain functions behind a class's decorated methods, found by the decorator's code object."""
    decorated = _disable_dynamo(lambda: None).__code__
    return [method.__wrapped__ for method in vars(owner).values() if getattr(method, "__code__", None) is decorated]
