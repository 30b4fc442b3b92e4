"""Parameters on one GPU, in memory that a dedicated process owns (`workers/child/gpu_owner.py`) and shares with all
workers: every update writes them there, without a lock.

The race is that of direct exchange (`exchange.py`): kernels of several workers read and write the same words at the
same time. Workers own no memory that others map, so killing one is harmless: its context ends, and the owner's memory
stays. Host memory has the flats as of the last pause, when the owner copies them there."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hogwild.devices.accelerator import Accelerator
from hogwild.errors import DeviceSharingError
from hogwild.parameters.exchange import Exchange
from hogwild.parameters.flat_layout import FlatLayout, region_name
from hogwild.shared_memory.region import Region

REFUSED = (
    "{name}: GPU memory of another process cannot be mapped: {error}. In a container, CUDA IPC needs the host's IPC "
    "and process namespaces (docker run --ipc=host --pid=host); or use train.placement: cuda-replica"
)


class LentExchange(Exchange):
    """Direct exchange: the parameters are words of the flats on the device. `lent`: region -> IPC handle."""

    def __init__(
        self,
        layout: FlatLayout,
        params: Sequence[nn.Parameter],
        regions: Mapping[str, Region],
        accelerator: Accelerator,
        lent: Mapping[str, str],
    ) -> None:
        """Map the owner's memory. Raises DeviceSharingError."""
        super().__init__(layout, params, regions)
        try:
            self._flats: dict[torch.dtype, Tensor] = {
                dtype: accelerator.borrow(lent[region_name(dtype)], size * dtype.itemsize).view(dtype)
                for dtype, size in layout.sizes.items()
                if size
            }
        except (OSError, RuntimeError) as error:
            if accelerator.explain(error) is not None:
                raise
            raise DeviceSharingError(REFUSED.format(name=accelerator.name, error=error)) from error
        for param, slot in zip(params, layout.params, strict=True):
            param.data = torch.as_strided(self._flats[slot.dtype], slot.shape, slot.strides, slot.offset)

    def _places(self) -> dict[torch.dtype, Tensor]:
        return self._flats

    def bind(self, *, delta: bool) -> None:
        assert not delta, "lent parameters are written where they lie"
