"""Interface of a fused update: how a model is trained by compiled code.

    model.fused(loss, optimizer) -> FusedUpdate, or a sentence why not          asked in the parent, and in each worker
    update.bind(model, optimizer, arrays, hot)                                  numpy views of shared memory, once
    update.run(chunk) -> Tally                                                  many samples, one after the other

    update.arrays_of(model, inputs, target) -> arrays                           of a stream's batch, which is then bound

It reads each sample from the job's arrays, computes its gradient and writes it directly into the shared parameters,
without locks and without autograd: the algorithm of the Hogwild paper itself (Niu, Recht, Ré and Wright, 2011). A chunk
is some batches of an item. The loop over chunks is in Python (`workers/child/fused_trainer.py`), so that signals,
pauses and beats are handled in between, and a kill leaves at most one chunk in doubt.

No numba here: without it we still know which models have kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hogwild.kernels.signatures import Kernels

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hogwild.kernels.hot_rows import HotRows

Arrays = Mapping[str, np.ndarray]  # the job's data, by the data set's names
Hot = Mapping[str, "HotRows"]  # by the name of a parameter, or of its optimizer state


@dataclass(frozen=True, slots=True)
class Chunk:
    """The work of one kernel call: the samples `rows`, in that order, each once."""

    rows: np.ndarray  # (n,) int64: positions in the job's arrays
    seed: int  # for random draws; depends only on (seed, epoch, first position), not on the worker
    rate: float = 1.0  # factor of every learning rate: `lr_schedule` at the updates of all workers, and rollbacks


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of a chunk."""

    loss: float  # summed over the applied samples, each before it was applied
    applied: int  # samples
    not_finite: int = 0  # samples whose gradient was NaN or infinite: counted, not applied


@dataclass(frozen=True, slots=True)
class GridPlace:
    """A worker's place in a grid, for `hogwild.kernels.matrix_factorization`."""

    words: np.ndarray  # (P,) int64: of all workers
    own: int


class Swept(NamedTuple):
    """The result of a sweep."""

    mean_losses: float  # sum over the batches of which samples were applied
    batches: int  # of which samples were applied
    loss: float  # as in a tally
    applied: int
    done: int  # batches, from the first; fewer than were given: another worker is in the next one's column


@dataclass(frozen=True, slots=True)
class Side:
    """Parameter rows that samples write, numbered by an array of the data: `array` (N,) or (nnz,) holds row numbers of
    each of `params`. Grids and hot rows are derived from it. `is_drawn`: samples also write rows of this side that they
    draw, so that no grid keeps workers apart; and its order is a worse teacher of pairs than a random one."""

    array: str
    params: tuple[str, ...]
    is_drawn: bool = False


class FusedUpdate(Protocol):
    """A compiled update of one model, bound to one worker's views.

    `name`: for the log, `logistic, SGD`. `implements`: the job options that it supports (`train.grad_clip` is
    `grad_clip`): some of lr_schedule, freeze, grad_clip, max_staleness, accumulate. If a job sets another one, autograd
    trains it. `sides`: two if no two workers should write the same row (ratings, triples), one if each sample names
    several rows, none if nothing is sparse. A side's most frequent rows may be `hot`."""

    @property
    def name(self) -> str: ...

    @property
    def implements(self) -> frozenset[str]: ...

    @property
    def sides(self) -> tuple[Side, ...]: ...

    def bind(self, model: "nn.Module", optimizer: "torch.optim.Optimizer", arrays: Arrays, hot: Hot) -> None:
        """Keep views of the parameters (`param.detach().numpy()`), of the optimizer's state and of the data. `hot`, by
        parameter name: rows to read and write in a private copy; the caller flushes them."""
        ...

    def run(self, chunk: Chunk) -> Tally:
        """Apply the whole chunk, except samples that are not finite. With zero rows: compile, and do nothing."""
        ...


@runtime_checkable
class Sweeping(Protocol):
    """A fused update that can train on many batches of a grid in one call."""

    def sweep(
        self, borders: np.ndarray, rates: np.ndarray, columns: np.ndarray, place: GridPlace, insist: bool
    ) -> Swept:
        """Apply the samples [borders[b], borders[b + 1]) of each batch b, with its factor of the learning rates, as
        soon as nobody else is in its column. `borders` (n + 1,) int64, `rates` (n,) float32, `columns` (n,) int64;
        `insist`: enter columns in any case. Samples that are not finite are not applied."""
        ...


@runtime_checkable
class Declared(Protocol):
    """A fused update of ours, whose kernels a job's process may compile before there is a model."""

    kernels: Kernels


@runtime_checkable
class Streaming(Protocol):
    """A fused update that can train on the batches of a stream."""

    def arrays_of(self, model: "nn.Module", inputs: "Sequence[torch.Tensor]", target: "torch.Tensor") -> Arrays:
        """Return a batch, in the form that the model and its loss take, as arrays to bind. What a kernel uses as an
        index is copied and then checked: nothing that changes a slot later can make it write elsewhere. Raises
        ValueError for a batch of another form, IndexError for row numbers or labels that the model lacks: as errors of
        the user's data they cost a batch its attempts, where a HogwildError would end the job."""
        ...


class Fusable(Protocol):
    """A model that offers a fused update."""

    def fused(self, loss: Any, optimizer: "torch.optim.Optimizer") -> "FusedUpdate | str":
        """Return the update for this loss and optimizer, or the reason for none, as text for the log."""
        ...
