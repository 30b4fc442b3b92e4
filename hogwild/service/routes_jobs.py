"""The jobs over HTTP: submit, list, look, ask. Functions here check what came and hand it to the loop."""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field

from hogwild import host
from hogwild.config.field_types import nbytes
from hogwild.config.load import Job, load_job
from hogwild.errors import NotFoundError, UsageError
from hogwild.formatting import size
from hogwild.service import stream
from hogwild.service.environment import allowed, is_possible
from hogwild.service.folders import ID, check_files
from hogwild.service.follow import Followed
from hogwild.service.loop import ServiceLoop
from hogwild.service.schedule import Machine
from hogwild.service.states import JobOrder
from hogwild.service.views import Row

LOG_BYTES = 256 * 1024  # of a log, in one answer
Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=100)]


class Submission(BaseModel):
    """A job to run. The client draws `id`, so that a repeated request is the same job."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=f"^{ID.pattern}$")
    job_file: Text = Field(description="Path of the job file as the user gave it, for messages.")
    text: str = Field(description="Content of the job file.")
    files: dict[str, str] = Field(default_factory=dict, description="Modules beside it: relative path -> content.")
    overrides: list[Text] = Field(default_factory=list, max_length=1000)
    folder: Text = Field(description="Current folder of the job, absolute.")
    job_folder: Text = Field(description="Folder of the user's job file, absolute: data files may lie there.")
    data_dir: Text | None = None
    environment: dict[str, str] = Field(default_factory=dict)


class Draft(BaseModel):
    """A job file to be checked."""

    model_config = ConfigDict(extra="forbid")

    text: str
    job_file: Text = "job.yaml"
    overrides: list[Text] = Field(default_factory=list, max_length=1000)


def jobs_router(loop: ServiceLoop, changes: stream.Changes) -> APIRouter:
    """Return the routes below /api/v1."""
    routes = APIRouter(prefix="/api/v1", tags=["jobs"])
    followed = Followed()

    @routes.post("/jobs", status_code=201)
    async def submit(given: Submission) -> Row:
        order = await asyncio.to_thread(order_of, given, loop.machine)
        aside = await asyncio.to_thread(loop.write_aside, {**given.files, order.copied: given.text})
        return await asyncio.wrap_future(loop.call(lambda: loop.submit(order, aside)))

    @routes.post("/check")
    def check(given: Draft) -> dict[str, Any]:
        """Check a job file; the errors are those of a refused job."""
        job = load_job(Path(given.job_file), given.overrides, source_text=given.text)
        return {"name": job.name, "cpus": cores_for(job, loop.machine)}

    @routes.get("/jobs")
    async def jobs() -> Response:
        """Return all jobs, the oldest first."""
        shown = loop.snapshot
        rows = ",".join(text for _, text in shown.rows.values())
        return Response(f'{{"version":{shown.version},"jobs":[{rows}]}}', media_type="application/json")

    @routes.get("/jobs/{name}")
    async def job(name: Name) -> Row:
        return await asyncio.wrap_future(loop.call(lambda: loop.row(name)))

    @routes.post("/jobs/{name}/{ask}")
    async def ask(name: Name, ask: Literal["cancel", "pause", "resume", "retry"], now: bool = False) -> Row:
        return await asyncio.wrap_future(loop.call(lambda: loop.ask(name, ask, now)))

    @routes.delete("/jobs/{name}", status_code=204)
    async def delete(name: Name) -> None:
        """Remove an ended or paused job, with its run directory."""
        await asyncio.wrap_future(loop.call(lambda: loop.delete(name)))

    @routes.get("/jobs/{name}/metrics")
    async def metrics(name: Name) -> dict[str, Any]:
        """Return the curves, thinned."""
        run = await _run_of(name)
        return await asyncio.to_thread(followed.read, run)

    @routes.get("/jobs/{name}/log", response_class=PlainTextResponse)
    async def log(name: Name, worker: Annotated[int | None, Query(ge=0, le=9999)] = None) -> str:
        """Return the end of a log: the supervisor's, or a worker's."""
        run = await _run_of(name)
        return await asyncio.to_thread(_tail_of, run, worker)

    @routes.get("/stream", response_class=EventSourceResponse)
    async def streamed() -> AsyncIterator[ServerSentEvent]:
        """Send the jobs that change, as events."""
        async for event in stream.events(loop, changes):
            yield event

    async def _run_of(name: str) -> Path:
        row = await asyncio.wrap_future(loop.call(lambda: loop.row(name)))
        return Path(row["run_dir"])

    return routes


def cores_for(job: Job, machine: Machine) -> int:
    """Return the physical cores that a job is given: `resources.cpus`, or workers x threads, at most those of the
    machine. Raises UsageError if it asks for more than the machine has."""
    cores, procs, threads = len(machine.cores), job.train.procs, job.train.threads
    memory = host.machine_memory().bytes
    for name, wanted, there in (
        ("cpus", job.resources.cpus or 0, cores),
        ("gpus", job.resources.gpus, len(machine.gpus)),
        ("memory", reserved_bytes(job), memory),
    ):
        if wanted > there:
            unit = size if name == "memory" else str
            raise UsageError(
                f"resources.{name}: must be <= {unit(there)}, which is what this machine has, got {unit(wanted)}",
                code="service/too-much",
            )
    if job.resources.cpus is not None:
        return job.resources.cpus
    if procs == "auto":
        return cores
    return min(max(procs, 1) * (threads if isinstance(threads, int) else 1), cores)


def reserved_bytes(job: Job) -> int:
    return 0 if job.resources.memory is None else nbytes(job.resources.memory)


def order_of(given: Submission, machine: Machine) -> JobOrder:
    """Check a submission. Raises UsageError, ConfigError, NotFoundError."""
    check_submission(given)
    return order_with(given, given.id, given.overrides, digest_of(given), machine)


def copied_name(given: Submission) -> str:
    return os.path.basename(given.job_file) or "job.yaml"


def digest_of(given: Submission) -> str:
    return hashlib.sha256(given.model_dump_json().encode()).hexdigest()


def check_submission(given: Submission) -> None:
    """Check all but the job. Raises UsageError, NotFoundError."""
    check_files({**given.files, copied_name(given): given.text})
    for text in (given.job_file, given.job_folder, given.folder, given.data_dir or "", *given.overrides):
        if not is_possible("", text):
            raise UsageError(f"{text!r} has characters that no path may have", code="service/bad-file")
    for folder, what in ((given.folder, "the current folder"), (given.data_dir, "--data-dir")):
        if folder is not None and not (os.path.isabs(folder) and os.path.isdir(folder)):
            raise NotFoundError(f"{what} {folder}: there is no such folder", code="service/no-folder")


def order_with(given: Submission, name: str, overrides: Sequence[str], digest: str, machine: Machine) -> JobOrder:
    """Return the order of job `name` of a checked submission. Raises ConfigError, UsageError."""
    job = load_job(Path(given.job_file), overrides, source_text=given.text)
    return JobOrder(
        id=name,
        number=0,  # the loop gives it
        name=job.name,
        submitted=time.time(),
        job_file=given.job_file,
        copied=copied_name(given),
        job_folder=given.job_folder,
        overrides=tuple(overrides),
        folder=given.folder,
        data_dir=given.data_dir,
        environment=allowed(given.environment),
        digest=digest,
        mark=secrets.token_hex(16),
        cpus=cores_for(job, machine),
        memory=reserved_bytes(job),
        gpus=job.resources.gpus,
        **job.queue.model_dump(),
    )


def _tail_of(run: Path, worker: int | None) -> str:
    file = run / "logs" / ("supervisor.log" if worker is None else f"worker-{worker}.log")
    try:
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - LOG_BYTES))
            text = stream.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        raise NotFoundError(f"there is no {file.name} of this job", code="run/no-log") from None
    return text if size <= LOG_BYTES else text.partition("\n")[2]
