"""Layout of optimizer state in shared memory, learnt by one dry step on a copy.

    state   [ block 0 | block 1 | … ]        private: a block per worker; shared: one block, written by all
    block   [ present words, updates | numbers, float64 | a vector or flat per span and key | other tensors ]

A tensor shaped like its parameter is stored in an array parallel to the parameter's span, so that one operation over
the span finds its state at the same offsets. The 0-dim tensors of a span under one key (`step`) form a vector. A
present word says that the optimizer has created this piece of state; without it the piece does not exist, whatever the
memory holds. `updates` is twice the number of updates in this state, plus 1 during an update.

`state: shared` creates all state before the first update, because no worker could later. It starts with the state after
a step with zero gradients and no weight decay, with counters reset. For SGD with momentum that differs from stock in
one point: the first gradient is scaled by 1 - dampening. Adam and its relatives start exactly as stock. Python numbers
are not shared: each worker counts its own, and a checkpoint holds the last one written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hogwild.parameters.flat_layout import FlatLayout, sparse_parameters
from hogwild.parameters.trial_step import dry_step, parameters_of
from hogwild.shared_memory.region import aligned, own_strides

REGION = "state"
Kind = Literal["like", "scalar", "tensor", "int", "float", "bool"]
State = Mapping[int, Mapping[str, Any]]  # index in the optimizer -> torch's name -> value

# Values before the first step, if a step with zero gradients changes them.
INITIAL = {"step": 0.0, "mu_product": 1.0, "exp_inf": 0.0}


@dataclass(frozen=True, slots=True)
class StateSlot:
    """One piece of state: of parameter `index` (numbered as in a stock state_dict), or of group `index` if `in_group`.
    `offset` is in bytes from the start of a block, `word` is its present word. Numbers are one float64."""

    index: int
    key: str
    kind: Kind
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    word: int
    in_group: bool = False

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "float", "bool")


@dataclass(frozen=True, slots=True)
class SpanState:
    """The state of span `span` under `key`: an array of its `numel` elements, or a vector of one element per
    parameter."""

    span: int
    key: str
    kind: Kind
    dtype: torch.dtype
    numel: int
    offset: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The layout of one block. `nbytes` is 0 for a rule without state."""

    slots: tuple[StateSlot, ...]
    arrays: tuple[SpanState, ...]
    nbytes: int
    shared: bool


def plan_state(
    model: nn.Module, flats: FlatLayout, optimizer: torch.optim.Optimizer, *, shared: bool
) -> tuple[StateLayout, State]:
    """Plan the layout of a block, and the initial state of every block: the user's own, and for `shared` all of it.

    Raises OptimizerError if the dry step fails."""
    own = own_state(optimizer)
    initial, group_numbers = initial_state(model, optimizer)
    layout = _Planner(flats, _places(model, flats, optimizer)).plan(initial, group_numbers, shared)
    if not shared:
        return layout, own
    return layout, {**initial, **{i: {**initial.get(i, {}), **state} for i, state in own.items()}}


def own_state(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """Return the state that the optimizer has now."""
    return {i: dict(optimizer.state[p]) for i, p in enumerate(parameters_of(optimizer)) if optimizer.state.get(p)}


def initial_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[State, list[tuple[int, str, Any]]]:
    """Return all state as it is before the first update, and (group, key, value) of the counters in groups. A constant
    tensor may be stored as one number (stride 0). Raises OptimizerError if the dry step fails."""
    after, group_numbers = dry_step(optimizer, sparse_parameters(model))
    return {i: {key: _initial(key, value) for key, value in state.items()} for i, state in after.items()}, group_numbers


def _initial(key: str, value: Any) -> Any:
    if key not in INITIAL:
        return value
    return torch.full_like(value, INITIAL[key]) if isinstance(value, Tensor) else type(value)(INITIAL[key])


def _places(model: nn.Module, flats: FlatLayout, optimizer: torch.optim.Optimizer) -> dict[int, tuple[int, int, int]]:
    index = {id(param): i for i, param in enumerate(parameters_of(optimizer))}
    own = [index.get(id(param)) for param in model.parameters()]
    places = {}
    for s, span in enumerate(flats.spans):
        for position, i in enumerate(span.params):
            place = own[i]
            if span.group is not None and place is not None:
                places[place] = (s, position, flats.params[i].offset - span.offset)
    return places


@dataclass
class _Planner:
    """Assigns bytes to every piece of state. `places`: index in the optimizer -> span, position in it, elements before
    it."""

    flats: FlatLayout
    places: dict[int, tuple[int, int, int]]
    end: int = 0
    slots: list[StateSlot] = field(default_factory=list)
    arrays: dict[tuple[int, str, Kind], SpanState] = field(default_factory=dict)

    def plan(self, state: State, group_numbers: list[tuple[int, str, Any]], shared: bool) -> StateLayout:
        pieces = [(i, key, value) for i, own in state.items() for key, value in own.items()]
        pieces = [piece for piece in pieces if isinstance(piece[2], Tensor | int | float)]
        words = len(pieces) + len(group_numbers)
        numbers = [piece for piece in pieces if not isinstance(piece[2], Tensor)]
        self.end = aligned(8 * (words + 1)) if words else 0
        for i, key, value in numbers:
            self._add_number(i, key, value, in_group=False)
        for g, key, value in group_numbers:
            self._add_number(g, key, value, in_group=True)
        self.end = aligned(self.end)
        for i, key, value in pieces:
            if isinstance(value, Tensor):
                self._add_tensor(i, key, value)
        return StateLayout(tuple(self.slots), tuple(self.arrays.values()), self.end, shared)

    def _add_number(self, index: int, key: str, value: float, *, in_group: bool) -> None:
        kind: Kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        word = len(self.slots)
        self.slots.append(StateSlot(index, key, kind, torch.float64, (), (), self.end, word, in_group))
        self.end += 8

    def _add_tensor(self, index: int, key: str, value: Tensor) -> None:
        span, position, beside = self.places.get(index, (-1, 0, 0))
        slot = self.flats.params[self.flats.spans[span].params[position]] if span >= 0 else None
        shape, size = tuple(value.shape), value.element_size()
        kind: Kind = "tensor"
        if slot is not None and shape == () and (slot.shape != () or key in INITIAL):
            kind = "scalar"
        elif slot is not None and shape == slot.shape:
            kind = "like"
        array = self._array(span, key, kind, value.dtype) if kind != "tensor" else None
        if array is None or slot is None:
            kind, strides, offset = "tensor", own_strides(value), self.end
            self.end += aligned(value.numel() * size)
        elif kind == "scalar":
            strides, offset = (), array.offset + position * size
        else:
            strides, offset = slot.strides, array.offset + beside * size
        self.slots.append(StateSlot(index, key, kind, value.dtype, shape, strides, offset, len(self.slots)))

    def _array(self, span: int, key: str, kind: Kind, dtype: torch.dtype) -> SpanState | None:
        """Return the array beside `span`; None if the name is used with another dtype."""
        if (span, key, kind) not in self.arrays:
            whole = self.flats.spans[span]
            numel = len(whole.params) if kind == "scalar" else whole.numel
            self.arrays[span, key, kind] = SpanState(span, key, kind, dtype, numel, self.end)
            self.end += aligned(numel * dtype.itemsize)
        array = self.arrays[span, key, kind]
        return array if array.dtype == dtype else None
