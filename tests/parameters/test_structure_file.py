"""The structure file, and models attached from it."""

import functools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest
import torch
from torch import nn, optim

from hogwild.errors import ModelError
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.structure_file import dump_structure, load_structure
from hogwild.parameters.worker_model import WorkerModel
from hogwild.shared_memory.region import Region
from tests.helpers.processes import PATIENCE_S
from tests.shared_model import (
    ConvNet,
    attach,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    side_by_side,
    train,
    updating,
    vectors,
)


class Tied(nn.Module):
    """An output layer that uses the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x).mean(1))


class Reader(nn.Module):
    """A recurrent network: torch's LSTM holds its parameters a second time, in `_flat_weights`."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def sgd(model: nn.Module, **options: float) -> optim.SGD:
    return optim.SGD(model.parameters(), lr=0.1, **options)


def test_the_workers_parameters_are_the_same_words():
    model = ConvNet()
    worker = attach(build(model, sgd(model)))
    with torch.no_grad():
        worker.model.conv1.bias[2] = 42.0
    assert model.conv1.bias[2] == 42.0
    assert all(p.is_shared() and isinstance(p, nn.Parameter) for p in worker.model.parameters())


def test_no_constructor_runs_in_a_worker():
    class Loud(nn.Linear):
        made = 0

        def __init__(self):
            super().__init__(3, 2)
            Loud.made += 1

    shared = build(model := Loud(), sgd(model))
    random = torch.get_rng_state()
    attach(shared)
    assert Loud.made == 1
    assert torch.equal(torch.get_rng_state(), random)


def test_tied_weights_are_one_object_in_model_and_optimizer():
    shared = build(model := Tied(), sgd(model))
    worker = attach(shared)
    assert model.out.weight is model.words.weight
    assert worker.model.out.weight is worker.model.words.weight
    assert worker.optimizer.param_groups[0]["params"][0] is worker.model.words.weight
    assert len(shared.layout.flats.params) == 1


def test_classes_of_a_script_or_notebook_travel_by_value():
    source = (
        "import torch\nclass Cell(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x) * 2\n"
    )
    scope: dict[str, type[nn.Linear]] = {"__name__": "__main__"}  # type: ignore[dict-item]
    exec(source, scope)
    model = scope["Cell"](3, 2)
    shared = build(model, sgd(model))
    assert b"forward" in shared.structure
    x = torch.ones(1, 3)
    assert torch.equal(attach(shared).model(x), model(x))


def test_attributes_and_hooks_of_parameters_travel():
    model = nn.Linear(5, 2)
    model.weight.tag = "mine"
    model.weight.register_hook(lambda grad: grad * 0)
    before = model.weight.detach().clone()
    worker = attach(shared := build(model, sgd(model)))
    train(updating(shared), vectors(2))
    assert worker.model.weight.tag == "mine"
    assert torch.equal(model.weight, before)


def test_an_optimizer_keeps_attributes_of_its_own():
    class Own(optim.SGD):
        def __init__(self, params):
            super().__init__(params, lr=0.1)
            self.table = {"a": [1, 2]}

    worker = attach(build(model := nn.Linear(2, 2), Own(model.parameters())))
    assert worker.optimizer.table == {"a": [1, 2]}


def test_an_optimizer_with_a_torch_scheduler_attached_travels():
    model = nn.Linear(5, 2)
    rule = sgd(model)
    optim.lr_scheduler.StepLR(rule, 10)
    losses = train(updating(build(model, rule)), vectors(3))
    assert len(losses) == 3


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lock = nn.Linear(2, 2), threading.Lock()


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(Locked())), r"module 1\.0 \(Locked\)"),
        (Locked(), r"module \(the model itself\) \(Locked\)"),
    ],
)
def test_what_cannot_be_pickled_is_named_by_its_module_path(model, place):
    with pytest.raises(ModelError, match=f"{place} cannot be pickled for the workers: .*lock"):
        build(model, sgd(model))


def test_a_loss_that_cannot_be_pickled_is_named():
    lock, model = threading.Lock(), nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"the loss .*cannot be pickled for the workers"):
        SharedModel.build(model, lambda a, b: (a - b).sum() if lock else a, sgd(model), procs=1)


def rebind(model: ConvNet) -> None:
    model.conv2.weight.data = model.conv2.weight.data.clone()


def replace(model: ConvNet) -> None:
    model.conv2.weight = nn.Parameter(model.conv2.weight.detach().clone())


def widen(model: ConvNet) -> None:
    model.double()


