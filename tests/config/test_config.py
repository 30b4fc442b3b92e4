"""The job file: what is wrong is said with its place, all of it in one pass; what is right survives a round
trip."""

import fcntl
import os
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
from tests.bad_input.jobs import BAD_JOBS, GOOD, BadJob
from tests.helpers.processes import PATIENCE_S, wait_for
from tools.reference import job_file_page, json_schema

MINIMAL = {"model": {"class_path": "mymodel.Net"}, "data": {"train": {"class_path": "mymodel.Data"}}}


def problems_of(text: str, *overrides: str) -> list[Problem]:
    try:
        load_job(Path("job.yaml"), overrides, source_text=text)
    except ConfigError as error:
        return list(error.problems)
    return []


def load(text: str, *overrides: str) -> Job:
    return load_job(Path("folder/job.yaml"), overrides, source_text=text)


@pytest.mark.parametrize("row", BAD_JOBS, ids=lambda row: row.text[-60:] or "nothing")
def test_a_bad_job_is_reported_at_its_place_with_its_code_and_rule(row: BadJob) -> None:
    is_override = row.place == "command line"
    found = problems_of(GOOD, row.text) if is_override else problems_of(row.text)
    assert any(
        (one.source if is_override else f"{one.line}:{one.column}", one.path, one.code) == row[1:4]
        and row.words in str(one)
        for one in found
    ), found


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


def test_a_problem_is_one_line_with_file_line_and_column_and_the_count_comes_last() -> None:
    with pytest.raises(ConfigError) as caught:
        load_job(Path("job.yaml"), source_text=GOOD + "optimizer:\n  class_pth: x\n  init_args: {momentum: 1.5}\n")
    assert str(caught.value).splitlines() == [
        "job.yaml:4:3: optimizer.class_pth: unknown key; did you mean 'class_path'? "
        "(allowed: class_path, init_args, state, groups) [config/unknown-key]",
        "job.yaml:5:25: optimizer.init_args.momentum: must be < 1, got 1.5 [config/bad-argument]",
        "2 errors; nothing was started.",
    ]


def test_everything_wrong_is_reported_in_one_pass_and_nothing_twice() -> None:
    train = "train: {epochs: many, sync_every: 0, lr: 0.1,\n  device: tpu}\n"
    text = f"{GOOD}{train}sede: 1\nloss: {{init_args: [1]}}\n"
    assert [(one.line, one.path) for one in problems_of(text)] == [
        (3, "train.epochs"),
        (3, "train.sync_every"),
        (3, "train.lr"),
        (4, "train.device"),
        (5, "sede"),
        (6, "loss.init_args"),
    ]


def test_a_word_of_the_rule_is_no_advice() -> None:
    assert [one.message.rpartition("got ")[2] for one in problems_of(GOOD + "loss: {class_path: a}")] == ["'a'"]


def test_a_misspelt_required_key_is_one_error_not_two() -> None:
    assert [one.path for one in problems_of("model: {class_pth: a.B}\ndata: {train: {class_path: a.B}}")] == [
        "model.class_pth"
    ]


def test_a_broken_override_is_reported_once() -> None:
    assert len(problems_of(GOOD, "train.epochs=1:30")) == 1


def test_default_file_override_is_the_order_of_precedence() -> None:
    job = load(GOOD + "train: {procs: 2, epochs: 2, threads: 2}\n", "train.procs=3")
    assert (job.train.procs, job.train.epochs, job.train.threads, job.train.accumulate) == (3, 2, 2, 1)


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
    plain = {"version", "name", "tags", "seed"}
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
