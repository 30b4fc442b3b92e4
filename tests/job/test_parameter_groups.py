"""`optimizer.groups` of the job file: who is in which group, what may stand there, and that a job with groups is the
plain torch loop with the same groups."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.config.load import job_from_mapping
from hogwild.config.schema import Group
from hogwild.errors import ConfigError, OptimizerError
from hogwild.job.parameter_groups import param_groups
from hogwild.storage.checkpoint import load
from tests.helpers.plain_loop import PlainLoop
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)


class Net(nn.Module):
    """Two layers with a norm between them, and a third that is tied to the second under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.second.weight
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        return self.out(torch.tanh(self.again(torch.tanh(self.second(x)))))


def samples() -> TensorDataset:
    random = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(83, 6, generator=random), torch.randint(3, (83,), generator=random))


def names(model: nn.Module, groups: list[dict[str, Any]]) -> list[list[str]]:
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[by_id[id(parameter)] for parameter in group["params"]] for group in groups]


# ---- who is in which ------------------------------------------------------------------------------------------------


def test_the_first_pattern_takes_a_parameter_and_the_rest_comes_first():
    model = Net()
    groups = param_groups(
        model,
        [
            Group(params=["*.bias", "norm*"], init_args={"weight_decay": 0.0}),
            Group(params=["first.*", "norm.weight"], init_args={"lr": 0.5}),
        ],
    )
    assert names(model, groups) == [
        ["second.weight", "out.weight"],
        ["first.bias", "norm.weight", "norm.bias", "second.bias", "again.bias", "out.bias"],
        ["first.weight"],
    ]
    assert [{key: value for key, value in group.items() if key != "params"} for group in groups] == [
        {},
        {"weight_decay": 0.0},
        {"lr": 0.5},
    ]


def test_groups_that_take_everything_leave_no_empty_group():
    model = Net()
    groups = param_groups(model, [Group(params=["*.weight"]), Group(params=["*"])])
    assert len(groups) == 2
    assert [name for group in names(model, groups) for name in group] == [
        name for kind in ("weight", "bias") for name, _ in model.named_parameters() if name.endswith(kind)
    ]


def test_a_tied_parameter_is_found_under_any_of_its_names_and_is_in_one_group():
    model = Net()
    groups = param_groups(model, [Group(params=["again.weight"]), Group(params=["second.*"])])
    assert names(model, groups)[1:] == [["second.weight"], ["second.bias"]]
    torch.optim.SGD(groups, lr=0.1)  # torch refuses a parameter in two groups


def test_frozen_parameters_are_in_no_group():
    model = Net()
    model.first.weight.requires_grad_(False)
    groups = param_groups(model, [Group(params=["first.*"])])
    assert names(model, groups)[1] == ["first.bias"]
    assert not any("first.weight" in group for group in names(model, groups))


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ([["*.bias"], ["norm.*", "frist.weight"]], r"optimizer.groups\[1\].params\[1\]: 'frist.weight' matches no "),
        ([["frist.weight"]], "similar names: first.weight"),
        ([["out"]], r"similar names: out.*MODULE.\*"),
        ([["first.bias"]], r"groups\[0\].params\[0\]: 'first.bias' matches only frozen parameters"),
        (
            [["norm.*"], ["out.*", "first.*"], ["*.bias"], ["out.weight", "norm.bias"]],
            r"optimizer.groups\[3\]: optimizer.groups\[0\], optimizer.groups\[1\] matched all its parameters",
        ),
    ],
)
def test_a_pattern_or_a_group_without_parameters_is_an_error_naming_it(patterns, words):
    model = Net()
    model.first.bias.requires_grad_(False)
    with pytest.raises(OptimizerError, match=words):
        param_groups(model, [Group(params=one) for one in patterns])


# ---- what may stand there -------------------------------------------------------------------------------------------


def job_of(optimizer: dict[str, Any]) -> Any:
    here = f"{__name__}."
    return job_from_mapping(
        {
            "model": {"class_path": here + "Net"},
            "data": {"train": {"class_path": here + "samples"}},
            "optimizer": optimizer,
        },
        "here",
    )


def adagrad(**init_args: Any) -> dict[str, Any]:
    return {"class_path": "torch.optim.Adagrad", "groups": [{"params": ["*"], "init_args": init_args}]}


