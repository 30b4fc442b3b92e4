"""Memory of a job's processes, beside its shared memory: torch is imported once, and each further process is a fork of
that, or else a fresh interpreter with an import of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hogwild import host
from hogwild.formatting import counted, size

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes. `import_private`, `import_shared`: of a process that has imported torch and what workers import, the
    latter being pages of files, which all processes share. `fork_private`: of a fork that waits for its task. Defaults:
    measured with torch 2.13 for CPUs; `hogwild doctor` and `check --deep` measure them here."""

    import_private: int = 150 * MIB
    import_shared: int = 76 * MIB
    fork_private: int = 10 * MIB

    @classmethod
    def measured(cls, trial: Mapping[str, Any]) -> "ProcessMemory":
        """`trial`: the answer of `workers/processes/fork_trial.py`; without figures in it these are the defaults."""
        names = ("import_private", "import_shared", "fork_private")
        return cls(*(int(trial[name]) for name in names)) if all(name in trial for name in names) else cls()

    def of(self, procs: int, *, is_forked: bool) -> int:
        """Return the bytes of the fork server with so many workers, or of these as fresh interpreters."""
        once = self.import_shared + self.import_private * is_forked if procs else 0
        return once + self.further(procs, is_forked=is_forked)

    def further(self, procs: int, *, is_forked: bool) -> int:
        """Return the bytes of so many workers beside what is there already: the fork server, and shared pages."""
        return procs * (self.fork_private if is_forked else self.import_private)

    def words(self, procs: int, *, is_forked: bool) -> str:
        """Return `246 MiB: the fork server 226 MiB, each of 2 workers 10 MiB`."""
        if not procs:
            return "none: it trains in the command's own process"
        workers = f"each of {counted(procs, 'worker')}"
        if is_forked:
            once = size(self.import_shared + self.import_private)
            parts = f"the fork server {once}, {workers} {size(self.fork_private)}"
        else:
            parts = f"shared {size(self.import_shared)}, {workers}, a fresh interpreter, {size(self.import_private)}"
        return f"{size(self.of(procs, is_forked=is_forked))}: {parts}"


def may_fork(device: str) -> bool:
    """Return whether processes that compute on `device` may be forks: until that was tried on one, not with a GPU, and
    not if OpenMP binds threads to cores, which it decides when it is loaded."""
    return (device == "cpu" or not host.has_gpu()) and not host.binding_variables(os.environ)
