"""The service below a path of a real nginx, in a real browser: links, streams, forms, redirects, downloads."""

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from tests.helpers.browser import WITHOUT as WITHOUT_BROWSER
from tests.helpers.browser import Watched, browsing, chromium
from tests.helpers.jobs import HOME
from tests.helpers.processes import PATIENCE_S
from tests.helpers.proxy import WITHOUT, nginx, proxying
from tests.helpers.service import SMALL, Service, serving

pytestmark = [pytest.mark.processes, pytest.mark.skipif(nginx() is None, reason=WITHOUT)]
ROOT = "/tools/hogwild"
PAGE = (HOME / "docs" / "service.md").read_text()
(DOCUMENTED,) = re.findall(r"^location /hogwild/ \{.*?^\}", PAGE, re.MULTILINE | re.DOTALL)
OTHER = "location /hogwild/ { proxy_pass http://127.0.0.1:8470/; }"  # leaves out the path, and passes on our own host
LOCATIONS = {"documented": DOCUMENTED, "path left out": OTHER}


@dataclass
class Proxied:
    """A service behind nginx."""

    service: Service
    port: int

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found

    @property
    def token(self) -> str:
        return str(self.service.state.connection()["token"])

    @property
    def bearer(self) -> str:
        return f"Bearer {self.token}"


@pytest.fixture(scope="module", params=[pytest.param("documented", marks=pytest.mark.whole), "path left out"])
def proxied(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("proxied")
    with serving(folder) as service:
        service.start("--root-path", f"{ROOT}/")
        backend = str(service.state.connection()["port"])
        location = LOCATIONS[request.param].replace("8470", backend).replace("/hogwild/ {", f"{ROOT}/ {{")
        with proxying(folder, location) as port:
            yield Proxied(service, port)


def test_redirects_cookie_and_description_are_of_the_path_that_the_browser_sees(proxied: Proxied) -> None:
    query = urlencode({"token": proxied.token})
    status, headers, _ = proxied.ask("GET", f"{ROOT}?{query}")
    assert (status // 100, urlsplit(headers["location"]).path) == (3, f"{ROOT}/")
    assert urlsplit(headers["location"]).query == query
    status, headers, _ = proxied.ask("GET", f"{ROOT}/?{query}", X_Forwarded_Proto="https")
    assert (status, headers["location"]) == (303, "./")
    assert "path" not in headers["set-cookie"].lower()  # so it is for ROOT only
    status, _, body = proxied.ask("GET", f"{ROOT}/api/v1/openapi.json", Authorization=proxied.bearer)
    assert (status, json.loads(body)["servers"]) == (200, [{"url": ROOT}])
    assert proxied.ask("GET", f"{ROOT}/api/v1/jobs/", Authorization=proxied.bearer)[0] == 404
    assert f"https://HOST{ROOT}/?token={proxied.token}" in proxied.service.log()


def test_other_sites_and_requests_without_the_token_are_refused_behind_it_too(proxied: Proxied) -> None:
    path = f"{ROOT}/api/v1/jobs"
    assert proxied.ask("GET", path)[0] == 401
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert proxied.ask("GET", path, Authorization=proxied.bearer, **headers)[0] == 403
    own = {"Origin": "https://train.example", "Sec-Fetch-Site": "same-origin"}
    for headers in (own, {"Origin": "https://train.example", "X-Forwarded-Host": "train.example"}):
        assert proxied.ask("GET", path, Authorization=proxied.bearer, **headers)[0] == 200


@pytest.mark.skipif(chromium() is None, reason=WITHOUT_BROWSER)
def test_a_job_is_submitted_and_followed_through_the_proxy(proxied: Proxied, tmp_path: Path) -> None:
    with browsing() as browser, browser.new_context() as context:
        context.set_default_timeout(1000 * PATIENCE_S)
        expect.set_options(timeout=1000 * PATIENCE_S)
        watched = Watched(context)
        page = watched.page()
        page.goto(f"http://127.0.0.1:{proxied.port}{ROOT}/?token={proxied.token}")
        page.get_by_role("link", name="Submit", exact=True).click()
        page.get_by_label("start from").select_option("digits")
        page.get_by_label("overrides").fill("\n".join([*SMALL, "name=proxied"]))
        expect(page.get_by_text("The job file is valid. proxied gets 1 core.")).to_be_visible()
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.locator("#job .title .state")).to_have_text("succeeded")  # by the stream
        expect(page.locator("#panel canvas").first).to_be_visible()
        page.get_by_role("tab", name="checkpoints").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="export the model").first.click()
        assert Path(download.value.path()).stat().st_size > 0
        assert watched.complaints() == []
        asked = {url for url in watched.requests if url.startswith("http:")}
        assert {url for url in asked if not urlsplit(url).path.startswith(f"{ROOT}/")} == set()
    assert [row["name"] for row in proxied.service.client.jobs()] == ["proxied"]  # without the proxy
