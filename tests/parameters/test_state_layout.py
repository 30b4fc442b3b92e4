"""Optimizer state in shared memory: inherited, shared, and what rules keep besides tensors."""

import copy
import ctypes
import functools
import mmap
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import hogwild
from hogwild import host
from hogwild.config.load import load_job
from hogwild.data import Digits
from hogwild.errors import MemoryShortError, OptimizerError
from hogwild.formatting import size
from hogwild.host import Cores
from hogwild.models import Mlp
from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.parameters import optimizer_state as steps
from hogwild.parameters.flat_layout import plan_flats
from hogwild.parameters.optimizer_state import dry_step, plan_state
from hogwild.planning.cpu_plan import MachineFacts
from hogwild.planning.job_plan import JobFacts, optimizer_state_of, plan_job
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.training.autograd_update import AutogradUpdate
from tests.jobs.late import LateLoss
from tests.shared_model import (
    Branches,
    ConvNet,
    Words,
    attach,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    side_by_side,
    train,
    train_plainly,
    updating,
    vectors,
)


class Counting(optim.Optimizer):
    """Keeps a Python number per parameter, one per group, an attribute, and a tensor it replaces at every step."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "k": 0})
        self.sharpness = 2.0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["count"], state["slow"], state["first"] = 0, param.clone(), True
                state["count"] += 1
                state["slow"] = state["slow"] + (param - state["slow"]) / (group["k"] + self.sharpness)
                state["first"] = False
                param.sub_(param.grad + 0.01 * (param - state["slow"]) * state["count"], alpha=group["lr"])


RULES = {
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.9),
    "adam": functools.partial(optim.Adam, fused=False),
    "adafactor": optim.Adafactor,
    "counting": Counting,
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_replacement_goes_on_with_the_state_of_the_dead(rule):
    batches = images(10)
    ours, plain, _ = side_by_side(ConvNet, rule, batches)
    torch.manual_seed(0)
    again = ConvNet()
    shared = build(again, rule(again.parameters()))
    for part in (batches[:1], batches[1:4], batches[4:]):  # three incarnations
        train(updating(shared), part)
    assert same_bits(again, ours)
    assert same_bits(again, plain)


def test_state_of_workers_is_their_own():
    model = nn.Linear(5, 2)
    shared = build(model, optim.SGD(model.parameters(), 0.1, momentum=0.9), procs=2)
    train(updating(shared, 0), vectors(2))
    assert attach(shared, 1).optimizer.state_dict()["state"] == {}
    assert set(attach(shared, 0).optimizer.state_dict()["state"]) == {0, 1}


def test_shared_state_is_everybodys():
    torch.manual_seed(0)
    model, batches = ConvNet(), images(8)
    shared = build(model, optim.Adam(model.parameters(), fused=False), procs=2, state="shared")
    updates = [updating(shared, 0), updating(shared, 1)]
    for i, batch in enumerate(batches):
        train(updates[i % 2], [batch])
    ours, _, _ = side_by_side(ConvNet, functools.partial(optim.Adam, fused=False), batches)
    assert same_bits(model, ours)


def test_tensor_state_lies_in_the_region_and_keeps_the_parameters_strides():
    model = ConvNet()
    worker = attach(build(model, optim.Adam(model.parameters())))
    train(AutogradUpdate(worker, grad_clip=None), images(1))
    for param in worker.params:
        state = worker.optimizer.state[param]
        assert all(value.is_shared() for value in state.values())
        assert state["exp_avg"].stride() == param.stride()


def test_steps_of_all_parameters_count_over_the_flat():
    model = ConvNet()
    worker = attach(build(model, optim.Adam(model.parameters())))
    train(AutogradUpdate(worker, grad_clip=None), images(5))
    assert [float(worker.optimizer.state[p]["step"]) for p in worker.params] == [5.0] * 8


def test_unequal_use_counts_steps_per_parameter():
    model = Branches()
    worker = attach(build(model, optim.Adam(model.parameters())))
    train(AutogradUpdate(worker, grad_clip=None), [(x.abs() + 1, y) for x, y in vectors(4)])
    steps = {name: worker.optimizer.state[p].get("step") for name, p in worker.model.named_parameters()}
    assert float(steps["left.weight"]) == float(steps["out.bias"]) == 4.0
    assert steps["right.weight"] is None


def test_the_users_own_state_is_taken_over_by_every_worker():
    torch.manual_seed(0)
    plain, batches = nn.Linear(5, 2), vectors(6)
    rule = optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    train_plainly(plain, rule, batches[:3])
    ours = nn.Linear(5, 2)
    ours.load_state_dict(plain.state_dict())
    own = optim.SGD(ours.parameters(), 0.1, momentum=0.9)
    own.load_state_dict(rule.state_dict())
    shared = build(ours, own, procs=2)
    first, second = attach(shared, 0).optimizer.state_dict(), attach(shared, 1).optimizer.state_dict()
    assert torch.equal(first["state"][0]["momentum_buffer"], second["state"][0]["momentum_buffer"])
    train(updating(shared, 1), batches[3:])
    train_plainly(plain, rule, batches[3:])
    assert same_bits(ours, plain)


def test_the_dry_step_leaves_everything_as_it_was():
    model = ConvNet()
    rule = Counting(model.parameters())
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    state, numbers = dry_step(rule, set())
    assert numbers == [(0, "k", 1)]
    assert state[0]["count"] == 1
    assert all(torch.equal(value, before[k]) for k, value in model.state_dict().items())
    assert rule.param_groups[0]["k"] == 0
    assert not rule.state
    assert torch.equal(torch.get_rng_state(), random)
    assert all(param.grad is None for param in model.parameters())


STOCK = {
    "sgd": functools.partial(optim.SGD, lr=0.1, momentum=0.9),
    "adam": functools.partial(optim.Adam, amsgrad=True, foreach=True),
    "asgd": optim.ASGD,
    "adadelta": optim.Adadelta,
    "adagrad": functools.partial(optim.Adagrad, initial_accumulator_value=0.5),
    "adafactor": optim.Adafactor,
    "rprop": optim.Rprop,
    "nadam": optim.NAdam,
    "counting": Counting,
}


@pytest.mark.parametrize("rule", STOCK)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("has_trained", [False, True])
def test_a_model_that_is_tried_in_portions_is_planned_as_one_that_is_tried_whole(
    rule, shared, has_trained, monkeypatch
):
    torch.manual_seed(0)
    model = ConvNet()
    model.hidden.bias.requires_grad_(False)
    first, *rest = model.parameters()
    optimizer = STOCK[rule]([{"params": [first]}, {"params": rest}])
    if has_trained:
        train_plainly(model, optimizer, images(2))

    def plan():
        return plan_state(model, plan_flats(model, optimizer), optimizer, shared=shared)

    whole, initial = plan()
    monkeypatch.setattr(steps, "PORTION", 500)
    tried = []
    monkeypatch.setattr(steps, "_step_with_zeros", noted(steps._step_with_zeros, tried))
    pieces, again = plan()
    assert (len(tried) == 1) == (rule == "counting"), "a rule of the user's may look at all parameters together"
    assert pieces == whole
    assert initial.keys() == again.keys()
    for i, own in initial.items():
        assert own.keys() == again[i].keys()
        assert all(torch.equal(torch.as_tensor(own[key]), torch.as_tensor(again[i][key])) for key in own)


def noted(step, tried):
    def call(rule, params, places):
        tried.append(len(params))
        step(rule, params, places)

    return call


def peak_bytes(what):
    """Return the further memory that the process has had at once while it did this. What is freed is given back at
    once."""
    assert ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    kept = what()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    del kept
    return int(peak) * 1024 - before


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
def test_the_dry_step_takes_no_more_memory_than_is_asked_for(foreach, monkeypatch):
    monkeypatch.setattr(steps, "PORTION", 16 << 20)
    params = [nn.Parameter(torch.zeros(1 << 20)) for _ in range(24)]
    rule = optim.Adam(params, foreach=foreach)
    assert steps.trial_bytes(rule) == 6 * (16 << 20)
    assert peak_bytes(lambda: dry_step(rule, set())) < steps.trial_bytes(rule) + (24 << 20)


class Ours(optim.Adam):
    """An optimizer of the user's: all parameters are tried at once."""

    steps = 0

    def step(self, closure=None):
        Ours.steps += 1
        return super().step(closure)


