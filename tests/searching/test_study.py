"""What a search makes of Optuna: the pure parts, and the journal of a killed writer. No process."""

import math
import re
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from hogwild.cli.main import run as command
from hogwild.config.load import load_job
from hogwild.config.schema import Job, Range
from hogwild.errors import ConflictError, UsageError
from hogwild.host import Interrupted, signals
from hogwild.searching import study as studies
from hogwild.searching.loop import SearchLoop, fixed_of, most_workers_of, parallel_of
from hogwild.searching.results import SearchRun, as_csv, as_record, best_of, ranked, rows_of
from hogwild.searching.trials import Evaluations, TrialEnd, TrialStarter, arguments_of

JOB = """
name: test
model: {class_path: mymodel.Net}
data: {train: {class_path: mymodel.Rows}, val: {fraction: 0.1}}
"""


def job_with(search: str = "{space: {seed: {int: [1, 9]}}}", more: str = "") -> Job:
    return load_job(None, source_text=f"{JOB}{more}\nsearch: {search}")


def opened(folder: Path, job: Job, *, is_new: bool = True, identity: str = "a") -> optuna.Study:
    folder.mkdir(exist_ok=True)
    return studies.open_study(folder, job, identity, None, is_new=is_new)


plain = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=2)
)


@given(st.lists(plain, min_size=2, max_size=5), st.data())
def test_a_choice_comes_back_as_it_was_written(values: list[Any], data: st.DataObject) -> None:
    unique = [value for place, value in enumerate(values) if value not in values[:place]]
    if len(unique) < 2:
        return
    space = {"model.init_args.x": Range.model_validate({"choice": unique})}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=data.draw(st.integers(0, 99))))
    trial = study.ask(studies.distributions(space))
    (found,) = studies.fields_of(space, trial.params).values()
    assert any(found == value and type(found) is type(value) for value in unique)


def test_the_first_trial_is_the_job_as_it_is_where_it_lies_in_the_space(tmp_path: Path) -> None:
    space = """{
      optimizer.init_args.lr: {log: [1e-3, 1.0]}, model.init_args.size: {choice: [[1], [2]]}, seed: {int: [3, 9]},
      model.init_args.width: {int: [1, 4]}, train.procs: {int: [1, 4]}, model.init_args.p: {uniform: [0, 1]},
      model.init_args.kind: {choice: [yes-it-is, true]}}"""
    more = "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.25}}\nseed: 2"
    args = "init_args: {size: [2], width: 2.5, p: 1, kind: 1}"
    text = JOB.replace("mymodel.Net", f"mymodel.Net, {args}") + more + f"\nsearch: {{space: {space}}}"
    job = load_job(None, source_text=text)
    found = {"optimizer.init_args.lr": 0.25, "model.init_args.size": "[2]", "model.init_args.p": 1}
    assert job.search is not None and studies.written(job, job.search.space) == found
    study = opened(tmp_path / "one", job)
    one, other = studies.asked(study, job), studies.asked(study, job)
    assert found.items() <= one.params.items() and len(one.params) == 7 and 3 <= one.params["seed"] <= 9
    assert not found.items() <= other.params.items()
    killed = opened(tmp_path / "two", job)
    killed.enqueue_trial(found)  # and nobody asked
    assert studies.begun(killed) == 0
    assert found.items() <= studies.asked(opened(tmp_path / "two", job, is_new=False), job).params.items()
    gridded = job_with("{space: {train.epochs: {int: [1, 3]}}, sampler: grid}")
    study = opened(tmp_path / "grid", gridded)
    assert {studies.asked(study, gridded).params["train.epochs"] for _ in range(3)} == {1, 2, 3}


