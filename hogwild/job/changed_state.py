"""State that a training forward changes, found by forwards over the first samples: attributes, which each worker has
for itself, and the rules by which buffers move (`hogwild/parameters/buffers.py`).

An attribute counts if a forward changes a plain value, changes an object in place, or leaves another value the second
time, with the same samples and random state: a tensor that is only kept for later looks is the same both times.

A buffer moves by a known rule if a shift of its value shifts the next value by a constant part of it, the *gain*: the
same in all elements, for two shifts, and after two forwards as after one. Gain 1 is a sum; less is a moving average of
momentum 1 - gain."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.parameters.buffers import SUM, UNKNOWN, MergeRule, norm_rules
from hogwild.training.model_steps import leaving_no_trace

PLAIN = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, dict, set, frozenset)
OURS = ("torch.", "hogwild.")
OF_TORCH = {*vars(nn.Module())}
DEPTH, ITEMS, NBYTES = 3, 1000, 1 << 24  # how far a value is looked into; larger tensors and arrays are not copied
MOST_BUFFERS = 8  # whose rule is measured; each costs three forwards
MOST_NAMED = 4
CURE = (
    "each worker changes its own, and no other worker, checkpoint or result has it. Make it a buffer of the model "
    "(register_buffer, changed in place): buffers of all workers are merged"
)


@dataclass(frozen=True, slots=True)
class ChangedState:
    """`rules`: of the buffers that changed, but for those of norms; `notes` for people."""

    rules: dict[str, MergeRule]
    notes: list[str]


def find_changed_state(model: nn.Module, loss: Any, forward: Callable[[], object]) -> ChangedState:
    """Run `forward`, a training forward with its loss, several times, and restore everything. Raises what it raises."""
    holders, notes = list(_holders(model, loss)), list[str]()
    with _keeping_structure(model), leaving_no_trace(model), _restoring(holders):
        seed = torch.initial_seed() & 0xFFFFFFFF

        def run() -> None:
            torch.default_generator.manual_seed(seed)
            forward()

        buffers = _Buffers(model)
        start, before = buffers.read(), _state(holders)
        run()
        first, after = buffers.read(), _state(holders)
        buffers.write(start)
        run()
        again = _state(holders)
        names = [name for name, value in after.items() if _is_state(before.get(name), value, again.get(name))]
        changed = [name for name in start if not torch.equal(_bits(start[name]), _bits(first[name]))]
        rules, norms = dict.fromkeys(changed, SUM), norm_rules(model)
        unknown = [name for name in changed if start[name].is_floating_point() and name not in norms]
        for name in unknown:
            rules[name] = buffers.rule(name, start, first, run) if len(unknown) <= MOST_BUFFERS else UNKNOWN
    if names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        notes.append(f"a training forward changes {', '.join(names[:MOST_NAMED])}{more}: {CURE}")
    if unknown:
        notes.append("buffers that a training forward changes: " + "; ".join(_said(n, rules[n]) for n in unknown))
    return ChangedState({name: rule for name, rule in rules.items() if name not in norms}, notes)


def _said(name: str, rule: MergeRule) -> str:
    if rule == UNKNOWN:
        return f"{name} by no rule that is known: workers' copies are averaged, weighted by batches"
    if rule == SUM:
        return f"{name} is a sum: workers' increments are added up"
    return f"{name} is a moving average of momentum {rule.momentum:g}: merged to what one process would have left"


class _Buffers:
    """The buffers of a model, to be set again before each forward."""

    def __init__(self, model: nn.Module) -> None:
        self._places = []
        for path, module in model.named_modules():
            for key, value in module._buffers.items():
                if value is not None:
                    self._places.append((f"{path}.{key}" if path else key, module._buffers, key, value))

    def read(self) -> dict[str, Tensor]:
        return {name: table[key].detach().clone() for name, table, key, _ in self._places}

    def write(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, table, key, own in self._places:
                table[key] = own.copy_(values[name])

    def rule(
        self, name: str, start: Mapping[str, Tensor], first: Mapping[str, Tensor], run: Callable[[], None]
    ) -> MergeRule:
        """Measure the rule of a floating buffer."""
        shift = max(1.0, float(start[name].abs().max())) if start[name].numel() else 1.0
        self.write(first)
        run()
        second = self.read()[name]
        gains = []
        for values, found, size in (
            (start, first[name], shift),
            (start, first[name], 2 * shift),
            (first, second, shift),
        ):
            self.write({**values, name: values[name] + size})
            run()
            gains.append(((self.read()[name].double() - found.double()) / size).flatten())
        gain = torch.cat(gains)
        digits = -int(np.log10(16 * torch.finfo(start[name].dtype).eps))
        if not len(gain) or not bool(torch.isfinite(gain).all()) or float(gain.max() - gain.min()) > 10.0**-digits:
            return UNKNOWN
        momentum = round(1 - float(gain.mean()), digits)
        if momentum == 0:
            return SUM
        return MergeRule(momentum) if 0 < momentum < 1 else UNKNOWN


# ---- attributes


def _holders(model: nn.Module, loss: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, attributes) of every module of the user's, of the loss, and the buffers of a loss of its own."""
    kind, seen = type(model).__name__, set[int]()
    for path, module in model.named_modules():
        seen.add(id(module))
        if not type(module).__module__.startswith(OURS):
            yield f"{kind}.{path}" if path else kind, vars(module)
    if isinstance(loss, nn.Module):
        for path, module in loss.named_modules():
            if id(module) not in seen and not type(module).__module__.startswith(OURS):
                name = type(loss).__name__ + (f".{path}" if path else "")
                yield name, vars(module)
                yield f"{name} (the loss, not in the model)", module._buffers
    elif hasattr(loss, "__dict__"):
        yield getattr(loss, "__name__", type(loss).__name__), vars(loss)