def test_a_trial_step_for_which_memory_is_short_is_not_made(tmp_path, monkeypatch):
    model = nn.Linear(1 << 10, 1 << 10)
    needed = 6 * sum(param.nbytes for param in model.parameters())
    data = TensorDataset(torch.zeros(2, 1 << 10), torch.zeros(2, dtype=torch.long))
    monkeypatch.setattr(host, "available_memory", lambda: host.Memory(needed - 1, "a test"))
    with pytest.raises(MemoryShortError, match=f"of memory.* only {size(needed - 1)} are free \\(a test\\)"):
        hogwild.train(model, data, nn.CrossEntropyLoss(), Ours(model.parameters()), procs=0, run_dir=tmp_path / "run")
    assert Ours.steps == 0


def test_a_rule_that_fails_in_the_dry_step_is_named_with_its_reason():
    model = nn.Linear(5, 2)
    with pytest.raises(OptimizerError, match=r"SparseAdam failed .*dense gradients"):
        build(model, optim.SparseAdam(model.parameters()))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (optim.Adam, {"step": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}),
        (optim.NAdam, {"step": 0.0, "mu_product": 1.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}),
        (optim.Adamax, {"step": 0.0, "exp_avg": 0.0, "exp_inf": 0.0}),
        (functools.partial(optim.Adagrad, initial_accumulator_value=0.5), {"step": 0.0, "sum": 0.5}),
        (functools.partial(optim.SGD, momentum=0.9, weight_decay=0.1), {"momentum_buffer": 0.0}),
    ],
)
def test_shared_state_starts_from_the_rules_initial_values(rule, expected):
    model = nn.Linear(3, 2)
    optimizer = rule(model.parameters())
    _, initial = plan_state(model, plan_flats(model, optimizer), optimizer, shared=True)
    assert initial.keys() == {0, 1}
    for own in initial.values():
        assert {key: set(value.flatten().tolist()) for key, value in own.items()} == {
            key: {value} for key, value in expected.items()
        }


