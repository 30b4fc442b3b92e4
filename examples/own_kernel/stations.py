"""A model with an update of its own: the mean temperature of each station, from many readings of each."""

import numpy as np
import torch
from torch import nn

from hogwild.data import Packed
from hogwild.kernels import Tally


class Readings:
    """Seeded readings: station (N,) int32, degrees (N,) float32."""

    def __init__(self, stations: int = 1000, readings: int = 200_000, seed: int = 1) -> None:
        self.stations, self.readings, self.seed = stations, readings, seed

    def pack(self, reader, what, like=None, on_bad_line="fail"):
        random = np.random.default_rng(self.seed)
        station = random.integers(self.stations, size=self.readings, dtype=np.int32)
        truth = np.random.default_rng(7).normal(10, 8, self.stations)
        degrees = (truth[station] + random.normal(0, 2, self.readings)).astype(np.float32)
        return Packed.of(what, "table", {"station": station, "degrees": degrees}, {"stations": self.stations})


class Stations(nn.Module):
    def __init__(self, stations: int) -> None:  # taken from the data where the job leaves it out
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(stations))

    def forward(self, station):
        return self.mean[station]

    def fused(self, loss, optimizer):
        if type(loss) is not nn.MSELoss or type(optimizer) is not torch.optim.SGD or optimizer.defaults["momentum"]:
            return "the kernel of Stations is for MSELoss and plain SGD"
        return SquaredSgd()


class SquaredSgd:
    """Samples one after the other, each written as soon as it is computed: no batch, no gradient tensor, no lock."""

    name, implements, sides = "Stations, SGD", frozenset({"lr_schedule"}), ()

    def bind(self, model, optimizer, arrays, hot):
        from kernel import apply  # needs numba: only where it is trained so

        self.apply, self.mean = apply, model.mean.detach().numpy()
        self.station, self.degrees = arrays["station"], arrays["degrees"]
        self.lr = optimizer.param_groups[0]["lr"]

    def run(self, chunk):
        loss, applied = self.apply(chunk.rows, self.station, self.degrees, self.mean, np.float32(self.lr * chunk.rate))
        return Tally(loss, applied, len(chunk.rows) - applied)
