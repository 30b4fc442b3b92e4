"""model.freeze with an end: what is frozen until an update is trained from exactly that one on, to the bit of torch's
own loop, and whatever happens to the job meanwhile."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import ConfigError, ModelError
from hogwild.job.parameter_groups import freeze_parameters, late_parameters
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.autograd_update import AutogradUpdate
from tests.helpers import one_trainer
from tests.helpers.one_trainer import Place
from tests.helpers.plain_loop import PlainLoop, Samples, differing_parameters, differing_state
from tests.shared_model import build, one_thread  # noqa: F401

FIRST, SECOND = 7, 13  # the updates that unfreeze the first layer, and the second one's weight
FREEZE = [{"params": ["0.*"], "until": FIRST}, {"params": ["2.w*"], "until": SECOND}]
LATE = {"0.weight": FIRST, "0.bias": FIRST, "2.weight": SECOND}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def examples() -> Samples:
    random = torch.Generator().manual_seed(1)
    return torch.randn(80, 6, generator=random), torch.randint(0, 3, (80,), generator=random)


def set_by(updates: int, model: nn.Module) -> None:
    for name, param in model.named_parameters():
        param.requires_grad_(LATE.get(name, 0) <= updates)


class Thawing(PlainLoop):
    """The plain loop of somebody who sets requires_grad himself."""

    def _step(self, model: nn.Module, optimizer: optim.Optimizer, scheduler: Any) -> None:
        super()._step(model, optimizer, scheduler)
        self.__class__.made += 1
        set_by(self.__class__.made, model)

    made = 0

    def train(self, model: nn.Module, optimizer: optim.Optimizer, data: Samples) -> None:
        self.__class__.made = 0
        set_by(0, model)
        self.run(model, nn.CrossEntropyLoss(), optimizer, data)


RULES: Mapping[str, Callable[[nn.Module], optim.Optimizer]] = {
    "momentum": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda m: optim.Adam(m.parameters(), lr=0.01, fused=False, foreach=False),
    "groups": lambda m: optim.SGD(
        [{"params": [*m.parameters()][:2], "lr": 0.02}, {"params": [*m.parameters()][2:]}], lr=0.1, momentum=0.9
    ),
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "direct": {},
    "delta": {"exchange": "delta", "sync_every": 5},
    "shared state": {"optimizer_state": "shared"},
    "clipped": {"grad_clip": 1e6},
}


@pytest.mark.slow
@pytest.mark.parametrize("loop", [Thawing(epochs=3), Thawing(epochs=3, accumulate=3)], ids=["each", "accumulated"])
@pytest.mark.parametrize("rule", RULES)
def test_one_worker_thaws_at_that_update_to_the_bit_of_the_plain_loop(rule: str, loop: Thawing, tmp_path: Path) -> None:
    ours, plain = network(), network()
    our_rule, plain_rule = RULES[rule](ours), RULES[rule](plain)
    settings = {**loop.settings, "model": {"freeze": FREEZE}, "procs": 0, "threads": 1, "run_dir": tmp_path / "run"}
    result = hogwild.train(ours, TensorDataset(*examples()), nn.CrossEntropyLoss(), our_rule, **settings)
    loop.train(plain, plain_rule, examples())
    assert result.updates == Thawing.made
    assert differing_parameters(ours, plain) == [] and differing_state(our_rule, plain_rule) == []
    assert all(param.requires_grad for param in ours.parameters())  # the caller's model is as it was given


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_so_it_does_whatever_way_updates_go_but_for_rounding(setting: str, tmp_path: Path) -> None:
    ours, plain, loop = network(), network(), Thawing(epochs=2)
    rule = RULES["adam"]
    our_rule, plain_rule = rule(ours), rule(plain)
    result = hogwild.train(
        ours,
        TensorDataset(*examples()),
        nn.CrossEntropyLoss(),
        our_rule,
        **{**loop.settings, "model": {"freeze": FREEZE}, "procs": 0, "run_dir": tmp_path / "run", **SETTINGS[setting]},
    )
    loop.train(plain, plain_rule, examples())
    assert result.updates == 20
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_resumed_job_thaws_where_it_would_have(tmp_path: Path) -> None:
    ours, plain, loop = network(), network(), Thawing(epochs=3)
    rule = RULES["adam"]
    our_rule, plain_rule = rule(ours), rule(plain)
    common = {**loop.settings, "model": {"freeze": FREEZE}, "procs": 0, "threads": 1}
    data = TensorDataset(*examples())
    for stop in (5, 9, 30):  # before the first thaw, between the two, and to the end
        where = {"resume": tmp_path / "run"} if stop > 5 else {"run_dir": tmp_path / "run"}
        again, again_rule = (ours, our_rule) if stop == 5 else (fresh := network(), rule(fresh))
        result = hogwild.train(
            again, data, nn.CrossEntropyLoss(), again_rule, **{**common, **where, "max_updates": stop}
        )
        assert result.updates == stop
    loop.train(plain, plain_rule, examples())
    assert differing_parameters(again, plain) == [] and differing_state(again_rule, plain_rule) == []


def test_before_and_after_updates_go_over_the_flat_again() -> None:
    model = network()
    shared = build(model, optim.Adam(model.parameters(), lr=0.01), procs=1, late=LATE)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, 0)
    update = AutogradUpdate(worker, grad_clip=None)
    data = examples()
    way = []
    for made in range(SECOND + 3):
        update.thaw(made)
        update.backward((data[0][:8],), data[1][:8])
        assert update.is_finite()
        way.append(update._flat_now and update._gradients.complete)
        update.apply(None)
    stock = [made for made, is_flat in enumerate(way) if not is_flat]
    assert stock == [0, FIRST, SECOND]  # the update that creates state goes the stock way
    shared.release()


def test_gradients_lie_where_the_parameters_do_before_and_after_a_thaw(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses a gradient on another device than its parameter's."""
    model = network()
    shared = build(model, optim.SGD(model.parameters(), lr=0.1), procs=1, late=LATE)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, 0)
    there = [nn.Parameter(param.to("meta")) for param in worker.params]
    monkeypatch.setattr(worker, "params", there)
    monkeypatch.setattr(
        "hogwild.training.autograd_update.why_no_flat_rule", lambda *_: "a rule over both would need the device"
    )
    update = AutogradUpdate(worker, grad_clip=None)
    for made in (0, FIRST):
        update.thaw(made)
        assert {flat.device.type for flat in update._gradients.flats.values()} == {"meta"}
    shared.release()


