"""`hogwild.train`: the library's one call. It takes the path of a YAML job from its first checked value to its
summary; only where the objects come from differs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from hogwild.config import Job, job_from_mapping
from hogwild.config_schema import Data, Split, Train
from hogwild.errors import BuildError, ModelError
from hogwild.registry import claim_our_packages

SECTIONS = ("lr_schedule", "evaluate", "checkpoint", "supervise", "log")
PLAIN = ("name", "seed")
OWN_DATA = ("train", "val")  # of the data section: given as objects


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a job did: the fields of summary.json. Seconds are of the wall clock; `leases` counts batches; `state` is
    succeeded, stopped (resumable) or cancelled."""

    state: str
    reason: str
    name: str
    run_dir: Path
    wall_s: float
    train_s: float
    paused_s: float
    startup_s: float | None
    samples: int
    updates: int
    samples_per_s: float | None
    procs: int
    threads: int
    device: str
    placement: str
    update: str
    exchange: str
    metrics: Mapping[str, float]
    best: Mapping[str, float] | None
    restarts: int
    leases: Mapping[str, int]
    staleness: Mapping[str, int]
    peak_pss_bytes: int
    checkpoint: str | None
    advice: str | None


def train(
    model: nn.Module,
    dataset: Dataset,
    loss: Any,
    optimizer: Optimizer,
    *,
    val: Dataset | Mapping[str, float] | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    optimizer_state: str = "private",
    **settings: Any,
) -> TrainResult:
    """Trains `model` with worker processes over one shared set of parameters; afterwards the model holds the result
    in ordinary private memory, and the optimizer worker 0's state (or the shared one).

    `dataset` and `val` are map-style data sets of (input, …, target); `val={"fraction": 0.2}` holds a seeded part
    back. `loss` is called as loss(output, target). `optimizer` is a torch.optim instance over model.parameters(); its
    class, groups, hyper-parameters and state are taken over. Every other keyword is a field of the job file's `train`
    or `data` section (`procs=4`, `epochs=3`, `batch_size=64`), `name`, `seed`, or another section as a dict
    (`checkpoint={"every_s": 5}`). `resume` goes on from an earlier call's run directory.

    Call it from the main thread; a main guard is not needed. Raises HogwildError with the words of the command line for
    what cannot be started, and for a job that failed; a job stopped by Ctrl-C or `max_time_s` returns.
    """
    began_s = time.monotonic()
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if not callable(loss):
        raise BuildError(f"the loss is a {type(loss).__name__}; it is called as loss(output, target)")
    job = _job(model, dataset, loss, optimizer, val, optimizer_state, settings)
    claim_our_packages()
    from hogwild.job import from_objects
    from workers.request import Request
    from workers.run import run

    held_back = job.data.val if isinstance(job.data.val, Split) else cast("Dataset | None", val)
    modes = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
    try:
        result = run(
            Request(
                job=job,
                make_parts=lambda: from_objects(job, model, loss, optimizer, dataset, held_back),
                run_dir=Path(run_dir) if run_dir is not None else None,
                resume=Path(resume) if resume is not None else None,
                began_s=began_s,
            )
        )
    finally:
        for module, was_training in modes:
            module.training = was_training
    result.shared.release()
    if result.error is not None:
        raise result.error
    names = {field.name for field in fields(TrainResult)}
    values = {key: value for key, value in result.summary.items() if key in names}
    return TrainResult(**{**values, "run_dir": Path(values["run_dir"])})


def _job(
    model: nn.Module,
    dataset: Dataset,
    loss: Any,
    optimizer: Optimizer,
    val: Any,
    optimizer_state: str,
    settings: Mapping[str, Any],
) -> Job:
    """The call as a job file: objects by the path of their class, so that the run directory says what was trained."""
    values: dict[str, Any] = {
        "name": type(model).__name__.lower(),
        "model": {"class_path": _path_of(model)},
        "loss": {"class_path": _path_of(loss)},
        "optimizer": {"class_path": _path_of(optimizer), "state": optimizer_state},
        "data": {"train": {"class_path": _path_of(dataset)}},
        "train": {},
    }
    if val is not None:
        values["data"]["val"] = dict(val) if isinstance(val, Mapping) else {"class_path": _path_of(val)}
    for key, value in settings.items():
        section = _section(key)
        (values if section is None else values[section])[key] = dict(value) if isinstance(value, Mapping) else value
    return job_from_mapping(values, "hogwild.train")


def _section(key: str) -> str | None:
    """Where a keyword belongs; one that is nowhere goes where it is nearest to something, for the error's
    suggestion."""
    homes: dict[str, str | None] = dict.fromkeys(Train.model_fields, "train")
    homes |= {name: "data" for name in Data.model_fields if name not in OWN_DATA}
    homes |= dict.fromkeys((*SECTIONS, *PLAIN))
    near = get_close_matches(key, homes, n=1)
    return homes[near[0]] if near else None


def _path_of(thing: Any) -> str:
    """The dotted path of a function, or of an object's class; a class made inside a function keeps its readable
    parts."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    parts = f"{named.__module__}.{named.__qualname__}".replace("<locals>.", "").split(".")
    return ".".join(part if part.isidentifier() else "anonymous" for part in parts)
