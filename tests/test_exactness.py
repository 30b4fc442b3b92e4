"""The arithmetic of a whole job against a loop that anybody would write: one worker gives the same bits, several come
close to an optimum that is known."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.batches import BatchPlan, batch_seed, permutation_seed

SAMPLES, FEATURES, CLASSES, BATCH, EPOCHS, SEED = 203, 12, 4, 8, 3, 11

Rule = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, CLASSES))


def samples() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, FEATURES, generator=random), torch.randint(CLASSES, (SAMPLES,), generator=random)


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs, targets = samples()
    plan, loss_of = BatchPlan(SAMPLES, BATCH), nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(permutation_seed(SEED, epoch)))
        for batch in range(plan.batches):
            first, last = plan.positions(batch)
            chosen = order[first:last]
            torch.manual_seed(batch_seed(SEED, epoch, first))  # dropout
            optimizer.zero_grad()
            loss_of(model(inputs[chosen]), targets[chosen]).backward()
            optimizer.step()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The number of threads changes the order, and so the bits, of long sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(lambda params: torch.optim.SGD(params, lr=0.1), id="SGD"),
        pytest.param(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3), id="momentum"),
    ],
)
def test_one_worker_gives_the_bits_of_the_plain_loop(rule: Rule, tmp_path: Path) -> None:
    ours, plain = network(), network()
    optimizer = rule(ours.parameters())
    result = hogwild.train(
        ours,
        TensorDataset(*samples()),
        nn.CrossEntropyLoss(),
        optimizer,
        procs=1,
        threads=1,
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=SEED,
        run_dir=tmp_path / "run",
    )
    plain_optimizer = rule(plain.parameters())
    train_plainly(plain, plain_optimizer)
    assert result.updates == EPOCHS * -(-SAMPLES // BATCH)
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs), f"{name}: {(mine - theirs).abs().max()}"
    _same_state(optimizer, plain_optimizer)


def _same_state(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    mine, theirs = one.state_dict()["state"], other.state_dict()["state"]
    assert mine.keys() == theirs.keys()
    for number, state in theirs.items():
        for key, value in state.items():
            assert torch.equal(mine[number][key], value) if isinstance(value, Tensor) else mine[number][key] == value


def test_four_workers_come_close_to_the_known_optimum_of_least_squares(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(8)
    inputs = torch.randn(2000, 10, generator=random)
    targets = inputs @ torch.randn(10, 1, generator=random) + 0.1 * torch.randn(2000, 1, generator=random)
    optimum = torch.linalg.lstsq(inputs.double(), targets.double()).solution.float()
    model = nn.Linear(10, 1, bias=False)
    data = TensorDataset(inputs, targets)
    # Everybody parks for the evaluation after each epoch, so no update is older than that. Otherwise a worker that was
    # not scheduled for a while could add one of the first epoch's large steps at the end, when nothing mends it.
    result = hogwild.train(
        model,
        data,
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), lr=0.02),
        val=data,
        procs=4,
        threads=1,
        epochs=10,
        batch_size=20,
        lr_schedule={"name": "linear", "final_factor": 0.01},
        run_dir=tmp_path / "run",
    )
    assert result.updates == 1000
    # The rate falls to 2e-4, where the noise of SGD around the optimum is below 1e-3 a coordinate; ten times that is
    # left for staleness and lost updates. The weights begin at a distance of about 1 a coordinate.
    assert float((model.weight.detach() - optimum.T).abs().max()) < 0.01
