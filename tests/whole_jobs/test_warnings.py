"""A warning of user code or of torch reaches the person, whichever process it comes from: once per text, in the
display, the events and the result."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hogwild
from hogwild.monitoring.live_calls import LiveCalls
from hogwild.workers.warning_reports import MOST, hearing_warnings


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == 17:
            warnings.warn("row 17 has no price", stacklevel=1)
        return torch.zeros(2), torch.zeros(1)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            warnings.warn("the step is large", RuntimeWarning, stacklevel=1)
            logging.getLogger("noisy").error("a gradient of %s", "1e9")
        elif len(x) == 3:
            warnings.warn("three rows only", stacklevel=1)
        return super().forward(x)


class Twice(nn.MSELoss):
    """Torch's own warning, of a batch that the trial has not seen."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output, target[:1]) if len(output) == 8 else super().forward(output, target)


def events(run: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == "warning"]


SAID = ["UserWarning: row 17 has no price", "RuntimeWarning: the step is large", "ERROR: a gradient of 1e9"]
SAID += ["UserWarning: Using a target size"]


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_a_warning_in_a_worker_or_a_loader_is_told_once(
    feed: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = Noisy(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as here:
        warnings.simplefilter("always")
        result = hogwild.train(
            model, Rows(), Twice(), optimizer, procs=2, batch_size=8, feed=feed, epochs=2, run_dir=tmp_path / "run",
            log={"progress": True},
        )  # fmt: skip
    shown = capfd.readouterr().err + "".join(f"warning: {one.category.__name__}: {one.message}" for one in here)
    for said in SAID:
        (event,) = [one for one in events(tmp_path / "run") if one["why"].startswith(said)]
        (told,) = [one for one in result.warnings if one.startswith(said)]
        assert told == f"{event['why']} ({event['place']})"
        assert shown.count(f"warning: {said}") == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["warnings"] == list(result.warnings)


def test_a_warning_in_this_process_is_told_too(tmp_path: Path) -> None:
    model = Noisy(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as here:
        warnings.simplefilter("always")
        result = hogwild.train(model, Rows(), Twice(), optimizer, procs=0, batch_size=8, run_dir=tmp_path / "run")
    assert "the step is large" in map(str, (one.message for one in here))
    assert [[one.startswith(said) for one in result.warnings].count(True) for said in SAID] == [1] * len(SAID)
    assert len(events(tmp_path / "run")) == len(result.warnings)


class Asks:
    """Asks the running job for three predictions, after its first evaluation."""

    is_done = False

    def on_evaluation(self, event: Any) -> None:
        if not self.is_done:
            with LiveCalls(event.run_dir) as calls:
                calls.call(HEADER, torch.zeros(3, 2).numpy().tobytes())
            self.is_done = True
            event.stop()


HEADER = {"do": "predict", "form": "tensors", "inputs": [["float32", [3, 2]]]}


@pytest.mark.processes
def test_a_warning_in_a_live_call_is_told(tmp_path: Path) -> None:
    model, data = Noisy(2, 1), TensorDataset(torch.zeros(40, 2), torch.zeros(40, 1))
    result = hogwild.train(
        model, data, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), val=data, procs=1, batch_size=8,
        epochs=1_000_000, run_dir=tmp_path / "run", callbacks=[Asks()],
    )  # fmt: skip
    assert [one.split(" (")[0] for one in result.warnings].count("UserWarning: three rows only") == 1


def test_a_text_is_shown_again_neither_by_a_filter_that_was_reset_nor_over_logging() -> None:
    told: list[str] = []
    make_record, aside = logging.getLogRecordFactory(), logging.getLogger("aside")
    aside.propagate, aside.handlers = False, [logging.NullHandler()]  # which never formats it
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with hearing_warnings(lambda text, place: told.append(text)):
            for _ in range(3):
                with warnings.catch_warnings():  # as numpy and torch do: now Python forgets what it has shown
                    pass
                warnings.warn("again", stacklevel=1)
                logging.warning("over %s", "logging")
                logging.info("of no concern")
                aside.warning("bad %d", "argument")
        assert len(shown) == 1
    assert told == ["UserWarning: again", "WARNING: over logging", "WARNING: bad %d"]
    assert logging.getLogRecordFactory() is make_record


def test_warnings_that_user_code_captures_for_logging_are_heard() -> None:
    told: list[str] = []
    with warnings.catch_warnings(), hearing_warnings(lambda text, place: told.append(text)):
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        try:
            warnings.warn("captured", stacklevel=1)
        finally:
            logging.captureWarnings(False)
    assert len(told) == 1 and "UserWarning: captured" in told[0]


def test_so_many_texts_are_told_and_each_once() -> None:
    told: list[tuple[str, str]] = []
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        before = warnings.showwarning
        with hearing_warnings(lambda text, place: told.append((text, place))):
            for number in range(3 * MOST):
                for _ in range(2):
                    warnings.warn(f"step {number // 2}", stacklevel=1)
        assert warnings.showwarning is before
    assert [text for text, _ in told] == [f"UserWarning: step {number}" for number in range(MOST)]
    assert all(place.startswith(f"{__file__}:") for _, place in told)
