"""Models and rules that a shared memory could spoil, through a whole job against the plain loop: parameters that a
module holds twice, that some batches do not use, that are frozen, sparse, or lie in another memory format; and rules
that do not go over the flat. Bit for bit, unless a test's name says otherwise."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from hogwild.config.load import job_from_mapping
from hogwild.errors import ModelError, OptimizerError
from hogwild.job.build import from_objects
from hogwild.planning.device_placement import planned
from tests.helpers.plain_loop import PlainLoop, Rule, Samples, differing_parameters, train_both
from tests.shared_model import (
    ROUNDS_ONCE,
    Branches,
    ConvNet,
    Words,
    one_thread,  # noqa: F401 (a fixture for every test here)
)

pytestmark = pytest.mark.slow

LOOP = PlainLoop(epochs=8)
SAMPLES = 203  # 26 batches an epoch, 208 updates


def over(make: Callable[..., optim.Optimizer], **options: Any) -> Rule:
    """The rule over all parameters that are to be trained."""
    return lambda model: make([p for p in model.parameters() if p.requires_grad], **options)


MOMENTUM = over(optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
RULES = {
    "momentum": MOMENTUM,
    "Adam": over(optim.Adam, lr=0.01, fused=False),
    "Adagrad": over(optim.Adagrad, lr=0.01, fused=False),
}


def normal(*shape: int, classes: int) -> Samples:
    random = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, *shape, generator=random), torch.randint(classes, (SAMPLES,), generator=random)


def words(vocabulary: int, length: int, classes: int) -> Samples:
    random = torch.Generator().manual_seed(3)
    return torch.randint(vocabulary, (SAMPLES, length), generator=random), torch.randint(
        classes, (SAMPLES,), generator=random
    )


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(5)
        return make()

    return build


# ---- parameters that a module holds a second time -------------------------------------------------------------------


class Recurrent(nn.Module):
    """torch's recurrent modules hold their parameters in `_flat_weights` too; dropout between the layers."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.memory = kind(3, 5, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True)
        self.out = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(x)[0][:, -1])


class Tied(nn.Module):
    """The output layer uses the embedding's weight, and so does a second name of the whole embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.out = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11)
        self.out.weight = self.words.weight
        self.alias = self.words

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.alias(x).mean(1))))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_module_trains_through_its_flat_weights(kind: type[nn.RNNBase], rule: str, tmp_path: Path) -> None:
    make = seeded(functools.partial(Recurrent, kind))
    both = train_both(make, RULES[rule], normal(6, 3, classes=3), PlainLoop(epochs=3), tmp_path / "run")
    assert both.differing() == []
    ours = both.ours
    assert isinstance(ours, Recurrent)
    kept = {id(weight) for weight in ours.memory._flat_weights}
    assert kept == {id(weight) for weight in ours.memory.parameters()}


@pytest.mark.parametrize("rule", RULES)
def test_tied_weights_stay_tied_and_train_as_one(rule: str, tmp_path: Path) -> None:
    both = train_both(seeded(Tied), RULES[rule], words(11, 4, 11), LOOP, tmp_path / "run")
    assert both.differing() == []
    ours = both.ours
    assert isinstance(ours, Tied)
    assert ours.out.weight is ours.words.weight is ours.alias.weight


# ---- parameters that are not always used -----------------------------------------------------------------------------


def choosing() -> Samples:
    """For Branches: the first number of a batch's first sample says which branches the batch uses; each happens."""
    x, y = normal(5, classes=2)
    return x * 2, y


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_parameters_that_some_batches_do_not_use_are_left_alone_by_these(
    rule: str, accumulate: int, tmp_path: Path
) -> None:
    """Stock torch: no gradient, so no step, no decay and no count for that parameter in that update."""
    loop = PlainLoop(epochs=8, accumulate=accumulate)
    both = train_both(seeded(Branches), RULES[rule], choosing(), loop, tmp_path / "run")
    assert both.differing() == []
    steps = [float(both.our_rule.state[p].get("step", 0)) for p in both.ours.parameters()]
    if rule != "momentum":  # which counts nothing
        left, right, out = steps[0], steps[2], steps[4]
        assert left < out == both.result.updates > right


