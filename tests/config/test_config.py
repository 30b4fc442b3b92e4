# ruff: noqa: E501 -- a table of bad files reads best with one row on one line
"""The job file: what is wrong is said with its place, all of it in one pass; what is right survives a round
trip."""

import fcntl
import os
import re
import signal
import termios
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hogwild.config.load import Job, default_config, job_from_mapping, list_configs, load_job
from hogwild.config.locate import read_job_file
from hogwild.errors import ConfigError, NotFoundError, Problem
from hogwild.host import Interrupted, raising_on_signals
from tests.helpers.processes import PATIENCE_S, wait_for
from tools.reference import job_file_page, json_schema

GOOD = """\
model: {class_path: mymodel.Net}
data: {train: {class_path: mymodel.Data}}
"""
MINIMAL = {"model": {"class_path": "mymodel.Net"}, "data": {"train": {"class_path": "mymodel.Data"}}}


def problems_of(text: str, *overrides: str, **flags: object) -> list[Problem]:
    try:
        load_job(Path("job.yaml"), overrides, {"train.procs": flags["procs"]} if flags else {}, source_text=text)
    except ConfigError as error:
        return list(error.problems)
    return []


def load(text: str, *overrides: str) -> Job:
    return load_job(Path("folder/job.yaml"), overrides, source_text=text)


