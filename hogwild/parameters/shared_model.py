"""The parent's side of a shared model: built before workers start, read in pauses, released at the end.

    build  ->  [workers attach, train]  ->  pause: merge_buffers, finite, snapshot  ->  …  ->  release

The user's own model and optimizer objects stay the same objects throughout: while the job runs their tensors are views
of shared memory, afterwards they hold the result in ordinary private memory.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import CheckpointError, ModelError, OptimizerError
from hogwild.kernels.signatures import BLANK, HEAD
from hogwild.nn import ACTIVE, NamedEmbedding, parts_in_use, tables_in
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
        """Return the bytes of shared memory that `build` will allocate, by region, without rows that tables have not
        grown to (`bytes_to_grow`). Raises what `build` raises; changes nothing.

        The trial step needs private memory for a moment: `optimizer_state.trial_bytes`."""
        _check(model, optimizer, state)
        layout = _plan(model, optimizer, procs, state, late)[0]
        holes = _holes(model, layout)
        return {
            name: nbytes - sum(end - start for start, end in holes.get(name, ()))
            for name, nbytes in _sizes(layout).items()
        }

    @classmethod
    def bytes_to_grow(
        cls, model: nn.Module, optimizer: torch.optim.Optimizer, *, procs: int, state: str = "private"
    ) -> int:
        """Return the further bytes of shared memory that the model's tables may grow to."""
        holes = _holes(model, _plan(model, optimizer, procs, state, NOTHING_LATE)[0])
        return sum(end - start for ranges in holes.values() for start, end in ranges)

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
            holes = _holes(model, layout)
            sizes = _sizes(layout).items()
            regions = {name: Region.allocate(name, nbytes, holes.get(name, ())) for name, nbytes in sizes}
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
        in_use = parts_in_use(self.model)
        for slot, param in zip(flats.params, self.model.parameters(), strict=True):
            _move(param, slot.view(self.regions), in_use.get(slot.name))
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
        return state_dicts.is_all_finite(self.model)

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
        with self._tables_as_in(snapshot):
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

    # ---- tables that are asked for by id

    @contextmanager
    def _tables_as_in(self, snapshot: Mapping[str, Any]) -> Iterator[None]:
        """Give each table the capacity of the snapshot's, if it may have that; give it back if the body raises. Raises
        CheckpointError for a table whose ids lie elsewhere, MemoryShortError."""
        saved, before = snapshot.get("tensors", snapshot["model"]), list[tuple[NamedEmbedding, int]]()
        try:
            for path, table in tables_in(self.model).items():
                keys = saved.get(f"{path}.keys".lstrip("."))
                if isinstance(keys, Tensor) and len(keys) in table.sizes:
                    if not table.is_laid_out_as(keys):
                        words = f"the ids of {path or 'the table'} lie elsewhere: its arguments are others"
                        raise CheckpointError(words, code="checkpoint/other-model")
                    before.append((table, table.capacity))
                    self._allocate(path, table, table.first, len(keys))
                    table.resize(len(keys))
            yield
        except BaseException:
            for table, capacity in before:
                table.resize(capacity)
            raise

    def _allocate(self, path: str, table: NamedEmbedding, begin: int, end: int) -> None:
        for name, start, stop in _rows(self.model, self.layout, path, table, begin, end) if begin < end else ():
            self.regions[name].fill(path or "a table", start, stop)

    def _states(self, table: NamedEmbedding) -> list[Tensor]:
        """Return the optimizer's state of a table's rows, of every worker."""
        names = [id(param) for param in parameters_of(self.optimizer)]
        index = names.index(id(table.weight)) if id(table.weight) in names else -1
        return [
            block.view(slot)
            for block in self._blocks()
            for slot in self.layout.state.slots
            if slot.index == index and not slot.in_group and slot.shape[:1] == table.weight.shape[:1]
            if not slot.is_number and block.is_present(slot)
        ]

    def prepare_growth(self, path: str) -> int:
        """Prepare the next rows of the table `path`, while workers train; return its next capacity, to `show`. Raises
        MemoryShortError."""
        table = tables_in(self.model)[path]
        now, then = table.capacity, table.next_capacity
        assert then is not None
        self._allocate(path, table, now, then)
        for state in self._states(table):
            if state[BLANK].any():
                state[now + HEAD : then + HEAD] = state[BLANK]
        table.prepare(then)
        return then

    def give_back(self) -> dict[str, int]:
        """Give back rows whose ids have expired, a bounded number; return how many, by table."""
        found = {path: table.give_back(self._states(table)) for path, table in tables_in(self.model).items()}
        return {path: count for path, count in found.items() if count}

    def release(self) -> None:
        """Move the result into private memory, in the model's original memory format; the optimizer gets the state of
        the worker with the most updates, or the shared one. The objects stay the same. The regions' descriptors are
        closed."""
        in_use = parts_in_use(self.model)
        for (name, param), strides in zip(self.model.named_parameters(), self._old_strides, strict=True):
            _move(param, torch.empty_strided(param.shape, strides, dtype=param.dtype), in_use.get(name))
        for buffer in self.model.buffers():
            _move(buffer, torch.empty_strided(buffer.shape, own_strides(buffer), dtype=buffer.dtype))
        state, groups = self._blocks()[self._exemplar()].read(Copies())
        params = parameters_of(self.optimizer)
        rows = {id(self.model.get_parameter(name)): len(part) for name, part in in_use.items()}
        for i, own in state.items():
            param = params[i]
            self.optimizer.state[param] = {key: _whole(value, param, rows.get(id(param))) for key, value in own.items()}
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


