"""An update of a worker allocates nothing besides forward and backward. Counted by torch's own profiler. (torch
wraps each number it is given, a rate perhaps, in a tensor of 8 bytes; these are left out.)"""

from collections.abc import Callable

import pytest
import torch
from torch import nn, optim
from torch.autograd.profiler import profile

from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import (
    ConvNet,
    attach,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
)

A_NUMBER = 16  # bytes

RULES: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.1),
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: optim.Adam(params, lr=0.01),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.01),
}


def allocated(action: Callable[[], object]) -> int:
    """Bytes that operations inside `action` took from torch's allocator."""
    with profile(profile_memory=True, use_kineto=False) as recorded:
        action()
    taken = (event.self_cpu_memory_usage for event in recorded.function_events)
    return sum(nbytes for nbytes in taken if nbytes > A_NUMBER)


def test_the_count_sees_an_allocation() -> None:
    assert allocated(lambda: torch.ones(1000)) == 4000


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("state", ["private", "shared"])
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_checking_and_applying_an_update_allocates_nothing(rule: str, state: str, clip: float | None) -> None:
    model = ConvNet()
    worker = attach(build(model, RULES[rule](model.parameters()), state=state))
    update = AutogradUpdate(worker, grad_clip=clip)
    taken = []
    for x, y in images(4):
        update.backward((x,), y)
        taken.append(allocated(lambda: update.is_finite() and update.apply(None)))
    assert update.path.startswith("flat")
    assert taken[2:] == [0, 0]  # the first creates the rule's state, in both of what it then computes on


def test_gathering_a_batch_allocates_nothing() -> None:
    data = ResidentData.from_tensors("data", [torch.rand(100, 1, 12, 12), torch.randint(4, (100,))], channels_last=True)
    for order in ("full", "chunked", "none"):
        feed = ResidentFeed(data, BatchPlan(100, 8), seed=1, order=order)
        feed.gather(0, 0)
        feed.gather(0, 12)  # the last, smaller one
        assert allocated(lambda: [feed.gather(0, number) for number in range(13)]) == 0  # noqa: B023


def test_a_flush_allocates_nothing() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    worker = attach(build(model, optim.SGD(model.parameters(), lr=0.1)))
    worker.bind(delta=True)
    assert allocated(worker.exchange.flush) == 0
