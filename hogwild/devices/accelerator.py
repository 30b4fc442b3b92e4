"""The interface of a GPU. `discovery.Cuda` implements it. Nothing here creates a context.

    Accelerator    memory, asynchronous copies, and the streams and events that order them

A copy between host and device is *started* by `upload` or `download`, on a separate stream, and complete when an event
that was recorded after it has completed: `wait` orders streams, `synchronize` blocks this process. Host memory is
registered (pinned) by the process that copies from or to it, and unregistered before that process ends."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hogwild.errors import DeviceMemoryError
from hogwild.formatting import size
from hogwild.shared_memory.region import Region


class Accelerator(Protocol):
    """One GPU as one process sees it. `stream` is a result of `stream()`, or None for the compute stream. Errors are
    the driver's own; `explain` translates them. One process, one thread."""

    name: str  # cuda:0, simulated:1
    torch_device: torch.device
    generator: torch.Generator  # the one that kernels draw from

    def stream(self) -> Any: ...
    def event(self) -> Any: ...
    def record(self, event: Any, stream: Any | None) -> None:
        """Record the event: it completes when all work started on the stream so far is done."""

    def wait(self, event: Any, stream: Any | None) -> None:
        """Make later work on the stream wait for the event, without blocking this process."""

    def synchronize(self, event: Any) -> None:
        """Wait for the event. Returns at once if it was never recorded."""

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory of this process, without a copy (cudaHostRegister)."""

    def unregister(self, address: int) -> None:
        """Unpin host memory that no copy uses any more."""

    def upload(self, target: Tensor, source: Tensor, stream: Any | None) -> None:
        """Start a copy host -> device. Until an event confirms it, do not write `source` or read `target`."""

    def download(self, target: Tensor, source: Tensor, stream: Any | None) -> None:
        """Start a copy device -> host."""

    def empty(self, nbytes: int) -> Tensor:
        """Return (nbytes,) uint8 on the device, on a cache line, uninitialised."""

    def allocate_shared(self, nbytes: int) -> tuple[Tensor, str]:
        """Allocate (nbytes,) uint8 on the device; return it with the handle by which another process may `borrow` it,
        as long as this process and its accelerator live."""

    def borrow(self, handle: str, nbytes: int) -> Tensor:
        """Map another process's `allocate_shared` memory. Raises RuntimeError or OSError if that fails."""

    def allocations(self) -> int:
        """Return how often this process has allocated device memory so far."""

    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes."""

    def seed(self, seed: int) -> None:
        """Seed the generator that layers on the device use."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record the kernels and copies that `work` starts on the compute stream; return what starts the same again.
        Calls `work` several times, which changes whatever it writes. Raises whatever `work` raises, and RuntimeError
        for what cannot be recorded: waiting for the device, new shapes, host memory that is not pinned."""

    def explain(self, error: BaseException) -> DeviceMemoryError | None:
        """Return an error message for users if memory is short; None for any other error."""

    def is_broken(self) -> bool:
        """Return whether an error has made the context unusable: no copy works any more, and the process must end."""

    def drain(self) -> None:
        """Finish all copies and free shared memory before the process ends. Never raises, even with broken context."""


def memory_error(name: str, asked: int | None, free: int, total: int, more: str = "") -> DeviceMemoryError:
    """Return the error for a GPU with too little memory."""
    wanted = f"{size(asked)} requested, " if asked is not None else ""
    return DeviceMemoryError(
        f"GPU out of memory: {name}: {wanted}{size(free)} of {size(total)} free{more}. Use a smaller data.batch_size "
        "or model, fewer train.procs on this GPU (each has its own copies), or stop other programs that use it"
    )


def typed_view(tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], offset: int, strides: Sequence[int]) -> Tensor:
    """Return a view of bytes (N,) uint8 as `dtype`, starting `offset` bytes in; strides in elements."""
    view = torch.empty(0, dtype=dtype, device=tensor.device)
    start = tensor.storage_offset() + offset
    assert start % dtype.itemsize == 0, f"offset {start} is not a multiple of the item size of {dtype}"
    view.set_(tensor.untyped_storage(), start // dtype.itemsize, tuple(shape), tuple(strides))
    return view


PAGE = 4096  # bytes


class Pins:
    """Host memory that one process has pinned for one device, which copies from and to it directly; `close` unpins all.

    `Tensor.pin_memory()` would copy to other memory; cudaHostRegister takes an address. A page can be pinned only once,
    so shared regions are pinned as a whole, and private memory is allocated in separate pages."""

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
