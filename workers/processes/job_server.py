"""The fork server of a service: a job is a fork of it.

It has imported what a job's process imports, with the variables of the first job's environment. A job with other ones,
as far as something reads them at an import, gets a new server, for which it waits as long as for an import of its own.
The server dies with the service, or when somebody kills it. Jobs notice neither; the next one gets a new server."""

import os
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hogwild import host
from hogwild.version import PACKAGE
from hogwild.workers.processes.fork_server import READY_S, CannotServe, ForkServer, PythonCommand, fixed_surroundings

Stamps = frozenset[tuple[str, int, int]]


class CommandServer(ForkServer):
    """A fork server for commands, for which nobody needs to wait."""

    @property
    def is_starting(self) -> bool:
        """Return whether it still imports. Does not wait."""
        is_silent = not host.wait_readable([*self.descriptors(), self._pidfd], 0) if self._channel else False
        return is_silent and not self._is_ready and not host.is_stopped(self._pid)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Return whether it began with what commands with this environment need."""
        return self._channel is not None and self._surroundings == fixed_surroundings(environment)

    def descriptors(self) -> list[int]:
        """Return what becomes readable when it has started."""
        return [self._channel.fileno()] if self._channel is not None and not self._is_ready else []


class JobServer:
    """The service's side, in one thread, whose end is the server's. `why`: the reason why a job is started as a fresh
    interpreter. `kernels`: those that all its jobs have, as JSON (`entry.load_kernels`)."""

    def __init__(self, kernels: str = "") -> None:
        self.why = ""
        self._kernels = kernels
        self._server = CommandServer()
        self._until, self._is_awaited = 0.0, False
        self._code = _stamps(_our_code())
        self._libraries = _stamps(_library_folders())
        self._strays: list[int] = []

    def is_starting(self, environment: Mapping[str, str]) -> bool:
        """Return whether a job with this environment must wait until the server has imported; before each `fork`."""
        self._strays = [pid for pid in self._strays if not _is_gone(pid)]
        self.why = self._why_not(environment)
        if self.why:
            return False
        if self._server.is_starting:
            if not self._server.fits(environment):
                self.why = "the fork server starts with other variables"
            elif time.monotonic() > self._until:
                self.why = "the fork server does not answer"
                self._server.close()
            self._is_awaited = not self.why
            return self._is_awaited
        if self._server.descriptors() and host.wait_readable([self._server._pidfd], 0):
            self._server.close()
            self.why = "the fork server ended while it imported"
            return False
        libraries = _stamps(_library_folders())
        if self._libraries != libraries:
            self._server.close()
            self._libraries = libraries
        before = self._server.pid
        self._server.start(environment, kernels=self._kernels, for_commands=True)
        if self._server.pid != before:
            self._until = time.monotonic() + READY_S
        self._is_awaited = self._server.is_starting
        return self._is_awaited

    def descriptors(self) -> list[int]:
        """Return what becomes readable when no job must wait any more: once, the job may have been cancelled."""
        found = self._server.descriptors() if self._is_awaited else []
        self._is_awaited = self._server.is_starting
        return found

    def fork(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: str, standard: Sequence[int]
    ) -> tuple[int, Callable[[], int | None]] | None:
        """Fork `python ARGV` as the leader of a session; return its number, and what returns the exit status of the
        dead process. None if the server cannot (`why`). Raises OSError if the machine refuses a process."""
        if self.why:
            return None
        before = {os.getpid(), *host.children(os.getpid())}
        try:
            command = PythonCommand(argv, environment, dict(enumerate(standard)), folder, new_session=True)
            made = self._server.launch(command)
        except CannotServe as error:
            self.why = str(error)
            return None
        finally:  # orphans of other jobs, if one has ended while this process adopted
            self._strays += [one for one in host.children(os.getpid()) if one not in before]
        self._strays = [one for one in self._strays if one != made.pid]
        return made.pid, lambda: made.exitcode

    def close(self) -> None:
        self._server.close()

    def _why_not(self, environment: Mapping[str, str]) -> str:
        if not host.can_show_command():
            return "this kernel gives a fork no command line of its own"
        if self._code != _stamps(_our_code()):
            return "the code of hogwild has changed since the service began: restart it"
        if host.binding_variables(environment):
            return "OpenMP binds threads to cores when it is loaded"
        if not all(map(os.path.isabs, filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))):
            return "PYTHONPATH has a folder that depends on the current one"
        return ""


def _is_gone(child: int) -> bool:
    """Return whether this child is dead, and reap it."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True


def _our_code() -> Iterator[Path]:
    for folder, _, names in os.walk(PACKAGE, followlinks=True):  # in a checkout, hogwild/workers is a link
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _library_folders() -> Iterator[Path]:
    """Yield the folders of installed packages: they change when one is installed or removed."""
    return (Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))


def _stamps(files: Iterator[Path]) -> Stamps:
    return frozenset((str(file), found.st_mtime_ns, found.st_ino) for file in files for found in [file.stat()])
