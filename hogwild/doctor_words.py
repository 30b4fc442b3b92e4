"""What the environment variables of OpenMP and BLAS libraries do, and what hogwild makes of them."""

from collections.abc import Iterator, Mapping

from hogwild.host import binding_variables
from hogwild.plan import OMP, VARIABLES

PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "NUMBA_NUM", "TORCHELASTIC_RUN_ID")
WORDS: dict[str, str] = {
    OMP: "train.threads: auto takes it, instead of cores / procs",
    "OMP_PROC_BIND": "binds threads to cores",
    "OMP_PLACES": "binds threads to these places",
    "GOMP_CPU_AFFINITY": "binds threads of GCC's OpenMP to these cores",
    "KMP_AFFINITY": "binds threads of Intel's OpenMP to cores",
    "OMP_WAIT_POLICY": "ACTIVE lets idle threads spin, which takes the cores of other workers",
    "GOMP_SPINCOUNT": "how long idle threads spin; a large one takes the cores of other workers",
    "KMP_BLOCKTIME": "how long idle threads of Intel's OpenMP spin; a large one takes the cores of other workers",
    "OMP_DYNAMIC": "lets the runtime use fewer threads than it is told",
    "MKL_DYNAMIC": "lets MKL use fewer threads than it is told",
    "OMP_THREAD_LIMIT": "no process has more threads than that, whatever the plan says",
    "TORCHELASTIC_RUN_ID": f"torchrun started this: {OMP}=1 is its doing, and not taken as yours",
}


def variable_findings(environ: Mapping[str, str]) -> Iterator[str]:
    """A line for every variable that is set and that a numerical library reads."""
    binding = {entry.partition("=")[0] for entry in binding_variables(environ)}
    for name in sorted(environ):
        if not name.startswith(PREFIXES):
            continue
        words = WORDS.get(name, "hogwild leaves it as it is")
        if name in binding:
            words += "; hogwild undoes that, in itself and in its workers (cores of their own: train.pin: true)"
        elif name in VARIABLES and name != OMP:
            words = "in a worker it is the plan's number of threads instead"
        yield f"{name}={environ[name]}: {words}"
