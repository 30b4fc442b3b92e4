"""`hogwild doctor`: a report about this machine, one finding per line. torch is imported in a child process, so that a
torch that crashes is a finding, too."""

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from hogwild import host
from hogwild.errors import UsageError
from hogwild.formatting import counted, size
from hogwild.host import binding_variables
from hogwild.host.processes import python_child
from hogwild.planning.cpu_plan import (
    FILES,
    FILES_ON_THEIR_WAY,
    FILES_PER_WORKER,
    OMP,
    THREADS,
    VARIABLES,
    ProcessMemory,
    plan_here,
)
from hogwild.version import PACKAGE, __version__

PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "NUMBA_NUM", "TORCHELASTIC_RUN_ID")
WORDS: dict[str, str] = {
    OMP: "train.threads: auto uses it instead of cores / procs",
    "OMP_PROC_BIND": "binds threads to cores",
    "OMP_PLACES": "binds threads to these places",
    "GOMP_CPU_AFFINITY": "binds threads of GCC's OpenMP to these cores",
    "KMP_AFFINITY": "binds threads of Intel's OpenMP to cores",
    "OMP_WAIT_POLICY": "ACTIVE lets idle threads spin, which slows other workers",
    "GOMP_SPINCOUNT": "how long idle threads spin; a large value slows other workers",
    "KMP_BLOCKTIME": "how long idle threads of Intel's OpenMP spin; a large value slows other workers",
    "OMP_DYNAMIC": "lets the runtime use fewer threads than requested",
    "MKL_DYNAMIC": "lets MKL use fewer threads than requested",
    "OMP_THREAD_LIMIT": "limits the threads of each process, even below the plan",
    "TORCHELASTIC_RUN_ID": f"started by torchrun, which sets {OMP}=1; hogwild ignores that value",
}