# Each row is appended to GOOD, so line 3 is its first.
BAD = [
    ("optimizer: {class_pth: a.B}", 3, 13, "optimizer.class_pth", "unknown key; did you mean 'class_path'? (allowed: class_path, init_args, state, groups)"),
    ("optimizer:\n  init_args: {momentum: 1.5}", 4, 25, "optimizer.init_args.momentum", "must be < 1, got 1.5"),
    ("optimizer: {init_args: {momentum: -0.1}}", 3, 35, "optimizer.init_args.momentum", "must be >= 0, got -0.1"),
    ("optimizer: {init_args: {lr: '0.1'}}", 3, 29, "optimizer.init_args.lr", "must be a number without quotes, got '0.1'"),
    ("optimizer: {init_args: {lr: fast}}", 3, 29, "optimizer.init_args.lr", "must be a number, got 'fast'"),
    ("optimizer: {init_args: {lr: -1e-3}}", 3, 29, "optimizer.init_args.lr", "must be >= 0, got -0.001"),
    ("optimizer: {init_args: {lr: true}}", 3, 29, "optimizer.init_args.lr", "must be a number, got true"),
    ("optimizer: {init_args: {lr: 010}}", 3, 29, "optimizer.init_args.lr", "write 10"),
    ("optimizer: {init_args: {mometum: 0.5}}", 3, 25, "optimizer.init_args.mometum", "unknown argument of SGD; did you mean 'momentum'?"),
    ("optimizer: {init_args: {params: []}}", 3, 25, "optimizer.init_args.params", "is filled in with the model's parameters"),
    ("optimizer: {init_args: {nesterov: true}}", 3, 35, "optimizer.init_args.nesterov", "needs a momentum > 0"),
    ("optimizer: {init_args: {nesterov: yes}}", 3, 35, "optimizer.init_args.nesterov", "must be true or false, got 'yes'"),
    ("optimizer: {class_path: torch.optim.Adm}", 3, 25, "optimizer.class_path", "torch.optim has no 'Adm'; did you mean 'Adam'?"),
    ("optimizer: {class_path: torch.optim.LBFGS}", 3, 25, "optimizer.class_path", "needs a closure"),
    ("optimizer: {class_path: torch.optim.Adam, init_args: {betas: [0.9, 1]}}", 3, 62, "optimizer.init_args.betas", "must be < 1 in each entry, got [0.9, 1]"),
    ("optimizer: {class_path: torch.optim.Adam, init_args: {betas: 0.9}}", 3, 62, "optimizer.init_args.betas", "must be a list of 2 numbers, got 0.9"),
    ("optimizer: {class_path: torch.optim.Adam, init_args: {momentum: 0.9}}", 3, 55, "optimizer.init_args.momentum", "unknown argument of Adam"),
    ("optimizer: {state: sharred}", 3, 20, "optimizer.state", "must be one of auto, private, shared, got 'sharred'; did you mean 'shared'?"),
    ("loss: {class_path: torch.nn.CrossEntropyLos}", 3, 20, "loss.class_path", "did you mean 'CrossEntropyLoss'?"),
    ("loss: {init_args: {reduction: none}}", 3, 31, "loss.init_args.reduction", "must be mean or sum, got 'none'"),
    ("loss: {init_args: {weight: [1, -2]}}", 3, 28, "loss.init_args.weight", "must be >= 0 in each entry"),
    ("loss: {init_args: {weight: evenly}}", 3, 28, "loss.init_args.weight", "must be a list of numbers, one for each class or balanced"),
    ("loss: {init_args: [1]}", 3, 19, "loss.init_args", "must be a map of keys and values, got [1]"),
    ("lr_schedule: {name: cosin}", 3, 21, "lr_schedule.name", "must be one of constant, step, linear, cosine, one_cycle, or a class path, got 'cosin'; did you mean 'cosine'?"),
    ("lr_schedule: {name: step}", 3, 1, "lr_schedule.every_updates", "is required"),
    ("lr_schedule: {name: step, every_updates: 0}", 3, 42, "lr_schedule.every_updates", "must be >= 1, got 0"),
    ("lr_schedule: {name: cosine, gamma: 0.1}", 3, 29, "lr_schedule.gamma", "unknown key (allowed: warmup_updates, name, final_factor)"),
    ("lr_schedule: {name: one_cycle, peak_fraction: 1}", 3, 47, "lr_schedule.peak_fraction", "must be < 1, got 1"),
    ("lr_schedule: {name: linear, final_factor: 1:30}", 3, 43, "lr_schedule.final_factor", "1:30 is 90"),
    ("lr_schedule: {warmup_updates: -1}", 3, 31, "lr_schedule.warmup_updates", "must be >= 0, got -1"),
    ("train: {procs: 2000}", 3, 16, "train.procs", "must be auto or a whole number from 0 to 1024, got 2000"),
    ("train: {procs: true}", 3, 16, "train.procs", "must be auto or a whole number from 0 to 1024, got true"),
    ("train: {procs: ato}", 3, 16, "train.procs", "got 'ato'; did you mean 'auto'?"),
    ("train: {threads: 0}", 3, 18, "train.threads", "from 1 to 1024, got 0"),
    ("train: {epochs: 1.5}", 3, 17, "train.epochs", "must be a whole number, got 1.5"),
    ("train: {epochs: 1e2}", 3, 17, "train.epochs", "must be a whole number, got 100.0; write 100"),
    ("train: {epochs: '3'}", 3, 17, "train.epochs", "must be a whole number, got '3'; remove the quotes"),
    ("train: {epochs: true}", 3, 17, "train.epochs", "must be a whole number, got true"),
    ("train: {epochs: 010}", 3, 17, "train.epochs", "write 10"),
    ("train: {epochs: 99999999999999999999}", 3, 17, "train.epochs", "must fit into 64 bits"),
    ("train: {lr: 0.1}", 3, 9, "train.lr", "did you mean 'optimizer.init_args.lr'?"),
    ("train: {batch_size: 3}", 3, 9, "train.batch_size", "did you mean 'data.batch_size'?"),
    ("train: {max_time_s: 0}", 3, 21, "train.max_time_s", "must be > 0, got 0"),
    ("train: {grad_clip: .inf}", 3, 20, "train.grad_clip", "must be finite"),
    ("train: {device: tpu}", 3, 17, "train.device", "must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ("train: {device: 'cuda:'}", 3, 17, "train.device", "must be auto, cpu, cuda or cuda:N"),
    ("train: {device: cpu, placement: cuda-replica}", 3, 33, "train.placement", "where train.device is cpu"),
    ("train: {device: cuda, placement: cpu}", 3, 34, "train.placement", "must be auto or cuda-replica"),
    ("train: {device: cuda, exchange: direct}", 3, 33, "train.exchange", "must be delta or auto"),
    ("train: {device: cuda, update: fused}", 3, 31, "train.update", "kernels run on the CPU"),
    ("train: {device: cuda, procs: 2, device_per_worker: [0]}", 3, 52, "train.device_per_worker", "each of 2 workers"),
    ("train: {device: 'cuda:1', device_per_worker: [0]}", 3, 27, "train.device_per_worker", "without an index"),
    ("train: {exchange: both}", 3, 19, "train.exchange", "must be one of auto, direct, delta, got 'both'"),
    ("train: {sync_every: 0}", 3, 21, "train.sync_every", "must be >= 1, got 0"),
    ("train: {max_staleness: -1}", 3, 24, "train.max_staleness", "must be >= 0, got -1"),
    ("train: {accumulate: 70000}", 3, 21, "train.accumulate", "must be <= 65535, got 70000"),
    ("train: 4", 3, 8, "train", "must be a map of keys and values, got 4"),
    ("train:", 3, 7, "train", "got null; write its keys below it, or remove it"),
    ("train: {epochs: 1}\ntrain: {epochs: 0}", 4, 1, "train", "duplicate key; it was already given at line 3, column 1"),
    ("train: {epochs: 0}\ntrain: {epochs: 1}", 3, 17, "train.epochs", "must be >= 1, got 0"),
    ("evaluate: {target: {acuracy: 0.9}}", 3, 21, "evaluate.target.acuracy", "must be a known metric, or be listed in evaluate.metrics; did you mean 'accuracy'?"),
    ("evaluate: {target: {accuracy: high}}", 3, 31, "evaluate.target.accuracy", "must be a number, got 'high'"),
    ("evaluate: {target: 0.9}", 3, 20, "evaluate.target", "must be a map of keys and values, got 0.9"),
    ("checkpoint: {on_signal: no}", 3, 25, "checkpoint.on_signal", "must be true or false, got 'no'; write false"),
    ("checkpoint: {keep: 0}", 3, 20, "checkpoint.keep", "must be >= 1, got 0"),
    ("supervise: {stall_timeout_s: 0}", 3, 30, "supervise.stall_timeout_s", "must be > 0, got 0"),
    ("supervise: {grace_s: -1}", 3, 22, "supervise.grace_s", "must be > 0, got -1"),
    ("supervise: {deadlock_timeout_s: .nan}", 3, 33, "supervise.deadlock_timeout_s", "must be finite"),
    ("supervise: {start_timeout_s: -3}", 3, 30, "supervise.start_timeout_s", "must be > 0, got -3"),
    ("supervise: {window_s: 0}", 3, 23, "supervise.window_s", "must be > 0, got 0"),
    ("supervise: {max_restarts: -1}", 3, 27, "supervise.max_restarts", "must be >= 0, got -1"),
    ("supervise: {min_workers: 0}", 3, 26, "supervise.min_workers", "must be >= 1, got 0"),
    ("supervise: {max_item_attempts: 0}", 3, 32, "supervise.max_item_attempts", "must be >= 1, got 0"),
    ("supervise: {on_nan: rolback}", 3, 21, "supervise.on_nan", "got 'rolback'; did you mean 'rollback'?"),
    ("supervise: {grace_s: 20, deadlock_timeout_s: 15}", 3, 22, "supervise.grace_s", "must be <= supervise.deadlock_timeout_s (15), got 20"),
    ("supervise: {grace_s: 301}", 3, 22, "supervise.grace_s", "must be <= supervise.deadlock_timeout_s (300, the default), got 301"),
    ("supervise: {deadlock_timeout_s: 5}", 3, 33, "supervise.deadlock_timeout_s", "must be >= supervise.grace_s (10, the default), got 5"),
    ("supervise: {spares: -1}", 3, 21, "supervise.spares", "must be >= 0, got -1"),
    ("supervise: {spares: 65}", 3, 21, "supervise.spares", "must be <= 64, got 65"),
    ("queue: {elastic: {min: 0}}", 3, 24, "queue.elastic.min", "must be >= 1, got 0"),
    ("queue: {elastic: {min: 4, max: 2}}", 3, 24, "queue.elastic.min", "must be <= queue.elastic.max (2), got 4"),
    ("queue: {elastic: {min: 2}}\ntrain: {procs: 0}", 3, 18, "queue.elastic", "must be null where train.procs is 0: no worker is started, got a map"),
    ("queue: {elastic: {min: 2}}\ntrain: {pin: true}", 3, 18, "queue.elastic", "must be null where train.pin is true: workers are bound to their cores, got a map"),
    ("supervise: {min_workers: 3}\ntrain: {procs: 2}", 3, 26, "supervise.min_workers", "must be <= train.procs (2), got 3"),
    ("log: {progress: on}", 3, 17, "log.progress", "must be auto, true or false, got 'on'; write true"),
    ("log: {every_s: 1e10}", 3, 16, "log.every_s", "must be <= 1e+09"),
    ("version: 2", 3, 10, "version", "must be 1"),
    ("version: true", 3, 10, "version", "must be 1, the only version of the job file, got true"),
    ("seed: -1", 3, 7, "seed", "must be >= 0, got -1"),
    ("name: a/b", 3, 7, "name", "must be usable as a folder name"),
    ("name: ..", 3, 7, "name", "must be usable as a folder name"),
    ("trian: {epochs: 1}", 3, 1, "trian", "unknown key; did you mean 'train'?"),
    ("epochs: 3", 3, 1, "epochs", "did you mean 'train.epochs'?"),
    ("loss: {class_path: CrossEntropyLoss}", 3, 20, "loss.class_path", "must be a dotted path"),
    ("loss: {class_path: 3}", 3, 20, "loss.class_path", "must be a dotted path"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "path", "message"), BAD)
def test_a_wrong_field_is_reported_at_its_place(text: str, line: int, column: int, path: str, message: str) -> None:
    found = problems_of(GOOD + text)
    assert any((one.line, one.column, one.path) == (line, column, path) and message in one.message for one in found), (
        found
    )


@pytest.mark.parametrize(
    "supervise",
    [
        "{grace_s: 15, deadlock_timeout_s: 15}",
        "{stall_timeout_s: 60, deadlock_timeout_s: 30}",  # nobody commits, and one of many is silent: two things
        "{start_timeout_s: 900}",
        "{spares: 64, max_restarts: 0}",  # it has no effect
    ],
)
def test_a_policy_that_makes_sense_is_accepted(supervise: str) -> None:
    assert problems_of(f"{GOOD}supervise: {supervise}") == []


# Whole files: what GOOD cannot be part of.
BAD_FILES = [
    ("", 1, 1, "", "the job file is empty"),
    ("# only a comment\n", 1, 1, "", "the job file is empty"),
    ("[1, 2]", 1, 1, "", "must be a map of sections, not a list"),
    ("hello", 1, 1, "", "not the single value 'hello'"),
    ("model: {class_path: a.B}", 1, 1, "data", "is required"),
    ("data: {train: {class_path: a.B}}", 1, 1, "model", "is required"),
    ("model: {class_path: hogwild.models.LeNt}", 1, 21, "model.class_path", "hogwild.models has no 'LeNt'; did you mean 'LeNet'?"),
    ("model: {class_path: a.B, freez: []}", 1, 26, "model.freez", "did you mean 'freeze'?"),
    ("model: {class_path: a.B, freeze: backbone}", 1, 34, "model.freeze", "must be a list, got 'backbone'"),
    ("model: {class_path: a.B, freeze: [[x]]}", 1, 35, "model.freeze[0]", "must be text, got ['x']"),
    ("model: {class_path: a.B, init_args: {x: .nan}}", 1, 41, "model.init_args.x", "must be finite"),
    ("model: {init_args: {}}", 1, 1, "model.class_path", "is required"),
    ("data: {train: {class_path: hogwild.data.Minst}}", 1, 28, "data.train.class_path", "did you mean 'Mnist'?"),
    ("data: {train: a.B}", 1, 15, "data.train", "must be a map of keys and values, got 'a.B'"),
    ("data: {train: {class_path: a.B}, val: {fraction: 1}}", 1, 50, "data.val.fraction", "must be < 1, got 1"),
    ("data: {train: {class_path: a.B}, val: {fractoin: 0.2}}", 1, 40, "data.val.fractoin", "did you mean 'fraction'?"),
    ("data: {train: {class_path: a.B}, val: {class_path: a.B, fraction: 0.2}}", 1, 57, "data.val.fraction", "unknown key"),
    ("data: {train: {class_path: a.B}, feed: streams}", 1, 40, "data.feed", "must be one of auto, resident, stream, got 'streams'"),
    ("data: {train: {class_path: a.B}, batch_size: 0}", 1, 46, "data.batch_size", "must be >= 1, got 0"),
    ("model: {class_path: a.B}\n\tdata: 3", 2, 1, "", "a tab"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "path", "message"), BAD_FILES)
def test_a_wrong_file_is_reported_at_its_place(text: str, line: int, column: int, path: str, message: str) -> None:
    found = problems_of(text)
    assert any((one.line, one.column, one.path) == (line, column, path) and message in one.message for one in found), (
        found
    )


def test_a_problem_is_one_line_with_file_line_and_column_and_the_count_comes_last() -> None:
    with pytest.raises(ConfigError) as caught:
        load_job(Path("job.yaml"), source_text=GOOD + "optimizer:\n  class_pth: x\n  init_args: {momentum: 1.5}\n")
    assert str(caught.value).splitlines() == [
        "job.yaml:4:3: optimizer.class_pth: unknown key; did you mean 'class_path'? (allowed: class_path, init_args, state, groups)"
        " [config/unknown-key]",
        "job.yaml:5:25: optimizer.init_args.momentum: must be < 1, got 1.5 [config/bad-argument]",
        "2 errors; nothing was started.",
    ]


def test_everything_wrong_is_reported_in_one_pass_and_nothing_twice() -> None:
    rows = {row[3]: row for row in BAD if re.fullmatch(r"train: \{\w+: [^{},]+\}", row[0])}
    text = GOOD + "train:\n" + "".join(f"  {row[0][8:-1]}\n" for row in rows.values())
    found = problems_of(text)
    for number, row in enumerate(rows.values()):
        assert any(one.line == 4 + number and one.path == row[3] and row[4] in one.message for one in found), row
    assert len(found) == len(rows) > 10


def test_a_word_of_the_rule_is_no_advice() -> None:
    assert [one.message.rpartition("got ")[2] for one in problems_of(GOOD + "loss: {class_path: a}")] == ["'a'"]


def test_a_misspelt_required_key_is_one_error_not_two() -> None:
    assert [one.path for one in problems_of("model: {class_pth: a.B}\ndata: {train: {class_path: a.B}}")] == [
        "model.class_pth"
    ]


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("trian.epochs=3", "trian", "unknown key; did you mean 'train'?"),
        ("train.epoch=3", "train.epoch", "unknown key; did you mean 'epochs'?"),
        ("train.epochs=0", "train.epochs", "must be >= 1, got 0"),
        ("train.epochs=010", "train.epochs", "write 10"),
        ("train.epochs=[1", "train.epochs", "in '[1'"),
        ("optimizer.init_args.lr={a: 1, a: 2}", "optimizer.init_args.lr.a", "duplicate key"),
        ("train..epochs=3", "", "is not an override"),
        ("train", "", "is not an override"),
    ],
)
def test_a_wrong_override_is_reported_with_the_command_line_as_its_place(
    override: str, path: str, message: str
) -> None:
    found = problems_of(GOOD, override)
    assert any(
        str(one).startswith("command line: ") and one.path == path and message in one.message for one in found
    ), found


