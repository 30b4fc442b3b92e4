"""Jobs over HTTP: submit, list, look, ask. Functions here check what came and hand it to the loop."""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Container, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from hogwild import host
from hogwild.config.load import Job, load_job
from hogwild.config.rules import reads_standard_input
from hogwild.config.schema import Component, ElasticCores, nbytes
from hogwild.data.locate import places_of
from hogwild.data.standard_input import refuse
from hogwild.errors import ConflictError, NotFoundError, UsageError
from hogwild.formatting import size
from hogwild.service.client import Beside
from hogwild.service.folders import ID, allowed, check_files, files_of, is_possible
from hogwild.service.loop import ServiceLoop
from hogwild.service.rows import Row
from hogwild.service.schedule import Machine
from hogwild.service.states import Elastic, JobOrder

Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=100)]
FILES = ("path", "user_features", "item_features")  # arguments of our data sets that name a file or a folder


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
    copy_of: Name | None = Field(
        None, description="Job whose code, folders, data folder and environment it has, where these are not given."
    )
    from_folder: Text | None = Field(
        None,
        description="Folder of this machine, absolute: its code is copied as `hogwild submit` does, data files may lie "
        "there, and it is the default of `folder`.",
    )

    @property
    def copied_name(self) -> str:
        return os.path.basename(self.job_file) or "job.yaml"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def copies(self) -> dict[str, bytes]:
        """The job file and all that is copied with it: relative path -> content."""
        texts = {**self.files, self.copied_name: self.text}
        return {**self.others, **{name: text.encode() for name, text in texts.items()}}


class JobList(BaseModel):
    """All jobs, the oldest first. `version` grows with every change."""

    version: int
    jobs: list[Row]


class Draft(BaseModel):
    """A job file to be checked, with the same fields as a submission."""

    model_config = ConfigDict(extra="forbid")

    text: str
    job_file: Text = "job.yaml"
    overrides: list[Text] = Field(default_factory=list, max_length=1000)
    files: dict[str, str] = Field(default_factory=dict)
    copy_of: Name | None = None
    from_folder: Text | None = None


def jobs_router(loop: ServiceLoop) -> APIRouter:
    """Return the routes below /api/v1."""
    routes = APIRouter(prefix="/api/v1", tags=["jobs"])

    @routes.post("/jobs", status_code=201)
    async def submit(given: Submission) -> Row:
        """Queue a job. Only `id`, `job_file` and `text` are needed."""
        given = await completed(loop, given)
        order = await asyncio.to_thread(order_of, loop, given)
        order, aside = await asyncio.to_thread(loop.write_aside, order, given.copies)
        return await asyncio.wrap_future(loop.call(lambda: loop.submit(order, aside)))

    @routes.post("/check")
    async def check(given: Draft) -> dict[str, Any]:
        """Check a job file; the errors are those of a refused job."""
        draft = await completed(loop, Submission(id="0" * 12, **given.model_dump()))
        order = await asyncio.to_thread(order_of, loop, draft)
        return {"name": order.name, "cpus": order.cpus, "files": sorted({*draft.copies} - {draft.copied_name})}

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
    async def ask(
        name: Name, ask: Literal["cancel", "pause", "resume", "retry"], now: bool = False, new_code: bool = False
    ) -> Row:
        """Cancel, pause, resume or retry a job; does not wait until that is done. `now`: without a checkpoint.
        `new_code`: a retry with the present code of the job's folder, not with that of its submission."""
        code = await present_code(loop, name, ask) if new_code else None
        return await asyncio.wrap_future(loop.call(lambda: loop.ask(name, ask, now, code)))

    @routes.delete("/jobs/{name}", status_code=204)
    async def delete(name: Name) -> None:
        """Remove an ended or paused job, with its run directory."""
        await asyncio.wrap_future(loop.call(lambda: loop.delete(name)))

    return routes