@given(st.integers(0, 5), st.integers(1, 4), st.integers(0, 99))
def test_a_range_gives_values_inside_it_and_of_its_type(low: int, length: int, seed: int) -> None:
    space = {
        "a.b": Range.model_validate({"int": [low, low + length]}),
        "a.c": Range.model_validate({"log": [0.5 + low, 0.5 + low + length]}),
        "a.d": Range.model_validate({"uniform": [low, low + length]}),
    }
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    found = studies.fields_of(space, study.ask(studies.distributions(space)).params)
    assert type(found["a.b"]) is int and low <= found["a.b"] <= low + length
    assert 0.5 + low <= found["a.c"] <= 0.5 + low + length and low <= found["a.d"] <= low + length


def test_values_are_overrides_that_are_read_back_exactly() -> None:
    values = {"optimizer.init_args.lr": 1e-05, "seed": 7, "model.init_args.x": [True, "no", None, 0.1]}
    job = load_job(None, arguments_of(values), source_text=JOB)
    assert job.optimizer.init_args["lr"] == 1e-05 and job.seed == 7
    assert job.model.init_args["x"] == [True, "no", None, 0.1]


# ---- how many, and which ones go on ---------------------------------------------------------------------------------


def test_a_grid_ends_with_its_last_combination() -> None:
    space = "{seed: {int: [1, 3]}, data.batch_size: {choice: [8, 16]}}"
    search = job_with(f"{{space: {space}, sampler: grid}}").search
    assert search is not None and studies.most_trials(search) == 6
    search = job_with(f"{{space: {space}, sampler: grid, trials: 4}}").search
    assert search is not None and studies.most_trials(search) == 4
    search = job_with("{space: {seed: {int: [1, 3]}}, trials: null, max_time_s: 5}").search
    assert search is not None and studies.most_trials(search) == math.inf


def test_a_grid_has_each_combination_once(tmp_path: Path) -> None:
    job = job_with("{space: {seed: {int: [1, 3]}, data.batch_size: {choice: [8, 16]}}, sampler: grid}")
    assert job.search is not None
    study, found = opened(tmp_path / "s", job), set()
    for _ in range(6):
        trial = study.ask(studies.distributions(job.search.space))
        found.add(tuple(trial.params.values()))
        study.tell(trial, 1.0)
    assert len(found) == 6


@pytest.mark.parametrize(
    ("more", "evaluations"),
    [
        ("train: {epochs: 20}", 20),
        ("train: {epochs: 20}\nevaluate: {every_epochs: 3}", 7),
        ("train: {epochs: 20}\nevaluate: {every_epochs: null}", 1),
        ("train: {epochs: 20, max_updates: 7}", None),
        ("train: {epochs: 20}\nevaluate: {every_updates: 7}", None),
    ],
)
def test_the_number_of_evaluations_of_a_whole_trial(more: str, evaluations: int | None) -> None:
    job = job_with(more=more)
    assert job.search is not None and studies.planned_evaluations(job, job.search) == evaluations
    is_pruned = not isinstance(studies.pruner_of(job, job.search), optuna.pruners.NopPruner)
    assert is_pruned == (evaluations != 1)


def test_a_class_that_is_no_sampler_is_refused_with_what_it_should_be() -> None:
    search = job_with("{space: {seed: {int: [1, 9]}}, sampler: {class_path: collections.Counter}}").search
    assert search is not None
    with pytest.raises(UsageError, match=r"search\.sampler: collections\.Counter must be a sampler of Optuna"):
        studies.sampler_of(search, 1)


