"""The page in a real browser: submit, watch, cancel, compare; one stream for all tabs; keys, sizes, dark."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, Request, expect

from tests.helpers.browser import WITHOUT, Watched, browsing, chromium, fits
from tests.helpers.processes import IS_THOROUGH, wait_for
from tests.helpers.service import LONG, SMALL, Service, require_two_cores, serving

pytestmark = [pytest.mark.processes, pytest.mark.skipif(chromium() is None, reason=WITHOUT)]
PICTURES = os.environ.get("HOGWILD_PICTURES")  # a folder in which pictures of the page are kept
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)
VIEWS = {  # address -> what is there when it is drawn
    "": "#jobs .row",
    "machine": ".lives",
    "submit": ".editor",
    "compare/{0},{1}": ".compared .is-setting",
    "{0}": "#panel canvas",
    "{0}/timeline": ".lanes",
    "{0}/log": "pre.log",
    "{0}/settings": "pre.file",
    "{0}/checkpoints": "#panel td",
}
FILE = """version: 1
name: typed
model: {class_path: hogwild.models.Mlp, init_args: {features: 64, hidden: [8], classes: 10}}
loss: {class_path: torch.nn.CrossEntropyLoss}
data:
  train: {class_path: hogwild.data.Digits, init_args: {split: train}}
  batch_sise: 16
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
train: {epochs: 0}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("page")) as made:
        yield made.start()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def ended(service: Service) -> list[dict[str, Any]]:
    """Two jobs that have succeeded, with different learning rates."""
    rows = [service.submit(*SMALL, f"optimizer.init_args.lr={lr}", f"name=rate-{lr}") for lr in (0.02, 0.07)]
    return [service.wait_for_state(row["id"], "succeeded") for row in rows]


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    with browser.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        watched = Watched(context)
        yield watched
        assert watched.complaints() == []


@pytest.fixture
def page(service: Service, watched: Watched) -> Page:
    return opened(service, watched)


def opened(service: Service, watched: Watched) -> Page:
    page = watched.page()
    where = service.state.connection()
    page.goto(f"http://127.0.0.1:{where['port']}/?token={where['token']}")
    return page


def go(page: Page, view: str) -> None:
    page.evaluate("(view) => { location.hash = `#/${view}`; }", view)


def button(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def listed(page: Page, name: str) -> Any:
    return page.locator("#jobs").get_by_text(name)


def keep(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES, f"{name}.png"))


@pytest.mark.whole
def test_a_job_is_submitted_watched_cancelled_and_resumed_without_a_terminal(service: Service, page: Page) -> None:
    page.get_by_role("link", name="Submit a job").click()
    page.get_by_label("start from").select_option("digits")
    page.get_by_label("overrides").fill("\n".join([*LONG, "log.every_s=0.2", "name=by-hand"]))
    expect(page.get_by_text("The job file is valid. by-hand gets 1 core.")).to_be_visible()
    button(page, "Submit").click()
    state = page.locator("#job .title .state")
    expect(state).to_have_text("running")
    expect(page.locator("#panel canvas").first).to_be_visible()
    button(page, "cancel").click()
    button(page, "Let it run").click()
    expect(state).to_have_text("running")
    button(page, "cancel").click()
    button(page, "Cancel the job").click()
    expect(state).to_have_text("cancelled")
    expect(page.get_by_text("cancelled by the user")).to_be_visible()
    button(page, "retry").click()
    expect(page.get_by_text("attempt 2")).to_be_visible()
    button(page, "pause").click()
    expect(state).to_have_text("paused")
    button(page, "resume").click()
    expect(state).to_have_text("running")
    service.client.cancel(service.client.jobs()[-1]["id"], now=True)
    expect(state).to_have_text("cancelled")
    button(page, "delete").click()
    button(page, "Delete").click()
    expect(page.get_by_text("No jobs yet")).to_be_visible()


def test_errors_are_marked_on_their_line_and_the_nearest_value_is_a_click_away(page: Page) -> None:
    go(page, "submit")
    page.get_by_label("job file").fill(FILE)
    wrong = page.locator(".lines .is-wrong")
    expect(wrong).to_have_text(["7", "9"])
    problems = page.locator(".problems li")
    expect(problems.first).to_contain_text("config/unknown-key")
    expect(problems.last).to_contain_text("must be >= 1, got 0")
    expect(button(page, "Submit")).to_be_disabled()
    keep(page, "errors")
    problems.first.get_by_role("button", name="Use batch_size").click()
    expect(wrong).to_have_text(["9"])
    page.get_by_label("overrides").fill("train.epochs=2\ntrain.prox=1")
    expect(problems).to_have_count(1)
    expect(problems).to_contain_text("command line")
    page.get_by_label("overrides").fill("train.epochs=2")
    expect(button(page, "Submit")).to_be_enabled()