def test_a_broken_override_is_reported_once() -> None:
    assert len(problems_of(GOOD, "train.epochs=1:30")) == 1


def test_default_file_override_flag_is_the_order_of_precedence() -> None:
    text = GOOD + "train: {procs: 2, epochs: 2, threads: 2}\n"
    job = load_job(Path("job.yaml"), ["train.procs=3", "train.epochs=3"], {"train.procs": 4}, source_text=text)
    assert (job.train.procs, job.train.epochs, job.train.threads, job.train.accumulate) == (4, 3, 2, 1)


def test_a_later_override_wins_and_overrides_create_sections() -> None:
    job = load(GOOD, "train.epochs=2", "train.epochs=5", "model.init_args.a.b=1e-3", "data.val.fraction=0.25")
    assert job.train.epochs == 5
    assert job.model.init_args == {"a": {"b": 0.001}}
    assert job.data.val is not None and job.data.val.model_dump() == {"fraction": 0.25}


def test_an_override_replaces_a_wrong_value_of_the_file() -> None:
    assert load(GOOD + "train: {epochs: 0}", "train.epochs=2").train.epochs == 2


def test_typed_fields_are_converted_by_their_declared_type() -> None:
    job = load(GOOD + "name: 010\nlog: {every_s: 1e-3}\ntrain: {grad_clip: 5}\n")
    assert job.name == "010"
    assert job.log.every_s == 0.001
    assert job.train.grad_clip == 5.0 and type(job.train.grad_clip) is float


