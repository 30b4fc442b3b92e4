"""One block of optimizer state in shared memory, with the interface of an optimizer's state.

A worker lets its optimizer create state in its first step, as stock torch does, and only then moves it here (`adopt`):
state that existed before the first step would change that step. A replacement finds the present words set and continues
from them. Writers: the worker that owns the block; with `state: shared` every worker, without a lock; the parent only
in a pause.

A late worker must not start cold: one update of a fresh Adagrad moves each weight by the whole rate, and undoes
hundreds of updates. So before it trains it takes over the state with the most updates, if its own has far fewer. It
copies again until a copy falls between two updates of the owner; if that fails for a while (large tables, short
updates), pieces are an update or two apart, m before v, as when a worker is killed in a step.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.parameters.state_dicts import Copies
from hogwild.parameters.state_layout import REGION, SpanState, State, StateLayout, StateSlot
from hogwild.parameters.trial_step import parameters_of
from hogwild.shared_memory.region import Region

_NUMBER = {"int": int, "float": float, "bool": bool}
_WHOLE_S = 0.5  # time limit for getting a copy between two updates
FAR_BEHIND = 2  # far behind: fewer than 1 / 2 of another's updates; Adagrad's steps are then 1.4 times as long


class StateBlock:
    """The state of one worker, or of all if it is shared."""

    def __init__(self, layout: StateLayout, regions: Mapping[str, Region], block: int) -> None:
        self.layout = layout
        self._region = regions.get(REGION)
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
            owner = self._owner(optimizer, params, slot)
            value = owner.get(slot.key)
            if value is None:
                continue
            if slot.is_number:
                self._numbers[slot.offset // 8] = value
            elif value is not self.view(slot):
                if not _fits(value, slot):
                    continue
                _fill(self.view(slot), value)
                owner[slot.key] = self.view(slot)
            # Last: after a death before this line the piece does not exist, rather than half of it.
            self._present[slot.word] = 1

    def set_number(self, slot: StateSlot, value: float) -> None:
        """Overwrite a number that exists."""
        self._numbers[slot.offset // 8] = value

    def set_present(self, words: np.ndarray) -> None:
        """Set the present words (slots,); call it after everything else was written."""
        count = len(self.layout.slots)
        self._present[:count] = words[:count]

    @staticmethod
    def _owner(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], slot: StateSlot) -> dict[str, Any]:
        """Return the optimizer's dict that holds it; an empty temporary one while the parameter has no state."""
        if slot.in_group:
            return optimizer.param_groups[slot.index]
        return optimizer.state.get(params[slot.index]) or {}

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
            value = self._value(slot)
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
                _fill(self.view(slot), source)
            self._present[slot.word] = 1


def _fits(value: Any, slot: StateSlot) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == slot.shape and value.dtype == slot.dtype


def _fill(place: Tensor, value: Tensor) -> None:
    if value.layout == torch.strided:
        place.copy_(value)
    else:
        place.zero_().add_(value)
