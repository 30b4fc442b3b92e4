"""The operating system: processes, signals, control groups, /proc, the terminal. The only Linux-specific code. Other
packages write `from hogwild import host` and `host.usable_cores()`. A module is imported when a name of it is first
used: a command starts fast."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.host.core_leases import *  # noqa: F403
    from hogwild.host.limits import *  # noqa: F403
    from hogwild.host.processes import *  # noqa: F403
    from hogwild.host.signals import *  # noqa: F403
    from hogwild.host.surroundings import *  # noqa: F403
    from hogwild.host.topology import *  # noqa: F403

from hogwild.errors import UsageError

_MODULES = ("signals", "topology", "processes", "surroundings", "limits", "core_leases")  # the light ones first


def require_linux(system: str = sys.platform) -> None:
    """Raise UsageError on any other system."""
    if system != "linux":
        raise UsageError(
            f"hogwild runs on Linux only (it needs pidfd and memfd); this is {system}. "
            f"Use a Linux machine or container.",
            code="usage/not-linux",
        )


def __getattr__(name: str) -> Any:
    for module in () if name.startswith("_") else _MODULES:
        found = vars(importlib.import_module(f"hogwild.host.{module}"))
        if getattr(found.get(name), "__module__", "") == f"hogwild.host.{module}" or (name.isupper() and name in found):
            globals()[name] = found[name]
            return found[name]
    raise AttributeError(f"module 'hogwild.host' has no attribute {name!r}")
