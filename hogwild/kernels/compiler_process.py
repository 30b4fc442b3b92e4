"""Processes that compile the kernels a job will need (`hogwild/job/foreseen_kernels.py`) while torch is imported and
data are read: one for each that the cache lacks, so that usually there is none.

    command ── fresh interpreters: THE COMPILERS ── numba ── compile, cache ── end      claims (`artifact_cache.py`) let
            └─ torch ── fork server ── readers ── … ── workers ◄───────────────────     whoever needs one wait for it

A compiler that fails or is killed costs nothing but time: then the process that needs the kernel compiles it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from hogwild import host
from hogwild.kernels import kernel_cache
from hogwild.kernels.signatures import Kernels
from hogwild.version import PACKAGE_ROOT

NAME = "hogwild-compiler"  # of the processes
CODE = "import sys; sys.path[:0] = [{root!r}]; from hogwild.kernels.compiler_process import main; main(*sys.argv[1:])"


@contextlib.contextmanager
def compiling(kernels: Sequence[Kernels]) -> Iterator[None]:
    """Compile those that are not cached, meanwhile. A machine that refuses a process gets no error here."""
    missing = [one for one in kernels if not kernel_cache.KernelCache.of(one).is_whole()]
    with contextlib.ExitStack() as compilers:
        for one in missing:
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
    kernel_cache.make_ready(Kernels.of(json.loads(plain)))
