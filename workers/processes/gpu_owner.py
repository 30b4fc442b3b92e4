"""The supervisor's side of `gpu_owner.py`: a process that owns the flats on a GPU, started before the workers are set
up, ended after the last of them. Its calls block; in a pause the pause_task's thread makes them.

If it dies, the parameters are lost: the job fails, and a resume continues from the last checkpoint."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping

from hogwild import host
from hogwild.errors import DeviceSharingError, HogwildError
from hogwild.parameters.flat_layout import region_name
from hogwild.parameters.shared_model import SharedModel
from hogwild.shared_memory.region import Region
from hogwild.workers.child.gpu_owner import FETCH, PUSH
from hogwild.workers.messages import OwnTask, Report
from hogwild.workers.processes.group import ProcessGroup, Team
from hogwild.workers.processes.handle import POLL_MS, Handle
from hogwild.workers.processes.roster import Death, End, Role, Roster, RowReading, limits_of

COPY_S = 120.0  # for one copy of all parameters


class GpuOwner:
    """The owner. Another thread may wait for its answer, so what the team hears is what this asks for. `handles`:
    region -> handle of its flats on the device."""

    def __init__(self, group: ProcessGroup, device: str, shared: SharedModel) -> None:
        """Start the owner of the flats of `shared`; they are on the device when this returns. Raises
        DeviceSharingError."""
        flats = {region_name(dtype) for dtype, size in shared.layout.flats.sizes.items() if size}
        regions = {name: shared.regions[name] for name in sorted(flats)}
        self._group, self._team, self._is_open = group, _Owners(group, device, regions), False
        self.handles: Mapping[str, str] = {}
        group.teams.append(self._team)
        try:
            self._turn()
            handle = self._team[0]
            self.pid = handle.pid
            self._pidfd, self._channel = os.dup(handle.pidfd), handle.channel.dup()
            self._is_open = True
            while (detail := self._team.allocated) is None:
                group.wait(POLL_MS)
                self._turn()
            self.handles = json.loads(detail)
        except BaseException:
            self.close()
            raise

    def _turn(self) -> None:
        for error in self._group.step(time.monotonic(), [self._team]):
            raise error

    def fetch(self) -> None:
        """Copy the parameters to host memory. All workers must be parked."""
        self._ask(FETCH, "fetched")

    def push(self) -> None:
        """Copy the parameters to the device. All workers must be parked, and will rebuild their private state."""
        self._ask(PUSH, "pushed")

    def _ask(self, command: bytes, kind: str) -> None:
        if not self._is_open:  # closing has made the last copy
            return
        try:
            self._channel.send(command)
        except OSError as error:
            raise lost(self.pid, str(error)) from error
        deadline = time.monotonic() + COPY_S
        while time.monotonic() < deadline:
            host.wait_readable([self._pidfd, self._channel.fileno()], POLL_MS)
            for report in Report.receive_all(self._channel):
                if report.kind == "error":
                    raise lost(self.pid, report.detail)
                if report.kind == kind:
                    return
            if host.wait_readable([self._pidfd], 0):
                raise lost(self.pid, "it died")
        raise lost(self.pid, f"no answer within {COPY_S:g} s")

    def close(self) -> None:
        """End the owner, after the last worker. Host memory then has the parameters, if they could be read."""
        if self.handles:
            with contextlib.suppress(DeviceSharingError):  # its death was reported where it was noticed
                self.fetch()
        self._group.dismiss([self._team], in_order=False)
        if self._is_open:
            self._is_open = False
            os.close(self._pidfd)
            self._channel.close()


class _Owners(Team):
    """The team of one that owns the flats."""

    is_loud = False

    def __init__(self, group: ProcessGroup, device: str, regions: Mapping[str, Region]) -> None:
        super().__init__(group, Roster(Role.OWNER, limits_of(Role.OWNER, group.supervise), 1))
        self._task = OwnTask(device), regions
        self.allocated: str | None = None  # the handles of the flats, as JSON

    def prepare(self, number: int) -> tuple[OwnTask, Mapping[str, Region]]:
        return self._task

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        if self.allocated is None:  # from then on every report answers a call
            handle.listen()
            for report in handle.pop_said():
                if report.kind == "allocated":
                    self.allocated = report.detail
                    self.roster.ready(0)
        yield from ()

    def readings(self) -> dict[int, RowReading]:
        """It has no row: only its start is limited."""
        return dict.fromkeys(self.handles, RowReading(0, 0, 0.0, has_lease=False, idle=True))

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        if handle is None:
            return Death(how, end=end), [lost(None, how)]
        why = handle.killed_for or f"it died. {handle.last_output()}".rstrip()
        if handle.error is not None:
            why = handle.error.detail
        return Death(how, handle.error, end=end), [lost(handle.pid, why)]


def lost(pid: int | None, why: str) -> DeviceSharingError:
    return DeviceSharingError(
        f"the process (pid {pid}) that owns the parameters on the device has failed: {why}; "
        "--resume continues from the last checkpoint"
    )