def test_free_values_follow_yaml_1_2() -> None:
    text = "model: {class_path: a.B, init_args: {a: 1e-3, b: 1e5, c: no, d: 'x', e: [1, ~], f: {g: on}}}\n" + GOOD[33:]
    assert load(text).model.init_args == {"a": 0.001, "b": 1e5, "c": "no", "d": "x", "e": [1, None], "f": {"g": "on"}}


def test_the_defaults_are_those_of_the_contract() -> None:
    job = load(GOOD)
    assert job.name == "job" and job.seed == 1 and job.data.val is None and job.data.batch_size == 64
    assert job.optimizer.class_path == "torch.optim.SGD" and job.optimizer.init_args == {"lr": 0.01}
    assert job.loss.class_path == "torch.nn.CrossEntropyLoss" and job.train.epochs == 1
    assert (job.train.procs, job.lr_schedule.name, job.checkpoint.every_s) == ("auto", "constant", 60.0)


@pytest.mark.parametrize(
    ("section", "init_args"),
    [
        ("optimizer: {init_args: {momentum: 0.9}}", {"lr": 0.01, "momentum": 0.9}),
        ("optimizer: {class_path: torch.optim.SGD}", {"lr": 0.01}),
        ("optimizer: {init_args: {lr: 0.5}}", {"lr": 0.5}),
        ("optimizer: {class_path: torch.optim.Adam}", {}),
    ],
)
def test_only_sgd_without_an_lr_gets_our_lr(section: str, init_args: Mapping[str, Any]) -> None:
    assert load(GOOD + section).optimizer.init_args == init_args


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("{}", {}),
        ("{name: step, every_updates: 5}", {"every_updates": 5, "gamma": 0.1}),
        ("{name: linear}", {"final_factor": 0.0}),
        ("{name: cosine, final_factor: 1e-2}", {"final_factor": 0.01}),
        ("{name: one_cycle, warmup_updates: 3}", {"peak_fraction": 0.3}),
        ("{name: mine.Curve, init_args: {a: 1}}", {"init_args": {"a": 1}}),
    ],
)
def test_a_schedule_has_its_own_keys_as_options(section: str, options: Mapping[str, Any]) -> None:
    assert load(GOOD + f"lr_schedule: {section}").lr_schedule.options == options


