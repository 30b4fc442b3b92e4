"""State beside parameters, and data, of whole jobs: what two workers leave is what one process leaves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hogwild

pytestmark = pytest.mark.processes


class Stateful(nn.Module):
    """A norm over small numbers, an average of the user's, and counters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out, self.steps = nn.BatchNorm1d(2), nn.Linear(2, 1), 0
        self.register_buffer("average", torch.ones(2))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.total += len(x)
            self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.out(self.norm(x))


@pytest.mark.parametrize("exchange", ["direct", "delta"])
def test_running_statistics_of_two_workers_forget_their_start_as_one_process_does(
    exchange: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """107 updates, as in a job over small embeddings: 0.9 ** 53 of the start, 1, is six times the data's variance."""
    random = torch.Generator().manual_seed(0)
    x = 0.0245 * torch.randn(107 * 32, 2, generator=random)
    model = Stateful()
    result = hogwild.train(
        model,
        TensorDataset(x, x[:, :1].clone()),
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), 0.01),
        procs=2,
        batch_size=32,
        exchange=exchange,
        sync_every=4,
        run_dir=tmp_path / "run",
    )
    assert result.updates == model.norm.num_batches_tracked == 107
    assert float((model.norm.running_var - 0.0006).abs().max()) < 0.0002
    assert float(model.average.abs().max()) < 0.005
    assert float(model.total) == len(x)
    assert "a training forward changes Stateful.steps" in "".join(capfd.readouterr())


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index), float(torch.rand(()))]), torch.zeros(1)


class Recorder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)
        self.register_buffer("drawn", torch.zeros(40, 4))
        self.register_buffer("count", torch.zeros(40, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            rows = x[:, 0].long()
            self.drawn[rows, self.count[rows] % 4] = x[:, 1]
            self.count[rows] += 1
        return self.out(x)


@pytest.mark.parametrize("procs", [0, 1])
def test_every_epoch_is_drawn_anew_from_data_that_change(procs: int, tmp_path: Path) -> None:
    model = Recorder()
    settings: dict[str, Any] = {"procs": procs, "batch_size": 10, "epochs": 4, "run_dir": tmp_path / "run"}
    hogwild.train(model, Augmented(), nn.MSELoss(), torch.optim.SGD(model.parameters(), 1e-6), **settings)
    assert model.count.tolist() == [4] * 40
    assert len(model.drawn.unique()) == 160
