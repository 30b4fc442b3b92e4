"""Whole jobs in which a kernel trains on the batches of a ring: the result is autograd's, and no death, no record that
cannot be trained and no scoring changes what takes effect."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.errors import UsageError
from hogwild.losses import LogisticLoss
from hogwild.models import FactorizationMachine, FieldFactorizationMachine, MatrixFactorization, SparseLinear
from tests.helpers.jobs import JOBS, Job

FIELDS, VALUES, SAMPLES, BATCH = 3, 8, 203, 10
FEATURES = FIELDS * VALUES


class Clicks(IterableDataset):
    """A feature of each field, and a label that two of them decide."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        random = np.random.default_rng(4)
        for _ in range(self.samples):
            chosen = random.integers(VALUES, size=FIELDS)
            yield chosen + np.arange(FIELDS) * VALUES, float((chosen[0] + chosen[1]) % 2)


class Given(IterableDataset):
    """User, item and a rating that both decide."""

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        for user, item in np.random.default_rng(5).integers((20, 30), size=(SAMPLES, 2)).tolist():
            yield user, item, float((user + 2 * item) % 5)


MODELS: dict[str, tuple[Callable[[], nn.Module], nn.Module, Callable[[], IterableDataset]]] = {
    "linear": (lambda: SparseLinear(FEATURES), LogisticLoss(), Clicks),
    "machine": (lambda: FactorizationMachine(FEATURES, 4), LogisticLoss(), Clicks),
    "field machine": (lambda: FieldFactorizationMachine(FEATURES, FIELDS, 4), LogisticLoss(), Clicks),
    "ratings": (lambda: MatrixFactorization(20, 30, 4, mean=2.0, l2=0.1), nn.MSELoss(), Given),
}