FULL = GOOD + (
    "name: 'no'\nlr_schedule: {name: step, every_updates: 5, gamma: 1e-5}\n"
    "evaluate: {metrics: [accuracy]}\nlog: {progress: false}\ntrain: {procs: 0, max_time_s: 1e-3}\n"
    "loss: {class_path: mine.Loss, init_args: {a: '010', b: '1e-3', c: {1: x, '2': ['no', 1e-7]}}}\n"
)


@pytest.mark.parametrize("text", [GOOD, FULL, *(path.read_text("utf-8") for path in list_configs())])
def test_the_resolved_file_is_read_back_as_the_same_job(text: str) -> None:
    job = load(text)
    resolved = job.to_yaml()
    assert load_job(Path("elsewhere.yaml"), source_text=resolved) == job
    assert yaml.safe_load(resolved).keys() == Job.model_fields.keys()


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(WORDS, FREE, max_size=3))
def test_any_free_values_survive_the_round_trip(init_args: dict[str, Any]) -> None:
    job = job_from_mapping(MINIMAL | {"model": {"class_path": "a.B", "init_args": init_args}}, "test")
    assert load_job(Path("x.yaml"), source_text=job.to_yaml()).model.init_args == init_args


KEYS = st.sampled_from(
    [*Job.model_fields, "class_path", "init_args", "lr", "procs", "name", "fraction", "target", "freeze"]
)
SCALARS = st.sampled_from(
    ["auto", "no", "1", "-1", "1e-3", "010", "~", "torch.optim.SGD", "a.B", "''", "[a]", "{a: 1}"]
)
ENTRY = st.tuples(
    KEYS, st.recursive(SCALARS, lambda inner: st.tuples(KEYS, inner).map(lambda kv: f"{{{kv[0]}: {kv[1]}}}"))
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRY, max_size=5), st.lists(ENTRY, max_size=2))
def test_no_job_file_and_no_override_raises_anything_but_a_config_error(
    entries: list[tuple[str, str]], changes: list[tuple[str, str]]
) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in entries)
    for problem in problems_of(text, *(f"{key}={value}" for key, value in changes)):
        assert problem.line >= 1 or problem.source == "command line"


