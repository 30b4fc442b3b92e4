"""Host memory that a GPU copies from and to directly, pinned in place by the process that copies.

`Tensor.pin_memory()` would copy to other memory; cudaHostRegister takes an address. A page can be pinned only once, so
shared regions are pinned as a whole, and private memory is allocated in separate pages."""

import torch
from torch import Tensor

from hogwild.devices.accelerator import Accelerator
from hogwild.shared_memory.region import Region

PAGE = 4096  # bytes


class Pins:
    """The memory that one process has pinned for one device; `close` unpins all of it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._held: dict[int, Tensor] = {}  # address -> tensor that keeps the memory mapped

    def region(self, region: Region) -> None:
        """Pin the whole mapping of a shared region; once."""
        self.memory(region.tensor(torch.uint8, (region.nbytes,)))

    def memory(self, whole: Tensor) -> None:
        """Pin (n,) uint8 that begins on a page and shares none; does nothing if it is pinned."""
        if whole.data_ptr() not in self._held and whole.numel():
            self._accelerator.register(whole.data_ptr(), whole.numel())
            self._held[whole.data_ptr()] = whole

    def empty(self, nbytes: int) -> Tensor:
        """Return (nbytes,) uint8: new private memory, pinned."""
        pages = -(-max(nbytes, 1) // PAGE) * PAGE
        raw = torch.empty(pages + PAGE, dtype=torch.uint8)
        start = -raw.data_ptr() % PAGE
        whole = raw[start : start + pages]
        self.memory(whole)
        return whole[:nbytes]

    def covers(self, address: int, nbytes: int) -> bool:
        """Return whether these bytes are pinned, by one registration."""
        stop = address + nbytes
        return any(start <= address and stop <= start + whole.numel() for start, whole in self._held.items())

    def give_up(self, memory: Tensor) -> None:
        """Unpin a result of `empty` that no copy uses any more."""
        del self._held[memory.data_ptr()]
        self._accelerator.unregister(memory.data_ptr())

    def close(self) -> None:
        for address in [*self._held]:
            self._accelerator.unregister(address)
            del self._held[address]
