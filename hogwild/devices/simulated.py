"""A GPU that is not there: `train.device: simulated` runs the code of a GPU on the CPU, every path but the driver
itself. For tests on machines without one, and for whoever wants to know what his model meets on a GPU.

    upload, download    begun, not done: the bytes move when an event behind them is waited for. Who forgets to wait
                        reads poison (NaN, -1) on the device, and old numbers on the host
    kernels             the CPU's own, done at once, in the order in which they are called
    calls               counted, by name
    memory              may be limited; then it runs out as a GPU's does

It is slower than `cpu`. What user code may call, in a model's forward for instance, to see what a job makes of a GPU
that fails: `limit_memory`, `run_out_of_memory`, `break_context`."""

import os
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hogwild.devices.accelerator import memory_error
from hogwild.errors import DeviceMemoryError

DEVICES = 2  # simulated:0 and simulated:1
TOTAL = 1 << 40  # bytes of memory, unless limited: more than the machine has
POISON = 0xFF  # bytes: NaN as a floating number, -1 as a whole one
LINE = 64


class SimulatedError(RuntimeError):
    """What a driver would say."""


class SimulatedOutOfMemory(SimulatedError):
    def __init__(self, asked: int) -> None:
        super().__init__(f"simulated device: out of memory: tried to allocate {asked:,} bytes")
        self.asked = asked


