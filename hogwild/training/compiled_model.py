"""`model.compile`: what a worker runs in the model's place, over the model's own parameters and buffers.

    none       the model itself
    script     torch.jit.script of it: TorchScript's interpreter, without Python
    inductor   torch.compile of it: C++ kernels, made once and kept (`ModelCache`)

Both hold the very tensors of the model, so what rebinds their memory (`param.data = …`, in delta) reaches them too."""

import contextlib
import hashlib
import inspect
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hogwild.errors import ModelError
from hogwild.parameters.structure_file import not_calling_script_deprecated
from hogwild.parameters.worker_model import check_same_memory
from hogwild.storage.artifact_cache import Kept, cache_root

WHERE = "TORCHINDUCTOR_CACHE_DIR"
MOST_GRAPHS = 256  # of one function, a few for each thaw; beyond torch's 8 the model itself would run
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# ---- script


def scripted(model: nn.Module) -> nn.Module:
    """`model` as TorchScript, over the same tensors. Raises ModelError with TorchScript's own words."""
    if path := next((path for path, module in model.named_modules() if not _has_source(module)), None):
        raise ModelError(
            f"module {path or '(the model itself)'} ({type(model.get_submodule(path)).__name__}) was not defined in a "
            "file: TorchScript reads the source of forward, and workers are other processes. Put the class into a "
            "module, or take model.compile: script out",
            code="model/not-scriptable",
        )
    try:
        with not_calling_script_deprecated():
            script: nn.Module = torch.jit.script(model)
    except Exception as error:  # it raises whatever its parser, its compiler or the module raises
        raise ModelError(
            f"TorchScript cannot compile {type(model).__name__} (model.compile: script): {str(error).strip()}",
            code="model/not-scriptable",
        ) from error
    check_same_memory(script, model)
    return script


def _has_source(module: nn.Module) -> bool:
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is None or os.path.exists(code.co_filename)


# ---- inductor


def compiled(model: nn.Module) -> nn.Module:
    """`model` under torch.compile, over the same tensors; it is compiled at its first calls."""
    with not_calling_script_deprecated():  # its import
        return torch.compile(model)  # type: ignore[return-value]


def check_compiler() -> None:
    """Raises ModelError where there is no C++ compiler, or nothing to compile against."""
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise ModelError(
            f"model.compile: inductor needs a C++ compiler, and there is no {name} on the PATH; install g++ (apt-get "
            "install g++) or name another in CXX, or take model.compile out",
            code="model/no-compiler",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise ModelError(
            f"model.compile: inductor needs Python's headers, and there is no {header}; install them (apt-get install "
            "python3-dev), or take model.compile out",
            code="model/no-compiler",
        )


def model_key(model: nn.Module, loss: Any, sizes: Sequence[Any]) -> str:
    """Of what decides which code is made: the model and its shapes, the source of its classes, `sizes` (of batches and
    of what is in them, and whatever else the caller knows), torch, Python and the CPU. The numbers in its parameters
    are not in it."""
    digest = hashlib.blake2b(digest_size=8)
    tensors = [(name, one.dtype, tuple(one.shape)) for name, one in (*model.named_parameters(), *model.named_buffers())]
    trained = [param.requires_grad for param in model.parameters()]
    parts = (_ADDRESS.sub("", str(model)), tensors, trained, sizes, torch.__version__, sys.version, _machine())
    digest.update(repr(parts).encode())
    for file in sorted({_file_of(type(part)) for part in (*model.modules(), loss)} - {""}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def _machine() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {os.environ.get('CXX', '')}"


def _file_of(kind: type) -> str:
    if kind.__module__.partition(".")[0] == "torch":
        return ""
    try:
        file = inspect.getsourcefile(kind) or ""
    except TypeError:  # of __main__, where that is no file
        return ""
    return file if os.path.exists(file) else ""


@dataclass(frozen=True, slots=True)
class ModelCache(Kept):
    """What inductor made of one model: its C++, the libraries made of that, and its own index of them."""

    @classmethod
    def of(cls, key: str, scratch: Path | None = None) -> "ModelCache":
        """For as many threads as this process has now: their number is compiled in."""
        return cls(cache_root() / f"inductor-{key}-{torch.get_num_threads()}", scratch)

    def load(self, run: Callable[[], object]) -> str:
        """`run` calls the model, whose code comes from a copy of the cache: inductor puts what it does not find where
        it looked. Only of a whole one. Says what had to be compiled nevertheless."""
        problem = ""
        with self._inductor(), contextlib.ExitStack() as copy:
            try:
                os.environ[WHERE] = str(copy.enter_context(self.copied()))
            except OSError as error:
                problem = f"compiled (what is kept cannot be copied: {error})"
            run()
            missed = _misses()
        self.touch()
        return problem or (f"from the cache, but for {missed} graphs, compiled" if missed else "from the cache")

    def fill(self, run: Callable[[], object]) -> str:
        """`run` calls the model, which is compiled and kept. Says why where nothing could be kept."""

        def keep_in(folder: Path) -> None:
            os.environ[WHERE] = str(folder)

        with self._inductor():
            return self.filled(keep_in, run)

    @contextlib.contextmanager
    def _inductor(self) -> Iterator[None]:
        """Inductor compiles in this process, and says afterwards what it found; what is compiled later, of sizes that
        nobody expected, goes where torch keeps such things, not into a folder that is whole."""
        before = os.environ.get(WHERE)
        with not_calling_script_deprecated():
            import torch._dynamo.config as tracing
            import torch._inductor.config as settings
            from torch._dynamo.utils import counters

            counters["inductor"].clear()
            try:
                # No pool of processes that nobody supervises; and all that is asked for is compiled.
                with settings.patch(compile_threads=1), tracing.patch(recompile_limit=MOST_GRAPHS):
                    yield
            finally:
                os.environ.pop(WHERE, None) if before is None else os.environ.update({WHERE: before})


def _misses() -> int:
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_miss"])


def refusing(run: Callable[[], object]) -> Callable[[], None]:
    """`run`, whose compiling may fail. Raises ModelError with the compiler's own words."""

    def refuse() -> None:
        from torch._dynamo.exc import TorchDynamoException

        try:
            run()
        except TorchDynamoException as error:
            raise ModelError(
                f"torch.compile cannot compile the model (model.compile: inductor): {str(error).strip()}",
                code="model/not-compilable",
            ) from error

    return refuse


def make(how: str, model: nn.Module) -> nn.Module:
    """What runs in the model's place."""
    if how == "script":
        return scripted(model)
    return compiled(model) if how == "inductor" else model