def test_a_scalar_parameter_does_not_confuse_its_step_with_its_moments():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            return self.scale * x + self.shift

    ours, plain, _ = side_by_side(Scale, functools.partial(optim.Adam, fused=False), vectors(6, features=2))
    assert same_bits(ours, plain)


# ---- workers that come late ------------------------------------------------------------------------------------------

LATE_RULES = RULES | {
    "adagrad": functools.partial(optim.Adagrad, fused=False),
    "adamw": functools.partial(optim.AdamW, fused=False),
    "rmsprop": functools.partial(optim.RMSprop, centered=True),
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "adamax": optim.Adamax,
    "adadelta": optim.Adadelta,
    "row-wise adagrad": RowWiseAdagrad,
    "ftrl": FTRL,
}


def begun(shared, worker):
    """A worker's updates, once it has been given its first item."""
    attached = attach(shared, worker)
    update = AutogradUpdate(attached, grad_clip=None)
    if attached.start():
        update.start_at(0)
    return update


def cold(rule=optim.Adagrad, procs=2, make=ConvNet):
    torch.manual_seed(0)
    model = make()
    return build(model, rule(model.parameters()), procs=procs)


@pytest.mark.slow
@pytest.mark.parametrize("rule", LATE_RULES.values(), ids=LATE_RULES.keys())
def test_a_worker_that_comes_late_goes_on_from_the_state_of_the_others(rule):
    """To the bit: one worker, and after it another one, are the plain loop."""
    torch.manual_seed(0)
    ours, batches = ConvNet(), images(12)
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)
    shared = build(ours, rule(ours.parameters()), procs=2)
    train(begun(shared, 0), batches[:8])
    train(begun(shared, 1), batches[8:])
    train_plainly(plain, rule(plain.parameters()), batches)
    assert same_bits(ours, plain)


def test_a_replacement_whose_state_is_far_behind_takes_over_another_and_a_near_one_its_own():
    shared = cold()
    train(updating(shared, 1), images(4))
    train(updating(shared, 0), images(8))
    assert not attach(shared, 1).start(), "4 of 8 updates"
    train(updating(shared, 0), images(1))
    late = attach(shared, 1)
    assert late.start(), "4 of 9"
    assert [late.state.updates, *(float(own["step"]) for own in late.optimizer.state.values())] == [9] * 9
    assert not late.start() and not attach(shared, 1).start(), "once"


def test_workers_that_begin_together_have_nothing_to_take_over():
    shared = cold(optim.Adam)
    workers = [attach(shared, k) for k in range(2)]
    assert [worker.start() for worker in workers] == [False, False]
    first, second = (AutogradUpdate(worker, grad_clip=None) for worker in workers)
    for batch in images(6):
        train(first, [batch])
        train(second, [batch])
    for worker in workers:
        worker.rest()
        assert not worker.start()


