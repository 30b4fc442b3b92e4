"""The command `ask`: a request to a live job, with or without a service."""

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hogwild import host
from hogwild.cli.arguments import Json, StateDir, check_choice
from hogwild.cli.output import print_answer
from hogwild.cli.runs import RunOrJob, require_alive, run_of
from hogwild.errors import ConflictError, RunEndedError, RunError, UsageError
from hogwild.monitoring.run_status import read_status
from hogwild.storage.run_files import answer_to, read_json, size_of_events, withdraw, write_request

REQUESTS = ("checkpoint", "stacks", "resize")
ANSWER_LOOK_S = 0.05
DONE = "done"


def ask(
    run: RunOrJob,
    what: Annotated[str, typer.Argument(metavar="checkpoint|stacks|resize", autocompletion=lambda: REQUESTS)],
    procs: Annotated[int | None, typer.Option(min=1, help="resize: number of workers.", metavar="N")] = None,
    cores: Annotated[str | None, typer.Option(help="resize: logical CPUs, such as 0-3,8.", metavar="LIST")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the answer.")] = 60.0,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> int:
    """Ask a running job for a checkpoint, for the stacks of its processes, or to change its workers and cores."""
    check_choice("ask", what, REQUESTS)
    if (what == "resize") != (procs is not None or cores is not None):
        raise UsageError(
            "--procs and --cores belong to resize, which needs one of them: hogwild ask RUN resize --procs N",
            code="usage/contradiction",
        )
    wanted = None if cores is None else cpu_list(cores)
    asked = {"ask": what, "procs": procs, "cores": wanted}
    path = run_of(run, state_dir)
    status = read_status(path)
    require_alive(status)
    if wanted is not None:
        _check_cores(path, status.record.get("pid"), wanted)
    begin = size_of_events(path)
    name = write_request(path, {field: value for field, value in asked.items() if value is not None})
    with host.raising_on_signals():
        answer = _wait(path, name, begin, timeout)
    lines = [f"{what}: {answer['answer']}"]
    lines += [f"  checkpoint {path / 'checkpoints' / answer['checkpoint']}"] if "checkpoint" in answer else []
    lines += [f"  {title}: {call or 'its stack is in the file'}" for title, call in answer.get("calls", {}).items()]
    lines += [f"  written to {answer['stacks']}"] if "stacks" in answer else []
    print_answer(answer, lines, as_json)
    return int(answer["answer"] != DONE)


def _check_cores(run: Path, pid: Any, cores: list[int]) -> None:
    """Check that a job of the service stays on its own cores. Raises ConflictError, UsageError."""
    order = read_json(run.parent, "job.json")
    if not order or not isinstance(pid, int):
        return
    if order.get("elastic"):
        raise ConflictError(
            "--cores: the service moves the cores of this job itself; give --procs", code="service/wrong-state"
        )
    with contextlib.suppress(ProcessLookupError):
        if not set(cores) <= (own := host.affinity(pid)):
            raise UsageError(
                f"--cores: must be among {sorted(own)}, which the job has, got {cores}", code="service/too-much"
            )


def cpu_list(text: str) -> list[int]:
    """Return 0, 1, 2, 3, 8 for `0-3,8`. Raises UsageError."""
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", text):
        raise UsageError(f"--cores {text}: must be numbers and ranges, such as 0-3,8", code="usage/bad-value")
    ranges = [part.split("-") for part in text.split(",")]
    return sorted({cpu for first, *last in ranges for cpu in range(int(first), int(last[0] if last else first) + 1)})


def _wait(path: Path, name: str, begin: int, timeout_s: float) -> dict[str, Any]:
    """Wait for the answer. Raises RunEndedError if the run ends before, RunError if none comes."""
    until = time.monotonic() + timeout_s
    while True:
        is_alive = read_status(path).is_alive  # asked first: an answer that was written before its end is found
        is_last = time.monotonic() > until
        if (answer := answer_to(path, name, begin)) is not None:
            return answer
        if not is_alive:
            raise RunEndedError(f"{path} ended before it answered", code="run/ended")
        if is_last:
            was_read = "has not read it" if withdraw(path, name) else "works on it"
            raise RunError(
                f"no answer within {timeout_s:g} s: the job {was_read}; is it being built, or stopped? "
                f"hogwild status {os.fspath(path)}",
                code="run/no-answer",
            )
        time.sleep(ANSWER_LOOK_S)