def assign(model: ConvNet) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize(
    ("crime", "words"),
    [
        (rebind, r"memory of parameter conv2\.weight was replaced"),
        (replace, r"conv2\.weight was replaced"),
        (widen, r"memory of parameter conv1\.weight was replaced"),
        (assign, r"conv1\.weight was replaced"),
        (lambda m: m.register_parameter("late", nn.Parameter(torch.ones(1))), "gained or lost parameters"),
        (lambda m: m.hidden.add_module("late", nn.Linear(1, 1)), "module hidden gained or lost"),
    ],
)
def test_a_parameter_that_left_the_flat_is_named(crime, words):
    model = ConvNet()
    worker = attach(build(model, sgd(model)))
    worker.check_bound()
    crime(worker.model)
    with pytest.raises(ModelError, match=words):
        worker.check_bound()


def test_a_buffer_of_another_shape_is_named():
    model = nn.BatchNorm1d(3)
    worker = attach(build(model, sgd(model)))
    worker.model.running_mean = torch.zeros(4)
    with pytest.raises(ModelError, match=r"buffer running_mean changed from .* to torch.float32 \(4,\)"):
        worker.check_bound()


class Rewrapping(nn.Linear):
    """Has Parameters of its own wherever it is read."""

    def __setstate__(self, state):
        super().__setstate__(state)
        self.weight = nn.Parameter(self.weight.detach().clone())


class Remade(nn.Linear):
    def __reduce__(self):
        return remade, (self.in_features, self.out_features)


def remade(*sizes: int) -> nn.Module:
    return Remade(*sizes)


class Resetting(nn.Linear):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.weight.data.uniform_(1, 2)


class ForgetsBuffers(nn.BatchNorm1d):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.running_mean = torch.zeros(2)


class Unreadable(nn.Linear):
    def __setstate__(self, state):
        raise LookupError("not here")


class LossWith(nn.Module):
    """A loss that looks at a part of the model."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.scale = part, nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target) + self.scale * self.part.weight.norm()


class Rereading(LossWith):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.part = remade(2, 2)


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (Rewrapping, "model/rebuilt", r"0\.weight becomes another object .*__setstate__"),
        (Remade, "model/rebuilt", r"0\.weight becomes another object .*__reduce__"),
        (Resetting, "model/rebuilt", r"parameter 0\.weight is overwritten when a worker loads the model"),
        (lambda *_: ForgetsBuffers(2), "model/rebuilt", r"0\.running_mean becomes another object"),
        (Unreadable, "model/not-picklable", r"cannot be unpickled .*: LookupError: not here"),
    ],
)
def test_a_class_that_makes_its_tensors_anew_in_a_worker_is_refused_by_name(make, code, words):
    """Every batch would be done, and nothing would have moved."""
    model = nn.Sequential(make(2, 2), nn.Linear(2, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError, match=words) as refused:
        build(model, sgd(model))
    assert refused.value.code == code
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(param.is_shared() for param in model.parameters())


def test_a_worker_that_reads_other_parameters_than_were_written_ends_with_the_same_error():
    model = nn.Sequential(nn.Linear(2, 2))
    shared = build(model, sgd(model))
    other = nn.Sequential(Rewrapping(2, 2))
    structure = dump_structure(shared.layout, (other, nn.CrossEntropyLoss(), sgd(other)))
    with pytest.raises(ModelError, match=r"0\.weight becomes another object"):
        load_structure(structure, shared.regions, 0)


def test_a_loss_and_its_part_of_the_model_stay_one():
    model = nn.Sequential(nn.Linear(2, 2))
    shared = SharedModel.build(model, LossWith(model[0]), sgd(model), procs=1)
    worker = attach(shared)
    assert worker.loss.part is worker.model[0]
    assert not worker.loss.scale.is_shared()
    with pytest.raises(ModelError, match=r"the loss's part\.weight becomes another object"):
        SharedModel.build(model, Rereading(model[0]), sgd(model), procs=1)


class Holding(nn.Module):
    """Keeps what `view` makes of its embedding's weight, and of a buffer."""

    def __init__(self, view) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.register_buffer("seen", torch.zeros(4))
        self.table = view(self)


