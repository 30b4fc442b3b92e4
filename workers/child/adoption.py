"""A child process adopts what it has not inherited from its supervisor: sys.path, torch's settings, and the shared
memory of its task."""

import sys
from collections.abc import Collection

import torch

from hogwild.shared_memory.region import Region
from hogwild.training import torch_settings
from hogwild.workers.messages import Task


def adopt(task: Task, descriptors: list[int], *, written: Collection[str] | None = None) -> dict[str, Region]:
    """Adopt the parent's sys.path and torch settings. Return the task's regions, mapped; only those `written` can be
    written, None: all."""
    # The user's folders come first on sys.path, but our modules are all imported by now, so a user's own `workers/` or
    # `hogwild/` shadows nothing.
    sys.path[:] = task.sys_path
    torch_settings.apply(task.torch_settings)
    return {
        name: Region.attach(descriptor, nbytes, writable=written is None or name in written)
        for (name, nbytes), descriptor in zip(task.regions, descriptors, strict=True)
    }


def limit_threads(threads: int) -> None:
    """Let torch compute with so many threads, one operation at a time."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # torch allows that once
        torch.set_num_interop_threads(1)
