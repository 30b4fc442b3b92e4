"""Runs a command under limits: `python -m tests.helpers.limited '{"files": 64}' run.py …` becomes `python run.py …`
with the same process number.

    files     open files (RLIMIT_NOFILE, soft and hard)
    address   bytes of address space (RLIMIT_AS)
    tasks     processes and threads (RLIMIT_NPROC): as a user of its own, which keeps root's rights over files only
    group     a memory control group's folder to enter first"""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

limits = json.loads(sys.argv[1])
if "group" in limits:
    (Path(limits["group"]) / "cgroup.procs").write_text(str(os.getpid()))
if "tasks" in limits:
    resource.setrlimit(resource.RLIMIT_NPROC, (limits["tasks"], limits["tasks"]))
    if os.getuid() == 0:  # for root there is no such limit
        for capability in (21, 24):  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE: they do not come back with the next program
            assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP
        os.setresuid(1_000_000 + os.getpid(), 0, 0)
for name, number in (("files", resource.RLIMIT_NOFILE), ("address", resource.RLIMIT_AS)):
    if name in limits:
        resource.setrlimit(number, (limits[name], limits[name]))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
