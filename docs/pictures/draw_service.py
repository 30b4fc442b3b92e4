"""Draw the pictures of docs/service.md: the page of a service with jobs of every kind, as a browser shows it. Takes two
minutes on two cores.

    pip install playwright pillow && python docs/pictures/draw_service.py

Uses the Chromium of the machine."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from draw_report import save
from playwright.sync_api import Page, sync_playwright

import hogwild
from hogwild.errors import ServiceError
from hogwild.service.folders import StateFolder

WIDTH, HEIGHT, HEIGHT_OF_CHARTS = 1280, 760, 920  # pixels
OFTEN = ("log.every_s=0.3", "evaluate.every_epochs=20")
LR, MOMENTUM = "optimizer.init_args.lr", "optimizer.init_args.momentum"
RATES, MOMENTA = (0.02, 0.05, 0.1), (0.0, 0.5)
SHAPES = """import torch


class Shapes(torch.nn.Linear):
    def forward(self, pixels):
        return super().forward(pixels.view(-1, 8))
"""


def wait_for(what: str, look: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not look():
        if time.monotonic() > end:
            raise SystemExit(f"{what} took more than 300 s")
        time.sleep(0.2)


def fill(client: hogwild.Client) -> tuple[list[str], str]:
    """Submit the jobs of the pictures; return the ids of those to compare, and of the job that lends a core."""

    def submit(name: str, *overrides: str, job_file: str = "digits.yaml") -> str:
        return str(client.submit(job_file, [*overrides, f"name={name}"])["id"])

    def updates(job: str) -> int:
        return client.job(job)["updates"] or 0

    for seed in (1, 2):
        client.wait(submit(f"digits-seed-{seed}", f"seed={seed}", "train.epochs=200", *OFTEN))
    Path("shapes.py").write_text(SHAPES)
    model = "model={class_path: shapes.Shapes, init_args: {in_features: 64, out_features: 10}}"
    client.wait(submit("new-layer", model))
    compared = [
        submit(
            f"lr-{rate}-momentum-{momentum}",
            f"{LR}={rate}",
            f"{MOMENTUM}={momentum}",
            "train.procs=1",
            "train.epochs=300",
            *OFTEN,
        )
        for rate, momentum in itertools.product(RATES, MOMENTA)
    ]
    for job in compared:
        client.wait(job)
    rarely = ("log.every_s=2", "evaluate.every_epochs=60")
    lender = submit("digits-elastic", "queue.elastic={min: 1, max: auto}", "train.epochs=20000", *rarely)
    wait_for("the elastic job", lambda: updates(lender) > 100_000)
    borrower = submit("digits-borrows", "train.procs=1", "train.epochs=20000", *OFTEN)
    wait_for("the job that borrows a core", lambda: updates(borrower) > 50_000)
    client.pause(submit("digits-later", "train.procs=1"))
    submit("digits-waits", "train.procs=2", "queue.elastic=null")
    return compared, lender


def draw(page: Page, link: str, compared: list[str], lender: str) -> None:
    def show(view: str, drawn: str, name: str) -> None:
        page.evaluate("(view) => { location.hash = `#/${view}`; }", view)
        page.locator(drawn).first.wait_for()
        page.mouse.move(0, HEIGHT - 1)
        page.wait_for_timeout(2000)  # sparklines, curves
        save(name, page.screenshot())

    page.goto(link)
    page.locator("#jobs .row").first.wait_for()
    show("", "#jobs .spark polyline", "service-page")
    page.evaluate("localStorage.setItem('curves', JSON.stringify({ x: 'time' }))")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT_OF_CHARTS})
    show(lender, "#panel canvas", "service-job")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.evaluate("localStorage.removeItem('curves')")
    show(f"compare/{','.join(compared)}", ".compared .is-setting", "service-compare")
    page.evaluate("location.hash = '#/submit'")
    page.get_by_label("start from").select_option("digits")
    text = page.get_by_label("job file")
    text.fill(re.sub(r"epochs: \d+", "epochs: -1", text.input_value().replace("batch_size:", "batch_sise:"), count=1))
    page.get_by_label("overrides").fill("train.procs=2")
    show("submit", ".problems li", "service-submit")


def main() -> None:
    home = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        shutil.copy(home / "configs" / "digits.yaml", folder)
        state = Path(folder, "state")
        command = [sys.executable, str(home / "run.py"), "serve", "--port", "0", "--state-dir", str(state)]
        service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            client = hogwild.Client(state)

            def answers() -> bool:
                try:
                    return client.jobs() == []
                except ServiceError:
                    return False

            wait_for("the service", answers)
            compared, lender = fill(client)
            where = StateFolder(state).connection()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
                draw(page, f"http://127.0.0.1:{where['port']}/?token={where['token']}", compared, lender)
                browser.close()
            for row in client.jobs():
                if row["state"] in ("queued", "starting", "running"):
                    client.cancel(row["id"], now=True)
            wait_for("the end", lambda: all(row["pid"] is None for row in client.jobs()))
        finally:
            service.terminate()
            service.wait()


if __name__ == "__main__":
    main()
