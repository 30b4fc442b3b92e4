"""`hogwild.train` as people call it: from a script with and without a main guard, from standard input, from a notebook;
what it leaves in the model and the optimizer; what it refuses, and in which words."""

import json
import math
import os
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.config.load import load_job
from hogwild.errors import ConfigError, HogwildError, ModelError, NotFoundError, UsageError, UserCodeError
from tests.helpers.jobs import JOBS, Ended, Job
from tests.helpers.processes import PATIENCE_S

PROGRAM = (JOBS / "library.py").read_text()
GUARDED = 'def main():\n{body}\n\nif __name__ == "__main__":\n    main()\n'
# What a notebook is: cells run one after the other in a __main__ that has no file.
NOTEBOOK = """
import sys, types
from code import InteractiveInterpreter
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
console = InteractiveInterpreter(vars(main))
cells = sys.stdin.read().split("# a new cell\\n")
for cell in cells:
    console.runcode(compile(cell, "<cell>", "exec"))
"""
FAKE_WORKERS = "raise ImportError('this is the user\\'s own package, not hogwild\\'s')\n"


def guarded(program: str) -> str:
    """The same program with everything after the imports in a function below a main guard."""
    head, _, body = program.partition("RUN_DIR =")
    return head + GUARDED.format(body=textwrap.indent("RUN_DIR =" + body, "    "))


@pytest.fixture(scope="module")
def runs(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, Ended]:
    """The same program in four dresses, two at a time. The first has a package called `workers` beside it."""
    scripts = jobs_folder / "scripts"
    (scripts / "workers").mkdir(parents=True)
    (scripts / "workers" / "__init__.py").write_text(FAKE_WORKERS)
    (scripts / "plain.py").write_text(PROGRAM)
    (scripts / "guarded.py").write_text(guarded(PROGRAM))
    (scripts / "notebook.py").write_text(NOTEBOOK)
    procs = {"without a guard": "2"}  # one worker proves as much, and starts sooner
    dresses: dict[str, tuple[tuple[str, ...], str | None]] = {
        "without a guard": ((str(scripts / "plain.py"),), None),
        "with a guard": ((str(scripts / "guarded.py"),), None),
        "from standard input": (("-",), PROGRAM),
        "from a notebook": (
            ("-c", NOTEBOOK),
            PROGRAM.replace("\n\ntorch.manual_seed", "\n# a new cell\ntorch.manual_seed"),
        ),
    }
    started: dict[str, Job] = {}
    ended: dict[str, Ended] = {}
    for name, (python, stdin) in dresses.items():
        folder = jobs_folder / name
        run_dir = folder / "run"
        started[name] = start_shared_job(
            folder,
            python=python,
            stdin=stdin,
            run_dir=run_dir,
            extra={"RUN_DIR": str(run_dir), "PROCS": procs.get(name, "1")},
        )
        if len(started) % 2 == 0:
            ended |= {each: job.wait() for each, job in started.items() if each not in ended}
    return ended


DRESSES = ["without a guard", "with a guard", "from standard input", "from a notebook"]


@pytest.mark.processes
@pytest.mark.parametrize("dress", DRESSES)
def test_a_call_trains_from_anywhere(runs: dict[str, Ended], dress: str) -> None:
    job = runs[dress]
    assert job.status == 0, job.stderr
    said = json.loads(job.stdout.splitlines()[-1])
    assert (said["state"], said["samples"]) == ("succeeded", 6 * 384)
    assert said["leases"]["done"] == said["leases"]["total"] == 6 * 24
    assert said["run_dir"] == str(job.run_dir)
    assert said["accuracy"] > 0.85
    assert said["metrics"]["mistakes"] == round(128 * (1 - said["metrics"]["accuracy"]))
    assert not job.left_behind


@pytest.mark.processes
def test_the_model_holds_the_result_in_its_own_private_parameters(runs: dict[str, Ended]) -> None:
    said = json.loads(runs["without a guard"].stdout.splitlines()[-1])
    assert said["same_objects"]
    assert said["changed"]
    assert not said["shared"]


