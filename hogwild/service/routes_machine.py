"""Routes for the machine as a whole: the stream, cores and memory, sparklines, templates, figures for Prometheus."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
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
    """Return the routes; all but /metrics are below /api/v1. `templates` may be slow: it is called in a thread."""
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
        runs = {one.id: one for name in run if (one := await _reader_of(name)) is not None}
        async for event in stream.StreamReader(
            loop, changes, machine, [*runs.values()], last_event_id or last
        ).events():
            yield event

    async def _reader_of(name: str) -> stream.RunReader | None:
        try:
            row = await asyncio.wrap_future(loop.call(lambda: loop.row(name)))
        except (NotFoundError, ConflictError):
            return None
        return stream.RunReader(row["id"], followed.run(Path(row["run_dir"])))

    @routes.get("/api/v1/machine", response_model=dict[str, Any])
    async def shown() -> Response:
        """Return cores and GPUs by job, memory, and the newest moves of cores between jobs."""
        return Response(machine.update(loop.snapshot), media_type="application/json")

    @routes.get("/api/v1/sparklines")
    async def sparklines(points: Annotated[int, Query(ge=2, le=200)] = 40) -> dict[str, list[float | None]]:
        """Return id -> training losses over the whole run, of the live jobs and the newest others."""

        def read() -> dict[str, list[float | None]]:
            shown = live_and_newest(loop.snapshot, NEWEST)
            return {name: followed.sparkline(Path(run), points) for name, run in shown}

        return await asyncio.to_thread(read)

    @routes.get("/api/v1/templates")
    async def listed() -> list[Template]:
        """Return the job files that `hogwild init` can write."""
        return list(await asyncio.to_thread(templates))

    @routes.get("/metrics", response_class=PlainTextResponse, tags=["service"])
    async def prometheus() -> Response:
        """Return the figures of the service in Prometheus' text format."""
        rows = [text for _, text in loop.snapshot.rows.values()]

        def read() -> str:
            return figures.exposition([json.loads(text) for text in rows], loop.machine)

        return Response(await asyncio.to_thread(read), media_type=PROMETHEUS)

    return routes
