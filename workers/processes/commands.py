"""A command as a fork of a fork server: `python ARGV` in a process that has imported already. The server was started as
a fresh interpreter with the variables that libraries and the interpreter read when they are loaded, so the fork is what
a fresh interpreter with the command's environment is after its imports. Jobs of the service are commands."""

import atexit
import multiprocessing
import os
import random
import runpy
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hogwild import host
from hogwild.planning.cpu_plan import VARIABLES

KEY_BYTES = 32
COMMAND_NAME = "hogwild-command"  # of the process
MODULES = ("hogwild.cli.main", "hogwild.workers.execution", "hogwild.workers.run")  # besides those of workers


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`python ARGV`, with what `subprocess.Popen` is told besides. `descriptors`: number there -> the one here."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    descriptors: Mapping[int, int]
    folder: str = "."
    new_session: bool = False

    def message(self) -> dict[str, Any]:
        """Return the command as JSON has it, with what it takes over from this process."""
        told = {"argv": [*self.argv], "numbers": [*self.descriptors], "new_session": self.new_session}
        environment = {"environment": dict(self.environment)}
        return {"command": {**told, "group": os.getpgrp()}, "surroundings": host.own_surroundings() | environment}


def fixed_surroundings(environment: Mapping[str, str] | None) -> host.FixedSurroundings:
    """Return what a server must have begun with to fork commands with this environment; None: a job's processes."""
    if environment is None:
        return host.FixedSurroundings.here(VARIABLES)
    return host.FixedSurroundings.here((), environment)


def interpreter_flags() -> list[str]:
    """Return the arguments that give an interpreter the flags of this one."""
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]


@dataclass(slots=True)
class _Interpreter:
    """Choices that the interpreter has made at its start."""

    path: list[str] = field(default_factory=list)
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    threads: int = 0  # of torch, by its own choice


_interpreter = _Interpreter()


def note_interpreter(path: Sequence[str]) -> None:
    """Note sys.path and the form of the standard streams in a fresh interpreter that will be a server."""
    _interpreter.path, _interpreter.streams = [*path], host.stream_forms()


def note_threads(threads: int) -> None:
    """Note the threads that torch has chosen, in a server, which then has one."""
    _interpreter.threads = threads


def usual_threads() -> int:
    """Return the threads that torch would have in this process; 0 if it is no fork of a server: it has them."""
    return _interpreter.threads


def become(request: Mapping[str, Any], folder: int, given: Sequence[int]) -> NoReturn:
    """Run the command as a fresh interpreter would, in this folder, with the descriptors `given` and no others."""
    command, surroundings, status = request["command"], request["surroundings"], 1
    try:
        for error_stream in (one for number, one in zip(command["numbers"], given, strict=True) if number == 2):
            os.dup2(error_stream, 2)  # for an exception on the way
        os.fchdir(folder)
        if command["new_session"]:
            os.setsid()
        else:
            os.setpgid(0, command["group"])
        host.place_descriptors(dict(zip(command["numbers"], given, strict=True)))
        host.open_streams(_interpreter.streams, is_unbuffered=bool(surroundings["environment"].get("PYTHONUNBUFFERED")))
        host.name_process(COMMAND_NAME)
        host.show_command([sys.executable, *command["argv"]], surroundings["environment"])
        host.take_over(surroundings)
        _begin_as_if_loaded_here()
        run_python(command["argv"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status & 0xFF)


def run_python(argv: Sequence[str]) -> None:
    """Do what `python ARGV` does after its start: [-P] -c CODE, -m MODULE or a file, with arguments."""
    sys.orig_argv = [sys.executable, *argv]
    is_safe = argv[0] == "-P"
    kind, *rest = argv = argv[1:] if is_safe else argv
    first = "" if kind == "-c" else os.getcwd() if kind == "-m" else str(Path(kind).parent)
    sys.path[:] = [*([] if is_safe else [first]), *_interpreter.path]
    if kind == "-c":
        sys.argv, sys.modules["__main__"] = ["-c", *rest[1:]], types.ModuleType("__main__")
        exec(rest[0], vars(sys.modules["__main__"]))
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*argv]
        runpy.run_path(kind, run_name="__main__")


def _begin_as_if_loaded_here() -> None:
    """Have the random state, the key and the folder of temporary files of a process that has loaded its libraries
    itself. The number of threads is not set: that would start some, and the command forks a server first."""
    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    seed_generators()
    tempfile.tempdir = None


def seed_generators() -> None:
    """Seed the generators that begin differently in each process, in a fork: Python's, and numpy's, where that is
    loaded already. torch's begins the same everywhere."""
    random.seed()
    if (loaded := sys.modules.get("numpy.random")) is not None:
        loaded.seed()
