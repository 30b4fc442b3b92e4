"""Usable cores and memory of this machine, over every level of every control group, and the limits on processes,
threads and address space, which make a start fail in a library or in the kernel, with words that name no limit.
Exported by `hogwild.host`; import it from there.

A limit can sit at any ancestor of our group, and `os.cpu_count()`, the affinity mask, psutil and torch all ignore it:
with a quota of half a core they report 2. A function takes `root`, the folder that holds /proc and the control groups,
so that tests can lay out their own machine.

    ulimit -u  (RLIMIT_NPROC)   processes and threads of a user; not for root, nor with its capabilities
    pids.max                    the same of a control group: a container's --pids-limit
    ulimit -v  (RLIMIT_AS)      address space of each process"""

import contextlib
import errno
import os
import platform
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from hogwild.errors import MemoryShortError, RunError
from hogwild.formatting import size
from hogwild.host.processes import PROC
from hogwild.host.topology import ROOT, Core, physical_cores, read_if_known

LOWEST_QUOTA = 0.01  # cores; the kernel accepts no less, and floor(usable / procs) must not divide by zero


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores this process may use; `reason` says whether affinity or quota limits them. `affinity` counts logical
    CPUs, `usable` physical cores (arithmetic gains little from a second thread on one); `physical` lists the cores in
    the mask."""

    affinity: int
    quota: float | None
    usable: float
    reason: str
    physical: tuple[Core, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that can still be allocated, and the name of the limit."""

    bytes: int
    limited_by: str


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One level of a control group hierarchy; `version` tells which files its folder holds."""

    version: int
    folder: Path

    def read(self, name: str) -> str | None:
        return read_if_known(self.folder / name)

    def number(self, name: str) -> int | None:
        """Return the number in a file; None if the file is missing or says `max`."""
        return _integer(self.read(name))

    def field(self, name: str, key: str) -> int | None:
        """Return the value of one `key value` line."""
        for line in (self.read(name) or "").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == key:
                return _integer(words[1])
        return None


def control_groups(controller: str, root: Path = ROOT) -> list[ControlGroup]:
    """Return every level of our control group that `controller` ('cpu', 'memory') may limit, innermost first, for both
    versions. Empty without control groups. Pages: cgroups(7), proc_pid_mountinfo(5)."""
    mounts: list[tuple[int, list[str], str, str]] = []  # version, options, the group shown there, the mount point
    for line in (read_if_known(root / "proc/self/mountinfo") or "").splitlines():
        place, _, kind = line.partition(" - ")
        places, kinds = place.split(), kind.split()
        if len(places) > 4 and len(kinds) > 2 and kinds[0] in ("cgroup", "cgroup2"):
            # A blank is written as \040.
            inside, point = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), name) for name in places[3:5])
            mounts.append((2 if kinds[0] == "cgroup2" else 1, kinds[2].split(","), inside, point))
    groups: list[ControlGroup] = []
    for line in (read_if_known(root / "proc/self/cgroup") or "").splitlines():  # `0::/job`, `4:cpu,cpuacct:/job`
        number, controllers, path = line.split(":", 2)
        version = 2 if number == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_version, options, inside, point in mounts:
            if mount_version == version and (version == 2 or controller in options):
                groups += [ControlGroup(version, folder) for folder in _levels(root, point, inside, path)]
                break
    return groups


def usable_cores(root: Path = ROOT) -> Cores:
    """Return the minimum of the physical cores in the affinity mask and all quotas above us; may be a fraction."""
    mask = os.sched_getaffinity(0)
    physical = physical_cores(mask, root)
    there = f"{len(physical)} in the affinity mask"
    if len(physical) < len(mask):
        there += f", {len(mask)} with SMT"
    quotas = [(quota, group) for group in control_groups("cpu", root) if (quota := _quota(group)) is not None]
    if not quotas:
        return Cores(len(mask), None, float(len(physical)), f"{there}, no quota", physical)
    quota, group = min(quotas, key=lambda pair: pair[0])
    if quota < len(physical):
        return Cores(len(mask), quota, quota, f"quota of {quota:g} cores in {group.folder}", physical)
    return Cores(len(mask), quota, float(len(physical)), f"{there}, quota {quota:g}", physical)


def available_memory(root: Path = ROOT) -> Memory:
    """Return the minimum of the machine's available memory and what every control group above us has left. File pages
    that the kernel can drop under pressure count as free; shared memory does not."""
    found = [Memory(psutil.virtual_memory().available, "the memory of the machine")]
    for group in control_groups("memory", root):
        left = _memory_left(group)
        if left is not None:
            found.append(Memory(max(left, 0), f"the memory limit in {group.folder}"))
    return min(found, key=lambda memory: memory.bytes)


def machine_memory(root: Path = ROOT) -> Memory:
    """Return all memory that could ever be allocated: the machine's, or the lowest limit of a control group above
    us."""
    found = [Memory(psutil.virtual_memory().total, "the memory of the machine")]
    for group in control_groups("memory", root):
        limit = group.number("memory.max" if group.version == 2 else "memory.limit_in_bytes")
        if limit is not None:
            found.append(Memory(limit, f"the memory limit in {group.folder}"))
    return min(found, key=lambda memory: memory.bytes)


def oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes of our own control group the OOM killer has killed; None if there is no counter. A kill
    is counted in the victim's group, whichever level the limit was at, so compare two readings around a death."""
    for group in control_groups("memory", root):
        return group.field("memory.events" if group.version == 2 else "memory.oom_control", "oom_kill")
    return None


