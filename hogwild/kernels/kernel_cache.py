"""A cache of compiled kernels that a crash cannot corrupt.

    CACHE/kernels-HASH/NAME/    numba's files of the kernels
                 manifest.json  the checksum of each; if it exists, the folder is complete

HASH covers all kernel sources, the versions of Python and numba, the processor and numba's variables: everything that
changes the compiled code changes the folder. (`artifact_cache.py` explains when a folder is complete.)

    server    ──► load, before it forks        worker, reader, parent ──► there already, or load, or compile
    compiler  ──► compile what is missing; others wait for what it claims (`artifact_cache.py`)

`compiling` starts the compilers, fresh interpreters, while torch is imported and data are read: one for each set of
kernels that a job will need (`hogwild/job/foreseen_kernels.py`) and the cache lacks, so usually none. One that fails or
is killed costs nothing but time: then the process that needs the kernel compiles it.

Imports numba only to load and to compile: the start of a job looks here whether it has to compile at all."""

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from hogwild import host
from hogwild.kernels.signatures import Kernels
from hogwild.storage.artifact_cache import Kept, cache_root, made_ready
from hogwild.version import PACKAGE_ROOT

LOOK_S = 0.02
NOT_OF_CODE = ("_THREADS", "_DIR")  # ends of those of numba's variables that change no code
CONFIGURATION = ".numba_config.yaml"  # in the current folder, where numba looks for it


@dataclass(frozen=True, slots=True)
class KernelCache(Kept):
    """The compiled kernels of one update or metric in `folder`."""

    @classmethod
    def of(cls, kernels: Kernels | str) -> "KernelCache":
        """Return the cache for these kernels of ours; for a name, that for the kernels created in this process so
        far."""
        name, others = (kernels, _sources_elsewhere()) if isinstance(kernels, str) else (kernels.name, set())
        key = hashlib.blake2b(f"{fingerprint(others)}|{name}".encode(), digest_size=8).hexdigest()
        return cls(cache_root() / f"kernels-{key}")

    def load(self, run: Callable[[], object]) -> None:
        """Call `run`, which calls the kernels; their code comes from the cache. Only for a complete cache."""
        _compiling().keep_in(self.folder)
        run()
        self.touch()

    def fill(self, run: Callable[[], object]) -> str:
        """Call `run`, which calls the kernels; they are compiled and stored. Return the reason if nothing could be
        stored; they are compiled all the same."""
        return self.filled(_compiling().keep_in, run)


def make_ready(kernels: Kernels) -> str:
    """Make these kernels callable in this process, which may wait for another one that compiles them. Return a log
    message."""
    if _compiling().is_ready(kernels):
        return "there already"
    pause = partial(time.sleep, LOOK_S)
    return made_ready(KernelCache.of(kernels), lambda: _compiling().compile_all(kernels), pause)


def load(kernels: Kernels) -> bool:
    """Load these kernels if the cache has all of them, and compile nothing; return whether they can be called."""
    if not _compiling().is_ready(kernels) and (cache := KernelCache.of(kernels)).is_whole():
        cache.load(lambda: _compiling().compile_all(kernels))
    return bool(_compiling().is_ready(kernels))


def fingerprint(others: set[Path] | None = None) -> str:
    """Return a hash of all that decides the compiled code, with the sources' times, which numba itself checks.
    `others`: sources beside ours."""
    digest = hashlib.blake2b(digest_size=20)
    for source in sorted({*Path(__file__).parent.rglob("*.py")} | (others or set())):
        digest.update(f"{source}|{source.stat().st_mtime_ns}|".encode() + source.read_bytes())
    variables = [f"{name}={value}" for name, value in os.environ.items() if _is_of_code(name)]
    parts = (sys.version, *versions(), platform.machine(), host.processor(), *sorted(variables))
    digest.update("|".join(parts).encode())
    if (configuration := Path(CONFIGURATION)).exists():
        digest.update(configuration.read_bytes())
    return digest.hexdigest()


def versions() -> list[str]:
    """Return the versions of numba and llvmlite, without an import, which takes half a second."""
    found = []
    for name in ("numba", "llvmlite"):
        spec = importlib.util.find_spec(name)
        file = Path(spec.origin).with_name("_version.py") if spec is not None and spec.origin else Path("none")
        found.append(file.read_text() if file.exists() else f"{spec}")
    return found


def _is_of_code(variable: str) -> bool:
    return variable.startswith("NUMBA_") and not variable.endswith(NOT_OF_CODE)


def _sources_elsewhere() -> set[Path]:
    return {Path(made.py_func.__code__.co_filename) for made in _compiling().KERNELS}


def _compiling() -> ModuleType:
    from hogwild.kernels import compiling  # numba: half a second

    return compiling


NAME = "hogwild-compiler"  # of the processes
CODE = "import sys; sys.path[:0] = [{root!r}]; from hogwild.kernels.kernel_cache import main; main(*sys.argv[1:])"


def uncached(kernels: Sequence[Kernels]) -> list[Kernels]:
    """Return the kernels that have to be compiled."""
    return [one for one in kernels if not KernelCache.of(one).is_whole()]


@contextlib.contextmanager
def compiling(kernels: Sequence[Kernels]) -> Iterator[None]:
    """Compile them meanwhile. A machine that refuses a process gets no error here."""
    with contextlib.ExitStack() as compilers:
        for one in kernels:
            with contextlib.suppress(OSError):
                compilers.callback(_end, _started(one))
        yield


def _started(kernels: Kernels) -> "subprocess.Popen[bytes]":
    code = CODE.format(root=PACKAGE_ROOT)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(os.getpid()), json.dumps(kernels.plain())],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(compiler: "subprocess.Popen[bytes]") -> None:
    compiler.kill()
    compiler.wait()


def main(parent: str, plain: str) -> None:
    """Compile these kernels. The entry of a fresh interpreter."""
    host.die_with_parent(int(parent))
    host.name_process(NAME)
    make_ready(Kernels.of(json.loads(plain)))
