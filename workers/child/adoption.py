"""A child process takes over what its supervisor is by now: folders, environment, torch's settings, log files."""

import os
import sys
from collections.abc import Mapping

from hogwild.training import torch_settings
from workers.messages import Start, Task


def adopt(start: Start, task: Task) -> None:
    """Where the parent is by now, and what user code in it has changed: what a process started now would inherit, and
    how torch computes."""
    # The user's own folders come behind ours in time, not in order: everything of ours is imported by now, so a user's
    # own `workers/` or `hogwild/` shadows nothing.
    sys.path[:] = task.sys_path
    if task.folder:
        os.chdir(task.folder)  # user code may have changed it since this process was started
    _inherit(task.environment, {name for name, _ in start.environment})
    torch_settings.apply(task.torch_settings)


def _inherit(changes: Mapping[str, str | None], ours: set[str]) -> None:
    """What user code in the supervisor has done to the environment since this process was started; `ours` are the
    plan's."""
    for name in changes.keys() - ours:
        value = changes[name]
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
