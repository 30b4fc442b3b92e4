"""The devices of this machine, and the one that torch has: an NVIDIA GPU."""

import pickle
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hogwild.devices.accelerator import Accelerator, memory_error
from hogwild.devices.kinds import CPU, CUDA, registered
from hogwild.errors import DeviceMemoryError, ModelError, UsageError

SHORT = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # from libraries with their own allocators
WARM_UP = 3  # calls before a capture, as torch's notes on CUDA graphs have it
PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of this process


class Cuda:
    """An NVIDIA GPU through torch: calls to the driver only; see `accelerator.Accelerator`. Created only in workers, or
    with `procs: 0`: it creates a context, which takes some hundred megabytes of GPU memory. Sources: torch.cuda
    (streams, events, memory), the CUDA Runtime API for cudaHostRegister ("Memory Management")."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        self._broken = False
        self._lent: list[Tensor] = []  # kept alive as long as this object
        torch.cuda.set_device(index)
        torch.cuda.init()
        self.generator = torch.cuda.default_generators[index]
        self._side: torch.cuda.Stream | None = None  # where graphs are captured
        self._pool: Any = None  # memory of all graphs
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
        self.generator.manual_seed(seed)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Follow torch's notes on CUDA graphs ("CUDA semantics", constraints; torch/cuda/graphs.py):

        a stream of its own     the default stream cannot be captured. Warm-up and capture use the same one, so that
                                libraries make their workspaces for it before, in ordinary memory
        warm-up                 an operation that waits for the device raises here, before anything is captured
        autograd                no graph of an earlier batch is alive, so gradients are accumulated on this stream
        one pool                graphs are replayed one after the other, on one stream, and keep no result in it
        random numbers          torch registers the default generator: a replay draws from its present seed
        errors                  `torch.cuda.graph` leaves its stream current if the capture fails; ours is restored"""
        if self._side is None:
            self._side, self._pool = self.stream(), torch.cuda.graph_pool_handle()
        side, main = self._side, torch.cuda.current_stream(self.torch_device)
        graph, waits = torch.cuda.CUDAGraph(), torch.cuda.get_sync_debug_mode()
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                torch.cuda.set_sync_debug_mode("error")
                try:
                    for _ in range(WARM_UP):
                        work()
                finally:
                    torch.cuda.set_sync_debug_mode(waits)
                with torch.cuda.graph(graph, pool=self._pool, stream=side):
                    work()
        finally:
            main.wait_stream(side)
        return graph.replay

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


def open_accelerator(name: str) -> Accelerator | None:
    """Open a device in the process that will compute on it, which gets a context; None for `cpu`."""
    kind, _, index = name.partition(":")
    if kind == CPU:
        return None
    if kind in (modules := registered()):
        opened: Accelerator = import_module(modules[kind]).open_device(int(index))
        return opened

    return Cuda(int(index))


def count(kind: str) -> int:
    """Return the number of devices of this kind. Creates no context."""
    if kind in (modules := registered()):
        return int(import_module(modules[kind]).DEVICES)
    return visible_gpus() if kind == CUDA else 1


def resolve(device: str) -> str:
    """Return the kind of `device`; `auto`: cuda if there is a GPU, else cpu. Raises UsageError for a missing one."""
    if device == "auto":
        return CUDA if visible_gpus() else CPU
    kind, _, index = device.partition(":")
    there = count(kind)
    if there == 0:
        why = f"torch {torch.__version__} was built without CUDA"
        if torch.backends.cuda.is_built():
            version = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
            why = f"{version}, sees no GPU: check the driver and CUDA_VISIBLE_DEVICES"
        raise UsageError(
            f"train.device: {device}: torch finds no usable GPU ({why}); use auto or cpu", code="device/none"
        )
    if index:
        check_index(kind, int(index), there)
    return kind


def check_index(kind: str, index: int, there: int) -> None:
    """Raise UsageError for a device beyond those that are there."""
    if index >= there:
        have = f"{kind}:0" if there == 1 else f"{kind}:0 to {kind}:{there - 1}"
        raise UsageError(f"train.device: {kind}:{index}: no such device (available: {have})", code="device/index")


def require_cpu(tensors: Iterable[tuple[str, torch.Tensor]], what: str) -> None:
    """Check tensors as from `named_parameters()`. Raises ModelError for the first (name, tensor) that is not in this
    machine's main memory; `what` names their owner, as in 'the model'."""
    for name, tensor in tensors:
        if tensor.device.type != "cpu":
            raise ModelError(
                f"{what}: {name} is on {tensor.device}; workers can share only CPU memory: use .to('cpu') first",
                code="model/device",
            )


def visible_gpus() -> int:
    """Return the number of GPUs that torch sees. Creates no context."""
    return int(torch.cuda.device_count())


def cuda_is_initialized() -> bool:
    """Return whether this process has a CUDA context. Does not create one. The supervisor must have none: a context
    does not survive in children, holds device memory, and its threads hold locks."""
    return bool(torch.cuda.is_initialized())


def flushes_denormal() -> bool:
    """Return whether this thread flushes denormal numbers (below 1e-38) to zero; torch can set that but not read it."""
    return (torch.full((8,), 1e-40, dtype=torch.float32) * 0.5).sum().item() == 0.0