def test_a_sampler_of_optunas_gets_the_seed_of_the_job() -> None:
    search = job_with("{space: {seed: {int: [1, 9]}}, sampler: {class_path: optuna.samplers.RandomSampler}}").search
    assert search is not None
    space = studies.distributions({"x": Range.model_validate({"uniform": [0, 1]})})
    drawn = [optuna.create_study(sampler=studies.sampler_of(search, seed)).ask(space).params["x"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


OWN_SAMPLER = """
import optuna

class Dice(optuna.samplers.RandomSampler):
    def after_trial(self, study, trial, state, values):
        raise ValueError("no dice")
"""


@pytest.mark.parametrize(
    ("sampler", "metrics", "said"),
    [
        (
            "optuna.samplers.CmaEsSampler",
            "[rmse, auc]",
            r"of 2 metrics \(rmse, auc\): it raised ValueError: ",
        ),
        ("optuna.samplers.BruteForceSampler", "rmse", r"of 1 metric \(rmse\): it raised ValueError: .*step"),
        ("dice.Dice", "auc", r"it raised ValueError: no dice \(dice\.py:6\)"),
    ],
)
def test_a_sampler_that_cannot_serve_this_search_is_refused_before_the_first_trial(
    sampler: str, metrics: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = "{optimizer.init_args.lr: {log: [0.1, 1.0]}}"
    search = f"{{space: {space}, metric: {metrics}, sampler: {{class_path: {sampler}}}}}"
    (tmp_path / "dice.py").write_text(OWN_SAMPLER)
    (tmp_path / "job.yaml").write_text(f"{JOB}\n{OF_SEVERAL}\nsearch: {search}\n")
    for arguments in (["check"], ["search", "--run-dir", str(tmp_path / "found")]):
        assert command([*arguments, str(tmp_path / "job.yaml")]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"search.sampler: {sampler} cannot draw values for this search, ")
        assert re.search(said, error) and "search/sampler" in error
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize("sampler", ["GridSampler, init_args: {search_space: {seed: [1, 2]}}", "BruteForceSampler"])
def test_a_sampler_that_has_no_more_values_ends_the_search_and_is_no_error(sampler: str, tmp_path: Path) -> None:
    job = job_with(f"{{space: {{seed: {{int: [1, 2]}}}}, sampler: {{class_path: optuna.samplers.{sampler}}}}}")
    studies.check_classes(job, None)
    assert job.search is not None
    study, drawn = opened(tmp_path / "s", job), list[int]()
    while not studies.is_exhausted(study):
        trial = study.ask(studies.distributions(job.search.space))
        drawn.append(trial.params["seed"])
        study.tell(trial, 1.0)
    assert sorted(drawn) == [1, 2]


@pytest.mark.parametrize(
    ("search", "more", "cores", "parallel", "procs"),
    [
        ("{space: {seed: {int: [1, 9]}}}", "train: {device: cpu}", 4.0, 4, 1),
        ("{space: {seed: {int: [1, 9]}}}", "train: {device: cpu, procs: 2}", 5.0, 2, None),
        ("{space: {seed: {int: [1, 9]}}}", "train: {device: cpu, procs: 0}", 2.0, 2, None),
        ("{space: {seed: {int: [1, 9]}}}", "train: {device: cpu, procs: 8}", 2.0, 1, None),
        ("{space: {seed: {int: [1, 9]}}, parallel: 2}", "train: {device: cpu}", 8.0, 2, 4),
        ("{space: {train.procs: {int: [1, 3]}}}", "train: {device: cpu}", 7.0, 2, None),
        ("{space: {seed: {int: [1, 9]}}}", "train: {device: cpu}", 0.5, 1, None),
    ],
)
def test_trials_at_a_time_have_equal_parts_of_the_cores(
    search: str, more: str, cores: float, parallel: int, procs: int | None
) -> None:
    job = job_with(search, more)
    assert job.search is not None and parallel_of(job, job.search, cores) == parallel
    assert fixed_of(job, job.search, parallel, cores).get("train.procs") == procs


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ("train: {device: cpu, threads: 2}", 2),
        ("train: {device: cpu, procs: 1}", 0),
        ("train: {device: cpu, pin: true}", 0),
        ("train: {device: cpu}\nsupervise: {min_workers: 3}", 4),
    ],
)
def test_the_last_trials_get_more_workers_where_their_number_is_left_to_us(more: str, most: int) -> None:
    job = job_with("{space: {seed: {int: [1, 9]}}}", more)
    assert job.search is not None and most_workers_of(job, job.search, 4.0) == most


def test_a_signal_that_came_before_the_search_watches_for_them_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with()
    assert job.search is not None
    starter = TrialStarter(tmp_path, tmp_path / "job.yaml", [], None, -1, None)
    loop = SearchLoop(job, job.search, opened(tmp_path / "s", job), starter, 1, {})
    monkeypatch.setattr(signals._command, "received", [signal.SIGTERM])
    with pytest.raises(Interrupted):
        loop.run()
    assert loop.count == 0


def test_a_trial_that_was_given_up_is_pruned_also_if_it_was_done_before_it_heard_of_it(tmp_path: Path) -> None:
    job = job_with("{space: {seed: {int: [1, 9]}}, trials: 2, metric: rmse}", "evaluate: {metrics: [rmse]}")
    assert job.search is not None
    study = opened(tmp_path / "s", job)
    starter = TrialStarter(tmp_path, tmp_path / "job.yaml", [], None, -1, None)
    for number in range(2):
        trial = study.ask(studies.distributions(job.search.space))
        if number == 0:
            studies.report(trial, 1, [1.0])
            trial.set_user_attr("pruned_at", 1)
        run = starter.run_of(number)
        run.mkdir(parents=True)
        (run / "status.json").write_text('{"state": "succeeded"}')
        records = (f'{{"kind": "evaluation", "time": {time}, "rmse": {1 / time}}}\n' for time in range(1, 4))
        (run / "metrics.jsonl").write_text("".join(records))
    SearchLoop(job, job.search, study, starter, 1, {}).run()
    pruned, done = study.get_trials()
    assert pruned.state == TrialState.PRUNED
    assert (done.state, done.value, len(done.intermediate_values)) == (TrialState.COMPLETE, 1 / 3, 3)


# ---- the study ------------------------------------------------------------------------------------------------------


def test_a_study_of_another_job_file_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "s", job_with())
    with pytest.raises(ConflictError, match="of another job file"):
        opened(tmp_path / "s", job_with(), is_new=False, identity="b")
    with pytest.raises(ConflictError, match="already has a study named s, of another search"):
        opened(tmp_path / "s", job_with(), is_new=True, identity="b")


