"""The report's page in a real browser: it draws without an error or a request, and hover, zoom, the axes and the theme
work. Skipped where there is no Chromium."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from hogwild.cli import results
from tests.helpers.browser import WITHOUT, Watched, browsing, chromium, fits
from tests.helpers.run_records import Story, add_lines, write_run

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(chromium() is None, reason=WITHOUT),
]
TIP = "(() => { const tip = document.querySelector('.tip'); return tip.hidden ? null : tip.innerText; })()"
RANGES = (
    "Object.fromEntries(report.gallery.charts.map((one) => [one.panel.name, [one.u.scales.x.min, one.u.scales.x.max]]))"
)
STATE = "document.documentElement.dataset.state"


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with browsing() as browser:
        yield Watched(browser.new_context())


@pytest.fixture(scope="module")
def page(watched: Watched) -> Page:
    return watched.page(1000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with everything, a name that would be a script, and a loss that differs by rounding when smoothed."""
    run = write_run(tmp_path_factory.mktemp("page") / "run", Story(records=400, name="<img src=x onerror=alert(1)>"))
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(metrics.replace('"kind":"train"', '"kind":"train","losses":{"kl":3.0}'))
    add_lines(run / "events.jsonl", {"time": 1.79e9 + 1e5, "event": "<script>alert(1)</script>"})
    return f"file://{results.report_answer([run], None)[1][0]}"


@pytest.fixture(autouse=True)
def nothing_is_asked_for(watched: Watched) -> Iterator[None]:
    yield
    assert watched.complaints() == []


def drawn(page: Page, url: str) -> dict[str, list[float]]:
    """Load a page, also where only its hash is new; return the x range of each chart."""
    page.goto("about:blank")
    page.goto(url)
    assert float(page.evaluate("document.documentElement.dataset.drawnMs")) > 0
    found: dict[str, list[float]] = page.evaluate(RANGES)
    return found


def place(page: Page, panel: str) -> list[float]:
    """The chart's box in the window: left, top, width, height."""
    script = f"""(() => {{ const {{ over }} = report.gallery.charts.find((one) => one.panel.name === '{panel}').u;
        over.scrollIntoView({{ block: "center" }}); const box = over.getBoundingClientRect();
        return [box.left, box.top, box.width, box.height]; }})()"""
    found: list[float] = page.evaluate(script)
    return found


def point(page: Page, panel: str, right: float, down: float = 0.5) -> str | None:
    """Move the pointer there, as parts of the chart; return the tooltip."""
    left, top, width, height = place(page, panel)
    page.mouse.move(left + 0.1 * width, top + 0.5 * height)
    page.mouse.move(left + right * width, top + down * height)
    found: str | None = page.evaluate(TIP)
    return found


@pytest.mark.whole
def test_every_chart_is_drawn_and_nothing_is_requested(page: Page, address: str) -> None:
    assert [*drawn(page, address)] == [
        *("loss", "validation accuracy", "losses.kl", "lr", "samples_per_s", "pss_bytes", "worker_samples_per_s"),
        *("worker_pss_bytes", "worker_cpu", "timeline", "staleness"),
    ]
    assert page.locator("[data-panel='losses.kl'] h3").inner_text() == "Training loss: kl"
    ink = """report.gallery.charts.map(({ u }) => { const { width, height } = u.ctx.canvas;
        return new Set(u.ctx.getImageData(0, 0, width, height).data).size; })"""
    assert min(page.evaluate(ink)) > 8  # colours: axes, curves and their smooth edges
    assert fits(page)


def test_ticks_stand_at_round_values_and_are_never_too_many(page: Page, address: str) -> None:
    drawn(page, address)

    def ticks(low: float, high: float, step: float, *, log: bool = False) -> list[float]:
        scales = f"{{scales: {{y: {{distr: {3 if log else 1}}}}}, axes: [{{}}, {{scale: 'y'}}]}}"
        found: list[float] = page.evaluate(
            f"charts.axes('updates', 'number')[1].splits({scales}, 1, {low}, {high}, {step})"
        )
        return found

    assert ticks(-0.07, 0.31, 0.1) == [0, 0.1, 0.2, 0.3]
    assert ticks(0.3, 0.3000000000000001, 1e-18) == [0.3]  # the step is lost in rounding
    assert ticks(0.3, 0.4, 1e-18) == []
    assert ticks(0.5, 30, 0, log=True) == [*(one / 10 for one in range(5, 10)), *range(1, 10), 10, 20, 30]
    assert ticks(1.04e5, 1.6e5, 0, log=True) == [*range(110_000, 170_000, 10_000)]
    assert ticks(1.04e5, 1.2e5, 0, log=True) == [105_000, 110_000, 115_000, 120_000]
    assert ticks(2e-9, 5e-9, 0, log=True) == [2e-9, 3e-9, 4e-9, 5e-9]


