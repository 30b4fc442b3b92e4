"""The section `search` of a job file: every value that a trial could get is checked before the first one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.config.load import job_from_mapping, load_job, values_of
from hogwild.config.locate import default_config
from hogwild.config.schema import Range
from hogwild.errors import ConfigError

JOB = """
model: {class_path: mymodel.Net, init_args: {width: 8}}
data: {train: {class_path: mymodel.Rows}, val: {fraction: 0.1}}
"""


def errors(search: str) -> list[str]:
    """The problems of the job with this search: `path: message`."""
    with pytest.raises(ConfigError) as found:
        load_job(None, source_text=f"{JOB}search: {search}")
    return [f"{one.path}: {one.message} [{one.code.removeprefix('config/')}]" for one in found.value.problems]


def test_a_space_may_have_any_field_and_init_args_that_only_the_user_knows() -> None:
    space = "{train.procs: {int: [1, 4]}, model.init_args.width: {choice: [4, [8, 8]]}, seed: {int: [1, 9]}}"
    job = load_job(None, source_text=f"{JOB}search: {{space: {space}}}")
    assert job.search is not None and job.search.trials == 50 and job.search.sampler == "tpe"
    assert [value for _, value in job.search.space["model.init_args.width"].tested] == [4, [8, 8]]


def test_a_field_of_the_space_may_be_set_on_the_command_line() -> None:
    """The path of a field is one key there, though it has dots."""
    text = f"{JOB}search: {{space: {{seed: {{int: [1, 9]}}}}}}"
    job = load_job(None, ["search.space.optimizer.init_args.lr={log: [0.1, 1]}", "search.trials=3"], source_text=text)
    assert job.search is not None and list(job.search.space) == ["seed", "optimizer.init_args.lr"]
    with pytest.raises(ConfigError, match=r"command line: search\.space\.train\.proc: unknown key"):
        load_job(None, ["search.space.train.proc={int: [1, 2]}"], source_text=text)


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("{space: {train.procs: {int: [1, 4000]}}}", "search.space.train.procs.int[1]: must be auto or a whole number"),
        ("{space: {optimizer.init_args.lr: {uniform: [-1, 1]}}}", "optimizer.init_args.lr.uniform[0]: must be >= 0"),
        ("{space: {data.batch_size: {choice: [1, 0]}}}", "search.space.data.batch_size.choice[1]: must be >= 1, got 0"),
        (
            "{space: {optimizer.lr: {log: [0.1, 1]}}}",
            "search.space.optimizer.lr: unknown key; did you mean 'optimizer.init",
        ),
        ("{space: {train.procs.x: {int: [1, 4]}}}", "search.space.train.procs.x.int[0]: train.procs: must be auto or"),
        ("{space: {seed.x.y: {choice: [1, 2]}}}", "search.space.seed.x.y.choice[0]: seed: must be a whole number"),
        ("{space: {seed: {log: [0, 1]}}}", "search.space.seed.log: must begin above 0"),
        ("{space: {seed: {int: [3, 3]}}}", "search.space.seed.int: must be [low, high] with low < high"),
        (
            "{space: {seed: {int: [1, 2], choice: [1, 2]}}}",
            "search.space.seed: must have one of log, uniform, int, choice",
        ),
        ("{space: {seed: {}}}", "search.space.seed: must have one of log, uniform, int, choice"),
        ("{space: {seed: {choice: [1, 1]}}}", "search.space.seed.choice: must have each value once"),
        ("{space: {search.trials: {int: [1, 2]}}}", "search.space.search.trials: must be the path of a field"),
        ("{space: {seed: {int: [1, 2], step: 2}}}", "search.space.seed.step: unknown key (allowed: log, uniform, int"),
        ("{space: {}}", "search.space: must have at least one entry"),
        ("{space: {seed: {int: [1, 2]}}, trials: 0}", "search.trials: must be >= 1, got 0"),
        ("{space: {seed: {int: [1, 2]}}, trials: null}", "search.trials: must be a number, or max_time_s: it"),
        ("{space: {seed: [1, 2]}}", "search.space.seed: must be a map that names the kind, {choice: […]} or log,"),
        ("{space: {seed: {int: [1, 2, 3]}}}", "search.space.seed.int: must have at most 2 entries, got [1, 2, 3]"),
        (
            "{space: {'model.init_args.width[0]': {int: [1, 2]}}}",
            "width[0]: must be the path of a field, not a place in",
        ),
        ("{space: {data.val: {choice: [null, {fraction: 0.5}]}}}", "search.space.data.val: search: needs data.val"),
        (
            "{space: {evaluate.metrics: {choice: [[auc], [f1]]}}, metric: f1}",
            "search.space.evaluate.metrics.choice[0]: search.metric: must be listed in evaluate.metrics",
        ),
        ("{space: {seed: {int: [1, 2]}}, pruner: my.Own}", "none, got 'my.Own'; write {class_path: my.Own}"),
        ("{space: {seed: {int: [1, 2]}}, metric: acuracy}", "search.metric: must be a known metric"),
        (
            "{space: {seed: {int: [1, 2]}}, metric: [loss]}",
            "search.metric: must have at least 2 entries, got ['loss'] [out-of-range]",
        ),
        (
            "{space: {seed: {int: [1, 2]}}, metric: [loss, loss]}",
            "search.metric: must have each value once, got ['loss', 'loss'] [duplicate-key]",
        ),
        ("{space: {seed: {int: [1, 2]}}, metric: [loss, acuracy]}", "search.metric[1]: must be a known metric"),
        ("{space: {seed: {int: [1, 2]}}, metric: [loss, 3]}", "search.metric[1]: must be text, got 3"),
        (
            "{space: {seed: {int: [1, 2]}}, metric: [loss, accuracy]}",
            "search.metric[1]: must be listed in evaluate.metrics, which is auto, got 'accuracy' [unknown-metric]",
        ),
        (
            "{space: {seed: {int: [1, 2]}}, metric: [loss, accuracy], pruner: median}",
            "search.pruner: must be none, or left out: Optuna prunes no trials of several metrics, got 'median'",
        ),
        ("{space: {seed: {uniform: [1, 2]}}, sampler: grid}", "search.sampler: needs choice or int in every field"),
        ("{space: {seed: {int: [1, 2]}}, sampler: tpee}", "search.sampler: must be one of tpe, random, grid"),
    ],
)
def test_an_impossible_search_is_told_with_the_place_of_the_value(search: str, said: str) -> None:
    found = errors(search)
    assert any(said in one for one in found), found


def test_each_wrong_value_of_a_space_is_told_once() -> None:
    found = errors("{space: {train.epochs: {int: [0, 3]}, data.batch_size: {choice: [0, -1, 4]}}}")
    assert [one.partition(":")[0] for one in found] == [
        "search.space.train.epochs.int[0]",
        "search.space.data.batch_size.choice[0]",
        "search.space.data.batch_size.choice[1]",
    ]


def test_values_that_exclude_a_field_beside_them_name_that_field() -> None:
    (said,) = errors("{space: {train.placement: {choice: [auto, cuda-shared]}}}\ntrain: {device: cpu}")
    assert said.startswith("search.space.train.placement.choice[1]: must be auto or cpu where train.device is cpu")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": {"train": {"class_path": "mymodel.Rows"}}}, "needs data.val"),
        (
            {"evaluate": {"metrics": ["mymodel.own"], "monitor": "own"}},
            "unknown whether a higher or lower own is better",
        ),
        ({"cluster": {"engine": "torchrun"}}, "on one machine"),
    ],
)
def test_a_job_whose_trials_cannot_be_compared_has_no_search(change: dict[str, Any], said: str) -> None:
    job = {
        "model": {"class_path": "mymodel.Net"},
        "data": {"train": {"class_path": "mymodel.Rows"}, "val": {"fraction": 0.1}},
        "search": {"space": {"seed": {"int": [1, 9]}}},
    }
    with pytest.raises(ConfigError, match=said):
        job_from_mapping({**job, **change}, "test")


def test_a_metric_of_ones_own_is_searched_when_its_direction_is_told() -> None:
    own = "evaluate: {metrics: [mymodel.own], monitor: own, mode: max}\nsearch: {space: {seed: {int: [1, 9]}}}"
    assert load_job(None, source_text=JOB + own).search is not None


def test_several_metrics_are_searched_without_a_pruner_each_in_its_own_direction() -> None:
    own = "evaluate: {metrics: [mymodel.own, accuracy], monitor: own, mode: min}\n"
    job = load_job(None, source_text=f"{JOB}{own}search: {{space: {{seed: {{int: [1, 9]}}}}, metric: [accuracy, own]}}")
    assert job.search is not None and job.search.pruner == "none"
    assert job.search.metrics(job.evaluate.monitor) == ["accuracy", "own"]
    assert load_job(None, source_text=job.to_yaml()) == job
    with pytest.raises(ConfigError, match=r"search\.metric\[1\]: unknown whether a higher or lower own is better"):
        load_job(None, ["evaluate.mode=auto", "evaluate.monitor=loss"], source_text=job.to_yaml())


def test_the_values_of_a_file_come_without_defaults_and_without_what_is_null() -> None:
    path = default_config("digits")
    found = values_of(path, ["search=null", "train.epochs=3"], path.read_text())
    assert found["train"] == {"epochs": 3} and "search" not in found and "supervise" not in found


def test_a_resolved_job_with_a_search_is_read_back_as_the_same_job() -> None:
    job = load_job(None, source_text=JOB + "search: {space: {seed: {choice: [1, 2]}}, sampler: random}")
    assert load_job(None, source_text=job.to_yaml()) == job


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2, unique=True).map(sorted))
def test_both_ends_of_a_range_stand_for_it(ends: list[float]) -> None:
    assert [value for _, value in Range.model_validate({"uniform": ends}).tested] == ends


def test_a_key_of_a_map_that_is_no_name_is_told_at_its_place() -> None:
    with pytest.raises(ConfigError) as found:
        load_job(None, source_text=f"{JOB}evaluate:\n  target: {{'a b': 1}}\n")
    (problem,) = found.value.problems
    assert problem.path == "evaluate.target.a b" and problem.message.startswith("must be a metric's name")
    assert (problem.line, problem.column) == (5, 12)
