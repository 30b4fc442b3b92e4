"""The place of every parameter in the flats. Pure planning over shapes: nothing is allocated here.

    params-float32   [ group 0 | group 1 | … | sparse gradients, by group | frozen, not optimised ]
                     '------ covered by the gradient flat ----'

One flat per dtype. A span holds the parameters of one optimizer group, contiguous, so that one operation updates the
whole group; parameters that are frozen until some update form separate spans, after those trained from the beginning.
Every parameter starts on a cache line: torch's own allocator aligns to 64 bytes too, and matrix kernels may round
differently at other alignments, which would break "one worker equals the plain torch loop". The gaps between parameters
stay unused.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.shared_memory.region import ALIGNMENT, Region, aligned, own_strides

SpanKey = tuple[torch.dtype, int | None, bool, int]  # dtype, group, sparse, until
NOTHING_LATE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """One parameter: `offset` is in elements from the start of its dtype's flat; `group` is None if no optimizer group
    trains it; `until` is the first update, counted over the whole job, that trains it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    group: int | None
    requires_grad: bool
    sparse: bool
    until: int = 0

    def view(self, regions: Mapping[str, Region]) -> Tensor:
        """Return the parameter's words in the flat, in its own memory format."""
        start = self.offset * self.dtype.itemsize
        return regions[region_name(self.dtype)].tensor(self.dtype, self.shape, start, self.strides)


@dataclass(frozen=True, slots=True)
class Span:
    """Elements [offset, offset + numel) of the flat of `dtype`; `params` are indices of parameters, in memory order."""

    dtype: torch.dtype
    group: int | None
    sparse: bool
    offset: int
    numel: int
    params: tuple[int, ...]
    until: int = 0

    @property
    def is_dense(self) -> bool:
        """True if it is trained with gradients in the gradient flat."""
        return self.group is not None and not self.sparse


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """All parameters, in the order of `model.named_parameters()`, and the spans they form. Sizes are in elements."""

    params: tuple[ParamSlot, ...]
    spans: tuple[Span, ...]
    sizes: dict[torch.dtype, int]
    gradient_sizes: dict[torch.dtype, int]

    @property
    def nbytes(self) -> int:
        return sum(aligned(size * dtype.itemsize) for dtype, size in self.sizes.items())

    def as_of(self, updates: int) -> "FlatLayout":
        """Return the layout after this many updates: dense spans that are still frozen have no group. Sparse ones keep
        theirs: without a gradient they cost nothing."""
        spans = tuple(replace(s, group=None) if s.is_dense and s.until > updates else s for s in self.spans)
        return replace(self, spans=spans, gradient_sizes=_gradient_sizes(spans))


def region_name(dtype: torch.dtype) -> str:
    return f"params-{str(dtype).removeprefix('torch.')}"


def extent(values: Tensor | np.ndarray) -> tuple[int, int]:
    """Return the address range [start, end) of its elements; (0, 0) if it has none in host memory."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.device.type != "cpu" or not values.numel():
            return 0, 0
        start, size = values.data_ptr(), values.element_size()
        steps = [stride * size for stride in values.stride()]
    else:
        start, size, steps = values.__array_interface__["data"][0], values.itemsize, [*values.strides]
    ends = [step * (length - 1) for step, length in zip(steps, values.shape, strict=True)]
    return start + sum(min(end, 0) for end in ends), start + sum(max(end, 0) for end in ends) + size


def sparse_parameters(model: nn.Module) -> set[int]:
    """Return the `id` of every weight whose module asks for sparse gradients."""
    embeddings = (m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse)
    return {id(module.weight) for module in embeddings}


def plan_flats(
    model: nn.Module, optimizer: torch.optim.Optimizer, late: Mapping[str, int] = NOTHING_LATE
) -> FlatLayout:
    """Plan one flat per dtype, with one span per optimizer group. Tied parameters get one place. `late`: name of a
    parameter -> the first update that trains it; the others are trained from the beginning."""
    named = list(model.named_parameters())
    index = {id(param): i for i, (_, param) in enumerate(named)}
    sparse = sparse_parameters(model)
    members = [(g, param) for g, group in enumerate(optimizer.param_groups) for param in group["params"]]
    group_of = {id(param): g for g, param in members if param.requires_grad}
    optimised = [index[id(param)] for _, param in members if id(param) in index]
    keys: list[SpanKey] = []
    for name, param in named:
        is_trained = (group := group_of.get(id(param))) is not None
        until = late.get(name, 0) if is_trained else 0
        keys.append((param.dtype, group, id(param) in sparse and is_trained, until))

    spans: list[Span] = []
    offsets: dict[int, int] = {}
    ends: dict[torch.dtype, int] = {}
    members_of: dict[SpanKey, list[int]] = defaultdict(list)
    for i in dict.fromkeys([*optimised, *range(len(named))]):  # in the optimizer's order, then the others
        members_of[keys[i]].append(i)
    for key in sorted(members_of, key=lambda k: (str(k[0]), k[1] is None, k[2], k[3], k[1] or 0)):
        dtype, group, is_sparse, until = key
        start = end = ends.get(dtype, 0)
        for i in members_of[key]:
            offsets[i] = end
            line = ALIGNMENT // dtype.itemsize  # every parameter starts on a cache line
            end += -(-named[i][1].numel() // line) * line
        spans.append(Span(dtype, group, is_sparse, start, end - start, tuple(members_of[key]), until))
        ends[dtype] = end

    slots = []
    for i, ((name, param), (dtype, group, is_sparse, until)) in enumerate(zip(named, keys, strict=True)):
        place = (tuple(param.shape), own_strides(param), offsets[i])
        slots.append(ParamSlot(name, dtype, *place, group, param.requires_grad, is_sparse, until))
    return FlatLayout(tuple(slots), tuple(spans), ends, _gradient_sizes(spans))


def _gradient_sizes(spans: Sequence[Span]) -> dict[torch.dtype, int]:
    sizes: dict[torch.dtype, int] = {}
    for span in spans:
        if span.is_dense:
            sizes[span.dtype] = span.offset + span.numel
    return sizes
