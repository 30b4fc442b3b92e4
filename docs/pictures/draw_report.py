"""Draw the pictures of docs/reading-a-report.md: the charts of a run's report as a browser shows them.

    pip install playwright pillow && python docs/pictures/draw_report.py RUN

Uses the Chromium of the machine. The run of the page: MNIST, four workers on two cores, one of them killed:

    hogwild train configs/mnist.yaml --procs 4 train.epochs=3 lr_schedule.name=cosine evaluate.every_updates=470
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, sync_playwright

from hogwild.report.report import write_report

HERE = Path(__file__).parent
GROUPS = ("learning", "throughput", "workers", "staleness", "resources")
WIDTH, TOP = 1000, 760  # pixels


def save(name: str, png: bytes) -> None:
    """Write the picture with 64 colours: a third of the size."""
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(HERE / f"{name}.png", optimize=True)


def main(run: Path) -> None:
    page_file, _ = write_report([run])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": TOP}, color_scheme="light")
        page.goto(f"file://{page_file}")
        save("report-page", page.screenshot())
        page.evaluate("document.querySelector('#controls').style.position = 'static'")  # it would lie over a chart
        for group in GROUPS:
            charts: Locator = page.locator(f'[data-group="{group}"]')
            save("timeline" if group == "workers" else group, charts.screenshot())
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
