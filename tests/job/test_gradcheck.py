"""`check --gradcheck`: a right backward passes, a wrong one is named with its module, its element and both numbers; and
the example of a function of one's own."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hogwild.cli import main
from hogwild.errors import ModelError
from hogwild.job.gradient_check import check_gradients
from hogwild.models import MatrixFactorization
from tests.helpers.jobs import HOME
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

EXAMPLE = HOME / "examples" / "own_function"
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
SAMPLE = [X, torch.tensor([0, 1, 2, 0])]
LOSS = nn.CrossEntropyLoss()


class Scaled(torch.autograd.Function):
    """3 x, with a gradient of `factor`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return 3 * x

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream * ctx.factor, None


class Layer(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(x, self.factor)


def network(layer: nn.Module, hidden: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, hidden), nn.Dropout(0.5), nn.BatchNorm1d(hidden), layer, nn.Linear(hidden, 3))


class OnlyInForward(nn.Module):
    """A wrong function that no module of its own calls."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, hidden), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Scaled.apply(self.first(x), 2.0))


class Cornered(nn.Module):
    """Half of what reaches the ReLU is exactly zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)
        with torch.no_grad():
            self.first.weight[::2] = 0
            self.first.bias[::2] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(50, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x.abs().mul(10).long()).mean(1)


class Last(nn.Module):
    def forward(self, found: tuple[Tensor, Any]) -> Tensor:
        return found[0]


class Stepping(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.factor = nn.Linear(6, 3), factor

    def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> dict[str, Tensor]:
        return {"loss": loss(Scaled.apply(self.first(batch[0]), self.factor), batch[1])}


RIGHT = {
    "few": lambda: network(Layer(3.0)),
    "many": lambda: network(Layer(3.0), hidden=300),
    "corners, few": lambda: Cornered(8),
    "corners, many": lambda: Cornered(400),
    "sparse rows": Embedded,
    "a step": lambda: Stepping(3.0),
    "an LSTM": lambda: nn.Sequential(nn.LSTM(6, 3, batch_first=True), Last()),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", RIGHT)
def test_a_right_backward_passes_and_the_model_is_as_before(what: str) -> None:
    model = RIGHT[what]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = check_gradients(model, LOSS, SAMPLE)
    assert found["parameters"] == sum(param.numel() for param in model.parameters()) and found["samples"] == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {param.dtype for param in model.parameters()} == {torch.float32}


def test_a_penalty_that_only_the_backward_pass_pays_is_no_wrong_gradient() -> None:
    model = MatrixFactorization(5, 4, factors=2, l2=0.3)
    check_gradients(model, nn.MSELoss(), (torch.tensor([0, 1, 2]), torch.tensor([3, 0, 3]), torch.randn(3)))
    assert model.l2 == 0.3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, of a script's copy
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_what_is_around_a_scripted_part_is_compared() -> None:
    part = torch.jit.script(nn.Linear(5, 5))
    assert check_gradients(network(part), LOSS, SAMPLE)["parameters"] == 63
    with pytest.raises(ModelError, match=r"module 0\.3 \(Layer\)"):
        check_gradients(nn.Sequential(network(Layer(2.0)), torch.jit.script(nn.Linear(3, 3))), LOSS, SAMPLE)


WRONG = {
    "a module, few": (lambda: network(Layer(2.0)), r"module 3 \(Layer\): the gradient of input 0 of 3\[0, 0\]"),
    "a module, many": (lambda: network(Layer(2.0), 300), r"module 3 \(Layer\): the gradient of input 0 of 3\["),
    "the model, few": (lambda: OnlyInForward(5), r"the loss of OnlyInForward: the gradient of first\.weight\["),
    "the model, many": (lambda: OnlyInForward(300), r"the loss of OnlyInForward: the gradient of first\.weight\["),
    "a step": (lambda: Stepping(2.0), r"the loss of Stepping: the gradient of first\.weight\["),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_backward_is_named_with_both_numbers(what: str) -> None:
    make, words = WRONG[what]
    numbers = r".* is (-?[\d.e-]+) by backward, but (-?[\d.e-]+) by differences of the outputs"
    with pytest.raises(ModelError, match=words) as raised:
        check_gradients(make(), LOSS, SAMPLE)
    assert raised.value.code == "model/wrong-gradient"
    found = re.search(numbers, str(raised.value))
    assert found is not None and float(found[1]) / float(found[2]) == pytest.approx(2 / 3, rel=1e-3)


def test_a_backward_that_raises_is_named_with_its_error() -> None:
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Tensor:
            return upstream.no_such_name

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Raising.apply(x)

    with pytest.raises(ModelError, match=r"module 3 \(Layer\): backward fails: AttributeError: .*no_such_name"):
        check_gradients(network(Layer()), LOSS, SAMPLE)


def test_a_backward_that_is_random_is_an_error() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Tensor:
            return upstream + torch.rand((), generator=DRAWS)

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Noisy.apply(x)

    for hidden in (5, 300):
        with pytest.raises(ModelError, match="backward returns different gradients"):
            check_gradients(network(Layer(), hidden), LOSS, SAMPLE)


DRAWS = torch.Generator().manual_seed(1)


def test_a_model_that_cannot_be_double_says_so() -> None:
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(5, 5, dtype=torch.float32)

    with pytest.raises(ModelError, match=r"Sequential fails in float64: RuntimeError: .*") as raised:
        check_gradients(network(Single()), LOSS, SAMPLE)
    assert raised.value.code == "model/no-double"


# ---- the example, from the command line -----------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.processes
def test_the_example_is_right_and_trains_and_keeps_its_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["check", str(EXAMPLE / "job.yaml"), "--gradcheck"]) == 0
    assert "result: analytic and numeric gradients agree" in capfd.readouterr().out
    run = str(tmp_path / "run")
    job = [str(EXAMPLE / "job.yaml"), "train.procs=0", "train.epochs=2", "--run-dir", run, "--no-progress"]
    assert main.run(["train", *job]) == 0
    state = torch.load(Path(run) / "checkpoints" / "latest" / "state.pt", weights_only=True)["model"]
    assert state["limited._extra_state"]["calls"] >= 0 and len(state["limited.sharpness"]) == 32


@pytest.mark.processes
def test_the_example_with_a_mistake_ends_with_status_1_and_its_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(EXAMPLE / "job.yaml", tmp_path)
    text = (EXAMPLE / "smooth.py").read_text()
    assert "upstream * cubed" in text
    (tmp_path / "smooth.py").write_text(text.replace("upstream * cubed", "upstream * inverse"))
    assert main.run(["check", str(tmp_path / "job.yaml"), "--gradcheck"]) == 1
    said = capfd.readouterr().err
    assert "module limited (Limited): the gradient of input 0 of limited[" in said and "model/wrong-gradient" in said


def test_once_differentiable_refuses_a_second_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    from smooth import Bump  # type: ignore[import-not-found]

    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    s = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Bump.apply, (x, s))
    (first,) = torch.autograd.grad(Bump.apply(x, s).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
