"""Predictions of a job while it trains: the answers are its model's, nothing that happens to the predictor or to a
worker ends the other, and the end of the run ends a call."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import HogwildError, NotFoundError, RunEndedError, RunError, UsageError
from hogwild.monitoring.live_calls import SOCKET, LiveCalls
from hogwild.monitoring.live_model import live_model
from tests.helpers.jobs import JOBS, Job, read_events
from tests.helpers.predicting import Say, linear
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

StartJob = Callable[..., Job]
DIGITS = (
    *("train", "--procs", "2", "train.epochs=1000000", "train.exchange=direct", "data.val=null"),
    *("log.every_s=0.1", "log.tensorboard=false", "supervise.max_restarts=1000"),
)
ROWS = torch.linspace(0, 1, 5 * 64).reshape(5, 1, 8, 8)
HEADER = {"do": "predict", "form": "tensors", "inputs": [["float32", list(ROWS.shape)]]}
CONTENT = ROWS.numpy().tobytes()


@pytest.fixture
def job(start_job: StartJob, tmp_path: Path) -> Job:
    started = start_job(tmp_path / "job", *DIGITS)
    started.wait_for_updates(10)
    return started


def outputs(answer: tuple[dict[str, Any], bytes]) -> torch.Tensor:
    dtype, shape = answer[0]["output"]
    assert dtype == "float32"
    return torch.frombuffer(bytearray(answer[1]), dtype=torch.float32).reshape(shape)


def predictor_of(job: Job) -> int:
    return int(job.wait_for_event("predictor-ready")[-1]["pid"])


@contextlib.contextmanager
def calling(run: Path) -> Iterator[list[Any]]:
    """Calls without a break, in a thread: how many updates each answer had; last of all what ended it."""
    seen: list[Any] = []
    is_over = threading.Event()

    def call() -> None:
        with LiveCalls(run) as calls:
            try:
                while not is_over.is_set():
                    seen.append(calls.call(HEADER, CONTENT)[0]["updates"])
            except HogwildError as error:
                seen.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


@pytest.mark.whole
def test_calls_go_on_over_kills_of_the_predictor_and_of_workers_until_the_run_ends(job: Job) -> None:
    with calling(job.run_dir) as seen:
        wait_for("answers", lambda: len(seen) > 20)
        for kills in (1, 2):
            os.kill(predictor_of(job), signal.SIGKILL)
            job.wait_for_event("predictor-ready", kills + 1)
            before = len(seen)
            wait_for("answers of the next predictor", lambda before=before: len(seen) > before + 5)
        victims = job.workers().values()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        job.wait_for_exit_of(*victims)
        before = len(seen)
        wait_for("answers without the workers", lambda: len(seen) > before + 5)
        updates = seen[-1]
        wait_for("answers with the next workers", lambda: seen[-1] > updates)
        job.send(signal.SIGTERM)
        wait_for("the end of the calls", lambda: isinstance(seen[-1], HogwildError))
    ended = job.wait()
    assert isinstance(seen[-1], RunEndedError) and seen[-1].code == "run/ended"
    assert all(isinstance(one, int) for one in seen[:-1]) and seen[:-1] == sorted(seen[:-1])
    assert ended.reason == ("stopped", "SIGTERM") and ended.ledger_adds_up() and not ended.left_behind
    assert not (job.run_dir / SOCKET).exists()
    with LiveCalls(job.run_dir) as calls, pytest.raises(RunEndedError, match="does not run"):
        calls.call(HEADER, CONTENT)


def test_a_killed_supervisor_ends_a_call_and_a_resumed_run_answers_over_the_socket_it_left(
    start_job: StartJob, tmp_path: Path
) -> None:
    job = start_job(tmp_path / "job", *DIGITS, "checkpoint.every_updates=20")
    wait_for("a checkpoint", (job.run_dir / "checkpoints" / "latest").exists)
    with calling(job.run_dir) as seen:
        wait_for("answers", lambda: len(seen) > 5)
        job.send(signal.SIGKILL)
        wait_for("the end of the calls", lambda: isinstance(seen[-1], HogwildError))
    assert isinstance(seen[-1], RunEndedError)
    assert (job.run_dir / SOCKET).is_socket()
    job.wait()
    start_job(tmp_path / "again", "train", "--resume", str(job.run_dir), run_dir=job.run_dir)
    wait_for("the resume", lambda: read_events(job.run_dir, "resume"))
    with LiveCalls(job.run_dir) as calls:
        assert calls.call(HEADER, CONTENT)[0]["updates"] >= 20


@pytest.mark.parametrize("model", ["digits", "norm"])
def test_a_consistent_answer_is_that_of_the_checkpoint_which_its_pause_wrote(
    start_job: StartJob, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(JOBS))  # to load the checkpoint
    command, *settings = DIGITS
    file = [] if model == "digits" else [str(JOBS / "norm.yaml")]
    job = start_job(
        tmp_path / "job", command, *file, *settings, "checkpoint.every_updates=200", "checkpoint.keep=100000"
    )
    job.wait_for_updates(10)
    found = []
    with LiveCalls(job.run_dir) as calls:
        for _ in range(3):
            found.append(calls.call({**HEADER, "consistent": True}, CONTENT, limit_s=None))
    job.send(signal.SIGTERM)
    job.wait()
    # The predictor has the threads of a worker and the processor's own code path; this process has others, which add in
    # another order: the last bits differ. An update moves an output by far more.
    near = partial(torch.allclose, rtol=1e-5, atol=1e-5)
    for answer in found:
        updates = answer[0]["updates"]
        with torch.no_grad():
            wanted = hogwild.load(job.run_dir / "checkpoints" / f"update-{updates:09d}").model(ROWS)
        assert all(near(outputs(one), wanted) == (one[0]["updates"] == updates) for one in found), (wanted, found)


def test_what_cannot_be_predicted_is_told_and_the_next_call_is_answered(job: Job) -> None:
    with LiveCalls(job.run_dir) as calls:
        for given, content, code in [
            ({**HEADER, "inputs": [["float32", [5, 7]]]}, bytes(140), "model/forward-failed"),
            ({**HEADER, "inputs": [["float32", [1 << 60, 64]]]}, b"", "predict/bad-message"),
            ({**HEADER, "inputs": [["complex64", [1]]]}, bytes(8), "predict/bad-message"),
            ({**HEADER, "inputs": 5}, b"", "predict/bad-message"),
            ({**HEADER, "do": "train"}, b"", "predict/bad-message"),
            ({"do": "predict", "form": "json"}, b"[]", "predict/bad-message"),
            ({"do": "predict", "form": "json"}, b'{"inputs": [[[1.0], [2.0, 3.0]]]}', "usage/bad-value"),
            ({"do": "predict", "form": "json"}, b"{}", "usage/no-input"),
            ({"do": "predict", "form": "json"}, b'{"text": "a,b"}', "usage/no-input"),
        ]:
            with pytest.raises(HogwildError) as raised:
                calls.call(given, content)
            assert raised.value.code == code, raised.value
        answer, content = calls.call(
            {"do": "predict", "form": "json"}, json.dumps({"inputs": [ROWS.tolist()], "raw": True}).encode()
        )
        assert len(json.loads(content)["output_0"]) == 5 and answer["updates"] > 0
        assert calls.call({"do": "describe"})[0]["inputs"] == ["x"]
    assert len(job.events("predictor-ready")) == 1


def test_a_predictor_that_always_dies_is_given_up_and_the_job_trains_on(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(tmp_path / "job", *DIGITS, "supervise.max_restarts=2")
    job.wait_for_updates(10)
    with LiveCalls(job.run_dir) as calls:
        calls.call(HEADER, CONTENT)
        for kills in (1, 2, 3):
            os.kill(int(job.wait_for_event("predictor-ready", kills)[-1]["pid"]), signal.SIGKILL)
            job.wait_for_event("predictor-exit", kills)
    with LiveCalls(job.run_dir) as calls, pytest.raises(RunError, match="has no live predictor: it ended too often"):
        calls.call(HEADER, CONTENT)
    job.wait_for_updates(int(job.status()["updates"]) + 100)
    job.send(signal.SIGTERM)
    assert job.wait().reason == ("stopped", "SIGTERM")


def test_a_running_job_is_loaded_from_python_and_answers_until_it_ends(job: Job) -> None:
    trained = hogwild.load(job.run_dir, live=True)
    first = trained.predict(TensorDataset(ROWS))
    assert first.shape == (5, 10) and torch.allclose(first.sum(1), torch.ones(5))
    job.wait_for_updates(int(job.status()["updates"]) + 100)
    assert not torch.equal(trained.predict(TensorDataset(ROWS)), first), "the model trains"
    job.send(signal.SIGTERM)
    job.wait()
    with pytest.raises(RunEndedError, match=r"ended|does not run"):
        trained.predict(TensorDataset(ROWS))
    for more in ({"which": "latest"}, {"model": torch.nn.Linear(2, 2)}):
        with pytest.raises(UsageError, match="leave model and which out"):
            hogwild.load(job.run_dir, live=True, **more)
    with pytest.raises(NotFoundError):
        hogwild.load(job.run_dir / "no", live=True)


def test_a_callback_that_asks_after_the_workers_have_left_is_told_at_once(tmp_path: Path) -> None:
    class Asking:
        error: HogwildError | None = None

        def on_start(self, event: Any) -> None:
            self.live = hogwild.load(event.run_dir, live=True)
            self.live.predict(TensorDataset(torch.randn(3, 4)))
            event.stop()

        def on_end(self, event: Any) -> None:
            try:
                self.live.predict(TensorDataset(torch.randn(3, 4)))
            except HogwildError as error:
                self.error = error

    model, asking, x = torch.nn.Linear(4, 1), Asking(), torch.randn(64, 4)
    rule = torch.optim.SGD(model.parameters(), lr=0.01)
    data, options = TensorDataset(x, x[:, :1]), {"procs": 1, "epochs": 1000000, "run_dir": tmp_path / "run"}
    hogwild.train(model, data, torch.nn.MSELoss(), rule, callbacks=[asking], **options)
    # `run/no-answer` would be the error of a call that waited for a predictor. Callbacks have a thread of their own, so
    # that the run's end may be recorded before the call, or not.
    assert isinstance(asking.error, RunEndedError) and asking.error.code == "run/ended"


def test_a_job_without_processes_says_that_it_has_no_predictor(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(tmp_path / "job", "train", "train.procs=0", *DIGITS[3:])
    job.wait_for_updates(10)
    with LiveCalls(job.run_dir) as calls, pytest.raises(RunError, match="has no live predictor"):
        calls.call(HEADER, CONTENT)


def test_a_file_is_predicted_with_names_and_probabilities_by_the_model_that_trains(
    start_job: StartJob, tmp_path: Path, say: Say
) -> None:
    colours = ("red", "green", "blue")
    rows = [f"{k / 50},{colours[k % 3]},{1 - k / 50}" for k in range(100)]
    (tmp_path / "colours.csv").write_text("\n".join(["a,colour,b", *rows, ""]))
    train = {"path": str(tmp_path / "colours.csv"), "target": "colour", "categorical": {"colour": [*colours]}}
    described = {
        "model": linear(2, 3),
        "loss": {"class_path": "torch.nn.CrossEntropyLoss"},
        "data": {"train": {"class_path": "hogwild.data.Csv", "init_args": train}, "batch_size": 8},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}},
        "train": {"procs": 1, "epochs": 1000000},
        "log": {"tensorboard": False},
        "checkpoint": {"every_updates": 200},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(described))
    (tmp_path / "new.csv").write_text("b,customer,a\n0.5,c-1,0.1\n0.25,c-2,0.9\n")
    run = start_job(tmp_path / "job", "train", str(tmp_path / "job.yaml")).run_dir
    wait_for("the run", (run / "resolved.yaml").exists)
    for more in ((), ("--consistent",)):
        status, lines, said = say("predict", run, tmp_path / "new.csv", "--live", "--id", "customer", *more)
        assert status == 0, said
        header, *answers = (line.split(",") for line in lines)
        assert header == ["customer", "predicted", "probability_red", "probability_green", "probability_blue"]
        assert [one[0] for one in answers] == ["c-1", "c-2"] and {one[1] for one in answers} <= {*colours}
        assert all(abs(sum(map(float, one[2:])) - 1) < 1e-5 for one in answers)
    with LiveCalls(run) as calls:
        _, content = calls.call({"do": "predict", "form": "json"}, json.dumps({"text": "b,a\n0.5,0.1\n"}).encode())
    assert {*json.loads(content)} == {"sample", *header[1:]}
    for wrong in (("--live", "--procs", 2), ("--live", "--which", "best"), ("--consistent",)):
        assert say("predict", run, tmp_path / "new.csv", *wrong)[0] == UsageError.exit_status


def test_samples_that_the_job_pads_are_padded_for_every_way_to_ask(
    start_job: StartJob, tmp_path: Path, say: Say
) -> None:
    (tmp_path / "names").mkdir()
    for name, letters in (("one", "abc"), ("two", "xyz")):
        lines = [letters[k % 3] * (2 + k % 4) + letters[k % 2] for k in range(40)]
        (tmp_path / "names" / f"{name}.txt").write_text("\n".join(dict.fromkeys(lines)))
    described = {
        "model": {"class_path": "hogwild.models.SequenceClassifier", "init_args": {"hidden": 4, "embedding": 2}},
        "loss": {"class_path": "torch.nn.CrossEntropyLoss"},
        "data": {
            "train": {"class_path": "hogwild.data.Names", "init_args": {"path": str(tmp_path / "names")}},
            "batch_size": 8,
            "padding": {"value": 0},
        },
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1e-30}},  # all answers are the same
        "train": {"procs": 1, "epochs": 1000000},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(described))
    run = start_job(tmp_path / "job", "train", str(tmp_path / "job.yaml")).run_dir
    wait_for("the run", (run / "resolved.yaml").exists)
    (tmp_path / "new.txt").write_text("abca\nzx\n")
    status, lines, said = say("predict", run, tmp_path / "new.txt", "--live")
    assert status == 0, said
    header, *rows = (line.split(",") for line in lines)
    assert header == ["text", "predicted", "probability_one", "probability_two"]
    assert [row[0] for row in rows] == ["abca", "zx"]
    with LiveCalls(run) as server:
        live = live_model(run, server, consistent=False)
        found = live.predict(["abca", "zx"])
    assert found[:, 0].tolist() == pytest.approx([float(row[2]) for row in rows])
    numbers = [[live.names["symbols"].index(symbol) for symbol in text] for text in ("abca", "zx")]
    padded = [[*numbers[0]], [*numbers[1], 0, 0]]
    calls = {"text": "abca\nzx\n"}, {"inputs": [numbers]}, {"inputs": [padded, [4, 2]]}
    with LiveCalls(run) as server:
        answers = [
            json.loads(server.call({"do": "predict", "form": "json"}, json.dumps(one).encode())[1]) for one in calls
        ]
    assert answers[0]["text"] == ["abca", "zx"]
    assert answers[0]["probability_one"] == answers[1]["probability_one"] == answers[2]["probability_one"]
    with LiveCalls(run) as server, pytest.raises(UsageError, match="inputs: "):
        server.call({"do": "predict", "form": "json"}, json.dumps({"inputs": [[[0, 1], "x"]]}).encode())


HEADS = """
from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import Dataset

