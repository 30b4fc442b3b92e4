"""Calls to the predictors of running jobs, passed on by the service, which computes nothing: no torch."""

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

from hogwild.errors import ConflictError
from hogwild.monitoring.live_calls import LiveCalls

LIMIT_S = 30.0  # for a predictor to start, and for an answer
MOST_CALLS = 16  # at the same time


class PassedCalls:
    """Passes calls on, each in a thread of its own that does not delay the end of the service."""

    def __init__(self) -> None:
        self._count = 0

    async def pass_on(self, run: Path, rows: dict[str, Any], *, consistent: bool) -> dict[str, Any]:
        """Return the answer of the predictor of `run`. Raises ConflictError for too many calls, and what
        `LiveCalls.call` raises."""
        if self._count >= MOST_CALLS:
            raise ConflictError(f"{MOST_CALLS} calls to predictors are waiting; call again", code="predict/busy")
        events = asyncio.get_running_loop()
        done: asyncio.Future[dict[str, Any]] = events.create_future()

        def finish(answer: dict[str, Any] | BaseException) -> None:
            self._count -= 1
            if done.cancelled():
                return
            if isinstance(answer, BaseException):
                done.set_exception(answer)
            else:
                done.set_result(answer)

        def work() -> None:
            answer: dict[str, Any] | BaseException
            try:
                answer = _called(run, rows, consistent)
            except Exception as error:  # raised where the call was made
                answer = error
            with contextlib.suppress(RuntimeError):  # the service has ended
                events.call_soon_threadsafe(finish, answer)

        self._count += 1
        threading.Thread(target=work, name="predict", daemon=True).start()
        return await done


def _called(run: Path, rows: dict[str, Any], consistent: bool) -> dict[str, Any]:
    header = {"do": "predict", "form": "json", "consistent": consistent}
    with LiveCalls(run, start_s=LIMIT_S) as calls:
        answer, content = calls.call(header, json.dumps(rows).encode(), limit_s=LIMIT_S)
    return {"updates": answer["updates"], "columns": json.loads(content)}