class Spare(nn.Module):
    """`spare` is never used, `frozen` never trained, `elsewhere` trained by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.elsewhere = nn.Linear(5, 7), nn.Linear(7, 7)
        self.spare, self.out = nn.Linear(5, 7), nn.Linear(7, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.elsewhere(torch.tanh(self.frozen(x)))))


@pytest.mark.parametrize("rule", RULES)
def test_frozen_unused_and_foreign_parameters_keep_their_bits_and_the_rest_trains(rule: str, tmp_path: Path) -> None:
    def all_but_elsewhere(model: nn.Module) -> optim.Optimizer:
        foreign = {id(p) for p in model.get_submodule("elsewhere").parameters()}
        inner = nn.ParameterList(p for p in model.parameters() if id(p) not in foreign)
        return RULES[rule](inner)

    both = train_both(seeded(Spare), all_but_elsewhere, normal(5, classes=3), LOOP, tmp_path / "run")
    assert both.differing() == []
    before = seeded(Spare)()
    changed = differing_parameters(both.ours, before)
    assert changed == ["out.weight", "out.bias"]


@pytest.mark.parametrize("rule", RULES)
def test_what_the_call_freezes_is_what_requires_grad_freezes(rule: str, tmp_path: Path) -> None:
    def freezing() -> nn.Module:
        model = seeded(Branches)()
        model.get_submodule("left").requires_grad_(False)
        return model

    frozen = train_both(freezing, RULES[rule], choosing(), LOOP, tmp_path / "frozen")
    freeze = {"freeze": ["left.*"]}
    asked = train_both(seeded(Branches), RULES[rule], choosing(), LOOP, tmp_path / "asked", model=freeze)
    assert differing_parameters(frozen.ours, frozen.plain) == []
    assert differing_parameters(asked.ours, frozen.plain) == []


# ---- memory formats and dtypes ---------------------------------------------------------------------------------------

PICTURES = normal(1, 12, 12, classes=4)


@pytest.mark.parametrize("rule", RULES)
def test_a_convolution_gives_the_bits_of_the_plain_loop_in_its_memory_format(rule: str, tmp_path: Path) -> None:
    loop = PlainLoop(epochs=4, channels_last=True)
    both = train_both(seeded(ConvNet), RULES[rule], PICTURES, loop, tmp_path / "run")
    assert both.differing() == []
    ours = both.ours
    assert isinstance(ours, ConvNet)
    assert ours.conv2.weight.is_contiguous(), "in the memory format it came with"


def test_twenty_updates_in_another_memory_format_stay_within_100_ulps(tmp_path: Path) -> None:
    """Other kernels, which add up in another order: several roundings in each update."""
    loop = PlainLoop(max_updates=20)
    both = train_both(seeded(ConvNet), over(optim.SGD, lr=0.05), PICTURES, loop, tmp_path / "run")
    assert both.ulps() <= 100


def test_a_convolution_that_is_told_to_stay_contiguous_does(tmp_path: Path) -> None:
    format = {"memory_format": "contiguous"}
    both = train_both(seeded(ConvNet), MOMENTUM, PICTURES, PlainLoop(epochs=4), tmp_path / "run", model=format)
    assert both.differing() == []


class MnistHogwild(nn.Module):
    """The network of the mnist_hogwild example of pytorch/examples, operation by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(F.max_pool2d(self.conv1(images), 2))
        hidden = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(hidden)), 2))
        hidden = F.relu(self.fc1(hidden.view(-1, 320)))
        return F.log_softmax(self.fc2(F.dropout(hidden, training=self.training)), dim=1)


DIGITS = normal(1, 28, 28, classes=10)
ITS_RULE = over(optim.SGD, lr=0.01, momentum=0.5)


