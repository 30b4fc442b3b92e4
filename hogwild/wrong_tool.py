"""When something else may be the better tool: what `check --deep` says of a large dense model before it is trained, and
`advice` after.

The rule is read off measurements (`python -m benchmarks.wrong_tool`): MLPs of three sizes, batch 64, 2 workers on 2
cores, against one process with 2 threads and against DistributedDataParallel over gloo with 2 processes. Each update of
a dense model writes all of it, and all workers read and write the same memory; where its operations are large, threads
of one process share them as well, and exactly. No GPU was measured: that sentence says so."""

from dataclasses import dataclass

from torch import nn

from hogwild.layout import sparse_parameters


@dataclass(frozen=True, slots=True)
class Measured:
    """Ratios at one size: samples/s of ours (direct) over those of one process and of DDP; and after equally many
    samples the losses of DDP, which makes half the updates, and of delta (`sync_every` 16), over that of direct."""

    parameters: int
    over_one: float
    over_ddp: float
    ddp_loss: float
    delta_loss: float


MEASURED = (
    Measured(101_770, over_one=2.0, over_ddp=4.1, ddp_loss=1.1, delta_loss=1.1),
    Measured(1_022_490, over_one=1.2, over_ddp=1.8, ddp_loss=1.3, delta_loss=1.1),
    Measured(10_068_810, over_one=1.1, over_ddp=1.6, ddp_loss=1.2, delta_loss=1.2),
)
LARGE = 1_000_000  # the size from which on workers gain little over threads
ON = "2 cores, batch 64, MLPs; docs/when-it-helps.md"


def dense_parameters(model: nn.Module) -> int:
    """Trained parameters that every update writes: all but those of sparse embeddings."""
    sparse = sparse_parameters(model)
    return sum(param.numel() for param in model.parameters() if param.requires_grad and id(param) not in sparse)


def nearest(parameters: int) -> Measured:
    """By the ratio of sizes."""
    return min(MEASURED, key=lambda one: max(one.parameters, parameters) / max(1, min(one.parameters, parameters)))


def for_gpus(parameters: int, gpus: int) -> str | None:
    """Where there are several GPUs."""
    if gpus < 2 or parameters < LARGE:
        return None
    return (
        f"a dense model of {parameters:,} parameters and {gpus} GPUs: use DistributedDataParallel, which keeps a "
        "replica on each (torch's own advice; measured by us on CPUs only)"
    )


def for_dense(parameters: int) -> str | None:
    """What was measured of dense models as large as this one."""
    if parameters < LARGE:
        return None
    found = nearest(parameters)
    return (
        f"a dense model of {parameters:,} parameters, all written by every update, gains little: at "
        f"{found.parameters:,}, two workers made {found.over_one:.2g} x the samples/s of one process with 2 threads, "
        f"which is exact, and {found.over_ddp:.2g} x those of DistributedDataParallel, whose loss after equally many "
        f"samples was {found.ddp_loss:.2g} x as large, and that of exchange: delta {found.delta_loss:.2g} x ({ON})"
    )


def words(model: nn.Module, gpus: int) -> str | None:
    """One sentence for a model that autograd trains, or nothing."""
    parameters = dense_parameters(model)
    return for_gpus(parameters, gpus) or for_dense(parameters)
