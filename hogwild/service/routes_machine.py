"""The machine as a whole: the stream, cores and memory, sparklines, templates, figures for Prometheus.

Server-sent events: each browser or client has one stream with all jobs, the machine, and the runs that it looks at.

    jobs     {"version": N, "rows": [...], "gone": [id, ...]}     the rows that changed; first all
    machine  as GET /machine                                        if it changed
    run      {"id", "status": content of status.json}               if it was replaced
    curves   {"id", "reset", "train": {name: [...]}, "evaluations": [...]}
    events   {"id", "reset", "events": [...]}

A reader that is late gets the newest rows, not a queue of old ones. The id of an event has the place up to which each
file was sent (`run_reader.Place`); a reader that comes back with it (Last-Event-ID, or ?last=) gets what follows."""

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel

from hogwild import host
from hogwild.errors import ConflictError, NotFoundError
from hogwild.monitoring.prometheus import Family
from hogwild.service.folders import ID
from hogwild.service.loop import ServiceLoop
from hogwild.service.rows import Snapshot
from hogwild.service.run_reader import Followed, FollowedRun, Place
from hogwild.service.schedule import Machine
from hogwild.service.states import LIVE, STATES

MOST_FOLLOWED = 16  # runs in one stream
NEWEST = 100  # ended jobs with a sparkline
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
LastPlace = Annotated[str, Query(max_length=8192, description="Id of the last event: only what follows is sent.")]


class Template(BaseModel):
    """A job file that `hogwild init` writes. `files`: what it needs beside it, to be submitted with it; `needs`: files
    that are no text and must be on the service's machine."""

    name: str
    description: str
    text: str
    files: dict[str, str]
    needs: list[str]


LEAST_S = 0.25  # between two looks of one stream
LOOK_S = 1.0  # between two looks at runs while no row changes
Places = dict[tuple[str, str], Place]  # (job id, "curves" or "events") -> up to where it was sent
Seen = dict[str, tuple[int, ...]]  # job id -> identity of its status.json
KINDS = {"c": "curves", "e": "events"}


class MachineView:
    """Cores and memory by job, from the rows of each snapshot. `update` in one thread."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._total_bytes = host.machine_memory().bytes
        self._seen = 0  # version of the last snapshot
        self._live: dict[str, Mapping[str, Any]] = {}  # rows of live jobs
        self._owners: dict[int, str] = {}  # first logical CPU of a core -> job
        self._moves: deque[dict[str, Any]] = deque(maxlen=MOST_MOVES)
        self._text, self._until_s = "", 0.0

    def update(self, snapshot: Snapshot) -> str:
        """Return the machine as JSON; the same text while nothing worth an event has changed."""
        if snapshot.version == self._seen and time.monotonic() < self._until_s:
            return self._text
        self.look(snapshot)
        self._until_s = time.monotonic() + MEMORY_S
        step = max(1, int(self._total_bytes) // MEMORY_STEPS)
        owner_of = {gpu: name for name, row in self._live.items() for gpu in row["gpus"]}
        shown = {
            "cores": [{"cpus": list(cpus), "job": self._owners.get(cpus[0])} for cpus in self._machine.cores],
            "gpus": [{"name": name, "job": owner_of.get(name)} for name in self._machine.gpus],
            "memory": {
                "total_bytes": int(self._total_bytes),
                "free_bytes": int(host.available_memory().bytes) // step * step,
                "reserved_bytes": sum(row["memory"] for row in self._live.values()),
            },
            "moves": list(self._moves),
        }
        self._text = json.dumps(shown, separators=(",", ":"))
        return self._text

    def look(self, snapshot: Snapshot) -> None:
        """Note the changes since the last snapshot."""
        if snapshot.version == self._seen:
            return
        is_first = not self._seen
        for name, (version, text) in snapshot.rows.items():
            if version > self._seen:
                row = json.loads(text)
                if row["state"] in LIVE:
                    self._live[name] = row
                else:
                    self._live.pop(name, None)
        for name in self._live.keys() - snapshot.rows.keys():
            del self._live[name]
        self._seen = snapshot.version
        owner_of = {cpu: name for name, row in self._live.items() for cpu in row["cores"]}
        owners = {cpus[0]: owner_of[cpus[0]] for cpus in self._machine.cores if cpus[0] in owner_of}
        if not is_first:
            self._note(owners)
        self._owners = owners

    def _note(self, owners: Mapping[int, str]) -> None:
        """Add a move for each two jobs between which cores have changed."""
        moved: dict[tuple[str | None, str | None], list[int]] = {}
        for cpus in self._machine.cores:
            before, after = self._owners.get(cpus[0]), owners.get(cpus[0])
            if before != after:
                moved.setdefault((before, after), []).extend(cpus)
        for (before, after), cpus_of in moved.items():
            had, has = set(self._owners.values()), set(owners.values())
            if before in self._live and after is not None:
                why = "lent"
            elif after is not None:
                why = "grows" if after in had else "starts"
            else:
                why = "shrinks" if before in has else "ends"
            self._moves.append({"at": time.time(), "cpus": cpus_of, "from": before, "to": after, "why": why})


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


def news_of(name: str, run: FollowedRun, seen: Seen, places: Places) -> Iterator[tuple[str, str, str | None]]:
    """Yield (event, data, id) of what is new in a job's run, and move `seen` and `places`. Reads files."""
    identity, status = run.status()
    if seen.get(name) != identity and status:
        seen[name] = identity
        yield "run", f'{{"id":"{name}","status":{status}}}', text_of(places) or None
    for kind in KINDS.values():
        if (news := run.since(kind, places.get((name, kind)))) is not None:
            places[name, kind] = news.place  # the id has what this event brought, not the next one's
            yield kind, f'{{"id":"{name}","reset":{json.dumps(news.is_reset)},{news.text}}}', text_of(places)


