"""The parent's side of a shared model: built before workers start, read in pauses, released at the end.

    build  ->  [workers attach, train]  ->  pause: merge_buffers, finite, snapshot  ->  …  ->  release

The user's own model and optimizer objects stay the same objects throughout: while the job runs their tensors are views
of shared memory, afterwards they hold the result in ordinary private memory.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError, OptimizerError
from hogwild.optimizers import FTRL
from hogwild.parameters import buffers, state_dicts
from hogwild.parameters.buffers import MASTER, MergeRule, plan_buffers
from hogwild.parameters.checks import check_model, check_optimizer, shares_state
from hogwild.parameters.flat_layout import NOTHING_LATE, plan_flats, region_name
from hogwild.parameters.optimizer_state import (
    FAR_BEHIND,
    REGION,
    Copies,
    State,
    StateBlock,
    own_state,
    parameters_of,
    plan_state,
)
from hogwild.parameters.structure_file import Loss, SharedLayout, check_structure, dump_structure
from hogwild.shared_memory.region import Region, own_strides

OWN = "own"  # each parameter's own memory format: the choice of `auto` for models without a Conv2d
MEMORY_FORMATS = ("auto", "contiguous", "channels_last", OWN)


@dataclass(slots=True)
class SharedModel:
    """A model in shared memory. `regions` is everything a worker maps, by name; `structure` is what it reads first.
    Only the parent calls methods, and, except `build` and `release`, only while all workers are parked or gone."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    layout: SharedLayout
    regions: dict[str, Region]
    structure: bytes
    uses_channels_last: bool
    _old_strides: list[tuple[int, ...]]

    @classmethod
    def bytes_needed(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        procs: int,
        state: str = "private",
        late: Mapping[str, int] = NOTHING_LATE,
    ) -> dict[str, int]:
        """Return the bytes of shared memory that `build` will allocate, by region. Raises what `build` raises; changes
        nothing.

        The trial step needs private memory for a moment: `optimizer_state.trial_bytes`."""
        _check(model, optimizer, state)
        return _sizes(_plan(model, optimizer, procs, state, late)[0])

    @classmethod
    def build(
        cls,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        procs: int,
        state: str = "private",
        memory_format: str = "auto",
        late: Mapping[str, int] = NOTHING_LATE,
        buffer_rules: Mapping[str, MergeRule] | None = None,
    ) -> "SharedModel":
        """Move the model's parameters and buffers into shared memory and write the structure file.

        `procs` workers (0: one, in this process); `state` private, shared or auto; `memory_format` auto, contiguous,
        channels_last or own; `late`: parameter -> the first update that trains it; `buffer_rules`: see `plan_buffers`.
        Raises ModelError, OptimizerError, MemoryShortError; then only gradients and the memory format may have
        changed."""
        _check(model, optimizer, state)
        old_strides = [own_strides(param) for param in model.parameters()]
        for param in model.parameters():
            param.grad = None  # share_memory() would share gradients too
        channels_last = _convert(model, memory_format)
        layout, initial = _plan(model, optimizer, procs, state, late, buffer_rules)
        parts = (model, loss, optimizer)
        # State travels in the regions: only entries under keys that are not parameters belong into the structure file.
        kept, params = optimizer.state, {id(param) for param in parameters_of(optimizer)}
        optimizer.state = defaultdict(dict, {key: own for key, own in kept.items() if id(key) not in params})
        try:
            structure = dump_structure(layout, parts)
            regions = {name: Region.allocate(name, nbytes) for name, nbytes in _sizes(layout).items()}
            check_structure(layout, parts, regions)
        finally:
            optimizer.state = kept
        shared = cls(model, optimizer, layout, regions, structure, channels_last, old_strides)
        try:
            shared._bind()
            for block in shared._blocks():
                block.write(initial, {})
        except BaseException:  # most likely Ctrl-C: give the caller's model back
            shared.release()
            raise
        return shared

    def _bind(self) -> None:
        """Turn the model's tensors into views, with `.data =`: tied weights, an RNN's `_flat_weights` and the optimizer
        hold these very objects."""
        flats, buffer_layout = self.layout.flats, self.layout.buffers
        for slot, param in zip(flats.params, self.model.parameters(), strict=True):
            _move(param, slot.view(self.regions))
        for place, buffer in zip(buffer_layout.slots, self.model.buffers(), strict=True):
            _move(buffer, buffer_layout.view(self.regions[buffers.REGION], place, MASTER))
        self.restart_buffers()
        self.model.share_memory()
        for slot, param in zip(flats.params, self.model.parameters(), strict=True):
            assert param.is_shared() and param.data_ptr() == slot.view(self.regions).data_ptr(), slot.name

    def restart_buffers(self) -> None:
        """Copy the model's buffers, which were just written, to every worker."""
        if self.has_buffers:
            buffers.restart(self.layout.buffers, self.regions[buffers.REGION], self.layout.workers)

    def restart_state(self) -> None:
        """Write the optimizer's own state into every block: training begins with it."""
        for block in self._blocks():
            block.write(own_state(self.optimizer), {}, keep=self.layout.state.shared)

    def _blocks(self) -> list[StateBlock]:
        return [StateBlock(self.layout.state, self.regions, k) for k in range(self.layout.state_blocks)]

    def sums(self) -> list[tuple[Tensor, float]]:
        """Return FTRL's z, which the nodes of a cluster add up, and its bound l1, per span. Where each worker has its
        own, zeros stand for it: the nodes' choices may differ, but not what they exchange."""
        if type(self.optimizer) is not FTRL:
            return []
        layout, groups, block = self.layout, self.optimizer.param_groups, self._blocks()[0]
        found = []
        for state in layout.state.arrays:
            group = layout.flats.spans[state.span].group
            if state.key == "z" and group is not None:
                z = block.array(state) if layout.state.shared else torch.zeros(state.numel, dtype=state.dtype)
                found.append((z, float(groups[group]["l1"])))
        return found

    @property
    def has_buffers(self) -> bool:
        """True if the model has buffers to merge."""
        return buffers.REGION in self.regions

    def merge_buffers(self, batches: Sequence[int]) -> None:
        """Merge the buffers; `batches[k]`: those that worker k has applied since. See `buffers.merge`."""
        if self.has_buffers:
            buffers.merge(self.layout.buffers, self.regions[buffers.REGION], batches)

    def finite(self) -> bool:
        """Return whether no parameter holds NaN or infinity. One pass in pieces, without extra memory and without the
        GIL."""
        return all(state_dicts.is_finite(param) for param in self.model.parameters())

    def snapshot(self, copies: Copies | None = None) -> dict[str, Any]:
        """Return a snapshot, after `merge_buffers`: private copies, or `copies.of` each tensor; if that is the shared
        memory itself, it must be written out before training continues. `model` and `optimizer` are stock state_dicts
        (the shared state, or that of the most updates), `optimizer_names` names the parameters that it numbers,
        `optimizer_private` has one state per worker, None if it has none yet, `optimizer_updates` the number of updates
        of each; both are empty if shared.

        `torch.load(weights_only=True)` can read it, unless the model's own `get_extra_state` prevents that."""
        copies = Copies() if copies is None else copies
        blocks = [block.read(copies) for block in self._blocks()]
        states = [state_dicts.optimizer_state_dict(self.optimizer, *block) for block in blocks]
        return {
            **state_dicts.model_state(self.model, copies),
            "optimizer": states[self._exemplar()],
            "optimizer_names": state_dicts.names_of(self.model, self.optimizer),
            "optimizer_private": [] if self.layout.state.shared else [s if s["state"] else None for s in states],
            "optimizer_updates": [] if self.layout.state.shared else [block.updates for block in self._blocks()],
        }

    def _exemplar(self) -> int:
        """Return the block that represents all: the one with the most updates."""
        return max(range(self.layout.state_blocks), key=[block.updates for block in self._blocks()].__getitem__)

    def restore(self, snapshot: Mapping[str, Any]) -> str | None:
        """Set parameters, buffers and optimizer state to the snapshot's; before workers start. Worker k gets private
        state k mod old procs (then a sentence for the log is returned), or that of the most updates if that one is far
        behind. Raises CheckpointError; then nothing was changed."""
        state_dicts.check_parts(snapshot)
        private = list(snapshot.get("optimizer_private") or [])
        shared = self.layout.state.shared
        sources, made = [snapshot["optimizer"]], [1]
        if private and not shared:
            sources, made = private, snapshot.get("optimizer_updates") or [int(own is not None) for own in private]
        names = state_dicts.names_of(self.model, self.optimizer)
        read = [state_dicts.checked_state(self.layout.state, names, self.optimizer, source) for source in sources]
        state_dicts.load_model(self.model, snapshot)
        self.restart_buffers()
        for k, block in enumerate(self._blocks()):
            source = k % len(read)
            if max(made) > FAR_BEHIND * made[source]:
                source = made.index(max(made))
            block.write(*read[source], made[source], keep=shared)
        if shared or not private or len(private) == self.layout.workers:
            return None
        return (
            f"optimizer state of {len(private)} workers restored onto {self.layout.workers}: worker k goes "
            f"on from the state of worker k mod {len(private)}"
        )

    def release(self) -> None:
        """Move the result into private memory, in the model's original memory format; the optimizer gets the state of
        the worker with the most updates, or the shared one. The objects stay the same. The regions' descriptors are
        closed."""
        for param, strides in zip(self.model.parameters(), self._old_strides, strict=True):
            _move(param, torch.empty_strided(param.shape, strides, dtype=param.dtype))
        for buffer in self.model.buffers():
            _move(buffer, torch.empty_strided(buffer.shape, own_strides(buffer), dtype=buffer.dtype))
        state, groups = self._blocks()[self._exemplar()].read(Copies())
        params = parameters_of(self.optimizer)
        for i, own in state.items():
            self.optimizer.state[params[i]] = own
        for (g, key), value in groups.items():
            self.optimizer.param_groups[g][key] = value
        for region in self.regions.values():
            region.close()


