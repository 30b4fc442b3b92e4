"""Routes for the machine as a whole: the stream, cores and memory, sparklines, templates, figures for Prometheus."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel

from hogwild.errors import ConflictError, NotFoundError
from hogwild.service import figures, stream
from hogwild.service.follow import Followed
from hogwild.service.loop import ServiceLoop
from hogwild.service.machine_view import MachineView, live_and_newest

MOST_FOLLOWED = 16  # runs in one stream
NEWEST = 100  # ended jobs with a sparkline
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
Place = Annotated[str, Query(max_length=8192, description="Id of the last event: only what follows is sent.")]


class Template(BaseModel):
    """A job file that `hogwild init` writes. `files`: what it needs beside it, to be submitted with it; `needs`: files
    that are no text and must be on the service's machine."""

    name: str
    description: str
    text: str
    files: dict[str, str]
    needs: list[str]


def machine_router(
    loop: ServiceLoop,
    changes: stream.Changes,
    followed: Followed,
    machine: MachineView,
    templates: Callable[[], Sequence[Template]],
) -> APIRouter:
    """Return the routes; all but /metrics are below /api/v1. Those that may be slow are no coroutines: FastAPI calls
    them in threads."""
    routes = APIRouter(tags=["machine"])

    @routes.get("/api/v1/stream", response_class=EventSourceResponse)
    async def streamed(
        run: Annotated[
            list[Annotated[str, Query(max_length=100)]],
            Query(max_length=MOST_FOLLOWED, description="Jobs whose runs are followed; unknown ones are left out."),
        ] = [],  # noqa: B006  # FastAPI copies it
        last: Place = "",
        last_event_id: Annotated[str, Header(max_length=8192)] = "",
    ) -> AsyncIterator[ServerSentEvent]:
        """Send what changes as events: jobs, machine, and of each followed run: run, curves, events."""
        runs = {}
        for name in run:
            with contextlib.suppress(NotFoundError, ConflictError):
                row = await asyncio.wrap_future(loop.call(partial(loop.row, name)))
                runs[row["id"]] = stream.RunReader(row["id"], followed.run(Path(row["run_dir"])))
        reader = stream.StreamReader(loop, changes, machine, [*runs.values()], last_event_id or last)
        async for event in reader.events():
            yield event

    @routes.get("/api/v1/machine", response_model=dict[str, Any])
    async def shown() -> Response:
        """Return cores and GPUs by job, memory, and the newest moves of cores between jobs."""
        return Response(machine.update(loop.snapshot), media_type="application/json")

    @routes.get("/api/v1/sparklines")
    def sparklines(points: Annotated[int, Query(ge=2, le=200)] = 40) -> dict[str, list[float | None]]:
        """Return id -> training losses over the whole run, of the live jobs and the newest others."""
        shown = live_and_newest(loop.snapshot, NEWEST)
        return {name: followed.sparkline(Path(run), points) for name, run in shown}

    @routes.get("/api/v1/templates")
    def listed() -> list[Template]:
        """Return the job files that `hogwild init` can write."""
        return list(templates())

    @routes.get("/metrics", response_class=PlainTextResponse, tags=["service"])
    def prometheus() -> Response:
        """Return the figures of the service in Prometheus' text format."""
        rows = [json.loads(text) for _, text in loop.snapshot.rows.values()]
        return Response(figures.exposition(rows, loop.machine), media_type=PROMETHEUS)

    return routes
