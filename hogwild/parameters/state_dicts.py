"""Stock state_dicts from and into shared memory: private copies or, if memory is short, the shared memory itself, which
must be written out before training continues."""

import copy
import math
import reprlib
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from hogwild.errors import CheckpointError
from hogwild.nn import parts_in_use
from hogwild.parameters.optimizer_state import Copies, StateLayout, parameters_of

PIECE = 1 << 22  # numbers per call
EXTRA = "_extra_state"  # torch's name for the result of a module's `get_extra_state`

GroupNumbers = dict[tuple[int, str], Any]

# Keys of a parameter group: its parameters, and implementations of one step, which differ between machines.
NOT_COMPARED = {"params", "foreach", "fused", "capturable", "differentiable"}


def is_finite(value: Tensor) -> bool:
    """Return whether a dense tensor of any dtype has no NaN and no infinity, from its minimum and maximum: both are NaN
    if it has one. Twenty times as fast as `isfinite`, which allocates a tensor."""
    if value.is_complex():
        return is_finite(torch.view_as_real(value.detach()))
    if not value.is_floating_point() or not value.numel():
        return True
    words = value.detach().as_strided((value.numel(),), (1,))
    for piece in words.split(PIECE):  # aminmax does not support 8-bit types
        ends = torch.aminmax(piece.float() if piece.dtype.itemsize == 1 else piece)
        if not all(math.isfinite(end.item()) for end in ends):
            return False
    return True