@settings(max_examples=30)
@given(torn=st.integers(1, 40))
def test_a_journal_whose_last_line_was_torn_by_a_kill_goes_on(
    torn: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, job = tmp_path_factory.mktemp("s"), job_with()
    assert job.search is not None
    study = opened(folder, job)
    for number in range(3):
        study.tell(study.ask(studies.distributions(job.search.space)), float(number))
    journal = folder / studies.JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) - torn])
    again = opened(folder, job, is_new=False)
    for trial in studies.unfinished(again, job.search.space):
        assert "seed" in trial.params
        again.tell(trial, 7.0)
    again.tell(again.ask(studies.distributions(job.search.space)), 9.0)
    reread = opened(folder, job, is_new=False).get_trials()
    assert [one.number for one in reread] == list(range(len(reread))) and len(reread) in (3, 4)
    assert all(one.state == TrialState.COMPLETE for one in reread)


def test_a_resumed_study_does_not_draw_the_same_values_again(tmp_path: Path) -> None:
    job = job_with("{space: {seed: {int: [1, 1000000]}}, sampler: random}")
    assert job.search is not None
    space, drawn = studies.distributions(job.search.space), []
    for attempt in range(3):
        study = opened(tmp_path / "s", job, is_new=not attempt)
        trial = study.ask(space)
        study.tell(trial, 1.0)
        drawn.append(trial.params["seed"])
    assert len({*drawn}) == 3


def test_the_value_of_a_trial_is_its_best_finite_evaluation(tmp_path: Path) -> None:
    study = opened(tmp_path / "s", job_with())
    trial = study.ask()
    for step, value in enumerate([3.0, 1.0, math.nan, 2.0, math.inf], 1):
        trial.report(value, step)
    (found,) = study.get_trials()
    assert studies.best_values(found, is_max=False) == (1.0,) and studies.best_values(found, is_max=True) == (3.0,)
    study.ask()
    assert studies.best_values(study.get_trials()[1], is_max=True) == ()


# ---- several metrics ------------------------------------------------------------------------------------------------

