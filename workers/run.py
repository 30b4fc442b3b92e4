"""One job from its description to its summary. The command line and `hogwild.train` both come through here.

    plan -> torch -> fork server -> run directory -> execution.py: objects, memory, supervisor, records

Imports no torch itself: the fork server is forked as soon as it is imported, and before anything else is there.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild import host, user_code
from hogwild.cluster.launch import Launch
from hogwild.config.load import Job
from hogwild.config.schema import loaders_for, surely_streams
from hogwild.errors import UsageError
from hogwild.models import has_kernels
from hogwild.monitoring.profile_report import Window
from hogwild.planning.cpu_plan import Plan, plan_here
from hogwild.planning.process_memory import may_fork
from workers.child.entry import without_collecting
from workers.processes.fork_server import ONE_BLAS_THREAD, SERVER
from workers.processes.group import ProcessGroup
from workers.request import COMMAND_LINE, Request
from workers.session.startup import StartUp
from workers.warning_reports import hearing_warnings

if TYPE_CHECKING:
    from workers.execution import Result


def run_job(
    job: Job,
    *,
    job_file: Path | None,
    job_text: str,
    run_dir: Path | None = None,
    data_dir: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
    profile: Window | None = None,
) -> dict[str, Any]:
    """Run a job for the command line; return the summary. Raises HogwildError if the job cannot start. A job that fails
    during training returns its summary, with state `failed` and the error's message."""
    host.require_linux()
    launch = Launch.of(job.cluster.engine, os.environ)
    if launch is not None and not dry_run:
        run_dir, resume = launch.run_of(run_dir, resume)
    with _begun(job, run_dir, resume, is_real=not dry_run, progress=progress) as (planned, group, startup):
        from hogwild.job.build import build
        from workers import execution

        host.raise_noted()
        request = Request(
            job=job,
            make_parts=lambda reader: build(job, data_dir, reader, run=resume),
            job_text=job_text,
            resume=resume,
            data_dir=data_dir.absolute() if data_dir else None,
            user_folders=tuple(user_code.user_path(job_file)),  # after our imports: user folders could shadow them
            job_file=job_file.absolute() if job_file else None,
            profile=profile,
            began_s=host.process_start_s(),
            launch=launch,
        )
        planned = _with_all_cores(planned)
        if dry_run:
            return execution.dry(request, planned, startup)
        return execution.run(request, planned, group, startup).summary


def run(request: Request) -> "Result":
    """Run a job for the library: train. The fork server stays for the next call."""
    if request.job.cluster.engine != "none":
        raise UsageError(
            "cluster.engine: only the command line trains on several nodes, from a job file (docs/cluster.md)",
            code="cluster/library",
        )
    Launch.of("none", os.environ)  # raises, if it is one of many that all would train
    begun = _begun(request.job, request.run_dir, request.resume, is_real=True, caller=request.caller)
    with begun as (planned, group, startup):
        from workers import execution

        return execution.run(request, _with_all_cores(planned), group, startup)


@contextmanager
def _begun(
    job: Job,
    run_dir: Path | None,
    resume: Path | None,
    *,
    is_real: bool,
    progress: bool | None = None,
    caller: str = COMMAND_LINE,
) -> Iterator[tuple[Plan, ProcessGroup, StartUp]]:
    """Yield the plan, the group of processes, and what shows the start and holds the run directory; at the end none of
    them is left. A dry run starts no process."""
    if is_real:
        host.require_main_thread()
    planned = plan_here(job.train.procs, job.train.threads, pin=job.train.pin)
    planned = replace(planned, procs_max=job.train.procs_max or 0)
    startup = StartUp(job, planned.procs, progress=progress, caller=caller)
    kernels = has_kernels(job.model.class_path) and job.train.update != "autograd"
    is_forked = is_real and planned.procs > 0 and may_fork(job.train.device)
    is_command = caller == COMMAND_LINE
    try:
        with ProcessGroup(job.supervise) as group, startup, host.naming_limits():
            if is_real:
                startup.open_run(run_dir, resume)
            if is_command:
                startup.announce()
                _import_all(planned if is_forked else None, kernels)
            elif is_forked:
                SERVER.start(planned.environment, has_kernels=kernels)
            with hearing_warnings(partial(group.warn, is_seen=True)):
                if is_real:
                    loaders = loaders_for(job, planned.procs) if surely_streams(job) else 0
                    group.stacks.rundir = startup.rundir
                    communicators = int(job.cluster.engine != "none")
                    group.start(planned, loaders, communicators, is_forked=is_forked)
                startup.start()
                yield planned, group, startup
    finally:
        if is_command:
            SERVER.close()


def _import_all(planned: Plan | None, has_kernels: bool) -> None:
    """Import torch and what workers import; with a plan, fork the fork server as soon as that is done. It holds nothing
    of the run directory that is open here (`host.let_go`)."""
    with _limited_pools(planned), without_collecting():
        for module in ("workers.child.dispatch", "workers.execution"):
            importlib.import_module(module)
        host.raise_noted()
        gc.freeze()  # torch's objects; the next collection would take as long as everything that follows
        if planned is not None:
            SERVER.fork(has_kernels=has_kernels)


@contextmanager
def _limited_pools(planned: Plan | None) -> Iterator[None]:
    """Let libraries be loaded with the workers' numbers of threads, which the fork server then has, and numpy's
    OpenBLAS with one, so that it starts none: this process can be forked. Afterwards it has as many as ever."""
    if planned is None or "torch" in sys.modules:
        yield
        return
    set_ones = planned.environment | ONE_BLAS_THREAD
    before = {name: os.environ.get(name) for name in set_ones}
    os.environ.update(set_ones)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    from hogwild.host.thread_pools import set_threads

    set_threads(len(host.affinity()))


def _with_all_cores(planned: Plan) -> Plan:
    """Undo an affinity change by the import of torch, which workers started later would inherit."""
    restored = host.restore_affinity(os.environ)
    return replace(planned, reason=f"{planned.reason}; {restored}") if restored else planned