def test_a_job_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(GOOD).train.epochs = 3


def test_a_library_call_is_checked_like_a_file_and_named_by_its_source() -> None:
    assert job_from_mapping(MINIMAL | {"train": {"procs": 4}}, "hogwild.train").train.procs == 4
    with pytest.raises(ConfigError, match=r"^hogwild.train: train.epoch: unknown key; did you mean 'epochs'\?"):
        job_from_mapping(MINIMAL | {"train": {"epoch": 4}}, "hogwild.train")


@pytest.mark.parametrize(
    ("value", "message"),
    [(object(), "not a object"), (float("nan"), "finite numbers only"), ({1.5: 0}, "as keys, not 1.5")],
)
def test_a_library_call_takes_only_what_a_file_can_hold(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job_from_mapping(MINIMAL | {"model": {"class_path": "a.B", "init_args": {"x": value}}}, "hogwild.train")


def test_the_embedded_jobs_are_good_and_digits_is_the_default() -> None:
    assert {path.stem for path in list_configs()} >= {"digits", "mnist"}
    for path in list_configs():
        assert load_job(path).name == path.stem
    assert load_job(None) == load_job(default_config("digits"))
    with pytest.raises(NotFoundError, match="did you mean 'digits'"):
        default_config("digit")


def test_a_missing_job_file_says_where_it_was_looked_for_and_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "mnist.yaml").write_text(GOOD)
    with pytest.raises(NotFoundError) as caught:
        load_job(tmp_path / "mnits.yaml")
    assert str(tmp_path / "mnits.yaml") in str(caught.value) and "did you mean 'mnist.yaml'?" in str(caught.value)
    with pytest.raises(NotFoundError, match="is a folder, not a job file"):
        load_job(tmp_path)


