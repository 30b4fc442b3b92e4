"""The structure file: model, loss and optimizer with the tensors in shared memory replaced by references.

    bytes  =  layout  |  (model, loss, optimizer)          two pickles, one after the other

Written by the parent with `by_value`, so that definitions in a script or a notebook travel by value; read by a worker,
which re-runs no constructor. References keep identity: a Parameter under two names, in an RNN's `_flat_weights` and in
the optimizer is one object again. Only shared memory travels by reference: any other tensor a module holds is copied,
so none may be a view of shared memory: the copy would never change.

A class may define its own pickling, and so create new parameters in the worker, which would train while the shared ones
do not change. So the file also lists which objects must be which references after reading.
"""

import contextlib
import io
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hogwild import by_value
from hogwild.errors import ModelError
from hogwild.parameters.buffers import REGION as BUFFERS
from hogwild.parameters.buffers import BufferLayout, block_of
from hogwild.parameters.flat_layout import FlatLayout, extent
from hogwild.parameters.optimizer_state import StateLayout, attributes_of
from hogwild.shared_memory.region import Region
from hogwild.user_code import raised_text


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Everything in shared memory. `workers` is the number of copies of buffers and, unless shared, of optimizer
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
        buffers = self.buffers.region_nbytes(self.workers)
        return self.flats.nbytes + buffers + self.state.nbytes * self.state_blocks


Loss = Callable[..., Tensor]
Extras = tuple[dict[str, Any], list[Any], list[Any]]
Parts = tuple[nn.Module, Loss, torch.optim.Optimizer]


def dump_structure(layout: SharedLayout, parts: Parts, here: list[Any] | None = None) -> bytes:
    """Write the structure. Raises ModelError naming the module (by its path) or the part that cannot be written, or
    holds a view of a parameter. `here` collects classes and functions by reference, for a reader in this process."""
    file = io.BytesIO()
    file.write(by_value.dumps(layout))
    writer = _StructureWriter(file, parts[0], here)
    try:
        extras: list[Extras] = [  # users attach to parameters and buffers: attributes, hooks, hooks after accumulation
            (
                dict(vars(tensor)),
                list((tensor._backward_hooks or {}).values()),
                list((tensor._post_accumulate_grad_hooks or {}).values()),
            )
            for tensor in _tensors(parts[0])
        ]
        writer.dump((parts, extras, _bound(parts, writer.places)))
    except Exception as error:
        code = error.code if isinstance(error, ModelError) else "model/not-picklable"
        raise ModelError(_blame(parts, error), code=code) from error
    return file.getvalue()


def load_structure(
    structure: bytes | memoryview, regions: Mapping[str, Region], worker: int, here: Sequence[Any] = ()
) -> tuple[SharedLayout, Parts, list[nn.Parameter]]:
    """Read the structure in a worker: the parts bound to the flats and to this worker's buffers, and the parameters in
    layout order. Raises ModelError if a class's own pickling made other parameters."""
    file = io.BytesIO(structure)
    layout: SharedLayout = pickle.load(file)
    reader = _StructureReader(file, layout, regions, worker, here)
    parts, extras, bound = reader.load()
    read = _bound(parts, {id(tensor): place for place, tensor in reader.made.items()})
    if bound != read:
        differing = [was[0] for was, now in zip(bound, read, strict=False) if was != now]
        raise ModelError(
            f"{(differing or ['a parameter'])[0]} becomes another object when the model is pickled for a worker and "
            "loaded again, so its updates would be lost. A class with its own __reduce__, __getstate__ or "
            "__setstate__ must keep parameters, buffers and modules unchanged; or remove that method",
            code="model/rebuilt",
        )
    for tensor, (attributes, hooks, late_hooks) in zip(_tensors(parts[0]), extras, strict=True):
        vars(tensor).update(attributes)
        for hook in hooks:
            tensor.register_hook(hook)
        for hook in late_hooks:
            tensor.register_post_accumulate_grad_hook(hook)
    return layout, parts, list(parts[0].parameters())


def check_structure(layout: SharedLayout, parts: Parts, regions: Mapping[str, Region]) -> None:
    """Write and read the parts as for a worker, in the parent, while `regions` are zero. Raises what `load_structure`
    raises, and ModelError if they cannot be read, or if reading writes into parameters.

    Classes and functions go by reference: reading those of a notebook would replace their attributes and globals."""
    here: list[Any] = []
    try:
        with torch.random.fork_rng(devices=[]):
            _, (model, _, _), params = load_structure(dump_structure(layout, parts, here), regions, 0, here)
    except ModelError:
        raise
    except Exception as error:
        words = f"the model cannot be unpickled after pickling it for the workers: {raised_text(error)}"
        raise ModelError(words, code="model/not-picklable") from error
    for slot, param in zip(layout.flats.params, params, strict=True):
        if param.numel() and any(bool(param.detach()[(end,) * param.dim()] != 0) for end in (0, -1)):
            raise ModelError(
                f"parameter {slot.name} is overwritten when a worker loads the model, perhaps by a __setstate__: one "
                "that starts later would undo the training. Set parameters in the constructor",
                code="model/rebuilt",
            )
    for tensor in _tensors(model):  # a user's reference cycle would keep the regions' memory until garbage collection
        tensor.data = tensor.data.new_empty(0)