def _check(model: nn.Module, optimizer: torch.optim.Optimizer, state: str) -> None:
    if state not in ("auto", "private", "shared"):
        raise OptimizerError(f"optimizer.state must be auto, private or shared, got {state!r}", code="optimizer/state")
    check_model(model)
    check_optimizer(model, optimizer)


def _plan(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    procs: int,
    state: str,
    late: Mapping[str, int],
    buffer_rules: Mapping[str, MergeRule] | None = None,
) -> tuple[SharedLayout, State]:
    flats = plan_flats(model, optimizer, late)
    shared = state == "shared" or (state == "auto" and procs > 1 and shares_state(optimizer, flats))
    state_layout, initial = plan_state(model, flats, optimizer, shared=shared)
    return SharedLayout(flats, plan_buffers(model, buffer_rules), state_layout, max(procs, 1)), initial


def wants_channels_last(model: nn.Module, wish: str) -> bool:
    """Return whether images should be channels_last, under `model.memory_format`. `auto`: if there is a Conv2d;
    oneDNN's convolutions then need no reordering."""
    return wish == "channels_last" or (wish == "auto" and any(isinstance(m, nn.Conv2d) for m in model.modules()))


def _convert(model: nn.Module, wish: str) -> bool:
    """Convert tensors; return whether inputs should be channels_last too. Without a Conv2d `auto` keeps each
    parameter's memory format."""
    if wish not in MEMORY_FORMATS:
        raise ModelError(
            f"model.memory_format must be auto, contiguous or channels_last, got {wish!r}", code="model/memory-format"
        )
    channels_last = wants_channels_last(model, wish)
    if channels_last or wish == "contiguous":
        format = torch.channels_last if channels_last else torch.contiguous_format
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.dim() == 4:  # model.to(memory_format=…) fails if there is a 5-d tensor beside it
                tensor.data = tensor.data.to(memory_format=format)
    return channels_last


@contextmanager
def converted(model: nn.Module, wish: str) -> Iterator[None]:
    """Lay out the model's tensors as `build` would; give them their former memory back afterwards."""
    before = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    try:
        _convert(model, wish)
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


def suits_sharing(model: nn.Module, optimizer: torch.optim.Optimizer, late: Mapping[str, int] = NOTHING_LATE) -> bool:
    """Return what `state: auto` is for several workers whose job does not need private state."""
    _check(model, optimizer, "auto")
    return shares_state(optimizer, plan_flats(model, optimizer, late))


def _sizes(layout: SharedLayout) -> dict[str, int]:
    sizes = {region_name(dtype): size * dtype.itemsize for dtype, size in layout.flats.sizes.items()}
    sizes[buffers.REGION] = layout.buffers.region_nbytes(layout.workers)
    sizes[REGION] = layout.state.nbytes * layout.state_blocks
    return {name: nbytes for name, nbytes in sizes.items() if nbytes}


def _move(tensor: Tensor, place: Tensor) -> None:
    """Copy the tensor's values to `place` and bind the same tensor object to it."""
    place.copy_(tensor.detach())
    tensor.data = place
