"""What is replayed on a device, what is not, and why: with graphs that record operations below autograd and do them
again on the same tensors, as a GPU does (`helpers/simulated_gpu.py`). Whatever happens, a run with graphs has the bits
of one without."""

import copy
import os
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from hogwild.feeds.device_feed import SLOTS, DeviceFeed
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.parameters.exchange import Replica
from hogwild.parameters.worker_model import WorkerModel
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.training import update_graphs
from hogwild.training.autograd_update import DeviceUpdate
from hogwild.training.update_graphs import AFTER, FIRST_CHECK, Done, Graphs, _agrees, python_state, same_state
from tests.helpers.simulated_gpu import Simulated
from tests.shared_model import (
    build,
    one_thread,  # noqa: F401 (a fixture for every test here)
)

SAMPLES, BATCH = 100, 8  # 13 batches, the last of 4
SGD = lambda params: optim.SGD(params, lr=0.1)  # noqa: E731
RULES: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": SGD,
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda params: optim.Adam(params, lr=0.01),
    "foreach AdamW": lambda params: optim.AdamW(params, lr=0.01, foreach=True),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.01),
    "named": lambda params: optim.SGD([(str(n), p) for n, p in enumerate(params)], lr=0.1, momentum=0.9),
}


class Small(nn.Module):
    """Convolution, running averages, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop, self.out = (
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.Dropout(0.3),
            nn.Linear(144, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


class Trained:
    """What one worker made of `updates` updates on a device, by default a simulated one. Each has `accumulate` batches;
    `rate(number)` is the factor of its rate; `before(number, batch)` is called before it."""

    def __init__(
        self,
        kind: Callable[[], nn.Module] = Small,
        rule: Callable[..., optim.Optimizer] = SGD,
        *,
        graphs: bool = True,
        updates: int = 150,
        accumulate: int = 1,
        clip: float | None = None,
        rate: Callable[[int], float] = lambda number: 0.9,
        before: Callable[[int, Any], None] = lambda number, batch: None,
        precision: str = "fp32",
        device: Any = None,
    ) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        model, self.device = kind(), device or Simulated(0)
        shared = build(model, rule(model.parameters()))
        worker = WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(self.device))
        assert worker.replica is not None
        worker.start()
        update = DeviceUpdate(worker, grad_clip=clip, graphs=graphs, precision=precision)
        fields = [torch.rand(SAMPLES, 1, 8, 8), torch.arange(SAMPLES) % 5]
        pins, plan = worker.replica.pins, BatchPlan(SAMPLES, BATCH)
        host = ResidentFeed(ResidentData.from_tensors("data", fields), plan, seed=1, order="full")
        feed = DeviceFeed([host.into(pins.empty(host.slot_nbytes)) for _ in range(SLOTS)], self.device, pins)
        self.losses, self.finite, last = list[float](), list[bool](), updates * accumulate
        for number in range(updates):
            worker.keep_buffers()
            for batch in range(number * accumulate, (number + 1) * accumulate):
                given = feed.gather(*divmod(batch, plan.batches))
                before(number, given)
                self.device.generator.manual_seed(batch)
                update.backward(given.inputs, given.target, 1 / accumulate)
                if batch + 1 < last:
                    feed.prefetch(*divmod(batch + 1, plan.batches))
            self.losses.append(update.late_losses)
            self.finite.append(update.is_finite())
            if self.finite[-1]:
                update.apply(rate(number))
            else:
                update.discard()
                worker.restore_buffers()
            if number % 7 == 0:
                worker.exchange.flush()
        worker.exchange.flush()
        worker.rest()
        found = copy.deepcopy(shared.snapshot())
        self.snapshot, self.replays = (found["model"], found["optimizer"]["state"]), update.replays
        self.why, self.drawn = update._graphs.stopped, torch.rand(3)
        worker.close()

    def assert_same(self, other: "Trained") -> None:
        """To the bit: losses, parameters, buffers, the optimizer's state, the random state."""
        torch.testing.assert_close(self.losses, other.losses, rtol=0, atol=0, equal_nan=True)
        assert self.finite == other.finite and torch.equal(self.drawn, other.drawn)
        torch.testing.assert_close(self.snapshot, other.snapshot, rtol=0, atol=0, equal_nan=True)


