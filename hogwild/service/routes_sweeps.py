"""Sweeps over HTTP: submit one, look at it, ask all its jobs. The jobs themselves are those of `routes_jobs`."""

import asyncio
from dataclasses import replace
from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from hogwild.errors import ConflictError
from hogwild.service.loop import ServiceLoop
from hogwild.service.routes_jobs import Name, Submission, Text, check_submission, digest_of, order_with
from hogwild.service.states import LIVE, JobOrder
from hogwild.service.sweeps import MOST_JOBS, SWEEP, combinations, job_id
from hogwild.service.views import Row


class SweepSubmission(Submission):
    """A job for each combination of values. The client draws `id`, so that a repeated request is the same sweep."""

    id: str = Field(pattern=f"^{SWEEP.pattern}$")
    sweep: dict[Text, list[Text]] = Field(
        max_length=100, description=f"Key path -> values as YAML; at most {MOST_JOBS} combinations."
    )


def sweeps_router(loop: ServiceLoop) -> APIRouter:
    """Return the routes below /api/v1/sweeps. All answer with the sweep: its id and the rows of its jobs."""
    routes = APIRouter(prefix="/api/v1/sweeps", tags=["sweeps"])

    @routes.post("", status_code=201)
    async def submit(given: SweepSubmission) -> Row:
        """Accept all combinations, or none if one of them is wrong."""
        checked = await asyncio.to_thread(_orders_of, loop, given)
        orders = await asyncio.wrap_future(loop.call(lambda: loop.numbered(checked)))
        aside = await asyncio.to_thread(loop.write_sweep_aside, given.copies, orders)
        return await asyncio.wrap_future(loop.call(lambda: loop.submit_sweep(orders, aside)))

    @routes.get("/{name}")
    async def sweep(name: Name) -> Row:
        return await asyncio.wrap_future(loop.call(lambda: loop.sweep(name)))

    @routes.post("/{name}/{ask}")
    async def ask(name: Name, ask: Literal["cancel", "pause", "resume", "retry"], now: bool = False) -> Row:
        """Ask all jobs of a sweep; those whose state does not allow it stay as they are."""
        found = await sweep(name)
        refusals = []
        # Those that wait come first: one that ends would let the next one start. A call each: others come between.
        for row in sorted(found["jobs"], key=lambda row: row["state"] in LIVE):
            try:
                await asyncio.wrap_future(loop.call(lambda one=row["id"]: loop.ask(one, ask, now)))  # type: ignore[misc]
            except ConflictError as error:
                refusals.append(error)
        if len(refusals) == len(found["jobs"]):
            words = f"no job of sweep {found['id']} can be asked to {ask}, such as: {refusals[0]}"
            raise ConflictError(words, code="service/wrong-state")
        return await sweep(found["id"])

    @routes.delete("/{name}", status_code=204)
    async def delete(name: Name) -> None:
        """Remove all jobs of a sweep, if none of them is queued or live."""
        found = await sweep(name)
        for row in found["jobs"]:
            if row["state"] in ("queued", *LIVE):
                words = f"job {row['number']} of sweep {found['id']} is {row['state']}: cancel it first"
                raise ConflictError(words, code="service/wrong-state")
        for row in found["jobs"]:
            await asyncio.wrap_future(loop.call(lambda one=row["id"]: loop.delete(one)))  # type: ignore[misc]

    return routes


def _orders_of(loop: ServiceLoop, given: SweepSubmission) -> list[JobOrder]:
    """Check a sweep, with each of its combinations. Raises UsageError, ConfigError, NotFoundError."""
    check_submission(given)
    digest = digest_of(given)
    orders = []
    for index, values in enumerate(combinations(given.sweep, given.overrides)):
        overrides = [*given.overrides, *(f"{path}={value}" for path, value in values.items())]
        order = order_with(loop, given, job_id(given.id, index), overrides, digest)
        orders.append(replace(order, sweep=given.id, sweep_values=values))
    return orders
