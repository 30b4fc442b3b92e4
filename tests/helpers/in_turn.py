"""Runs several command lines one after the other in this process and writes down what each one left in it:
descriptors, threads, child processes. `python -m tests.helpers.in_turn SPECS.json`."""

import atexit
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.cli import main as cli
from tests.helpers import zygote

STACKS_WAIT_S = 4.0  # less than what the roster gives a killed worker to be gone


def main(specs: list[dict[str, Any]]) -> None:
    import hogwild.workers.execution  # what it opens once and for all is no leak of the first job
    import hogwild.workers.processes.stacks

    hogwild.workers.processes.stacks.STACKS_WAIT_S = STACKS_WAIT_S  # what can write its stacks does, if late
    for spec in specs:
        folder = Path(spec["folder"])
        os.chdir(folder)
        _to_files(folder)
        before = host.descriptor_count()
        status = cli.run(spec["argv"])
        result = {
            "status": status,
            "descriptors": host.descriptor_count() - before,
            "threads": threading.active_count() - 1,
            "children": [f"child {pid}" for pid in zygote.children()],
        }
        (folder / "result.json").write_text(json.dumps(result))


def _to_files(folder: Path) -> None:
    for stream, name in ((sys.stdout, "stdout.txt"), (sys.stderr, "stderr.txt")):
        stream.flush()
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, stream.fileno())
        os.close(file)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # as a command does: torch is not taken apart
