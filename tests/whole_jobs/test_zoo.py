"""Models that shared memory, a pickle or a new process could spoil, one of each kind: moved as one worker's plain loop
moves them, bit for bit unless a bound is given here, with torch's names in the caller's model and in the checkpoint; or
refused with a code before a worker starts. More that are refused: `test_structure_file.py`, `test_shared_model.py`.
Tied, sparse, recurrent, frozen and channels-last models: `test_exactness_models.py`."""

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn, optim
from torch.nn.utils import parametrizations, parametrize

import hogwild
from hogwild.errors import HogwildError
from hogwild.storage import checkpoint, checkpoint_format
from tests.helpers.plain_loop import PlainLoop, differing_parameters, train_both
from tests.parameters.test_shared_model import Columns
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

LOOP = PlainLoop(epochs=3)
SAMPLES, FEATURES, CLASSES = 64, 5, 3
SCRIPT_ULPS = 20  # TorchScript fuses after some calls, and a job makes others than a loop

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:`torch.nn.utils.weight_norm`")


def samples(*shape: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, *shape, generator=random), torch.randint(CLASSES, (SAMPLES,), generator=random)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def with_first(change: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    """`layers`, the first of which was changed in place."""

    def make() -> nn.Module:
        model = layers()
        change(model[0], *arguments, **options)
        return model

    return make


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * x


class Recurrent(nn.Module):
    def __init__(self, normed: Callable[..., Any]) -> None:
        super().__init__()
        self.memory, self.out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, CLASSES)
        normed(self.memory, "weight_hh_l0")

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(x[:, :, None])[0][:, -1])


class Pictures(nn.Module):
    """Two parametrizations of one convolution, which keeps its memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv2d(2, 4, 3), nn.Linear(16, CLASSES)
        parametrizations.weight_norm(self.first)
        parametrize.register_parametrization(self.first, "bias", Scaled())

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(x.view(-1, 2, 4, 4))).flatten(1))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turns, self.out = nn.Parameter(torch.randn(FEATURES, 4, dtype=torch.complex64)), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x.to(torch.complex64) @ self.turns).abs())


class Narrow(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(FEATURES, 7, dtype=dtype), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x.to(self.first.weight.dtype))).float())


class Shapeless(nn.Module):
    """A parameter without dimensions, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.none = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.empty(0, 3))
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * self.scale + self.none.sum()


class Packed(nn.Module):
    """Its parameters are columns of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.columns.a) + x @ self.columns.b


class Doubled(nn.Parameter):
    """Counts twice in every product."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = super().__torch_function__(function, types, args, kwargs or {})
        return answer * 2 if function is torch.matmul else answer


class OwnClasses(nn.Module):
    """A class of parameters, and a buffer that carries an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = Doubled(torch.randn(FEATURES, CLASSES)), nn.Buffer(torch.ones(CLASSES))
        self.shift.times = 0.5  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight) + self.shift * self.shift.times  # type: ignore[attr-defined]


class Locked(nn.Linear):
    """Says itself how it is pickled, and passes everything on but its lock."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return super().forward(x)


def hooked() -> nn.Module:
    model = layers()
    first = model[0]
    model.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0.5,))
    model[1].register_forward_hook(lambda _, __, output: output + first.weight.sum())
    model[1].register_full_backward_hook(lambda _, gradients, __: (gradients[0] * 0.1,))
    first.weight.register_hook(lambda gradient: gradient * 2)
    return model


def used_before() -> nn.Module:
    """Keeps what it computed last, with its graph."""

    def keep(module: nn.Module, _: Any, output: Tensor) -> None:
        module.last = output  # type: ignore[assignment]

    model = layers()
    model[1].register_forward_hook(keep)
    model(samples(FEATURES)[0][:2])
    return model


def loaded_script() -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(layers()), file)
    file.seek(0)
    return torch.jit.load(file)  # type: ignore[no-any-return]


def compiled() -> nn.Module:
    return torch.compile(layers(), backend="eager")  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Kind:
    make: Callable[[], nn.Module]
    ulps: float = 0
    shape: tuple[int, ...] = (FEATURES,)


