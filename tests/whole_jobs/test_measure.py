"""Settings tried out: which ones, what their results mean, and that nothing is left of a trial that is broken off."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hogwild import host
from hogwild.cli import main
from hogwild.cli import plan as cli_plan
from hogwild.config.load import load_job
from hogwild.config.locate import default_config
from hogwild.host import Cores
from hogwild.planning.calibration import (
    STOPPED,
    TOO_FEW,
    ExchangeTrial,
    Question,
    SettingTrial,
    TrialSetting,
    best,
    read_losses,
    read_trial,
    settings,
    table,
    try_setting,
)
from tests.helpers.jobs import Job
from tests.helpers.processes import marked, wait_for

several_cores = pytest.mark.skipif(host.usable_cores().usable < 2, reason="one core: there is nothing to choose")


@pytest.mark.parametrize(
    ("usable", "logical", "quota", "threads", "expected"),
    [
        (0.5, 1, 0.5, None, [(1, 1)]),
        (1, 1, None, None, [(1, 1)]),
        (1.9, 4, 1.9, None, [(1, 1)]),
        (1, 1, None, 3, [(1, 3)]),
        (2, 2, None, None, [(2, 1), (1, 2), (1, 1)]),
        (3, 3, None, None, [(3, 1), (1, 3), (1, 1)]),
        (4, 4, None, None, [(4, 1), (1, 4), (2, 2), (1, 1), (2, 1)]),
        (8, 8, None, None, [(8, 1), (1, 8), (4, 2), (1, 1), (2, 4), (4, 1)]),
        (4, 8, None, None, [(4, 1), (1, 4), (2, 2), (1, 1), (8, 1), (2, 1)]),
        (4, 8, 4, None, [(4, 1), (1, 4), (2, 2), (1, 1), (2, 1)]),
        (2, 2, None, 1, [(2, 1), (1, 1)]),
        (8, 8, None, 2, [(4, 2), (2, 2), (1, 2)]),
        (2, 2, None, 4, [(1, 4)]),
    ],
)
def test_what_is_tried_is_sensible_and_little(  # type: ignore[no-untyped-def]
    usable, logical, quota, threads, expected
) -> None:
    found = settings(Cores(logical, quota, usable, "of a test"), threads)
    assert [(setting.procs, setting.threads) for setting in found] == expected


A, B, C = TrialSetting(2, 1), TrialSetting(1, 2), TrialSetting(1, 1)


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ((100.0, 60.0, 50.0), A),
        ((100.0, 120.0, 50.0), B),
        ((100.0, 60.0, 99.0), C),  # equal but for noise: the one whose gradients are the least stale
        ((100.0, 60.0, 97.0), A),
        ((None, 60.0, 30.0), B),
        ((None, None, None), None),
    ],
)
def test_the_fastest_is_chosen_and_among_equals_the_fewest_workers(rates, chosen) -> None:  # type: ignore[no-untyped-def]
    trials = [SettingTrial(setting, rate) for setting, rate in zip((A, B, C), rates, strict=True)]
    found = best(trials)
    assert (found and found.setting) == chosen
    assert [line for line in table(trials) if "<- best" in line] == [
        line for line in table(trials) if chosen and line.split()[:2] == [str(chosen.procs), str(chosen.threads)]
    ]


def test_the_table_shows_ratios_and_what_went_wrong() -> None:
    lines = list(
        table([SettingTrial(A, 12345.6), SettingTrial(B, None, "ValueError: a crime"), SettingTrial(C, 6172.8)])
    )
    assert [line.split() for line in lines] == [
        ["procs", "threads", "samples/s", "of", "the", "best"],
        ["2", "1", "12,346", "1.00", "<-", "best"],
        ["1", "2", "failed", "ValueError:", "a", "crime"],
        ["1", "1", "6,173", "0.50"],
    ]


@pytest.mark.parametrize(
    ("rates", "overrides", "best", "command"),
    [
        (
            (12_345.6, 6_900.0, 6_000.0),
            ["seed=3"],
            "best: procs=2 threads=1: 12,346 samples/s, 1.8 x of procs=1",
            "hogwild train 'my job.yaml' --procs 2 seed=3",
        ),
        (  # threads=1 is not what the plan would take for one worker of two cores
            (50.0, 60.0, 100.0),
            ["train.procs=2", "train.threads=2"],
            "best: procs=1 threads=1: 100 samples/s",
            "hogwild train 'my job.yaml' --procs 1 train.threads=1",
        ),
        ((None, 60.0, 30.0), [], "best: procs=1 threads=2: 60 samples/s", "hogwild train 'my job.yaml' --procs 1"),
        ((70.0, None, None), [], "best: procs=2 threads=1: 70 samples/s", "hogwild train 'my job.yaml' --procs 2"),
    ],
)
def test_the_answer_ends_with_the_best_setting_and_the_command_that_trains_so(  # type: ignore[no-untyped-def]
    rates, overrides, best, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_plan, "trials_of", lambda *_: list(map(SettingTrial, (A, B, C), rates)))
    monkeypatch.setattr(cli_plan, "try_exchanges", lambda *_: ())
    monkeypatch.setattr(host, "usable_cores", lambda: Cores(2, None, 2, "of a test"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    job = load_job(default_config("digits"), overrides)
    status, lines = cli_plan.answer(
        job, Question(Path("my job.yaml"), "", overrides, None), print, measure=True, as_json=False
    )
    assert (status, lines[-1]) == (0, f"{best}; train with: {command}")


RUNS = [
    ExchangeTrial("direct", 1000.0, (0.10, 0.08)),
    ExchangeTrial("delta", 1200.0, (0.09, 0.50)),
    ExchangeTrial("delta", 1400.0, (0.11, 0.30, 0.12)),
    ExchangeTrial("direct", 1000.0, (0.09,)),
]


def test_a_measured_plan_says_what_delta_gains_and_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[TrialSetting, int]] = []

    def tried(_: Question, setting: TrialSetting, updates: int) -> list[ExchangeTrial]:
        asked.append((setting, updates))
        return RUNS

    monkeypatch.setattr(cli_plan, "trials_of", lambda *_: [SettingTrial(A, 3200.0), SettingTrial(C, 10.0)])
    monkeypatch.setattr(cli_plan, "try_exchanges", tried)
    job, question = load_job(default_config("digits"), ["data.batch_size=32"]), Question(None, "", [], None)
    _, lines = cli_plan.answer(job, question, lambda _: None, measure=True, as_json=False)
    start = next(number for number, line in enumerate(lines) if line.split()[:1] == ["exchange"])
    assert [line.split() for line in lines[start : start + 3]] == [
        ["exchange", "samples/s", "of", "direct", "val", "loss", "worst"],
        ["direct", "1,000", "1.00", "0.09", "0.1"],
        ["delta", "1,300", "1.30", "0.12", "0.5"],
    ]
    assert lines[start + 3] == "exchange: auto is direct; delta is your choice: train.exchange=delta"
    _, (text,) = cli_plan.answer(job, question, lambda _: None, measure=True, as_json=True)
    delta = {"exchange": "delta", "samples_per_s": 1300.0, "loss": 0.12, "worst_loss": 0.5, "error": None}
    assert json.loads(text)["exchanges"][1] == delta
    assert asked == [(A, 300)] * 2, "3 s at the measured speed"


@pytest.mark.parametrize(
    ("trial", "overrides"),
    [
        (SettingTrial(C, 100.0), []),
        (SettingTrial(A, None, "a crime"), []),
        (SettingTrial(A, 100.0, placement="cuda-replica"), []),
        (SettingTrial(A, 100.0), ["optimizer.state=shared"]),
    ],
)
def test_where_delta_is_no_choice_it_is_not_tried(trial: SettingTrial, overrides: list[str]) -> None:
    job = load_job(default_config("digits"), overrides)
    assert cli_plan.exchanges_of(job, Question(None, "", [], None), trial, print) == []


def test_the_loss_of_a_trial_is_that_of_its_later_evaluations() -> None:
    events = [{"event": "evaluation", "updates": updates, "loss": loss} for updates, loss in ((40, 9.0), (60, 1.0))]
    events += [{"event": "pause", "what": "evaluation"}, {"event": "evaluation", "updates": 80, "loss": None}]
    found = read_losses("".join(json.dumps(event) + "\n" for event in events), 80)
    assert found == (1.0, math.inf)


def test_without_any_measured_setting_there_is_no_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cli_plan, "trials_of", lambda *_: [SettingTrial(A, None, "a crime"), SettingTrial(C, None, "x")]
    )
    job = load_job(default_config("digits"))
    status, lines = cli_plan.answer(job, Question(None, "", [], None), print, measure=True, as_json=False)
    assert status == 1 and not any(line.startswith("best") for line in lines)


@pytest.mark.parametrize(
    ("status", "out", "err", "expected"),
    [
        (STOPPED, 'user code talks\n{"samples_per_s": 1234.5, "updates": 40}\n', "a note", (1234.5,)),
        (0, '{"samples_per_s": 5.0, "updates": 900}\n', "", (5.0,)),
        (STOPPED, '{"samples_per_s": 5.0, "updates": 39}\n', "", (5.0, "", True)),
        (STOPPED, '{"samples_per_s": null, "updates": 1}\n', "", (None, TOO_FEW, True)),
        (1, '{"error": "ValueError: a crime\\n\\nTraceback"}', "code x/y: see\n", (None, "ValueError: a crime")),
        (1, "cut {", "the last words\n", (None, "the last words")),
        (2, "", "data.train: no such thing\n", (None, "data.train: no such thing")),
        (3, "", "", (None, "exit status 3")),
        (-9, "", "plan: x\n", (None, "killed by SIGKILL (perhaps out of memory)")),
    ],
)
def test_a_trial_is_read_from_how_its_command_ended(  # type: ignore[no-untyped-def]
    status, out, err, expected
) -> None:
    assert read_trial(A, status, out, err) == SettingTrial(A, *expected)


def test_a_job_from_a_pipe_is_tried_from_a_copy_of_its_text(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    question = Question(Path(f"/dev/fd/{reader}"), "name: x\n", ["seed=3"], tmp_path)
    arguments = question.arguments(A, 1.5, tmp_path)
    os.close(reader)
    assert arguments[:3] == ["train", str(tmp_path / "job.yaml"), "seed=3"]
    assert (tmp_path / "job.yaml").read_text() == "name: x\n"
    assert arguments[-2:] == ["--data-dir", str(tmp_path)]


def test_every_change_that_a_trial_makes_is_one_that_a_job_takes(tmp_path: Path) -> None:
    """Also on top of everything that would end or pause a trial."""
    text = (
        "model: {class_path: m.Net}\ndata: {train: {class_path: m.Data}, val: {fraction: 0.2}}\n"
        "train: {max_updates: 3, max_time_s: 9, procs: 4, exchange: delta}\nsupervise: {min_workers: 4}\n"
        "evaluate: {target: {loss: 0.1}, patience: 2, every_updates: 5}\ncheckpoint: {every_updates: 2}\n"
    )
    job = load_job(Path("x.yaml"), source_text=text)
    arguments = Question(None, text, ["seed=3"], None, job.train.exchange).arguments(TrialSetting(1, 2), 1.5, tmp_path)
    changed = load_job(Path("x.yaml"), [each for each in arguments if "=" in each], source_text=text)
    assert (changed.train.procs, changed.train.threads, changed.seed, changed.train.exchange) == (1, 2, 3, "delta")
    assert changed.train.max_time_s == 1.5
    assert (changed.train.max_updates, changed.data.val, changed.evaluate.target) == (None, None, {})
    assert (changed.checkpoint.every_s, changed.checkpoint.every_updates) == (None, None)
    arguments = Question(None, text, [], None, has_validation=True).loss_arguments(A, "direct", 80, tmp_path)
    changed = load_job(Path("x.yaml"), [each for each in arguments if "=" in each], source_text=text)
    assert (changed.train.procs, changed.train.exchange, changed.train.max_updates) == (2, "direct", 80)
    assert (changed.train.max_time_s, changed.evaluate.every_updates, changed.evaluate.every_epochs) == (None, 10, None)
    assert changed.data.val is not None


GUILTY = """
import os, signal, threading
from pathlib import Path
import torch

