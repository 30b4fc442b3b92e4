"""Cores that this user's jobs on this machine use, so that two jobs at once do not wait for each other's threads.
Exported by `hogwild.host`; import it from there.

    FOLDER/PID-START     {"procs": 2, "threads": 0, "cpus": [0, 1]}       written by that job's supervisor only

A lease is a file of its own, so nobody needs a lock, and a job that was killed leaves nothing that counts: its name is
compared with the living processes (number and start time), and whoever reads it removes it. Cores that the service
gives to a job are its affinity mask: leases on other cores do not count."""

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hogwild.host.processes import affinity, start_ticks
from hogwild.host.topology import read_if_known


@dataclass(frozen=True, slots=True)
class CoreLease:
    """A job's workers, with threads each (0: as many as others leave), on these logical CPUs."""

    procs: int
    threads: int
    cpus: tuple[int, ...]


def lease_cores(procs: int, threads: int) -> None:
    """Write or renew this process's lease. Without a folder of our own others do not see this job."""
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            file = folder / _name(os.getpid())
            content = json.dumps(asdict(CoreLease(procs, threads, tuple(sorted(affinity())))))
            if read_if_known(file) != content:
                aside = folder / f".{file.name}"
                aside.write_text(content)
                aside.replace(file)  # whole at every moment: another job reads it each second


def end_core_lease() -> None:
    with contextlib.suppress(OSError):
        (_folder() / _name(os.getpid())).unlink()


def other_core_leases() -> tuple[CoreLease, ...]:
    """Return the leases of other living processes; those of dead ones are removed."""
    found: list[CoreLease] = []
    with contextlib.suppress(OSError):
        folder = _folder()
        own = _name(os.getpid())
        for file in sorted(folder.iterdir()) if folder.stat().st_uid == os.getuid() else ():
            number = file.name.partition("-")[0]
            if file.name == own or not number.isdecimal():
                continue
            if file.name != _name(int(number)):
                file.unlink(missing_ok=True)
                continue
            # One that is damaged, or that another version wrote, does not count.
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                told = json.loads(file.read_text())
                lease = CoreLease(int(told["procs"]), int(told["threads"]), tuple(map(int, told["cpus"])))
                found += [lease] if lease.procs > 0 <= lease.threads and lease.cpus else []
    return tuple(found)


def _folder() -> Path:
    """Return the folder: of this user and this boot, not of a session or a job, whose environments differ."""
    for named in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        if os.path.isabs(named) and os.path.isdir(named):
            return Path(named) / "hogwild" / "cores"
    return Path(tempfile.gettempdir()) / f"hogwild-{os.getuid()}" / "cores"


def _name(pid: int) -> str:
    return f"{pid}-{start_ticks(pid)}"
