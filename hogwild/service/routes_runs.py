"""Routes for one job's run directory: curves, logs, events, checkpoints, configuration, requests to a live job,
predictions. Files are read in threads; the service computes nothing.

A job that goes on from a checkpoint of another one is new, with a run directory of its own:

    jobs/OLD/run/  checkpoints/NAME ── hard links, or copies ──►  jobs/.tmp-…/run/  ── renamed ──►  jobs/NEW/run/
                   job.yaml resolved.yaml names.json metrics.jsonl env.json (with the new paths)

It is started as any job whose run can be resumed: `train --resume` drops the records after the checkpoint. The status,
events, summary and logs of the old attempts stay behind."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from hogwild.config.load import load_job
from hogwild.errors import ConflictError, NotFoundError, RunEndedError, StorageFullError, UsageError
from hogwild.monitoring.live_calls import LiveCalls
from hogwild.monitoring.run_status import read_status
from hogwild.service import run_reader
from hogwild.service.folders import ID, JobFolder, files_of
from hogwild.service.loop import ServiceLoop
from hogwild.service.routes_jobs import Text, wishes_of
from hogwild.service.rows import Row
from hogwild.service.run_reader import Followed
from hogwild.service.states import JobOrder
from hogwild.storage.checkpoint_format import FILES, MANIFEST, verify
from hogwild.storage.files import replace as replace_file
from hogwild.storage.files import sync_folder
from hogwild.storage.run_directory import ENV, KNOWN, NAMES, RESOLVED
from hogwild.storage.run_files import (
    CHECKPOINTS,
    answer_to,
    checkpoints_in,
    opened,
    read_json,
    read_small,
    size_of_events,
    withdraw,
    write_request,
)

ANSWER_S = 30.0  # at most, for a live job's answer
LOOK_S = 0.1  # a supervisor looks for requests as often
CHUNK = 1 << 20
# The page of a search has its style inside, and no script.
SEARCH_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
}
Name = Annotated[str, Path(max_length=100, description="Id, number, or beginning of an id of a job.")]
Checkpoint = Annotated[str, Path(pattern="^update-[0-9]{9,18}$", description="Name of a checkpoint.")]
Cpu = Annotated[int, Field(ge=0, le=65535)]


class Continuation(BaseModel):
    """A job that goes on from a checkpoint. The client draws `id`, so that a repeated request is the same job."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(default_factory=lambda: secrets.token_hex(6), pattern=f"^{ID.pattern}$")
    overrides: list[Text] = Field(
        default_factory=list, max_length=1000, description="Changes, such as train.epochs=20: a job that had ended."
    )


class LiveRequest(BaseModel):
    """A request to a running job."""

    model_config = ConfigDict(extra="forbid")

    ask: Literal["checkpoint", "stacks", "resize"]
    procs: int | None = Field(None, ge=1, le=9999, description="resize: number of workers.")
    cores: list[Cpu] | None = Field(
        None, min_length=1, max_length=4096, description="resize: logical CPUs, of those that the job has."
    )


class Rows(BaseModel):
    """Rows to predict: `text` as in a file like that of the training data, or the `inputs` of the model."""

    model_config = ConfigDict(extra="forbid")

    text: str | None = Field(None, description="A table with its header, or libsvm rows; targets may be missing.")
    inputs: list[Any] | None = Field(
        None, min_length=1, max_length=64, description="For each input of the model, its rows as nested lists."
    )
    dtypes: list[Literal["float32", "float64", "int64", "int32", "bool"]] | None = Field(
        None, description="Of the inputs; default: float32 for numbers with a point, int64 for others."
    )
    raw: bool = Field(False, description="The model's outputs as they are, also of one that classifies.")
    consistent: bool = Field(False, description="Wait for a pause of the training, when no parameter changes.")


class Predictions(BaseModel):
    """Answers for rows. `updates`: those that the model had; `columns`: a value per row, by name."""

    updates: int
    columns: dict[str, list[Any]]


