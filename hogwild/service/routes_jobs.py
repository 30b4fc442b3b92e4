"""The jobs over HTTP: submit, list, look, ask. Functions here check what came and hand it to the loop."""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from hogwild.config.load import load_job
from hogwild.errors import NotFoundError, UsageError
from hogwild.service.environment import allowed, is_possible
from hogwild.service.folders import ID, check_files
from hogwild.service.loop import ServiceLoop
from hogwild.service.states import JobOrder
from hogwild.service.views import Row
from hogwild.service.wishes import cores_for, wishes_of

Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=100)]


class Submission(BaseModel):
    """A job to run. The client draws `id`, so that a repeated request is the same job."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=f"^{ID.pattern}$")
    job_file: Text = Field(description="Path of the job file as the user gave it, for messages.")
    text: str = Field(description="Content of the job file.")
    files: dict[str, str] = Field(default_factory=dict, description="Modules beside it: relative path -> content.")
    others: dict[str, Base64Bytes] = Field(
        default_factory=dict, description="Other files beside it: relative path -> content in base64."
    )
    overrides: list[Text] = Field(default_factory=list, max_length=1000)
    folder: Text | None = Field(None, description="Current folder of the job, absolute; default: the service's own.")
    job_folder: Text | None = Field(
        None, description="Folder of the user's job file, absolute: data files may lie there; default: that of `files`."
    )
    data_dir: Text | None = None
    environment: dict[str, str] | None = Field(None, description="Its environment; default: the service's own.")

    @property
    def copies(self) -> dict[str, bytes]:
        """The job file and all that is copied with it: relative path -> content."""
        texts = {**self.files, copied_name(self): self.text}
        return {**self.others, **{name: text.encode() for name, text in texts.items()}}


class JobList(BaseModel):
    """All jobs, the oldest first. `version` grows with every change."""

    version: int
    jobs: list[Row]


class Draft(BaseModel):
    """A job file to be checked."""

    model_config = ConfigDict(extra="forbid")

    text: str
    job_file: Text = "job.yaml"
    overrides: list[Text] = Field(default_factory=list, max_length=1000)


def jobs_router(loop: ServiceLoop) -> APIRouter:
    """Return the routes below /api/v1."""
    routes = APIRouter(prefix="/api/v1", tags=["jobs"])

    @routes.post("/jobs", status_code=201)
    async def submit(given: Submission) -> Row:
        """Queue a job. Only `id`, `job_file` and `text` are needed."""
        await asyncio.to_thread(check_submission, given)
        made = partial(order_with, loop, given, given.id, given.overrides)
        order = await asyncio.to_thread(lambda: made(digest_of(given)))
        aside = await asyncio.to_thread(loop.write_aside, given.copies)
        return await asyncio.wrap_future(loop.call(lambda: loop.submit(order, aside)))

    @routes.post("/check")
    def check(given: Draft) -> dict[str, Any]:
        """Check a job file; the errors are those of a refused job."""
        job = load_job(Path(given.job_file), given.overrides, source_text=given.text)
        return {"name": job.name, "cpus": cores_for(job, loop.machine)}

    @routes.get("/jobs", response_model=JobList)
    async def jobs() -> Response:
        """Return all jobs, the oldest first."""
        shown = loop.snapshot
        rows = ",".join(text for _, text in shown.rows.values())
        return Response(f'{{"version":{shown.version},"jobs":[{rows}]}}', media_type="application/json")

    @routes.get("/jobs/{name}")
    async def job(name: Name) -> Row:
        """Return a job by id, number, or beginning of an id."""
        return await asyncio.wrap_future(loop.call(lambda: loop.row(name)))

    @routes.post("/jobs/{name}/{ask}")
    async def ask(name: Name, ask: Literal["cancel", "pause", "resume", "retry"], now: bool = False) -> Row:
        """Cancel, pause, resume or retry a job; does not wait until that is done. `now`: without a checkpoint."""
        return await asyncio.wrap_future(loop.call(lambda: loop.ask(name, ask, now)))

    @routes.delete("/jobs/{name}", status_code=204)
    async def delete(name: Name) -> None:
        """Remove an ended or paused job, with its run directory."""
        await asyncio.wrap_future(loop.call(lambda: loop.delete(name)))

    return routes


def copied_name(given: Submission) -> str:
    return os.path.basename(given.job_file) or "job.yaml"


def digest_of(given: Submission) -> str:
    return hashlib.sha256(given.model_dump_json().encode()).hexdigest()


def check_submission(given: Submission) -> None:
    """Check all but the job. Raises UsageError, NotFoundError."""
    check_files(given.copies)
    paths = (given.job_file, given.job_folder or "", given.folder or "", given.data_dir or "")
    for text in (*paths, *given.overrides):
        if not is_possible("", text):
            raise UsageError(f"{text!r} has characters that no path may have", code="service/bad-file")
    for folder, what in ((given.folder, "the current folder"), (given.data_dir, "--data-dir")):
        if folder is not None and not (os.path.isabs(folder) and os.path.isdir(folder)):
            raise NotFoundError(f"{what} {folder}: there is no such folder", code="service/no-folder")


def order_with(loop: ServiceLoop, given: Submission, name: str, overrides: Sequence[str], digest: str) -> JobOrder:
    """Return the order of job `name` of a checked submission. Raises ConfigError, UsageError."""
    job = load_job(Path(given.job_file), overrides, source_text=given.text)
    return JobOrder(
        id=name,
        number=0,  # the loop gives it
        submitted=time.time(),
        job_file=given.job_file,
        copied=copied_name(given),
        job_folder=str(loop.state.job(name).files) if given.job_folder is None else given.job_folder,
        overrides=tuple(overrides),
        folder=os.getcwd() if given.folder is None else given.folder,
        data_dir=given.data_dir,
        environment=allowed(os.environ if given.environment is None else given.environment),
        digest=digest,
        mark=secrets.token_hex(16),
        **wishes_of(job, loop.machine),
    )
