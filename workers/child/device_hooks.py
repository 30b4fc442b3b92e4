"""The steps of a trainer that differ if it computes on a device. No torch here: the device is passed in."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hogwild.devices.accelerator import Accelerator
    from hogwild.training.autograd_update import AutogradUpdate


class OnCpu:
    """Do-nothing version for the CPU: results are ready at once, and errors need no translation."""

    def announce(self, epoch: int, batch: int) -> None:
        """Prefetch the next batch while this process would only wait for the device."""

    def losses(self, update: "AutogradUpdate", told: float) -> float:
        """Return the sum of the losses of an update; `told` is the sum that its `backward` calls returned."""
        return told

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Translate the device's errors into ours, where they are known."""
        return contextlib.nullcontext()

    def is_lost(self) -> bool:
        """Return True if the current error has also broken the device: nothing on it can be saved."""
        return False


class OnDevice(OnCpu):
    def __init__(self, accelerator: "Accelerator", announce: Callable[[int, int], object]) -> None:
        self._accelerator, self._announce = accelerator, announce

    def announce(self, epoch: int, batch: int) -> None:
        self._announce(epoch, batch)

    def losses(self, update: "AutogradUpdate", told: float) -> float:
        return update.late_losses

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            known = self._accelerator.explain(error)
            if known is None:
                raise
            raise known from error

    def is_lost(self) -> bool:
        error = sys.exception()
        if error is not None:
            self._accelerator.explain(error)  # also checks whether the context is alive
        return self._accelerator.is_broken()


ON_CPU = OnCpu()
