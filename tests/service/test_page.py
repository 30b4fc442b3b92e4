"""The page in a real browser: a job appears, is looked at, and is told to stop; no script or policy complains."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.browser import Browser, chromium
from tests.helpers.processes import wait_for
from tests.helpers.service import LONG, SMALL, Service, serving

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(chromium() is None, reason="no chromium: the page is not looked at"),
]
PICTURES = os.environ.get("HOGWILD_PICTURES")  # a folder in which pictures of the page are kept


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as made:
        yield made.start()


@pytest.fixture
def browser(service: Service, tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile", 1200, 900)
    where = service.state.connection()
    made.open(f"http://127.0.0.1:{where['port']}/?token={where['token']}")
    yield made
    made.close()


def text(browser: Browser, selector: str = "main") -> str:
    return str(browser.run(f"document.querySelector({selector!r})?.innerText ?? ''"))


def click(browser: Browser, words: str) -> None:
    found: Any = browser.run(
        "(() => { const one = [...document.querySelectorAll('button, a, summary')]"
        f".find((one) => one.innerText.trim() === {words!r}); one?.click(); return !!one; }})()"
    )
    assert found, f"no {words!r} in {text(browser)}"


def keep(browser: Browser, name: str) -> None:
    if PICTURES:
        picture = browser.call("Page.captureScreenshot", format="png")["data"]
        Path(PICTURES, f"{name}.png").write_bytes(base64.b64decode(picture))


def test_a_job_is_watched_and_cancelled_in_the_browser(service: Service, browser: Browser) -> None:
    wait_for("an empty list", lambda: "No jobs yet" in text(browser))
    done = service.submit(*SMALL, "name=short")
    service.wait_for_state(done["id"], "succeeded")
    row = service.submit(*LONG, "log.every_s=0.2", "name=long-one")
    wait_for("the job in the list", lambda: "long-one" in text(browser, "#jobs"))
    click(browser, "long-one")
    wait_for("its state", lambda: "running" in text(browser, "#job h2"))
    wait_for("its curve", lambda: browser.run("document.querySelectorAll('#job canvas').length") == 1)
    service.submit(*LONG, "train.procs=auto", "name=waiting")
    wait_for("a reason to wait", lambda: "are free" in text(browser, "#jobs"))
    click(browser, "log")
    wait_for("its log", lambda: "epoch" in text(browser, "pre.log"))
    keep(browser, "job")
    click(browser, "cancel")
    wait_for("its end", lambda: "cancelled" in text(browser, "#job h2"))
    assert service.wait_for_state(row["id"], "cancelled")["reason"] == "cancelled by the user"
    click(browser, "retry")
    wait_for("a new attempt", lambda: "attempt 2" in text(browser, "#job") or "queued" in text(browser, "#job h2"))
    browser.resize(400, 900, dark=True)
    keep(browser, "narrow-dark")
    wait_for("room for all", lambda: browser.run("document.documentElement.scrollWidth") <= 400)
    assert browser.errors == []
    assert {url.split("/")[2].split(":")[0] for url in browser.requests if url.startswith("http")} == {"127.0.0.1"}


def test_a_service_that_ends_is_told_and_a_new_one_is_found(service: Service, browser: Browser) -> None:
    wait_for("an empty list", lambda: "No jobs yet" in text(browser))
    port = str(service.state.connection()["port"])
    service.stop()
    wait_for("the message", lambda: "does not answer" in text(browser))
    service.start("--port", port)
    wait_for("the end of the message", lambda: "does not answer" not in text(browser))
    service.submit(*SMALL, "name=after")
    wait_for("the job in the list", lambda: "after" in text(browser, "#jobs"))
