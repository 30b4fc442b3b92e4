"""The model in a worker: its parameters are words of the flats, or of a private copy (`exchange.py`); its buffers are
this worker's copy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.parameters.buffers import REGION as BUFFERS
from hogwild.parameters.buffers import block_of
from hogwild.parameters.exchange import Exchange, Replica
from hogwild.parameters.optimizer_state import StateBlock
from hogwild.parameters.structure_file import Loss, SharedLayout, load_structure
from hogwild.shared_memory.region import Region


@dataclass(slots=True)
class WorkerModel:
    """Model, loss and optimizer of one worker. `params` are in layout order; `layout` describes what is trained at
    present. Training mode is as the parent left it."""

    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    params: list[nn.Parameter]
    layout: SharedLayout
    regions: Mapping[str, Region]
    worker: int
    state: StateBlock
    exchange: Exchange
    _buffers: Tensor | None  # this worker's block, (bytes,) uint8; None without buffers
    replica: Replica | None = None  # its tensors on a GPU; None: it computes on those that are shared
    runs: nn.Module = field(init=False)  # the module that is called: the model, or its compiled form
    _whole: SharedLayout = field(init=False)  # `layout` once everything is trained
    _parameter_places: list[tuple[nn.Module, str, str, Tensor, int]] = field(init=False)
    _buffer_places: list[tuple[nn.Module, str, str, Tensor]] = field(init=False)
    _module_sizes: list[tuple[nn.Module, str, tuple[int, ...]]] = field(init=False)
    _kept: Tensor | None = field(init=False)
    _marked: Tensor | None = None
    _trains: bool = False  # its state is newer than shared memory

    def __post_init__(self) -> None:
        self.runs, self._whole = self.model, self.layout
        self._parameter_places, self._buffer_places = _parameter_places(self.model), _places(self.model, "_buffers")
        self._module_sizes = [(module, path, _sizes(module)) for path, module in self.model.named_modules()]
        self._kept = None if self._buffers is None else self._buffers.clone()

    @classmethod
    def attach(
        cls,
        structure: bytes | memoryview,
        regions: Mapping[str, Region],
        worker: int,
        updates: int = 0,
        replica: Callable[..., Replica] | None = None,
    ) -> "WorkerModel":
        """Read the structure file. No constructor runs; state of an earlier incarnation is taken over. `updates`: the
        number of updates of the whole job so far, which decides what is still frozen. `replica`: what
        makes the copy on a GPU (`Replica.on`)."""
        layout, (model, loss, optimizer), params = load_structure(structure, regions, worker)
        assert 0 <= worker < layout.workers, f"worker {worker} of {layout.workers}"
        parts = (model, loss, optimizer, params, layout, regions, worker)
        if replica is not None:
            there = replica(layout, (model, loss, optimizer), params, regions, worker)
            attached = cls(*parts, there.state, there.exchange, there.buffers, there)
        else:
            state = StateBlock(layout.state, regions, 0 if layout.state.shared else worker)
            shared = regions.get(BUFFERS)
            own = None if shared is None else layout.buffers.block(shared, block_of(worker))
            attached = cls(*parts, state, Exchange(layout.flats, params, regions), own)
        attached.state.load(optimizer)
        attached.thaw(updates)
        return attached

    def thaw(self, updates: int) -> None:
        """Train exactly the parameters whose `until` is at most `updates`, and update `layout`. Gradients and rules
        made before are outdated."""
        flats = self._whole.flats
        if not any(slot.until for slot in flats.params):
            return
        self.layout = replace(self._whole, flats=flats.as_of(updates))
        for slot, param in zip(flats.params, self.params, strict=True):
            if slot.until:
                param.requires_grad_(updates >= slot.until)

    def next_thaw(self, updates: int) -> int | None:
        """Return the next update that unfreezes parameters; None if there is none."""
        return min((slot.until for slot in self._whole.flats.params if slot.until > updates), default=None)

    @property
    def thaws(self) -> tuple[int, ...]:
        """The updates of the whole job that unfreeze parameters, in ascending order."""
        return tuple(sorted({slot.until for slot in self._whole.flats.params if slot.until}))

    def rest(self) -> None:
        """Write everything to shared memory, where the parent finds it; before a pause and before leaving, after a
        flush. Raises what `check_bound` raises."""
        self.check_bound()
        if self._trains and self.replica is not None:
            self.replica.write_back()
        self._trains = False

    def refresh(self) -> None:
        """Read parameters and buffers as the parent changed them, in a pause."""
        self.exchange.refresh()
        if not self._trains and self.replica is not None:
            self.replica.read_back()

    def start(self) -> bool:
        """Start training, until `rest`. There may have been a pause since, in which the parent merged all buffers, so
        they are read again. Return whether another worker's optimizer state was taken over, because this one was far
        behind."""
        if self._trains:
            return False
        if self.replica is not None:
            self.replica.read_back()
        self._trains = True
        return self.state.copy_from(self.optimizer)

    def close(self) -> None:
        """Release the device memory, before the worker leaves or rebuilds everything."""
        if self.replica is not None:
            self.replica.close()

    def bind(self, *, delta: bool) -> None:
        """Bind the parameters to this worker's own copy (`delta`) or to the flats. Raises what `check_bound` raises:
        afterwards replaced parameters could not be detected."""
        self.check_bound()
        self.exchange.bind(delta=delta)
        self._parameter_places = _parameter_places(self.model)

    def check_bound(self) -> None:
        """Check that every parameter is still the same object over the same words, and that there is no new one; copy
        buffers that user code replaced back into this worker's copy. Takes a few tenths of a microsecond per parameter
        and module.

        Raises ModelError naming the parameter or buffer. Call it before a pause, so that the parent sees all
        buffers."""
        for module, key, name, param, address in self._parameter_places:
            if _entry(module._parameters, key) is not param:
                raise ModelError(f"parameter {name} was replaced during training; {_ADVICE}", code="model/rebound")
            if param.data_ptr() != address:
                raise ModelError(
                    f"the memory of parameter {name} was replaced during training; {_ADVICE}", code="model/rebound"
                )
        for module, path, sizes in self._module_sizes:
            if _sizes(module) != sizes:
                raise ModelError(
                    f"module {path or '(the model itself)'} gained or lost parameters, persistent buffers or modules "
                    "during training; create all of them in the constructor: later ones would not be shared",
                    code="model/gained-parameters",
                )
        if self.runs is not self.model:
            check_same_memory(self.runs, self.model)
        self._restore_buffers()

    def keep_buffers(self) -> None:
        """Save the buffers before an exchange: a forward pass moves running averages, and a skipped one (because of a
        NaN, for instance) must not change them."""
        if self._buffers is not None and self._kept is not None:
            self._restore_buffers()
            self._kept.copy_(self._buffers)

    def restore_buffers(self) -> None:
        """Restore the buffers of the last `keep_buffers`."""
        self._put_back(self._kept)

    def mark_buffers(self) -> None:
        """Save the buffers for `return_buffers`, independently of `keep_buffers` and `restore_buffers`."""
        if self._buffers is not None:
            self._restore_buffers()
            self._marked = self._buffers.clone() if self._marked is None else self._marked.copy_(self._buffers)

    def return_buffers(self) -> None:
        """Restore the buffers of the last `mark_buffers`, if there was one."""
        self._put_back(self._marked)

    def _put_back(self, content: Tensor | None) -> None:
        if self._buffers is not None and content is not None:
            self._buffers.copy_(content)
            for module, key, _, view in self._buffer_places:
                module._buffers[key] = view

    def _restore_buffers(self) -> None:
        for module, key, name, view in self._buffer_places:
            value = _entry(module._buffers, key)
            if value is view:
                continue
            if value is None or value.shape != view.shape or value.dtype != view.dtype:
                found = "None" if value is None else f"{value.dtype} {tuple(value.shape)}"
                raise ModelError(
                    f"buffer {name} changed from {view.dtype} {tuple(view.shape)} to {found} during training; "
                    "shared buffers must keep their shape and dtype",
                    code="model/buffer-changed",
                )
            with torch.no_grad():
                view.copy_(value)
            module._buffers[key] = view


_ADVICE = (
    "its updates would be lost. Write into it instead (param.data.copy_(…), load_state_dict without assign=True), and "
    "convert dtypes before training"
)


def _entry(table: Any, key: str) -> Tensor | None:
    """Return the entry or None; the tables of a ScriptModule have no `get`."""
    return table[key] if key in table else None  # noqa: SIM401


def _places(model: nn.Module, table: str) -> list[tuple[nn.Module, str, str, Tensor]]:
    """Return (module, key, full name, tensor) of everything in the modules' `_parameters` or `_buffers`."""
    return [
        (module, key, f"{path}.{key}" if path else key, tensor)
        for path, module in model.named_modules()
        for key, tensor in getattr(module, table).items()
        if tensor is not None
    ]


def _parameter_places(model: nn.Module) -> list[tuple[nn.Module, str, str, Tensor, int]]:
    return [(*place, place[3].data_ptr()) for place in _places(model, "_parameters")]


def _sizes(module: nn.Module) -> tuple[int, ...]:
    """Return the numbers of parameters, modules and saved buffers; derived buffers may be made when needed."""
    saved = len(module._buffers) - len(module._non_persistent_buffers_set)
    return len(module._parameters), len(module._modules), saved


def check_same_memory(runs: nn.Module, model: nn.Module) -> None:
    """Check that `runs` uses the memory of `model`. Raises ModelError for a buffer that scripted code has replaced: the
    model would keep the old one."""
    theirs = [*runs.named_parameters(), *runs.named_buffers()]
    ours = [*model.named_parameters(), *model.named_buffers()]
    for (_, compiled), (name, own) in zip(theirs, ours, strict=True):
        if compiled.data_ptr() != own.data_ptr():
            raise ModelError(
                f"{name} is another tensor in the compiled model than in the model (model.compile): its updates would "
                "be lost. Write into it in place (copy_, add_) instead of assigning to it",
                code="model/rebound",
            )