def runs_router(loop: ServiceLoop, followed: Followed, search_page: Callable[[FilePath], str]) -> APIRouter:
    """Return the routes below /api/v1/jobs/ID. `search_page` makes the page of a search from its folder."""
    routes, free = APIRouter(prefix="/api/v1/jobs/{name}", tags=["runs"]), threading.Semaphore(MOST_CALLS)

    async def row_of(name: str) -> Row:
        return await asyncio.wrap_future(loop.call(lambda: loop.row(name)))

    async def run_of(name: str) -> FilePath:
        return FilePath((await row_of(name))["run_dir"])

    @routes.get("/metrics")
    async def metrics(name: Name) -> dict[str, Any]:
        """Return the curves, thinned."""
        return await asyncio.to_thread(followed.run(await run_of(name)).curves)

    @routes.get("/search", response_class=HTMLResponse)
    async def search(name: Name) -> HTMLResponse:
        """Return the page of a search as it is now."""
        return HTMLResponse(await asyncio.to_thread(search_page, await run_of(name)), headers=SEARCH_HEADERS)

    @routes.get("/events")
    async def events(name: Name) -> list[dict[str, Any]]:
        """Return the newest events of the run, the oldest first."""
        return await asyncio.to_thread(followed.run(await run_of(name)).events)

    @routes.get("/config")
    async def config(name: Name) -> dict[str, Any]:
        """Return the job file, and where each value came from: the file, the command line or a default."""
        order = await asyncio.wrap_future(loop.call(lambda: loop.order(name)))
        return await asyncio.to_thread(run_reader.config_of, order, loop.state.job(order.id))

    @routes.get("/logs")
    async def logs(name: Name) -> list[dict[str, Any]]:
        """List the logs: the supervisor's, then those of workers and loaders."""
        return await asyncio.to_thread(run_reader.logs_in, await run_of(name))

    @routes.get("/log", response_class=PlainTextResponse)
    async def log(
        name: Name,
        worker: Annotated[int | None, Query(ge=0, le=9999)] = None,
        of: Annotated[str, Query(pattern="^[a-z]{1,20}(-[0-9]{1,4})?$", description="A name that /logs lists.")] = (
            "supervisor"
        ),
        search: Annotated[
            str, Query(max_length=200, description="Only lines that contain this, in any case; of the last 256 MiB.")
        ] = "",
    ) -> str:
        """Return the end of a log, or the newest lines of it that a search finds."""
        which = of if worker is None else f"worker-{worker}"
        return await asyncio.to_thread(run_reader.read_log, await run_of(name), which, search)

    @routes.get("/checkpoints")
    async def checkpoints(name: Name) -> list[dict[str, Any]]:
        """List the checkpoints, the newest first."""
        return await asyncio.to_thread(checkpoints_in, await run_of(name))

    @routes.get("/checkpoints/{checkpoint}/export", response_class=StreamingResponse)
    async def export(name: Name, checkpoint: Checkpoint) -> StreamingResponse:
        """Return the model of a checkpoint, as a safetensors file."""
        row = await row_of(name)
        stream, size = await asyncio.to_thread(run_reader.opened_model, FilePath(row["run_dir"]), checkpoint)
        headers = {
            "content-length": str(size),
            "content-disposition": f'attachment; filename="job-{row["number"]}-{checkpoint}.safetensors"',
        }
        return StreamingResponse(_chunks(stream), media_type="application/octet-stream", headers=headers)

    @routes.post("/checkpoints/{checkpoint}/resume", status_code=201)
    async def resume(name: Name, checkpoint: Checkpoint, given: Continuation) -> Row:
        """Submit a new job that goes on from a copy of this checkpoint, in a run directory of its own."""
        old = await asyncio.wrap_future(loop.call(lambda: loop.order(name)))
        made, aside = await asyncio.to_thread(_continued, loop, old, checkpoint, given)
        return await asyncio.wrap_future(loop.call(lambda: loop.submit(made, aside)))

    @routes.post("/predict")
    async def predict(name: Name, given: Rows) -> Predictions:
        """Predict rows with the model of a running job as it is now. The first call starts its predictor and waits
        at most 30 s for it; so long, too, for a pause."""
        row = await row_of(name)
        if (given.text is None) == (given.inputs is None):
            raise UsageError("give text or inputs, one of them", code="usage/contradiction")
        if row["state"] != "running":
            words = f"job {row['number']} is {row['state']}: only a running job has a live predictor"
            raise ConflictError(words, code="service/wrong-state")
        if not free.acquire(blocking=False):
            raise ConflictError(f"{MOST_CALLS} calls to predictors are waiting; call again", code="predict/busy")
        done: Future[Predictions] = Future()
        done.set_running_or_notify_cancel()  # the call goes on, even if nobody waits for its answer any more
        done.add_done_callback(lambda _: free.release())

        def call() -> None:
            try:
                done.set_result(_predicted(FilePath(row["run_dir"]), given))
            except Exception as error:  # raised where the call was made
                done.set_exception(error)

        threading.Thread(target=call, name="predict", daemon=True).start()  # does not delay the end of the service
        return await asyncio.wrap_future(done)

    @routes.post("/requests")
    async def request(name: Name, given: LiveRequest) -> dict[str, Any]:
        """Ask a running job for a checkpoint, for the stacks of its processes, or for other workers and cores; wait for
        its answer."""
        row = await row_of(name)
        check_request(given, row)
        run = FilePath(row["run_dir"])
        stacks = await asyncio.to_thread(run_reader.sizes_of_stacks, run)
        answer = await _ask(run, given.model_dump(exclude_none=True))
        if given.ask == "stacks":
            answer["text"] = await asyncio.to_thread(run_reader.read_stacks, run, stacks)
        return answer

    return routes


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(CHUNK):
            yield chunk