def both(**settings: Any) -> Trained:
    """Train with graphs, check that it is the same without, and return the first."""
    ours, plain = Trained(**settings), Trained(graphs=False, **settings)
    assert plain.replays == plain.device.calls["capture"] == 0
    ours.assert_same(plain)
    return ours


def do(action: Callable[..., object], *arguments: Any) -> None:
    action(*arguments)


# ---- the same as without, to the bit --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (3, 0.5)])
def test_an_update_that_is_replayed_is_the_same_to_the_bit(rule: str, accumulate: int, clip: float | None) -> None:
    ours = both(rule=RULES[rule], accumulate=accumulate, clip=clip)
    applied = rule in ("SGD", "momentum", "Adam", "named")  # others have counters on the host
    assert ours.why is None and ours.replays > 150 * (0.7 * accumulate + 0.5 * applied)
    assert ours.device.calls["replay"] >= ours.replays


@pytest.mark.parametrize(
    ("rate", "captures"),
    [
        (lambda number: 1 - number / 200, 2),  # another one for each update: applied without a graph
        (lambda number: 0.5 ** (number // 50), 5),  # a step: captured again
    ],
)
def test_a_rate_is_never_that_of_another_update(rate: Callable[[int], float], captures: int) -> None:
    assert both(rate=rate, rule=RULES["momentum"]).device.calls["capture"] == captures


def test_what_is_not_finite_is_skipped_and_what_is_too_large_is_clipped_under_replay() -> None:
    def spoil(number: int, batch: Any) -> None:
        if number in (17, 18, 40, 90):  # the first two: while it is tried
            batch.inputs[0][0, 0, 0, 0] = float("nan")
        elif number in (50, 60):
            batch.inputs[0].mul_(1e4)

    ours = both(before=spoil, clip=0.1)
    assert [number for number, finite in enumerate(ours.finite) if not finite] == [17, 18, 40, 90]
    assert ours.why is None and ours.replays > 200


class Branching(Small):
    """One branch is not used in batches of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        shown = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.out(shown) + (self.side(shown) if len(x) == BATCH else 0)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("rule", ["momentum", "Adam"])
def test_parameters_that_only_some_batches_use_are_left_alone_by_the_others(rule: str, accumulate: int) -> None:
    ours = both(kind=Branching, rule=RULES[rule], accumulate=accumulate)
    assert ours.why is None and ours.replays > 50


WORKS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "", "", "nan", "forget", "input"])), max_size=120
)


@given(steps=WORKS, check=st.sampled_from([1, 5, 1000]), after=st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_any_order_of_parts_does_what_they_do_alone(steps: list[tuple[str, str]], check: int, after: int) -> None:
    def made(graphs: bool) -> tuple[list[Tensor], int]:
        memory, given, total, noise = torch.zeros(4), torch.ones(4), torch.zeros(()), torch.zeros(4)
        works: dict[str, Callable[[], None]] = {
            "a": lambda: (memory.mul_(0.9).add_(given * 2), None)[1],
            "b": lambda: (noise.copy_(torch.rand(4)), memory.add_(noise), None)[2],
            "c": lambda: (total.add_(memory.sum()), memory.sub_(total * 1e-3), None)[2],
        }
        chosen = Graphs(Simulated(0), (), lambda sentence: None)
        if not graphs:
            chosen.stop("")
        torch.manual_seed(0)
        values = []
        for name, event in steps:
            if event == "forget":
                chosen.forget()
            elif event:
                given[0] = float("nan") if event == "nan" else len(values)
            chosen.run(name, works[name], lambda: [memory, total, noise])
            values.append(torch.cat([memory, noise, total.view(1)]))
        return values, chosen.replays

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_graphs, "FIRST_CHECK", check)
        patch.setattr(update_graphs, "AFTER", after)
        (ours, replays), (plain, none) = made(True), made(False)
    torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)
    assert none == 0 and replays <= len(steps)


# ---- what runs as it is, and why ------------------------------------------------------------------------------------


class Counting(Small):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + self.calls % 2)


class Remembering(Small):
    """A hidden state that is carried along."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        out = out if self.last is None else out + self.last.mean()
        self.last = out.detach()
        return out


class Listing(Small):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[int]] = {"sizes": []}

    def forward(self, x: Tensor) -> Tensor:
        self.kept["sizes"].append(len(x))
        return super().forward(x) * len(self.kept["sizes"])


calls = [0]


def scale() -> float:
    calls[0] += 1
    return 1.0 + calls[0] % 3


class Calling(Small):
    """A global, in a function that forward calls."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * scale()


class OfClass(Small):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return super().forward(x) * (1 + self.calls % 2)


class Hooked(Small):
    def __init__(self) -> None:
        super().__init__()
        self.conv.register_forward_hook(Hook())


class Hook:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, given: Any, out: Tensor) -> Tensor:
        self.calls += 1
        return out * (1 + self.calls % 2)


class Drawing(Small):
    """Stochastic depth, drawn by Python."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + (random.random() < 0.5))


class DrawingByNumpy(Small):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + int(np.random.randint(2)))