def check_apart(model: nn.Module, what: str, thing: Any) -> None:
    """Check `thing`, sent beside the structure. Raises ModelError if it cannot be written, or holds the model."""
    writer = _StructureWriter(io.BytesIO(), model)
    try:
        writer.dump(thing)
    except Exception as error:
        code = error.code if isinstance(error, ModelError) else "model/not-picklable"
        raise ModelError(f"{what} cannot be pickled for the workers: {raised_text(error)}", code=code) from error
    if writer.has_written:
        raise ModelError(
            f"{what} contains the model, or a part of it: workers would use a copy that is never trained. Only the "
            "model, the loss and the optimizer may contain parameters and buffers",
            code="model/view",
        )


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


_PLAIN = frozenset({str, int, float, bool, type(None), tuple, list, dict, set, OrderedDict})
Place = tuple[str, int]  # param or buffer, its number
Reference = tuple[str, int, type] | tuple[str, int]  # a place and its class; or "here" and an index


class _StructureWriter(by_value.Pickler):
    """Pickles parameters and buffers by reference, optimizers with all their attributes, and types that torch cannot
    pickle: parametrized modules, and TorchScript."""

    def __init__(self, file: io.BytesIO, model: nn.Module, here: list[Any] | None = None) -> None:
        super().__init__(file)
        self._here = here
        self.has_written = False  # a parameter or buffer
        params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        self.places: dict[int, Place] = {id(param): ("param", i) for i, param in enumerate(params.values())}
        self.places |= {id(buffer): ("buffer", i) for i, buffer in enumerate(buffers.values())}
        self._names = [f"parameter {name}" for name in params] + [f"buffer {name}" for name in buffers]
        extents = [extent(tensor) for tensor in (*params.values(), *buffers.values())]
        self._starts, self._ends = np.array(extents, dtype=np.uint64).reshape(-1, 2).T

    def persistent_id(self, thing: Any) -> Reference | None:
        if type(thing) in _PLAIN:  # nine of ten calls; there are a hundred for each module
            return None
        if self._here is not None and isinstance(thing, (type, FunctionType)):
            self._here.append(thing)
            return "here", len(self._here) - 1
        if not isinstance(thing, (Tensor, np.ndarray)):
            return None
        if id(thing) in self.places:
            self.has_written = True
            return *self.places[id(thing)], type(thing)
        start, end = extent(thing)
        for i in np.flatnonzero((self._starts < end) & (self._ends > start))[:1]:
            raise ModelError(
                f"a tensor or array there shares memory with {self._names[i]} but is another object. Parameters and "
                "buffers move to shared memory, and it would keep the old values. Use the parameter itself in "
                "forward, or keep a copy (.clone())",
                code="model/view",
            )
        return None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.optim.Optimizer):
            return _blank, (type(thing),), attributes_of(thing), None, None, _restore_attributes
        if isinstance(thing, torch.jit.ScriptModule):
            tensors = _script_tensors(thing)
            return _load_script, (_script_bytes(thing, tensors),), tensors, None, None, _bind_script
        if isinstance(thing, nn.Module) and parametrize.is_parametrized(thing):
            kind = parametrize.type_before_parametrizations(thing)
            return _blank, (kind,), kind.__getstate__(thing), None, None, _parametrize  # type: ignore[call-arg]
        if isinstance(thing, Tensor) and thing.grad_fn is not None:
            return _without_graph, (thing.detach(),)
        return super().reducer_override(thing)


def _blank(kind: type) -> Any:
    return object.__new__(kind)


def _restore_attributes(optimizer: torch.optim.Optimizer, attributes: dict[str, Any]) -> None:
    vars(optimizer).update(attributes)
    optimizer._patch_step_function()