@pytest.mark.processes
@pytest.mark.whole
def test_the_optimizer_holds_the_state_and_a_second_call_goes_on_with_it(tmp_path: Path) -> None:
    """With one worker the state is that of a plain loop: Adam's step counts the updates of both calls."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    for call_number in (1, 2):
        result = hogwild.train(
            model, data, nn.CrossEntropyLoss(), optimizer, procs=1, batch_size=8, run_dir=tmp_path / str(call_number)
        )
        assert result.updates == 8
        states = list(optimizer.state.values())
        assert [int(state["step"]) for state in states] == [8 * call_number] * 2
        assert not any(value.is_shared() for state in states for value in state.values())
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert list(optimizer.state) == list(model.parameters())


@pytest.mark.processes
def test_a_users_own_workers_package_shadows_nothing_of_ours(jobs_folder: Path, start_job: Callable[..., Job]) -> None:
    """`python -m` puts the current folder first in sys.path, before anything of ours is imported."""
    folder = jobs_folder / "shadow"
    (folder / "workers").mkdir(parents=True)
    (folder / "workers" / "__init__.py").write_text(FAKE_WORKERS)
    run = ("--run-dir", str(folder / "run"))
    job = start_job(folder, "train.epochs=1", "--procs", "1", *run, python=("-m", "hogwild"), run_dir=folder / "run")
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert ended.leases["done"] == 90


# ---- what is refused -----------------------------------------------------------------------------------------------


def call(model: nn.Module, tmp_path: Path, /, without: tuple[str, ...] = (), **settings: Any) -> Any:
    data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    usual: dict[str, Any] = {"procs": 1, "run_dir": tmp_path / "run"}
    settings = {**{name: value for name, value in usual.items() if name not in without}, **settings}
    return hogwild.train(model, data, nn.CrossEntropyLoss(), optimizer, **settings)


@pytest.mark.parametrize("procs", [0, 2])
def test_one_of_many_processes_that_would_all_train_says_so_and_trains_nothing(
    procs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    model = nn.Linear(4, 2)
    before = model.weight.clone()
    with pytest.raises(UsageError, match="has started 4 of these processes") as raised:
        call(model, tmp_path, procs=procs)
    assert raised.value.code == "cluster/not-wanted"
    assert torch.equal(model.weight, before) and not (tmp_path / "run").exists()


class Unsaid(nn.Linear):
    """Scripted, it calls Python."""

    @torch.jit.ignore
    def doubled(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward(self, x: Tensor) -> Tensor:
        return self.doubled(nn.functional.linear(x, self.weight, self.bias))


def scripted() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), torch.jit.script(Unsaid(4, 2)))


def locked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].lock = threading.Lock()  # type: ignore[assignment]
    return model


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(scripted, r"module 1 \(RecursiveScriptModule\) .*TorchScript cannot save it", id="calls Python"),
        pytest.param(locked, r"module 1 \(Linear\) .*in its attribute lock, TypeError", id="holds a lock"),
    ],
)
def test_what_cannot_be_pickled_is_refused_by_name(make: Callable[[], nn.Module], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        call(make(), tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epoch": 3}, r"epoch: unknown key; did you mean 'epochs'\?"),
        ({"checkpoint": {"every": 5}}, r"checkpoint.every: unknown key; did you mean 'every_s'\?"),
        ({"epochs": 0, "batch_size": -1}, r"2 errors; nothing was started"),
    ],
)
def test_a_wrong_keyword_is_the_job_files_error(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        call(nn.Linear(4, 2), tmp_path, **settings)
    assert not (tmp_path / "run").exists()


def made(samples: int = 64) -> TensorDataset:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def yielded() -> Iterator[tuple[Tensor, Tensor]]:
    yield from made()


class Doubled:
    """A transform that is built, then called."""

    def __call__(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, target


def right(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(1) == targets).float().mean())


@pytest.mark.processes
def test_functions_and_classes_stand_wherever_a_job_file_has_a_class_path(tmp_path: Path) -> None:
    """All local, so that they reach the worker by value."""
    rates = []
    for number, factor in enumerate((1.0, 0.0)):
        model = nn.Linear(4, 2)
        before = model.weight.detach().clone()
        result = hogwild.train(
            model,
            partial(made, 128),
            nn.CrossEntropyLoss(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            val=lambda: made(32),
            transform=Doubled,
            lr_schedule=lambda updates: factor,  # noqa: B023  # the job ends before the next one
            evaluate={
                "metrics": {"share": right, "two": lambda outputs, targets: 2.0},
                "monitor": "share",
                "mode": "max",
            },
            procs=1,
            run_dir=tmp_path / str(number),
        )
        rates.append(not torch.equal(model.weight, before))
        assert result.samples == 128
        assert result.metrics.keys() == {"loss", "share", "two"} and result.metrics["two"] == 2
    assert rates == [True, False]


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        (right, ["right"]),
        ("accuracy", ["accuracy"]),
        ([lambda outputs, targets: 1.0, "accuracy", partial(right)], ["metric_1", "accuracy", "right"]),
        ({"a": right, "b": right}, ["a", "b"]),
    ],
    ids=["a function", "a name", "a list", "a dict"],
)
def test_metrics_are_reported_by_the_names_of_their_functions_or_of_a_dict(
    metrics: Any, names: list[str], tmp_path: Path
) -> None:
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=1)
    settings: dict[str, Any] = {"procs": 0, "lr_schedule": schedule, "evaluate": {"metrics": metrics}}
    assert [*call(nn.Linear(4, 2), tmp_path, val=made, **settings).metrics] == ["loss", *names]


def test_a_function_that_yields_is_called_in_every_epoch(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    result = hogwild.train(
        model, yielded, nn.CrossEntropyLoss(), rule, procs=0, epochs=3, batch_size=16, run_dir=tmp_path / "run"
    )
    assert result.samples == 3 * 64


def fails(updates: int) -> float:
    return 1 / updates


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr_schedule": fails}, r"\.fails: built and called with 0 updates, it raised ZeroDivisionError: .*py:"),
        ({"lr_schedule": lambda updates: math.nan}, r"update 0: must be a finite factor >= 0, got nan"),
        ({"val": lambda: 1 // 0}, r"data\.val: .*<lambda>\(\) raised ZeroDivisionError: .*called without arguments"),
        ({"evaluate": {"metrics": [right, right]}}, r"metrics: must have a name of its own.*got 'right'"),
        ({"evaluate": {"metrics": {"a b": right}}}, r"metrics: must have an identifier as its name, got 'a b'"),
        ({"evaluate": {"metrics": {"a": "accuracy"}}}, r"metrics: must be a function, got 'a': 'accuracy'"),
        ({"evaluate": {"metrics": [right, 3]}}, r"metrics: must be a metric's name or a function, got 3"),
    ],
    ids=["raises", "NaN", "data", "twice", "no name", "no function", "a number"],
)
def test_a_function_that_fails_or_has_no_usable_name_is_an_error_before_the_start(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(HogwildError, match=f"(?s){words}"):
        call(nn.Linear(4, 2), tmp_path, **{"procs": 0, "val": made, **settings})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"epochs": 3, "train": {"procs": 0}}, {"train.epochs": 3, "train.procs": 0}),
        ({"train": {"procs": 0, "epochs": 3}, "max_updates": 20}, {"train.epochs": 3, "train.max_updates": 20}),
        ({"data": {"batch_size": 16, "shuffle": "none"}}, {"data.batch_size": 16, "data.shuffle": "none"}),
        ({"data": {"batch_size": 16}, "drop_last": True}, {"data.batch_size": 16, "data.drop_last": True}),
        ({"data": {}, "train": {}, "model": {}, "loss": {}, "optimizer": {}}, {"data.batch_size": 64}),
        ({"model": {"memory_format": "contiguous"}}, {"model.memory_format": "contiguous"}),
        ({"optimizer": {"state": "shared"}}, {"optimizer.state": "shared"}),
        ({"optimizer_state": "shared", "optimizer": {}}, {"optimizer.state": "shared"}),
        ({"optimizer_state": "private"}, {"optimizer.state": "private"}),
    ],
)
def test_a_section_as_a_dict_and_flat_keywords_are_put_together(
    settings: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    inline = {} if "procs" in settings.get("train", {}) else {"procs": 0}
    result = call(nn.Linear(4, 2), tmp_path, without=("procs",), **settings, **inline)
    resolved = load_job(tmp_path / "run" / "resolved.yaml").model_dump()
    for path, value in fields.items():
        section, _, name = path.partition(".")
        assert resolved[section][name] == value
    assert result.samples == 64 * resolved["train"]["epochs"]


TWICE = r"train\.epochs: is given twice: "
OF_A_FILE = "is for job files only, as the object is given here"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 3, "train": {"epochs": 5}}, TWICE + r"epochs=3 and train=\{'epochs': 5\}"),
        ({"train": {"epochs": 5}, "epochs": 5}, TWICE + r"train=\{'epochs': 5\} and epochs=5"),
        ({"data": {"batch_size": 8}, "batch_size": 9}, r"data\.batch_size: is given twice"),
        ({"optimizer_state": "shared", "optimizer": {"state": "private"}}, r"optimizer\.state: is given twice"),
        ({"train": {"epoch": 3}}, r"train\.epoch: unknown key; did you mean 'epochs'\?"),
        ({"train": {1: 3}}, r"train\[1\]: Keys should be strings"),
        ({"train": 5}, r"train: must be a dict of the section's fields, got 5"),
        ({"data": [1]}, r"data: must be a dict"),
        ({"data": {"train": "mine.Data"}}, r"data\.train: " + OF_A_FILE),
        ({"data": {"val": {"fraction": 0.5}}}, r"data\.val: must be given as the keyword val="),
        ({"model": {"class_path": "mine.Net"}}, r"model\.class_path: " + OF_A_FILE),
        ({"loss": {"init_args": {}}}, r"loss\.init_args: " + OF_A_FILE),
        ({"optimizer": {"init_args": {"lr": 1.0}}}, r"optimizer\.init_args: " + OF_A_FILE),
        ({"loss": {"reduction": "sum"}}, r"loss\.reduction: unknown key"),
        ({"val": {"class_path": "mine.Data"}}, r"data\.val: must be a data set, or \{'fraction': f\}"),
        (
            {"epochs": 3, "train": {"epochs": 5}, "data": {"train": 1}, "batch_size": 0},
            r"(?s)given twice.*data\.train.*batch_size: must be >= 1.*3 errors; nothing was started",
        ),
    ],
)
def test_what_is_said_twice_or_belongs_to_an_object_is_an_error_of_the_call(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        call(nn.Linear(4, 2), tmp_path, **settings)
    assert not (tmp_path / "run").exists()


def test_an_object_is_given_once_by_its_place_or_by_its_name(tmp_path: Path) -> None:
    model, data = nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"procs": 0, "run_dir": tmp_path / "run"}
    with pytest.raises(UsageError, match="loss is missing, optimizer is missing"):
        hogwild.train(model, data, **settings)
    with pytest.raises(UsageError, match="dataset is given twice, loss is given twice"):
        hogwild.train(model, data, nn.CrossEntropyLoss(), rule, dataset=data, loss=nn.CrossEntropyLoss(), **settings)
    with pytest.raises(UsageError, match="model is given twice"):
        hogwild.train(model, data, nn.CrossEntropyLoss(), rule, model=model, **settings)
    assert not (tmp_path / "run").exists()
    assert hogwild.train(model, data, optimizer=rule, loss=nn.CrossEntropyLoss(), **settings).updates == 1


@pytest.mark.processes
def test_what_is_frozen_for_a_call_is_not_trained_and_trainable_again(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    before = [param.detach().clone() for param in model.parameters()]
    call(model, tmp_path, procs=0, model={"freeze": ["0.*"]})
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert changed == [False, False, True, True]
    with pytest.raises(ModelError, match="'conv' matches no parameter"):
        call(model, tmp_path, run_dir=tmp_path / "other", model={"freeze": ["1.*", "conv"]})
    assert all(param.requires_grad for param in model.parameters())


def test_a_resume_goes_on_in_its_own_folder_and_in_no_other(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    call(model, tmp_path, procs=0)
    run = tmp_path / "run"
    with pytest.raises(
        UsageError, match=r"resume='.*run' continues in that folder, but run_dir='.*other' names another"
    ):
        call(model, tmp_path, procs=0, epochs=2, resume=run, run_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "link").symlink_to(run)
    assert call(model, tmp_path, procs=0, epochs=2, resume=str(run), run_dir=tmp_path / "link").updates == 2


def test_a_call_in_a_folder_that_was_deleted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    torch.optim.SGD(nn.Linear(4, 2).parameters())  # the first one imports what asks for the current folder
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(NotFoundError, match="the current folder was deleted; change to an existing folder"):
        call(nn.Linear(4, 2), tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_call_from_another_thread_is_refused(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            call(nn.Linear(4, 2), tmp_path)
        except HogwildError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(PATIENCE_S)
    assert isinstance(raised[0], UsageError)
    assert "main thread" in str(raised[0])


class Failing(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise LookupError("this model knows no answer")
        return super().forward(inputs)


@pytest.mark.processes
@pytest.mark.whole
def test_a_failure_of_the_users_code_is_raised_with_its_traceback_and_the_model_is_private_again(
    tmp_path: Path,
) -> None:
    model = Failing(4, 2)
    with pytest.raises(UserCodeError, match="LookupError: this model knows no answer") as raised:
        call(model, tmp_path)
    assert 'raise LookupError("this model knows no answer")' in str(raised.value)
    assert not any(param.is_shared() for param in model.parameters())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "failed"


def test_a_job_that_reaches_its_time_limit_returns_as_stopped(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    stopped = call(model, tmp_path, epochs=1_000_000, max_time_s=1.0, procs=0)
    assert (stopped.state, stopped.reason) == ("stopped", "max_time_s")
    assert not model.weight.is_shared()


class InterruptedAt(nn.Linear):
    """Gets Ctrl-C while it trains: what a call tries first are a few passes."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes = getattr(self, "passes", 0) + 1
        if self.passes == 50:
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(inputs)