class OomKills:
    """Attribution of deaths by SIGKILL to the OOM killer: the kernel counts a kill before it sends the signal, in the
    victim's control group and for the whole machine."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._seen = self._earlier = self._read()

    def claim(self) -> str:
        """Explain one death by SIGKILL if there is a counted kill that no other death has claimed; else return ""."""
        (group, machine), (group_seen, machine_seen) = self._read(), self._seen
        if group > group_seen:
            self._seen = (group_seen + 1, machine_seen + 1)
            limits = []  # (bytes above which the kernel kills, the limit in words)
            for level in control_groups("memory", self._root):
                name = "memory.max" if level.version == 2 else "memory.limit_in_bytes"
                limit = level.number(name)
                if limit is not None and limit < 1 << 60:  # version 1 writes a huge number for 'none'
                    limits.append((limit, f"limit {size(limit)}, {level.folder / name}"))
            lowest = min(limits, key=lambda limit: limit[0])[1] if limits else "the memory of the machine"
            return f"killed by the kernel: out of memory ({lowest})"
        if machine > machine_seen:
            self._seen = (group_seen, machine_seen + 1)
            if oom_kills(self._root) is None:
                return "killed by the kernel: out of memory (/proc/vmstat counts a kill)"
            return "killed by SIGKILL (perhaps out of memory: /proc/vmstat counts a kill, our control group none)"
        return ""

    def discard(self) -> None:
        """Discard kills that were counted before the previous call and never claimed: they were not ours. Call it every
        few seconds. Newer kills stay: a process with gigabytes takes a while to die."""
        group, machine = (max(pair) for pair in zip(self._seen, self._earlier, strict=True))
        self._seen, self._earlier = (group, machine), self._read()

    def _read(self) -> tuple[int, int]:
        found = re.search(r"^oom_kill (\d+)$", read_if_known(self._root / "proc/vmstat") or "", re.MULTILINE)
        return oom_kills(self._root) or 0, int(found[1]) if found else 0


def describe_host(root: Path = ROOT) -> dict[str, object]:
    """Return a description of the machine for env.json; imports no torch."""
    cores, memory = usable_cores(root), available_memory(root)
    model = re.search(r"^model name\s*:\s*(.+)$", read_if_known(root / "proc/cpuinfo") or "", re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": cores.usable,
        "usable_cores_reason": cores.reason,
        "memory_bytes": psutil.virtual_memory().total,
        "available_memory_bytes": memory.bytes,
        "available_memory_limited_by": memory.limited_by,
        "hostname": platform.node(),
        "os": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _levels(root: Path, point: str, inside: str, path: str) -> list[Path]:
    """Return the folders from our group up to the mount point. A container may see only part of the hierarchy: `inside`
    is the group at its mount point, and for a path outside of it only the mount point is returned."""
    top = root / point.lstrip("/")
    base = inside.rstrip("/")
    if not (path == base or path.startswith(base + "/")) or ".." in path:
        return [top]
    folder = top / path[len(base) :].lstrip("/")
    chain = [folder, *folder.parents]
    return [level for level in chain[: chain.index(top) + 1] if level.is_dir()]


def _quota(group: ControlGroup) -> float | None:
    """Return the quota in cores, from `cpu.max` (quota period) or the two files of version 1."""
    if group.version == 2:
        words = (group.read("cpu.max") or "max").split()
        quota, period = _integer(words[0]), _integer(words[1]) if len(words) > 1 else 100_000
    else:
        quota, period = group.number("cpu.cfs_quota_us"), group.number("cpu.cfs_period_us")
    if quota is None or quota <= 0 or not period:
        return None
    return max(quota / period, LOWEST_QUOTA)


def _memory_left(group: ControlGroup) -> int | None:
    """Return limit - usage + inactive file pages; None without a limit. Version 1 writes a huge number for 'none'."""
    if group.version == 2:
        # Above memory.high a group is not killed, but throttled until nothing moves: the same as a limit.
        limits = [group.number("memory.max"), group.number("memory.high")]
        usage, inactive = group.number("memory.current"), group.field("memory.stat", "inactive_file")
    else:
        limits = [group.number("memory.limit_in_bytes")]
        usage = group.number("memory.usage_in_bytes")
        inactive = group.field("memory.stat", "total_inactive_file")
    known = [limit for limit in limits if limit is not None]
    if not known or usage is None or min(known) >= 1 << 60:
        return None
    return min(known) - usage + (inactive or 0)


LEAST_ADDRESSES = 640 << 20  # bytes; torch 2.13 and threads with 8 MiB of stack each: 660 MiB are too few, 700 enough
NEAR = 32  # processes and threads that are left: less than what several libraries start at once
SYS_ADMIN, SYS_RESOURCE = 21, 24  # <linux/capability.h>
INITIAL = ["0", "0", "4294967295"]  # proc_pid_uid_map(5) outside of user namespaces
REFUSED = (errno.EAGAIN, errno.ENOMEM)
OF_A_LOADER = ("cannot allocate", "failed to map")  # of the dynamic linker, in an ImportError


@dataclass(frozen=True, slots=True)
class Limit:
    """`most` at once, `used` now: processes and threads, or bytes of address space."""

    most: int
    used: int
    name: str
    is_memory: bool = False

    def __str__(self) -> str:
        if self.is_memory:
            return f"{size(self.most)} of address space for a process ({self.name}), {size(self.used)} in use here"
        return f"{self.most:,} processes and threads ({self.name}), {self.used:,} in use"


def task_limits(root: Path = ROOT) -> list[Limit]:
    """Return the limits on processes and threads that hold for this process."""
    found = []
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # It does not hold for root and its capabilities (fork(2), EAGAIN), but a user namespace's root is another outside.
    is_inside = (read_if_known(PROC / "self/uid_map") or "").split() != INITIAL
    able, user = int(_field(PROC / "self/status", "CapEff") or "0", 16), os.getuid()
    is_counted = is_inside or (user != 0 and not (able >> SYS_ADMIN & 1 or able >> SYS_RESOURCE & 1))
    if most != resource.RLIM_INFINITY and is_counted:
        files = [entry / "status" for entry in PROC.iterdir() if entry.name.isdigit()]
        own = [file for file in files if (_field(file, "Uid") or "").split()[:1] == [str(user)]]
        used = sum(int(_field(file, "Threads") or "0") for file in own)  # a process's first one included
        found.append(Limit(most, used, "ulimit -u"))
    for group in control_groups("pids", root):
        if (most_here := group.number("pids.max")) is not None:
            found.append(Limit(most_here, group.number("pids.current") or 0, f"pids.max in {group.folder}"))
    return found


def address_limit() -> Limit | None:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    pages = int((read_if_known(PROC / "self/statm") or "0").split()[0])
    return Limit(most, pages * resource.getpagesize(), "ulimit -v", is_memory=True)


def require_tasks(needed: int) -> None:
    """Raise RunError if so many more processes and threads do not fit. The user's own limit is raised first, as far as
    the hard one allows."""
    for limit in task_limits():
        if limit.name == "ulimit -u" and limit.most < limit.used + needed:
            _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            if hard == resource.RLIM_INFINITY or hard >= limit.used + needed:
                resource.setrlimit(resource.RLIMIT_NPROC, (limit.used + needed, hard))
                continue
        if limit.most < limit.used + needed:
            raise RunError(
                f"{needed:,} more processes and threads are needed, which a limit forbids: {limit}; raise it, or use "
                "fewer train.procs and train.threads",
                code="run/process-limit",
            )


@contextlib.contextmanager
def naming_limits() -> Iterator[None]:
    """Refuse too little address space for torch, which would end in a crash, and name the limits where the machine
    refuses a process, a thread or memory to our own code. Raises MemoryShortError or RunError."""
    limit = address_limit()
    if limit is not None and limit.most < LEAST_ADDRESSES:
        raise MemoryShortError(
            f"torch needs {size(LEAST_ADDRESSES)} of address space, the limit is {size(limit.most)} (ulimit -v); raise "
            "it, or unset it: ulimit -v unlimited",
            code="run/memory-short",
        )
    try:
        yield
    except (MemoryError, OSError, RuntimeError, ImportError) as error:
        if isinstance(error, OSError):
            is_refusal = error.errno in REFUSED and error.filename is None
        elif isinstance(error, ImportError):
            is_refusal = any(words in str(error).lower() for words in OF_A_LOADER)
        else:
            is_refusal = isinstance(error, MemoryError) or "can't start new thread" in str(error)
        if not is_refusal or not (words := limits_in_words()):
            raise
        last_line = (str(error).strip() or type(error).__name__).splitlines()[-1]
        message = f"the machine refuses a process, a thread or memory ({last_line}); {words}"
        if "ulimit -v" in words:
            raise MemoryShortError(
                f"{message}; raise it, or unset it: ulimit -v unlimited", code="run/memory-short"
            ) from error
        raise RunError(
            f"{message}; raise it, or use fewer train.procs and train.threads", code="run/process-limit"
        ) from error


def refusal_in_words(error: OSError) -> str:
    """Return why a process could not be started, with the limits that may be the reason."""
    words = limits_in_words() if error.errno in REFUSED else ""
    return f"{error}; {words}" if words else str(error)


def limits_in_words() -> str:
    """Return `the limit is 8 processes and threads (ulimit -u), 7 in use`; "" without one that is near."""
    found = [limit for limit in task_limits() if limit.most - limit.used < NEAR]
    words = "; ".join(map(str, [*filter(None, [address_limit()]), *found]))
    return f"the limit is {words}" if words else ""


def _field(file: Path, name: str) -> str | None:
    """Return a field of proc_pid_status(5); None if the process is gone."""
    lines = (read_if_known(file) or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), None)