NESTEROV = {"lr": 0.1, "momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (adagrad(lrr=1), "optimizer.groups[0].init_args.lrr: unknown argument of Adagrad; did you mean 'lr'?"),
        (adagrad(lr=-1), "optimizer.groups[0].init_args.lr: must be >= 0, got -1"),
        (adagrad(params=[1]), "optimizer.groups[0].init_args.params: is filled in"),
        (adagrad(initial_accumulator_value=1), "initial_accumulator_value: applies to all groups"),
        (adagrad(differentiable=True), "optimizer.groups[0].init_args.differentiable: applies to all groups"),
        ({"groups": [{"params": ["*"], "init_args": {"differentiable": True}}]}, "differentiable: applies to all"),
        (
            {"groups": [{"params": [], "init_args": {}}]},
            "optimizer.groups[0].params: must have at least one entry, got []",
        ),
        ({"groups": [{"parms": ["*"]}]}, "optimizer.groups[0].parms: unknown key; did you mean 'params'?"),
        ({"groups": [3]}, "optimizer.groups[0]: must be a map"),
        ({"groups": {"params": ["*"]}}, "optimizer.groups: must be a list"),
        (
            {"init_args": NESTEROV, "groups": [{"params": ["*"], "init_args": {"momentum": 0}}]},
            "optimizer.groups[0].init_args.momentum: nesterov needs a momentum > 0",
        ),
        (
            {"groups": [{"params": ["*"], "init_args": {"nesterov": True}}]},
            "optimizer.groups[0].init_args.nesterov: nesterov needs a momentum > 0",
        ),
    ],
)
def test_a_wrong_group_is_found_without_torch_and_at_its_place(optimizer, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        job_of(optimizer)
    assert len(raised.value.problems) == 1


def test_what_a_group_repeats_of_a_wrong_rule_is_said_once():
    with pytest.raises(ConfigError) as raised:
        job_of({"init_args": {"lr": 0.1, "nesterov": True}, "groups": [{"params": ["*"], "init_args": {"lr": 1}}]})
    assert [problem.path for problem in raised.value.problems] == ["optimizer.init_args.nesterov"]


def test_groups_beside_an_optimizer_object_are_an_error(tmp_path):
    model = Net()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"optimizer.groups: is for job files only, as the object is given here"):
        hogwild.train(model, samples(), nn.CrossEntropyLoss(), rule, optimizer={"groups": []}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_check_prints_the_groups(tmp_path, capsys):
    assert main.run(["check", str(job_file(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert "group    *.bias norm*: weight_decay=0.0, momentum=0.5" in shown
    assert main.run(["show", str(job_file(tmp_path))]) == 0
    assert "'*.bias'" in capsys.readouterr().out


# ---- and the result -------------------------------------------------------------------------------------------------

LOOP = PlainLoop(epochs=5)
JOB = f"""\
seed: {LOOP.seed}
model: {{class_path: {__name__}.Net, freeze: [out.bias]}}
data: {{train: {{class_path: {__name__}.samples}}, batch_size: {LOOP.batch_size}}}
optimizer:
  class_path: torch.optim.SGD
  init_args: {{lr: 0.1, momentum: 0.9, weight_decay: 0.01}}
  groups:
    - params: ["*.bias", "norm*"]
      init_args: {{weight_decay: 0.0, momentum: 0.5}}
    - params: ["again.*"]
      init_args: {{lr: 0.02, nesterov: true}}
lr_schedule: {{name: step, every_updates: 20, gamma: 0.5}}
train: {{procs: 0, threads: 1, epochs: {LOOP.epochs}}}
"""


def job_file(folder: Path) -> Path:
    file = folder / "job.yaml"
    file.write_text(JOB)
    return file


def test_a_job_with_groups_gives_the_bits_of_the_plain_loop_with_the_same_groups(tmp_path, capsys):
    run_dir = tmp_path / "run"
    assert main.run(["train", str(job_file(tmp_path)), "--run-dir", str(run_dir), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])

    torch.manual_seed(LOOP.seed)
    plain = Net()
    plain.out.bias.requires_grad_(False)
    tied = plain.second.weight
    unregulated = [plain.first.bias, plain.norm.weight, plain.norm.bias, plain.second.bias, plain.again.bias]
    rule = torch.optim.SGD(
        [
            {"params": [plain.first.weight, plain.out.weight]},
            {"params": unregulated, "weight_decay": 0.0, "momentum": 0.5},
            {"params": [tied], "lr": 0.02, "nesterov": True},
        ],
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
    )

    def curve(optimizer: torch.optim.Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, lambda done: 0.5 ** (done // 20))

    done = LOOP.run(plain, nn.CrossEntropyLoss(), rule, samples().tensors, curve)

    assert summary["updates"] == done == LOOP.planned_updates(83)
    (newest,) = sorted((run_dir / "checkpoints").glob("update-*"))[-1:]
    state = load(newest)
    for name, value in plain.state_dict().items():
        assert torch.equal(state["model"][name], value), name
    ours, theirs = state["optimizer"], rule.state_dict()
    assert [group["params"] for group in ours["param_groups"]] == [group["params"] for group in theirs["param_groups"]]
    assert all(
        torch.equal(ours["state"][number][key], value)
        for number, own in theirs["state"].items()
        for key, value in own.items()
    )