@pytest.mark.processes
@pytest.mark.parametrize(("procs", "feed"), [(1, "resident"), (0, "stream")])
def test_the_well_known_examples_own_network_trains_as_it_is(procs: int, feed: str, tmp_path: Path) -> None:
    """`view` after a convolution: in channels_last that fails, so the job stays contiguous and says so."""
    val = TensorDataset(*DIGITS)
    options: dict[str, Any] = {"loss_of": F.nll_loss, "procs": procs, "feed": feed, "val": val}
    both = train_both(seeded(MnistHogwild), ITS_RULE, DIGITS, PlainLoop(epochs=2), tmp_path / "run", **options)
    assert both.differing() == []
    said = (tmp_path / "run" / "logs" / "supervisor.log").read_text()
    assert "note: model.memory_format: contiguous, because MnistHogwild fails in channels_last" in said


@pytest.mark.processes
def test_a_network_that_fails_in_channels_last_is_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    format = {"memory_format": "channels_last"}
    words = "^model.memory_format: MnistHogwild fails in channels_last, .* RuntimeError: view size is not compatible"
    options: dict[str, Any] = {"loss_of": F.nll_loss, "procs": 1, "model": format}
    with pytest.raises(ModelError, match=words) as refused:
        train_both(seeded(MnistHogwild), ITS_RULE, DIGITS, PlainLoop(), tmp_path / "run", **options)
    assert refused.value.code == "model/memory-format" and not (tmp_path / "run").exists()


class Flattens(torch.autograd.Function):
    """Its backward insists on the format of its own output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.view(-1).view(gradient.shape)


class Particular(ConvNet):
    """`where` it insists on contiguous tensors. Further parameters of four and of five dimensions."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.norm = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.rand(2, 1, 6, 1, 1))
        self.register_buffer("picture", torch.rand(1, 6, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(F.max_pool2d(self.conv1(x), 2))
        if self.where == "backward":
            x = Flattens.apply(x)
        x = self.norm(torch.relu(self.conv2(x))) * self.scale.mean(0) + self.picture
        if self.where == "training" and self.training:
            x = x.view(-1, 54).view(-1, 6, 3, 3)
        if self.where == "metric":
            return x
        return self.out(torch.relu(self.hidden(x.flatten(1))))


def mean_over_places(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.mean((2, 3)) if output.dim() == 4 else output, target)


def share_of_positive(output: Tensor, target: Tensor) -> Tensor:
    """A metric that insists on it."""
    return (output.detach().view(-1) > 0).float().mean()


share_of_positive.higher_is_better = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["nowhere", "training", "backward", "metric"])
def test_a_model_is_in_channels_last_only_if_all_of_a_job_computes_in_it(where: str, tmp_path: Path) -> None:
    """A parameter of five dimensions stays as it is in both formats; the trial leaves no trace."""
    loop = PlainLoop(channels_last=where == "nowhere", max_updates=6)
    evaluate = {"metrics": [share_of_positive]}

    def make() -> nn.Module:
        torch.manual_seed(5)
        return Particular(where)

    options: dict[str, Any] = {"loss_of": mean_over_places, "val": TensorDataset(*PICTURES), "evaluate": evaluate}
    both = train_both(make, MOMENTUM, PICTURES, loop, tmp_path / "run", **options)
    assert both.differing() == []
    said = (tmp_path / "run" / "logs" / "supervisor.log").read_text()
    assert ("model.memory_format: contiguous, because Particular fails" in said) == (where != "nowhere")


@pytest.mark.parametrize("where", ["nowhere", "training", "backward", "metric"])
def test_the_trial_of_a_format_leaves_no_trace(where: str) -> None:
    torch.manual_seed(5)
    model = Particular(where)
    tensors = [*model.parameters(), *model.buffers()]
    before = [(tensor.data_ptr(), tensor.stride(), tensor.detach().clone()) for tensor in tensors]
    random = torch.get_rng_state()
    given = {"class_path": "torch.nn.MSELoss"}  # never built: the objects are given
    job = job_from_mapping({"model": given, "loss": given, "data": {"train": given}}, "a test")
    parts = from_objects(planned(job), model, mean_over_places, MOMENTUM(model), TensorDataset(*PICTURES), None)
    assert parts.found.memory_format == ("auto" if where in ("nowhere", "metric") else "own")
    assert torch.equal(torch.get_rng_state(), random)
    for tensor, (address, strides, content) in zip((*model.parameters(), *model.buffers()), before, strict=True):
        assert (tensor.data_ptr(), tensor.stride(), tensor.grad) == (address, strides, None)
        assert torch.equal(tensor, content)


class TwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(5, 7, dtype=torch.float64), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.wide(x.double())).float())


