"""What a job needs of a GPU, and which one a worker gets: CUDA's (`cuda.py`, the only other place with
torch.cuda) or one that is simulated on the CPU (`simulated.py`). Nothing here makes a context.

    Accelerator    memory, copies that run beside the mathematics, and what orders them: streams and events

A copy between host and device is *begun* by `upload` or `download`, on a stream of its own, and done when an event that
was recorded behind it has come: `wait` orders streams, `synchronize` stops this process. Host memory is registered
(pinned) by whoever copies from or to it, in its own process, and unregistered before it leaves."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hogwild.errors import DeviceMemoryError

CPU, CUDA, SIMULATED = "cpu", "cuda", "simulated"


class Accelerator(Protocol):
    """One GPU as one process sees it. `stream` is what `stream` made, None where the mathematics is done. Errors come
    as the driver's own; `explain` knows them. One process, one thread."""

    name: str  # cuda:0, simulated:1
    torch_device: torch.device

    def stream(self) -> Any: ...
    def event(self) -> Any: ...
    def record(self, event: Any, stream: Any | None) -> None:
        """The event comes when all that was begun on the stream by now is done."""

    def wait(self, event: Any, stream: Any | None) -> None:
        """What is begun on the stream from now on waits for the event; this process does not."""

    def synchronize(self, event: Any) -> None:
        """Returns when the event has come. One that was never recorded has."""

    def register(self, address: int, nbytes: int) -> None:
        """Pins host memory of this process, without a copy (cudaHostRegister)."""

    def unregister(self, address: int) -> None:
        """Of memory that nothing is copied from or to any more."""

    def upload(self, target: Tensor, source: Tensor, stream: Any | None) -> None:
        """Begins host -> device. `source` stays as it is, and `target` unread, until an event says so."""

    def download(self, target: Tensor, source: Tensor, stream: Any | None) -> None:
        """Begins device -> host."""

    def empty(self, nbytes: int) -> Tensor:
        """(nbytes,) uint8 on the device, on a cache line; whatever was there before."""

    def lend(self, nbytes: int) -> tuple[Tensor, str]:
        """(nbytes,) uint8 on the device, and the handle by which another process may `borrow` it, while this one and
        its accelerator live."""

    def borrow(self, handle: str, nbytes: int) -> Tensor:
        """What another process has lent. Raises RuntimeError or OSError where that is not possible."""

    def allocations(self) -> int:
        """How often device memory was allocated by this process so far."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def seed(self, seed: int) -> None:
        """Of the generator that layers on the device draw from."""

    def explain(self, error: BaseException) -> DeviceMemoryError | None:
        """What to tell a person about an error that says that memory is short; None for any other."""

    def is_broken(self) -> bool:
        """An error has made the context unusable: nothing can be copied any more, and only leaving helps."""

    def drain(self) -> None:
        """Before leaving: nothing is being copied any more, nothing lent. Never raises: in a broken context nothing
        is."""


def memory_error(name: str, asked: int | None, free: int, total: int, more: str = "") -> DeviceMemoryError:
    """The one sentence about a GPU whose memory does not suffice."""
    wanted = f"{asked:,} bytes were asked for, " if asked is not None else ""
    return DeviceMemoryError(
        f"GPU out of memory: {name}: {wanted}{free:,} of {total:,} bytes are free{more}. Take a smaller "
        "data.batch_size or model, fewer train.procs on this GPU (each has copies of its own), or end what else uses it"
    )


def words(tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], offset: int, strides: Sequence[int]) -> Tensor:
    """A view of bytes (N,) uint8 as `dtype`, `offset` bytes in; strides in elements."""
    view = torch.empty(0, dtype=dtype, device=tensor.device)
    start = tensor.storage_offset() + offset
    assert start % dtype.itemsize == 0, f"offset {start} is not a multiple of the item size of {dtype}"
    view.set_(tensor.untyped_storage(), start // dtype.itemsize, tuple(shape), tuple(strides))
    return view
