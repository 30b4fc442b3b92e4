"""The service as one process: lock, store, loop, HTTP on 127.0.0.1."""

import asyncio
import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from hogwild import host
from hogwild.config.locate import shipped
from hogwild.errors import (
    CheckpointError,
    ConflictError,
    DataError,
    HogwildError,
    ModelError,
    NotFoundError,
    RunDirError,
    RunEndedError,
    RunError,
    ServiceError,
    StorageFullError,
    UsageError,
)
from hogwild.service.api_description import described
from hogwild.service.attempts import JobForker
from hogwild.service.folders import StateFolder
from hogwild.service.follow import Followed
from hogwild.service.loop import ServiceLoop
from hogwild.service.machine_view import MachineView
from hogwild.service.routes_jobs import jobs_router
from hogwild.service.routes_machine import Template, machine_router
from hogwild.service.routes_runs import runs_router
from hogwild.service.routes_sweeps import sweeps_router
from hogwild.service.schedule import Machine
from hogwild.service.security import Guard, problem
from hogwild.service.stream import Changes
from hogwild.version import __version__

PORT = 8470
BACKLOG = 128
MOST_CONNECTIONS = 256  # the loop needs descriptors, too; 1,024 is the usual limit
STATUS = {
    **dict.fromkeys((ConflictError, CheckpointError, RunEndedError), 409),
    **dict.fromkeys((StorageFullError, RunDirError), 507),
    NotFoundError: 404,
    **dict.fromkeys((UsageError, DataError, ModelError), 422),
    RunError: 503,
    ServiceError: 503,
}
PAGE = Path(__file__).parent / "page"


def run(
    state: StateFolder,
    port: int,
    tell: Callable[[str, int], None],
    templates: Callable[[], Sequence[Template]],
    jobs: JobForker,
) -> None:
    """Run the service until SIGINT or SIGTERM; jobs go on. `port`: 0 chooses a free one. `tell` is called with link and
    port once it listens; `templates` returns job files for the page; `jobs` forks jobs. Raises
    ConflictError if a service runs here, ServiceError, RunDirError."""
    state.make()
    lock = _lock(state)
    try:
        state.check_format()
        token = state.token()
        changes = Changes()
        cores = tuple(core.cpus for core in host.physical_cores(host.affinity()))
        servers: list[_Server] = []
        loop = ServiceLoop(state, Machine(cores, host.gpus()), changes.notify, lambda: _end(servers), jobs)
        with _listening(port) as listener:
            loop.load()
            for name, why in loop.damaged.items():
                print(f"warning: job {name} is damaged and left alone: {why}", file=sys.stderr, flush=True)
            port = listener.getsockname()[1]
            state.write_address(port)
            host.raise_noted()
            tell(f"http://127.0.0.1:{port}/?token={token}", port)
            config = uvicorn.Config(
                Guard(build_app(loop, changes, templates), token),
                http=_Connection,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
                server_header=False,
                backlog=BACKLOG,
            )
            server = _Server(config, changes)
            servers.append(server)
            loop.start()
            try:
                server.run([listener])
            finally:
                loop.stop()
    finally:
        os.close(lock)


def _end(servers: "list[_Server]") -> None:
    """End the process after the loop has failed: it is no use, and jobs go on without it."""
    for server in servers:
        server.should_exit = True


class _Server(uvicorn.Server):
    """Ends the streams first: they would hold up the end of the process."""

    def __init__(self, config: uvicorn.Config, changes: Changes) -> None:
        super().__init__(config)
        self._changes = changes

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._changes.close()
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """Makes room where too many connections are open: any user of this machine can open them, without a token."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            others = [one for one in self.connections if isinstance(one, H11Protocol) and one is not self]
            for idle in [one for one in others if one.cycle is None or one.cycle.response_complete] or [self]:
                idle.transport.abort()


class _Api(FastAPI):
    """Describes the errors, too."""

    def openapi(self) -> dict[str, Any]:
        return described(super().openapi())


def build_app(loop: ServiceLoop, changes: Changes, templates: Callable[[], Sequence[Template]] = tuple) -> FastAPI:
    """Return the application; the loop runs already."""
    machine, followed = MachineView(loop.machine), Followed()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        changes.start(lambda: machine.look(loop.snapshot))
        yield

    app = _Api(
        title="hogwild",
        version=__version__,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=lifespan,
    )
    app.include_router(runs_router(loop, followed))  # before `/jobs/{name}/{ask}`
    app.include_router(jobs_router(loop))
    app.include_router(sweeps_router(loop))
    app.include_router(machine_router(loop, changes, followed, machine, templates))

    @app.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        return JSONResponse({"ok": loop.is_well, "version": __version__}, 200 if loop.is_well else 503)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    @app.get("/page/{name:path}", include_in_schema=False)
    async def asset(name: str) -> Response:
        file = FILES.get(name)
        return FileResponse(file) if file else problem(404, f"no file {name}", "service/no-page")

    @app.exception_handler(HogwildError)
    async def ours(_: Request, error: HogwildError) -> Response:
        status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
        record = error.record()
        return problem(status, record.pop("error"), record.pop("error_code"), **record)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        words = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return problem(422, words, "service/bad-request")

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        answer = problem(error.status_code, str(error.detail), "service/bad-request")
        answer.headers.update(error.headers or {})
        return answer

    return app


def _page_files() -> dict[str, Path]:
    """Return the files that a browser may load, by name."""
    found = {str(file.relative_to(PAGE)): file for file in PAGE.rglob("*") if file.is_file()}
    charts = shipped("report") / "page_files"  # what both pages draw with
    found |= {str(file.relative_to(charts)): file for file in charts.rglob("*") if file.is_file()}
    return {**found, "words.json": shipped("monitoring") / "words.json", "errors.md": shipped("docs/errors.md")}


FILES = _page_files()


def _lock(state: StateFolder) -> int:
    """Return the descriptor of the locked lock file. Jobs do not inherit it."""
    try:
        return host.lock_file(state.lock)
    except BlockingIOError:
        where = "another process"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(state.address.read_bytes())
            where = f"process {found['pid']}, on port {found['port']}"
        raise ConflictError(
            f"a service already runs on {state.path}: {where}; use it, stop it, or choose another --state-dir",
            code="service/running",
        ) from None
    except OSError as error:
        raise ServiceError(
            f"cannot write to the state folder {state.path}: {error.strerror}", code="service/state-folder"
        ) from error


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno or 0)  # its own words have the address, too
        used = "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be used: {why}"
        raise ServiceError(f"port {port} {used}; choose another one with --port", code="service/port") from None