def test_state_that_only_the_late_worker_has_stays():
    shared = cold(functools.partial(optim.Adam, fused=False), make=Branches)
    left, right = ([(torch.full((6, 5), sign), torch.zeros(6).long())] for sign in (1.0, -1.0))
    train(updating(shared, 1), left)
    train(updating(shared, 0), right * 3)
    late = attach(shared, 1)
    assert late.start()
    steps = {name: int(late.optimizer.state[param]["step"]) for name, param in late.model.named_parameters()}
    assert steps == {
        f"{module}.{name}": steps
        for module, steps in (("left", 1), ("right", 3), ("out", 3))
        for name in ("weight", "bias")
    }


class OwnerMakesAnUpdate(TorchDispatchMode):
    """In the middle of whatever runs under this mode another worker makes one more update: all its state grows by 1."""

    def __init__(self, owner, at):
        super().__init__()
        self.owner, self.at, self.operations = owner, at, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        if self.operations == self.at:
            self.owner.state.start_update()
            for own in self.owner.optimizer.state.values():
                for value in own.values():
                    value.add_(1)
            self.owner.state.count()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("at", [2, 40, 60])
def test_state_is_taken_over_as_it_is_between_two_updates_of_its_owner(at):
    shared = cold(optim.Adam)
    owner, late = attach(shared, 0), attach(shared, 1)
    train(AutogradUpdate(owner, grad_clip=None), images(5))
    with OwnerMakesAnUpdate(owner, at) as meanwhile:
        assert late.start()
    assert meanwhile.operations > at and late.state.updates == 6
    theirs, ours = (worker.optimizer.state_dict()["state"] for worker in (owner, late))
    assert all(torch.equal(value, ours[i][key]) for i, own in theirs.items() for key, value in own.items())


def test_state_whose_owner_was_killed_in_an_update_is_taken_over_all_the_same():
    shared = cold()
    owner = begun(shared, 0)
    train(owner, images(5))
    owner._state.start_update()
    late = attach(shared, 1)
    assert late.start() and late.state.updates == 5
    train(AutogradUpdate(late, grad_clip=None), images(1))
    assert late.state.updates == 6


def test_a_checkpoint_gives_no_worker_state_that_is_far_behind():
    shared = cold(procs=3)
    for worker, count in enumerate((1, 6, 4)):
        train(updating(shared, worker), images(count))
    snapshot = shared.snapshot()
    assert snapshot["optimizer_updates"] == [1, 6, 4]
    assert snapshot["optimizer"]["state"][0]["step"] == 6, "the one of the most updates stands for all"
    resumed = cold(procs=5)
    resumed.restore(snapshot)
    states = [attach(resumed, k) for k in range(5)]
    assert [int(worker.optimizer.state_dict()["state"][0]["step"]) for worker in states] == [6, 6, 4, 6, 6]
    assert [worker.state.updates for worker in states] == [6, 6, 4, 6, 6]
    assert not any(worker.start() for worker in states)


@pytest.mark.parametrize("state", ["shared", "private"])
def test_a_checkpoint_of_either_kind_of_state_goes_on_as_the_other(state):
    other = {"shared": "private", "private": "shared"}[state]
    model, again = ConvNet(), ConvNet()
    shared = build(model, optim.Adam(model.parameters()), procs=2, state=state)
    train(updating(shared, 1), images(3))
    resumed = build(again, optim.Adam(again.parameters()), procs=3, state=other)
    resumed.restore(shared.snapshot())
    assert [int(attach(resumed, k).optimizer.state_dict()["state"][0]["step"]) for k in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("make", "rule", "procs", "is_shared"),
    [
        (Words, optim.Adagrad, 2, True),
        (Words, RowWiseAdagrad, 2, True),
        (Words, FTRL, 2, True),
        (Words, optim.Adagrad, 1, False),
        (Words, functools.partial(optim.Adagrad, weight_decay=0.1), 2, False),  # torch has it for dense gradients only
        (Words, functools.partial(optim.SGD, lr=0.1), 2, False),
        (ConvNet, optim.Adagrad, 2, False),
        (ConvNet, optim.Adam, 2, False),
        (ConvNet, optim.RAdam, 2, True),  # each worker would count a warm-up of its own
    ],
)
def test_auto_shares_state_where_private_state_would_learn_less(make, rule, procs, is_shared):
    pytest.importorskip("numba")
    model = make()
    try:
        shared = build(model, rule(model.parameters()), procs=procs, state="auto")
    except OptimizerError:
        assert not is_shared
        return
    assert shared.layout.state.shared == is_shared


