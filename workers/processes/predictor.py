"""The supervisor's side of the predictor: one process that answers calls with the model while it trains
(`child/predictor.py`). It starts with the first request for it, and is replaced when it dies. It holds nothing and
writes no parameter, so its end, even for good, is none of the job's business."""

import contextlib
from collections.abc import Callable, Mapping

from hogwild.errors import HogwildError
from hogwild.monitoring.live_calls import SOCKET
from hogwild.parameters.buffers import REGION
from hogwild.shared_memory.region import Region
from hogwild.storage.run_directory import RunDir
from hogwild.workers.messages import PredictTask, Setup
from hogwild.workers.processes.group import ProcessGroup, Team, shortened
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roles import Role, limits_of
from hogwild.workers.processes.roster import Death, End, Roster, RowReading, State

BEATS = "beats"  # the region it writes: a beat, and the number of calls answered
FLATS = "params-"


class Predictors(Team):
    """The team of one, or none. `make_setup`: a worker's set-up, with all regions."""

    def __init__(
        self,
        group: ProcessGroup,
        rundir: RunDir,
        make_setup: Callable[[int], tuple[Setup, Mapping[str, Region]]],
    ) -> None:
        super().__init__(group, Roster(Role.PREDICTOR, limits_of(Role.PREDICTOR, group.supervise), 0))
        self._rundir, self._make_setup = rundir, make_setup
        self._beats: Region | None = None
        self._why_lost = ""

    def wish(self) -> str:
        """Have a predictor from now on; return why there is none, or ""."""
        if any(slot.state is State.RETIRED for slot in self.roster.slots):
            return f"it ended too often: {self._why_lost}"
        if not self.roster.count:
            try:
                self._beats = Region.allocate(BEATS, 16)
            except (OSError, HogwildError) as error:  # no memory or descriptor: no reason to end the job
                return str(error)
            self.roster.resize(1)
        return ""

    def remove_socket(self) -> None:
        """Remove its socket's file, after its end."""
        if self._beats is not None:
            with contextlib.suppress(OSError):  # user code may have made a folder of it
                (self._rundir.path / SOCKET).unlink()

    def prepare(self, number: int) -> tuple[PredictTask, Mapping[str, Region]]:
        setup, regions = self._make_setup(0)
        assert self._beats is not None
        task = PredictTask(
            run=str(self._rundir.path.absolute()),
            rows=setup.rows,
            structure_nbytes=setup.structure_nbytes,
        )
        needed = {REGION, "scoreboard", "structure"}
        read = {name: region for name, region in regions.items() if name in needed or name.startswith(FLATS)}
        return task, {**read, BEATS: self._beats}

    def readings(self) -> dict[int, RowReading]:
        beat, calls = (0, 0) if self._beats is None else map(int, self._beats.array("i8", (2,)))
        return dict.fromkeys(self.handles, RowReading(beat, calls, 0.0, has_lease=False, idle=True))

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        error = handle.error if handle is not None else None
        self._why_lost = shortened(error.detail if error is not None else how)
        self.event("exit", number, kind=end.value, how=how, pid=handle.pid if handle else None)
        self.group.sink.show_message(f"predictor: {self._why_lost}; workers train on")
        calls = 0 if self._beats is None else int(self._beats.array("i8", (2,))[1])
        return Death(how, batches=calls, end=end), []  # without its report: no exception of it ends the job
