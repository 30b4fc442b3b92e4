"""Calls to the predictors of running jobs, passed on by the service, which computes nothing: no torch."""

import asyncio
import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hogwild.errors import ConflictError
from hogwild.monitoring.live_calls import LiveCalls

LIMIT_S = 30.0  # for a predictor to start, and for an answer
MOST_CALLS = 16  # at the same time


class PassedCalls:
    """Passes calls on, each in a thread of its own that does not delay the end of the service."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(MOST_CALLS)

    async def pass_on(self, run: Path, rows: dict[str, Any], *, consistent: bool) -> dict[str, Any]:
        """Return the answer of the predictor of `run`. Raises ConflictError for too many calls, and what
        `LiveCalls.call` raises."""
        if not self._free.acquire(blocking=False):
            raise ConflictError(f"{MOST_CALLS} calls to predictors are waiting; call again", code="predict/busy")
        done: Future[dict[str, Any]] = Future()
        done.set_running_or_notify_cancel()  # the call goes on, even if nobody waits for its answer any more
        done.add_done_callback(lambda _: self._free.release())

        def work() -> None:
            try:
                done.set_result(_called(run, rows, consistent))
            except Exception as error:  # raised where the call was made
                done.set_exception(error)

        threading.Thread(target=work, name="predict", daemon=True).start()
        return await asyncio.wrap_future(done)


def _called(run: Path, rows: dict[str, Any], consistent: bool) -> dict[str, Any]:
    header = {"do": "predict", "form": "json", "consistent": consistent}
    with LiveCalls(run, start_s=LIMIT_S) as calls:
        answer, content = calls.call(header, json.dumps(rows).encode(), limit_s=LIMIT_S)
    return {"updates": answer["updates"], "columns": json.loads(content)}