def _parametrize(module: nn.Module, state: dict[str, Any]) -> None:
    """Restore a module as `register_parametrization` does, without its right inverses, which compute new values. torch
    creates the class, with a property per tensor, for this one module; no pickle can name it."""
    parametrize._inject_new_class(module)
    for name in state["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)
    module.__setstate__(state)


def _without_graph(value: Tensor) -> Tensor:
    """Replace a tensor that was computed from parameters, for models that overwrite it in forward."""
    value.requires_grad_().register_hook(_refuse_gradient)
    return value


def _refuse_gradient(_: Tensor) -> None:
    raise ModelError(
        "the loss depends on a tensor that was computed from parameters before training and stored (on self, in a "
        "list, in a closure): no parameter would get its gradient. Compute it in forward",
        code="model/backward-twice",
    )


def _script_tensors(script: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return parameters, buffers and other tensors, by their paths."""
    found: dict[str, Any] = {}
    for path, module in script.named_modules():
        names = [*module._parameters.keys(), *module._buffers.keys(), *module._concrete_type.get_attributes()]
        found |= {f"{path}.{name}": getattr(module, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _script_bytes(script: torch.jit.ScriptModule, tensors: Mapping[str, Tensor]) -> bytes:
    """Return torch's own file of the script, without the values of `tensors`."""
    file, kept = io.BytesIO(), {id(tensor): (tensor, tensor.data) for tensor in tensors.values()}
    try:
        for tensor, values in kept.values():
            tensor.data = values.new_empty(0)
        with not_calling_script_deprecated():
            torch.jit.save(script, file)
    except Exception as error:  # TorchScript can run but not export some things, such as a Python function
        words = f"TorchScript cannot save it: {str(error).strip()}. Use the nn.Module that it was made from"
        raise ModelError(words, code="model/scripted") from error
    finally:
        for tensor, values in kept.values():
            tensor.data = values
    return file.getvalue()


def _load_script(content: bytes) -> torch.jit.ScriptModule:
    with not_calling_script_deprecated():
        script: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(content))
    return script


def _bind_script(script: torch.jit.ScriptModule, tensors: Mapping[str, Tensor]) -> None:
    modules = dict(script.named_modules())
    for place, tensor in tensors.items():
        path, _, name = place.rpartition(".")
        setattr(modules[path], name, tensor)


class _StructureReader(pickle.Unpickler):
    """Reads the structure. Every reference is resolved once, so that one object stays one object."""

    def __init__(
        self, file: io.BytesIO, layout: SharedLayout, regions: Mapping[str, Region], worker: int, here: Sequence[Any]
    ) -> None:
        super().__init__(file)
        self._layout, self._regions, self._worker, self._here = layout, regions, worker, here
        self.made: dict[Place, Tensor] = {}

    def persistent_load(self, reference: Reference) -> Any:
        where, i, *kinds = reference
        if where == "here":
            return self._here[i]
        if (place := (where, i)) not in self.made:
            (kind,) = kinds
            if where == "param":
                slot = self._layout.flats.params[i]
                self.made[place] = Tensor._make_subclass(kind, slot.view(self._regions), slot.requires_grad)
            else:
                buffers = self._layout.buffers
                view = buffers.view(self._regions[BUFFERS], buffers.slots[i], block_of(self._worker))
                self.made[place] = view if kind is Tensor else view.as_subclass(kind)
        return self.made[place]


Bound = list[tuple[str, Place | None]]


def _bound(parts: Parts, places: Mapping[int, Place]) -> Bound:
    """Return everything that holds a parameter or a buffer, and which; None for the loss's own constants."""
    model, loss, optimizer = parts
    found: list[tuple[str, Tensor]] = []
    for whose, module in (("", model), ("the loss's ", loss)):
        if isinstance(module, nn.Module):
            named = [*nn.Module.named_parameters(module, remove_duplicate=False)]
            buffers = [*nn.Module.named_buffers(module, remove_duplicate=False)]
            found += [(f"{whose}{name}", tensor) for name, tensor in (*named, *buffers)]
    for g, group in enumerate(optimizer.param_groups):
        found += [(f"parameter {i} of the optimizer's group {g}", param) for i, param in enumerate(group["params"])]
    return [(name, places.get(id(tensor))) for name, tensor in found]


# ---- names the part that cannot be written


def _blame(parts: Parts, error: Exception) -> str:
    """Name the deepest module that cannot be written alone, else the loss or the optimizer; and its attribute."""
    model, loss, optimizer = parts
    deepest_first = sorted(model.named_modules(), key=lambda item: -len(item[0].split(".")) if item[0] else 1)
    suspects: list[tuple[str, Any]] = [(f"module {path or '(the model itself)'}", one) for path, one in deepest_first]
    for place, thing in (*suspects, ("the loss", loss), ("the optimizer", optimizer)):
        if (cause := _failure(model, thing)) is not None:
            inside = getattr(thing, "__dict__", {}).items()
            where = next((f"in its attribute {key}, " for key, value in inside if _failure(model, value)), "")
            return f"{place} ({type(thing).__qualname__}) cannot be pickled for the workers: {where}{cause}"
    return f"model, loss and optimizer cannot be pickled for the workers: {raised_text(error)}"


def _failure(model: nn.Module, thing: Any) -> str | None:
    try:
        _StructureWriter(io.BytesIO(), model).dump(thing)
    except ModelError as error:
        return str(error)
    except Exception as error:
        rule = "Workers are new processes: they cannot get locks, open files and generators"
        return f"{raised_text(error)}. {rule}"
    return None


@contextlib.contextmanager
def not_calling_script_deprecated() -> Iterator[None]:
    """Silence torch 2.13's warning at every use of TorchScript, including torch's own imports for torch.compile. Our
    documentation of `model.compile: script` mentions the deprecation once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield
