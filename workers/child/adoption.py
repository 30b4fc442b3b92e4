"""A child process adopts the current state of its supervisor: folder, sys.path, environment, torch's settings, and the
shared memory of its task."""

import os
import sys
from collections.abc import Collection

import torch

from hogwild.shared_memory.region import Region
from hogwild.training import torch_settings
from workers.messages import Start, Task


def adopt(
    start: Start, task: Task, descriptors: list[int], *, written: Collection[str] | None = None
) -> dict[str, Region]:
    """Adopt the parent's current folder, sys.path, environment and torch settings, as a process started now would.
    Return the task's regions, mapped; only those `written` can be written, None: all."""
    # The user's folders come first on sys.path, but our modules are all imported by now, so a user's own `workers/` or
    # `hogwild/` shadows nothing.
    sys.path[:] = task.sys_path
    if task.folder:
        os.chdir(task.folder)  # user code may have changed it since this process was started
    ours = {name for name, _ in start.environment}  # variables of the plan are kept
    for name in task.environment.keys() - ours:
        value = task.environment[name]
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    torch_settings.apply(task.torch_settings)
    return {
        name: Region.attach(descriptor, nbytes, writable=written is None or name in written)
        for (name, nbytes), descriptor in zip(task.regions, descriptors, strict=True)
    }


def limit_threads(threads: int) -> None:
    """Let torch compute with so many threads, one operation at a time."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # torch allows that once, and a process may have several tasks
        torch.set_num_interop_threads(1)