class SimulatedStream:
    """Work in its order. None of it is done before somebody waits for an event behind it."""

    def __init__(self) -> None:
        self.pending: deque[Callable[[], object]] = deque()
        self.begun = self.done = 0

    def begin(self, work: Callable[[], object]) -> None:
        self.pending.append(work)
        self.begun += 1

    def finish(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.pending.popleft()()


class Mark:
    """An event: a place in a stream."""

    def __init__(self) -> None:
        self.stream: SimulatedStream | None = None
        self.place = 0

    def come(self) -> None:
        """All that is before it is done now."""
        if self.stream is not None:
            self.stream.finish(self.place)


class Simulated:
    """See `device.Accelerator`. `calls` counts what was asked of it, by name; `log` is the same in its order, while it
    is a list."""

    def __init__(self, index: int) -> None:
        self.name = f"simulated:{index}"
        self.torch_device = torch.device("cpu")
        self.calls: Counter[str] = Counter()
        self.log: list[str] | None = None
        self.registered: dict[int, int] = {}  # address -> bytes
        self.pageable = 0  # copies whose host memory was not registered
        self._current, self._streams = SimulatedStream(), list[SimulatedStream]()
        self._used = 0
        self._lent: list[Any] = []  # as long as this lives
        self._broken = False
        opened[index] = self

    def stream(self) -> SimulatedStream:
        self._note("stream")
        self._streams.append(SimulatedStream())
        return self._streams[-1]

    def event(self) -> Mark:
        self._note("event")
        return Mark()

    def record(self, event: Mark, stream: SimulatedStream | None) -> None:
        self._note("record")
        event.stream = self._or_current(stream)
        event.place = event.stream.begun

    def wait(self, event: Mark, stream: SimulatedStream | None) -> None:
        self._note("wait")
        if stream is None:
            event.come()  # kernels are done as they are called: this is the last moment
        elif event.stream is not None:
            stream.begin(partial(event.stream.finish, event.place))

    def synchronize(self, event: Mark) -> None:
        self._note("synchronize")
        event.come()

    def register(self, address: int, nbytes: int) -> None:
        self._note("register")
        if any(address < start + size and start < address + nbytes for start, size in self.registered.items()):
            raise SimulatedError(f"simulated device: host memory at {address:#x} is registered already")
        self.registered[address] = nbytes

    def unregister(self, address: int) -> None:
        self.calls["unregister"] += 1  # also with a broken context: nothing of it may be left
        if address not in self.registered:
            raise SimulatedError(f"simulated device: host memory at {address:#x} is not registered")
        del self.registered[address]

    def upload(self, target: Tensor, source: Tensor, stream: SimulatedStream | None) -> None:
        self._note("upload")
        self._look(source)
        if stream is None:  # what is called next is done next
            target.copy_(source)
        else:
            _poison(target)
            stream.begin(partial(target.copy_, source))

    def download(self, target: Tensor, source: Tensor, stream: SimulatedStream | None) -> None:
        self._note("download")
        self._look(target)
        if stream is None:  # of what was there before the kernels that are called next
            source = source.clone()
        self._or_current(stream).begin(partial(target.copy_, source))

    def empty(self, nbytes: int) -> Tensor:
        self._note("allocate")
        if self._used + nbytes > _limits["memory"]:
            raise SimulatedOutOfMemory(nbytes)
        self._used += nbytes
        whole = torch.full((nbytes + LINE,), POISON, dtype=torch.uint8)
        start = -whole.data_ptr() % LINE
        return whole[start : start + nbytes]

    def lend(self, nbytes: int) -> tuple[Tensor, str]:
        from hogwild.shared_memory.region import Region

        self._note("lend")
        self._lent.append(Region.allocate("simulated-device", nbytes))
        return self._lent[-1].tensor(torch.uint8, (nbytes,)), f"{os.getpid()} {self._lent[-1].descriptor}"

    def borrow(self, handle: str, nbytes: int) -> Tensor:
        from hogwild.host.procfs import open_descriptor_of
        from hogwild.shared_memory.region import Region

        self._note("borrow")
        pid, descriptor = map(int, handle.split())
        return Region.attach(open_descriptor_of(pid, descriptor), nbytes).tensor(torch.uint8, (nbytes,))

    def allocations(self) -> int:
        return self.calls["allocate"]

    def memory(self) -> tuple[int, int]:
        return _limits["memory"] - self._used, _limits["memory"]

    def seed(self, seed: int) -> None:
        self.calls["seed"] += 1  # kernels draw from the host's generator, which is seeded as well

    def explain(self, error: BaseException) -> DeviceMemoryError | None:
        return memory_error(self.name, error.asked, *self.memory()) if isinstance(error, SimulatedOutOfMemory) else None

    def is_broken(self) -> bool:
        return self._broken

    def break_context(self) -> None:
        """Every call fails from now on."""
        self._broken = True

    def drain(self) -> None:
        self._lent.clear()
        for stream in () if self._broken else (self._current, *self._streams):
            stream.finish(stream.begun)

    def _note(self, call: str) -> None:
        if self._broken:
            raise SimulatedError(f"simulated device: {call}: the context was broken by an earlier error")
        self.calls[call] += 1
        if self.log is not None:
            self.log.append(call)

    def _look(self, host: Tensor) -> None:
        first, last = host.data_ptr(), host.data_ptr() + host.numel() * host.element_size()
        self.pageable += not any(start <= first and last <= start + size for start, size in self.registered.items())

    def _or_current(self, stream: SimulatedStream | None) -> SimulatedStream:
        return self._current if stream is None else stream


opened: dict[int, Simulated] = {}  # index -> the last one that this process has opened
_limits = {"memory": TOTAL}


def limit_memory(nbytes: int | None) -> None:
    """Devices of this process have so much memory, from the next allocation on; None: as much as one likes."""
    _limits["memory"] = TOTAL if nbytes is None else nbytes


def run_out_of_memory(nbytes: int = TOTAL) -> None:
    """Raises what a kernel raises for which there is no memory."""
    raise SimulatedOutOfMemory(nbytes)


def break_context() -> None:
    """Raises what a kernel raises that read an illegal address; no device of this process is of any use afterwards."""
    for device in opened.values():
        device.break_context()
    raise SimulatedError("simulated device: a kernel read an illegal address")


def _poison(tensor: Tensor) -> None:
    """Every byte of a dense tensor."""
    nbytes = tensor.numel() * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), start, (nbytes,), (1,)).fill_(POISON)
