"""Optimizer state in shared memory: its layout, learnt by one dry step on a copy, and the blocks that hold it.

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

import copy
import inspect
import math
import time
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hogwild import host
from hogwild.errors import OptimizerError
from hogwild.kernels.signatures import HEAD
from hogwild.nn import ACTIVE, cut_to_use, tables_in
from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.parameters.flat_layout import FlatLayout, region_name, sparse_parameters
from hogwild.shared_memory.region import Region, aligned, own_strides
from hogwild.user_code import raised_text

PORTION = 64 << 20  # bytes of parameters that are tried at once
TIMES = 6  # memory per parameter byte: a copy, its gradient, two moments, two temporary tensors of torch's


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters in the order of a stock state_dict."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def trial_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the peak private memory of `dry_step`, in bytes."""
    return TIMES * max((sum(param.nbytes for param in portion) for portion in _portions(optimizer)), default=0)


def _portions(optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]]:
    """Return groups of parameters to try at once, in the optimizer's order. torch's own rules treat every parameter
    separately, so large models are tried piece by piece; another rule may need all of them together."""
    params = parameters_of(optimizer)
    starts = accumulate((param.nbytes for param in params), initial=0)
    numbers = (start // PORTION if _is_stock(optimizer) else 0 for start in starts)
    numbered = zip(numbers, params, strict=False)
    return [[param for _, param in portion] for _, portion in groupby(numbered, lambda pair: pair[0])]


def dry_step(
    optimizer: torch.optim.Optimizer, sparse: set[int]
) -> tuple[dict[int, dict[str, Any]], list[tuple[int, str, Any]]]:
    """Return the state after one step with zero gradients on a copy, and the numbers in groups that the step changed. A
    constant tensor may be stored as one number (stride 0).

    The user's objects stay unchanged: parameters and state are copied, hooks left out, the generator's state
    restored."""
    state: list[dict[str, Any]] = []  # of each parameter
    numbers: list[tuple[int, str, Any]] = []
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real first step repeats these warnings
            for portion in _portions(optimizer):
                rule, sparse_places = (
                    _copy(optimizer, portion, sparse),
                    {i for i, p in enumerate(portion) if id(p) in sparse},
                )
                before, params = [dict(group) for group in rule.param_groups], parameters_of(rule)
                _step_with_zeros(rule, params, sparse_places)
                if _densify(rule, params):
                    _step_with_zeros(rule, params, sparse_places)  # does the rule work with the dense buffer?
                found = [rule.state.get(param) or {} for param in params]
                state += [{key: _compact(value) for key, value in own.items()} for own in found]
                numbers = _changed_numbers(before, rule.param_groups)
    except Exception as error:
        raise OptimizerError(
            f"{type(optimizer).__qualname__} failed in a trial step with zero gradients on a copy of the parameters: "
            f"{raised_text(error)}",
            code="optimizer/trial-step",
        ) from error
    return {i: own for i, own in enumerate(state) if own}, numbers


def _compact(value: Any) -> Any:
    """Return a constant tensor, as most initial state is, as one expanded number, to save memory until it is
    written."""
    if not isinstance(value, Tensor) or value.numel() < 2:
        return value
    number = value[(0,) * value.dim()].clone()
    return number.expand(value.shape) if bool((value == number).all()) else value


def attributes_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return all instance attributes, unlike torch's own `__getstate__`, which omits those that a subclass adds. A
    `step` replaced on the instance (learning rate schedulers do that, with a weak reference) is left out."""
    return {key: value for key, value in vars(optimizer).items() if key != "step"}


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], Any]:
    """Return the rule without torch's wrappers, to be called without gradients. They cost a profiler record per step,
    and import torch._dynamo (a second of every worker's start). For a user's class only the profiler's wrapper is
    removed."""
    step: Callable[[torch.optim.Optimizer], Any] = type(optimizer).step
    if _is_stock(optimizer):
        step = inspect.unwrap(step)
    elif getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]
    return step


def _is_stock(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.split(".")[:2] == ["torch", "optim"]


def _copy(optimizer: torch.optim.Optimizer, portion: list[nn.Parameter], sparse: set[int]) -> torch.optim.Optimizer:
    """Copy the optimizer over copies of these parameters alone. A known rule reads and writes only the row
    that a sparse gradient names: then the copy is not filled, which takes seconds for gigabytes."""
    memo: dict[int, Any] = {}
    is_known = _is_stock(optimizer) or type(optimizer) in (RowWiseAdagrad, FTRL)
    for param in portion:
        is_untouched = is_known and id(param) in sparse
        values = torch.empty_like(param) if is_untouched else param.detach().clone()
        clone = nn.Parameter(values, param.requires_grad)
        clone.__dict__.update(param.__dict__)
        memo[id(param)] = clone
    left_out = {id(param) for param in parameters_of(optimizer)} - memo.keys()
    own = attributes_of(optimizer)
    own["state"] = defaultdict(dict, {key: value for key, value in own["state"].items() if id(key) not in left_out})
    own["param_groups"] = [
        {**group, "params": [param for param in group["params"] if id(param) in memo]} for group in own["param_groups"]
    ]
    attributes = {
        key: OrderedDict() if key.endswith("_hooks") else copy.deepcopy(value, memo) for key, value in own.items()
    }
    clone_of_rule = type(optimizer).__new__(type(optimizer))
    vars(clone_of_rule).update(attributes)
    return clone_of_rule


def _step_with_zeros(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], sparse_places: set[int]) -> None:
    for i, param in enumerate(params):
        if param.requires_grad and i in sparse_places:  # with one stored row of zeros
            place, row = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, *param.shape[1:], dtype=param.dtype)
            param.grad = torch.sparse_coo_tensor(place, row, param.shape, check_invariants=False)
        elif param.requires_grad:
            param.grad = torch.zeros_like(param)
    for group in optimizer.param_groups:
        if isinstance(group.get("weight_decay"), float | int):
            group["weight_decay"] = 0.0
    with torch.no_grad():
        bare_step(optimizer)(optimizer)


def _densify(optimizer: torch.optim.Optimizer, params: list[nn.Parameter]) -> bool:
    """Replace sparse state (SGD with momentum keeps a sparse buffer for sparse gradients) by the same numbers stored
    densely, as a region requires."""
    found = False
    for param in params:
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor) and value.layout != torch.strided:
                optimizer.state[param][key] = value.to_dense()
                found = True
    return found


def _changed_numbers(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[tuple[int, str, Any]]:
    """Return (group, key, value) of the rule's counters in its groups (`k` of schedule-free rules), without the rate,
    which we set."""
    return [
        (g, key, new[key])
        for g, (old, new) in enumerate(zip(before, after, strict=True))
        for key in new
        if key not in ("lr", "weight_decay", "params")
        and isinstance(new[key], int | float)
        and old.get(key) != new[key]
    ]


REGION = "state"
Kind = Literal["like", "scalar", "tensor", "int", "float", "bool"]
State = Mapping[int, Mapping[str, Any]]  # index in the optimizer -> torch's name -> value

# Values before the first step, if a step with zero gradients changes them.
INITIAL = {"step": 0.0, "mu_product": 1.0, "exp_inf": 0.0}


class Copies:
    """The tensors of one snapshot: private copies; or, `in_place`, the values themselves."""

    def __init__(self, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self._made: list[Tensor] = []

    def of(self, value: Tensor) -> Tensor:
        """Return a private, contiguous copy; or, in place, the dense `value` with a storage that covers nothing else:
        torch.save writes whole storages, and refuses one that is viewed with two dtypes."""
        if not self.in_place or not value.numel():
            self._made.append(value.detach().clone(memory_format=torch.contiguous_format))
            return self._made[-1]
        start = value.storage_offset() * value.element_size()
        own = value.untyped_storage()[start : start + value.numel() * value.element_size()]
        return torch.empty(0, dtype=value.dtype).set_(own, 0, value.shape, value.stride())

    def discard(self) -> None:
        """Free the copies, whose content is undefined from now on: their pages are returned to the system piece by
        piece and without the GIL. Dropping a tensor instead would hold the GIL while the kernel frees its pages, 75 ms
        per gigabyte, and every thread of the process would wait."""
        for made in self._made:
            if made.device.type == "cpu":
                host.discard_pages(made.data_ptr(), made.nbytes)
        self._made.clear()


@dataclass(frozen=True, slots=True)
class StateSlot:
    """One piece of state: of parameter `index` (numbered as in a stock state_dict), or of group `index` if `in_group`.
    `offset` is in bytes from the start of a block, `word` is its present word. Numbers are one float64. `in_use` is the
    place, in the region of int64 parameters, of the number of rows in use, of a table that may grow; else -1."""

    index: int
    key: str
    kind: Kind
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    word: int
    in_group: bool = False
    in_use: int = -1

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "float", "bool")

    def shape_of(self, value: Any) -> tuple[int, ...]:
        """Return the shape that `value` must have: of a table that may grow it has any number of rows up to all."""
        if self.in_use < 0 or not isinstance(value, Tensor) or not value.dim():
            return self.shape
        return (min(len(value), self.shape[0]), *self.shape[1:])


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
    with cut_to_use(model, optimizer):
        own = own_state(optimizer)
        initial, group_numbers = initial_state(model, optimizer)
    planner = _Planner(flats, _places(model, flats, optimizer), _growing(model, flats, optimizer))
    layout = planner.plan(initial, group_numbers, shared)
    if not shared:
        return layout, own
    return layout, {**initial, **{i: {**initial.get(i, {}), **state} for i, state in own.items()}}


def own_state(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """Return the state that the optimizer has now."""
    return {i: dict(optimizer.state[p]) for i, p in enumerate(parameters_of(optimizer)) if optimizer.state.get(p)}


def initial_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[State, list[tuple[int, str, Any]]]:
    """Return all state as it is before the first update, and (group, key, value) of the counters in groups. A constant
    tensor may be stored as one number (stride 0). Raises OptimizerError if the dry step fails."""
    with cut_to_use(model, optimizer):
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


def _growing(
    model: nn.Module, flats: FlatLayout, optimizer: torch.optim.Optimizer
) -> dict[int, tuple[tuple[int, int], int]]:
    """Return, of the tables that may grow, by the index of their weight in the optimizer: the rows in use now and all
    rows; and the place of the number in use."""
    index = {id(param): i for i, param in enumerate(parameters_of(optimizer))}
    offsets = {slot.name: slot.offset for slot in flats.params}
    return {
        index[id(table.weight)]: (
            (table.capacity + HEAD, len(table.weight)),
            8 * (offsets[f"{path}.life".lstrip(".")] + ACTIVE),
        )
        for path, table in tables_in(model).items()
        if table.max_capacity > table.first and id(table.weight) in index
    }


@dataclass
class _Planner:
    """Assigns bytes to every piece of state. `places`: index in the optimizer -> span, position in it, elements before
    it; `growing`: from `_growing`."""

    flats: FlatLayout
    places: dict[int, tuple[int, int, int]]
    growing: dict[int, tuple[tuple[int, int], int]]
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
        shape, size, in_use = tuple(value.shape), value.element_size(), -1
        if index in self.growing and shape and shape[0] == self.growing[index][0][0]:
            (_, rows), in_use = self.growing[index]
            shape = (rows, *shape[1:])
        kind: Kind = "tensor"
        if slot is not None and shape == () and (slot.shape != () or key in INITIAL):
            kind = "scalar"
        elif slot is not None and shape == slot.shape:
            kind = "like"
        array = self._array(span, key, kind, value.dtype) if kind != "tensor" else None
        if array is None or slot is None:
            kind, offset = "tensor", self.end
            strides = own_strides(value if in_use < 0 else torch.empty(shape, device="meta"))
            self.end += aligned(math.prod(shape) * size)
        elif kind == "scalar":
            strides, offset = (), array.offset + position * size
        else:
            strides, offset = slot.strides, array.offset + beside * size
        place = (shape, strides, offset, len(self.slots))
        self.slots.append(StateSlot(index, key, kind, value.dtype, *place, in_use=in_use))

    def _array(self, span: int, key: str, kind: Kind, dtype: torch.dtype) -> SpanState | None:
        """Return the array beside `span`; None if the name is used with another dtype."""
        if (span, key, kind) not in self.arrays:
            whole = self.flats.spans[span]
            numel = len(whole.params) if kind == "scalar" else whole.numel
            self.arrays[span, key, kind] = SpanState(span, key, kind, dtype, numel, self.end)
            self.end += aligned(numel * dtype.itemsize)
        array = self.arrays[span, key, kind]
        return array if array.dtype == dtype else None


_NUMBER = {"int": int, "float": float, "bool": bool}
_WHOLE_S = 0.5  # time limit for getting a copy between two updates
FAR_BEHIND = 2  # far behind: fewer than 1 / 2 of another's updates; Adagrad's steps are then 1.4 times as long


class StateBlock:
    """The state of one worker, or of all if it is shared, with the interface of an optimizer's state.

    A worker lets its optimizer create state in its first step, as stock torch does, and only then moves it here
    (`adopt`): state that existed before the first step would change that step. A replacement finds the present words
    set and continues from them. Writers: the worker that owns the block; with `state: shared` every worker, without a
    lock; the parent only in a pause.

    A late worker must not start cold: one update of a fresh Adagrad moves each weight by the whole rate, and undoes
    hundreds of updates. So before it trains it takes over the state with the most updates, if its own has far fewer. It
    copies again until a copy falls between two updates of the owner; if that fails for a while (large tables, short
    updates), pieces are an update or two apart, m before v, as when a worker is killed in a step."""

    def __init__(self, layout: StateLayout, regions: Mapping[str, Region], block: int) -> None:
        self.layout = layout
        self._region, self._words_of_tables = regions.get(REGION), regions.get(region_name(torch.int64))
        self._base = block * layout.nbytes
        self._views: dict[int, Tensor] = {}
        # The whole block as 8-byte words, twice: present words are integers, numbers are floats.
        count = layout.nbytes // 8 if self._region is not None else 0
        self._present = self._words(np.int64, count)
        self._numbers = self._words(np.float64, count)
        counted = self._present[len(layout.slots) :] if count and not layout.shared else np.zeros(1, np.int64)
        self._count: memoryview = memoryview(counted)  # type: ignore[arg-type]  # [0]: twice the updates, + 1 in one

    def _words(self, dtype: Any, count: int) -> np.ndarray:
        return np.zeros(0, dtype) if self._region is None else self._region.array(dtype, (count,), self._base)

    def view(self, slot: StateSlot) -> Tensor:
        """Return the words of one tensor; always the same object."""
        if slot.word not in self._views:
            self._views[slot.word] = self.at(slot.dtype, slot.shape, slot.offset, slot.strides)
        return self._views[slot.word]

    def at(self, dtype: torch.dtype, shape: Sequence[int], offset: int, strides: Sequence[int] | None = None) -> Tensor:
        """Return the words `offset` bytes into this block."""
        assert self._region is not None
        return self._region.tensor(dtype, shape, self._base + offset, strides)

    def array(self, state: SpanState) -> Tensor:
        """Return the array of a whole span, (numel,)."""
        return self.at(state.dtype, (state.numel,), state.offset)

    def part(self, slot: StateSlot) -> Tensor:
        """Return the words of one tensor; of a table that may grow, of the rows in use."""
        if slot.in_use < 0:
            return self.view(slot)
        assert self._words_of_tables is not None
        return self.view(slot)[: HEAD + int(self._words_of_tables.array(np.int64, (1,), slot.in_use)[0])]

    def is_present(self, slot: StateSlot) -> bool:
        return bool(self._present[slot.word])

    @property
    def updates(self) -> int:
        """The number of updates in this state, also those before a takeover. Not counted if it is shared."""
        return int(self._count[0]) >> 1

    # ---- a worker's side

    def start_update(self) -> None:
        self._count[0] |= 1

    def count(self, updates: int = 1) -> None:
        """Count `updates` more, and mark that none is in progress."""
        self._count[0] = (self._count[0] & ~1) + 2 * updates

    def copy_from(self, optimizer: torch.optim.Optimizer) -> bool:
        """Copy the state of most updates if this has far fewer (then True); keep pieces that only this has."""
        if self._region is None or self.layout.shared:
            return False
        blocks = self._region.nbytes // self.layout.nbytes
        counts = self._region.array(np.int64, (blocks, self.layout.nbytes // 8))[:, len(self.layout.slots)]
        ahead = StateBlock(self.layout, {REGION: self._region}, int(counts.argmax()))
        if ahead.updates <= FAR_BEHIND * self.updates:
            return False
        deadline, before = time.monotonic() + _WHOLE_S, -1
        while before != ahead._count[0] and (before < 0 or time.monotonic() < deadline):
            before = ahead._count[0] & ~1
            self.write(*ahead.read(Copies(in_place=True)), keep=True)
        self.load(optimizer)
        self._count[0] = before  # last: a worker killed before this takes over again
        return True

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer use this block, with all pieces present in it."""
        params = parameters_of(optimizer)
        for slot in self._existing():
            if slot.in_group:
                optimizer.param_groups[slot.index][slot.key] = self._value(slot)
            else:
                optimizer.state[params[slot.index]][slot.key] = self._value(slot)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the pieces that the last step created or replaced into this block and bind the optimizer to it.

        A tensor with another shape or dtype than in the trial step stays private: a replacement starts without it."""
        params = parameters_of(optimizer)
        for slot in self.layout.slots:
            # An empty temporary one while the parameter has no state.
            of_params = optimizer.param_groups if slot.in_group else None
            owner = of_params[slot.index] if of_params else optimizer.state.get(params[slot.index]) or {}
            value = owner.get(slot.key)
            if value is None:
                continue
            if slot.is_number:
                self._numbers[slot.offset // 8] = value
            elif value is not self.view(slot):
                if not _fits(value, slot):
                    continue
                part = self.part(slot)
                _fill(part, value if slot.in_use < 0 else value[: len(part)])
                owner[slot.key] = self.view(slot)
            # Last: after a death before this line the piece does not exist, rather than half of it.
            self._present[slot.word] = 1

    def set_number(self, slot: StateSlot, value: float) -> None:
        """Overwrite a number that exists."""
        self._numbers[slot.offset // 8] = value

    def _existing(self) -> Iterator[StateSlot]:
        return (slot for slot in self.layout.slots if self._present[slot.word])

    def _value(self, slot: StateSlot) -> Any:
        if slot.is_number:
            return _NUMBER[slot.kind](self._numbers[slot.offset // 8])
        return self.view(slot)

    # ---- the parent's side

    def read(self, copies: Copies) -> tuple[dict[int, dict[str, Any]], dict[tuple[int, str], Any]]:
        """Return the state per parameter, tensors as `copies.of` returns them, and the numbers of the groups."""
        state: dict[int, dict[str, Any]] = {}
        groups: dict[tuple[int, str], Any] = {}
        for slot in self._existing():
            value = self._value(slot) if slot.is_number else self.part(slot)
            if slot.in_group:
                groups[slot.index, slot.key] = value
            else:
                state.setdefault(slot.index, {})[slot.key] = copies.of(value) if isinstance(value, Tensor) else value
        return state, groups

    def write(self, state: State, groups: Mapping[tuple[int, str], Any], made: int = 0, *, keep: bool = False) -> None:
        """Replace this block's state by `state` after `made` updates; with `keep`, add it to the present one. Raises
        ValueError naming the piece whose shape or dtype differs."""
        if not keep:
            self._present[: len(self.layout.slots)], self._count[0] = 0, 2 * made
        for slot in self.layout.slots:
            own = state.get(slot.index, {})
            source = groups.get((slot.index, slot.key)) if slot.in_group else own.get(slot.key)
            if source is None:
                continue
            if slot.is_number:
                self._numbers[slot.offset // 8] = float(source)
            elif not isinstance(source, Tensor) or not _fits(source, slot):
                found = f"{source.dtype} {tuple(source.shape)}" if isinstance(source, Tensor) else repr(source)
                where = f"state {slot.key} of parameter {slot.index}"
                raise ValueError(f"{where}: {found} instead of {slot.dtype} {slot.shape}")
            else:
                _fill(self.view(slot) if slot.in_use < 0 else self.view(slot)[: len(source)], source)
            self._present[slot.word] = 1


def _fits(value: Any, slot: StateSlot) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == slot.shape_of(value) and value.dtype == slot.dtype


def _fill(place: Tensor, value: Tensor) -> None:
    if value.layout == torch.strided:
        place.copy_(value)
    else:
        place.zero_().add_(value)