class Net(torch.nn.Linear):
    def __init__(self, crime):
        super().__init__(3, 2)
        if crime == "raises":
            raise ValueError("a crime")
        if crime == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if crime == "hangs":
            (Path(__file__).parent / "hangs").touch()
            threading.Event().wait()

class Data(torch.utils.data.TensorDataset):
    def __init__(self):
        super().__init__(torch.randn(64, 3), torch.zeros(64, dtype=torch.long))
"""


@pytest.fixture
def guilty(tmp_path: Path) -> Path:
    (tmp_path / "guiltyuser.py").write_text(GUILTY)
    job = tmp_path / "guilty.yaml"
    job.write_text(
        "model: {class_path: guiltyuser.Net, init_args: {crime: none}}\n"
        "data: {train: {class_path: guiltyuser.Data}, batch_size: 4}\n"
        "train: {threads: 1, epochs: 2, procs: auto}\n"
    )
    return job


SLOW = """
import torch
from guiltyuser import Data

class Net(torch.nn.Linear):
    def __init__(self, crime):
        super().__init__(3, 2)

    def forward(self, inputs):
        import time
        time.sleep(2 if self.training else 0)  # the crime itself: a batch takes longer than a trial
        return super().forward(inputs)
"""


@pytest.mark.processes
def test_a_trial_that_was_too_short_is_made_once_more_and_longer(guilty: Path) -> None:
    (guilty.parent / "slowuser.py").write_text(SLOW)
    question = Question(guilty, guilty.read_text(), ["model.class_path=slowuser.Net"], None)
    trial = try_setting(question, C)
    assert trial.samples_per_s is not None
    assert trial.samples_per_s < 3.5  # two updates in the 2 s of a short one make 4; the longer it is, the nearer to 2


@pytest.mark.processes
@pytest.mark.parametrize(("crime", "said"), [("raises", "ValueError: a crime"), ("dies", "killed by SIGKILL")])
def test_a_trial_that_fails_says_why(guilty: Path, crime: str, said: str) -> None:
    question = Question(guilty, guilty.read_text(), [f"model.init_args.crime={crime}"], None)
    trial = try_setting(question, C)
    assert trial.samples_per_s is None and said in trial.error


@pytest.mark.processes
@pytest.mark.whole
@several_cores
def test_procs_auto_on_the_command_line_measures_and_trains_with_what_was_fastest(
    guilty: Path, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    ended = start_job(tmp_path / "job", str(guilty), "--procs", "auto").wait()
    assert ended.status == 0, ended.stderr
    train = load_job(ended.run_dir / "resolved.yaml").train
    assert (train.epochs, train.threads, train.max_time_s) == (2, 1, None)
    assert isinstance(train.procs, int)
    assert f"procs auto: {train.procs} x 1 threads, the fastest on this job" in ended.stderr
    assert f"plan: procs {train.procs} (as given)" in ended.stderr
    assert ended.stderr.count("measuring ") == len(settings(host.usable_cores(), 1))
    assert not ended.left_behind


@pytest.mark.processes
@several_cores
def test_where_no_trial_works_the_rule_is_taken_and_the_job_says_what_is_wrong(
    guilty: Path, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    ended = start_job(tmp_path / "job", str(guilty), "--procs", "auto", "model.init_args.crime=raises").wait()
    assert ended.status != 0 and "a crime" in ended.stderr
    assert "procs auto: every trial failed; using the default plan" in ended.stderr
    assert not ended.left_behind


@pytest.mark.processes
@several_cores
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_signal_ends_the_measurement_and_leaves_nothing(
    number: signal.Signals, status: int, guilty: Path, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    job = start_job(tmp_path / "job", str(guilty), "--procs", "auto", "model.init_args.crime=hangs")
    wait_for("the trial", (tmp_path / "hangs").exists)
    job.send(number)
    assert job.process.wait() == status
    wait_for("the end of the trial", lambda: not marked(job.mark))
    assert not job.run_dir.exists()
    assert number == signal.SIGKILL or not job.left_behind()  # after a SIGKILL nobody removes the trial's folder


@pytest.mark.processes
@several_cores
def test_plan_measure_prints_the_table_and_fails_where_nothing_could_be_measured(
    guilty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["plan", str(guilty), "--measure", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["best"] in said["trials"] and len(said["trials"]) == len(settings(host.usable_cores(), 1))
    assert main.run(["plan", str(guilty), "--measure", "model.init_args.crime=raises"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("procs: ") and out.count("failed") == len(said["trials"]) and "a crime" in out
