"""The processes of one role, with what only that role knows: its task, its acknowledgements, its row of beats, and what
a death sets free. `group.py` gives them their life."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hogwild.errors import HogwildError
from hogwild.workers.messages import Task
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roles import Role
from hogwild.workers.processes.roster import Roster, RowReading
from hogwild.workers.processes.setbacks import Death, End

if TYPE_CHECKING:
    from hogwild.shared_memory.region import Region  # with numpy

LONGEST_WORDS = 300


class Diary(Protocol):
    """Keeper of a job's events: its journal."""

    def event(self, kind: str, /, **values: Any) -> None: ...
    def show_message(self, message: str) -> None: ...


class OfGroup(Protocol):
    """A team's view of its group, which imports this file."""

    diary: Diary


class KeptEvents:
    """Keeps events and messages until there is a journal."""

    def __init__(self) -> None:
        self._kept: list[Callable[[Diary], None]] = []

    def event(self, kind: str, /, **values: Any) -> None:
        self._kept.append(lambda diary: diary.event(kind, **values))

    def show_message(self, message: str) -> None:
        self._kept.append(lambda diary: diary.show_message(message))

    def tell(self, diary: Diary) -> None:
        for tell_one in self._kept:
            tell_one(diary)


class Team:
    """The processes of one role. Subclasses say what only the role knows."""

    is_loud = True  # its processes have logs, and their starts are events

    def __init__(self, group: OfGroup, roster: Roster) -> None:
        self.group, self.roster = group, roster
        self.handles: dict[int, Handle] = {}

    @property
    def role(self) -> Role:
        return self.roster.role

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self.handles.values()))

    def __len__(self) -> int:
        return len(self.handles)

    def __getitem__(self, number: int) -> Handle:
        return self.handles[number]

    # ---- what a role knows

    def prepare(self, number: int) -> "tuple[Task, Mapping[str, Region]]":
        """Return the task of a new process, and its regions. Its row has no other writer now."""
        raise NotImplementedError

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        """Process what the process has reported; yield errors that fail the job."""
        handle.listen()
        yield from ()

    def settle(self, handle: Handle) -> None:
        """Book the last acknowledgements of a dead process."""

    def book(self) -> None:
        """Book what all have done, after all were listened to."""

    def readings(self) -> dict[int, RowReading]:
        """Return what the processes' rows say; {}: they are not judged by their beats."""
        return {}

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        """Free what a dead process held, and record its death; return it, with errors that fail the job. Its last
        reports are processed. `handle`: None if it could not be started."""
        return Death(how, handle.error if handle else None, end=end), []

    def act(self) -> Iterator[HogwildError]:
        """Do what follows from this turn's events; yield errors that fail the job."""
        yield from ()

    def has_left(self, handle: Handle) -> bool:
        """Return whether a process that ended with status 0 left in order: user code can exit with 0, too."""
        return False

    def ask_to_leave(self, handle: Handle) -> None:
        """Tell a ready process to finish what it does and leave."""

    def waits(self) -> list[str]:
        """Return a line per idle process and what it waits for, for a deadlock message."""
        return []

    # ---- what all have in common

    def rows(self, counted: str, counts: Sequence[int]) -> list[dict[str, object]]:
        """Return a row per process for status.json. `counts`: what each has done, called `counted`."""
        return self.roster.rows({number: handle.pid for number, handle in self.handles.items()}, counted, counts)

    def event(self, what: str, number: int, **values: Any) -> None:
        prefix = "" if self.role is Role.WORKER else f"{self.role}-"
        self.group.diary.event(f"{prefix}{what}", **{self.role.value: number}, **values)


def said_by(handle: Handle, end: End) -> str:
    """Return the last line of a process that died before it had a log and could not report."""
    words = handle.last_output() if end is End.COULD_NOT_START and handle.error is None else ""
    return f" ({shortened(words)})" if words else ""


def shortened(words: str) -> str:
    """Return the first line of an exception, for the terminal; the log has all of it."""
    line = words.partition("\n")[0]
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}…"
