"""Requests that come while the job runs, and their answers: a checkpoint now, the stacks of all processes, other
numbers of workers and other cores, a predictor, the ids that have a row (`session/row_tables.py`). A request is a file
RUN/requests/ID.json, which its author writes under another name and renames. Each gets one event `request`, some at
once, some when the work is done.

    {"ask": "resize", "procs": 3}  ->  {"event": "request", "id": ID, "ask": …, "answer": "done", or why not}"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hogwild import host
from hogwild.storage.checkpoint_format import checkpoint_name
from hogwild.storage.run_files import Requests
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.stacks import Blocked, Stacks
from hogwild.workers.session.session import Session

DONE = "done"
KNOWN = ("checkpoint", "stacks", "resize", "predictor", "ids")
_CHECKPOINT = {"ask": "checkpoint"}


@dataclass(slots=True)
class RequestAnswers:
    """Requests of one attempt."""

    session: Session
    stacks: Stacks
    _requests: Requests = field(init=False)
    # id -> (updates that its checkpoint must have, number of the attempt at one that decides)
    _checkpoints: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._requests = Requests(self.session.rundir.requests)

    def answer(
        self, now: float, handles: Iterable[Handle], resize: Callable[[Any], str], predict: Callable[[], str]
    ) -> None:
        """Take up new requests, and answer those whose work is done. `handles`: the processes whose stacks can be asked
        for; `resize`: takes the wanted number of workers and returns why that cannot be, or "";
        `predict`: starts a predictor, or returns why not. None is kept: the reference cycle would keep shared memory
        alive until garbage collection."""
        for name, request in self._requests.look(now):
            match request.get("ask"):
                case "checkpoint":  # of all updates until now; an existing one that has them is enough
                    saving = self.session.saving
                    saving.hasten()
                    self._checkpoints[name] = saving.queue.updates, saving.attempts + saving.is_busy + 1
                case "stacks":
                    self._look(name, request, [handle for handle in handles if handle.log is not None])
                case "resize":
                    self._resize(name, request, resize)
                case "predictor":
                    self._tell(name, request, predict() or DONE)
                case "ids" if self.session.rows.tables:  # the next checkpoint brings them
                    self.session.rows.asked.append(name)
                    self._tell(name, request, DONE)
                case _:
                    self._tell(name, request, f"it asks for nothing known; known are {', '.join(KNOWN)}")
        self._tell_saved()

    def close(self) -> None:
        """Answer what is left at the end of the job."""
        self._tell_saved()
        for name in self._checkpoints:
            self._tell(name, _CHECKPOINT, "the job ended, and its last checkpoint was not written")
        self._checkpoints.clear()

    def _tell_saved(self) -> None:
        saving = self.session.saving
        for name, (updates, deciding) in list(self._checkpoints.items()):
            if saving.written_at >= updates:
                self._tell(name, _CHECKPOINT, DONE, checkpoint=checkpoint_name(saving.written_at))
            elif not saving.is_busy and not saving.is_worth_it and saving.unwritten is None:  # resumed from it
                self._tell(name, _CHECKPOINT, DONE, checkpoint=checkpoint_name(self.session.queue.updates))
            elif not saving.is_busy and saving.attempts >= deciding:
                self._tell(name, _CHECKPOINT, str(saving.unwritten or "parameters are NaN or infinite"))
            else:
                continue
            del self._checkpoints[name]

    def _look(self, name: str, request: Mapping[str, Any], handles: Sequence[Handle]) -> None:
        """Write the stacks of all processes to RUN/stacks; the answer names the call that each of them is in."""
        titles = {handle.pid: handle.title for handle in handles}
        if (server := SERVER.pid) is not None:
            titles[server] = f"fork server (pid {server})"

        def tell(blocked: Blocked) -> None:
            found = {title: blocked.get(pid, "") for pid, title in titles.items()}
            self._tell(name, request, DONE, stacks=str(self.session.rundir.stacks), calls=found)

        self.stacks.collect(handles, (), f"asked for by request {name}", 0.0, tell)

    def _resize(self, name: str, request: Mapping[str, Any], resize: Callable[[Any], str]) -> None:
        procs, cores = request.get("procs"), request.get("cores")
        why_not = "" if procs is None and cores is not None else resize(procs)
        if not why_not and cores is not None:
            why_not = self._move(cores)
        self._tell(name, request, why_not or DONE)

    def _move(self, cores: Any) -> str:
        """Run on these logical CPUs from now on, the whole job; return why that cannot be, or ""."""
        why_not = "its workers are pinned (train.pin)" if self.session.plan.cores else host.why_not_moved(cores)
        if not why_not:
            self.session.journal.show_message(f"cores: {', '.join(map(str, cores))}")
        return why_not

    def _tell(self, name: str, request: Mapping[str, Any], answer: str, **more: Any) -> None:
        asked = {field: request.get(field) for field in ("ask", "procs", "cores") if field in request}
        self.session.journal.event("request", id=name, **{"ask": None, **asked}, answer=answer, **more)
