"""The supervisor's side of the communicator: one process that exchanges with the other nodes (`child/communicator.py`).
It holds nothing: whoever replaces it goes on from the words and the sums in shared memory."""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from hogwild.cluster.launch import Launch
from hogwild.cluster.members import WORDS, RoundWord
from hogwild.errors import HogwildError
from hogwild.shared_memory.region import Region
from hogwild.workers.messages import CommunicateTask, ParentGone, Report, receive_parcels, send_parcel
from hogwild.workers.processes.group import ProcessGroup, Team, shortened
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roles import Role, limits_of
from hogwild.workers.processes.roster import Death, End, Roster, RowReading

ONLY = 0  # its number


class Communicators(Team):
    """The team of one. `heard`: what it has said and nobody has read; `generation`, `members`: the group that a
    replacement belongs to (0: none yet)."""

    def __init__(self, group: ProcessGroup, launch: Launch, sums: Mapping[str, Region]) -> None:
        super().__init__(group, Roster(Role.COMMUNICATOR, limits_of(Role.COMMUNICATOR, group.supervise), 1))
        self._launch = launch
        words = Region.allocate("words", 8 * WORDS)
        self._words = words.array("i8", (WORDS,))
        self._regions = {"words": words, **sums}
        self.heard: deque[dict[str, Any]] = deque()
        self.generation, self.members, self.lives = 0, tuple[int, ...](), tuple[str, ...]()

    def prepare(self, number: int) -> tuple[CommunicateTask, Mapping[str, Region]]:
        launch = self._launch
        self._words[RoundWord.BEAT] = 0
        task = CommunicateTask(
            rank=launch.rank,
            world=launch.world,
            run_id=launch.run_id,
            address=launch.address,
            port=launch.port,
            generation=self.generation,
            members=self.members,
            lives=self.lives,
            committed=self.committed,
            buffered=int(self._words[RoundWord.BUFFERED]),
        )
        return task, self._regions

    def beat(self) -> None:
        """Tell the process that the supervisor's loop runs: for a supervisor that is stopped it must not answer."""
        self._words[RoundWord.SUPERVISOR] += 1

    @property
    def committed(self) -> int:
        """The last round whose barrier it has passed. Of a live process only what it says counts."""
        return int(self._words[RoundWord.COMMITTED])

    @property
    def handle(self) -> Handle | None:
        """The process, if it is ready."""
        handle = self.handles.get(ONLY)
        return handle if handle is not None and handle.is_ready and not handle.killed_for else None

    def tell(self, do: str, descriptor: int | None = None, **values: Any) -> bool:
        """Send it a command; return False if there is no process, or it is dying: its pidfd will show that."""
        if (handle := self.handle) is None:
            return False
        try:
            send_parcel(handle.channel, {"do": do, **values}, descriptor)
        except OSError:
            return False
        return True

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        with contextlib.suppress(ParentGone):  # it has died: its pidfd says so
            for parcel in receive_parcels(handle.channel):
                kind = parcel["kind"]
                if kind == "error":
                    handle.error = Report(**parcel)
                elif kind == "ready":
                    handle.is_ready = True
                else:
                    self.heard.append(parcel)
        yield from ()

    def readings(self) -> dict[int, RowReading]:
        reading = RowReading(int(self._words[RoundWord.BEAT]), self.committed, 0.0, has_lease=False, idle=True)
        return dict.fromkeys(self.handles, reading)

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        error = handle.error if handle is not None else None
        said = error.detail if error is not None else how
        self.event("exit", number, kind=end.value, how=how, pid=handle.pid if handle else None)
        self.group.sink.show_message(f"communicator: {shortened(said)}; it is replaced, workers train on")
        return Death(how, error, batches=self.committed, end=end), []

    def has_left(self, handle: Handle) -> bool:
        return True

    def ask_to_leave(self, handle: Handle) -> None:
        self.tell("leave")