def _continued(loop: ServiceLoop, order: JobOrder, checkpoint: str, given: Continuation) -> tuple[JobOrder, FilePath]:
    """Return the order of the new job, and the folder aside with its files and its run. Raises ConfigError, UsageError,
    NotFoundError, CheckpointError, StorageFullError."""
    old = loop.state.job(order.id)
    resolved = read_small(old.run, RESOLVED)
    if resolved is None:
        raise NotFoundError(f"{old.run} has no {RESOLVED}", code="run/not-a-run")
    files = files_of(old)
    asked = load_job(FilePath(order.job_file), order.overrides, source_text=files.get(order.copied, b"").decode())
    # The run's own number of workers may be what the service gave its last attempt.
    changes = [f"train.procs={asked.train.procs}", *order.changes, *given.overrides]
    job = load_job(old.run / RESOLVED, changes, source_text=resolved)
    digest = hashlib.sha256(f"resume {order.id} {checkpoint} {given.overrides}".encode()).hexdigest()
    own: dict[str, Any] = {"id": given.id, "submitted": time.time(), "digest": digest, "mark": secrets.token_hex(16)}
    changed = {"changes": tuple(changes), **wishes_of(job, loop.machine)}
    made, aside = loop.write_aside(replace(order, **own, **changed), files)
    try:
        copy_checkpoint(old, checkpoint, aside, loop.state.job(given.id))
        sync_folder(aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        loop.return_number(made)
        raise
    return made, aside


def check_request(given: LiveRequest, row: Row) -> None:
    """Raise UsageError for fields that do not belong together, ConflictError if the job cannot answer."""
    if (given.ask == "resize") != (given.procs is not None or given.cores is not None):
        raise UsageError("procs and cores belong to resize, which needs one of them", code="usage/contradiction")
    if given.cores is not None and row["elastic"] and not row["fixed"]:
        raise ConflictError(
            f"the service moves the cores of job {row['number']} (queue.elastic), and others may have them when it "
            "looks; resize it by procs alone",
            code="service/wrong-state",
        )
    if given.cores is not None and not set(given.cores) <= set(row["cores"]):
        raise UsageError(
            f"cores: must be among {row['cores']}, which job {row['number']} has, got {given.cores}",
            code="service/too-much",
        )
    if row["state"] != "running":
        raise ConflictError(
            f"job {row['number']} is {row['state']}: only a running job answers requests", code="service/wrong-state"
        )


async def _ask(run: FilePath, request: dict[str, Any]) -> dict[str, Any]:
    """Write a request and wait for its answer. Raises RunEndedError, ConflictError, RunDirError."""
    begin = await asyncio.to_thread(size_of_events, run)
    name = await asyncio.to_thread(write_request, run, request)
    until = time.monotonic() + ANSWER_S
    try:
        while True:
            is_alive = (await asyncio.to_thread(read_status, run)).is_alive  # before: its last answer is found
            is_last = time.monotonic() > until
            if (answer := await asyncio.to_thread(answer_to, run, name, begin)) is not None:
                return answer
            if not is_alive:
                raise RunEndedError("the job ended before it answered", code="run/ended")
            if is_last:
                raise ConflictError(
                    f"no answer within {ANSWER_S:g} s: is the job stopped, or busy in user code?", code="run/no-answer"
                )
            await asyncio.sleep(LOOK_S)
    finally:
        withdraw(run, name)


DESCRIPTIONS = ("job.yaml", RESOLVED)  # without them there is no run
METRICS = "metrics.jsonl"


def copy_checkpoint(old: JobFolder, name: str, aside: FilePath, new: JobFolder) -> None:
    """Make aside/run a run that can be resumed from checkpoint `name` of `old`; `new`: the folder that `aside` will
    become. Raises NotFoundError, CheckpointError, StorageFullError."""
    run, target = aside / "run", aside / "run" / CHECKPOINTS / name
    described = {one: read_small(old.run, one) for one in DESCRIPTIONS}
    if None in described.values():
        raise NotFoundError(f"{old.run} has no {' or no '.join(DESCRIPTIONS)}", code="run/not-a-run")
    try:
        target.mkdir(parents=True)
        for file in (*FILES, MANIFEST):
            _take(old.run, (CHECKPOINTS, name, file), target / file)
        for one in (NAMES, KNOWN, METRICS):  # not every run has them; they may be large
            with contextlib.suppress(FileNotFoundError):
                _take(old.run, (one,), run / one, may_link=False)
        environment = _moved(read_json(old.run, ENV), str(old.files), str(new.files))
        described[ENV] = json.dumps(environment)
        for one, text in described.items():
            if text is not None:
                replace_file(run / one, text.encode(), sync=True)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the checkpoint is gone, perhaps replaced by newer ones: {error}", code="export/no-checkpoint"
        ) from None
    except OSError as error:
        raise StorageFullError(f"the checkpoint was not copied to {aside}: {error.strerror or error}") from error
    verify(target)