async def completed(loop: ServiceLoop, given: Submission) -> Submission:
    """Return a submission, checked but for the job, with what it takes from another job or a folder. Raises UsageError,
    NotFoundError."""
    original: JobOrder | None = None
    if (name := given.copy_of) is not None:
        original = await asyncio.wrap_future(loop.call(lambda: loop.order(name)))
    full = await asyncio.to_thread(_completed, loop, given, original)
    await asyncio.to_thread(check_submission, full)
    return full


def _completed(loop: ServiceLoop, given: Submission, original: JobOrder | None) -> Submission:
    own = {**given.files, given.copied_name: given.text}
    taken: dict[str, Any] = {}
    others: dict[str, bytes] = {}
    if original is not None:
        old = loop.state.job(original.id)
        others = {name: content for name, content in files_of(old).items() if name != original.copied}
        where = None if original.job_folder == str(old.files) else original.job_folder  # None: its new copy
        environment = dict(original.environment)
        taken = {"job_folder": where, "environment": environment}
        taken |= {"folder": original.folder, "data_dir": original.data_dir}
    if given.from_folder is not None:
        folder = Path(given.from_folder)
        if not (os.path.isabs(folder) and os.path.isdir(folder)):
            words = f"folder {given.from_folder}: must be an absolute path of a folder on the service's machine"
            raise NotFoundError(words, code="service/no-folder")
        others = Beside.of(folder, len(given.text)).files
        taken |= {"folder": str(folder), "job_folder": str(folder)}
    missing = {name: value for name, value in taken.items() if name not in given.model_fields_set}
    others = {name: content for name, content in {**others, **given.others}.items() if name not in own}
    return given.model_copy(update={**missing, "others": others})


def check_data(job: Job, copied: Container[str], where: Sequence[str | None], data_dir: str | None) -> None:
    """Check that the data files that our data sets name exist: among the `copied`, or where a data set looks for them
    from the folders `where`. Raises NotFoundError. A data set of the user's own does it itself, when it is built."""
    last, directory = [Path(folder) for folder in where if folder is not None], Path(data_dir) if data_dir else None
    for name in ("train", "val"):
        part = getattr(job.data, name)
        is_ours = isinstance(part, Component) and part.class_path.startswith("hogwild.data.")
        for path in [part.init_args.get(field) for field in FILES] if is_ours else ():
            if not isinstance(path, str) or os.path.normpath(path) in copied:
                continue
            looked = places_of(path, part.init_args.get("root"), last, directory)
            own = directory.glob("*/") if directory is not None else ()  # folders of our data sets
            # Not `Path.exists`, which raises for a name that is too long.
            if not any(os.path.exists(folder / os.path.expanduser(path)) for folder in (*looked, *own)):
                places = "" if os.path.isabs(path) else f" in {', '.join(map(str, looked))}"
                raise NotFoundError(
                    f"data.{name}: {part.class_path}: there is no {path}{places}; correct the path, or give the folder "
                    "of the data (--data-dir, or `folder` on the page)",
                    code="data/not-found",
                )


async def present_code(loop: ServiceLoop, name: str, ask: str) -> dict[str, bytes]:
    """Return what lies beside a job's own job file now: relative path -> content, for `retry` with new code. Raises
    UsageError, NotFoundError, ConflictError."""
    if ask != "retry":
        raise UsageError(f"new_code belongs to retry, not to {ask}", code="usage/contradiction")
    order = await asyncio.wrap_future(loop.call(lambda: loop.order(name)))
    if order.job_folder == str(loop.state.job(order.id).files):
        words = f"job {order.number} was submitted without a folder, so there is no newer code: submit a changed copy"
        raise ConflictError(words, code="service/wrong-state")
    if not os.path.isdir(order.job_folder):
        raise NotFoundError(f"the folder of job {order.number} is gone: {order.job_folder}", code="service/no-folder")
    files = (await asyncio.to_thread(Beside.of, Path(order.job_folder), 0)).files
    check_files(files)
    return {one: content for one, content in files.items() if one != order.copied}


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


