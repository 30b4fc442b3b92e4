"""One block of optimizer state in shared memory, seen through an optimizer.

A worker lets its optimizer create state in its own first step, as stock torch does, and only then moves it
here (`adopt`): state that was there before the first step would change it. A replacement finds the present
words set and goes on from them. Who writes: the worker that owns the block; with `state: shared` every
worker, without a lock; the parent only in a pause.

A worker that comes late must not begin cold: one update of a fresh Adagrad moves each weight by the whole rate, and
undoes what hundreds have learnt. So before it trains it takes over the state that has seen the most updates, where its
own has seen far fewer. It copies until a copy falls between two updates of the owner; where none does for a while
(large tables, short updates), pieces are an update or two apart, m before v, as when a worker is killed in a step.
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
_WHOLE_S = 0.5  # for a copy between two updates
FAR_BEHIND = 2  # state of less than one part in so many of another's updates: Adagrad's steps are 1.4 times as long


class StateBlock:
    """The state of one worker, or of all when it is shared."""

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
        """The words of one tensor; always the same object."""
        if slot.word not in self._views:
            self._views[slot.word] = self.at(slot.dtype, slot.shape, slot.offset, slot.strides)
        return self._views[slot.word]

    def at(self, dtype: torch.dtype, shape: Sequence[int], offset: int, strides: Sequence[int] | None = None) -> Tensor:
        """The words `offset` bytes into this block."""
        assert self._region is not None
        return self._region.tensor(dtype, shape, self._base + offset, strides)

    def array(self, state: SpanState) -> Tensor:
        """What lies beside a whole span, (numel,)."""
        return self.at(state.dtype, (state.numel,), state.offset)

    def is_present(self, slot: StateSlot) -> bool:
        return bool(self._present[slot.word])

    @property
    def updates(self) -> int:
        """That this state has seen, those before it was taken over included. Not counted where it is shared."""
        return int(self._count[0]) >> 1

    # ---- a worker's side

    def begin_update(self) -> None:
        self._count[0] |= 1

    def count(self, updates: int = 1) -> None:
        """So many more were made, and none is being made."""
        self._count[0] = (self._count[0] & ~1) + 2 * updates

    def take_over(self, optimizer: torch.optim.Optimizer) -> bool:
        """Goes on from the state of the most updates, where this is of far fewer (True); what only this has stays."""
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
        self._count[0] = before  # last: who is killed before takes over once more
        return True

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer works on this block from now on, with whatever is present in it."""
        params = parameters_of(optimizer)
        for slot in self._existing():
            if slot.in_group:
                optimizer.param_groups[slot.index][slot.key] = self._value(slot)
            else:
                optimizer.state[params[slot.index]][slot.key] = self._value(slot)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Moves what the last step created or replaced into this block and binds the optimizer to it.

        A tensor whose shape or dtype is not the one of the trial step stays the worker's own: a replacement
        starts without it."""
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
            # Last: a death before this leaves "does not exist", never half of it.
            self._present[slot.word] = 1

    def set_number(self, slot: StateSlot, value: float) -> None:
        """A number that exists has another value now."""
        self._numbers[slot.offset // 8] = value

    def set_present(self, words: np.ndarray) -> None:
        """Exactly what these words (slots,) say has been created: after everything else was written."""
        count = len(self.layout.slots)
        self._present[:count] = words[:count]

    @staticmethod
    def _owner(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], slot: StateSlot) -> dict[str, Any]:
        """Where the optimizer keeps it; empty (and not its own) while the parameter has no state."""
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
        """The state per parameter, each tensor as `copies` has it, and the numbers of the groups."""
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
        """This block holds exactly this state, in which `made` updates were; with `keep`, this beside what it holds.
        Raises ValueError naming the piece whose shape or dtype differs."""
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
                raise ValueError(
                    f"state {slot.key} of parameter {slot.index}: {_describe(source)} instead of "
                    f"{slot.dtype} {slot.shape}"
                )
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


def _describe(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
