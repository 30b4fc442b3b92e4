"""Anonymous shared memory: one memfd per region, mapped into torch and numpy in every process that gets its descriptor.

Advantages over torch's own files in /dev/shm: a region never has a name, so a crash cannot leave one behind; the size
of /dev/shm is no limit; and missing memory raises an error here, instead of SIGBUS or the kernel's out-of-memory killer
at first touch. `Tensor.is_shared()` is true for every view of a region. The layout of each region says who may write
it.

torch is imported with the first region, not with this module: the workers' protocol is tested without torch."""

import errno
import mmap
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hogwild import host
from hogwild.errors import MemoryShortError
from hogwild.formatting import size

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64  # a cache line: aligned regions, rows or spans never share one


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Region:
    """A piece of shared memory. Views made from it keep it mapped; `descriptor` stays valid while the region lives."""

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool = True) -> None:
        """Take ownership of `descriptor`; negative: zeros of this process only. Use `allocate`, `attach` or `private`
        instead."""
        import torch

        self.descriptor = descriptor
        self.nbytes = nbytes
        self._storage: torch.UntypedStorage
        if descriptor < 0:
            self._storage = torch.zeros(nbytes, dtype=torch.uint8).untyped_storage()
            return
        if not writable:
            mapped = mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ)
            with warnings.catch_warnings():  # torch has no tensors that cannot be written: a store is a SIGSEGV
                warnings.simplefilter("ignore", UserWarning)
                self._storage = torch.frombuffer(mapped, dtype=torch.uint8).untyped_storage()
            return
        # torch duplicates the descriptor and closes its copy with the storage; ours stays open for replacement workers.
        self._storage = torch.UntypedStorage._new_shared_fd_cpu(  # type: ignore[attr-defined]
            descriptor, nbytes
        )

    @classmethod
    def allocate(cls, name: str, nbytes: int, holes: Sequence[tuple[int, int]] = ()) -> "Region":
        """Allocate a region of zeros with all its pages, but for those in `holes`, [start, end) bytes in order: `fill`
        allocates them, before anybody reads or writes there. `name` is visible only in /proc/PID/maps. Raises
        MemoryShortError if the machine or a control group has not enough memory left, or if it cannot be mapped."""
        nbytes = max(aligned(nbytes), ALIGNMENT)
        _require(name, nbytes - sum(end - start for start, end in holes))
        descriptor = os.memfd_create(f"hogwild-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            begin = 0
            for start, end in (*holes, (nbytes, nbytes)):
                if begin < start:
                    os.posix_fallocate(descriptor, begin, start - begin)
                begin = end
            # Try mmap first: if torch fails to map, it leaks its copy of the descriptor, and with it the pages.
            mmap.mmap(descriptor, nbytes).close()
        except OSError as error:
            os.close(descriptor)
            limit = "; the limit on the size of files holds for it: ulimit -f" if error.errno == errno.EFBIG else ""
            raise MemoryShortError(
                f"cannot allocate {size(nbytes)} of shared memory for {name}: {error.strerror}{limit}",
                code="run/shm-full",
            ) from error
        return cls(descriptor, nbytes)

    @classmethod
    def private(cls, nbytes: int) -> "Region":
        """Return zeros in memory of this process only, in the form of a region. Checked by nobody, as any allocation:
        a moment of short memory ends this process, not the job."""
        return cls(-1, max(aligned(nbytes), ALIGNMENT))

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> "Region":
        """Allocate a region that holds `content`. Raises MemoryShortError."""
        region = cls.allocate(name, len(content))
        region.array("u1", (len(content),))[:] = memoryview(content)
        return region

    @classmethod
    def attach(cls, descriptor: int, nbytes: int, *, writable: bool = True) -> "Region":
        """Map a region that another process allocated; take ownership of the descriptor. Not `writable`: a store into
        it kills this process (SIGSEGV)."""
        return cls(descriptor, nbytes, writable=writable)

    def tensor(
        self, dtype: "torch.dtype", shape: Sequence[int], offset: int = 0, strides: Sequence[int] | None = None
    ) -> "torch.Tensor":
        """Return a view of `shape`, starting `offset` bytes into the region; strides in elements."""
        import torch

        if offset % dtype.itemsize:
            raise ValueError(f"offset {offset} is not a multiple of the item size of {dtype}")
        view = torch.empty(0, dtype=dtype)
        if strides is None:
            view.set_(self._storage, offset // dtype.itemsize, tuple(shape))  # type: ignore[call-overload]
        else:
            view.set_(self._storage, offset // dtype.itemsize, tuple(shape), tuple(strides))
        return view

    def array(self, dtype: Any, shape: Sequence[int], offset: int = 0) -> np.ndarray:
        """Return a numpy view. Access to a word takes 0.1 us, against 2.6 us through tensor indexing."""
        import torch

        if offset % np.dtype(dtype).itemsize:
            raise ValueError(f"offset {offset} is not a multiple of the item size of {np.dtype(dtype)}")
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        whole: np.ndarray = self.tensor(torch.uint8, (count,), offset).numpy()
        view: np.ndarray = whole.view(dtype).reshape(tuple(shape))
        return view

    def fill(self, name: str, start: int, end: int) -> None:
        """Allocate the bytes [start, end) of a hole. Raises MemoryShortError."""
        _require(name, end - start)
        try:
            os.posix_fallocate(self.descriptor, start, end - start)
        except OSError as error:
            words = f"cannot allocate {size(end - start)} of shared memory for {name}: {error.strerror}"
            raise MemoryShortError(words, code="run/shm-full") from error

    @property
    def held_bytes(self) -> int:
        """The bytes that are allocated: all, but for holes."""
        return os.fstat(self.descriptor).st_blocks * 512 if self.descriptor >= 0 else self.nbytes

    def grow(self, nbytes: int) -> None:
        """Have at least `nbytes`; only `mapped` shows more than there were at first. Raises MemoryShortError."""
        try:
            os.posix_fallocate(self.descriptor, 0, nbytes)
        except OSError as error:
            raise MemoryShortError(
                f"cannot allocate {size(nbytes)} of shared memory: {error.strerror}", code="run/shm-full"
            ) from error

    def mapped(self, nbytes: int, *, writable: bool = False) -> np.ndarray:
        """Return the first `nbytes`, (nbytes,) uint8, in a mapping of their own: the region may have grown."""
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return np.frombuffer(mmap.mmap(self.descriptor, nbytes, prot=access), np.uint8)

    def read_bytes(self) -> bytes:
        """Return a copy of the content, with zeros at its end: a pickle knows where it ends."""
        return self.array("u1", (self.nbytes,)).tobytes()

    def close(self) -> None:
        """Close the descriptor. Views stay valid; no further process can attach."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            os.close(self.descriptor)


def _require(name: str, nbytes: int) -> None:
    """Check that so much memory is free: a memfd has no limit, so the kernel would allocate page after page, then kill.
    Raises MemoryShortError."""
    memory = host.available_memory()
    if nbytes > memory.bytes:
        raise MemoryShortError(
            f"cannot allocate {size(nbytes)} of shared memory for {name}: only {size(memory.bytes)} are free "
            f"({memory.limited_by})",
            code="run/shm-full",
        )


def is_dense_without_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements fill one contiguous piece of memory, in any order of dimensions."""
    expected = 1
    for stride, length in sorted((stride, length) for length, stride in zip(shape, strides, strict=True) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def own_strides(tensor: "Tensor") -> tuple[int, ...]:
    """Return the strides for a copy of `tensor`: its memory format (channels_last too), contiguous if it has gaps."""
    import torch

    if tensor.numel() and is_dense_without_overlap(tensor.shape, tensor.stride()):
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())