def _take(run: FilePath, names: tuple[str, ...], target: FilePath, *, may_link: bool = True) -> None:
    """Link a file that never changes, which costs no space; copy it where that is not possible."""
    with opened(run, *names) as source:  # refuses links, which `os.link` would follow or copy
        if may_link:
            with contextlib.suppress(OSError):
                os.link(run.joinpath(*names), target, follow_symlinks=False)
                if os.path.samestat(os.fstat(source.fileno()), target.lstat()):
                    return
                target.unlink()
        with open(target, "xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())


def _moved(value: Any, old: str, new: str) -> Any:
    """Return the value with paths below `old` moved below `new`: the old job may be deleted."""
    if isinstance(value, dict):
        return {key: _moved(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [_moved(one, old, new) for one in value]
    is_inside = isinstance(value, str) and (value == old or value.startswith(f"{old}/"))
    return new + value[len(old) :] if is_inside else value


LIMIT_S = 30.0  # for a predictor to start, and for an answer
MOST_CALLS = 16  # at the same time


def _predicted(run: FilePath, given: Rows) -> Predictions:
    rows = given.model_dump(exclude_none=True, exclude={"consistent"})
    header = {"do": "predict", "form": "json", "consistent": given.consistent}
    with LiveCalls(run, start_s=LIMIT_S) as calls:
        answer, content = calls.call(header, json.dumps(rows).encode(), limit_s=LIMIT_S)
    return Predictions(updates=answer["updates"], columns=json.loads(content))