def trained(folder: Path, name: str, data: Any = None, **settings: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the parameters after a job, and its summary."""
    make, loss, stream = MODELS[name]
    torch.manual_seed(6)
    model = make()
    run = settings.get("resume") or folder / f"run-{len(list(folder.iterdir()))}"
    rule = torch.optim.Adagrad(model.parameters(), lr=0.05)
    options = {"procs": 0, "batch_size": BATCH, "log": {"every_s": 1000.0}, **settings}
    if "resume" not in settings:
        options["run_dir"] = run
    hogwild.train(model, data or stream(), loss, rule, **options)
    summary = json.loads((run / "summary.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [param.detach() for param in model.parameters()], summary | {
        "windows": [record["losses"] for record in records if record.get("losses")]
    }


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own Adagrad, of sparse gradients
@pytest.mark.parametrize("name", MODELS)
def test_the_kernel_goes_over_a_stream_as_autograd_does_sample_by_sample(name: str, tmp_path: Path) -> None:
    ours, summary = trained(tmp_path, name, procs=1, epochs=2)
    theirs, other = trained(tmp_path, name, update="autograd", batch_size=1, epochs=2)
    assert (summary["update"], other["update"]) == ("fused", "autograd")
    assert summary["samples"] == 2 * SAMPLES and summary["leases"]["done"] == 2 * 21
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def by_hand(name: str) -> dict[str, float]:
    """Each batch scored by the model, then learnt record by record, with stock torch."""
    make, loss, stream = MODELS[name]
    torch.manual_seed(6)
    model, records = make(), [*stream()]
    rule = torch.optim.Adagrad(model.parameters(), lr=0.05)
    lost = right = 0.0
    for start in range(0, len(records), BATCH):
        ids, labels = zip(*records[start : start + BATCH], strict=True)
        rows, target = torch.from_numpy(np.stack(ids)), torch.tensor(labels)
        with torch.no_grad():
            output = model(rows)
        lost += float(loss(output, target)) * len(labels) / len(records)
        right += float(((output > 0) == (target > 0)).sum()) / len(records)
        for row in range(len(labels)):
            rule.zero_grad()
            loss(model(rows[row : row + 1]), target[row : row + 1]).backward()
            rule.step()
    return {"progressive_loss": lost, "progressive_accuracy": right}


@pytest.mark.processes
@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_each_batch_is_scored_before_the_kernel_learns_it_and_nothing_else_changes(tmp_path: Path) -> None:
    scored, summary = trained(tmp_path, "machine", evaluate={"progressive": True, "metrics": ["accuracy"]})
    plain, other = trained(tmp_path, "machine")
    assert summary["update"] == other["update"] == "fused"
    assert summary["windows"] == [pytest.approx(by_hand("machine"), rel=1e-3)]
    assert all(map(torch.equal, scored, plain)) and not other["windows"]


def test_a_resumed_stream_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole, _ = trained(tmp_path, "field machine", epochs=2)
    trained(tmp_path, "field machine", epochs=2, max_updates=25)
    resumed, summary = trained(tmp_path, "field machine", epochs=2, resume=tmp_path / "run-1")
    assert summary["leases"]["done"] == 42 and summary["update"] == "fused"
    assert all(map(torch.equal, resumed, whole))


@pytest.mark.processes
def test_packed_data_with_hot_rows_is_scored_too(tmp_path: Path) -> None:
    lines = [f"{2 * int(y) - 1} " + " ".join(f"{i + 1}:1" for i in ids) for ids, y in Clicks(4000)]
    (tmp_path / "clicks.svm").write_text("\n".join(lines))
    data = hogwild.data.LibSvm(str(tmp_path / "clicks.svm"))
    options = {"procs": 2, "evaluate": {"progressive": True, "metrics": ["accuracy"]}, "epochs": 2}
    _, summary = trained(tmp_path, "machine", data, **options)
    assert summary["update"] == "fused" and summary["leases"]["done"] == 2 * 400
    assert len(summary["windows"]) == 1 and 0.9 < summary["windows"][0]["progressive_accuracy"] < 1


def test_a_stream_that_does_not_suit_the_kernel_is_trained_by_autograd_and_that_is_said(tmp_path: Path) -> None:
    class Doubles(Clicks):
        def __iter__(self) -> Iterator[Any]:
            for ids, label in super().__iter__():
                yield ids, np.float64(label), label

    def rows(records: list[Any]) -> tuple[Tensor, ...]:
        ids = torch.from_numpy(np.stack([record[0] for record in records]))
        offsets = torch.arange(0, ids.numel(), FIELDS)
        return ids.reshape(-1), offsets, torch.ones(ids.numel()).half(), torch.tensor([r[2] for r in records])

    with pytest.raises(UsageError, match=r"logistic, Adagrad: values must be \(9,\) float32, not \(9,\) torch.float16"):
        trained(tmp_path, "linear", Doubles(), collate=rows, update="fused")


# ---- deaths ----------------------------------------------------------------------------------------------------------

RATE = 0.25


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "differing", "ledger"),
    [
        (
            ["model.init_args.crimes={is killed: 41}"],
            dict.fromkeys(range(40, 44), 2),
            {"indeterminate": 1, "redone": 1},
        ),
        (
            ["model.init_args.crimes={reads nowhere: 41}", "supervise.on_indeterminate=skip"],
            {},
            {"indeterminate": 1, "redone": 0},
        ),
        (["data.train.init_args.wrong=801"], dict.fromkeys(range(800, 804), 0), {"indeterminate": 0, "quarantined": 1}),
    ],
)
def test_a_death_in_the_kernel_costs_one_batch_and_a_record_it_cannot_take_its_own(
    changes: list[str], differing: dict[int, int], ledger: dict[str, int], tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    job = start_job(tmp_path / "job", str(JOBS / "clicking.yaml"), f"model.init_args.diary={tmp_path}", *changes)
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert ended.summary["update_why"] == "fused: hinge, SGD"
    effects = (ended.tensors()["weight"].flatten() / RATE).tolist()
    assert {n: effect for n, effect in enumerate(effects) if effect != 1} == differing
    assert ended.leases.items() >= ledger.items() and ended.ledger_adds_up() and not ended.left_behind
    assert not ended.events("bad-batch") and not ended.events("loader-exit"), "the loader read everything once"
