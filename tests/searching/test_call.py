"""`hogwild.search` before its first trial: its keywords, and errors that begin with its name. No process."""

from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import hogwild
from hogwild.config.schema import Search
from hogwild.errors import ConfigError, NotFoundError, UsageError
from hogwild.searching.call import SearchKeywords, SearchResult, SearchTrial, _of_file, _of_mapping, _plain

JOB: dict[str, Any] = {
    "model": {"class_path": "mymodel.Net"},
    "data": {"train": {"class_path": "mymodel.Rows"}, "val": {"fraction": 0.1}},
}
SPACE = {"seed": {"int": (1, 9)}}
FILE = """
model: {class_path: mymodel.Net}
data: {train: {class_path: mymodel.Rows}, val: {fraction: 0.1}}
search: {space: {seed: {int: [1, 9]}}, trials: 3}
"""


def test_every_field_of_a_search_is_a_keyword() -> None:
    assert {*get_type_hints(SearchKeywords), "space"} == {*Search.model_fields}


def test_keywords_replace_the_fields_of_a_mapping_and_those_of_a_file(tmp_path: Path) -> None:
    given = {"space": {"seed": {"int": [2, 5]}}, "parallel": 2}
    (tmp_path / "job.yaml").write_text(FILE)
    of_mapping, text, _ = _of_mapping({**JOB, "search": {"space": SPACE, "trials": 3}}, given)
    of_file, _, file = _of_file(tmp_path / "job.yaml", ["search.space={seed: {int: [2, 5]}}", "search.parallel=2"])
    assert file == tmp_path / "job.yaml" and of_mapping.search == of_file.search
    assert of_file.search is not None and of_file.search.trials == 3
    (tmp_path / "job.yaml").write_text(text)
    assert _of_file(tmp_path / "job.yaml", [])[0] == of_mapping


def test_numbers_of_numpy_are_numbers() -> None:
    found = _plain({"space": {"seed": {"choice": [*np.arange(2)]}, "x": {"choice": [np.float64(0.5), True]}}})
    assert found == {"space": {"seed": {"choice": [0, 1]}, "x": {"choice": [0.5, True]}}}
    assert [type(one) for one in found["space"]["seed"]["choice"]] == [int, int]


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "said"),
    [
        ((), {}, UsageError, "hogwild.search needs a job, or resume"),
        ((JOB,), {}, ConfigError, r"hogwild\.search: search\.space: is required"),
        (({**JOB, "search": 3},), {}, ConfigError, r"hogwild\.search: search: must be a map"),
        ((JOB, SPACE), {"trials": 0}, ConfigError, r"hogwild\.search: search\.trials: must be >= 1, got 0"),
        ((JOB, {"sead": {"int": [1, 9]}}), {}, ConfigError, r"hogwild\.search: search\.space\.sead: unknown key"),
        ((JOB, SPACE), {"metrics": "loss"}, ConfigError, r"search\.metrics: unknown key; did you mean 'metric'"),
        ((JOB, {"seed": {"choice": [1, print]}}), {}, ConfigError, r"search\.space: must hold plain values only"),
        (("job.yaml",), {"trials": 0}, ConfigError, r"hogwild\.search: search\.trials: must be >= 1, got 0"),
        (("job.yaml",), {"metric": ["loss", "loss"]}, ConfigError, r"hogwild\.search: search\.metric: must have each"),
        (("none.yaml", SPACE), {}, NotFoundError, "none.yaml"),
        (("plain.yaml",), {}, UsageError, r"plain\.yaml: has no `search`"),
        ((JOB,), {"resume": "found"}, UsageError, "so job is not allowed"),
        ((), {"resume": "found", "run_dir": "other"}, UsageError, "so run_dir is not allowed"),
        ((), {"resume": "found", "metric": "loss"}, UsageError, "a search that goes on may change search.max_time_s"),
        ((), {"resume": "found", "data_dir": "data"}, NotFoundError, "found is not the folder of a search"),
        ((JOB, SPACE), {"on_interrupt": "quit"}, UsageError, 'must be "raise" or "return"'),
    ],
)
def test_a_wrong_call_says_what_is_wrong_before_it_makes_a_folder(
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    error: type[Exception],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(FILE)
    Path("plain.yaml").write_text(FILE.partition("search:")[0])
    with pytest.raises(error, match=said):
        hogwild.search(*arguments, **keywords)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.yaml", "plain.yaml"]


def test_the_best_of_a_result_is_the_first_of_its_front() -> None:
    best = SearchTrial(1, "complete", {"seed": 3}, {"auc": 0.75, "loss": 0.5}, 2, "", Path("found/trials/0001"))
    empty = SearchResult("stopped", "SIGINT", Path("found"), ["auc", "loss"], [], [], {}, None, None)
    assert (empty.best_trial, empty.best_params, empty.best_values, empty.best_value) == (None, {}, {}, None)
    assert repr(empty) == "SearchResult(stopped (SIGINT); 0 trials; no complete trial; found)"
    found = SearchResult(
        "succeeded", "1 trial", Path("found"), ["auc", "loss"], [best], [best], {}, Path("found/best.yaml"), None
    )
    assert (found.best_trial, found.best_params, found.best_value) == (best, {"seed": 3}, 0.75)
    assert found.best_values == {"auc": 0.75, "loss": 0.5}
    assert "1 trial; best trial 1: auc 0.75, loss 0.5; found)" in repr(found)
