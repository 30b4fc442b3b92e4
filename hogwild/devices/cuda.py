"""An NVIDIA GPU through torch: calls to the driver only. Sources: torch.cuda (streams, events, memory), the CUDA
Runtime API for cudaHostRegister ("Memory Management"). Created only in workers, or with `procs: 0`: it creates a
context, which takes some hundred megabytes of GPU memory."""

import pickle
import re
from typing import Any

import torch
from torch import Tensor

from hogwild.devices.accelerator import memory_error
from hogwild.errors import DeviceMemoryError

SHORT = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # from libraries with their own allocators
PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of this process


class Cuda:
    """See `accelerator.Accelerator`."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        self._broken = False
        self._lent: list[Tensor] = []  # kept alive as long as this object
        torch.cuda.set_device(index)
        torch.cuda.init()
        self._generator = torch.cuda.default_generators[index]
        self._runtime: Any = torch.cuda.cudart()

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.torch_device)

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=False, blocking=False)

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream | None) -> None:
        event.record(self._or_current(stream))

    def wait(self, event: torch.cuda.Event, stream: torch.cuda.Stream | None) -> None:
        self._or_current(stream).wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def register(self, address: int, nbytes: int) -> None:
        _check("cudaHostRegister", int(self._runtime.cudaHostRegister(address, nbytes, PORTABLE)))

    def unregister(self, address: int) -> None:
        if not self._broken:  # otherwise every call fails, and the driver cleans up after the process
            _check("cudaHostUnregister", int(self._runtime.cudaHostUnregister(address)))

    def upload(self, target: Tensor, source: Tensor, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(self._or_current(stream)):
            target.copy_(source, non_blocking=True)

    download = upload  # torch sees the direction by the tensors

    def empty(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)  # the allocator aligns to 512 bytes

    def allocate_shared(self, nbytes: int) -> tuple[Tensor, str]:
        whole = self.empty(nbytes)
        self._lent.append(whole)
        return whole, pickle.dumps(whole.untyped_storage()._share_cuda_()).hex()

    def borrow(self, handle: str, nbytes: int) -> Tensor:
        parts = pickle.loads(bytes.fromhex(handle))  # from our own GPU owner, through our own supervisor
        storage: Any = torch.UntypedStorage._new_shared_cuda(*parts)
        return torch.empty(0, dtype=torch.uint8, device=self.torch_device).set_(storage, 0, (nbytes,), (1,))

    def allocations(self) -> int:
        return int(torch.cuda.memory_stats(self.torch_device).get("allocation.all.allocated", 0))

    def memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return int(free), int(total)

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def explain(self, error: BaseException) -> DeviceMemoryError | None:
        is_short = isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SHORT)
        if not is_short:
            # Every other CUDA error (a failed assertion in a kernel, an illegal address) makes the context unusable:
            # all later calls return the same error.
            self._broken = self._broken or "CUDA error" in str(error)
            return None
        asked = re.search(r"Tried to allocate ([\d.]+ \wi?B)", str(error))
        more = f" ({asked[1]} requested)" if asked else ""
        return memory_error(self.name, None, *self.memory(), more)

    def is_broken(self) -> bool:
        return self._broken

    def drain(self) -> None:
        self._lent.clear()
        try:
            torch.cuda.synchronize(self.torch_device)
        except RuntimeError:  # a new or repeated error: the driver cleans up after the process
            self._broken = True

    def _or_current(self, stream: torch.cuda.Stream | None) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.torch_device) if stream is None else stream


def _check(call: str, status: int) -> None:
    """Check a status, as torch's own `cuda/_pin_memory_utils.py` does."""
    if status:
        raise RuntimeError(f"{call} failed with status {status} of the CUDA runtime")