def _move(tensor: Tensor, place: Tensor, in_use: Tensor | None = None) -> None:
    """Copy the tensor's values, or only those in use, to `place` and bind the same tensor object to it."""
    if in_use is None or len(in_use) == len(place):
        place.copy_(tensor.detach())
    else:
        place[: len(in_use)].copy_(in_use)
    tensor.data = place


def _whole(value: Any, param: nn.Parameter, rows: int | None) -> Any:
    """Return a state of a table's `rows` in use with those that it may grow to. None: not a table."""
    if rows is None or rows == len(param) or not isinstance(value, Tensor) or not value.dim() or len(value) != rows:
        return value
    whole = torch.zeros(len(param), *value.shape[1:], dtype=value.dtype)
    whole[: len(value)] = value
    if value[BLANK].any():
        whole[len(value) :] = value[BLANK]
    return whole


def _rows(
    model: nn.Module, layout: SharedLayout, path: str, table: NamedEmbedding, begin: int, end: int
) -> list[tuple[str, int, int]]:
    """Return where the rows [begin, end) of a table lie: region, first byte, end."""
    slots = {slot.name: (number, slot) for number, slot in enumerate(layout.flats.params)}
    found = []
    for name in table._parameters.keys() - table.whole:
        if (known := slots.get(f"{path}.{name}".lstrip("."))) is None:
            continue
        slot, own = known[1], table.rows_in(name, begin, end)
        row = math.prod(slot.shape[1:]) * slot.dtype.itemsize
        start = slot.offset * slot.dtype.itemsize
        found.append((region_name(slot.dtype), start + own[0] * row, start + own[1] * row))
    in_use = 8 * (slots[f"{path}.life".lstrip(".")][1].offset + ACTIVE)
    for state in layout.state.slots:
        if state.in_use == in_use:
            row = math.prod(state.shape[1:]) * state.dtype.itemsize
            for block in range(layout.state_blocks):
                start = block * layout.state.nbytes + state.offset
                found.append((REGION, start + (begin + HEAD) * row, start + (end + HEAD) * row))
    return found


def _holes(model: nn.Module, layout: SharedLayout) -> dict[str, list[tuple[int, int]]]:
    """Return the bytes of rows that tables have not grown to, by region, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path, table in tables_in(model).items():
        if table.max_capacity > table.capacity:
            for name, start, end in _rows(model, layout, path, table, table.capacity, table.max_capacity):
                found.setdefault(name, []).append((start, end))
    return {name: sorted(ranges) for name, ranges in found.items()}