class DrawingByItsOwn(Small):
    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(self.draw.random())


class Waiting(Small):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.mean().item() > 0.5 else 1.0)


class Choosing(Small):
    """Shapes that depend on values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[x > 0.5].mean()


CHANGES = "a forward pass changes what the model"
DRAWS = "draws random numbers on the host"
FAILED = "capturing failed: simulated device: "


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Counting, CHANGES),
        (Remembering, CHANGES),
        (Listing, CHANGES),
        (Calling, CHANGES),
        (OfClass, CHANGES),
        (Hooked, CHANGES),
        (DrawingByItsOwn, CHANGES),
        (Drawing, DRAWS),
        (DrawingByNumpy, DRAWS),
        (Waiting, f"{FAILED}aten._local_scalar_dense"),
        (Choosing, f"{FAILED}aten.index"),
    ],
)
def test_a_model_that_cannot_be_replayed_runs_as_it_is_and_the_log_says_why(
    kind: type[nn.Module], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for graphs in (True, False):
        calls[0], OfClass.calls = 0, 0
        results.append(Trained(kind, graphs=graphs, updates=60))
    results[0].assert_same(results[1])
    assert results[0].why is not None and why in results[0].why and results[0].replays == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 and said[0].startswith("simulated:0: updates are not replayed as graphs: ")


def test_one_that_is_replayed_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    Trained(updates=60)
    assert capsys.readouterr().out == "simulated:0: updates are replayed as graphs\n"


@pytest.mark.parametrize("options", [{"forward": lambda x: x}, {"loss_names": ("kl",)}])
def test_what_python_keeps_from_batch_to_batch_is_not_captured(options: dict[str, Any]) -> None:
    model = Small()
    shared = build(model, SGD(model.parameters()))
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(Simulated(0)))
    assert DeviceUpdate(worker, grad_clip=None, **options)._graphs.stopped
    worker.close()


class Elsewhere(Small):
    """What it depends on is nowhere to be seen."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(os.environ["FACTOR"])


def test_a_change_that_nobody_can_see_is_found_by_the_next_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FACTOR", "1")
    changes = 20  # while the first graph is trusted

    def change(number: int, batch: Any) -> None:
        if number == changes:
            monkeypatch.setenv("FACTOR", "2")

    ours = Trained(Elsewhere, before=change, updates=2 * (AFTER + FIRST_CHECK) + 20)
    assert ours.why == "a replay does not do what the model does" and 0 < ours.replays < 100
    assert "not replayed as graphs: a replay does not do" in capsys.readouterr().out


class Tempered(Small):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def test_a_model_that_others_change_is_captured_again_at_the_next_trial() -> None:
    device, model, memory = Simulated(0), Tempered(), torch.zeros(())
    graphs, said = Graphs(device, (model,), lambda sentence: None), []
    for number in range(200):
        if number == 60:
            model.factor = 3.0
        said.append(graphs.run("it", lambda: do(memory.add_, model.factor), lambda: [memory]))
    assert graphs.stopped is None and device.calls["capture"] == 2
    assert said[:AFTER] == [Done.RAN] * AFTER and said[AFTER] is Done.TRIED and said[-1] is Done.REPLAYED
    before = float(memory)
    graphs.run("it", lambda: do(memory.add_, model.factor), lambda: [memory])
    assert float(memory) == before + 3.0


def test_memory_that_runs_out_in_a_trial_costs_the_graphs_and_nothing_else() -> None:
    device, memory = Simulated(0), torch.zeros(())
    graphs = Graphs(device, (), lambda sentence: None)

    def work() -> None:
        memory.add_(1)
        if device._recording is not None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    for _ in range(30):
        graphs.run("it", work, lambda: [memory])
    assert (
        float(memory) == 30.0 and graphs.stopped == "capturing failed: CUDA out of memory. Tried to allocate 2.00 GiB"
    )


