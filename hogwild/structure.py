"""The structure file: model, loss and optimizer with the tensors that lie in shared memory replaced by
references.

    bytes  =  layout  |  (model, loss, optimizer)          two pickles, one after the other

Written by the parent with cloudpickle, so that what is defined in a script or a notebook travels by value;
read by a worker, which re-runs no constructor. References keep identity: a Parameter under two names, in an
RNN's `_flat_weights` and in the optimizer is one object again. Only shared memory travels by reference: any
other tensor a module holds is copied.
"""

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from hogwild.buffers import REGION as BUFFERS
from hogwild.buffers import BufferLayout, block_of
from hogwild.dry_step import attributes_of
from hogwild.errors import ModelError
from hogwild.layout import FlatLayout
from hogwild.optim import StateLayout
from hogwild.shm import Region


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything in shared memory. `workers` counts the copies of buffers and, unless shared, of optimizer
    state."""

    flats: FlatLayout
    buffers: BufferLayout
    state: StateLayout
    workers: int

    @property
    def state_blocks(self) -> int:
        return 1 if self.state.shared else self.workers

    @property
    def nbytes(self) -> int:
        buffers = self.buffers.nbytes * (self.workers + 1)
        return self.flats.nbytes + buffers + self.state.nbytes * self.state_blocks


Loss = Callable[..., Tensor]
Parts = tuple[nn.Module, Loss, torch.optim.Optimizer]


def dump_structure(layout: Layout, parts: Parts) -> bytes:
    """Raises ModelError naming the module (by its path) or the part that cannot be written."""
    file = io.BytesIO()
    cloudpickle.dump(layout, file)
    try:
        _Writer(file, parts[0]).dump((parts, _extras(parts[0])))
    except Exception as error:
        raise ModelError(_blame(parts, error), code="model/not-picklable") from error
    return file.getvalue()


def load_structure(
    structure: bytes | memoryview, regions: Mapping[str, Region], worker: int
) -> tuple[Layout, Parts, list[nn.Parameter]]:
    """In a worker: the parts bound to the flats and to this worker's buffers, and the parameters in layout
    order."""
    file = io.BytesIO(structure)
    layout: Layout = pickle.load(file)
    reader = _Reader(file, layout, regions, worker)
    parts, extras = reader.load()
    params = [reader.param(i) for i in range(len(layout.flats.params))]
    for param, (attributes, hooks, late_hooks) in zip(params, extras, strict=True):
        vars(param).update(attributes)
        for hook in hooks:
            param.register_hook(hook)
        for hook in late_hooks:
            param.register_post_accumulate_grad_hook(hook)
    return layout, parts, params


Extras = tuple[dict[str, Any], list[Any], list[Any]]


def _extras(model: nn.Module) -> list[Extras]:
    """What users hang on Parameters: attributes, gradient hooks, hooks after accumulation."""
    return [
        (
            dict(vars(param)),
            list((param._backward_hooks or {}).values()),
            list((param._post_accumulate_grad_hooks or {}).values()),
        )
        for param in model.parameters()
    ]


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles with parameters and buffers by reference, and optimizers with all their attributes."""

    def __init__(self, file: io.BytesIO, model: nn.Module) -> None:
        super().__init__(file)
        self._references = {id(param): ("param", i) for i, param in enumerate(model.parameters())}
        self._references |= {id(buffer): ("buffer", i) for i, buffer in enumerate(model.buffers())}

    def persistent_id(self, thing: Any) -> tuple[str, int] | None:
        return self._references.get(id(thing)) if isinstance(thing, Tensor) else None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.optim.Optimizer):
            return _blank, (type(thing),), attributes_of(thing), None, None, _restore_attributes
        return super().reducer_override(thing)


def _blank(rule: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    return rule.__new__(rule)


def _restore_attributes(optimizer: torch.optim.Optimizer, attributes: dict[str, Any]) -> None:
    vars(optimizer).update(attributes)
    optimizer._patch_step_function()


class _Reader(pickle.Unpickler):
    """Every reference is resolved once, so that one object stays one object."""

    def __init__(self, file: io.BytesIO, layout: Layout, regions: Mapping[str, Region], worker: int) -> None:
        super().__init__(file)
        self._layout, self._regions, self._worker = layout, regions, worker
        self._params: dict[int, nn.Parameter] = {}
        self._buffers: dict[int, Tensor] = {}

    def persistent_load(self, reference: tuple[str, int]) -> Tensor:
        kind, i = reference
        return self.param(i) if kind == "param" else self.buffer(i)

    def param(self, i: int) -> nn.Parameter:
        if i not in self._params:
            slot = self._layout.flats.params[i]
            self._params[i] = nn.Parameter(slot.view(self._regions), slot.requires_grad)
        return self._params[i]

    def buffer(self, i: int) -> Tensor:
        if i not in self._buffers:
            buffers = self._layout.buffers
            block = block_of(self._worker)
            self._buffers[i] = buffers.view(self._regions[BUFFERS], buffers.slots[i], block)
        return self._buffers[i]


# ---- who is to blame


def _blame(parts: Parts, error: Exception) -> str:
    """Names the deepest module that cannot be written alone, else the loss or the optimizer."""
    model, loss, optimizer = parts
    for place, thing in _suspects(model, loss, optimizer):
        cause = _failure(model, thing)
        if cause is not None:
            return (
                f"{place} ({type(thing).__qualname__}) cannot be written for the workers: {cause}. Workers "
                "are new processes; keep locks, open files and generators out of what they need"
            )
    return f"model, loss and optimizer cannot be written for the workers: {type(error).__name__}: {error}"


def _suspects(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    deepest_first: Sequence[tuple[str, nn.Module]] = sorted(
        model.named_modules(), key=lambda item: -len(item[0].split(".")) if item[0] else 1
    )
    for path, module in deepest_first:
        yield f"module {path or '(the model itself)'}", module
    yield "the loss", loss
    yield "the optimizer", optimizer


def _failure(model: nn.Module, thing: Any) -> str | None:
    try:
        _Writer(io.BytesIO(), model).dump(thing)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