@pytest.mark.parametrize(
    ("settings", "placement", "is_ftrl", "is_fused", "state"),
    [
        ([], "cpu", False, False, "shared"),
        (["train.procs=1"], "cpu", False, False, "private"),
        (["train.exchange=delta"], "cpu", False, False, "private"),
        ([], "cuda-replica", False, False, "private"),
        ([], "cpu", False, True, "private"),
        (["optimizer.state=shared"], "cpu", False, True, "shared"),
        # With a sum for each worker, l1 would weigh as many times as much as there are workers.
        ([], "cpu", True, True, "shared"),
        ([], "cpu", True, False, "shared"),
        (["optimizer.state=private"], "cpu", True, False, "private"),
    ],
)
def test_auto_is_private_where_parameters_are_copied_and_with_most_kernels(
    settings, placement, is_ftrl, is_fused, state
):
    machine = MachineFacts(Cores(2, None, 2.0, "of a test"), {})
    plan = replace(plan_job(load_job(None, ["train.procs=2", *settings]), machine), placement=placement)
    facts = {"feed": "resident", "epoch": BatchPlan(8, 2), "why": "", "is_fused": is_fused}
    assert optimizer_state_of(plan, JobFacts(**facts, adds_sums=is_ftrl, suits_sharing=True)) == state


@pytest.mark.whole
@pytest.mark.processes
def test_one_late_worker_of_a_job_does_not_damage_the_model(tmp_path):
    """209 updates of an Adagrad, then a few of a worker that is built only then, at the end of the job."""

    def loss_of(loss, procs):
        torch.manual_seed(0)
        model = Mlp(features=64, hidden=[32], classes=10)
        result = hogwild.train(
            model, Digits("train"), loss, optim.Adagrad(model.parameters(), lr=0.1), val=Digits("test"), procs=procs,
            optimizer_state="private", exchange="direct", batch_size=16, epochs=3, max_updates=220,
            run_dir=tmp_path / str(procs), supervise={f"{clock}_timeout_s": 900 for clock in ("start", "stall")},
        )  # fmt: skip
        return result.metrics["loss"]

    alone = loss_of(nn.CrossEntropyLoss(), 0)
    assert loss_of(LateLoss(tmp_path, 209), 2) < 1.5 * alone
    assert any("from the state of another worker" in log.read_text() for log in (tmp_path / "2/logs").glob("worker-*"))


class ScheduleFree(optim.SGD):
    """The interface of schedule-free rules: the parameters are other weights in each mode."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class Lookahead(optim.Optimizer):
    """A wrapper as they are written: no state of its own, the inner one's groups."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups


class Sam(optim.Optimizer):
    """A wrapper that is an optimizer itself."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.base_optimizer = optim.SGD(self.param_groups, lr=0.1)


class Proxy:
    """A wrapper that is no torch.optim.Optimizer at all."""

    def __init__(self, base: optim.Optimizer) -> None:
        self.base = base


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda p: ScheduleFree(p, lr=0.1), "optimizer/modes", r"ScheduleFree has the modes train\(\) and eval\(\)"),
        (lambda p: Lookahead(optim.Adam(p)), "optimizer/wrapper", r"Lookahead wraps another optimizer \(inner: Adam\)"),
        (Sam, "optimizer/wrapper", r"Sam wraps another optimizer \(base_optimizer: SGD\)"),
        (lambda p: Proxy(optim.SGD(p)), "optimizer/wrapper", r"Proxy wraps another optimizer \(base: SGD\)"),
        (lambda p: "sgd", "optimizer/not-one", "the optimizer is a str"),
    ],
)
def test_an_optimizer_that_cannot_be_shared_says_why_and_nothing_is_trained(
    make: Any, code: str, said: str, tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.clone()
    data = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
    with pytest.raises(OptimizerError, match=said) as caught:
        hogwild.train(model, data, nn.MSELoss(), make(list(model.parameters())), procs=0, run_dir=tmp_path / "run")
    assert caught.value.code == code and torch.equal(model.weight, before)
    assert not (tmp_path / "run" / "summary.json").exists()
