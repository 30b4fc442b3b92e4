"""A worker's parameters while it trains: in the shared flats (direct), or in a private copy whose changes it regularly
adds to the flats (delta).

    direct   every update writes the flats
    delta    updates write `local`;   flush: flats += local - snapshot, then local = snapshot = flats

The race: `flats += …` is a read and a write of every word, without a lock. A write by another worker to a word in
between is lost, once per flush; earlier and later writes are kept. In direct the same holds for every update.

Only parameters that the optimizer trains are copied; frozen ones stay in the flats, which nobody writes there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hogwild.parameters.flat_layout import FlatLayout, Span, region_name
from hogwild.shared_memory.region import Region

COPIES = 3  # of the trained parameters, in delta: local, snapshot, and their difference


def trained_sizes(layout: FlatLayout) -> dict[torch.dtype, int]:
    """Return the number of trained elements, from the start of each flat; sparse spans follow the dense ones."""
    sizes = {dtype: size for dtype, size in layout.gradient_sizes.items() if size}
    for span in layout.spans:
        if span.sparse:
            sizes[span.dtype] = max(sizes.get(span.dtype, 0), span.offset + span.numel)
    return sizes


class Exchange:
    """Binds one worker's parameters to the flats or to its own copy; starts with the flats.

    `is_delta` says which. The tensor objects stay the same; their memory changes with `.data =`, so the optimizer and
    the modules see the change."""

    def __init__(self, layout: FlatLayout, params: Sequence[nn.Parameter], regions: Mapping[str, Region]) -> None:
        self.is_delta = False
        self._regions = regions
        self._shared = {dtype: self._flat(dtype, size) for dtype, size in trained_sizes(layout).items()}
        self._copies: dict[torch.dtype, tuple[Tensor, Tensor, Tensor]] = {}
        # (tensor, dtype, shape, strides, offset in elements) of everything that is rebound
        self._bound: list[tuple[Tensor, torch.dtype, Sequence[int], Sequence[int], int]] = [
            (param, slot.dtype, slot.shape, slot.strides, slot.offset)
            for param, slot in zip(params, layout.params, strict=True)
            if slot.group is not None
        ]

    def _flat(self, dtype: torch.dtype, size: int) -> Tensor:
        return self._regions[region_name(dtype)].tensor(dtype, (size,))

    def span(self, span: Span) -> Tensor:
        """Return the words of a span, (span.numel,); later `bind` calls rebind this tensor, too."""
        place = self._places()[span.dtype]
        tensor = torch.as_strided(place, (span.numel,), (1,), span.offset)
        self._bound.append((tensor, span.dtype, (span.numel,), (1,), span.offset))
        return tensor

    def bind(self, *, delta: bool) -> None:
        """Bind the parameters to the copy (fresh from the flats) or to the flats. Everything must be flushed before."""
        if delta == self.is_delta:
            return
        if delta and not self._copies:  # local, snapshot, difference
            self._copies = {
                dtype: (torch.empty_like(flat), torch.empty_like(flat), torch.empty_like(flat))
                for dtype, flat in self._shared.items()
            }
        self.is_delta = delta
        self.refresh()
        places = self._places()
        for tensor, dtype, shape, strides, offset in self._bound:
            tensor.data = torch.as_strided(places[dtype], tuple(shape), tuple(strides), offset)

    def _bind_everything(self, layout: FlatLayout, params: Sequence[nn.Parameter]) -> None:
        """Bind all parameters, also the frozen ones, to the flats of `_places`, once and for all."""
        places = self._places()
        for param, slot in zip(params, layout.params, strict=True):
            param.data = torch.as_strided(places[slot.dtype], slot.shape, slot.strides, slot.offset)

    def _places(self) -> dict[torch.dtype, Tensor]:
        return {dtype: copy[0] for dtype, copy in self._copies.items()} if self.is_delta else self._shared

    def flush(self) -> None:
        """Add the changes since the last `refresh` to the flats, and read back the changes of the others. Call it
        between intent and commit."""
        for dtype, (local, snapshot, difference) in self._copies.items() if self.is_delta else ():
            torch.sub(local, snapshot, out=difference)
            self._shared[dtype].add_(difference)
        self.refresh()

    def refresh(self) -> None:
        """Set the copy to the present flats; unflushed changes are dropped."""
        for dtype, (local, snapshot, _) in self._copies.items() if self.is_delta else ():
            snapshot.copy_(self._shared[dtype])
            local.copy_(snapshot)
        self._changed()

    def _changed(self) -> None:
        """Tell autograd that the parameters were written, as after an optimizer's step."""
        if self.is_delta:
            torch.autograd.graph.increment_version([bound[0] for bound in self._bound])
