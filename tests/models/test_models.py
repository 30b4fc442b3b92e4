"""The models that ship: shapes, sizes, and that naming them costs nothing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

import hogwild.models
from hogwild.data import Digits
from hogwild.models import LeNet, LogisticRegression, Mlp
from tests.helpers.processes import PATIENCE_S

BATCH = 3
ROOT = Path(__file__).parents[2]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of tiny layers mostly wait for one another: on a busy machine 23 s instead of 2."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "x", "classes"),
    [
        (LogisticRegression(12, 4), torch.randn(BATCH, 12), 4),
        (LogisticRegression(12, 4), torch.randn(BATCH, 3, 2, 2), 4),
        (Mlp(12, 8, 4), torch.randn(BATCH, 12), 4),
        (Mlp(12, [8, 6], 4, dropout=0.5), torch.randn(BATCH, 1, 3, 4), 4),
        (LeNet(), torch.randn(BATCH, 1, 28, 28), 10),
        (LeNet(classes=7, channels=3), torch.randn(BATCH, 3, 28, 28), 7),
    ],
)
def test_a_model_answers_one_row_of_logits_per_sample(model: nn.Module, x: Tensor, classes: int) -> None:
    logits = model(x)
    assert logits.shape == (BATCH, classes)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_lenet_has_the_size_of_the_well_known_example() -> None:
    # (1x25+1)x10 + (10x25+1)x20 + 320x50+50 + 50x10+10
    assert parameters(LeNet()) == 260 + 5020 + 16050 + 510


def test_lenet_is_the_same_function_in_channels_last() -> None:
    torch.manual_seed(0)
    model, x = LeNet().eval(), torch.randn(BATCH, 1, 28, 28)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-6)


def test_lenet_drops_values_only_while_training() -> None:
    torch.manual_seed(0)
    model, x = LeNet(), torch.randn(BATCH, 1, 28, 28)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_hidden_layers_of_an_mlp_are_those_asked_for() -> None:
    shapes = [tuple(layer.weight.shape) for layer in Mlp(5, [4, 3], 2).layers if isinstance(layer, nn.Linear)]
    assert shapes == [(4, 5), (3, 4), (2, 3)]
    assert parameters(Mlp(5, [], 2)) == parameters(LogisticRegression(5, 2))
    assert parameters(Mlp(5, 4, 2)) == parameters(Mlp(5, [4], 2))


def test_an_mlp_without_hidden_layers_is_logistic_regression() -> None:
    line, mlp, x = LogisticRegression(5, 2), Mlp(5, [], 2), torch.randn(BATCH, 5)
    mlp.layers[0].load_state_dict(line.linear.state_dict())
    assert torch.equal(mlp(x), line(x))


def test_every_model_of_the_catalogue_can_be_loaded() -> None:
    assert sorted([*hogwild.models.CATALOG, "CATALOG", "CustomLstm"]) == sorted(hogwild.models.__all__)
    for name in hogwild.models.CATALOG:
        assert issubclass(getattr(hogwild.models, name), nn.Module)


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"ResNet.*LeNet"):
        hogwild.models.ResNet  # noqa: B018


@pytest.mark.processes
def test_listing_models_and_data_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, hogwild.models, hogwild.data, hogwild.data.locate\n"
        "assert hogwild.models.CATALOG and hogwild.data.CATALOG\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_default_job_learns_its_digits_in_a_plain_loop() -> None:
    """Everything the default job names, without hogwild's own machinery: what workers then have to reach."""
    job = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    torch.manual_seed(0)
    model = Mlp(**job["model"]["init_args"])
    optimizer = torch.optim.SGD(model.parameters(), **job["optimizer"]["init_args"])
    (x, y), (val_x, val_y) = Digits("train").tensors, Digits("test").tensors
    for _ in range(job["train"]["epochs"]):
        for rows in torch.randperm(len(x)).split(job["data"]["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    accuracy = float((model.eval()(val_x).argmax(1) == val_y).float().mean())
    assert accuracy > 0.965, accuracy


@pytest.mark.processes
def test_the_example_of_an_own_model_is_plain_torch_and_learns() -> None:
    code = (
        "import sys, torch; from mymodel import *; torch.manual_seed(0); torch.set_num_threads(1)\n"
        "model, loss, train, val = TwoTowers(), LogCosh(), Ratings(), Ratings(samples=4000, seed=1)\n"
        "optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)\n"
        "for _ in range(4):\n"
        "    for rows in torch.randperm(len(train)).split(64):\n"
        "        optimizer.zero_grad(); reader, article, rating = train[rows]\n"
        "        loss(model(reader, article), rating).backward(); optimizer.step()\n"
        "assert 'hogwild' not in sys.modules\n"
        "print(float(loss(model(val.reader, val.article), val.rating)), val.best_loss(loss))\n"
    )
    example = ROOT / "examples" / "own_model"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=example, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    reached, best = map(float, done.stdout.split())
    assert 0 < best < reached < 1.5 * best


@pytest.mark.slow
def test_a_table_of_numbers_and_categories_is_learnt_whatever_its_units() -> None:
    """Columns of a size of 1 and of a million, and a category that shifts the answer."""
    torch.manual_seed(0)
    numbers = torch.randn(512, 2)
    codes = torch.randint(3, (512, 1))
    wanted = numbers.sum(1, keepdim=True) + codes
    model = hogwild.models.Tabular(features=2, categories=[3], hidden=[32])
    rule = torch.optim.Adam(model.parameters(), lr=0.01)
    for rows in [*torch.arange(512).split(32)] * 20:
        rule.zero_grad()
        answer = model(numbers[rows] * torch.tensor([1.0, 1e6]), codes[rows])
        nn.functional.mse_loss(answer, wanted[rows]).backward()
        rule.step()
    model.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(numbers * torch.tensor([1.0, 1e6]), codes), wanted)
    assert error < 0.1 * wanted.var()


@pytest.mark.parametrize(("numbers", "categories"), [(3, ()), (0, (4, 2)), (3, (4,))])
def test_a_table_may_have_numbers_or_categories_or_both(numbers: int, categories: tuple[int, ...]) -> None:
    model = hogwild.models.Tabular(features=numbers, categories=categories, outputs=2)
    codes = torch.ones(5, len(categories), dtype=torch.long)
    inputs = ([torch.randn(5, numbers)] if numbers else []) + ([codes] if categories else [])
    assert model(*inputs).shape == (5, 2)  # as `Csv` gives them: a field that is empty is left out


@pytest.mark.parametrize("size", [(8, 8), (33, 50)])
def test_a_convolutional_network_takes_pictures_of_any_size(size: tuple[int, int]) -> None:
    model = hogwild.models.ConvNet(classes=7, channels=1, widths=[8, 16, 24])
    assert model(torch.randn(2, 1, *size)).shape == (2, 7)
