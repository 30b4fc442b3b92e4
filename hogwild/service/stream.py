"""Server-sent events: each browser or client has one stream with the rows that changed, and the ids that are gone.

Event `jobs`: {"version": N, "rows": [...], "gone": [id, ...]}; the first one has all rows. A reader that is late gets
the newest rows, not a queue of old ones."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from fastapi.sse import ServerSentEvent

from hogwild.service.loop import ServiceLoop, Snapshot

LEAST_S = 0.25  # between two events of one stream


class Changes:
    """Wakes the streams when the loop has a new snapshot. `notify` may be called by any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self.is_closed = False

    def start(self) -> None:
        """Take the running event loop; before it `notify` does nothing."""
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the service ends
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._wake()

    async def wait(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def events(loop: ServiceLoop, changes: Changes) -> AsyncIterator[ServerSentEvent]:
    """Yield the jobs as they change."""
    before = Snapshot()
    while not changes.is_closed:
        waiting = asyncio.ensure_future(changes.wait())  # before the look: no change is missed
        try:
            now = loop.snapshot
            if now.version != before.version or not before.version:
                yield ServerSentEvent(raw_data=_difference(before, now), event="jobs", id=str(now.version))
                before = now
            await waiting
        finally:
            waiting.cancel()
        await asyncio.sleep(LEAST_S)


def _difference(before: Snapshot, now: Snapshot) -> str:
    rows = ",".join(text for name, (_, text) in now.rows.items() if before.rows.get(name) != now.rows[name])
    gone = json.dumps([name for name in before.rows if name not in now.rows])
    return f'{{"version":{now.version},"rows":[{rows}],"gone":{gone}}}'
