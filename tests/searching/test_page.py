"""The page of a search, and what it is refitted on. No process."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from hogwild.config.load import load_job
from hogwild.errors import UsageError
from hogwild.searching import study as studies
from hogwild.searching.page import Axis, page_of, write_page
from hogwild.searching.results import RECORD, SearchRun, whole_data

JOB = """
name: <script>
model: {class_path: mymodel.Net}
data: {train: {class_path: mymodel.Rows}, val: {fraction: 0.1}}
search:
  space:
    optimizer.init_args.lr: {log: [1.0e-4, 1.0]}
    model.init_args.depth: {int: [1, 9]}
    model.init_args.kind: {choice: [<b>, [1, 2], null]}
    model.init_args.drop: {uniform: [0, 0.5]}
"""
finite = st.floats(-1e6, 1e6)


SEVERAL = ["evaluate.metrics=[rmse, mae]", "search.metric=[rmse, mae]"]


def made(folder: Path, overrides: Sequence[str] = ()) -> SearchRun:
    record = {"job_file": str(folder / "job.yaml"), "overrides": [*overrides], "storage": None, "study": folder.name}
    (folder / RECORD).write_text(json.dumps({**record, "folder": str(folder), "state": "stopped"}))
    (folder / "job.yaml").write_text(JOB)
    search = SearchRun.of(folder)
    studies.open_study(folder, search.job, search.identity, None, is_new=True)
    return search


def add_trials(search: SearchRun, curves: list[list[float]]) -> None:
    """A trial for each curve: complete, pruned, failed, running in turn."""
    study = studies.open_study(search.folder, search.job, search.identity, None, is_new=False)
    assert search.job.search is not None
    for number, curve in enumerate(curves):
        trial = study.ask(studies.distributions(search.job.search.space))
        for step, value in enumerate(curve, 1):
            studies.report(trial, step, [value, value / 3, -value][: len(studies.metrics_of(search.job))])
        best = studies.best_values(study.get_trials()[number], is_max=False)
        if number % 4 == 0 and best and all(map(math.isfinite, best)):
            study.tell(trial, best)
        elif number % 4 < 3:
            study.tell(trial, state=TrialState.FAIL if number % 4 == 2 else TrialState.PRUNED)


@settings(max_examples=20, deadline=None)
@given(
    curves=st.lists(st.lists(finite | st.just(math.nan), max_size=4), max_size=9),
    overrides=st.sampled_from([[], SEVERAL, [SEVERAL[0], "search.metric=[rmse, mae, loss]"]]),
)
def test_a_page_draws_whatever_the_trials_were_inside_its_pictures(
    curves: list[list[float]], overrides: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    search = made(tmp_path_factory.mktemp("search"), overrides)
    add_trials(search, curves)
    text = page_of(search, search.study())
    assert "<script>" not in text and "<b>" not in text
    assert len(re.findall(r"<tr", text)) >= len(curves)
    for width, height, drawn in re.findall(r'<svg viewBox="0 0 (\d+) (\d+)"(.*?)</svg>', text, re.DOTALL):
        places = re.findall(r'(?:cx|x1|x2)="([^"]+)"[^>]*?(?:cy|y1|y2)="([^"]+)"', drawn)
        places += [pair.split(",") for line in re.findall(r'points="([^"]+)"', drawn) for pair in line.split()]
        for x, y in places:
            assert 0 <= float(x) <= int(width) and 0 <= float(y) <= int(height)


@given(st.lists(finite, min_size=1, max_size=5))
def test_ticks_are_inside_their_axis_and_ascend(values: list[float]) -> None:
    axis = Axis.of(values, 0.0, 100.0)
    ticks = axis.ticks()
    assert ticks == sorted({*ticks}) and len(ticks) <= 12
    assert all(-1e-6 <= axis.at(tick) <= 100 + 1e-6 for tick in ticks)
    assert all(0 < axis.at(value) < 100 for value in values)


@example([0.984375])
@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5))
def test_ticks_of_a_logarithm_are_inside_it(values: list[float]) -> None:
    axis = Axis.of(values, 0.0, 100.0, is_log=True)
    assert all(-5 <= axis.at(tick) <= 105 for tick in axis.ticks())


def test_a_page_is_written_into_the_folder_of_the_search(tmp_path: Path) -> None:
    search = made(tmp_path)
    add_trials(search, [[3.0, 2.0], [4.0], [], [5.0]])
    page = write_page(search)
    assert page == tmp_path / "report" / "index.html" and "1 complete, 1 pruned, 1 failed, 1 paused" in page.read_text()


def test_the_front_of_two_metrics_is_a_line_through_large_dots(tmp_path: Path) -> None:
    search = made(tmp_path, SEVERAL)
    study = studies.open_study(search.folder, search.job, search.identity, None, is_new=False)
    assert search.job.search is not None
    for values in [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0), (3.0, 3.0)]:
        trial = study.ask(studies.distributions(search.job.search.space))
        studies.report(trial, 1, values)
        study.tell(trial, values)
    text = page_of(search, search.study())
    drawn = re.search(r"<h3>Pareto front</h3>(.*?)</figure>", text, re.DOTALL)
    assert drawn is not None and drawn[1].count('r="7"') == 3 and drawn[1].count('r="4"') == 1
    (line,) = re.findall(r'points="([^"]+)"', drawn[1])
    assert len(line.split()) == 3 and "mae against rmse" in drawn[1]


# ---- all data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        ("{train: {class_path: m.Rows}, val: {fraction: 0.1}}", {"data.val": None}),
        (
            "{train: {class_path: m.R, init_args: {path: a, holdout: {part: train}}}, "
            "val: {class_path: m.R, init_args: {path: a, holdout: {part: test}}}}",
            {"data.val": None, "data.train.init_args": {"path": "a"}},
        ),
        ("{train: {class_path: m.R, init_args: {path: a}}, val: {class_path: m.R, init_args: {path: b}}}", None),
        (
            "{train: {class_path: m.R, init_args: {path: a, holdout: {part: train}}}, "
            "val: {class_path: m.R, init_args: {path: b, holdout: {part: test}}}}",
            None,
        ),
    ],
)
def test_a_refit_trains_on_the_validation_data_too_or_says_that_it_cannot(
    data: str, fields: dict[str, object] | None
) -> None:
    job = load_job(None, source_text=f"model: {{class_path: m.Net}}\ndata: {data}")
    if fields is not None:
        assert whole_data(job) == fields
        return
    with pytest.raises(UsageError, match="it is another data set") as found:
        whole_data(job)
    assert found.value.code == "search/no-refit"