def test_a_trial_ends_with_the_results_of_its_first_run() -> None:
    """Where runs differ a little, in a way that nobody can see."""
    device, memory, calls = Simulated(0), torch.zeros((), dtype=torch.float64), count()
    graphs = Graphs(device, (), lambda sentence: None)
    for _ in range(AFTER):
        graphs.run("it", lambda: do(memory.add_, 1), lambda: [memory])
    assert graphs.run("it", lambda: do(memory.add_, 1 + 1e-4 * next(calls)), lambda: [memory]) is Done.TRIED
    assert next(calls) > 2 and float(memory) == AFTER + 1


class Drifting(Small):
    """Each call gives a little more than the one before, by a count that nobody can see."""

    def forward(self, x: Tensor) -> Tensor:
        os.environ["CALLS"] = str(calls := int(os.environ["CALLS"]) + 1)
        return super().forward(x) * (1 + 1e-5 * calls)


def test_the_loss_of_a_trial_is_that_of_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    device, captures = Simulated(0), list[int]()
    monkeypatch.setenv("CALLS", "0")
    ours = Trained(Drifting, device=device, before=lambda *_: captures.append(device.calls["capture"]), updates=60)
    monkeypatch.setenv("CALLS", "0")
    plain = Trained(Drifting, graphs=False, updates=60)
    first = captures.index(1)  # the update after the trial
    assert ours.losses[:first] == plain.losses[:first]


def test_a_part_that_was_refused_is_not_captured_again() -> None:
    device, memory = Simulated(0), torch.zeros(())
    graphs = Graphs(device, (), lambda sentence: None)
    graphs.refuse("it")
    done = {graphs.run("it", lambda: do(memory.add_, 1), lambda: [memory]) for _ in range(3 * AFTER)}
    assert done == {Done.RAN} and device.calls["capture"] == 0 and float(memory) == 3 * AFTER


def test_captures_are_few_however_many_shapes_there_are() -> None:
    device, memory = Simulated(0), torch.zeros(())
    graphs = Graphs(device, (), lambda sentence: None)
    for number in range(1000):
        graphs.run(number % 50, lambda: do(memory.add_, 1), lambda: [memory])
    assert float(memory) == 1000.0
    assert device.calls["capture"] == update_graphs.FREE + 1 and len(graphs._graphs) <= update_graphs.MOST


# ---- the verdict ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "again", "verdict"),
    [
        (1.0, 1.0, 1.0, True),
        (1.0, 1.0, 1.0005, True),  # sums in another order
        (1.0, 1.0, 1.01, False),
        (1.0, 1.0, 0.0, False),  # nothing was done
        (1.0, 1.0, 2.0, False),  # done twice
        (1.0, 1.1, 1.05, True),  # others write the parameters meanwhile
        (1.0, 3.0, 1.5, None),
        (float("nan"), float("nan"), float("nan"), None),
        (1.0, 1.0, float("nan"), False),
    ],
)
def test_a_replay_is_trusted_if_it_changes_what_two_runs_change(
    one: float, two: float, again: float, verdict: bool | None
) -> None:
    """As a change of `begun`, however large that is."""
    for begun in (0.0, 100.0):
        values = [[torch.full((3,), begun + value, dtype=torch.float64)] for value in (0.0, one, two, again)]
        assert _agrees(*values) is verdict


def test_a_count_must_be_the_same() -> None:
    begun, one, other = ([torch.tensor(value)] for value in (0, 1, 2))
    assert _agrees(begun, one, one, one) is True and _agrees(begun, one, one, other) is False


def test_the_state_of_python_is_the_same_until_something_changes() -> None:
    model = Counting()
    before = python_state(model)
    assert same_state(before, python_state(model))
    for change in (
        lambda: setattr(model, "calls", 1),
        lambda: model.eval(),
        lambda: setattr(model.drop, "p", 0.4),
        lambda: model.register_buffer("more", torch.zeros(1)),
        lambda: setattr(model.conv, "forward", lambda x: x),
    ):
        change()
        after = python_state(model)
        assert not same_state(before, after)
        before = after
    assert same_state([float("nan")], [float("nan")]) and not same_state([1], [True])


@pytest.fixture(autouse=True)
def random_state() -> Iterator[None]:
    kept = random.getstate(), np.random.get_state()
    yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])