SEVERAL = "{space: {seed: {int: [1, 9]}}, metric: [rmse, auc]}"
OF_SEVERAL = "evaluate: {metrics: [auc, rmse], monitor: auc, mode: max}"
evaluation = st.tuples(*[st.integers(0, 4).map(float) | st.just(math.nan)] * 2)


def test_the_first_metric_decides_and_the_mode_of_another_one_is_not_taken_for_its_own() -> None:
    job = job_with(SEVERAL, OF_SEVERAL)
    assert studies.metrics_of(job) == {"rmse": False, "auc": True}
    assert studies.common_fields(job) == {"search": None, "evaluate.monitor": "rmse", "evaluate.mode": "auto"}
    assert job.search is not None and isinstance(studies.pruner_of(job, job.search), optuna.pruners.NopPruner)
    assert studies.common_fields(job_with(more="evaluate: {mode: min}")) == {"search": None, "evaluate.monitor": "loss"}


@settings(max_examples=30, deadline=None)
@given(curves=st.lists(st.lists(evaluation, max_size=3), max_size=6))
def test_a_trial_of_several_metrics_has_those_of_its_best_evaluation_by_the_first(
    curves: list[list[tuple[float, float]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, job, told = tmp_path_factory.mktemp("s"), job_with(SEVERAL, OF_SEVERAL), dict[int, tuple[float, ...]]()
    study = opened(folder, job)
    for number, curve in enumerate(curves):
        trial = study.ask()
        for step, values in enumerate(curve, 1):
            studies.report(trial, step, values)
        found = studies.evaluations_of(study.get_trials()[number])
        assert str([*found.items()]) == str([*enumerate(curve, 1)])
        best = studies.best_values(study.get_trials()[number], is_max=False)
        assert best == min((one for one in curve if math.isfinite(one[0])), key=lambda one: one[0], default=())
        if best and math.isfinite(best[1]):
            study.tell(trial, best)
            told[number] = best
        else:
            study.tell(trial, state=TrialState.PRUNED)
    again = opened(folder, job, is_new=False)
    front = {
        number: (low, high)
        for number, (low, high) in told.items()
        if not any(a <= low and b >= high and (a, b) != (low, high) for a, b in told.values())
    }
    assert [one.number for one in studies.front(again)] == sorted(front, key=lambda number: (front[number][0], number))
    assert studies.importance(again) == {}


def test_the_sampler_reads_trials_of_several_metrics_that_failed_by_their_values(tmp_path: Path) -> None:
    job = job_with(SEVERAL, OF_SEVERAL)
    assert job.search is not None
    study = opened(tmp_path / "s", job)
    for number in range(16):  # the first ten are drawn at random
        trial = study.ask(studies.distributions(job.search.space))
        studies.report(trial, 1, (1.0, 2.0))
        study.tell(trial, **({"values": [1.0, 2.0]} if number % 3 else {"state": TrialState.PRUNED}))
    assert len(study.get_trials()) == 16


@pytest.mark.parametrize("metric", ["loss", "[loss, rmse]", "[rmse, loss]"])
def test_a_field_that_decides_the_first_metric_is_the_important_one(metric: str, tmp_path: Path) -> None:
    space = "{model.init_args.a: {uniform: [0, 1]}, model.init_args.b: {uniform: [0, 1]}}"
    job = job_with(f"{{space: {space}, metric: {metric}, sampler: random}}", "evaluate: {metrics: [rmse]}")
    assert job.search is not None
    study = opened(tmp_path / "s", job)
    for _ in range(40):
        trial = study.ask(studies.distributions(job.search.space))
        values = {"loss": trial.params["model.init_args.a"], "rmse": trial.params["model.init_args.b"]}
        study.tell(trial, [values[name] for name in studies.metrics_of(job)])
    first = "model.init_args.b" if metric == "[rmse, loss]" else "model.init_args.a"
    assert next(iter(studies.importance(study))) == first


def test_a_table_has_the_front_first_and_a_trial_beside_it_is_not_the_best(tmp_path: Path) -> None:
    job = job_with(SEVERAL, OF_SEVERAL)
    search = SearchRun(tmp_path / "s", {"job_file": "job.yaml", "overrides": [], "folder": "."}, job, job.to_yaml())
    study = opened(tmp_path / "s", job)
    for values in [(3.0, 1.0), (1.0, 0.5), (2.0, 0.5), (2.0, 0.75)]:
        trial = study.ask(studies.distributions({"seed": Range.model_validate({"int": [1, 9]})}))
        studies.report(trial, 1, values)
        study.tell(trial, values)
    trials, front = study.get_trials(), studies.front(study)
    title, *rows = rows_of(search, ranked(trials, front, is_max=False), front)
    assert title[2:5] == ("rmse", "auc", "evaluations")
    assert [(row[0], row[2], row[3], row[-1]) for row in rows] == [
        ("1", "1", "0.5", "on the front"),
        ("3", "2", "0.75", "on the front"),
        ("0", "3", "1", "on the front"),
        ("2", "2", "0.5", ""),
    ]
    assert [one["trial"] for one in as_record(search, study)["front"]] == [1, 3, 0]
    assert as_csv(search, study).splitlines()[0].startswith("trial,state,rmse,auc,evaluations")
    assert best_of(search, study).number == 1 and best_of(search, study, 0).number == 0
    with pytest.raises(UsageError, match=r"--trial 2: must be a trial of the front: 1, 3, 0"):
        best_of(search, study, 2)


# ---- the records of a trial -----------------------------------------------------------------------------------------


@given(
    kinds=st.lists(st.sampled_from(["evaluation", "null", "train", "torn"]), max_size=8),
    cuts=st.lists(st.integers(0, 300)),
)
def test_evaluations_are_seen_once_however_the_file_grows(
    kinds: list[str], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = {
        "evaluation": '{"kind": "evaluation", "rmse": 0.5, "auc": 1}\n',
        "null": '{"kind": "evaluation", "rmse": null}\n',
        "train": '{"kind": "train", "loss": 1.0}\n',
        "torn": "{not json\n",
    }
    content = "".join(lines[kind] for kind in kinds).encode()
    file = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    records, found = Evaluations(file, ["rmse", "auc"]), list[tuple[int, list[float]]]()
    for cut in sorted(cuts):
        file.write_bytes(content[:cut])
        found += records.new()
    file.write_bytes(content)
    found += records.new()
    expected = [
        [0.5, 1.0] if kind == "evaluation" else [math.nan, math.nan] for kind in kinds if kind in ("evaluation", "null")
    ]
    assert [step for step, _ in found] == list(range(1, len(expected) + 1))
    assert str([values for _, values in found]) == str(expected)


@given(before=st.integers(0, 4), kept=st.integers(0, 4), more=st.integers(0, 4), looks=st.booleans())
def test_evaluations_are_numbered_anew_when_a_resume_has_cut_their_file(
    before: int, kept: int, more: int, looks: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The cut may come after the resumed trial was looked at, and the file have its old size again at the next look."""
    lines = [f'{{"kind": "evaluation", "time": {time}, "rmse": {time}}}\n' for time in range(1, 10)]
    file = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    records = Evaluations(file, ["rmse"])
    old, cut = lines[:before], lines[: min(kept, before)]
    resumed = [*cut, *lines[4 : 4 + more]]
    file.write_text("".join(old))
    assert len(records.new()) == before
    if looks:
        file.write_text("".join(cut))
        records.new()
    file.write_text("".join(resumed))
    assert (records.new() or [(len(resumed), [])])[-1][0] == len(resumed)
    file.write_text("".join([*resumed, lines[8]]))
    assert records.new() == [(len(resumed) + 1, [9.0])]


def test_what_other_values_would_cure_is_no_error_of_the_users() -> None:
    assert (
        TrialEnd("failed", code="train/diverged").is_by_values and TrialEnd("failed", code="device/memory").is_by_values
    )
    assert not TrialEnd("failed", code="config/constructor-raised").is_by_values and not TrialEnd("killed").is_by_values
