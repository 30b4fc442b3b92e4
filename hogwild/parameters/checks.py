"""Conditions that a model and an optimizer must fulfil to be shared, where every error names the place, the rule and a
remedy; and the choice of how an optimizer is applied (one rule over whole flats, compiled rows, or its own `step`), and
of whether its state is shared."""

import inspect
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, SparseAdam
from torch.optim import optimizer as torch_optimizer

from hogwild.errors import ModelError, OptimizerError
from hogwild.kernels.signatures import has_numba
from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.parameters.flat_layout import FlatLayout, extent
from hogwild.shared_memory.region import is_dense_without_overlap


def check_model(model: nn.Module) -> None:
    """Check the model. Raises ModelError if a parameter or buffer cannot be shared with other processes, or tensors
    overlap: giving each its own memory would silently untie them. Takes memory for tensors that do not lie in one
    piece."""
    places: list[tuple[int, int, str, Tensor]] = []
    for kind, name, tensor in check_tensors(model):
        is_plain = kind == "buffer" or is_dense_without_overlap(tensor.shape, tensor.stride())
        if not is_plain and len(_addresses(tensor).unique()) < tensor.numel():
            words = f"parameter {name} has several elements at one address (expand?); use .clone()"
            raise ModelError(words, code="model/overlapping")
        if tensor.numel():
            places.append((*extent(tensor), f"{kind} {name}", tensor))
    places.sort(key=lambda place: place[:2])
    starts = [place[0] for place in places]
    for i, (_, end, name, tensor) in enumerate(places):
        for _, _, other_name, other in places[i + 1 : bisect_left(starts, end, i + 1)]:
            size = max(tensor.element_size(), other.element_size())
            # Columns of one matrix lie between each other and do not overlap.
            if torch.isin(_addresses(tensor) // size, _addresses(other) // size).any():
                raise ModelError(
                    f"{name} and {other_name} are different tensors over the same memory; to tie them, assign one "
                    "object to both places; otherwise use .clone()",
                    code="model/overlapping",
                )


def check_tensors(model: nn.Module) -> list[tuple[str, str, Tensor]]:
    """Check each parameter and buffer by itself; return their kinds, names and tensors. Raises as `check_model`."""
    # No override may hide a parameter: it would be saved, but neither shared nor restored.
    every = [id(param) for _, param in nn.Module.named_parameters(model)]
    if not every == [id(param) for param in model.parameters()] == [id(param) for _, param in model.named_parameters()]:
        raise ModelError(
            f"{type(model).__qualname__} overrides parameters() or named_parameters() with a result unlike torch's; "
            "rename the method, and pass its result to the optimizer",
            code="model/own-parameters",
        )
    tensors: list[tuple[str, str, Tensor]] = [("parameter", *named) for named in model.named_parameters()]
    tensors += [("buffer", *named) for named in model.named_buffers()]
    for kind, name, tensor in tensors:
        _check_tensor(kind, name, tensor)
    return tensors


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check the optimizer. Raises OptimizerError if it cannot train `model` here, ModelError if it has nothing to
    train."""
    check_rule(optimizer)
    if needs_closure(optimizer):
        raise OptimizerError(
            f"{type(optimizer).__qualname__}.step() needs a closure: it evaluates the loss several times per "
            "update, on parameters that other workers change meanwhile. Use a first-order rule (SGD, Adam, …)",
            code="optimizer/closure",
        )
    own = {id(param) for param in model.parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, param in enumerate(group["params"]):
            if id(param) not in own:
                raise OptimizerError(
                    f"parameter {i} of the optimizer's group {g} (shape {tuple(param.shape)}) is not a "
                    "parameter of the model; build the optimizer over model.parameters() after the model has "
                    "its final parameters, and make a loss with parameters a part of the model",
                    code="optimizer/foreign-parameters",
                )
    if not any(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        words = "none of the optimizer's parameters has requires_grad (all frozen?)"
        raise ModelError(f"the model has no trainable parameter: {words}", code="model/no-parameters")


def check_rule(optimizer: Any) -> None:
    """Check that it is an optimizer whose state and parameters are what they seem. Raises OptimizerError."""
    name, own = type(optimizer).__qualname__, getattr(optimizer, "__dict__", {})
    inner = {key: one for key, one in own.items() if isinstance(one, torch.optim.Optimizer)}
    is_one = isinstance(optimizer, torch.optim.Optimizer)
    if inner or (is_one and not own.keys() >= {"state", "param_groups"}):
        wrapped = "".join(f" ({key}: {type(one).__qualname__})" for key, one in inner.items())
        raise OptimizerError(
            f"{name} wraps another optimizer{wrapped}: workers keep the state of one optimizer in shared memory, "
            "and a wrapper would go on with its own. Pass the inner optimizer alone",
            code="optimizer/wrapper",
        )
    if not is_one:
        raise OptimizerError(
            f"the optimizer is a {name}, not a torch.optim.Optimizer over model.parameters()", code="optimizer/not-one"
        )
    if all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        raise OptimizerError(
            f"{name} has the modes train() and eval(): while it trains, the parameters are not the final weights, "
            "and here evaluations, checkpoints and predictions read them while workers train. Use the rule without "
            "modes (AdamW, SGD) and an lr_schedule, such as {name: cosine}",
            code="optimizer/modes",
        )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True for rules such as LBFGS whose `step` has a closure without a default."""
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(a.default is inspect.Parameter.empty and a.kind in positional for a in arguments)


def _check_tensor(kind: str, name: str, tensor: Tensor) -> None:
    which = f"{kind} {name}"
    if is_lazy(tensor):
        words = "is lazy and has no shape yet; run one batch through the model before training it"
        raise ModelError(f"{which} {words}", code="model/lazy")
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        words = "which stores its values in its own way; only ordinary tensors can be shared"
        raise ModelError(f"{which} is a {type(tensor).__qualname__}, {words}", code="model/not-dense")
    if tensor.layout != torch.strided:
        words = f"has the layout {tensor.layout}; only dense (strided) tensors can be shared"
        raise ModelError(f"{which} {words}", code="model/not-dense")
    if tensor.device.type != "cpu":
        how = " after initialising it (to_empty and values)" if tensor.device.type == "meta" else ""
        words = f"is on {tensor.device}; shared parameters are in host memory. Call model.cpu(){how}"
        raise ModelError(f"{which} {words}", code="model/device")


def _addresses(tensor: Tensor) -> Tensor:
    """Return the addresses of its elements, (elements,) int64."""
    addresses = torch.tensor(tensor.data_ptr())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        addresses = addresses.unsqueeze(-1) + torch.arange(size) * (stride * tensor.element_size())
    return addresses.flatten()


# Options that stock torch refuses for sparse gradients, or that have no kernel.
_REFUSED: Mapping[type, tuple[str, ...]] = {
    SGD: ("momentum", "weight_decay", "fused"),
    Adagrad: ("weight_decay", "fused"),
    RowWiseAdagrad: (),
    SparseAdam: (),
    FTRL: (),
}

ELEMENTWISE = (SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Adamax, Adadelta)


def why_no_flat_rule(optimizer: torch.optim.Optimizer, flats: FlatLayout) -> str | None:
    """Return why the rule cannot run over the spans of dense gradients, for the log; None if it can."""
    if type(optimizer) not in ELEMENTWISE:
        return f"{type(optimizer).__qualname__} is not on the list of elementwise rules"
    if any(span.is_dense and not span.dtype.is_floating_point for span in flats.spans):
        return "a parameter is not real"
    if any(span.is_dense and span.dtype.itemsize < 4 for span in flats.spans):
        return "a parameter has 16 bits, for which torch's results depend on the tensor's length"
    return why_only_step(optimizer)


def why_only_step(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why only the optimizer's own `step` can be used, whatever the rule; None if others can."""
    name = type(optimizer).__qualname__
    if has_step_hooks(optimizer):
        return f"{name} has step hooks"
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                return f"{name} has {option}=True"
    return None


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether there are step hooks: only the optimizer's own `step` calls them."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    everywhere = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return any(own + everywhere)


def shares_state(optimizer: torch.optim.Optimizer, flats: FlatLayout) -> bool:
    """Resolve `state: auto` for several workers: share the state if gradients are sparse and every rule is hardened,
    because a private row would start cold with every worker that uses it. Share it also for RAdam, whose rate grows
    with the number of updates, as each worker counts only its own."""
    if type(optimizer) is RAdam:
        return why_no_flat_rule(optimizer, flats) is None
    is_hardened = type(optimizer) in (Adagrad, RowWiseAdagrad, SparseAdam, FTRL)
    return is_hardened and any(span.sparse for span in flats.spans) and why_no_rows(optimizer, flats) is None


def why_no_rows(optimizer: torch.optim.Optimizer, flats: FlatLayout) -> str | None:
    """Return why sparse gradients cannot use compiled rows, for the log; None if they can."""
    name = type(optimizer).__qualname__
    if only_step := why_only_step(optimizer):
        return only_step
    if type(optimizer) not in _REFUSED:
        return f"a parameter has sparse gradients, and {name} has no rule for rows"
    for slot in flats.params:
        if slot.group is None or not slot.sparse:
            continue
        group, reason = optimizer.param_groups[slot.group], ""
        if slot.dtype != torch.float32:
            reason = f"{slot.name} is {str(slot.dtype).removeprefix('torch.')}, not float32"
        elif len(slot.shape) != 2 or slot.strides != (slot.shape[1], 1) or not slot.shape[1]:
            reason = f"{slot.name} is not a table of rows in memory"
        elif refused := [option for option in _REFUSED[type(optimizer)] if group.get(option)]:
            reason = f"{name} has {refused[0]}={group[refused[0]]}"
        if reason:
            return f"a parameter has sparse gradients, and {reason}"
    if not has_numba():
        return "a parameter has sparse gradients; compiled rules for them: pip install 'hogwild[sparse]'"
    return None
