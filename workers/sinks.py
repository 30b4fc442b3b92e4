"""Where the records of a job go besides its run directory: what standard error shows, and TensorBoard's files."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hogwild.config import Job
from hogwild.params import SharedModel
from hogwild.rundir import RunDir
from hogwild.screen import look_for
from hogwild.tensorboard import Curves, NoCurves, is_installed
from workers.journal import Journal
from workers.request import Request


def journal_for(request: Request, procs: int, rundir: RunDir, shared: SharedModel) -> Journal:
    """Nothing is written or started yet."""
    job = request.job
    return Journal(
        rundir,
        jsonl=job.log.jsonl,
        look=look_for(wants_progress(request), procs),
        every_s=job.log.every_s,
        curves=_curves_for(job, rundir, shared),
    )


def wants_progress(request: Request) -> bool:
    if request.progress is not None:
        return request.progress
    setting = request.job.log.progress
    return sys.stderr is not None and sys.stderr.isatty() if setting == "auto" else bool(setting)


def _curves_for(job: Job, rundir: RunDir, shared: SharedModel) -> Curves | NoCurves:
    """`auto`: for a job long enough to have a curve, where the package is installed."""
    setting = job.log.tensorboard
    if setting is False or (setting == "auto" and not is_installed()):
        return NoCurves()
    return Curves(
        rundir.tensorboard,
        dict(_flattened(job.model_dump(mode="json"))),
        at_once=setting is True,
        tensors=shared.model.named_parameters,
        histograms_every=job.log.histograms_every,
    )


def _flattened(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if not isinstance(value, list) else ", ".join(map(str, value))
