"""A worker's own parameters, state and buffers on a device, and how they come together in host memory: through a
device that is simulated."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from hogwild.errors import ModelError
from hogwild.parameters.exchange import Replica
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.autograd_update import AutogradUpdate, DeviceUpdate
from hogwild.training.place import WARNING, keep_weights
from tests.feeds.test_allocations import allocated
from tests.helpers import simulated_gpu as simulated
from tests.helpers.simulated_gpu import Simulated
from tests.shared_model import (
    Branches,
    ConvNet,
    Words,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    vectors,
)

Batches = Sequence[tuple[Tensor, Tensor]]

RULES: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.1),
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda params: optim.Adam(params, lr=0.01),
    "fused AdamW": lambda params: optim.AdamW(params, lr=0.01, fused=True),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.01),
    "NAdam": lambda params: optim.NAdam(params, lr=0.01),
}


@pytest.fixture(autouse=True)
def unlimited() -> Iterator[None]:
    yield
    simulated.limit_memory(None)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def word_batches(count: int) -> Batches:
    random = torch.Generator().manual_seed(0)
    return [
        (torch.randint(30, (6, 4), generator=random), torch.randint(3, (6,), generator=random)) for _ in range(count)
    ]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batches]]] = {
    "images": (ConvNet, images),
    "unused parameters": (Branches, vectors),
    "BatchNorm": (Normed, vectors),
    "sparse": (Words, word_batches),
}


def on_device(shared: SharedModel, worker: int = 0) -> tuple[WorkerModel, Simulated]:
    device = Simulated(worker)
    return WorkerModel.attach(shared.structure, shared.regions, worker, replica=Replica.on(device)), device


def made(make: Callable[[], nn.Module], rule: str, procs: int = 1) -> SharedModel:
    torch.manual_seed(0)
    model = make()
    return build(model, RULES[rule](model.parameters()), procs=procs)


def train(worker: WorkerModel, batches: Batches, clip: float | None = None, every: int = 4) -> AutogradUpdate:
    """`every` updates between two flushes."""
    worker.start()
    update = (DeviceUpdate if worker.replica is not None else AutogradUpdate)(worker, grad_clip=clip)
    for number, (x, y) in enumerate(batches, 1):
        update.backward((x,), y)
        assert update.is_finite()
        update.apply(0.9)
        if number % every == 0 and worker.replica is not None:
            worker.exchange.flush()
    if worker.replica is not None:
        worker.exchange.flush()
    worker.rest()
    return update


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", ["images", "unused parameters", "BatchNorm"])
def test_one_worker_on_a_device_does_what_it_does_on_the_cpu(model: str, rule: str, clip: float | None) -> None:
    """To the bit: parameters, buffers, optimizer state, as the parent finds them in shared memory."""
    make, batches = MODELS[model]
    results = []
    for is_on_device in (False, True):
        shared = made(make, rule)
        worker = on_device(shared)[0] if is_on_device else WorkerModel.attach(shared.structure, shared.regions, 0)
        update = train(worker, batches(9), clip)
        shared.merge_buffers([9])
        worker.close()
        results.append((update.path, shared.snapshot()))
    (path, ours), (other_path, theirs) = results
    assert path == other_path
    assert all(torch.equal(ours["model"][key], theirs["model"][key]) for key in ours["model"])
    mine, others = ours["optimizer"]["state"], theirs["optimizer"]["state"]
    assert mine.keys() == others.keys()
    for index, state in mine.items():
        assert all(torch.equal(torch.as_tensor(state[key]), torch.as_tensor(others[index][key])) for key in state)


def test_sparse_gradients_go_the_stock_way_on_a_device() -> None:
    """The compiled rows are the processor's; the rule itself is the same, but for rounding."""
    results = []
    for is_on_device in (False, True):
        shared = made(Words, "SGD")
        worker = on_device(shared)[0] if is_on_device else WorkerModel.attach(shared.structure, shared.regions, 0)
        train(worker, word_batches(6))
        worker.close()
        results.append({key: value.clone() for key, value in shared.model.state_dict().items()})
    for key, value in results[0].items():
        torch.testing.assert_close(value, results[1][key])