def test_two_jobs_are_compared(page: Page, ended: list[dict[str, Any]]) -> None:
    for row in ended:
        page.get_by_label(f"select job {row['number']}").check()
    page.get_by_role("link", name="Compare").click()
    table = page.locator("table.compared")
    expect(table.locator("th.is-setting")).to_have_text(["optimizer.lr"])
    expect(table.locator("td.is-setting")).to_have_text(["0.02", "0.07"])
    expect(page.locator(".charts h3").first).to_have_text("training loss")
    expect(page.locator(".charts canvas").first).to_be_visible()
    keep(page, "compare")


def test_a_changed_copy_goes_with_the_folder_and_the_code_of_its_original(
    service: Service, page: Page, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("import torch\ndef net(): return torch.nn.Linear(64, 10)\n")
    (tmp_path / "job.yaml").write_text(
        "model: {class_path: mine.net}\ndata: {train: {class_path: hogwild.data.Digits}}\n"
        "train: {procs: 0, epochs: 1}\n"
    )
    first = service.client.submit(tmp_path / "job.yaml", ["name=first-of-two"])
    go(page, f"submit/{first['id']}")
    expect(page.get_by_label("folder of the job")).to_have_value(str(tmp_path))
    expect(page.get_by_text("Submitted with it: mine.py")).to_be_visible()
    page.get_by_label("overrides").fill("name=second-of-two")
    expect(page.get_by_text("second-of-two gets")).to_be_visible()
    button(page, "Submit").click()
    expect(page.get_by_role("heading", name="second-of-two")).to_be_visible()
    copy = next(row for row in service.client.jobs() if row["name"] == "second-of-two")
    ended = service.wait_for_state(copy["id"], "succeeded", "failed")
    assert (ended["error"], ended["folder"]) == (None, str(tmp_path))


def test_the_parts_of_a_job_are_shown(service: Service, page: Page, ended: list[dict[str, Any]]) -> None:
    name = ended[0]["id"]
    go(page, f"{name}/timeline")
    expect(page.get_by_role("cell", name="job started")).to_be_hidden()
    page.get_by_role("button", name="other").click()
    expect(page.get_by_role("cell", name="job started")).to_be_visible()
    go(page, f"{name}/log")
    page.get_by_label("search the log").fill("CHECKPOINT")
    expect(page.locator("pre.log mark").first).to_have_text("checkpoint")
    go(page, f"{name}/settings")
    expect(page.locator(".settings .is-changed th")).to_contain_text(["optimizer.init_args.lr"])
    go(page, f"{name}/checkpoints")
    with page.expect_download() as download:
        page.get_by_role("link", name="export the model").first.click()
    assert download.value.suggested_filename.endswith(".safetensors")
    button(page, "resume from").first.click()
    expect(page.get_by_role("status").get_by_role("link")).to_be_visible()
    wait_for("the new job's end", lambda: all(row["state"] == "succeeded" for row in service.client.jobs()))


def test_the_page_fits_from_400_to_2000_pixels_light_and_dark(page: Page, ended: list[dict[str, Any]]) -> None:
    for width, scheme in ((400, "dark"), (2000, "light"), (1000, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for view, drawn in VIEWS.items():
            go(page, view.format(*(row["id"] for row in ended)))
            expect(page.locator(drawn).first).to_be_visible()
            assert fits(page), (width, view)
            keep(page, f"{view.split('/')[-1].split('{')[0] or 'jobs'}-{width}")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (scheme == "dark")


def test_a_second_job_borrows_a_core_and_the_curve_of_the_first_does_not_break(service: Service, page: Page) -> None:
    require_two_cores()
    lender = service.running("train.procs=auto", "train.epochs=100000", "log.every_s=0.2", "name=lender")
    go(page, lender["id"])
    expect(page.locator("#panel canvas").first).to_be_visible()
    page.get_by_role("tab", name="workers").click()
    expect(page.get_by_role("row", name="server waiting")).to_have_text(re.compile("forked from it.*[0-9]$"))
    borrower = service.running("train.procs=1", "train.epochs=100000", "name=borrower")
    go(page, "machine")
    for name in ("lender", "borrower"):
        expect(page.locator(".lives").get_by_text(name).first).to_be_visible()
    keep(page, "lending")
    for row in (borrower, lender):
        service.client.cancel(row["id"], now=True)
        service.wait_for_state(row["id"], "cancelled")
    records = Path(lender["run_dir"], "metrics.jsonl").read_text().splitlines()
    times = [record["time"] for record in map(json.loads, records) if record["kind"] == "train"]
    moved = next(event["at"] for event in service.events(lender["id"]) if event["event"] == "moved")
    around = [at for at in times if abs(at - moved) < 3]
    assert min(around) < moved < max(around)
    assert max(after - before for before, after in pairwise(around)) < 2.5  # a record each 0.2 s


def test_everything_is_reached_by_keys(page: Page, ended: list[dict[str, Any]]) -> None:
    expect(page.locator("#jobs .row")).not_to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("rate-0.07")
    expect(page.locator("#jobs .row")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("1 job selected")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#job")).to_be_visible()
    page.keyboard.press("3")
    expect(page.get_by_role("tab", selected=True)).to_have_text("timeline")
    page.keyboard.press("Escape")
    expect(page.locator("#jobs")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("n")
    expect(page.get_by_label("job file")).to_be_visible()
    page.keyboard.press("m")
    expect(page.get_by_role("list", name="cores by job")).to_be_visible()
    expect(page.get_by_role("heading", name="Machine")).to_be_focused()  # as every view's is, once it is drawn
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_of_a_thousand_jobs_only_those_that_are_seen_are_drawn(page: Page, ended: list[dict[str, Any]]) -> None:
    expect(page.locator("#jobs .row")).not_to_have_count(0)
    drawn = page.evaluate(
        """async (row) => {
            const { after } = await import("/page/stream.js");
            const rows = Array.from({ length: 1000 }, (_, place) => ({ ...row, id: `job${place}`, number: place + 1 }));
            const { jobs } = after({ runs: {} }, "jobs", { isFirst: true, rows, gone: ["job3"] });
            const { html, render } = await import("/page/vendor/preact/htm-preact.module.js");
            const { Jobs } = await import("/page/jobs.js");
            const place = document.body.appendChild(document.createElement("div"));
            render(html`<${Jobs} jobs=${jobs} selected=${[]} />`, place);
            await new Promise((done) => setTimeout(done, 100));
            const list = place.querySelector("#jobs");
            return [jobs.size, list.querySelectorAll(".row").length, Number(list.getAttribute("aria-rowcount"))];
        }""",
        ended[0],
    )
    assert drawn[0] == 999
    assert 10 < drawn[1] < 80
    assert drawn[2] == 1000


LIST = """async (rows) => {
    const { html, render } = await import("./page/vendor/preact/htm-preact.module.js");
    const { Jobs } = await import("./page/jobs.js");
    sessionStorage.removeItem("jobs");
    const place = document.body.appendChild(document.createElement("div"));
    const jobs = new Map(rows.map((row) => [row.id, row]));
    render(html`<${Jobs} jobs=${jobs} selected=${[]} />`, place);
    const settled = () => new Promise((done) => setTimeout(() => requestAnimationFrame(done)));
    await settled();
    const numbers = () => [...place.querySelectorAll(".col-number a")].map((one) => Number(one.textContent));
    const isCut = (one) => one.scrollWidth > one.clientWidth + 1 || one.getBoundingClientRect().right > innerWidth;
    const isOut = (one) => one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right;
    const found = {
        order: numbers(),
        whys: [...place.querySelectorAll(".why")].map((one) => one.textContent),
        cut: [...place.querySelectorAll(".why")].filter(isCut).length,
        bests: [...place.querySelectorAll(".col-best b")].map((one) => one.textContent),
        out: [...place.querySelectorAll(".col-best b")].filter(isOut).length,
    };
    [...place.querySelectorAll(".chips button")].find((one) => one.textContent.startsWith("failed")).click();
    await settled();
    found.failed = numbers();
    render(null, place);
    place.remove();
    return found;
}"""


@pytest.mark.parametrize("width", [1280, 400])
def test_the_list_shows_every_reason_and_best_value_whole(page: Page, ended: list[dict[str, Any]], width: int) -> None:
    def job(number: int, **more: Any) -> dict[str, Any]:
        return ended[0] | {"id": f"job{number}", "number": number, **more}

    def best(value: float | None, **more: Any) -> dict[str, Any]:
        return {"metric": "a_metric_of_my_own_with_a_long_name", "value": value, "higher_is_better": True, **more}

    waits = "waits for job 112, which gets cores of job 103"
    lost = {"error": "RuntimeError: no\n\nTraceback", "error_code": "train/lost", "reason": "RuntimeError: no"}
    values = {2: None, 3: 0.12345, 4: 0.0012345}
    rows = [
        job(1, state="cancelled", reason="cancelled by the user"),
        *(job(number, best=best(value)) for number, value in values.items()),
        job(5, state="failed", **lost),
        job(6, state="queued", reason=waits),
    ]
    page.set_viewport_size({"width": width, "height": 900})
    found = page.evaluate(LIST, rows)
    assert found["order"] == [6, 5, 4, 3, 2, 1]
    assert found["whys"] == [waits, "RuntimeError: no", "cancelled by the user"]
    assert (found["cut"], found["out"]) == (0, 0)
    assert {"0.1235", "0.001234"} <= {*found["bests"]}
    assert found["failed"] == [5]


def test_new_points_are_added_to_a_curve_and_a_reset_replaces_it(page: Page) -> None:
    found = page.evaluate(
        """async () => {
            const { after } = await import("/page/stream.js");
            const curves = (reset, loss) => ({ id: "a", reset, train: { updates: loss, loss }, evaluations: [] });
            const states = [{ runs: {} }];
            for (const content of [curves(true, [3, 2]), curves(false, [1]), curves(true, [9])])
              states.push(after(states.at(-1), "curves", content));
            return states.slice(1).map((state) => state.runs.a.curves.train.loss);
        }"""
    )
    assert found == [[3, 2], [3, 2, 1], [9]]


class Streams:
    """The open event streams, by page."""

    def __init__(self, pages: list[Page]) -> None:
        self.open: dict[Request, Page] = {}
        for page in pages:
            self.follow(page)

    def follow(self, page: Page) -> None:
        def begin(request: Request) -> None:
            if "/api/v1/stream" in request.url:
                self.open[request] = page

        page.on("request", begin)
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: self.open.pop(request, None))

    def leader(self, pages: list[Page]) -> Page:
        """Return the one of these pages that has a stream; between two streams of a page there is none for a moment."""

        def is_one() -> bool:
            pages[0].title()  # a call lets events arrive
            led = set(self.open.values()) & set(pages)
            assert len(led) <= 1, "two tabs have a stream each"
            return len(led) == 1

        wait_for("the stream of a tab", is_one)
        return next(page for page in self.open.values() if page in pages)


@pytest.mark.parametrize("how", ["closed", "crashed"] if IS_THOROUGH else ["closed"])
def test_eight_tabs_share_one_stream_and_a_leader_that_is_gone_is_replaced(
    service: Service, watched: Watched, how: str
) -> None:
    streams = Streams([])
    watched.context.on("page", streams.follow)
    pages = [opened(service, watched) for _ in range(8)]
    row = service.submit(*SMALL, f"name=first-{how}")
    for page in pages:
        expect(listed(page, f"first-{how}")).to_be_visible()
    streams.leader(pages)
    for page in pages:
        go(page, row["id"])
        expect(page.locator("#job .state")).to_have_text("succeeded")
        expect(page.locator("#panel canvas").first).to_be_visible()
    leader = streams.leader(pages)
    if how == "closed":
        leader.close()
    else:
        with contextlib.suppress(Error):  # a crashed page does not answer
            leader.goto("chrome://crash", timeout=2000)
    others = [page for page in pages if page is not leader]
    for page in others:
        go(page, "")
    service.submit(*SMALL, f"name=second-{how}")
    for page in others:
        expect(listed(page, f"second-{how}")).to_be_visible()
    streams.leader(others)


def test_a_service_that_ends_is_told_and_a_new_one_is_found(service: Service, watched: Watched) -> None:
    page = opened(service, watched)
    expect(page.locator("h1")).to_be_attached()
    port = str(service.state.connection()["port"])
    service.stop()
    expect(page.get_by_role("alert")).to_contain_text("Jobs go on without it")
    service.start("--port", port)
    expect(page.get_by_role("alert")).to_have_count(0)
    service.submit(*SMALL, "name=after-it")
    expect(listed(page, "after-it")).to_be_visible()
    watched.errors[:] = [error for error in watched.errors if "ERR_CONNECTION_REFUSED" not in error]
