"""A simulated GPU for machines without one: `train.device: simulated` runs the code for GPUs on the CPU, every path
except the driver itself. Registered for the whole test session, in parent and children (tests/conftest.py).

    upload, download    started, not done: the bytes move when a later event is waited for. Code that forgets to wait
                        reads poison (NaN, -1) on the device, and old values on the host
    kernels             the CPU's own, done at once, in the order in which they are called
    calls               counted, by name
    graphs              operations are recorded below autograd, and done again on the same tensors: no Python of the
                        model runs. What waits for the device cannot be recorded
    memory              may be limited; then it runs out as a GPU's does

It is slower than `cpu`. User code, such as a model's forward, may simulate failures of a GPU with `limit_memory`,
`run_out_of_memory`, `break_context`."""

import os
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hogwild.devices.accelerator import memory_error
from hogwild.errors import DeviceMemoryError
from hogwild.formatting import size

DEVICES = 2  # simulated:0 and simulated:1
TOTAL = 1 << 40  # bytes of memory, unless limited: more than the machine has
POISON = 0xFF  # bytes: NaN as a float, -1 as an integer
LINE = 64


class SimulatedError(RuntimeError):
    """A simulated driver error."""


class SimulatedOutOfMemory(SimulatedError):
    def __init__(self, asked: int) -> None:
        super().__init__(f"simulated device: out of memory: tried to allocate {size(asked)}")
        self.asked = asked


class SimulatedStream:
    """Work in order. It is done only when an event after it is waited for."""

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
    """An event: a position in a stream."""

    def __init__(self) -> None:
        self.stream: SimulatedStream | None = None
        self.place = 0

    def come(self) -> None:
        """Do all work before it now."""
        if self.stream is not None:
            self.stream.finish(self.place)


def open_device(index: int) -> "Simulated":
    return Simulated(index)


class Recording(TorchDispatchMode):
    """Records every operation of this thread; raises for those that a capture does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
            raise SimulatedError(f"simulated device: {func} is not permitted when the stream is capturing")
        made = func(*args, **kwargs)
        self.steps.append(partial(self._again, func, args, kwargs, made))
        return made

    @staticmethod
    def _again(func: Any, args: Any, kwargs: Any, made: Any) -> None:
        again = func(*args, **kwargs)
        for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
            if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                old.copy_(new)

    def replay(self) -> None:
        with torch.no_grad():
            for step in self.steps:
                step()


class Simulated:
    """See `accelerator.Accelerator`. `calls` counts the calls by name; `log`, if it is a list, has them in order."""

    def __init__(self, index: int) -> None:
        self.name = f"simulated:{index}"
        self.torch_device = torch.device("cpu")
        self.generator = torch.default_generator
        self._recording: Recording | None = None
        self.calls: Counter[str] = Counter()
        self.log: list[str] | None = None
        self.registered: dict[int, int] = {}  # address -> bytes
        self.pageable = 0  # copies from or to unregistered host memory
        self._current, self._streams = SimulatedStream(), list[SimulatedStream]()
        self._used = 0
        self._lent: list[Any] = []  # kept alive as long as this object
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
            event.come()  # kernels are done when they are called: this is the last moment
        elif event.stream is not None:
            stream.begin(partial(event.stream.finish, event.place))

    def synchronize(self, event: Mark) -> None:
        if self._recording is not None:
            raise SimulatedError("simulated device: waiting is not permitted when the stream is capturing")
        self._note("synchronize")
        event.come()

    def register(self, address: int, nbytes: int) -> None:
        self._note("register")
        if any(address < start + size and start < address + nbytes for start, size in self.registered.items()):
            raise SimulatedError(f"simulated device: host memory at {address:#x} is registered already")
        self.registered[address] = nbytes

    def unregister(self, address: int) -> None:
        self.calls["unregister"] += 1  # also with a broken context: all memory must be unregistered
        if address not in self.registered:
            raise SimulatedError(f"simulated device: host memory at {address:#x} is not registered")
        del self.registered[address]

    def upload(self, target: Tensor, source: Tensor, stream: SimulatedStream | None) -> None:
        self._note("upload")
        self._look(source)
        if stream is None:  # same stream as the kernels: done at once
            target.copy_(source)
        else:
            _poison(target)
            stream.begin(partial(target.copy_, source))

    def download(self, target: Tensor, source: Tensor, stream: SimulatedStream | None) -> None:
        self._note("download")
        self._look(target)
        if self._recording is not None:
            assert stream is None
            self._recording.steps.append(partial(self.download, target, source, None))
            return
        if stream is None:  # copy the value before the kernels that are called next
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

    def allocate_shared(self, nbytes: int) -> tuple[Tensor, str]:
        from hogwild.shared_memory.region import Region

        self._note("allocate_shared")
        self._lent.append(Region.allocate("simulated-device", nbytes))
        return self._lent[-1].tensor(torch.uint8, (nbytes,)), f"{os.getpid()} {self._lent[-1].descriptor}"

    def borrow(self, handle: str, nbytes: int) -> Tensor:
        from hogwild.shared_memory.region import Region

        self._note("borrow")
        pid, descriptor = map(int, handle.split())
        theirs = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        return Region.attach(theirs, nbytes).tensor(torch.uint8, (nbytes,))

    def allocations(self) -> int:
        return self.calls["allocate"]

    def memory(self) -> tuple[int, int]:
        return _limits["memory"] - self._used, _limits["memory"]

    def seed(self, seed: int) -> None:
        self.calls["seed"] += 1  # kernels use the host's generator, which is seeded as well

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self._note("capture")
        self._recording = recording = Recording()
        try:
            with recording:
                work()
        finally:
            self._recording = None

        def replay() -> None:
            self._note("replay")
            recording.replay()

        return replay

    def explain(self, error: BaseException) -> DeviceMemoryError | None:
        return memory_error(self.name, error.asked, *self.memory()) if isinstance(error, SimulatedOutOfMemory) else None

    def is_broken(self) -> bool:
        return self._broken

    def break_context(self) -> None:
        """Make every later call fail."""
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


opened: dict[int, Simulated] = {}  # index -> the device that this process opened last
_limits = {"memory": TOTAL}


def limit_memory(nbytes: int | None) -> None:
    """Limit the memory of this process's devices, from the next allocation on; None: no limit."""
    _limits["memory"] = TOTAL if nbytes is None else nbytes


def run_out_of_memory(nbytes: int = TOTAL) -> None:
    """Raise the error of a kernel that runs out of memory."""
    raise SimulatedOutOfMemory(nbytes)


def break_context() -> None:
    """Raise the error of a kernel that read an illegal address; all devices of this process are unusable afterwards."""
    for device in opened.values():
        device.break_context()
    raise SimulatedError("simulated device: a kernel read an illegal address")


def _poison(tensor: Tensor) -> None:
    """Poison every byte of a dense tensor."""
    nbytes = tensor.numel() * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), start, (nbytes,), (1,)).fill_(POISON)
