"""`model.compile`: the module that a worker runs instead of the model, over the model's own parameters and buffers.

    none       the model itself
    script     torch.jit.script of it: TorchScript's interpreter, without Python
    inductor   torch.compile of it: C++ kernels, compiled once and cached (`ModelCache`)

Both use the model's own tensor objects, so rebinding their memory (`param.data = …`, in delta) affects them too."""

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
MOST_GRAPHS = 256  # per function, a few for each thaw; beyond torch's limit of 8 the uncompiled model would run
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# ---- script


def scripted(model: nn.Module) -> nn.Module:
    """Return `model` as TorchScript, over the same tensors. Raises ModelError with TorchScript's own message."""
    if path := next((path for path, module in model.named_modules() if not _has_source(module)), None):
        raise ModelError(
            f"module {path or '(the model itself)'} ({type(model.get_submodule(path)).__name__}) was not defined in a "
            "file, but TorchScript reads the source of forward in the workers. Move the class to a module, or remove "
            "model.compile: script",
            code="model/not-scriptable",
        )
    try:
        with not_calling_script_deprecated():
            script: nn.Module = torch.jit.script(model)
    except Exception as error:  # it raises whatever its parser, its compiler or the module raises
        words = f"TorchScript cannot compile {type(model).__name__} (model.compile: script): {str(error).strip()}"
        raise ModelError(words, code="model/not-scriptable") from error
    check_same_memory(script, model)
    return script


def _has_source(module: nn.Module) -> bool:
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is None or os.path.exists(code.co_filename)


# ---- inductor


def compiled(model: nn.Module) -> nn.Module:
    """Return `model` under torch.compile, over the same tensors; it is compiled at its first calls."""
    with not_calling_script_deprecated():  # for its import
        return torch.compile(model)  # type: ignore[return-value]


def check_compiler() -> None:
    """Check the compiler. Raises ModelError if there is no C++ compiler, or no Python headers."""
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise ModelError(
            f"model.compile: inductor needs a C++ compiler, and there is no {name} on the PATH; install g++ (apt-get "
            "install g++), set CXX to another, or remove model.compile",
            code="model/no-compiler",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise ModelError(
            f"model.compile: inductor needs Python's headers, and there is no {header}; install them (apt-get install "
            "python3-dev), or remove model.compile",
            code="model/no-compiler",
        )


def model_key(model: nn.Module, loss: Any, sizes: Sequence[Any]) -> str:
    """Return a hash of everything that determines the compiled code: the model and its shapes, the source of its
    classes, `sizes` (of batches and their content, and whatever else the caller knows), torch, Python and the CPU.
    Parameter values are not part of it."""
    digest = hashlib.blake2b(digest_size=8)
    tensors = [(name, one.dtype, tuple(one.shape)) for name, one in (*model.named_parameters(), *model.named_buffers())]
    trained = [param.requires_grad for param in model.parameters()]
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {os.environ.get('CXX', '')}"
    parts = (_ADDRESS.sub("", str(model)), tensors, trained, sizes, torch.__version__, sys.version, machine)
    digest.update(repr(parts).encode())
    for file in sorted({_file_of(type(part)) for part in (*model.modules(), loss)} - {""}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def _file_of(kind: type) -> str:
    if kind.__module__.partition(".")[0] == "torch":
        return ""
    try:
        file = inspect.getsourcefile(kind) or ""
    except TypeError:  # of __main__, if that is no file
        return ""
    return file if os.path.exists(file) else ""


@dataclass(frozen=True, slots=True)
class ModelCache(Kept):
    """The cached inductor output of one model: its C++, the libraries built from it, and inductor's index of them."""

    @classmethod
    def of(cls, key: str, scratch: Path | None = None) -> "ModelCache":
        """Return the cache for the present number of threads, which is compiled in."""
        return cls(cache_root() / f"inductor-{key}-{torch.get_num_threads()}", scratch)

    def load(self, run: Callable[[], object]) -> str:
        """Call the model by `run` with code from a copy of the cache (inductor writes missing code into the folder it
        reads). Only for a complete cache. Returns a note with the number of graphs compiled nevertheless."""
        problem = ""
        with self._inductor(), contextlib.ExitStack() as copy:
            try:
                os.environ[WHERE] = str(copy.enter_context(self.copied()))
            except OSError as error:
                problem = f"compiled (what is kept cannot be copied: {error})"
            run()
            from torch._dynamo.utils import counters  # `_inductor` has imported it

            missed = int(counters["inductor"]["fxgraph_cache_miss"])
        self.touch()
        return problem or (f"from the cache, but for {missed} graphs, compiled" if missed else "from the cache")

    def fill(self, run: Callable[[], object]) -> str:
        """Call the model by `run`, which compiles it, and cache the code. Returns why, if nothing was cached."""
        with self._inductor():
            return self.filled(lambda folder: os.environ.update({WHERE: str(folder)}), run)

    @contextlib.contextmanager
    def _inductor(self) -> Iterator[None]:
        """Let inductor compile in this process, with fresh counters. Later compilations, of unexpected sizes, go to
        torch's default folder, not into a complete cache."""
        before = os.environ.get(WHERE)
        with not_calling_script_deprecated():
            import torch._dynamo.config as tracing
            import torch._inductor.config as settings
            from torch._dynamo.utils import counters

            counters["inductor"].clear()
            try:
                # No unsupervised pool of compiler processes; and a limit high enough for all graphs.
                with settings.patch(compile_threads=1), tracing.patch(recompile_limit=MOST_GRAPHS):
                    yield
            finally:
                os.environ.pop(WHERE, None) if before is None else os.environ.update({WHERE: before})


def refusing(run: Callable[[], object]) -> Callable[[], None]:
    """Return `run` with errors of compilation turned into ModelError with the compiler's own message."""

    def refuse() -> None:
        from torch._dynamo.exc import TorchDynamoException

        try:
            run()
        except TorchDynamoException as error:
            words = f"torch.compile cannot compile the model (model.compile: inductor): {str(error).strip()}"
            raise ModelError(words, code="model/not-compilable") from error

    return refuse


def make(how: str, model: nn.Module) -> nn.Module:
    """Return the module to run instead of the model."""
    if how == "script":
        return scripted(model)
    return compiled(model) if how == "inductor" else model