ZOO = {
    "weight_norm": Kind(with_first(parametrizations.weight_norm)),
    "weight_norm of the model itself": Kind(lambda: parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES))),
    "weight_norm by hooks": Kind(with_first(torch.nn.utils.weight_norm)),
    "spectral_norm": Kind(with_first(parametrizations.spectral_norm)),
    "spectral_norm by hooks": Kind(with_first(torch.nn.utils.spectral_norm)),
    "orthogonal": Kind(with_first(parametrizations.orthogonal)),
    "cayley": Kind(with_first(parametrizations.orthogonal, orthogonal_map="cayley")),
    "an LSTM with weight_norm": Kind(lambda: Recurrent(parametrizations.weight_norm)),
    "an LSTM with weight_norm by hooks": Kind(lambda: Recurrent(torch.nn.utils.weight_norm)),
    "pruned": Kind(with_first(nn.utils.prune.l1_unstructured, "weight", amount=0.3)),
    "parametrized convolution": Kind(Pictures, shape=(2, 4, 4)),
    "complex": Kind(Complex),
    "bfloat16": Kind(lambda: Narrow(torch.bfloat16)),
    "float16": Kind(lambda: Narrow(torch.float16)),
    "hooks": Kind(hooked),
    "keeps what it computed": Kind(used_before),
    "own __getstate__ and __setstate__": Kind(Locked),
    "0-d and empty": Kind(Shapeless),
    "columns of one matrix": Kind(Packed),
    "own classes of tensors": Kind(OwnClasses),
    "DataParallel": Kind(lambda: nn.DataParallel(layers())),
    "compiled": Kind(compiled),
    "traced by fx": Kind(lambda: torch.fx.symbolic_trace(layers())),
    "scripted": Kind(lambda: torch.jit.script(layers()), SCRIPT_ULPS),
    "scripted part": Kind(lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), torch.jit.script(layers())), SCRIPT_ULPS),
    "a script from a file": Kind(loaded_script, SCRIPT_ULPS),
    "traced": Kind(lambda: torch.jit.trace(layers(), torch.zeros(2, FEATURES)), SCRIPT_ULPS),
}


def over_all(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def moves_as_plainly(kind: Kind, run: Path, **settings: Any) -> None:
    def make() -> nn.Module:
        torch.manual_seed(5)
        return kind.make()

    x, y = samples(*kind.shape)
    settings = {
        "val": torch.utils.data.TensorDataset(x[:8], y[:8]),
        "model": {"memory_format": "contiguous"},
        **settings,
    }
    both = train_both(make, over_all, (x, y), LOOP, run, **settings)
    if kind.ulps:
        assert both.ulps() <= kind.ulps
    else:
        assert both.differing() == []
    stock, trained = make(), both.ours.state_dict()
    assert differing_parameters(stock, both.ours) != []
    assert list(trained) == list(stock.state_dict())
    path = checkpoint_format.newest_good(run / "checkpoints")[0]
    assert path is not None
    for state in (checkpoint.load(path)["model"], trained):
        stock.load_state_dict(state)
        assert all(torch.equal(value, trained[name]) for name, value in stock.state_dict().items())


@pytest.mark.parametrize("kind", ZOO)
def test_every_kind_of_model_moves_as_the_plain_loop_moves_it(kind: str, tmp_path: Path) -> None:
    moves_as_plainly(ZOO[kind], tmp_path / "run")


@pytest.mark.processes
@pytest.mark.whole
def test_a_worker_process_reads_what_torch_does_not_pickle(tmp_path: Path) -> None:
    """Parametrized, scripted, hooked; in the worker's own copy of the parameters, which is added to the shared ones."""

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(FEATURES, 7), torch.jit.script(nn.Linear(7, 7)), nn.Linear(7, CLASSES))
        parametrizations.spectral_norm(parametrizations.weight_norm(model[0]))
        parametrizations.orthogonal(model[2])
        nn.utils.weight_norm(model[2], "bias", dim=None)
        return model

    moves_as_plainly(Kind(make, SCRIPT_ULPS), tmp_path / "run", procs=1)


# ---- refused --------------------------------------------------------------------------------------------------------


def refused(model: nn.Module, run: Path, procs: int = 1, **settings: Any) -> HogwildError:
    rule = optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(*samples(FEATURES))
    with pytest.raises(HogwildError) as error:
        hogwild.train(model, data, nn.CrossEntropyLoss(), rule, run_dir=run, procs=procs, batch_size=8, **settings)
    return error.value


def script_with_a_view() -> nn.Module:
    model = layers()
    model.table = model[0].weight.data
    return torch.jit.script(model)  # type: ignore[no-any-return]


@pytest.mark.processes
def test_a_view_in_a_script_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    assert refused(script_with_a_view(), tmp_path / "run").code == "model/view"
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
@pytest.mark.parametrize("where", ["transform", "metric"])
def test_a_model_in_a_transform_or_a_metric_is_refused(where: str, tmp_path: Path) -> None:
    model = layers()

    def transform(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + model[0].weight.sum(), y

    def distance(outputs: Tensor, targets: Tensor) -> float:
        return float(model[0].weight.norm())

    distance.higher_is_better = True  # type: ignore[attr-defined]
    data = torch.utils.data.TensorDataset(*samples(FEATURES))
    asked: dict[str, Any] = {"transform": transform} if where == "transform" else {"evaluate": {"metrics": [distance]}}
    assert refused(model, tmp_path / "run", val=data, **asked).code == "model/view"
    assert not (tmp_path / "run").exists()


class Kept(nn.Linear):
    """The loss reaches its weight through a tensor of its constructor alone."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.halved = self.weight * 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.halved.t() + self.bias


def test_a_gradient_that_would_end_in_a_copy_ends_the_job(tmp_path: Path) -> None:
    error = refused(Kept(), tmp_path / "run", procs=0)
    assert error.code == "model/backward-twice"
    assert "computed from parameters before training" in str(error)