State = dict[str, tuple[int, Any]]  # name -> (identity of the object, its content)


def _state(holders: list[tuple[str, dict[str, Any]]]) -> State:
    return {
        f"{holder}.{key}": (0 if isinstance(value, PLAIN) else id(value), _content(value))
        for holder, attributes in holders
        for key, value in attributes.items()
        if key not in OF_TORCH
    }


def _is_state(before: tuple[int, Any] | None, after: tuple[int, Any], again: tuple[int, Any] | None) -> bool:
    if before == after or (before is not None and before[1] == after[1]):
        return False
    is_same_object = before is not None and before[0] == after[0]
    return is_same_object or again is None or after[1] != again[1]


def _content(value: Any, depth: int = 0) -> Any:
    """Return a value that is equal for equal contents; of what cannot be looked into, its identity."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return _digest(_bits(value.detach()).numpy()) if _is_copied(value) else (id(value), value._version)
    if isinstance(value, np.ndarray):
        return _digest(value) if _is_copied(value) else id(value)
    if depth < DEPTH and isinstance(value, CONTAINERS) and len(value) <= ITEMS:
        items = value.items() if isinstance(value, dict) else value
        return type(value).__name__, *(_content(item, depth + 1) for item in items)
    if depth < DEPTH and _has_own_attributes(value):
        return type(value).__name__, *((key, _content(one, depth + 1)) for key, one in vars(value).items())
    return id(value), len(value) if isinstance(value, CONTAINERS) else 0


def _is_copied(value: Any) -> bool:
    if isinstance(value, Tensor):
        is_plain = value.layout == torch.strided and value.device.type == "cpu" and not isinstance(value, nn.Parameter)
        return is_plain and value.nbytes <= NBYTES
    return isinstance(value, np.ndarray) and value.dtype.kind != "O" and value.nbytes <= NBYTES


def _has_own_attributes(value: Any) -> bool:
    """Return whether it is an object of a user's class."""
    return hasattr(value, "__dict__") and not type(value).__module__.startswith((*OURS, "builtins"))


def _digest(values: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8) if value.numel() else value.new_empty(0, dtype=torch.uint8)


@contextmanager
def _keeping_structure(model: nn.Module) -> Iterator[None]:
    """Remove the parameters, buffers and modules that a forward adds: training refuses some, and lays out none."""
    tables = [
        (module, table, set(table.keys()))  # tables of a ScriptModule cannot be iterated
        for module in model.modules()
        for table in (module._parameters, module._buffers, module._modules)
    ]
    try:
        yield
    finally:
        for module, table, kept in tables:
            for key in [key for key in table.keys() if key not in kept]:  # noqa: SIM118
                del table[key]
                module._non_persistent_buffers_set.discard(key)


@contextmanager
def _restoring(holders: list[tuple[str, dict[str, Any]]]) -> Iterator[None]:
    """Restore attributes, and the contents of those that a forward may change in place."""
    kept = [(attributes, dict(attributes)) for _, attributes in holders]
    contents = [(value, _copy(value)) for _, own in kept for key, value in own.items() if key not in OF_TORCH]
    try:
        yield
    finally:
        for value, content in contents:
            _put_back(value, content)
        for attributes, own in kept:
            for key in [key for key in attributes if key not in own]:
                del attributes[key]
            attributes.update({key: value for key, value in own.items() if key not in OF_TORCH})


def _copy(value: Any) -> Any:
    """Return a copy of what a forward may change in place; None of anything else."""
    if isinstance(value, Tensor):
        return value.detach().clone() if _is_copied(value) else None
    if isinstance(value, list | dict | set) or _is_copied(value):
        return value.copy()
    is_object = _has_own_attributes(value) and not isinstance(value, nn.Module | type)
    return dict(vars(value)) if is_object else None


def _put_back(value: Any, content: Any) -> None:
    if content is None:
        return
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.detach().copy_(content)
    elif isinstance(value, list | np.ndarray):
        value[:] = content
    elif isinstance(value, dict | set):
        value.clear()
        value.update(content)
    else:
        vars(value).update(content)
