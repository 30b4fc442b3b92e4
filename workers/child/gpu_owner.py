"""The child process that owns the flats on a GPU for all workers and outlives them. It allocates, shares and copies
them on request, and does nothing else: it never trains and runs no user code.

    supervisor  OwnTask  ->   allocate, copy the flats up         -> Report "allocated" (detail: the handles, as JSON)
                "fetch"  ->   device -> host memory               -> Report "fetched"
                "push"   ->   host memory -> device               -> Report "pushed"
                (closes the socket)  ->  it leaves"""

import json
import socket

import torch

from hogwild.devices.accelerator import Accelerator, Pins
from hogwild.devices.discovery import open_accelerator
from hogwild.shared_memory.region import Region
from hogwild.workers.messages import Report

FETCH, PUSH = b"fetch", b"push"


class Flats:
    """The flats in host memory and their copies on the device, by region."""

    def __init__(self, accelerator: Accelerator, regions: dict[str, Region]) -> None:
        self._accelerator, self._pins = accelerator, Pins(accelerator)
        self._come = accelerator.event()
        self.handles: dict[str, str] = {}
        self._pairs = []
        for name, region in regions.items():
            self._pins.region(region)
            here, self.handles[name] = accelerator.allocate_shared(region.nbytes)
            self._pairs.append((region.tensor(torch.uint8, (region.nbytes,)), here))

    def push(self) -> None:
        for home, here in self._pairs:
            self._accelerator.upload(here, home, None)
        self._synchronize()

    def fetch(self) -> None:
        """Copy device -> host. All workers are parked, so nobody writes meanwhile."""
        for home, here in self._pairs:
            self._accelerator.download(home, here, None)
        self._synchronize()

    def _synchronize(self) -> None:
        self._accelerator.record(self._come, None)
        self._accelerator.synchronize(self._come)

    def close(self) -> None:
        self._accelerator.drain()
        self._pins.close()


def serve_flats(channel: socket.socket, device: str, regions: dict[str, Region]) -> None:
    """Serve the supervisor until it closes the socket or is gone. Errors are reported, and raised."""
    accelerator = open_accelerator(device)
    assert accelerator is not None, "the CPU's memory needs no owner"
    try:
        flats = Flats(accelerator, regions)
        flats.push()
    except Exception as error:
        known = accelerator.explain(error)
        Report("error", detail=str(known or f"{type(error).__name__}: {error}")).send(channel)
        raise
    Report("allocated", detail=json.dumps(flats.handles)).send(channel)
    while command := channel.recv(64):
        if command == FETCH:
            flats.fetch()
            Report("fetched").send(channel)
        else:
            flats.push()
            Report("pushed").send(channel)
    flats.close()
