"""The machine's own Chromium, driven by Playwright: nothing is downloaded."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WITHOUT = "no Chromium is installed: the page is not looked at"
REFUSED = "status of 422"  # the browser's own note about an answer that the page asks for while somebody types


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@dataclass
class Watched:
    """The complaints of a context's pages, and the addresses that they asked for."""

    context: BrowserContext
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def page(self, width: int = 1200, height: int = 900) -> Page:
        page = self.context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda told: self.errors.append(told.text) if told.type in ("error", "warning") else None)
        page.on("request", lambda request: self.requests.append(request.url))
        return page

    def complaints(self) -> list[str]:
        """Return the errors, and the requests that left this machine."""
        left = [url for url in self.requests if not url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))]
        return [error for error in self.errors if REFUSED not in error] + left


def fits(page: Page) -> bool:
    """Return whether the page scrolls only downwards."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