@pytest.mark.parametrize("rule", RULES)
def test_a_flat_for_each_dtype_gives_the_same_bits(rule: str, tmp_path: Path) -> None:
    both = train_both(seeded(TwoTypes), RULES[rule], normal(5, classes=3), LOOP, tmp_path / "run")
    assert both.differing() == []


def test_batch_normalisation_keeps_the_running_averages_of_the_plain_loop(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))

    both = train_both(seeded(make), MOMENTUM, normal(5, classes=3), LOOP, tmp_path / "run")
    assert both.differing() == []
    assert int(both.ours.get_buffer("1.num_batches_tracked")) == both.result.updates


# ---- rules that do not go over the flat ------------------------------------------------------------------------------


def matrices_only() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Linear(9, 3, bias=False))


OTHER_RULES = {
    "Muon": over(optim.Muon, lr=0.01),
    "Muon with groups": lambda model: optim.Muon(
        [{"params": [model[0].weight], "lr": 0.05}, {"params": [model[2].weight]}], lr=0.01, weight_decay=0.01
    ),
    "Adafactor": over(optim.Adafactor, lr=0.02),
    "ASGD": over(optim.ASGD, lr=0.05),
    "Rprop": over(optim.Rprop, lr=0.001),
}


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_a_rule_that_is_not_elementwise_behaves_as_stock(rule: str, tmp_path: Path) -> None:
    loop = PlainLoop(epochs=4, accumulate=2)
    both = train_both(seeded(matrices_only), OTHER_RULES[rule], normal(6, classes=3), loop, tmp_path / "run")
    assert both.differing() == []
    assert differing_parameters(both.ours, seeded(matrices_only)()) == ["0.weight", "2.weight"]


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_lbfgs_is_refused_and_the_model_is_as_it_was(procs: int, tmp_path: Path) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(seeded(matrices_only)())
        return made[-1]

    with pytest.raises(OptimizerError, match="LBFGS"):
        train_both(make, over(optim.LBFGS), normal(6, classes=3), LOOP, tmp_path / "run", procs=procs)
    assert differing_parameters(made[0], seeded(matrices_only)()) == []
    assert not any(param.is_shared() for param in made[0].parameters())
    assert not (tmp_path / "run").exists()


# ---- sparse gradients ------------------------------------------------------------------------------------------------


def test_a_sparse_embedding_beside_dense_layers_gives_the_same_bits(tmp_path: Path) -> None:
    both = train_both(seeded(Words), over(optim.SGD, lr=0.1), words(30, 5, 3), LOOP, tmp_path / "run")
    assert both.differing() == [] if ROUNDS_ONCE else both.ulps() <= 20


def bag() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(30, 3, sparse=True))


@pytest.mark.parametrize(
    ("make", "rule"),
    [(Words, over(optim.Adagrad, lr=0.1)), (bag, over(optim.SparseAdam, lr=0.01))],
    ids=["Adagrad", "SparseAdam"],
)
def test_rules_with_a_root_over_sparse_rows_stay_within_20_ulps(
    make: Callable[[], nn.Module], rule: Rule, tmp_path: Path
) -> None:
    """Compiled rows take the nearest number for a root; in torch it is MKL's, off by a last place now and then. And a
    row that occurs three times is summed in another order."""
    both = train_both(seeded(make), rule, words(30, 5, 3), LOOP, tmp_path / "run")
    assert both.ulps() <= 20


def test_twenty_updates_of_a_sparse_momentum_stay_within_20_ulps(tmp_path: Path) -> None:
    """A momentum buffer that torch keeps sparse is dense here: the same sums in another order."""
    rule = over(optim.SGD, lr=0.1, momentum=0.9)
    both = train_both(seeded(Words), rule, words(30, 5, 3), PlainLoop(max_updates=20), tmp_path / "run")
    assert both.ulps() <= 20