# ---- an update waits once, and takes nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 1e-3])
@pytest.mark.parametrize("rule", ["SGD", "momentum", "Adam", "fused AdamW"])
def test_an_update_waits_for_the_device_once_and_allocates_nothing(rule: str, clip: float | None) -> None:
    shared = made(ConvNet, rule, procs=2)
    worker, device = on_device(shared)
    update = DeviceUpdate(worker, grad_clip=clip)
    taken = []
    for number, (x, y) in enumerate(images(5)):
        update.backward((x,), y)
        waited, there = device.calls["synchronize"], device.allocations()
        taken.append(allocated(lambda: update.late_losses and update.is_finite() and update.apply(None)))
        if number > 1:
            assert (device.calls["synchronize"], device.allocations()) == (waited + 1, there)
    assert update.path.startswith("flat") and taken[2:] == [0, 0, 0]
    assert device.pageable == 0
    worker.close()


def test_the_losses_are_told_by_the_one_wait() -> None:
    worker, _ = on_device(made(ConvNet, "SGD"))
    update = DeviceUpdate(worker, grad_clip=None)
    plain = copy.deepcopy(worker.model)
    losses = [float(nn.functional.cross_entropy(plain(x), y).detach()) for x, y in images(2)]
    told = [update.backward((x,), y, 0.5) for x, y in images(2)]  # accumulated
    assert told == [0.0, 0.0] and update.late_losses == pytest.approx(sum(losses))
    update.discard()
    assert update.late_losses == 0.0


@pytest.mark.parametrize(("value", "is_finite"), [(float("nan"), False), (float("inf"), False), (3e19, True)])
def test_what_is_not_finite_is_seen_and_what_only_overflows_a_square_is_not(value: float, is_finite: bool) -> None:
    worker, _ = on_device(made(ConvNet, "SGD"))
    update = DeviceUpdate(worker, grad_clip=1.0)
    (x, y), *_ = images(1)
    update.backward((x,), y)
    worker.params[0].grad[0, 0, 0, 0] = value  # type: ignore[index]
    assert update.is_finite() is is_finite


def test_a_loss_that_is_not_finite_is_seen() -> None:
    worker, _ = on_device(made(ConvNet, "SGD"))
    update = DeviceUpdate(worker, grad_clip=None)
    (x, y), *_ = images(1)
    update.backward((x * float("inf"),), y)
    assert not update.is_finite()


# ---- the exchange ---------------------------------------------------------------------------------------------------


def test_what_two_workers_learnt_adds_up_in_the_flats() -> None:
    shared = made(ConvNet, "SGD", procs=2)
    before = [param.detach().clone() for param in shared.model.parameters()]
    (one, _), (other, _) = on_device(shared, 0), on_device(shared, 1)
    with torch.no_grad():
        for worker, step in ((one, 1.0), (other, 10.0)):
            for param in worker.params:
                param.add_(step)
    one.exchange.flush()
    other.exchange.flush()
    for param, start, seen in zip(shared.model.parameters(), before, other.params, strict=True):
        torch.testing.assert_close(param.detach(), start + 11.0)
        assert torch.equal(param, seen)
    one.exchange.refresh()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.params, other.params, strict=True))


def test_a_flush_allocates_nothing_and_moves_nothing() -> None:
    worker, device = on_device(made(ConvNet, "SGD", procs=2))
    exchange: Any = worker.exchange
    exchange.flush()

    def places() -> list[int]:
        copies = [part for copy in exchange._copies.values() for part in copy]
        return [tensor.data_ptr() for tensor in (*exchange._locals.values(), *copies, *exchange._host.values())]

    before, there = places(), device.allocations()
    assert allocated(exchange.flush) <= allocated_by_the_simulation(worker)
    assert (places(), device.allocations(), device.pageable) == (before, there, 0)


def allocated_by_the_simulation(worker: WorkerModel) -> int:
    """Return the bytes that the simulation allocates for a download until it is waited for."""
    return sum(span.numel * span.dtype.itemsize for span in worker.layout.flats.spans)


def test_frozen_parameters_are_there_and_stay() -> None:
    torch.manual_seed(0)
    model = ConvNet()
    model.conv1.requires_grad_(False)
    shared = build(model, optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), procs=2)
    before = model.conv1.weight.detach().clone()
    worker, _ = on_device(shared)
    train(worker, images(3))
    assert torch.equal(worker.model.conv1.weight, before) and torch.equal(model.conv1.weight, before)
    assert same_bits(worker.model, model)


def test_a_parameter_that_is_moved_off_the_device_is_found() -> None:
    worker, _ = on_device(made(ConvNet, "SGD", procs=2))
    worker.check_bound()
    worker.params[0].data = worker.params[0].data.clone()
    with pytest.raises(ModelError, match=r"memory of parameter conv1\.weight was replaced"):
        worker.check_bound()


