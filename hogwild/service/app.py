"""The service as one process: lock, store, loop, HTTP on 127.0.0.1.

The guard comes before every request: a browser on this machine also runs pages of strangers, which can send requests
to it.

    Host         localhost or 127.0.0.1, any port: a stranger's name that resolves to 127.0.0.1 is refused
    Origin       that of the page itself; Sec-Fetch-Site: no other site, not even another port of this machine
                 behind a reverse proxy (--root-path): any Host; the page is what the browser says (Sec-Fetch-Site), or
                 what has the Host that the proxy passes on (Host, X-Forwarded-Host)
    token        `Authorization: Bearer`, or the cookie that `/?token=...` sets (HttpOnly, SameSite=Strict)
    body         at most MOST_BYTES, read before anything sees it

See https://owasp.org/www-community/attacks/csrf and, for names that change their address, the DNS rebinding
chapter of https://github.com/nccgroup/singularity/wiki. All addresses that an answer or the page names are relative, so
that they are right below any path of a proxy."""

import asyncio
import contextlib
import errno
import hmac
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse
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
from hogwild.service.attempts import JobForker
from hogwild.service.folders import StateFolder
from hogwild.service.loop import ServiceLoop
from hogwild.service.routes_jobs import jobs_router
from hogwild.service.routes_machine import Changes, MachineView, Template, machine_router
from hogwild.service.routes_runs import runs_router
from hogwild.service.run_reader import Followed
from hogwild.service.schedule import Machine
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
    search_page: Callable[[Path], str],
    root_path: str | None = None,
) -> None:
    """Run the service until SIGINT or SIGTERM; jobs go on. `port`: 0 chooses a free one. `tell` is called with link and
    port once it listens; `templates` returns job files for the page; `jobs` forks jobs;
    `search_page` makes the page of a search from its folder. `root_path`: the path of a
    reverse proxy that passes requests on, without a slash at its end; None: there is no proxy. Raises ConflictError if
    a service runs here, ServiceError, RunDirError."""
    state.make()
    lock = _lock(state)
    try:
        state.check_format()
        token = state.token()
        changes = Changes()
        cores = tuple(core.cpus for core in host.physical_cores(host.affinity()))
        servers: list[_Server] = []

        def end() -> None:
            """End the process after the loop has failed: it is no use, and jobs go on without it."""
            for server in servers:
                server.should_exit = True

        loop = ServiceLoop(state, Machine(cores, host.gpus()), changes.notify, end, jobs)
        with _listening(port) as listener:
            loop.load()
            port = listener.getsockname()[1]
            state.write_address(port)
            host.raise_noted()
            tell(f"http://127.0.0.1:{port}/?token={token}", port)
            config = uvicorn.Config(
                Guard(build_app(loop, changes, search_page, templates, root_path), token, root_path),
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


def build_app(
    loop: ServiceLoop,
    changes: Changes,
    search_page: Callable[[Path], str],
    templates: Callable[[], Sequence[Template]] = tuple,
    root_path: str | None = None,
) -> FastAPI:
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
        servers=[{"url": root_path}] if root_path else None,
        redirect_slashes=False,  # to an absolute address, which behind a proxy is not ours
        lifespan=lifespan,
    )
    app.include_router(runs_router(loop, followed, search_page))  # before `/jobs/{name}/{ask}`
    app.include_router(jobs_router(loop))
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


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 16 << 20
HEALTH = "/healthz"
COOKIE_S = 30 * 24 * 3600
CSP = b"content-security-policy"
HOST = re.compile(r"(?:localhost|127\.0\.0\.1)(?::([0-9]{1,5}))?")
HOST_OF_PROXY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses a request, or passes it on to `app`. `root_path`: that of a reverse proxy, which may pass it on or leave
    it out; None: there is no proxy."""

    app: App
    token: str
    root_path: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # no websockets here
            return await send({"type": "websocket.close", "code": 1008})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.get("headers", [])
                ours = [(name.encode(), value.encode()) for name, value in HEADERS]
                has_policy = any(name == CSP for name, _ in given)  # two policies would both count
                message["headers"] = [*given, *(one for one in ours if not (has_policy and one[0] == CSP))]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self.root_path and scope["path"] == self.root_path:  # its relative links need the slash
            query = scope["query_string"].decode("latin-1")
            answer: Response | None = RedirectResponse(f"{self.root_path}/" + (f"?{query}" if query else ""), 308)
        else:
            if self.root_path and scope["path"].startswith(f"{self.root_path}/"):
                scope = {**scope, "path": scope["path"].removeprefix(self.root_path)}
            answer = self._refusal(scope, headers)
        if answer is None and scope["path"] == HEALTH:  # needs no token, so nothing is kept for it
            return await self.app(scope, receive, send_with_headers)
        body = b""
        if answer is None:
            body, is_whole = await _read(receive)
            if not is_whole:
                answer = problem(413, f"the body has more than {MOST_BYTES >> 20} MiB", "service/too-large")
        if answer is not None:
            return await answer(scope, receive, send_with_headers)

        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self.app(scope, replay, send_with_headers)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """Return the answer to a request that must not pass."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        is_proxied = self.root_path is not None
        host = (HOST_OF_PROXY if is_proxied else HOST).fullmatch(headers.get("host", "")) if len(hosts) == 1 else None
        if host is None:
            wanted = "the name of a host" if is_proxied else "localhost or 127.0.0.1"
            return problem(403, f"the Host header must be {wanted}", "service/forbidden")
        is_visit = scope["method"] == "GET" and scope["path"] == "/"  # somebody follows a link
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_own = origin in (None, f"http://{headers['host']}")
        if is_proxied and origin is not None:  # a proxy may have TLS, and may pass on its own name or ours
            is_own = headers.get("sec-fetch-site") == "same-origin" or (
                "://" in origin and origin.partition("://")[2] in (headers["host"], headers.get("x-forwarded-host"))
            )
        if not is_own or (site not in ("none", "same-origin") and not is_visit):
            return problem(403, "requests of other pages are refused", "service/forbidden")
        if scope["path"] == HEALTH:
            return None
        cookie = f"hogwild-{host[1] or 80}"
        if is_visit and (given := parse_qs(scope["query_string"].decode("latin-1")).get("token")):
            return self._enter(cookie, given[0], is_secure=scope.get("scheme") == "https")
        if self._is_token(_bearer(headers)) or hmac.compare_digest(_cookie(headers, cookie), self._secret()):
            return None
        if is_visit:
            return PlainTextResponse("Open the link that `hogwild serve` printed: it has a token.\n", 401)
        return problem(401, "a token is needed: the file `token` of the state folder has it", "service/unauthorized")

    def _enter(self, cookie: str, given: str, *, is_secure: bool) -> Response:
        if not self._is_token(given):
            return PlainTextResponse("This link has another token: open the one that `hogwild serve` printed.\n", 401)
        answer = RedirectResponse("./", 303)
        answer.set_cookie(  # for the path that the browser sees
            *(cookie, self._secret().decode(), COOKIE_S), path=None, secure=is_secure, httponly=True, samesite="strict"
        )
        return answer

    def _secret(self) -> bytes:
        """Return the cookie: a browser sends it to every port of this machine, so it is not the token itself."""
        return hmac.digest(self.token.encode(), b"page", "sha256").hex().encode()

    def _is_token(self, given: str) -> bool:
        return bool(self.token) and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def _bearer(headers: Mapping[str, str]) -> str:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Mapping[str, str], name: str) -> bytes:
    """Return one cookie. Not by `http.cookies`: it drops all if another program's is malformed."""
    pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value for key, _, value in pairs if key == name), "").encode(errors="replace")