def order_of(loop: ServiceLoop, given: Submission) -> JobOrder:
    """Return the order of a checked submission. Raises ConfigError, UsageError."""
    job = load_job(Path(given.job_file), given.overrides, source_text=given.text)
    if job.search is not None and find_spec("optuna") is None:
        raise UsageError(
            "a search needs optuna, where the service runs: pip install 'hogwild[search]'; to train the job as it is "
            "written, submit it with search=null",
            code="usage/missing-extra",
        )
    if reads_standard_input(job.data.train):
        raise refuse("and a job of the service has none; follow a file: producer >> lines.jsonl")
    environment = allowed(os.environ if given.environment is None else given.environment)
    folder = os.getcwd() if given.folder is None else given.folder
    check_data(job, given.copies, (given.job_folder, folder), given.data_dir or environment.get("HOGWILD_DATA"))
    return JobOrder(
        id=given.id,
        number=0,  # `write_aside` gives it
        submitted=time.time(),
        job_file=given.job_file,
        copied=given.copied_name,
        job_folder=str(loop.state.job(given.id).files) if given.job_folder is None else given.job_folder,
        overrides=tuple(given.overrides),
        folder=folder,
        data_dir=given.data_dir,
        environment=environment,
        digest=given.digest,
        mark=secrets.token_hex(16),
        is_search=job.search is not None,
        **wishes_of(job, loop.machine),
    )


def wishes_of(job: Job, machine: Machine) -> dict[str, Any]:
    """Return the fields of an order that the job file decides. Raises UsageError as `cores_for` does."""
    return {
        "name": job.name,
        "tags": tuple(job.tags),
        "cpus": cores_for(job, machine),
        "memory": reserved_bytes(job),
        "gpus": job.resources.gpus,
        "elastic": elastic_of(job, machine),
        **job.queue.model_dump(exclude={"elastic"}),
    }


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
    elastic = elastic_of(job, machine)
    parallel = 1 if job.search is None else job.search.parallel
    if job.resources.cpus is not None:
        wish = job.resources.cpus
    elif parallel == "auto" or (procs == "auto" and job.search is None):
        wish = cores
    else:
        of_one = (1 if procs == "auto" else max(procs, 1)) * (threads if isinstance(threads, int) else 1)
        wish = min(parallel * of_one, cores)
    return wish if elastic is None else min(max(wish, elastic.least), elastic.most)


def elastic_of(job: Job, machine: Machine) -> Elastic | None:
    """Return the cores that a job may have while it runs; None if it keeps those that it begins with. Raises UsageError
    if it asks for more than the machine has."""
    is_bound = job.train.pin or job.data.lanes is not None or job.resources.gpus > 0
    if job.search is not None:
        given_by_trials = {"train.procs", "train.pin", "data.lanes", "resources.gpus"}.intersection(job.search.space)
        is_bound = is_bound or bool(given_by_trials) or job.search.parallel != "auto"
    if job.queue.elastic is None and (job.train.procs != "auto" or is_bound):
        return None
    given, cores = job.queue.elastic or ElasticCores(), len(machine.cores)
    threads, workers = job.train.threads if isinstance(job.train.threads, int) else 1, job.supervise.min_workers
    if job.search is not None and isinstance(job.train.procs, int):  # a trial comes or goes
        threads, workers = min(threads * max(1, job.train.procs), cores), 1
    least = max(given.min, workers * threads)
    most = given.max if isinstance(given.max, int) else cores
    if least > cores:
        if job.queue.elastic is None:
            return None
        raise UsageError(
            f"queue.elastic.min: the job needs {least} cores (min {given.min}; supervise.min_workers "
            f"{job.supervise.min_workers} x {threads} threads); this machine has {cores}",
            code="service/too-much",
        )
    return Elastic(least, max(most, least), threads)


def reserved_bytes(job: Job) -> int:
    return 0 if job.resources.memory is None else nbytes(job.resources.memory)
