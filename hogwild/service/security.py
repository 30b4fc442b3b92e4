"""Guard of the service: every request passes it first. The service listens on 127.0.0.1 alone, but a browser there also
runs pages of strangers, which can send requests to it.

    Host         localhost or 127.0.0.1, any port: a stranger's name that resolves to 127.0.0.1 is refused
    Origin       that of the page itself; Sec-Fetch-Site: no other site, not even another port of this machine
    token        `Authorization: Bearer`, or the cookie that `/?token=...` sets (HttpOnly, SameSite=Strict)
    body         at most MOST_BYTES, read before anything sees it

See https://owasp.org/www-community/attacks/csrf and, for names that change their address, the DNS rebinding
chapter of https://github.com/nccgroup/singularity/wiki."""

import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse, Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 16 << 20
HEALTH = "/healthz"
COOKIE_S = 30 * 24 * 3600
HOST = re.compile(r"(?:localhost|127\.0\.0\.1)(?::([0-9]{1,5}))?")
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
    """Refuses a request, or passes it on to `app`."""

    app: App
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # no websockets here
            return await send({"type": "websocket.close", "code": 1008})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS]
                message["headers"] = [*message.get("headers", []), *ours]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
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
        host = HOST.fullmatch(headers.get("host", "")) if len(hosts) == 1 else None
        if host is None:
            return problem(403, "the Host header must be localhost or 127.0.0.1", "service/forbidden")
        is_visit = scope["method"] == "GET" and scope["path"] == "/"  # somebody follows a link
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin not in (None, f"http://{headers['host']}") or (site not in ("none", "same-origin") and not is_visit):
            return problem(403, "requests of other pages are refused", "service/forbidden")
        if scope["path"] == HEALTH:
            return None
        cookie = f"hogwild-{host[1] or 80}"
        if is_visit and (given := parse_qs(scope["query_string"].decode("latin-1")).get("token")):
            return self._enter(cookie, given[0])
        if self._is_token(_bearer(headers)) or hmac.compare_digest(_cookie(headers, cookie), self._secret()):
            return None
        if is_visit:
            return PlainTextResponse("Open the link that `hogwild serve` printed: it has a token.\n", 401)
        return problem(401, "a token is needed: the file `token` of the state folder has it", "service/unauthorized")

    def _enter(self, cookie: str, given: str) -> Response:
        if not self._is_token(given):
            return PlainTextResponse("This link has another token: open the one that `hogwild serve` printed.\n", 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie, self._secret().decode(), max_age=COOKIE_S, httponly=True, samesite="strict")
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