def model_state(model: nn.Module, copies: Copies) -> dict[str, dict[str, Any]]:
    """Return `model`: model.state_dict() with its hooks, for use elsewhere; and, only if that differs, `tensors`: all
    parameters and buffers by their own names, which a resume uses. Every tensor goes through `copies.of`; a tensor
    under two names stays one."""
    made: dict[tuple, Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in made:
            made[key] = copies.of(value)
        return made[key]

    stated = tree_map(copied, dict(model.state_dict()))
    tensors = {name: copied(value) for name, value in _tensors_of(model).items()}
    names = {name for name in stated if name.rpartition(".")[2] != EXTRA}
    is_same = names == tensors.keys() and all(stated[name] is value for name, value in tensors.items())
    return {"model": stated} if is_same else {"model": stated, "tensors": tensors}


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, under all their names; of tables that grow, the rows in use."""
    params: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    in_use = {id(model.get_parameter(name)): part for name, part in parts_in_use(model).items()}
    params = {name: in_use.get(id(param), param) for name, param in params.items()}
    return {**params, **dict(model.named_buffers(remove_duplicate=False))}


def is_all_finite(model: nn.Module) -> bool:
    """Return whether no parameter holds NaN or infinity."""
    in_use = parts_in_use(model)
    return all(is_finite(in_use.get(name, param)) for name, param in model.named_parameters())


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def check_parts(snapshot: Mapping[str, Any]) -> None:
    """Check the snapshot. Raises CheckpointError if it lacks a part."""
    missing = [part for part in ("model", "optimizer") if part not in snapshot]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {_some(missing)}; it holds {_some(list(snapshot))}", code="checkpoint/other-model"
        )


def load_model(model: nn.Module, snapshot: Mapping[str, Any]) -> None:
    """Copy values in place, by name: not by the user's own `load_state_dict`, but `set_extra_state` is called. Raises
    CheckpointError naming the first difference; then nothing was changed. A non-persistent buffer is derived, and may
    differ."""
    saved: Mapping[str, Any] = snapshot.get("tensors", snapshot["model"])
    modules = dict(model.named_modules(remove_duplicate=False))
    derived = {f"{path}.{key}".lstrip(".") for path, m in modules.items() for key in m._non_persistent_buffers_set}
    extended = {p: m for p, m in modules.items() if type(m).set_extra_state is not nn.Module.set_extra_state}
    extras = {f"{path}.{EXTRA}".lstrip("."): module for path, module in extended.items()}
    own = _tensors_of(model)
    own = {k: v for k, v in own.items() if k not in derived or (k in saved and _form(saved[k]) == _form(v))}
    missing = [name for name in own if name not in saved]
    unexpected = [name for name in saved if not (name in own or name in derived or name in extras)]
    if missing or unexpected:
        raise CheckpointError(
            f"the checkpoint belongs to another model: it lacks {_some(missing)}, and this model lacks "
            f"{_some(unexpected)}",
            code="checkpoint/other-model",
        )
    for name, value in own.items():
        _check_tensor(name, value, saved[name])
    for name, _ in model.named_parameters():  # not the buffers: a mask may well hold infinity
        if not is_finite(saved[name]):
            words = f"{name} is NaN or infinite in the checkpoint; training cannot continue from it"
            raise CheckpointError(words, code="checkpoint/not-finite")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(saved[name])
    for name in extras.keys() & snapshot["model"].keys():
        extras[name].set_extra_state(snapshot["model"][name])


def optimizer_state_dict(
    optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]], groups: GroupNumbers
) -> dict[str, Any]:
    """Return torch's own `state_dict()` with this state, without a subclass's override and without hooks, whose changes
    would not be undone; loads into the stock optimizer. Rates are the groups' own, without a schedule's factor."""
    params = parameters_of(optimizer)
    groups_of_twin = [dict(group) for group in optimizer.param_groups]
    for (g, key), value in groups.items():
        groups_of_twin[g][key] = value
    # A twin, because this may run while an interrupted supervisor's loop releases the user's own optimizer.
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin._optimizer_state_dict_pre_hooks = OrderedDict()
    twin._optimizer_state_dict_post_hooks = OrderedDict()
    twin.param_groups = groups_of_twin
    twin.state = defaultdict(dict, {params[i]: own for i, own in state.items()})
    result = torch.optim.Optimizer.state_dict(twin)
    return result | {"param_groups": copy.deepcopy(result["param_groups"])}


def names_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return parameter names in the order of a stock state_dict."""
    names = {id(param): name for name, param in model.named_parameters()}
    return [names[id(param)] for param in parameters_of(optimizer)]


def checked_state(
    layout: StateLayout, names: list[str], optimizer: torch.optim.Optimizer, saved: Mapping[str, Any] | None
) -> tuple[dict[int, dict[str, Any]], GroupNumbers]:
    """Return state and group numbers of a stock state_dict (None: no state yet). Raises CheckpointError naming the
    parameter."""
    if saved is None:
        return {}, {}
    _check_counts(optimizer, saved["param_groups"])
    slots = {(slot.index, slot.key): slot for slot in layout.slots if not slot.in_group}
    for i, own in saved["state"].items():
        for key, value in own.items():
            if value is None:
                continue
            if (i, key) not in slots:
                raise CheckpointError(
                    f"the checkpoint has optimizer state {key} for parameter {names[i]}, which "
                    f"{type(optimizer).__qualname__} does not have; it belongs to another optimizer",
                    code="checkpoint/other-optimizer",
                )
            slot = slots[i, key]
            if not slot.is_number:
                expected = torch.empty(slot.shape_of(value), dtype=slot.dtype, device="meta")
                _check_tensor(f"optimizer state {key} of parameter {names[i]}", expected, value)
    numbers = [slot for slot in layout.slots if slot.in_group]
    groups = {(s.index, s.key): saved["param_groups"][s.index].get(s.key) for s in numbers}
    return dict(saved["state"]), groups


def check_groups(layout: StateLayout, optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    """Check the groups `saved` in a stock state_dict. Raises CheckpointError with every difference if parameters or
    hyper-parameters differ from the optimizer's. Counters of the rule in its groups are state and may differ; a key
    that only one side has comes from another version of the rule."""
    _check_counts(optimizer, saved)
    counted = {(slot.index, slot.key) for slot in layout.slots if slot.in_group}
    changed = [
        f"{key} of group {g} was {_shown(there[key])}, now {_shown(value)}"
        for g, (here, there) in enumerate(zip(optimizer.param_groups, saved, strict=True))
        for key, value in here.items()
        if key in there and key not in NOT_COMPARED and (g, key) not in counted and not _is_same(value, there[key])
    ]
    if changed:
        raise CheckpointError(
            f"the optimizer {type(optimizer).__qualname__} has other hyper-parameters than the checkpoint: "
            + "; ".join(changed),
            code="checkpoint/other-optimizer",
        )


def _is_same(here: Any, there: Any) -> bool:
    """Compare values. A number in a tensor is as exact as its dtype allows: 0.1 equals the nearest float32."""
    if isinstance(here, Tensor) and isinstance(there, Tensor):
        return here.shape == there.shape and bool((here == there).all())
    if isinstance(there, Tensor):
        here, there = there, here
    if isinstance(here, Tensor):
        is_number = isinstance(there, int | float) and here.numel() == 1
        return is_number and bool((here == torch.tensor(there, dtype=here.dtype)).all())
    if isinstance(here, list | tuple) and isinstance(there, list | tuple):
        return len(here) == len(there) and all(map(_is_same, here, there))
    return bool(here == there) or repr(here) == repr(there)  # NaN


def _shown(value: Any) -> str:
    return reprlib.repr(value.tolist() if isinstance(value, Tensor) else value)


def _check_counts(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    here, there = ([len(g["params"]) for g in groups] for groups in (optimizer.param_groups, saved))
    if here != there:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {there} parameters, this one of {here}; the checkpoint belongs "
            "to another optimizer",
            code="checkpoint/other-optimizer",
        )


def _check_tensor(name: str, own: Tensor, saved: Any) -> None:
    if not isinstance(saved, Tensor):
        words = f"the checkpoint has {saved!r} instead of a tensor"
    elif own.shape != saved.shape:
        words = f"shape {tuple(saved.shape)} in the checkpoint, {tuple(own.shape)} in this model"
    elif own.dtype != saved.dtype:
        words = f"{saved.dtype} in the checkpoint, {own.dtype} in this model"
    else:
        return
    raise CheckpointError(f"{name}: {words}", code="checkpoint/other-model")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "nothing"