async def _read(receive: Receive) -> tuple[bytes, bool]:
    """Return the body, and whether that is all of it."""
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return b"", False
        if not message.get("more_body", False):
            return b"".join(parts), True


def problem(status: int, words: str, code: str, **more: Any) -> Response:
    """Return an error as RFC 9457 has it, with our code."""
    title = next(iter(words.splitlines()), "")
    content = {"title": title, "status": status, "detail": words, "error_code": code, **more}
    # In ASCII: words may quote what came, which need not be possible in UTF-8.
    return Response(json.dumps(content), status, media_type="application/problem+json")


SECURITY = {"token": {"type": "http", "scheme": "bearer", "description": "The file `token` of the state folder."}}
PROBLEM = {
    "type": "object",
    "description": "An error as RFC 9457 has it; docs/errors.md explains each `error_code`.",
    "required": ["title", "status", "detail", "error_code"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error_code": {"type": "string"},
        "problems": {
            "type": "array",
            "description": "Errors of a job file, each with its place; line 0: from the command line.",
            "items": {
                "type": "object",
                "required": ["source", "line", "column", "path", "message", "code"],
                "properties": {
                    **{name: {"type": "integer", "minimum": 0} for name in ("line", "column")},
                    **{name: {"type": "string"} for name in ("source", "path", "message", "code", "excerpt")},
                },
            },
        },
    },
}
ERRORS = {
    "400": "The request is not HTTP or JSON.",
    "401": "It has no valid token.",
    "403": "Another host or another site asks.",
    "404": "There is no such job, run or file.",
    "409": "The state of the job does not allow it, or its files are damaged.",
    "413": "The body has more than 16 MiB.",
    "422": "A value is not allowed.",
    "503": "The service is ending.",
    "507": "The disk is full, or cannot be written.",
}
METHODS = {"get", "post", "put", "patch", "delete"}


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the errors and the token of every route to a schema, in place; return it. A second time changes nothing."""
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which are never sent
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    components["securitySchemes"] = SECURITY
    schema["security"] = [{"token": []}]
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    errors = {status: {"description": words, "content": content} for status, words in ERRORS.items()}
    for path in schema["paths"].values():
        for method in METHODS & path.keys():
            path[method]["responses"] |= errors
    return schema
