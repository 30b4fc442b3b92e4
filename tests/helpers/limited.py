"""Runs a command under limits: `python -m tests.helpers.limited '{"files": 64}' run.py …` becomes `python run.py …`
with the same process number.

    files     open files (RLIMIT_NOFILE, soft and hard)
    address   bytes of address space (RLIMIT_AS)
    group     a memory control group's folder to enter first"""

import json
import os
import resource
import sys
from pathlib import Path

limits = json.loads(sys.argv[1])
if "group" in limits:
    (Path(limits["group"]) / "cgroup.procs").write_text(str(os.getpid()))
for name, number in (("files", resource.RLIMIT_NOFILE), ("address", resource.RLIMIT_AS)):
    if name in limits:
        resource.setrlimit(number, (limits[name], limits[name]))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