async def changes_of(
    loop: ServiceLoop, changes: Changes, machine: MachineView, runs: Mapping[str, FollowedRun], last: str = ""
) -> AsyncIterator[ServerSentEvent]:
    """Yield what changes. `runs`: the followed ones, by job; `last`: the id of the last event that the browser has."""
    before, shown = Snapshot(), ""
    seen: Seen = {}
    places = {key: place for key, place in places_of(last).items() if key[0] in runs}
    while not changes.is_closed:
        waiting = asyncio.ensure_future(changes.wait(LOOK_S if runs else None))  # no change is missed
        try:
            now = loop.snapshot
            if now.version != before.version or not before.version:
                yield ServerSentEvent(raw_data=changes.difference(before, now), event="jobs")
                before = now
            if (text := machine.update(now)) != shown:
                yield ServerSentEvent(raw_data=text, event="machine")
                shown = text
            for name, run in runs.items():
                for kind, text, place in await asyncio.to_thread(list, news_of(name, run, seen, places)):
                    yield ServerSentEvent(raw_data=text, event=kind, id=place)
            await waiting
        finally:
            waiting.cancel()
        await asyncio.sleep(LEAST_S)


def text_of(places: Places) -> str:
    """Return the id of an event: `ID.c.OFFSET.CHECKSUM.STRIDE`, by commas."""
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


MOST_MOVES = 200
MEMORY_S = 1.0  # between two looks at the free memory
MEMORY_STEPS = 100  # of the whole memory: a smaller change of the free part is not worth an event


def live_and_newest(snapshot: Snapshot, count: int) -> Iterable[tuple[str, str]]:
    """Return (id, run directory) of all live jobs and of the newest `count` others."""
    found, others = [], 0
    for name, (_, text) in reversed(snapshot.rows.items()):
        row = json.loads(text)
        is_live = row["state"] in LIVE
        others += not is_live
        if is_live or others <= count:
            found.append((name, row["run_dir"]))
    return found


OF_A_JOB = {
    "progress": ("job_progress_ratio", "The part of the job that is done, 0 to 1."),
    "samples_per_s": ("job_samples_per_second", "Of all its workers, since the record before."),
    "loss": ("job_loss", "Mean training loss per batch since the record before."),
    "updates": ("job_updates_total", "Updates applied by all its workers."),
    "restarts": ("job_restarts_total", "Of its workers."),
}