# ---- what a crash costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["momentum", "Adam", "fused AdamW"])
def test_a_replacement_inherits_the_state_of_the_last_pause_and_none_before_the_first(rule: str) -> None:
    shared = made(ConvNet, rule)
    worker, _ = on_device(shared)
    train_without_rest(worker, images(3))
    early, _ = on_device(shared)
    assert not early.optimizer.state, "half a state would be worse than none"
    worker.rest()
    inherited, _ = on_device(shared)
    train_without_rest(worker, images(2))
    state, kept = worker.optimizer.state, inherited.optimizer.state
    assert len(kept) == len(state) == 8
    for (_, now), (_, then) in zip(state.items(), kept.items(), strict=True):
        assert "step" not in then or float(then["step"]) == 3.0 < float(now["step"])
        assert all(torch.isfinite(torch.as_tensor(value)).all() for value in then.values())


def train_without_rest(worker: WorkerModel, batches: Batches) -> None:
    worker.start()
    update = DeviceUpdate(worker, grad_clip=None)
    for x, y in batches:
        update.backward((x,), y)
        update.apply(None)


def test_buffers_go_home_in_a_pause_and_come_back_merged() -> None:
    shared = made(Normed, "SGD", procs=2)
    workers = [on_device(shared, k)[0] for k in range(2)]
    for k, worker in enumerate(workers):
        train_without_rest(worker, vectors(2, seed=k))
        worker.rest()
    own = [worker.model.norm.running_mean.clone() for worker in workers]  # type: ignore[union-attr]
    shared.merge_buffers([2, 2])
    for worker in workers:
        worker.start()
        # Four batches have forgotten the start, which is 0, by 0.9 ** 4; each worker's two by 0.9 ** 2.
        expected = (own[0] + own[1]) / 2 * (1 - 0.9**4) / (1 - 0.9**2)
        torch.testing.assert_close(worker.model.norm.running_mean, expected)  # type: ignore[union-attr]
        assert worker.model.norm.num_batches_tracked == 4  # type: ignore[union-attr]


def test_a_worker_at_rest_does_not_overwrite_what_the_parent_merged() -> None:
    shared = made(Normed, "SGD", procs=2)
    worker, _ = on_device(shared)
    train_without_rest(worker, vectors(2))
    worker.rest()
    shared.merge_buffers([2, 0])
    merged = shared.regions["buffers"].array("u1", (shared.regions["buffers"].nbytes,)).copy()
    worker.rest()  # it leaves
    assert (shared.regions["buffers"].array("u1", (shared.regions["buffers"].nbytes,)) == merged).all()


def test_a_worker_that_was_made_before_a_pause_it_had_no_part_in_begins_with_what_was_merged() -> None:
    """It was still starting then. On the CPU its buffers are the words that the parent writes."""
    shared = made(Normed, "SGD", procs=2)
    (early, _), (late, _) = on_device(shared, 0), on_device(shared, 1)
    train_without_rest(early, vectors(2))
    early.rest()
    shared.merge_buffers([2, 0])
    late.rest()  # it parks before it has trained anything
    train_without_rest(late, vectors(1))
    late.rest()
    shared.merge_buffers([0, 1])
    assert shared.model.norm.num_batches_tracked == 3  # type: ignore[union-attr]


def test_where_there_is_no_room_nothing_stays_pinned() -> None:
    shared = made(ConvNet, "Adam")
    simulated.limit_memory(4000)
    device = Simulated(0)
    with pytest.raises(simulated.SimulatedOutOfMemory) as raised:
        WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(device))
    assert not device.registered
    known = device.explain(raised.value)
    assert known is not None and known.code == "device/memory"
    assert "GPU out of memory: simulated:0: " in str(known) and "of 3.9 KiB free" in str(known)
    assert device.explain(ValueError()) is None


# ---- recurrent layers -----------------------------------------------------------------------------------------------


def test_weights_of_recurrent_layers_are_not_flattened_out_of_the_flat() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 5, num_layers=2), "out": nn.Linear(5, 2)})
    (said,) = keep_weights(model)
    assert "the weights of rnn stay in the shared memory" in said
    places = [param.data_ptr() for param in model.parameters()]
    model["rnn"].flatten_parameters()  # type: ignore[operator]
    assert places == [param.data_ptr() for param in model.parameters()]
    assert keep_weights(nn.Linear(2, 2)) == [] and WARNING.startswith("RNN module weights")
