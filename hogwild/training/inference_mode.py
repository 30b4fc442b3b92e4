"""Whether evaluations may run under `torch.inference_mode`: only where nothing that a forward pass makes is kept,
because training cannot use such a tensor ("Inference tensors cannot be saved for backward").

Tried once in the parent, on a copy of the model that shares its parameters. What the trial cannot see (a tensor
kept for the first time later, or in a global) is answered by the trainer: from then on evaluations run under
no_grad."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

DEEPEST = 6  # containers and objects inside each other that are looked into
KEPT = "Inference tensors cannot be saved for backward"  # begins torch's error; the rest is advice


def why_not(model: nn.Module, call: Callable[[nn.Module], Any]) -> str | None:
    """Why evaluations of `model` run under no_grad, in words; None where they need not. `call` makes one pass, in
    evaluation mode as the caller has set it. The model itself is not touched."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return "TorchScript keeps what it made in an evaluation, where nobody can look"
    try:
        twin = copy.deepcopy(model, {id(param): param for param in model.parameters()})
    except Exception as error:  # a lock, an open file, a tensor with its graph
        return f"it cannot be copied for a trial ({type(error).__name__}: {error})"
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            call(twin)
    except Exception as error:  # a gradient taken inside forward, most likely
        return f"it fails under inference_mode ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
    kept = next(_kept(twin), None)
    return None if kept is None else f"{kept} keeps a tensor that forward made, which training could not use"


def _kept(model: nn.Module) -> Iterator[str]:
    """Places of tensors that only an evaluation can use."""
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