def test_a_narrow_window_scrolls_only_downwards(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    drawn(page, address)
    assert fits(page)
    page.set_viewport_size({"width": 1000, "height": 900})


def test_the_pointer_shows_the_values_of_all_curves(page: Page, address: str) -> None:
    drawn(page, address)
    shown = point(page, "loss", 0.5)
    assert shown is not None
    names = shown.split("\n")[1::2]
    assert names == ["training", "validation"]
    row = page.evaluate("(() => { const { u } = report.gallery.charts[0]; return u.data[1][u.cursor.idxs[1]]; })()")
    assert float(shown.split("\n")[2]) == pytest.approx(row, rel=1e-4)
    shown = point(page, "timeline", 0.5, 0.95)
    assert shown is not None and shown.startswith("worker 3, ")


def test_a_drag_zooms_all_charts_and_a_double_click_resets_them(page: Page, address: str) -> None:
    before = drawn(page, address)
    left, top, width, height = place(page, "samples_per_s")
    x, y = left + 0.25 * width, top + 0.5 * height
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(left + 0.5 * width, y, steps=2)
    page.mouse.up()
    zoomed = page.evaluate(RANGES)
    wanted = [0.25 * before["loss"][1], 0.5 * before["loss"][1]]
    for name in before.keys() - {"staleness"}:
        assert zoomed[name] == pytest.approx(wanted, rel=0.02), name
    assert zoomed["staleness"] == before["staleness"]
    address_of_zoom = page.evaluate("location.href")
    page.mouse.dblclick(x, y)
    assert page.evaluate(RANGES) == before
    assert drawn(page, address_of_zoom)["loss"] == pytest.approx(wanted, rel=0.02)


def test_the_axis_the_scale_and_the_theme_are_switched_and_kept_in_the_address(page: Page, address: str) -> None:
    before = drawn(page, address)
    page.evaluate("document.querySelector('[data-x=samples]').click()")
    after = page.evaluate(RANGES)
    assert after["loss"][1] == pytest.approx(1.01 * 400 * 320)
    assert after["timeline"] == before["timeline"]
    page.locator("[data-panel='validation accuracy'] button.small").click()
    assert (
        page.evaluate("report.gallery.charts.find((one) => one.panel.name === 'validation accuracy').u.scales.y.distr")
        == 3
    )
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.evaluate("document.querySelector('#theme').click()")
    assert page.evaluate(background) != light
    link = page.evaluate("location.href")
    assert link.endswith("#x=samples&log=validation%20accuracy&theme=dark")
    assert drawn(page, link)["loss"] == after["loss"]
    state = json.loads(page.evaluate(STATE))
    assert (state["x"], state["log"], state["theme"]) == ("samples", {"validation accuracy": True}, "dark")
    assert page.evaluate(background) != light


def test_a_curve_is_hidden_by_its_legend(page: Page, address: str) -> None:
    drawn(page, address)
    page.evaluate("document.querySelector('[data-panel=loss] button.chip').click()")
    assert page.evaluate("report.gallery.charts[0].u.series.map((one) => one.show)") == [True, False, True]


def test_curves_are_as_recorded_until_a_smooth_one_is_asked_for_which_no_legend_names(page: Page, address: str) -> None:
    chart = "report.gallery.charts.find((one) => one.panel.name === 'samples_per_s')"

    def shown() -> tuple[list[str], int]:
        names = page.locator("[data-panel=samples_per_s] button.chip").all_inner_texts()
        return names, page.evaluate(f"{chart}.u.series.length")

    drawn(page, address)
    names, series = shown()
    recorded = page.evaluate(f"{chart}.u.data[1].filter((value) => value !== null)")
    assert len(names) == 1 and names[0].startswith("samples per second") and series == 2
    page.locator("#controls input").fill("1")
    assert shown() == (names, 3)
    raw, smooth = page.evaluate(f"{chart}.u.data.slice(1).map((one) => one.filter((value) => value !== null))")
    assert raw == recorded
    mean, weight = 0.0, 0.0
    for value, drawn_value in zip(raw, smooth, strict=True):
        mean, weight = 0.5 * mean + 0.5 * value, 0.5 * weight + 0.5
        assert drawn_value == pytest.approx(mean / weight)
    assert page.evaluate("location.href").endswith("#smooth=1")
    tip = point(page, "samples_per_s", 0.5)
    assert tip is not None and tip.split("\n")[1::2] == ["samples per second"]


def test_a_curve_of_one_value_is_a_dot_also_beside_others(page: Page, tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, Story(records=records, deaths=0, rollback=False))
        for name, records in (("a", 30), ("b", 1))
    ]
    drawn(page, f"file://{results.report_answer(runs, None)[1][0]}")
    chart = "report.gallery.charts.find((one) => one.panel.name === 'training loss').u"
    known = page.evaluate(f"{chart}.data.slice(1).map((one) => one.filter((value) => value != null).length)")
    dots = page.evaluate(f"{chart}.series.slice(1).map((one, at) => one.points.show({chart}, at + 1) === true)")
    assert (known, dots) == ([30, 1], [False, True])


def test_several_runs_and_a_run_without_records_are_drawn(page: Page, tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, Story(records=records, deaths=0, rollback=False))
        for name, records in (("a", 30), ("b", 0))
    ]
    for given in (runs, runs[1:]):
        drawn(page, f"file://{results.report_answer(given, None)[1][0]}")
