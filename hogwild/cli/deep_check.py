"""`check --deep`: model and data are built in a child process, so that user code cannot crash the command line.

The child writes its answer to a temporary file, because user code may print.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.cli.doctor import try_fork_server
from hogwild.config.load import Job, load_job
from hogwild.errors import BuildError, HogwildError
from hogwild.host.processes import python_child
from hogwild.planning.process_memory import ProcessMemory, may_fork

# Ctrl-C reaches the child, too: it only ends, and the parent reports.
_DEEP_CHILD = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from hogwild.cli.deep_check import child
child(int(sys.argv[1]))
"""


def deep_check(job: Job, job_file: Path | None, data_dir: Path | None, *, gradients: bool = False) -> dict[str, Any]:
    """Return the result of `hogwild.job.build.deep_check` in a child process. Raises its error, with the same exit
    status."""
    job_path, data_path = (None if path is None else str(path.absolute()) for path in (job_file, data_dir))
    task = {"job": job.to_yaml(), "job_file": job_path, "data_dir": data_path, "gradients": gradients}
    with tempfile.TemporaryFile() as answer:
        command = python_child(_DEEP_CHILD, str(answer.fileno()))
        ended = subprocess.run(
            command, input=json.dumps(task).encode(), stdout=sys.stderr, pass_fds=[answer.fileno()], check=False
        )
        answer.seek(0)
        found = _answer(answer.read(), ended.returncode)
    return found | {"processes": process_words(found["procs"], job.train.device, try_fork_server())}


def process_words(procs: int, device: str, trial: Mapping[str, Any] | None = None) -> str:
    """Return the memory of the processes of a planned job. `device`: as in its file; `trial`: of the fork server on
    this machine, which has measured it."""
    is_forked = may_fork(device) and not (trial and trial["why"])
    return ProcessMemory.measured(trial or {}).words(procs, is_forked=is_forked)


def child(descriptor: int) -> None:
    """Run the child: read the task from stdin, write the answer to `descriptor`."""
    task = json.load(sys.stdin)
    job_file, data_dir = (None if text is None else Path(text) for text in (task["job_file"], task["data_dir"]))
    try:
        from hogwild.job.build import deep_check as look
        from hogwild.user_code import user_path

        user_path(job_file)
        job = load_job(None, source_text=task["job"])
        answer: dict[str, Any] = {"result": look(job, job_file, data_dir, gradients=task["gradients"])}
    except HogwildError as error:
        answer = error.record()
    os.write(descriptor, json.dumps(answer, default=str).encode())


def _answer(content: bytes, status: int) -> dict[str, Any]:
    if not content:
        how = f"was killed by {host.signal_name(-status)}" if status < 0 else f"ended with exit status {status}"
        raise BuildError(
            f"check --deep: the process that built the model and the data {how}; its output is above",
            code="run/check-died",
        )
    answer = json.loads(content)
    if "error" in answer:
        error = HogwildError(answer["error"], code=answer["error_code"])
        error.exit_status = answer["exit_status"]
        raise error
    result: dict[str, Any] = answer["result"]
    return result
