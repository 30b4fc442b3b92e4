"""The report's page in a real browser: it draws without an error or a request, and hover, zoom, the axes and the theme
work. Skipped where there is no Chromium."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hogwild.cli import results
from tests.helpers.browser import Browser, chromium
from tests.helpers.run_records import Story, add_lines, write_run

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(chromium() is None, reason="no Chromium is installed: the page is not looked at"),
]
TIP = "(() => { const tip = document.querySelector('.tip'); return tip.hidden ? null : tip.innerText; })()"
RANGES = "Object.fromEntries(report.charts.map((one) => [one.panel.name, [one.u.scales.x.min, one.u.scales.x.max]]))"
STATE = "document.documentElement.dataset.state"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with everything, and a name that would be a script."""
    run = write_run(tmp_path_factory.mktemp("page") / "run", Story(records=400, name="<img src=x onerror=alert(1)>"))
    add_lines(run / "events.jsonl", {"time": 1.79e9 + 1e5, "event": "<script>alert(1)</script>"})
    return f"file://{results.report_answer([run], None)[1][0]}"


def drawn(browser: Browser, url: str) -> dict[str, list[float]]:
    """Open a page; return the x range of each chart."""
    browser.open(url)
    assert browser.errors == []
    assert [one for one in browser.requests if not one.startswith(("file:", "about:"))] == []
    assert float(browser.run("document.documentElement.dataset.drawnMs")) > 0
    found: dict[str, list[float]] = browser.run(RANGES)
    return found


def place(browser: Browser, panel: str) -> list[float]:
    """The chart's box in the window: left, top, width, height."""
    script = f"""(() => {{ const {{ over }} = report.charts.find((one) => one.panel.name === '{panel}').u;
        over.scrollIntoView({{ block: "center" }}); const box = over.getBoundingClientRect();
        return [box.left, box.top, box.width, box.height]; }})()"""
    found: list[float] = browser.run(script)
    return found


def point(browser: Browser, panel: str, right: float, down: float = 0.5) -> str | None:
    """Move the pointer there, as parts of the chart; return the tooltip."""
    left, top, width, height = place(browser, panel)
    browser.mouse("mouseMoved", left + 0.1 * width, top + 0.5 * height)
    browser.mouse("mouseMoved", left + right * width, top + down * height)
    found: str | None = browser.run(TIP)
    return found


def test_every_chart_is_drawn_and_nothing_is_requested(browser: Browser, address: str) -> None:
    assert {"loss", "accuracy", "lr", "samples_per_s", "worker_cpu", "timeline", "staleness"} <= drawn(
        browser, address
    ).keys()
    ink = """report.charts.map(({ u }) => { const { width, height } = u.ctx.canvas;
        return new Set(u.ctx.getImageData(0, 0, width, height).data).size; })"""
    assert min(browser.run(ink)) > 8  # colours: axes, curves and their smooth edges
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_narrow_window_scrolls_only_downwards(browser: Browser, address: str) -> None:
    browser.resize(400, 800)
    drawn(browser, address)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.resize(1000, 900)


def test_the_pointer_shows_the_values_of_all_curves(browser: Browser, address: str) -> None:
    drawn(browser, address)
    shown = point(browser, "loss", 0.5)
    assert shown is not None
    names = shown.split("\n")[1::2]
    assert names == ["training", "training, smoothed", "validation"]
    row = browser.run("(() => { const { u } = report.charts[0]; return u.data[1][u.cursor.idxs[1]]; })()")
    assert float(shown.split("\n")[2]) == pytest.approx(row, rel=1e-4)
    shown = point(browser, "timeline", 0.5, 0.95)
    assert shown is not None and shown.startswith("worker 3, ")


def test_a_drag_zooms_all_charts_and_a_double_click_resets_them(browser: Browser, address: str) -> None:
    before = drawn(browser, address)
    left, top, width, height = place(browser, "samples_per_s")
    x, y = left + 0.25 * width, top + 0.5 * height
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y, buttons=1)
    for part in (0.3, 0.5):
        browser.mouse("mouseMoved", left + part * width, y, button="left", buttons=1)
    browser.mouse("mouseReleased", left + 0.5 * width, y)
    zoomed = browser.run(RANGES)
    wanted = [0.25 * before["loss"][1], 0.5 * before["loss"][1]]
    for name in before.keys() - {"staleness"}:
        assert zoomed[name] == pytest.approx(wanted, rel=0.02), name
    assert zoomed["staleness"] == before["staleness"]
    address_of_zoom = browser.run("location.href")
    for _ in range(2):
        browser.mouse("mousePressed", x, y, buttons=1, clickCount=2)
        browser.mouse("mouseReleased", x, y, clickCount=2)
    assert browser.run(RANGES) == before
    assert drawn(browser, address_of_zoom)["loss"] == pytest.approx(wanted, rel=0.02)


def test_the_axis_the_scale_and_the_theme_are_switched_and_kept_in_the_address(browser: Browser, address: str) -> None:
    before = drawn(browser, address)
    browser.run("document.querySelector('[data-x=samples]').click()")
    after = browser.run(RANGES)
    assert after["loss"][1] == pytest.approx(1.01 * 400 * 320)
    assert after["timeline"] == before["timeline"]
    browser.run("document.querySelector('[data-panel=accuracy] button.small').click()")
    assert browser.run("report.charts.find((one) => one.panel.name === 'accuracy').u.scales.y.distr") == 3
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(background)
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(background) != light
    link = browser.run("location.href")
    assert link.endswith("#x=samples&log=accuracy&theme=dark")
    assert drawn(browser, link)["loss"] == after["loss"]
    state = json.loads(browser.run(STATE))
    assert (state["x"], state["log"], state["theme"]) == ("samples", {"accuracy": True}, "dark")
    assert browser.run(background) != light


def test_a_curve_is_hidden_by_its_legend(browser: Browser, address: str) -> None:
    drawn(browser, address)
    browser.run("document.querySelector('[data-panel=loss] button.chip').click()")
    assert browser.run("report.charts[0].u.series.map((one) => one.show)") == [True, False, True, True]


def test_several_runs_and_a_run_without_records_are_drawn(browser: Browser, tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, Story(records=records, deaths=0, rollback=False))
        for name, records in (("a", 30), ("b", 0))
    ]
    for given in (runs, runs[1:]):
        drawn(browser, f"file://{results.report_answer(given, None)[1][0]}")
