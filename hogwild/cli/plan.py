"""`hogwild plan`, and the measurement of `train --procs auto` before training; and `check --deep`: model and data are
built in a child process, so that user code cannot crash the command line. The child writes its answer to a temporary
file, because user code may print."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.cli.doctor import try_fork_server
from hogwild.cli.runs import plain_lines
from hogwild.config.load import Job, load_job
from hogwild.config.locate import default_config
from hogwild.errors import BuildError, HogwildError
from hogwild.host import Cores
from hogwild.host.processes import python_child
from hogwild.planning.calibration import (
    COMPARED_S,
    IN_TURN,
    ExchangeTrial,
    Question,
    SettingTrial,
    best,
    exchange_table,
    merged,
    settings,
    table,
    try_exchanges,
    try_setting,
)
from hogwild.planning.cpu_plan import MachineFacts, ProcessMemory, may_fork, omp_threads
from hogwild.planning.job_plan import plan_job
from hogwild.storage.files import to_json


def answer(
    job: Job, question: Question, say: Callable[[str], None], *, measure: bool, as_json: bool
) -> tuple[int, list[str]]:
    """Return the exit status and the lines of `hogwild plan`. The status is 1 if every trial failed."""
    machine = MachineFacts.here()
    planned = plan_job(job, machine)
    values: dict[str, Any] = {"procs": planned.procs, "threads": planned.threads, "why": planned.reason}
    if planned.cores:
        values["cores"] = {f"worker {number}": ", ".join(map(str, cpus)) for number, cpus in enumerate(planned.cores)}
    values |= {"warning": planned.warning} if planned.warning else {}
    values["processes"] = process_words(planned.procs, job.train.device)
    trials = trials_of(job, question, machine.cores, say) if measure else []
    exchanges = exchanges_of(job, question, best(trials), say)
    status = int(bool(trials) and best(trials) is None)
    if as_json:
        measured = trial_values(trials, exchanges) if measure else {}
        return status, [json.dumps({"job": job.name, "plan": values, **measured})]
    lines = [*plain_lines(values, ""), *(table(trials) if trials else ())]
    if exchanges:
        lines += exchange_table(exchanges, "val loss" if job.data.val is not None else "train loss")
        lines.append("exchange: auto is direct; delta is your choice: train.exchange=delta")
    lines += best_line(job, machine, question, trials)
    if measure and not trials:
        lines.append("only one possible setting: nothing to measure")
    return status, lines


def best_line(job: Job, machine: MachineFacts, question: Question, trials: list[SettingTrial]) -> Iterator[str]:
    """Yield the best trial with the command that trains so, if any succeeded."""
    chosen = best(trials)
    if chosen is None or chosen.samples_per_s is None:
        return
    procs, threads = chosen.setting.procs, chosen.setting.threads
    alone = max((one.samples_per_s or 0.0 for one in trials if one.setting.procs == 1), default=0.0)
    ratio = f", {chosen.samples_per_s / alone:.1f} x of procs=1" if alone and procs > 1 else ""
    words = ["hogwild", "train", *([str(question.job_file)] if question.job_file else []), "--procs", str(procs)]
    words += [change for change in question.overrides if not change.startswith(("train.procs=", "train.threads="))]
    if machine.plan(procs, "auto", pin=job.train.pin).threads != threads:
        words.append(f"train.threads={threads}")
    if question.data_dir is not None and str(question.data_dir) != os.environ.get("HOGWILD_DATA"):
        words += ["--data-dir", str(question.data_dir)]
    rate = f"{chosen.samples_per_s:,.0f} samples/s{ratio}"
    yield f"best: procs={procs} threads={threads}: {rate}; train with: {shlex.join(words)}"


def trials_of(job: Job, question: Question, cores: Cores, say: Callable[[str], None]) -> list[SettingTrial]:
    """Try every sensible setting and report progress; empty if there is only one. A number of threads from the job or
    OMP_NUM_THREADS is kept."""
    threads = job.train.threads if job.train.threads != "auto" else omp_threads(os.environ)
    chosen = settings(cores, threads)
    trials: list[SettingTrial] = []
    for number, setting in enumerate(chosen if len(chosen) > 1 else (), 1):
        say(f"measuring {number} of {len(chosen)}: procs x threads {setting}")
        trials.append(try_setting(question, setting))
    return trials


def exchanges_of(
    job: Job, question: Question, chosen: SettingTrial | None, say: Callable[[str], None]
) -> list[ExchangeTrial]:
    """Try direct and delta at the chosen setting, for speed and loss; empty where there is no choice: one worker,
    parameters on a device, a shared state."""
    if chosen is None or chosen.samples_per_s is None or chosen.setting.procs < 2:
        return []
    if chosen.placement != "cpu" or job.optimizer.state == "shared":
        return []
    updates = int(COMPARED_S * chosen.samples_per_s / (job.data.batch_size * job.train.accumulate))
    trials: list[ExchangeTrial] = []
    for number, trial in enumerate(try_exchanges(question, chosen.setting, updates), 1):
        say(f"measured exchange {trial.exchange}, {number} of {len(IN_TURN)}")
        trials.append(trial)
    return merged(trials)


def trial_values(trials: list[SettingTrial], exchanges: list[ExchangeTrial]) -> dict[str, Any]:
    """Return the same as `table` and `exchange_table`, for JSON; `best` is None if every trial failed."""
    chosen = best(trials)
    rows = [{**asdict(one.setting), "samples_per_s": one.samples_per_s, "error": one.error or None} for one in trials]
    tried = [
        {"exchange": one.exchange, "samples_per_s": one.samples_per_s, "loss": to_json(one.loss)}
        | {"worst_loss": to_json(one.worst), "error": one.error or None}
        for one in exchanges
    ]
    return {"trials": rows, "best": None if chosen is None else rows[trials.index(chosen)], "exchanges": tried}


def with_measured_plan(job: Job, question: Question, say: Callable[[str], None]) -> Job:
    """Return `job` with the fastest measured procs and threads as numbers, so that resolved.yaml records them and a
    resume uses them. If nothing could be measured, return `job` unchanged. Reports the reason."""
    trials = trials_of(job, question, host.usable_cores(), say)
    for line in table(trials) if trials else ():
        say(line)
    chosen = best(trials)
    if chosen is None:
        why = "every trial failed" if trials else "only one possible setting"
        say(f"procs auto: {why}; using the default plan (see hogwild plan)")
        return job
    say(f"procs auto: {chosen.setting.procs} x {chosen.setting.threads} threads, the fastest on this job")
    measured = [f"train.procs={chosen.setting.procs}", f"train.threads={chosen.setting.threads}"]
    path = question.job_file or default_config("digits")
    return load_job(path, [*question.overrides, *measured], source_text=question.job_text)


# ---- check --deep ----------------------------------------------------------------------------------------------------

# Ctrl-C reaches the child, too: it only ends, and the parent reports.
_DEEP_CHILD = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from hogwild.cli.plan import child
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
