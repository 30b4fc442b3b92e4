"""What must be true of a model and an optimizer before they can be shared. Every error names the place, the
rule and the way out."""

import inspect
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from hogwild.errors import ModelError, OptimizerError
from hogwild.layout import is_dense_without_overlap


def check_model(model: nn.Module) -> None:
    """Raises ModelError when a parameter, buffer or module cannot be shared with other processes."""
    for path, module in model.named_modules():
        _check_module(path or "(the model itself)", module)
    for kind, name, tensor in _tensors(model):
        _check_tensor(kind, name, tensor)
    _check_storage(dict(model.named_parameters()))


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises OptimizerError when `optimizer` cannot train `model` here, ModelError when it has nothing to
    train."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(
            f"the optimizer is a {type(optimizer).__qualname__}; give an instance of a torch.optim.Optimizer "
            "over model.parameters()",
            code="optimizer/not-one",
        )
    if needs_closure(optimizer):
        raise OptimizerError(
            f"{type(optimizer).__qualname__}.step() needs a closure: it evaluates the loss several times per "
            "update, on parameters that other workers change meanwhile. Use a first-order rule (SGD, Adam, …)",
            code="optimizer/closure",
        )
    _check_ownership(model, optimizer)
    if not any(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        raise ModelError(
            "the model has no trainable parameter: none of the optimizer's parameters has requires_grad (all frozen?)",
            code="model/no-parameters",
        )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True for rules such as LBFGS whose `step` has a closure without a default."""
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(a.default is inspect.Parameter.empty and a.kind in positional for a in arguments)


def _tensors(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    yield from (("parameter", name, param) for name, param in model.named_parameters())
    yield from (("buffer", name, buffer) for name, buffer in model.named_buffers())


def _check_module(path: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"module {path} is a ScriptModule ({type(module).__name__}); it cannot be written for the "
            "workers. Give the plain nn.Module it was made from",
            code="model/scripted",
        )
    if parametrize.is_parametrized(module):
        names = ", ".join(sorted(module.parametrizations.keys()))  # type: ignore[union-attr, operator]
        raise ModelError(
            f"module {path} is parametrized ({names}); torch cannot pickle parametrized modules. Call "
            "torch.nn.utils.parametrize.remove_parametrizations on it, or put the formula into forward()",
            code="model/parametrized",
        )


def _check_tensor(kind: str, name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise ModelError(
            f"{kind} {name} is lazy and has no shape yet; run one batch through the model before training it",
            code="model/lazy",
        )
    if tensor.layout != torch.strided:
        raise ModelError(
            f"{kind} {name} has the layout {tensor.layout}; only dense (strided) tensors can be shared",
            code="model/not-dense",
        )
    if tensor.device.type != "cpu":
        raise ModelError(
            f"{kind} {name} is on {tensor.device}; shared parameters live in host memory. Call model.cpu()"
            + (" after giving it values (to_empty and an initialisation)" if tensor.device.type == "meta" else ""),
            code="model/device",
        )


def _check_storage(params: dict[str, nn.Parameter]) -> None:
    """Two parameters over the same words would silently be untied by giving each its own place."""
    ends: dict[int, list[tuple[int, int, str]]] = {}
    for name, param in params.items():
        if torch._debug_has_internal_overlap(param) == 1:
            raise ModelError(
                f"parameter {name} uses one word for several elements (expand?); give it its own: .clone()",
                code="model/overlapping",
            )
        if param.numel() and is_dense_without_overlap(param.shape, param.stride()):
            start = param.data_ptr()
            place = (start, start + param.numel() * param.element_size(), name)
            ends.setdefault(param.untyped_storage().data_ptr(), []).append(place)
    for places in ends.values():
        places.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(places):
            if start < end:
                raise ModelError(
                    f"parameters {first} and {second} are different Parameters over the same memory; tie "
                    "them by assigning one Parameter object to both places",
                    code="model/overlapping",
                )


def _check_ownership(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own = {id(param) for param in model.parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, param in enumerate(group["params"]):
            if id(param) not in own:
                raise OptimizerError(
                    f"parameter {i} of the optimizer's group {g} (shape {tuple(param.shape)}) is not a "
                    "parameter of the model; build the optimizer over model.parameters() after the model has "
                    "its final parameters, and make a loss with parameters of its own a part of the model",
                    code="optimizer/foreign-parameters",
                )
