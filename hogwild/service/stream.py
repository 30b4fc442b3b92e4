"""Server-sent events: each browser or client has one stream with all jobs, the machine, and the runs that it looks at.

    jobs     {"version": N, "rows": [...], "gone": [id, ...]}     the rows that changed; first all
    machine  as GET /machine                                        if it changed
    run      {"id", "status": content of status.json}               if it was replaced
    curves   {"id", "reset", "train": {name: [...]}, "evaluations": [...]}
    events   {"id", "reset", "events": [...]}

A reader that is late gets the newest rows, not a queue of old ones. The id of an event has the place up to which each
file was sent (`follow.Place`); a reader that comes back with it (Last-Event-ID, or ?last=) gets what follows."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from fastapi.sse import ServerSentEvent

from hogwild.service.folders import ID
from hogwild.service.follow import FollowedRun, Place
from hogwild.service.loop import ServiceLoop
from hogwild.service.machine_view import MachineView
from hogwild.service.rows import Snapshot

LEAST_S = 0.25  # between two looks of one stream
LOOK_S = 1.0  # between two looks at runs while no row changes
Places = dict[tuple[str, str], Place]  # (job id, "curves" or "events") -> up to where it was sent
KINDS = {"c": "curves", "e": "events"}


class Changes:
    """Wakes the streams when the loop has a new snapshot. `notify` may be called by any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()
        self._difference: tuple[int, int, str] = (-1, -1, "")
        self.is_closed = False

    def start(self, look: Callable[[], None]) -> None:
        """Take the running event loop; before it `notify` does nothing. `look` is called with each change."""
        self._loop, self._look = asyncio.get_running_loop(), look

    def notify(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the service ends
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._wake()

    async def wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def difference(self, before: Snapshot, now: Snapshot) -> str:
        """Return the changed rows as JSON. Streams that looked at the same moments share it."""
        if self._difference[:2] != (before.version, now.version):
            rows = ",".join(text for name, (_, text) in now.rows.items() if before.rows.get(name) != now.rows[name])
            gone = json.dumps([name for name in before.rows if name not in now.rows])
            text = f'{{"version":{now.version},"rows":[{rows}],"gone":{gone}}}'
            self._difference = (before.version, now.version, text)
        return self._difference[2]

    def _wake(self) -> None:
        self._look()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@dataclass(slots=True)
class RunReader:
    """One reader of one run."""

    id: str
    run: FollowedRun
    seen: tuple[int, ...] = ()  # identity of status.json

    def news(self, places: Places) -> Iterator[tuple[str, str]]:
        """Yield (event, data) of what is new, and move `places`. Reads files."""
        seen, status = self.run.status()
        if seen != self.seen and status:
            self.seen = seen
            yield "run", f'{{"id":"{self.id}","status":{status}}}'
        for kind in KINDS.values():
            if (news := self.run.since(kind, places.get((self.id, kind)))) is not None:
                places[self.id, kind] = news.place
                yield kind, f'{{"id":"{self.id}","reset":{json.dumps(news.is_reset)},{news.text}}}'


@dataclass(slots=True)
class StreamReader:
    """One stream. `last`: the id of the last event that the browser has."""

    loop: ServiceLoop
    changes: Changes
    machine: MachineView
    runs: list[RunReader]
    last: str = ""
    _places: Places = field(init=False)

    def __post_init__(self) -> None:
        known = {run.id for run in self.runs}
        self._places = {key: place for key, place in places_of(self.last).items() if key[0] in known}

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yield what changes."""
        before, machine = Snapshot(), ""
        while not self.changes.is_closed:
            waiting = asyncio.ensure_future(self.changes.wait(LOOK_S if self.runs else None))  # no change is missed
            try:
                now = self.loop.snapshot
                if now.version != before.version or not before.version:
                    yield ServerSentEvent(raw_data=self.changes.difference(before, now), event="jobs")
                    before = now
                if (shown := self.machine.update(now)) != machine:
                    yield ServerSentEvent(raw_data=shown, event="machine")
                    machine = shown
                for run in self.runs:
                    for kind, text, place in await asyncio.to_thread(self._news, run):
                        yield ServerSentEvent(raw_data=text, event=kind, id=place)
                await waiting
            finally:
                waiting.cancel()
            await asyncio.sleep(LEAST_S)

    def _news(self, run: RunReader) -> list[tuple[str, str, str | None]]:
        # After each event the id has what this event brought, not the next one's.
        return [(kind, text, text_of(self._places) or None) for kind, text in run.news(self._places)]


def text_of(places: Places) -> str:
    """Return the id of an event: `ID.c.INODE.OFFSET.CHECKSUM.STRIDE`, by commas."""
    return ",".join(f"{name}.{kind[0]}.{place}" for (name, kind), place in places.items())


def places_of(text: str) -> Places:
    """Return the places in an id; what cannot be read is left out, and sent again."""
    found: Places = {}
    for part in text.split(","):
        name, _, rest = part.partition(".")
        kind, _, rest = rest.partition(".")
        place = Place.of_text(rest)
        if ID.fullmatch(name) and kind in KINDS and place is not None:
            found[name, KINDS[kind]] = place
    return found
