"""The decision whether evaluations run under `torch.inference_mode`: only if the model keeps no tensor of a forward
pass, because training cannot use such a tensor ("Inference tensors cannot be saved for backward").

Tested once in the parent, on a copy of the model that shares its parameters. If the test misses one (a tensor kept for
the first time later, or in a global), the trainer notices: from then on evaluations run under no_grad."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

DEEPEST = 6  # depth of nested containers and objects that are searched
KEPT = "Inference tensors cannot be saved for backward"  # start of torch's error; the rest is advice


def why_not(model: nn.Module, call: Callable[[nn.Module], Any]) -> str | None:
    """Return why evaluations of `model` must run under no_grad; None if inference_mode is possible. `call` makes one
    pass, in the evaluation mode set by the caller. The model itself is not changed."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return "TorchScript may keep tensors of an evaluation"
    try:
        twin = copy.deepcopy(model, {id(param): param for param in model.parameters()})
    except Exception as error:  # a lock, an open file, a tensor with its graph
        return f"it cannot be copied for a trial ({type(error).__name__}: {error})"
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            call(twin)
    except Exception as error:  # most likely a gradient computed inside forward
        return f"it fails under inference_mode ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
    kept = next(_kept(twin), None)
    return None if kept is None else f"{kept} keeps a tensor made in forward, which training could not use"


def _kept(model: nn.Module) -> Iterator[str]:
    """Yield the places of tensors that only an evaluation can use."""
    seen: set[int] = {id(module) for module in model.modules()}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key != "_modules" and _holds_one(value, seen, DEEPEST):
                yield f"{path or type(module).__name__}{f'.{key}' if not key.startswith('_') else ''}"


def _holds_one(value: Any, seen: set[int], depth: int) -> bool:
    if isinstance(value, Tensor):
        return value.is_inference()
    if depth == 0 or id(value) in seen or isinstance(value, str | bytes | int | float | type | None):
        return False
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif hasattr(value, "__dict__"):
        inside = vars(value).values()
    return any(_holds_one(one, seen, depth - 1) for one in [*inside])