def test_every_field_of_the_schema_says_why_it_is_there() -> None:
    schema = json_schema()
    for name, section in schema["$defs"].items():
        for key, value in section["properties"].items():
            assert value.get("description") or "$ref" in value, f"{name}.{key}"


def test_the_reference_has_a_chapter_for_every_section() -> None:
    page = job_file_page(json_schema())
    fields = json_schema()["properties"]
    plain = {"version", "name", "seed"}
    assert [name for name in fields if name not in plain and f"\n## {name}\n" not in page] == []


def test_the_reference_tells_a_list_of_numbers_from_a_list_of_sections() -> None:
    rows = [line.split(" | ")[:2] for line in job_file_page(json_schema()).splitlines()]
    assert ["| `device_per_worker`", "list of whole numbers or `null`"] in rows
    assert ["| `groups`", "list of sections"] in rows


def test_the_table_of_torchs_arguments_is_that_of_the_installed_torch() -> None:
    from tools.torch_arguments import FILE, text  # imports torch

    assert FILE.read_text("utf-8") == text(), "run: python -m tools.torch_arguments"


# ---- a job file from a pipe ------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_signal_that_interrupts_no_read_is_noticed_while_the_pipe_is_open(tmp_path: Path) -> None:
    """Another thread takes it in the midst of the read, which goes on: as with a signal that comes just before."""
    pipe, noticed, were_open = tmp_path / "job.yaml", Event(), []
    os.mkfifo(pipe)

    def write() -> None:
        writer = os.open(pipe, os.O_WRONLY)  # waits for the reader
        os.write(writer, b"name: ")
        wait_for("the first read", lambda: fcntl.ioctl(writer, termios.FIONREAD, b"    ") == bytes(4))
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        were_open.append(noticed.wait(PATIENCE_S))
        os.close(writer)

    def read() -> None:
        try:
            read_job_file(pipe)
        finally:
            noticed.set()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write)
        with pytest.raises(Interrupted), raising_on_signals():
            read()
    assert were_open == [True]