def exposition(rows: Sequence[Mapping[str, Any]], machine: Machine) -> str:
    """Return the figures. `rows`: of all jobs."""
    live = [row for row in rows if row["state"] in LIVE]
    states = [row["state"] for row in rows]
    families = [
        Family("service_jobs", "Jobs by state.", [({"state": one}, float(states.count(one))) for one in STATES]),
        Family.one("service_queue_jobs", "Jobs that wait for their start.", states.count("queued")),
        Family.one("service_cores", "Physical cores that jobs share.", len(machine.cores)),
        Family.one("service_cpus", "Logical CPUs that jobs share.", sum(map(len, machine.cores))),
        Family.one("service_cpus_used", "Of them, those that live jobs have.", sum(len(row["cores"]) for row in live)),
        Family.one("service_gpus", "GPUs that jobs share.", len(machine.gpus)),
        Family.one("service_gpus_used", "Of them, those that live jobs have.", sum(len(row["gpus"]) for row in live)),
        Family.one("service_memory_bytes", "PSS of the service's process.", host.pss_bytes(os.getpid())),
        Family.one("service_cpu_seconds_total", "Processor time of the service's process.", host.cpu_s(os.getpid())),
        *(Family(one, words, [(_labels(row), row[key]) for row in live]) for key, (one, words) in OF_A_JOB.items()),
        Family("job_cpus", "Logical CPUs of the job.", [(_labels(row), float(len(row["cores"]))) for row in live]),
    ]
    return "".join(f"{line}\n" for family in families for line in family.lines({}))


def _labels(row: Mapping[str, Any]) -> Mapping[str, str]:
    return {"job": row["id"], "number": str(row["number"]), "name": row["name"]}


def machine_router(
    loop: ServiceLoop,
    changes: Changes,
    followed: Followed,
    machine: MachineView,
    templates: Callable[[], Sequence[Template]],
) -> APIRouter:
    """Return the routes; all but /metrics are below /api/v1. Those that may be slow are no coroutines: FastAPI calls
    them in threads."""
    routes = APIRouter(tags=["machine"])

    @routes.get("/api/v1/stream", response_class=EventSourceResponse)
    async def streamed(
        run: Annotated[
            list[Annotated[str, Query(max_length=100)]],
            Query(max_length=MOST_FOLLOWED, description="Jobs whose runs are followed; unknown ones are left out."),
        ] = [],  # noqa: B006  # FastAPI copies it
        last: LastPlace = "",
        last_event_id: Annotated[str, Header(max_length=8192)] = "",
    ) -> AsyncIterator[ServerSentEvent]:
        """Send what changes as events: jobs, machine, and of each followed run: run, curves, events."""
        runs = {}
        for name in run:
            with contextlib.suppress(NotFoundError, ConflictError):
                row = await asyncio.wrap_future(loop.call(partial(loop.row, name)))
                runs[row["id"]] = followed.run(Path(row["run_dir"]))
        async for event in changes_of(loop, changes, machine, runs, last_event_id or last):
            yield event

    @routes.get("/api/v1/machine", response_model=dict[str, Any])
    async def shown() -> Response:
        """Return cores and GPUs by job, memory, and the newest moves of cores between jobs."""
        return Response(machine.update(loop.snapshot), media_type="application/json")

    @routes.get("/api/v1/sparklines")
    def sparklines(points: Annotated[int, Query(ge=2, le=200)] = 40) -> dict[str, list[float | None]]:
        """Return id -> training losses over the whole run, of the live jobs and the newest others."""
        shown = live_and_newest(loop.snapshot, NEWEST)
        return {name: followed.sparkline(Path(run), points) for name, run in shown}

    @routes.get("/api/v1/templates")
    def listed() -> list[Template]:
        """Return the job files that `hogwild init` can write."""
        return list(templates())

    @routes.get("/metrics", response_class=PlainTextResponse, tags=["service"])
    def prometheus() -> Response:
        """Return the figures of the service in Prometheus' text format."""
        rows = [json.loads(text) for _, text in loop.snapshot.rows.values()]
        return Response(exposition(rows, loop.machine), media_type=PROMETHEUS)

    return routes
