"""A child process adopts the current state of its supervisor: folder, sys.path, environment, torch's settings."""

import os
import sys
from collections.abc import Mapping

from hogwild.training import torch_settings
from workers.messages import Start, Task


def adopt(start: Start, task: Task) -> None:
    """Adopt the parent's current folder, sys.path, environment and torch settings, as a process started now would."""
    # The user's folders come first on sys.path, but our modules are all imported by now, so a user's own `workers/` or
    # `hogwild/` shadows nothing.
    sys.path[:] = task.sys_path
    if task.folder:
        os.chdir(task.folder)  # user code may have changed it since this process was started
    _inherit(task.environment, {name for name, _ in start.environment})
    torch_settings.apply(task.torch_settings)


def _inherit(changes: Mapping[str, str | None], ours: set[str]) -> None:
    """Apply the environment changes that user code in the supervisor made since this process started; `ours` (variables
    of the plan) are kept."""
    for name in changes.keys() - ours:
        value = changes[name]
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
