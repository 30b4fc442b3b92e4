"""Which evaluation was the best. Needs no picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hogwild.metric_names import LOSS, known
from hogwild.report.config_origin import plain_values
from hogwild.report.read import Run


def best_updates(run: Run) -> float:
    """The updates after which it was made; NaN where nothing was evaluated. The summary's word, if there is one; else
    by `evaluate.monitor` and `evaluate.mode`, as the job itself chooses."""
    said = run.summary.get("best")
    if isinstance(said, dict) and isinstance(said.get("updates"), int):
        return float(said["updates"])
    evaluations = run.records.evaluations
    name, highest = _rule(run)
    values = evaluations[name]
    if not np.isfinite(values).any():
        return float("nan")
    place = np.nanargmax(values) if highest else np.nanargmin(values)
    return float(evaluations["updates"][place])


def _rule(run: Run) -> tuple[str, bool]:
    section = plain_values(run.resolved_text).get("evaluate")
    evaluate: Mapping[str, Any] = section if isinstance(section, dict) else {}
    monitor, mode = evaluate.get("monitor"), evaluate.get("mode")
    name = monitor if isinstance(monitor, str) and monitor in run.records.evaluations else LOSS
    if mode in ("min", "max"):
        return name, mode == "max"
    ours = known(name)
    return name, ours is not None and ours.higher_is_better
