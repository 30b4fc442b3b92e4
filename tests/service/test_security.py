"""The guard: what is refused, whatever the request; and that refusals have no effect."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hogwild.config.locate import default_config
from hogwild.service.app import MOST_BYTES
from hogwild.service.folders import StateFolder
from tests.helpers.processes import PATIENCE_S
from tests.helpers.service import Service, serving

pytestmark = [pytest.mark.processes, pytest.mark.whole]
ROUTES = [
    *(("GET", path) for path in ("/", "/api/v1/jobs", "/api/v1/stream", "/api/v1/openapi.json", "/page/app.js")),
    *(("GET", path) for path in ("/metrics", "/api/v1/machine", "/api/v1/jobs/1/log", "/api/v1/templates")),
    *(("POST", f"/api/v1/jobs/1/{path}") for path in ("requests", "checkpoints/update-000000001/resume")),
    *(("POST", path) for path in ("/api/v1/jobs", "/api/v1/check", "/api/v1/jobs/1/cancel")),
    *(("DELETE", "/api/v1/jobs/1"), ("PUT", "/api/v1/jobs"), ("OPTIONS", "/api/v1/jobs"), ("HEAD", "/api/v1/jobs")),
]


SUBMISSION = {
    "id": "0" * 12,
    "job_file": "x.yaml",
    "text": default_config("digits").read_text(),
    "folder": "/",
    "job_folder": "/",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service")) as made:
        yield made.start()


class Asked:
    def __init__(self, service: Service, method: str, path: str, body: object = None, **headers: str | None) -> None:
        where = service.state.connection()
        given = {"Host": f"127.0.0.1:{where['port']}", "Authorization": f"Bearer {where['token']}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        for name in [name for name, value in headers.items() if value is None]:
            del given[name.replace("_", "-")]
        connection = http.client.HTTPConnection("127.0.0.1", where["port"], timeout=PATIENCE_S)
        connection.connect()
        # Head and body leave together: a refusal of the head alone may be lost when the body meets a closed socket.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        connection.putrequest(method, path, skip_host=True)
        for name, value in given.items():
            connection.putheader(name, value)
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was refused before
            connection.send(content)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        answer = connection.getresponse()
        self.status = answer.status
        self.headers = answer.headers
        self.text = answer.read(100_000) if answer.headers.get("content-type", "") != "text/event-stream" else b""
        connection.close()

    @property
    def json(self) -> dict:
        return json.loads(self.text)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_the_token_nothing_is_answered(service: Service, method: str, path: str) -> None:
    for wrong in (None, "Bearer ", "Bearer x", "Basic x", "Bearer " + "ä" * 43):
        assert Asked(service, method, path, {}, Authorization=wrong).status == 401


BAD_HEADERS: list[dict[str, str | None]] = [
    {"Host": "evil.example"},
    {"Origin": "http://evil.example"},
    {"Host": "127.0.0.1.evil.example:80"},
    {"Host": "localhost:80@evil.example"},
    {"Host": "[::1]:80"},
    {"Host": ""},
    {"Host": None},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://localhost"},
    {"Origin": "http://evil.example", "X_Forwarded_Host": "evil.example"},  # only a proxy's, with --root-path
    {"Origin": "http://evil.example", "Sec_Fetch_Site": "same-origin"},
]
# What is looked at before any route is known: every route with one, and every one with a route.
REFUSED = [(route, BAD_HEADERS[number % 2]) for number, route in enumerate(ROUTES)]
REFUSED += [(ROUTES[1], headers) for headers in BAD_HEADERS]


@pytest.mark.parametrize(("route", "headers"), REFUSED, ids=str)
def test_other_hosts_and_other_pages_are_refused(
    service: Service, route: tuple[str, str], headers: dict[str, str | None]
) -> None:
    assert Asked(service, *route, {}, **headers).status in (400, 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_of_another_site_is_refused_and_a_link_needs_the_token(service: Service, site: str) -> None:
    assert Asked(service, "GET", "/api/v1/jobs", Sec_Fetch_Site=site).status == 403
    assert Asked(service, "GET", "/", Sec_Fetch_Site=site, Authorization=None).status == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9", "127.0.0.1:65535"])
def test_any_port_of_this_machine_may_lead_here(service: Service, host: str) -> None:
    assert Asked(service, "GET", "/api/v1/jobs", Host=host, Origin=f"http://{host}").status == 200


def test_the_link_gives_a_cookie_that_only_this_page_sends(service: Service) -> None:
    token = service.state.connection()["token"]
    assert Asked(service, "GET", "/?token=wrong", Authorization=None).status == 401
    entered = Asked(service, "GET", "/?" + urlencode({"token": token}), Authorization=None)
    assert (entered.status, entered.headers["location"]) == (303, "./")
    cookie = entered.headers["set-cookie"]
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    page = Asked(service, "GET", "/", Authorization=None, Cookie=cookie.split(";")[0])
    assert page.status == 200 and b"<script" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


def test_health_is_for_everybody_here(service: Service) -> None:
    answer = Asked(service, "GET", "/healthz", Authorization=None)
    assert (answer.status, answer.json["ok"]) == (200, True)


def test_a_large_body_is_refused_before_anything_reads_it(service: Service) -> None:
    assert Asked(service, "POST", "/api/v1/check", b'"' + b"x" * MOST_BYTES).status == 413
    answer = Asked(service, "POST", "/api/v1/check", {"text": "#" * (MOST_BYTES - 1000)})
    assert answer.status == 422 and answer.json["error_code"] == "service/too-large", "for a job"


def test_a_large_body_in_parts_of_unsaid_size_is_refused(service: Service) -> None:
    where = service.state.connection()
    connection = http.client.HTTPConnection("127.0.0.1", where["port"], timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {where['token']}", "Content-Type": "application/json"}
    with contextlib.closing(connection), contextlib.suppress(BrokenPipeError, ConnectionResetError):
        parts = (b"x" * (1 << 20) for _ in range(2 * MOST_BYTES >> 20))
        connection.request("POST", "/api/v1/check", parts, headers, encode_chunked=True)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/jobs", headers=headers)
        assert connection.getresponse().read().startswith(b'{"version"')


@pytest.mark.parametrize(
    "path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/vendor/..%2f..%2fapp.py"]
)
def test_no_file_outside_the_page_is_served(service: Service, path: str) -> None:
    assert Asked(service, "GET", path).status == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/jobs", b"{"),
        ("POST", "/api/v1/jobs", b"\xff\xfe"),
        ("POST", "/api/v1/jobs", {"id": "../../x"}),
        (
            "POST",
            "/api/v1/jobs",
            {"id": "0" * 12, "job_file": "x", "text": "", "folder": "/", "job_folder": "/", "y": 1},
        ),
        (
            "POST",
            "/api/v1/jobs",
            {"id": "0" * 12, "job_file": "../x.yaml", "text": "a: [", "folder": "/", "job_folder": "/"},
        ),
        ("POST", "/api/v1/jobs", {**SUBMISSION, "job_folder": "/a\0b"}),
        ("POST", "/api/v1/jobs", {**SUBMISSION, "overrides": ["name=\ud800"]}),
        ("POST", "/api/v1/jobs", {**SUBMISSION, "folder": "/nowhere"}),
        ("POST", "/api/v1/jobs", {**SUBMISSION, "files": {"../x.py": ""}}),
        ("POST", "/api/v1/jobs/1/explode", None),
        ("POST", "/api/v1/jobs/1/cancel?now=perhaps", None),
        ("POST", "/api/v1/jobs/%00/cancel", None),
        ("DELETE", "/api/v1/jobs/..%2f..", None),
        ("GET", "/api/v1/jobs/" + "9" * 90, None),
        ("GET", "/api/v1/jobs/1/log?worker=-1", None),
        ("PATCH", "/api/v1/jobs", None),
    ],
    ids=str,
)
def test_nonsense_is_an_error_of_the_client_with_a_code(service: Service, method: str, path: str, body: object) -> None:
    answer = Asked(service, method, path, body)
    assert 400 <= answer.status < 500, answer.text
    assert "/" in answer.json["error_code"] and answer.json["detail"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert service.client.jobs() == []


def test_errors_of_a_job_file_come_with_their_lines(service: Service) -> None:
    answer = Asked(
        service, "POST", "/api/v1/check", {"text": "model: {class_path: torch.nn.Linear}\ntrain: {epochs: 0}\n"}
    )
    assert answer.status == 422
    assert [(one["line"], one["path"]) for one in answer.json["problems"] if one["path"] == "train.epochs"] == [
        (2, "train.epochs")
    ]


def test_a_malformed_cookie_of_another_program_is_no_hindrance(service: Service) -> None:
    token = service.state.connection()["token"]
    cookie = Asked(service, "GET", "/?" + urlencode({"token": token}), Authorization=None).headers["set-cookie"]
    assert token not in cookie
    both = 'a={"x":1}; ' + cookie.split(";")[0]
    assert Asked(service, "GET", "/", Authorization=None, Cookie=both).status == 200


def test_the_token_file_is_what_a_client_needs(service: Service, tmp_path: Path) -> None:
    assert StateFolder(service.state.path).connection()["port"] == service.state.connection()["port"]


def test_a_body_that_needs_no_token_is_not_read(service: Service) -> None:
    where = service.state.connection()
    with socket.create_connection(("127.0.0.1", where["port"]), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
