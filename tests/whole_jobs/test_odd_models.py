"""Models that do in forward what a constructor should, or keep something from it: trained as the plain loop would, or
refused in clear words. Through the library call, so through the whole job."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import Dataset, TensorDataset

import hogwild
from hogwild.api import TrainResult
from hogwild.errors import ModelError, TrainingError
from hogwild.training import torch_settings
from tests.shared_model import one_thread, same_bits  # noqa: F401 (a fixture for every test here)

FEATURES, CLASSES, BATCH = 4, 2, 8


def examples(batches: int) -> TensorDataset:
    """Batch k of `shuffle: none` holds the samples [8k, 8k + 8)."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(batches * BATCH, FEATURES, generator=random)
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(model: nn.Module, run_dir: Path, data: TensorDataset | None = None, **settings: Any) -> TrainResult:
    settings = {"procs": 0, "batch_size": BATCH, "shuffle": "none", **settings}
    rule = optim.SGD(model.parameters(), lr=0.1)
    return hogwild.train(model, data or examples(4), nn.CrossEntropyLoss(), rule, run_dir=run_dir, **settings)


class CreatesInForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.zeros(CLASSES))
        return super().forward(x) + self.late


class GrowsLater(nn.Linear):
    """A new parameter in the third batch of training, when nobody expects it any more."""

    batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += self.training
        if self.batches == 3:
            self.late = nn.Parameter(torch.zeros(CLASSES))
        return super().forward(x)


class CountsLater(nn.Linear):
    """A buffer of its own, made when it is first trained: no other process has it."""

    def __init__(self, persistent: bool) -> None:
        super().__init__(FEATURES, CLASSES)
        self.persistent = persistent

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(()), persistent=self.persistent)
        return super().forward(x)


