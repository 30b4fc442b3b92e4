"""The choice of how an optimizer is applied (one rule over whole flats, compiled rows, or its own `step`), and of
whether its state is shared."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, SparseAdam
from torch.optim import optimizer as torch_optimizer

from hogwild.kernels.signatures import has_numba
from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.parameters.flat_layout import FlatLayout, ParamSlot

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
        if slot.group is not None and slot.sparse:
            reason = _why_not_slot(slot) or _why_not_group(optimizer, optimizer.param_groups[slot.group])
            if reason:
                return f"a parameter has sparse gradients, and {reason}"
    if not has_numba():
        return "a parameter has sparse gradients; compiled rules for them: pip install 'hogwild[sparse]'"
    return None


def _why_not_slot(slot: ParamSlot) -> str | None:
    if slot.dtype != torch.float32:
        return f"{slot.name} is {str(slot.dtype).removeprefix('torch.')}, not float32"
    if len(slot.shape) != 2 or slot.strides != (slot.shape[1], 1) or not slot.shape[1]:
        return f"{slot.name} is not a table of rows in memory"
    return None


def _why_not_group(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> str | None:
    found = [option for option in _REFUSED[type(optimizer)] if group.get(option)]
    return f"{type(optimizer).__qualname__} has {found[0]}={group[found[0]]}" if found else None
