"""What is different for a trainer whose mathematics is done on a device. No torch here: the device is given."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hogwild.devices.accelerator import Accelerator
    from hogwild.training.autograd_update import Update


class OnCpu:
    """Nothing is: numbers are there as soon as they are computed, and errors say what they are."""

    def announce(self, epoch: int, batch: int) -> None:
        """What will be gathered next, while this process has nothing to do but to wait for the device."""

    def losses(self, update: "Update", told: float) -> float:
        """The sum of the losses of an update whose `backward`s told this."""
        return told

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """The device's own errors come out in our words, where there are any."""
        return contextlib.nullcontext()

    def is_lost(self) -> bool:
        """The error that is being handled has taken the device with it: nothing can be saved of what is there."""
        return False


class OnDevice(OnCpu):
    def __init__(self, accelerator: "Accelerator", announce: Callable[[int, int], object]) -> None:
        self._accelerator, self._announce = accelerator, announce

    def announce(self, epoch: int, batch: int) -> None:
        self._announce(epoch, batch)

    def losses(self, update: "Update", told: float) -> float:
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
            self._accelerator.explain(error)  # which looks at whether the context lives
        return self._accelerator.is_broken()


ON_CPU = OnCpu()
