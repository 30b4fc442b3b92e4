"""Comparison of several runs as rows of text: only the differences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hogwild.formatting import exact, flat, told
from hogwild.report.config_origin import plain_values
from hogwild.report.run_data import Run
from hogwild.report.tables import TableRows, headline

NOT_THERE = "\N{EN DASH}"
OF_ITSELF = {"run_dir", "pid", "argv", "checkpoint"}  # differ between any two runs and mean nothing


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its folder's, with a number, since two folders may have the same name."""
    return [f"{number} {run.name}" for number, run in enumerate(runs, 1)]


def differences(runs: Sequence[Run]) -> Iterator[TableRows]:
    """Yield tables of outcome, configuration, plan and machine. Without differences a table has only a note."""
    head = tuple(labels(runs))
    lines = [headline(run) for run in runs]
    rows = [("state", *(line.state for line in lines)), ("in short", *(line.sentence for line in lines))]
    summaries = [dict(flat(run.summary or run.status)) for run in runs]
    rows += _differing(summaries, lambda key, value: told(value, key))
    yield TableRows("What came of them", ("", *head), rows)
    configurations = [dict(flat(plain_values(run.resolved_text))) for run in runs]
    rows = _differing(configurations, lambda _, value: exact(value))
    yield TableRows("Configuration: what differs", ("field", *head), rows, note="" if rows else "Nothing differs.")
    machines = [dict(flat(run.env)) for run in runs]
    rows = _differing(machines, lambda key, value: told(value, key))
    yield TableRows("Plan and machine: what differs", ("", *head), rows, note="" if rows else "Nothing differs.")


def _differing(many: Sequence[Mapping[str, Any]], word: Callable[[str, Any], str]) -> list[tuple[str, ...]]:
    keys = dict.fromkeys(key for values in many for key in values if key.split(".")[0] not in OF_ITSELF | {"workers"})
    rows = []
    for key in keys:
        found = [values.get(key, NOT_THERE) for values in many]
        if any(value != found[0] for value in found):
            rows.append((key, *(word(key, value) for value in found)))
    return rows
