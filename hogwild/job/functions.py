"""The functions that a job is given beside its model, loss and data: what it is judged by, what makes a batch of
records, and what is done to a batch. A job file names them by class path; a library call may give them as they are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hogwild.config.field_types import Component
from hogwild.config.load import Job
from hogwild.feeds.transform import Transform
from hogwild.metrics import catalog
from hogwild.metrics.panel import Own
from hogwild.user_code import ComponentSpec, build, build_callable, resolve


@dataclass(frozen=True, slots=True)
class Functions:
    """`metrics` by name; None for those that suit the model and the loss."""

    metrics: Mapping[str, str | Own] | None = None
    collate: Callable[..., Any] | None = None
    transform: Transform | None = None

    @classmethod
    def of(cls, job: Job, given: Mapping[str, Any] | None = None) -> "Functions":
        """Those of the job, imported and built; not those that are `given`, by the names of the fields. Raises
        ConfigError, BuildError."""
        given = given or {}
        return cls(
            given["metrics"] if "metrics" in given else _metrics(job),
            given["collate"] if "collate" in given else _built(job.data.collate),
            given["transform"] if "transform" in given else _built(job.data.transform),
        )


def _built(spec: ComponentSpec | None) -> Any:
    return None if spec is None else build_callable(spec)


def _metrics(job: Job) -> dict[str, str | Own] | None:
    """Those of class paths are imported and called by their last part. A class is called without arguments."""
    if job.evaluate.metrics == "auto":
        return None
    found: dict[str, str | Own] = {}
    for metric in job.evaluate.metrics:
        target = resolve(metric) if catalog.is_own(metric) else metric
        made = build(Component(class_path=metric)) if isinstance(target, type) else target
        found[metric.rpartition(".")[2]] = made
    return found
