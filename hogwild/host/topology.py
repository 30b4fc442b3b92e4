"""Topology of the cores: SMT siblings and NUMA nodes; also recovers cores that an OpenMP runtime took away. Imports no
torch; exported by `hogwild.host`, import it from there.

The one thing to know: `import torch` with OMP_PROC_BIND (or a similar variable) set binds the importing thread to the
first place, one core, and everything it starts inherits that. The mask then tells nothing about the machine.

Pages: Documentation/admin-guide/cputopology.rst of the kernel, sched_setaffinity(2), OpenMP 5.2 section 18.3."""

import contextlib
import ctypes
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

# Each of these, unless it is false, makes an OpenMP runtime bind threads: the first two are OpenMP's, GOMP is GCC's
# runtime (in torch's wheels), KMP is Intel's and LLVM's.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
OF_THE_MOMENT = re.compile(r"cpu MHz|bogomips|BogoMIPS|processor|core id|apicid|initial apicid")
RUNTIMES = re.compile(r"/lib(?:gomp|iomp5|omp)\b[^/]*\.so[^/]*$")


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core: those of its logical CPUs that we may use, lowest first (two with SMT), and its NUMA node."""

    cpus: tuple[int, ...]
    node: int


def read_if_known(path: Path) -> str | None:
    """Return the text of a kernel file; None ("unknown") if it is missing, forbidden or vanishes while it is read."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def processor(root: Path = ROOT) -> str:
    """Return what /proc says of the first processor: its name, and what it can compute."""
    first = (read_if_known(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    return "\n".join(line for line in first.splitlines() if not OF_THE_MOMENT.match(line))


def physical_cores(cpus: Collection[int], root: Path = ROOT) -> tuple[Core, ...]:
    """Return the physical cores among the logical `cpus`, node by node. If the kernel does not tell (a sandbox without
    /sys), every logical CPU is its own core, in node 0."""
    nodes: dict[int, int] = {}  # logical CPU -> NUMA node
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in _cpu_list(read_if_known(folder / "cpulist") or ""):
            nodes[cpu] = int(folder.name.removeprefix("node"))
    siblings: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        names = ("core_cpus_list", "thread_siblings_list")  # the second name is the older one
        text = next(filter(None, (read_if_known(folder / name) for name in names)), "")
        siblings.setdefault(min([cpu, *(other for other in _cpu_list(text) if other in cpus)]), []).append(cpu)
    cores = [Core(tuple(group), nodes.get(first, 0)) for first, group in siblings.items()]
    return tuple(sorted(cores, key=lambda core: (core.node, core.cpus)))


def gpus(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> tuple[str, ...]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(one.strip() for one in named.split(",") if one.strip() not in ("", "-1"))
    found = (re.fullmatch(r"nvidia(\d+)", file.name) for file in (root / "dev").glob("nvidia*"))
    return tuple(str(number) for number in sorted(int(one[1]) for one in found if one))


def _cpu_list(text: str) -> list[int]:
    """Return 0, 1, 2, 3, 8 for `0-3,8`. Empty if it is no such list."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return []
    ranges = [part.split("-") for part in text.split(",")]
    return [cpu for first, *last in ranges for cpu in range(int(first), int(last[0] if last else first) + 1)]


# --- cores taken by an OpenMP runtime -----------------------------------------------------------------------


class _AtStart:
    """The affinity mask when a command started; None in a library caller's process, which may already have torch."""

    mask: frozenset[int] | None = None


def remember_affinity() -> None:
    """Remember the affinity mask, in the first lines of a command: nothing can have imported torch yet."""
    _AtStart.mask = frozenset(os.sched_getaffinity(0))


def binding_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that make an OpenMP runtime bind threads to cores, as NAME=value."""
    set_ones = {name: environ.get(name, "").strip() for name in BINDING}
    if set_ones["OMP_PROC_BIND"].lower() == "false":  # overrides libgomp's other two
        set_ones = {"KMP_AFFINITY": set_ones["KMP_AFFINITY"]}
    harmless = ("", "disabled", "none")
    return [f"{name}={value}" for name, value in set_ones.items() if value.lower() not in harmless]


def restore_affinity(environ: Mapping[str, str]) -> str:
    """Give the calling thread, and what it starts later, the cores back that an OpenMP runtime removed from its mask.
    Return a description of the change, or '' if there was none. A mask set on purpose (taskset, a scheduler) stays:
    without a binding variable nothing is done, and the restored mask is the one from before the runtime was loaded."""
    variables = binding_variables(environ)
    if not variables:
        return ""
    now, whole = os.sched_getaffinity(0), _AtStart.mask or _places()
    if not now < whole:
        return ""
    try:
        os.sched_setaffinity(0, whole)
    except OSError:  # our cpuset lost them all meanwhile: keep what the runtime left
        return ""
    had = f"{len(now)} core{'' if len(now) == 1 else 's'}"
    return f"{', '.join(variables)} had bound this process to {had} of {len(whole)}; undone, here and in the workers"


def _places() -> frozenset[int]:
    """Return the cores among the places of the loaded OpenMP runtimes. A runtime computes its places once, from the
    mask at load time and before it narrows it. So they are an exact copy of that mask, including taskset's restriction;
    the parent's mask and the control group's cpuset are not. Empty without a runtime that binds."""
    found: set[int] = set()
    lines = (read_if_known(Path("/proc/self/maps")) or "").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") > 4 and "/" in line}
    for path in sorted(path for path in paths if RUNTIMES.search(path)):
        with contextlib.suppress(OSError, AttributeError):  # not loadable; older than OpenMP 4.5
            runtime = ctypes.CDLL(path)
            for place in range(runtime.omp_get_num_places()):
                numbers = (ctypes.c_int * runtime.omp_get_place_num_procs(place))()
                runtime.omp_get_place_proc_ids(place, numbers)
                found.update(numbers)
    return frozenset(found)