@dataclass
class Answer:
    logits: torch.Tensor
    score: torch.Tensor

class Rows(Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, row):
        return {"x": torch.full((2,), row / 600), "kind": row % 3}, row % 2

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(3, 2), nn.Linear(2, 2)
    def forward(self, given):
        logits = self.out(given["x"] + self.table(given["kind"]))
        return Answer(logits, logits[:, 0] * 2)

class Loss(nn.CrossEntropyLoss):
    def forward(self, output, target):
        return super().forward(output.logits, target)

def share(outputs, targets):
    assert type(outputs).__name__ == "Answer" and len(outputs.score) == len(targets)
    return float((outputs.logits.argmax(1) == targets).double().mean())
"""


def test_several_outputs_of_nested_inputs_reach_metrics_in_workers_and_live_answers(
    start_job: StartJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heads.py").write_text(HEADS)
    rows = {"class_path": "heads.Rows"}
    described = {
        "model": {"class_path": "heads.Heads"},
        "loss": {"class_path": "heads.Loss"},
        "data": {"train": rows, "val": rows, "batch_size": 50},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1e-30}},  # all answers are the same
        "train": {"procs": 2, "epochs": 1000000},
        "evaluate": {"metrics": ["heads.share", "accuracy"]},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(described))
    job = start_job(tmp_path / "job", "train", str(tmp_path / "job.yaml"))
    job.wait_for_event("evaluation")
    monkeypatch.syspath_prepend(str(tmp_path))
    with LiveCalls(job.run_dir) as server:
        live = live_model(job.run_dir, server, consistent=False)
        found = live.predict([({"x": torch.full((2,), k / 600), "kind": k % 3}, 0) for k in range(600)])
        given = {"x": [[0.0, 0.0], [1 / 600, 1 / 600]], "kind": [0, 1]}
        told = server.call({"do": "predict", "form": "json"}, json.dumps({"inputs": [given]}).encode())[1]
    assert sorted(found) == ["logits", "score"] and torch.equal(found["score"], found["logits"][:, 0] * 2)
    columns = json.loads(told)
    assert [*columns] == ["logits_0", "logits_1", "score"]
    assert columns["score"] == pytest.approx(found["score"][:2].tolist(), rel=1e-6)
    right = float((found["logits"].argmax(1) == torch.arange(600) % 2).double().mean())
    records = map(json.loads, (job.run_dir / "metrics.jsonl").read_text().splitlines())
    evaluation = next(one for one in records if one["kind"] == "evaluation")
    assert evaluation["share"] == pytest.approx(right) and "accuracy" not in evaluation
