"""What a model offers to be trained by compiled code: a fused update.

    model.fused(loss, optimizer) -> FusedUpdate, or a sentence why not          asked in the parent, and in each worker
    update.bind(model, optimizer, arrays, hot)                                  numpy views of shared memory, once
    update.run(chunk) -> Tally                                                  many samples, one after the other

It reads each sample from the job's arrays, computes its gradient and writes it straight into the shared parameters,
without a lock and without autograd: the algorithm of the Hogwild paper itself (Niu, Recht, Ré and Wright, 2011). A
chunk is some batches of an item; the loop over chunks is in Python (`workers/child/fused_trainer.py`), so that signals,
pauses and beats get through, and a kill costs at most one chunk in doubt.

No numba here: what can be trained so is known without it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hogwild.kernels.hot_rows import HotRows

Arrays = Mapping[str, np.ndarray]  # the job's data, by the names that the data set gives
Hot = Mapping[str, "HotRows"]  # by the name of a parameter, or of what its rule keeps beside it


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a kernel is to do in one go: the samples `rows`, in that order, each once."""

    rows: np.ndarray  # (n,) int64: positions in the job's arrays
    seed: int  # of what is drawn: follows from (seed, epoch, first position), whoever runs it
    rate: float = 1.0  # factor of every learning rate: `lr_schedule` at the updates made by everybody, and rollbacks


@dataclass(frozen=True, slots=True)
class Tally:
    """What a chunk came to."""

    loss: float  # sum over the samples that were applied, before each was applied
    applied: int  # samples
    not_finite: int = 0  # samples whose gradient was NaN or infinite: counted, and not applied


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of parameters that a sample writes because an array of the data names them: `array` (N,) or (nnz,) holds row
    numbers of each of `params`. Grids and hot rows follow from it."""

    array: str
    params: tuple[str, ...]


class FusedUpdate(Protocol):
    """A compiled update of one model, bound to one worker's views.

    `name`: for the log, `logistic, SGD`. `implements`: the options of the job, as in `train.grad_clip` without the
    section, that it takes into account: of lr_schedule, freeze, grad_clip, max_staleness, accumulate. A job that sets
    another one is trained by autograd. `sides`: two where no two workers should meet in a row (ratings, triples), one
    where each sample names several rows, none where nothing is sparse. A side's most frequent rows may be `hot`."""

    @property
    def name(self) -> str: ...

    @property
    def implements(self) -> frozenset[str]: ...

    @property
    def sides(self) -> tuple[Side, ...]: ...

    def bind(self, model: "nn.Module", optimizer: "torch.optim.Optimizer", arrays: Arrays, hot: Hot) -> None:
        """Keeps views of the parameters (`param.detach().numpy()`), of the optimizer's state and of the data. `hot`, by
        the name of the parameter: rows to be read and written in private; the caller flushes them."""
        ...

    def run(self, chunk: Chunk) -> Tally:
        """Everything of the chunk, or nothing of what is not finite. Of no rows: compiles, and does nothing."""
        ...


class Fusable(Protocol):
    """A model that offers a fused update."""

    def fused(self, loss: Any, optimizer: "torch.optim.Optimizer") -> "FusedUpdate | str":
        """The update for this loss and rule, or why there is none, in words for the log."""
        ...
