"""A headless Chromium, driven through a pipe by the DevTools protocol: no other package is needed."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `errors`: everything that its scripts and its security policy complained about."""

    def __init__(self, profile: Path, width: int = 1000, height: int = 900) -> None:
        program = chromium()
        assert program is not None
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()
        command = (
            f'exec "$0" --headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir="$1" '
            f"--window-size={width},{height} about:blank 3<&{to_browser} 4>&{from_browser}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, str(profile)],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in = os.fdopen(ours_out, "wb", buffering=0), os.fdopen(ours_in, "rb")
        self._last, self._session, self.errors = 0, "", list[str]()
        self._events: list[dict[str, Any]] = []
        (target,) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        place = {"sessionId": self._session} if self._session else {}
        self._out.write(json.dumps({"id": self._last, "method": method, "params": params, **place}).encode() + b"\0")
        while (message := self._read()).get("id") != self._last:
            pass
        assert "error" not in message, (method, message["error"])
        found: dict[str, Any] = message["result"]
        return found

    def _read(self) -> dict[str, Any]:
        found = bytearray()
        while (letter := self._in.read(1)) != b"\0":
            assert letter, "the browser ended"
            found += letter
        message: dict[str, Any] = json.loads(found)
        method = message.get("method")
        if method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.errors.append(json.dumps(message["params"])[:600])
        if method is not None:
            self._events.append(message)
        return message

    def open(self, url: str) -> None:
        """Load a page, also where only its hash is new, and wait until it has drawn."""
        self._events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.run("new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [one["params"]["request"]["url"] for one in self._events if one["method"] == "Network.requestWillBeSent"]

    def run(self, script: str) -> Any:
        """Return the JSON value of an expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send mouseMoved, mousePressed or mouseReleased."""
        button = {"button": "none"} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{**button, **more})

    def close(self) -> None:
        self._out.close()
        self._in.close()
        self._process.terminate()
        self._process.wait(30)