def test_ctrl_c_is_raised_after_the_checkpoint_is_written_with_what_the_call_would_have_returned(
    tmp_path: Path,
) -> None:
    model = InterruptedAt(4, 2)
    with pytest.raises(KeyboardInterrupt, match=r"stopped after \d+ updates") as raised:
        call(model, tmp_path, epochs=1_000_000, procs=0)
    assert isinstance(raised.value, hogwild.TrainInterrupted)
    result = raised.value.result
    assert (result.state, result.reason) == ("stopped", "SIGINT") and result.checkpoint is not None
    kept = json.loads((result.run_dir / "checkpoints" / "latest" / "manifest.json").read_text())
    assert 0 < result.updates == kept["update"]
    assert f"resume={str(result.run_dir)!r} continues" in str(raised.value) and not model.weight.is_shared()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = call(model, tmp_path, epochs=1_000_000, procs=0, max_updates=result.updates + 1, resume=result.run_dir)
    assert again.updates == result.updates + 1


def test_ctrl_c_returns_a_call_that_wants_it(tmp_path: Path) -> None:
    result = call(InterruptedAt(4, 2), tmp_path, epochs=1_000_000, procs=0, on_interrupt="return")
    assert (result.state, result.reason) == ("stopped", "SIGINT")
    with pytest.raises(UsageError, match='on_interrupt=\'quit\' must be "raise" or "return"'):
        call(nn.Linear(4, 2), tmp_path, on_interrupt="quit")


@pytest.mark.processes
def test_the_time_limit_counts_from_the_first_update_so_that_every_attempt_gets_somewhere(tmp_path: Path) -> None:
    stopped = call(nn.Linear(4, 2), tmp_path, epochs=1_000_000, max_time_s=0.01, procs=1)
    assert (stopped.state, stopped.reason) == ("stopped", "max_time_s")
    assert stopped.updates > 0
