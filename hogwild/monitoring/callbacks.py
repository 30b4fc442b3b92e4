"""Callbacks of `hogwild.train`: objects that are told of the job's start, evaluations, checkpoints and end.

    supervisor's loop ── tell ──► queue ──► [thread: one event after the other, to each callback in order]
            ▲                                                   │
            '──────── each turn: wants_stop, error ◄────────────'

The loop never waits for a callback. The end of a job does, before the summary and before `train` returns."""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hogwild.errors import HogwildError, UsageError, UserCodeError
from hogwild.formatting import brief
from hogwild.host.signals import leave_signals_to_main
from hogwild.user_code import raised_text

METHODS = {"start": "on_start", "evaluation": "on_evaluation", "checkpoint": "on_checkpoint", "end": "on_end"}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a job. `kind` is start, evaluation, checkpoint or end; an evaluation has `epoch` (complete ones),
    `updates`, `metrics` and `is_best`, a checkpoint its folder `checkpoint`, the end `state` and `reason`. `stop()`
    lets the job stop with a checkpoint, as Ctrl-C does; `hogwild.train` then returns."""

    __repr__ = brief

    kind: str
    run_dir: Path
    stop: Callable[[], None] = field(repr=False)
    epoch: int | None = None
    updates: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_best: bool = False
    checkpoint: Path | None = None
    state: str | None = None
    reason: str | None = None


class Callbacks:
    """The callbacks of one job. A context manager: at its end all events were delivered. `wants_stop`: one of them
    asked for it, or raised `error`, after which only `on_end` is called."""

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        """Raises UsageError for anything but a list or tuple of objects with some of the methods."""
        if not isinstance(callbacks, list | tuple):
            raise UsageError(f"callbacks must be a list of objects, got {callbacks!r}", code="usage/callbacks")
        for number, callback in enumerate(callbacks):
            if isinstance(callback, type) or not any(
                callable(getattr(callback, name, None)) for name in METHODS.values()
            ):
                raise UsageError(
                    f"callbacks[{number}] must be an object with some of the methods {', '.join(METHODS.values())}, "
                    f"got {callback!r}",
                    code="usage/callbacks",
                )
        self.wants_stop = False
        self.error: HogwildError | None = None
        self._callbacks = tuple(callbacks)
        self._queue: SimpleQueue[JobEvent | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="callbacks", daemon=True)

    def __enter__(self) -> "Callbacks":
        if self._callbacks:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._callbacks:
            self._queue.put(None)
            self._thread.join()

    def tell(self, kind: str, run_dir: Path, values: Mapping[str, Any]) -> None:
        """Queue an event of the journal, if it is one of METHODS."""
        if not self._callbacks or kind not in METHODS:
            return
        known: dict[str, Any] = {}
        if kind == "evaluation":
            metrics = {name: value for name, value in values.items() if name not in ("epoch", "updates", "best")}
            known = {"epoch": values["epoch"], "updates": values["updates"]}
            known |= {"is_best": values["best"], "metrics": metrics}
        elif kind == "checkpoint":
            known = {"checkpoint": run_dir / "checkpoints" / values["name"]}
        elif kind == "end":
            known = {"state": values["state"], "reason": values["reason"]}
        self._queue.put(JobEvent(kind, run_dir, self._stop, **known))

    def delivered(self) -> threading.Event:
        """Return an event that is set once everything until now was delivered."""
        mark = threading.Event()
        if self._callbacks:
            self._queue.put(mark)
        else:
            mark.set()
        return mark

    def fail(self, error: HogwildError) -> None:
        """Stop the job for an error that `hogwild.train` then raises."""
        self.error = self.error or error
        self.wants_stop = True

    def _stop(self) -> None:
        self.wants_stop = True

    # ---- the thread

    def _serve(self) -> None:
        leave_signals_to_main()
        while (event := self._queue.get()) is not None:
            if isinstance(event, threading.Event):
                event.set()
                continue
            name = METHODS[event.kind]
            for number, callback in enumerate(self._callbacks):
                if hasattr(callback, name) and (self.error is None or event.kind == "end"):
                    self._call(f"callbacks[{number}] ({type(callback).__qualname__}).{name}", callback, event)

    def _call(self, title: str, callback: object, event: JobEvent) -> None:
        try:
            getattr(callback, METHODS[event.kind])(event)
        except BaseException as raised:  # SystemExit, too: nothing else would tell of it
            if self.error is None:
                text = "".join(traceback.format_exception(raised)).rstrip()
                self.error = UserCodeError(f"{title}: {raised_text(raised)}\n\n{text}", code="train/callback")
                self.error.__cause__ = raised
            self.wants_stop = True
