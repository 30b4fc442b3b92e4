"""An update on a GPU: like on the CPU, but without waiting for a number while kernels are still to be launched.

    launch forward, backward (and, with `accumulate`, again) -> the sums of losses and squares come back, once ->
    finite? -> launch the update

The only wait of an update is in `is_finite`: until then this process gathers the next batch (`device_feed.py`)."""

import math

import torch
from torch import Tensor

from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.autograd_update import AutogradUpdate

LOSS, SQUARE = range(2)  # indices of: the sum of the losses, the sum of the squared gradients


class DeviceUpdate(AutogradUpdate):
    """An `AutogradUpdate` whose `backward` returns 0; `late_losses` returns the sum of the losses afterwards."""

    def __init__(self, worker_model: WorkerModel, **options: object) -> None:
        super().__init__(worker_model, **options)  # type: ignore[arg-type]
        assert worker_model.replica is not None
        self._replica, self._is_delta = worker_model.replica, worker_model.exchange.is_delta
        self._accelerator = self._replica.accelerator
        self._sums = self._accelerator.empty(2 * 8).view(torch.float64).zero_()  # (2,), on the device
        self._numbers = self._replica.pins.empty(2 * 8).view(torch.float64)  # (2,), pinned
        self._loss_sum, self._square = self._sums[LOSS], self._sums[SQUARE]
        self._is_known = False

    def _value_of(self, loss: Tensor) -> float:
        self._loss_sum.add_(loss.detach())
        self._is_known = False
        return 0.0

    @property
    def late_losses(self) -> float:
        """The sum of the losses since the last `apply` or `discard`. Waits for the device, once."""
        self._fetch()
        return float(self._numbers[LOSS])

    def _fetch(self) -> None:
        if self._is_known:
            return
        self._square.zero_()
        self._gradients.begin_square(self._square)
        self._accelerator.download(self._numbers, self._sums, None)
        self._replica.settle()
        self._is_known = True

    def must_redo(self) -> bool:
        return math.isfinite(self.late_losses) and super().must_redo()  # `backward` could not return the loss

    def _rescale(self, factor: float) -> None:
        super()._rescale(factor)
        self._numbers[SQUARE] *= factor * factor  # the sum is here already; do not wait for another

    def is_finite(self) -> bool:
        if not math.isfinite(self.late_losses):
            return False
        if self._gradients.outside:  # check sparse gradients as on the CPU
            return super().is_finite()
        square = float(self._numbers[SQUARE])
        return math.isfinite(square) or super().is_finite()

    def _gradient_norm(self) -> float:
        if self._gradients.outside:
            return super()._gradient_norm()
        self._fetch()
        square = float(self._numbers[SQUARE])
        return math.sqrt(square) if math.isfinite(square) else super()._gradient_norm()

    def apply(self, lr_factor: float | None) -> None:
        super().apply(lr_factor)
        if not self._is_delta:  # wait: kernels of a dead process do not run, and the update is committed next
            self._replica.settle()

    def _clear(self, *, were_touched: bool) -> None:
        super()._clear(were_touched=were_touched)
        self._loss_sum.zero_()
        self._is_known = False
