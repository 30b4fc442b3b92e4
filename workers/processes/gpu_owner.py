"""The supervisor's side of `gpu_owner.py`: a process that owns the flats on a GPU, started before the workers are set
up, ended after the last of them. Its calls block; in a pause the pause_task's thread makes them.

If it dies, the parameters are lost: the job fails, and a resume continues from the last checkpoint."""

import contextlib
import json
import os
import time
from collections.abc import Mapping

from hogwild import host
from hogwild.errors import DeviceSharingError
from hogwild.parameters.flat_layout import region_name
from hogwild.parameters.shared_model import SharedModel
from hogwild.planning.cpu_plan import Plan
from hogwild.planning.device_placement import SHARED
from hogwild.shared_memory.region import Region
from workers.child.gpu_owner import FETCH, PUSH
from workers.messages import HoldTask, Report
from workers.processes.handle import POLL_MS, REAP_S, Handle, reaped

COPY_S = 120.0  # for one copy of all parameters


def holder_for(planned: Plan, shared: SharedModel, timeout_s: float) -> "NoHolder":
    """Return the owner of the flats of `shared`; if the plan puts them on a device, they are there when this returns.
    Raises DeviceSharingError."""
    if planned.placement != SHARED:
        return NoHolder()
    flats = {region_name(dtype) for dtype, size in shared.layout.flats.sizes.items() if size}
    return Holder.start(planned, {name: shared.regions[name] for name in sorted(flats)}, timeout_s)


class NoHolder:
    """Do-nothing owner: the flats lie in host memory. `handles`: region -> handle of flats on a device, or None."""

    handles: Mapping[str, str] | None = None
    pid: int | None = None

    def fetch(self) -> None:
        """Copy the parameters to host memory. All workers must be parked."""

    def push(self) -> None:
        """Copy the parameters to the device. All workers must be parked, and will rebuild their private state."""

    def check(self) -> None:
        """Raise DeviceSharingError if the owner is dead."""

    def close(self) -> None:
        """End the owner, after the last worker. Host memory then has the parameters, if they could be read."""


class Holder(NoHolder):
    def __init__(self, handle: Handle, lifeline: tuple[int, int]) -> None:
        self._handle, self._lifeline = handle, lifeline
        self._is_open, self.pid = True, handle.pid

    @classmethod
    def start(cls, planned: Plan, regions: Mapping[str, Region], timeout_s: float) -> "Holder":
        """Start the owner. `regions`: the flats, on the device when this returns. Raises DeviceSharingError."""
        lifeline = os.pipe()
        holder = cls(Handle.spawn(lifeline=lifeline[0], planned=planned), lifeline)
        try:
            holder._handle.send(HoldTask(planned.devices[0]), regions)
            holder.handles = json.loads(holder._answer("holding", timeout_s))
        except BaseException:
            holder.close()
            raise
        return holder

    def fetch(self) -> None:
        self._ask(FETCH, "fetched")

    def push(self) -> None:
        self._ask(PUSH, "pushed")

    def _ask(self, command: bytes, kind: str) -> None:
        if not self._is_open:  # closing has made the last copy
            return
        try:
            self._handle.channel.send(command)
        except OSError as error:
            raise self._lost(str(error)) from error
        self._answer(kind, COPY_S)

    def _answer(self, kind: str, timeout_s: float) -> str:
        """Wait for a report of this kind; return its detail."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            host.wait_readable(self._handle.descriptors(), POLL_MS)
            for report in Report.receive_all(self._handle.channel):
                if report.kind == "error":
                    raise self._lost(report.detail)
                if report.kind == kind:
                    return report.detail
            self.check()
        raise self._lost(f"no answer within {timeout_s:g} s")

    def check(self) -> None:
        if self._handle.reap() is not None:
            raise self._lost(f"it died. {self._handle.last_output()}".rstrip())

    def _lost(self, why: str) -> DeviceSharingError:
        return DeviceSharingError(
            f"the process (pid {self._handle.pid}) that holds the parameters on the device has failed: {why}; "
            "--resume continues from the last checkpoint"
        )

    def close(self) -> None:
        if self.handles is not None:
            with contextlib.suppress(DeviceSharingError):  # its death was reported where it was noticed
                self.fetch()
        self._is_open = False
        self._handle.kill()
        list(reaped([self._handle], REAP_S))
        self._handle.close()
        for descriptor in self._lifeline:
            os.close(descriptor)