VIEWS = {
    "data": lambda m: m.words.weight.data,
    "a row in a dict in a list": lambda m: [{"row": m.words.weight.detach()[2]}],
    "an array": lambda m: (m.words.weight.detach().numpy()[::-1],),
    "in a closure": lambda m: functools.partial(torch.add, m.words.weight.detach()),
    "of a buffer": lambda m: m.seen[1:],
    "with its graph": lambda m: m.words.weight.view(-1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_would_keep_the_old_values_is_refused_by_its_attribute(view):
    model = nn.Sequential(Holding(VIEWS[view]))
    whose = "buffer 0.seen" if view == "of a buffer" else "parameter 0.words.weight"
    with pytest.raises(ModelError, match=f"module 0 .Holding. .* attribute table, .*shares memory with {whose}") as no:
        build(model, sgd(model))
    assert no.value.code == "model/view"


def test_a_view_in_the_loss_the_optimizer_or_a_hook_is_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    weight = model[0].weight.data
    rule = sgd(model)
    loss = functools.partial(nn.functional.cross_entropy, weight=weight[0])
    with pytest.raises(ModelError, match=r"the loss \(partial\) .*shares memory with parameter 0\.weight"):
        SharedModel.build(model, loss, rule, procs=1)
    rule.kept = [weight]
    with pytest.raises(ModelError, match=r"the optimizer \(SGD\) .* attribute kept, .*shares memory"):
        build(model, rule)
    model[0].register_forward_hook(lambda *_: weight.sum())
    with pytest.raises(ModelError, match=r"module 0 .* attribute _forward_hooks, .*shares memory"):
        build(model, sgd(model))


def test_parameters_buffers_copies_and_the_rest_of_a_packed_matrix_may_be_kept():
    whole = torch.randn(8)
    model = Holding(lambda m: [m.words.weight, m.seen, m.words.weight.data.clone(), whole[4:]])
    model.packed = nn.Parameter(whole[:4])
    worker = attach(build(model, sgd(model)))
    kept = worker.model.table
    assert kept[0] is worker.model.words.weight
    assert kept[1] is worker.model.seen


def test_the_parents_look_leaves_the_classes_of_a_notebook_as_they_are():
    """cloudpickle, reading a class it knows by value, replaces its attributes, and the globals of its methods."""
    source = (
        "import torch\nclass Cell(torch.nn.Linear):\n    seen = []\n    def forward(self, x):\n"
        "        return super().forward(x) + len(others)\nothers = []\n"
    )
    scope: dict[str, type[nn.Linear]] = {"__name__": "__main__"}  # type: ignore[dict-item]
    exec(source, scope)
    model = scope["Cell"](3, 2)
    seen, forward = type(model).seen, type(model).forward
    build(model, sgd(model))
    assert type(model).seen is seen
    assert type(model).forward is forward


def test_the_class_of_a_parameter_and_the_attributes_of_a_buffer_travel():
    class Doubled(nn.Parameter):
        pass

    model = nn.ParameterList([Doubled(torch.ones(2))])
    model.seen = nn.Buffer(torch.zeros(2))
    model.seen.scale = 3.0
    worker = attach(build(model, sgd(model)))
    assert type(worker.model[0]) is Doubled
    assert worker.model.seen.scale == 3.0


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_script_travels_without_its_numbers_and_reads_the_flats():
    model = torch.jit.script(nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shared = build(model, sgd(model))
    assert len(shared.structure) < 60_000
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    worker = attach(shared)
    x = torch.randn(4, 300)
    assert torch.equal(worker.model.eval()(x), model.eval()(x))
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert torch.equal(worker.model(x), model(x))


CHILD = """
import json, sys, torch
from hogwild.parameters.worker_model import WorkerModel
from hogwild.shared_memory.region import Region
from hogwild.parameters.structure_file import dump_structure, load_structure
from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import images, train
places, path = json.loads(sys.argv[1]), sys.argv[2]
regions = {name: Region.attach(fd, nbytes) for name, (fd, nbytes) in places.items()}
worker = WorkerModel.attach(open(path, "rb").read(), regions, 1)
torch.set_num_threads(1)
train(AutogradUpdate(worker, grad_clip=None), images(3))
print(len({r.descriptor for r in regions.values()}), "torch._dynamo" in sys.modules)
"""


def run_child(structure: bytes, regions: Mapping[str, Region], folder) -> str:
    (folder / "structure").write_bytes(structure)
    places = json.dumps({name: (region.descriptor, region.nbytes) for name, region in regions.items()})
    descriptors = [region.descriptor for region in regions.values()]
    command = [sys.executable, "-c", CHILD, places, str(folder / "structure")]
    child = subprocess.run(
        command,
        pass_fds=descriptors,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": "."},
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


@pytest.mark.whole
@pytest.mark.processes
def test_a_child_process_trains_the_parents_parameters(tmp_path):
    rule = lambda params: optim.SGD(params, lr=0.05, momentum=0.9)  # noqa: E731
    torch.manual_seed(0)
    model = ConvNet()
    shared = build(model, rule(model.parameters()), procs=2)
    assert run_child(shared.structure, shared.regions, tmp_path).split() == ["2", "False"]
    _, plain, _ = side_by_side(ConvNet, rule, images(3))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    inherited = WorkerModel.attach(shared.structure, shared.regions, 1).optimizer.state_dict()
    assert len(inherited["state"]) == 8
    assert shared.snapshot()["optimizer_private"][0] is None


def test_the_structure_holds_no_parameter_values():
    model = nn.Linear(300, 300)
    shared = build(model, sgd(model))
    assert len(shared.structure) < 30_000
    assert pickle.loads(shared.structure).flats.params[0].name == "weight"
