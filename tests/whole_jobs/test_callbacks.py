"""Callbacks of `hogwild.train`, which run while it trains, and the history it returns."""

import json
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import UsageError, UserCodeError
from hogwild.monitoring.callbacks import JobEvent
from tests.helpers.jobs import read_events
from tests.helpers.processes import wait_for

FOREVER = 1_000_000


class Told:
    """Notes every event and the thread it came in."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.threads: set[threading.Thread] = set()

    def note(self, event: JobEvent) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread())

    on_start = on_evaluation = on_checkpoint = on_end = note

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def call(run: Path, callbacks: list[Any], *, procs: int = 0, epochs: int = 3, **settings: Any) -> hogwild.TrainResult:
    torch.manual_seed(0)
    model, data = nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.arange(64) % 2)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    where = settings if "resume" in settings else {"run_dir": run, **settings}
    settings = {"val": {"fraction": 0.25}, "batch_size": 8, **where}
    return hogwild.train(
        model, data, nn.CrossEntropyLoss(), rule, procs=procs, epochs=epochs, callbacks=callbacks, **settings
    )


def wait_until_train_waits(*places: str) -> None:
    """Wait until the main thread is in one of these places (file.function)."""

    def look() -> bool:
        stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
        return any(f"{Path(one.filename).stem}.{one.name}" in places for one in stack)

    wait_for(f"the main thread in {places}", look)


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_callbacks_are_told_of_everything_in_order_in_one_thread(procs: int, tmp_path: Path) -> None:
    told, again = Told(), Told()
    result = call(tmp_path / "run", [told, again], procs=procs)
    assert told.events == again.events
    assert len(told.threads | again.threads) == 1 and threading.main_thread() not in told.threads
    assert not any(thread.is_alive() for thread in told.threads)
    assert (told.kinds[0], told.kinds[-1], told.kinds.count("start"), told.kinds.count("end")) == ("start", "end", 1, 1)
    evaluations = [event for event in told.events if event.kind == "evaluation"]
    assert [(event.epoch, event.updates) for event in evaluations] == [(1, 6), (2, 12), (3, 18)]
    assert evaluations[-1].metrics == result.metrics
    assert evaluations[0].is_best
    saved = [event.checkpoint for event in told.events if event.kind == "checkpoint"]
    assert result.checkpoint is not None and saved[-1] == tmp_path / "run" / "checkpoints" / result.checkpoint
    assert (told.events[-1].state, told.events[-1].reason) == ("succeeded", "epochs")


@pytest.mark.processes
def test_training_goes_on_while_a_callback_takes_its_time(tmp_path: Path) -> None:
    """The first event is still being dealt with when the last evaluation has long been recorded."""
    run = tmp_path / "run"

    class Slow(Told):
        def on_start(self, event: JobEvent) -> None:
            wait_for("the last evaluation", lambda: len(read_events(run, "evaluation")) == 3)
            self.note(event)

    told = Slow()
    call(run, [told], procs=1)
    assert told.kinds[0] == "start" and told.kinds.count("evaluation") == 3 and told.kinds[-1] == "end"


def test_train_returns_after_the_last_event_was_delivered(tmp_path: Path) -> None:
    class Last(Told):
        def on_end(self, event: JobEvent) -> None:
            wait_until_train_waits("callbacks.__exit__")
            self.note(event)

    told = Last()
    call(tmp_path / "run", [told])
    assert told.kinds[-1] == "end"


class Stopping(Told):
    def on_evaluation(self, event: JobEvent) -> None:
        self.note(event)
        event.stop()


@pytest.mark.processes
@pytest.mark.whole
@pytest.mark.parametrize("procs", [0, 1])
def test_a_callback_stops_the_job_which_can_be_resumed(procs: int, tmp_path: Path) -> None:
    run, told = tmp_path / "run", Stopping()
    stopped = call(run, [told], procs=procs, epochs=FOREVER, checkpoint={"on_signal": False, "keep_best": False})
    assert (stopped.state, stopped.reason) == ("stopped", "callback")
    assert stopped.checkpoint == f"update-{stopped.updates:09}"
    assert told.kinds[-1] == "end" and told.events[-1].state == "stopped"
    epochs = stopped.updates // 6 + 2
    resumed = call(run, [], procs=procs, epochs=epochs, resume=run)
    assert (resumed.state, resumed.updates) == ("succeeded", 6 * epochs)


class Failing:
    def __init__(self, name: str) -> None:
        setattr(self, name, self.fail)

    def fail(self, event: JobEvent) -> None:
        raise LookupError("this callback knows no answer")


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_an_exception_in_a_callback_is_the_jobs_error_which_can_be_resumed(procs: int, tmp_path: Path) -> None:
    run, told = tmp_path / "run", Told()
    words = r"callbacks\[1\] \(Failing\)\.on_evaluation: LookupError: this callback knows no answer"
    with pytest.raises(UserCodeError, match=words) as raised:
        call(run, [told, Failing("on_evaluation")], procs=procs, epochs=FOREVER)
    assert isinstance(raised.value.__cause__, LookupError) and raised.value.code == "train/callback"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["state"], summary["error_code"]) == ("failed", "train/callback")
    assert told.kinds == ["start", "evaluation", "end"]
    epochs = summary["updates"] // 6 + 2
    assert call(run, [], procs=procs, epochs=epochs, resume=run).updates == 6 * epochs


def test_an_exception_at_the_last_evaluation_fails_the_job_too(tmp_path: Path) -> None:
    """Its work is done by then: the summary waits for the callbacks."""

    class Late(Told):
        def on_evaluation(self, event: JobEvent) -> None:
            wait_until_train_waits("execution._heed_callbacks", "callbacks.__exit__")
            raise LookupError

    with pytest.raises(UserCodeError):
        call(tmp_path / "run", [Late()], epochs=1)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["state"], summary["updates"]) == ("failed", 6)


def test_an_exception_in_on_end_is_raised_and_comes_after_the_summary(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(UserCodeError, match=r"callbacks\[0\] \(Failing\)\.on_end"):
        call(tmp_path / "run", [Failing("on_end"), told])
    assert told.kinds[-1] == "end"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "succeeded"


@pytest.mark.parametrize("callbacks", [Told(), [Told], [Told(), print], [None]])
def test_what_is_no_callback_is_refused(callbacks: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="callbacks") as raised:
        call(tmp_path / "run", callbacks)
    assert raised.value.code == "usage/callbacks" and not (tmp_path / "run").exists()


# ---- the result -----------------------------------------------------------------------------------------------------


def test_the_history_has_a_row_per_evaluation_of_all_attempts(tmp_path: Path) -> None:
    call(tmp_path / "run", [], epochs=2)
    result = call(tmp_path / "run", [], resume=tmp_path / "run")
    history = result.history
    assert history["epoch"].tolist() == [1, 2, 3] and history["updates"].tolist() == [6, 12, 18]
    assert history["accuracy"][-1] == result.metrics["accuracy"] and history["loss"][-1] == result.metrics["loss"]
    assert history["train_loss"][-1] == result.train_loss
    frame = history.to_pandas()
    assert [*frame] == [*history] and frame["samples"].tolist() == [48, 96, 144]
    assert repr(history).startswith("History(3 rows: time, epoch, updates, samples,")


def test_without_validation_data_the_history_has_the_training_records(tmp_path: Path) -> None:
    result = call(tmp_path / "run", [], val=None)
    assert [*result.history] == ["time", "epoch", "updates", "samples", "train_loss", "samples_per_s", "lr"]
    assert result.history["updates"][-1] == result.updates
    assert np.isfinite(result.history["train_loss"]).all()


def test_without_records_there_is_no_history(tmp_path: Path) -> None:
    history = call(tmp_path / "run", [], log={"jsonl": False}).history
    assert history.rows == 0 and history.to_pandas().empty


def test_without_pandas_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(tmp_path / "run", [])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"history\.to_pandas\(\) needs pandas .*pip install pandas"):
        result.history.to_pandas()


@pytest.mark.processes
def test_a_result_shows_itself_in_one_line_and_as_a_table(tmp_path: Path) -> None:
    result = call(tmp_path / "a<b", [], procs=1)
    assert repr(result).startswith("TrainResult(succeeded (epochs); 18 updates by 1 worker, ")
    assert repr(result).endswith("a<b)") and "\n" not in repr(result) and len(repr(result)) <= 200
    shown = result._repr_html_()
    assert shown.startswith("<table>") and "18 updates by 1 worker" in shown
    assert "a&lt;b" in shown and "a<b" not in shown
