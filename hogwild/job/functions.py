"""The functions of a job beside its model, loss and data: metrics, the collate function, and the transform of a batch.
A job file names them by class path; a library call may pass them as objects."""

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
    """The functions of a job. `metrics` by name; None for the default metrics of the model and the loss."""

    metrics: Mapping[str, str | Own] | None = None
    collate: Callable[..., Any] | None = None
    transform: Transform | None = None

    @classmethod
    def of(cls, job: Job, given: Mapping[str, Any] | None = None) -> "Functions":
        """Import and build the functions of the job, except those `given` by field name. Raises ConfigError,
        BuildError."""
        given = given or {}
        return cls(
            given["metrics"] if "metrics" in given else _metrics(job),
            given["collate"] if "collate" in given else _built(job.data.collate),
            given["transform"] if "transform" in given else _built(job.data.transform),
        )


def _built(spec: ComponentSpec | None) -> Any:
    return None if spec is None else build_callable(spec)


def _metrics(job: Job) -> dict[str, str | Own] | None:
    """Return metrics by name, the last part of a class path. Classes are instantiated without arguments."""
    if job.evaluate.metrics == "auto":
        return None
    found: dict[str, str | Own] = {}
    for metric in job.evaluate.metrics:
        target = resolve(metric) if catalog.is_own(metric) else metric
        made = build(Component(class_path=metric)) if isinstance(target, type) else target
        found[metric.rpartition(".")[2]] = made
    return found