class KeepsATensor(nn.Linear):
    """As a positional encoding does: made for the longest input so far, and used in every graph from then on."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or len(self.kept) < len(x):
            self.kept = torch.ones(len(x), CLASSES)
        return super().forward(x) * self.kept[: len(x)]


class Normed(nn.Module):
    """Numbers of x above 1e3 come out of the first layer as `spoilt`, and so into the running averages."""

    def __init__(self, spoilt: float) -> None:
        super().__init__()
        self.spoilt = spoilt
        self.first, self.norm, self.last = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if bool((x > 1e3).any()) and self.training:
            hidden = torch.cat([torch.full_like(hidden[:1], self.spoilt), hidden[1:]])
        return self.last(self.norm(hidden))


def normed(spoilt: float) -> Normed:
    torch.manual_seed(0)
    return Normed(spoilt)


def test_a_parameter_created_in_forward_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="CreatesInForward creates parameter late in forward"):
        train(CreatesInForward(FEATURES, CLASSES), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_a_parameter_that_comes_later_ends_the_job_and_no_worker_tries_again(tmp_path: Path, procs: int) -> None:
    with pytest.raises((ModelError, TrainingError), match="gained or lost parameters"):
        train(GrowsLater(FEATURES, CLASSES), tmp_path / "run", procs=procs, epochs=100)
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"restart"' not in events and events.count('"spawn"') == procs


def test_a_buffer_that_comes_later_is_refused_unless_nobody_is_to_save_it(tmp_path: Path) -> None:
    with pytest.raises((ModelError, TrainingError), match="gained or lost parameters, persistent buffers or modules"):
        train(CountsLater(persistent=True), tmp_path / "kept")
    assert train(CountsLater(persistent=False), tmp_path / "derived").state == "succeeded"


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_what_a_model_keeps_from_an_evaluation_serves_in_training(tmp_path: Path, procs: int) -> None:
    result = train(
        KeepsATensor(FEATURES, CLASSES), tmp_path / "run", procs=procs, epochs=3, val=examples(32), batch_size=BATCH
    )
    assert (result.state, result.restarts, result.updates) == ("succeeded", 0, 12)


def test_a_skipped_batch_leaves_no_trace_in_running_averages(tmp_path: Path) -> None:
    whole = examples(6)
    x, y = whole.tensors
    x[2 * BATCH, 0] = 2e3
    rest = TensorDataset(torch.cat([x[: 2 * BATCH], x[3 * BATCH :]]), torch.cat([y[: 2 * BATCH], y[3 * BATCH :]]))
    skipping, innocent = normed(float("nan")), normed(0.0)
    result = train(skipping, tmp_path / "skipping", whole)
    train(innocent, tmp_path / "innocent", rest)
    assert result.leases["skipped"] == 1
    assert int(skipping.norm.num_batches_tracked) == 5
    assert same_bits(skipping, innocent)


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_with_one_worker_an_overflow_does_not_depend_on_when_training_pauses(tmp_path: Path, procs: int) -> None:
    """A finite loss, an infinite running variance: the plain loop keeps it, and so do we, paused or not."""
    data = examples(6)
    data.tensors[0][2 * BATCH, 0] = 2e3
    undisturbed, paused = normed(3e38), normed(3e38)
    assert train(undisturbed, tmp_path / "undisturbed", data, procs=procs).leases["skipped"] == 0
    train(paused, tmp_path / "paused", data, procs=procs, checkpoint={"every_updates": 1})
    assert torch.isinf(undisturbed.norm.running_var).any()
    assert same_bits(undisturbed, paused)


# ---- settings of torch that are the whole process's ------------------------------------------------------------------


def settings_here() -> list[float]:
    return [
        torch.finfo(torch.get_default_dtype()).bits,
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.get_float32_matmul_precision() == "medium",
        torch.backends.mkldnn.enabled,
        torch.backends.cuda.flash_sdp_enabled(),
        torch.is_anomaly_enabled() + 2 * torch.is_anomaly_check_nan_enabled(),
    ]


OTHERS = {"dtype": "bfloat16", "float32_matmul_precision": "high", "deterministic": 2}
OTHERS["anomaly"] = [True, False]
UNTRIED = set() if torch.backends.opt_einsum.is_available() else {"backends.opt_einsum.enabled"}


@pytest.mark.parametrize("name", sorted(torch_settings.SETTINGS.keys() - UNTRIED))
def test_a_setting_of_torch_is_read_in_one_process_and_set_in_another(name: str) -> None:
    before = torch_settings.current()
    other = OTHERS.get(name, "tf32" if name.endswith("fp32_precision") and before[name] != "tf32" else "ieee")
    try:
        torch_settings.SETTINGS[name][1](not before[name] if isinstance(before[name], bool) else other)
        sent = json.loads(json.dumps(torch_settings.current()))
        assert sent != before
        torch_settings.apply(before)
        assert torch_settings.current() == before
        torch_settings.apply(sent)
        assert torch_settings.current() == sent
    finally:
        torch_settings.apply(before)


class Notices(nn.Linear):
    """Keeps under which settings it was trained."""

    found: Tensor

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("found", torch.zeros(7))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.found.copy_(torch.tensor(settings_here()))
        return super().forward(x)


class MadeWhenRead(Dataset):
    """Numbers of the default dtype of the process that reads them."""

    def __len__(self) -> int:
        return 8 * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        assert settings_here()[1:] == [1, False, True, False, False, 1]
        return torch.tensor([index / 7 % 1, 0.1, -0.3, 1 / 3]), torch.tensor(index % CLASSES)


@pytest.fixture
def other_settings() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_deterministic_debug_mode("default")
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.enabled = True
    torch.backends.cuda.enable_flash_sdp(True)
    torch.autograd.set_detect_anomaly(False, check_nan=True)


@pytest.mark.processes
@pytest.mark.whole
@pytest.mark.usefixtures("other_settings")
def test_workers_and_loaders_compute_under_the_callers_settings_of_torch(tmp_path: Path) -> None:
    """With Adam, whose `step` is of the default dtype where that is double."""
    torch.manual_seed(0)
    ours = Notices()
    plain = copy.deepcopy(ours)
    data = MadeWhenRead()
    rule = optim.Adam(ours.parameters())
    options: dict[str, Any] = {
        "procs": 1,
        "threads": 1,
        "batch_size": BATCH,
        "shuffle": "none",
        "feed": "stream",
        "epochs": 2,
    }
    hogwild.train(ours, data, nn.CrossEntropyLoss(), rule, run_dir=tmp_path / "run", **options)
    stock = optim.Adam(plain.parameters())
    for start in [*range(0, len(data), BATCH)] * 2:
        rows = [data[start + row] for row in range(BATCH)]
        stock.zero_grad()
        nn.functional.cross_entropy(
            plain(torch.stack([x for x, _ in rows])), torch.stack([y for _, y in rows])
        ).backward()
        stock.step()
    assert ours.found.tolist() == settings_here()
    assert same_bits(ours, plain)
    assert [float(own["step"]) for own in rule.state.values()] == [16, 16]