def variable_findings(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for every variable in `environ` that numerical libraries read."""
    binding = {entry.partition("=")[0] for entry in binding_variables(environ)}
    for name in sorted(environ):
        if not name.startswith(PREFIXES):
            continue
        words = WORDS.get(name, "hogwild does not change it")
        if name in binding:
            words += "; hogwild undoes that in all its processes (to bind workers to cores: train.pin: true)"
        elif name in VARIABLES and name != OMP:
            words = "workers use the plan's number of threads instead"
        yield f"{name}={environ[name]}: {words}"


TORCH_SERIES = "2.13."  # as pyproject.toml pins it
# The other core packages; those that --help and check need are installed if this code runs.
PACKAGES = ("numpy", "psutil", "cloudpickle", "safetensors", "threadpoolctl")
# The extras of pyproject.toml that a job may need: what for, and the packages with their least versions.
EXTRAS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "csv": ("tables and parquet files", {"pyarrow": "16"}),
    "images": ("folders of images", {"pillow": "10"}),
    "kafka": ("topics of Kafka", {"confluent-kafka": "2.6"}),
    "onnx": ("export --format onnx", {"onnx": "1.19", "onnxscript": "0.5"}),
    "rl": ("environments of gymnasium", {"gymnasium": "1.0"}),
    "search": ("hogwild search", {"optuna": "5"}),
    "sklearn": ("hogwild.estimator", {"scikit-learn": "1.6"}),
    "service": ("hogwild serve", {"fastapi": "0.135", "uvicorn": "0.30"}),
    "sparse": ("compiled updates; ratings, triples", {"numba": "0.61", "pyarrow": "16"}),
    "tensorboard": ("log.tensorboard", {"tensorboard": "2.17"}),
}
DATA_FOLDERS = ("mnist", "fashion_mnist")  # subfolders of the data folder that hogwild.data uses
MEMORY_FOR_A_WORKER = 400 * 2**20  # bytes: torch, a small model and a batch
PROBE_BYTES = 1 << 20
CHILD_S = 120.0  # importing torch takes seconds, from a cold disk a minute

_CHILD = """
import json, torch, numpy
numpy.ones((2, 2)) @ numpy.ones((2, 2))
from hogwild.devices.discovery import visible_gpus
from hogwild.host.thread_pools import pools
answer = {"torch": torch.__version__, "gpus": visible_gpus(), "pools": pools(), "threads": torch.get_num_threads(),
          "cpu": torch.backends.cpu.get_cpu_capability(), "mkldnn": torch.backends.mkldnn.is_available()}
print(json.dumps(answer))
"""
_FORK_TRIAL = "from hogwild.workers.processes.fork_trial import main; main()"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. `status`: ok; note (worth knowing); problem (to be fixed). Some problems prevent all training."""

    topic: str
    status: Literal["ok", "note", "problem"]
    text: str
    stops_training: bool = False


def answer(data_dir: Path | None, *, as_json: bool) -> tuple[int, list[str]]:
    """Return the exit status and the lines of `hogwild doctor`. The status is 1 if a problem prevents training."""
    findings = examine(data_dir)
    stops = any(finding.stops_training for finding in findings)
    if as_json:
        return int(stops), [json.dumps({"ok": not stops, "findings": [asdict(finding) for finding in findings]})]
    return int(stops), list(finding_lines(findings))


def examine(data_dir: Path | None) -> list[Finding]:
    """Return all findings. `data_dir`: --data-dir or HOGWILD_DATA, None if neither is given."""
    return [
        Finding("hogwild", "ok", f"{__version__} in {PACKAGE}"),
        *_packages(),
        *(extra_finding(name, _version) for name in EXTRAS),
        *torch_findings(_answer_of(_CHILD)),
        *processor_findings(host.describe_host(), host.usable_cores()),
        _plan(),
        memory_finding(host.available_memory()),
        *_shared_memory(),
        files_finding(host.open_file_limit(), host.descriptor_count(), int(host.usable_cores().usable)),
        tasks_finding(host.task_limits(), int(host.usable_cores().usable)),
        _kernel(),
        fork_finding(try_fork_server()),
        *(Finding("environment", "note", text) for text in variable_findings(os.environ)),
        *data_findings(data_dir),
    ]


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line per finding, and a conclusion."""
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        yield f"{finding.status:<7}  {finding.topic:<{width}}  {finding.text}"
    problems = [finding for finding in findings if finding.status == "problem"]
    if any(finding.stops_training for finding in problems):
        yield "hogwild cannot train here until the problems above are fixed"
    else:
        yield f"hogwild can train here; {counted(len(problems), 'problem')} found"


# --- versions -----------------------------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    for name in PACKAGES:
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "problem", f"is not installed: pip install {name}", stops_training=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extra_finding(extra: str, version_of: Callable[[str], str | None]) -> Finding:
    """Return the finding about an extra: the versions of its packages, and how to install what is missing or too old.
    None of them is needed by every job, so only a part of an extra, or an old one, is worth a note."""
    purpose, packages = EXTRAS[extra]
    found = {name: version_of(name) for name in packages}
    told = [
        f"{name} is not installed"
        if has is None
        else f"{name} {has}, older than {least}"
        if _parts(has) < _parts(least)
        else f"{name} {has}"
        for (name, least), has in zip(packages.items(), found.values(), strict=True)
    ]
    is_whole = told == [f"{name} {has}" for name, has in found.items()]
    is_absent = not any(found.values())
    words = "not installed" if is_absent else ", ".join(told)
    cure = "" if is_whole else f"; for {purpose}: pip install 'hogwild[{extra}]'"
    return Finding(f"extra {extra}", "ok" if is_whole or is_absent else "note", words + cure)


def _parts(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", version)[:2]]


def try_fork_server() -> Mapping[str, Any]:
    """Return what `workers/processes/fork_trial.py` finds: `why` a process cannot be forked from a server, and what one
    costs."""
    found = _answer_of(_FORK_TRIAL)
    return {"why": f"the trial {found}"} if isinstance(found, str) else found


def _answer_of(code: str) -> Mapping[str, Any] | str:
    """Return the JSON that the code prints in a child process, or why there is none."""
    try:
        ended = subprocess.run(
            python_child(code),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=CHILD_S,
        )
    except subprocess.TimeoutExpired:
        return f"importing torch takes more than {CHILD_S:g} s"
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["no message"]
        return f"cannot be imported ({host.describe_exit(ended.returncode)}): {said[-1]}"
    answer: Mapping[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def torch_findings(answer: Mapping[str, Any] | str) -> Iterator[Finding]:
    """Yield the findings about torch from its properties, or the reason why it cannot be imported."""
    if isinstance(answer, str):
        yield Finding("torch", "problem", answer, stops_training=True)
        return
    text = f"{answer['torch']}, {answer['cpu']}, oneDNN {'yes' if answer['mkldnn'] else 'no: convolutions are slow'}"
    is_tested = answer["torch"].startswith(TORCH_SERIES)
    note = "" if is_tested else f"; hogwild is tested with {TORCH_SERIES}x only"
    yield Finding("torch", "ok" if is_tested else "note", text + note)
    for description, threads in answer["pools"]:
        yield Finding(
            "thread pool", "ok", f"{description}: {counted(threads, 'thread')} here; workers use the plan's number"
        )
    gpus = answer["gpus"]
    words = (
        f"torch sees {gpus}; train.device: auto uses them if the job can" if gpus else "torch sees none (not required)"
    )
    yield Finding("gpu", "note" if gpus else "ok", words)


# --- cores and memory ---------------------------------------------------------------------------------------


def processor_findings(described: Mapping[str, Any], cores: host.Cores) -> Iterator[Finding]:
    """Yield the findings about the CPU from `host.describe_host` and `host.usable_cores`."""
    nodes = {core.node for core in cores.physical}
    physical, threads = len(cores.physical), max(len(core.cpus) for core in cores.physical)
    smt = f"{threads} threads each (SMT)" if threads > 1 else "no SMT"
    yield Finding("cpu", "ok", f"{described['cpu']}")
    yield Finding(
        "cores",
        "ok",
        f"{described['cores']} logical in the machine, {cores.affinity} in the affinity mask: {physical} physical, "
        f"{smt}, {counted(len(nodes), 'NUMA node')}",
    )
    if cores.quota is None:
        yield Finding("quota", "ok", "none")
    elif cores.quota < physical:
        yield Finding("quota", "note", f"{cores.reason}: {cores.usable:g} of {physical} cores can be used")
    else:
        yield Finding("quota", "ok", f"{cores.quota:g} cores, not below the number of cores")


def _plan() -> Finding:
    try:
        planned = plan_here("auto", "auto")
    except UsageError as error:
        return Finding("plan", "problem", str(error), stops_training=True)
    words = f"{counted(planned.procs, 'worker')} x {counted(planned.threads, 'thread')}: {planned.reason}"
    return Finding("plan", "note" if planned.warning else "ok", "; ".join(filter(None, (words, planned.warning))))


def memory_finding(memory: host.Memory) -> Finding:
    """Return the finding about free memory: a problem if not even one worker fits."""
    words = f"{size(memory.bytes)} free; the limit is {memory.limited_by}"
    if memory.bytes < MEMORY_FOR_A_WORKER:
        return Finding("memory", "problem", f"{words}; one worker needs {size(MEMORY_FOR_A_WORKER)}")
    return Finding("memory", "ok", words)


def _shared_memory() -> Iterator[Finding]:
    try:
        descriptor = os.memfd_create("hogwild-probe", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, PROBE_BYTES)
        finally:
            os.close(descriptor)
        yield Finding("shared memory", "ok", "memfd works; all free memory can be shared")
    except (OSError, AttributeError) as error:  # AttributeError: Python was built without it
        yield Finding("shared memory", "problem", f"memfd does not work: {error}", stops_training=True)
    with contextlib.suppress(OSError):  # not mounted: hogwild does not need it
        space = os.statvfs("/dev/shm")
        whole, free = (size(space.f_frsize * blocks) for blocks in (space.f_blocks, space.f_bavail))
        yield Finding("/dev/shm", "ok", f"{whole}, {free} free; not used by hogwild, but perhaps by your DataLoader")


def files_finding(limit: int, held: int, workers_wanted: int) -> Finding:
    """Return the finding about the limit on open files, `held` of which are open: a problem if it is too low for the
    workers of `procs: auto`."""
    workers = (limit - held - FILES) // (FILES_PER_WORKER + FILES_ON_THEIR_WAY)
    words = f"limit {limit:,} per process, enough for {workers:,} workers; hogwild raises it if it can"
    needed = max(1, workers_wanted)
    if workers >= needed:
        return Finding("open files", "ok", words)
    return Finding(
        "open files", "problem", f"limit {limit:,} per process, too low for {counted(needed, 'worker')} (ulimit -n)"
    )


def tasks_finding(limits: Sequence[host.Limit], workers_wanted: int) -> Finding:
    """Return the finding about the limits on processes and threads: a problem if one is too low for the workers of
    `procs: auto`, the fork server and the supervisor's threads."""
    needed = THREADS + 2 * max(1, workers_wanted) + 1
    words = "; ".join(map(str, limits)) or "no limit for this user"
    if all(limit.most - limit.used >= needed for limit in limits):
        return Finding("processes", "ok", words)
    return Finding("processes", "problem", f"{words}: too low for {counted(max(1, workers_wanted), 'worker')}")


def fork_finding(trial: Mapping[str, Any]) -> Finding:
    """Return the finding about the fork server from the result of `try_fork_server`. Without one a job takes longer to
    start and more memory, no more."""
    memory = ProcessMemory.measured(trial)
    alone = size(memory.import_private)
    if trial["why"]:
        return Finding(
            "fork server", "note", f"cannot be used: {trial['why']}; each process takes {alone} and an import"
        )
    cost = f"a process takes {trial['fork_s'] * 1000:.0f} ms and {size(memory.fork_private)} of its own"
    return Finding("fork server", "ok", f"works: {cost}, instead of an import of torch and {alone}")


def _kernel() -> Finding:
    words = f"Linux {platform.release()}"
    try:
        descriptor = host.pidfd_open(os.getpid())
        try:
            host.kill_by_pidfd(descriptor, 0)  # signal 0 only checks the permission
        finally:
            os.close(descriptor)
        return Finding("kernel", "ok", f"{words}, pidfd works")
    except (OSError, AttributeError) as why:
        text = f"{words}: pidfd does not work ({why}); use Linux 5.3 or later, and a sandbox that allows pidfd"
        return Finding("kernel", "problem", text, stops_training=True)


# --- data ---------------------------------------------------------------------------------------------------


def data_findings(data_dir: Path | None) -> Iterator[Finding]:
    """Yield the finding about the data folder, an absolute path, if there is one."""
    if data_dir is None:
        yield Finding("data", "ok", "no data folder is set (HOGWILD_DATA, --data-dir); the bundled digits need none")
    elif not data_dir.is_dir():
        is_from_environment = Path(os.environ.get("HOGWILD_DATA", "")).absolute() == data_dir
        source = "HOGWILD_DATA" if is_from_environment else "--data-dir"
        yield Finding("data", "problem", f"{source}: there is no folder {data_dir}")
    else:
        there = sorted(folder.name for folder in data_dir.iterdir() if folder.is_dir())
        known = [name for name in DATA_FOLDERS if name in there]
        missing = [name for name in DATA_FOLDERS if name not in there]
        others = [name for name in there if name not in DATA_FOLDERS]
        parts = (("found", known), ("missing", missing), ("others", others))
        yield Finding("data", "ok", f"{data_dir}: " + "; ".join(f"{what}: {', '.join(n)}" for what, n in parts if n))
