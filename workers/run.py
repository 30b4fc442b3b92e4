"""One job from its description to its summary. The command line and `hogwild.train` both come through here.

    describe   workers/session/startup.py       the job, and where it comes from
    plan       hogwild/planning/job_plan.py      every decision, and why
               (here torch is imported, and the fork server forked)
    read       hogwild/job/build.py              model, loss, optimizer and data as objects; the plan is completed
    share      workers/execution.py             all of it in shared memory
    run        workers/execution.py              workers, until the end; checkpoints, records, summary

Imports no torch itself: the fork server is forked as soon as it is imported, and before anything else is there.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild import host, user_code
from hogwild.cluster.launch import Launch
from hogwild.config.load import Job
from hogwild.config.of_run import looking_where
from hogwild.config.rules import reads_standard_input
from hogwild.data.standard_input import check_standard_input, keeping, refuse
from hogwild.errors import UsageError
from hogwild.host.background_thread import freeze
from hogwild.job.foreseen_kernels import foreseen
from hogwild.kernels.kernel_cache import compiling, uncached
from hogwild.models import has_kernels
from hogwild.monitoring.profile_report import Window
from hogwild.planning.cpu_plan import SLEEPING, MachineFacts, may_fork
from hogwild.planning.job_plan import JobPlan, plan_job
from hogwild.workers.child.entry import without_collecting
from hogwild.workers.processes.fork_server import ONE_BLAS_THREAD, SERVER, usual_threads
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.session.startup import COMMAND_LINE, Description, StartUp
from hogwild.workers.warning_reports import hearing_warnings

if TYPE_CHECKING:
    from hogwild.feeds.row_reader import Reader
    from hogwild.job.parts import Parts
    from hogwild.workers.execution import Result


COMPILING = "compiling kernels, once on this machine: up to half a minute; later runs load them"


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

    def read(plan: JobPlan, reader: "Reader") -> "Parts":
        from hogwild.job.build import build

        return build(plan, data_dir, reader, run=resume)

    description = Description(
        job=job,
        read=read,
        job_text=job_text,
        run_dir=run_dir,
        resume=resume,
        data_dir=data_dir.absolute() if data_dir else None,
        job_file=job_file.absolute() if job_file else None,
        profile=profile,
        began_s=host.process_start_s(),
        launch=launch,
        kernels=foreseen(job),
    )
    looking = nullcontext() if resume is None else looking_where(resume)
    with looking, _begun(description, is_real=not dry_run, progress=progress) as (plan, group, startup):
        from hogwild.workers import execution

        host.raise_noted()
        user_folders = tuple(user_code.user_path(job_file))  # after our imports: user folders could shadow them
        description = replace(description, user_folders=user_folders)
        if dry_run:
            return execution.dry(description, plan, startup)
        return execution.run(description, plan, group, startup).summary


def run(description: Description) -> "Result":
    """Run a job for the library: train. The fork server stays for the next call."""
    if description.job.cluster.engine != "none":
        raise UsageError(
            "cluster.engine: only the command line trains on several nodes, from a job file (docs/cluster.md)",
            code="cluster/library",
        )
    Launch.of("none", os.environ)  # raises, if it is one of many that all would train
    with _begun(description, is_real=True) as (plan, group, startup):
        from hogwild.workers import execution

        return execution.run(description, plan, group, startup)


@contextmanager
def _begun(
    description: Description, *, is_real: bool, progress: bool | None = None
) -> Iterator[tuple[JobPlan, ProcessGroup, StartUp]]:
    """Yield the plan, the group of processes, and what shows the start and holds the run directory; at the end none of
    them is left. A dry run starts no process."""
    if is_real:
        host.require_main_thread()
    job, resume, foreseen_kernels = description.job, description.resume, description.kernels
    is_with_numba = bool(foreseen_kernels) or (has_kernels(job.model.class_path) and job.train.update != "autograd")
    may_have_server, is_command = is_real and may_fork(job.train.device), description.caller == COMMAND_LINE
    nodes = 0 if description.launch is None else description.launch.world
    keeps_input = reads_standard_input(job.data.train)
    if keeps_input:
        if not is_real:
            raise refuse("which a dry run would use up")
        check_standard_input()
    make_plan = partial(plan_job, job, nodes=nodes, is_resumed=resume is not None)
    plan = make_plan(facts := MachineFacts.here())
    try:
        if is_real:
            # The lease first, then the others': of two jobs that begin at once, one at least sees the other.
            host.lease_cores(max(1, plan.procs), plan.leased_threads)
            if (others := host.other_core_leases()) != facts.others:
                plan = make_plan(replace(facts, others=others))
        is_forked = may_have_server and plan.procs > 0
        if is_command:  # OpenMP reads it when it is loaded, here or in the server
            os.environ.update({name: value for name, value in plan.environment.items() if name in SLEEPING})
        missing = uncached(foreseen_kernels) if is_real and plan.procs else ()
        kernels = json.dumps([one.plain() for one in foreseen_kernels]) if is_with_numba else ""
        group = ProcessGroup(job.supervise)
        startup = StartUp(job, plan.procs, progress=progress, caller=description.caller)
        with group, startup, host.naming_limits(), compiling(missing):
            if is_real:
                startup.open_run(description.run_dir, resume)
            if is_command:
                startup.announce()
                _import_all(plan if is_forked else None, kernels)
            elif is_forked:
                SERVER.start(plan.environment, kernels=kernels)
            with hearing_warnings(partial(group.warn, is_seen=True)):
                if is_real:
                    group.stacks.rundir = startup.rundir
                    group.start(plan, plan.early_loaders, int(plan.nodes > 0), is_forked=is_forked)
                startup.start(COMPILING if missing else "")
                if restored := host.restore_affinity(os.environ):  # workers inherit what the import has changed
                    plan = replace(plan, reason=f"{plan.reason}; {restored}")
                with keeping(startup.rundir.path) if keeps_input else nullcontext():
                    yield plan, group, startup
    finally:
        host.end_core_lease()
        if is_command:
            SERVER.close()


def _import_all(planned: JobPlan | None, kernels: str) -> None:
    """Import torch and what workers import; with a plan, fork the fork server as soon as that saves time. It holds
    nothing of the run directory that is open here (`host.let_go`)."""
    with _one_blas_thread(), without_collecting():
        is_early = planned is not None and kernels != ""
        importlib.import_module("torch")
        if is_early:  # numba takes longer than what this process still has to do
            freeze()
            SERVER.fork(kernels=kernels)
        for module in ("hogwild.workers.child.build", "hogwild.workers.execution"):
            importlib.import_module(module)
        host.raise_noted()
        freeze()
        if planned is not None and not is_early:
            SERVER.fork(kernels=kernels)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Let numpy be loaded with an OpenBLAS of one thread, so that it starts none and this process can be forked.
    Afterwards it has as many as it would have; and so has all else in a command that is a fork itself."""
    (name,) = ONE_BLAS_THREAD
    is_loaded, before = "numpy" in sys.modules, os.environ.get(name)
    os.environ.update(ONE_BLAS_THREAD)
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})
    from hogwild.host.thread_pools import set_blas_threads, set_threads

    if usual := usual_threads():
        set_threads(usual)
    elif not is_loaded:
        told = before or os.environ.get("OMP_NUM_THREADS", "")
        set_blas_threads(int(told) if told.isdecimal() else len(host.affinity()))