def test_until_then_nothing_of_it_moves_and_then_it_does() -> None:
    place = Place(one_trainer.examples(8), late={"first.weight": 6})
    trainer, _ = place.trainer()
    place.overtake(4)  # four of the six are another worker's
    before = place.model.first.weight.detach().clone()
    trainer.train(place.item(0, 2), one_trainer.go_on)
    assert torch.equal(place.model.first.weight, before) and not place.is_untouched()
    trainer.train(place.item(2, 3), one_trainer.go_on)
    assert not torch.equal(place.model.first.weight, before)


@pytest.mark.whole
@pytest.mark.processes
def test_workers_thaw_when_they_see_the_count(tmp_path: Path) -> None:
    model = network()
    before = [param.detach().clone() for param in model.parameters()]
    common: dict[str, Any] = {"batch_size": 8, "epochs": 4, "procs": 2, "model": {"freeze": FREEZE}}
    rule = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    result = hogwild.train(
        model, TensorDataset(*examples()), nn.CrossEntropyLoss(), rule, run_dir=tmp_path / "run", **common
    )
    assert result.updates == 40 and result.state == "succeeded"
    assert not any(map(torch.equal, model.parameters(), before))


# ---- what cannot be --------------------------------------------------------------------------------------------------


def train(model: nn.Module, rule: optim.Optimizer, folder: Path, freeze: list[Any], **settings: Any) -> Any:
    common = {"batch_size": 8, "procs": 0, "run_dir": folder / "run", "model": {"freeze": freeze}}
    return hogwild.train(model, TensorDataset(*examples()), nn.CrossEntropyLoss(), rule, **{**common, **settings})


@pytest.mark.parametrize(
    ("freeze", "code", "words"),
    [
        ([{"params": ["*"], "until": 3}], "model/no-parameters", "frozen until update 3, so nothing is trained"),
        (
            [{"params": ["1.*"], "until": 3}],
            "model/no-match",
            "model.freeze[0].params: '1.*' matches no parameter",
        ),
        (["0.*", {"params": ["0.bias"], "until": 3}], "model/no-match", "earlier entries matched all"),
    ],
    ids=["everything", "no match", "taken"],
)
def test_what_freezes_nothing_or_everything_is_refused(freeze: Any, code: str, words: str, tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ModelError, match=re.escape(words)) as raised:
        train(model, optim.SGD(model.parameters(), lr=0.1), tmp_path, freeze)
    assert raised.value.code == code
    assert all(param.requires_grad for param in model.parameters())


def test_what_no_group_would_train_is_refused(tmp_path: Path) -> None:
    model = network()
    rule = optim.SGD([*model.parameters()][2:], lr=0.1)
    with pytest.raises(ModelError, match=r"0\.weight is frozen until update 3, but is in no optimizer group") as raised:
        train(model, rule, tmp_path, [{"params": ["0.*"], "until": 3}])
    assert raised.value.code == "model/thawed-untrained"


@pytest.mark.parametrize("until", [0, -1, 1.5, "three", None])
def test_an_update_that_is_none_is_an_error_of_the_file(until: Any, tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ConfigError, match=r"model.freeze\[0\].until: "):
        train(model, optim.SGD(model.parameters(), lr=0.1), tmp_path, [{"params": ["0.*"], "until": until}])


def test_the_first_entry_that_matches_decides_and_a_tied_parameter_is_one() -> None:
    class Entry:
        def __init__(self, until: int, *params: str) -> None:
            self.params, self.until = params, until

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    entries = ["0.bias", Entry(4, "1.weight"), Entry(9, "*")]
    assert freeze_parameters(model, entries) == ["0.bias"]
    assert late_parameters(model, entries) == {"0.weight": 4, "1.bias": 9}


def test_a_thaw_after_the_end_is_noted(tmp_path: Path) -> None:
    model = network()
    train(model, optim.SGD(model.parameters(), lr=0.1), tmp_path, [{"params": ["0.*"], "until": 500}])
    assert (
        "parameters frozen until update 500 stay frozen: the job has only 10 updates"
        in (tmp_path / "run" / "logs" / "supervisor.log").read_text()
    )
