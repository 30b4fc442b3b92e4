"""The flats, and the parent's side: build, snapshot, restore, release, and every reason to refuse a model."""

import copy
import functools
import io
import itertools
import os
import re

import pytest
import torch
from torch import nn, optim
from torch.testing._internal.two_tensor import TwoTensor

from hogwild.errors import CheckpointError, ModelError, OptimizerError
from hogwild.job.parameter_groups import freeze_parameters
from hogwild.parameters import flat_layout, state_dicts
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.state_dicts import check_groups
from tests.shared_model import (
    ConvNet,
    attach,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    train,
    train_plainly,
    updating,
    vectors,
)


def sgd(model: nn.Module, **options: float) -> optim.SGD:
    return optim.SGD(model.parameters(), lr=0.1, **options)


def addresses(model: nn.Module) -> list[tuple[int, int]]:
    return [(p.data_ptr(), p.data_ptr() + p.numel() * p.element_size()) for p in model.parameters()]


# ---- where parameters lie --------------------------------------------------------------------------------------------


def test_there_is_one_flat_per_dtype_and_every_parameter_is_a_view():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double(), nn.Linear(3, 2))
    shared = build(model, sgd(model))
    assert set(shared.regions) == {"params-float32", "params-float64"}
    storages = {p.dtype: set() for p in model.parameters()}
    for param in model.parameters():
        assert param.is_shared()
        storages[param.dtype].add(param.untyped_storage().data_ptr())
    assert {dtype: len(pointers) for dtype, pointers in storages.items()} == {torch.float32: 1, torch.float64: 1}


def test_each_group_is_one_contiguous_span_and_frozen_parameters_have_their_own():
    model = ConvNet()
    model.hidden.weight.requires_grad_(False)
    groups = [{"params": [model.out.weight, model.conv1.weight]}, {"params": [model.hidden.weight, model.conv2.weight]}]
    shared = build(model, optim.SGD(groups, 0.1))
    flats = shared.layout.flats
    names = [[flats.params[i].name for i in span.params] for span in flats.spans]
    assert names[:2] == [["out.weight", "conv1.weight"], ["conv2.weight"]]
    assert set(names[2]) == {"hidden.weight", "conv1.bias", "conv2.bias", "hidden.bias", "out.bias"}
    ends = [span.offset + span.numel for span in flats.spans]
    assert [span.offset for span in flats.spans] == [0, *ends[:-1]]
    assert flats.gradient_sizes == {torch.float32: ends[1]}


class CountedInt(int):
    """A number that counts how often numbers of its class are hashed or compared."""

    looks = 0

    def __hash__(self) -> int:
        CountedInt.looks += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedInt.looks += 1
        return int.__eq__(self, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_many_groups", [False, True])
def test_planning_the_flats_takes_time_in_proportion_to_the_parameters(has_many_groups, monkeypatch):
    """Counted by the numbers of parameters and groups, which all go through `enumerate`."""

    def looks(count: int) -> int:
        params = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(count)])
        rule = optim.SGD([{"params": [param]} for param in params] if has_many_groups else params, 0.1)
        CountedInt.looks = 0
        assert len(flat_layout.plan_flats(params, rule).params) == count
        return CountedInt.looks

    counted = lambda things: ((CountedInt(i), thing) for i, thing in enumerate(things))  # noqa: E731
    monkeypatch.setattr(flat_layout, "enumerate", counted, raising=False)
    few, many = looks(50), looks(400)
    assert 0 < many <= 9 * few


def test_parameters_start_on_cache_lines_and_do_not_overlap():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1, bias=False), nn.Linear(1, 7))
    build(model, sgd(model))
    places = sorted(addresses(model))
    assert all(start % 64 == 0 for start, _ in places)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def test_convolutions_are_channels_last_in_parameters_and_gradients():
    model = ConvNet()
    shared = build(model, sgd(model))
    worker = attach(shared)
    x, y = images(1)[0]
    update = updating(shared)
    update.backward((x,), y)
    update.apply(None)
    assert shared.uses_channels_last
    for weight in (model.conv2.weight, worker.model.conv2.weight, update._model.conv2.weight):
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert not weight.is_contiguous()
    weight = update._model.conv2.weight
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    assert (
        weight.grad.untyped_storage().data_ptr() == update._gradients.flats[torch.float32].untyped_storage().data_ptr()
    )


@pytest.mark.parametrize(("wish", "expected"), [("contiguous", False), ("channels_last", True), ("auto", True)])
def test_the_memory_format_can_be_chosen(wish, expected):
    model = ConvNet()
    shared = build(model, sgd(model), memory_format=wish)
    assert shared.uses_channels_last is expected
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last) is expected


def test_without_a_convolution_the_format_stays():
    shared = build(model := nn.Linear(3, 2), sgd(model))
    assert not shared.uses_channels_last


def test_a_checkpoint_of_one_memory_format_is_gone_on_with_in_the_other():
    torch.manual_seed(0)
    model = ConvNet()
    shared = build(model, optim.Adam(model.parameters()))
    assert shared.uses_channels_last
    train(updating(shared), images(2))
    snapshot = through_a_file(shared.snapshot())
    again = ConvNet()
    plain = build(again, optim.Adam(again.parameters()), memory_format="own")
    plain.restore(snapshot)
    assert not plain.uses_channels_last and again.conv2.weight.is_contiguous()
    assert same_bits(again, model)
    kept = plain.snapshot()
    for i, own in snapshot["optimizer"]["state"].items():
        assert all(torch.equal(kept["optimizer"]["state"][i][key], value) for key, value in own.items())


class Grouped(nn.Module):
    """Weights whose memory format says little: one channel, one pixel, groups; and those of another rank."""

    def __init__(self):
        super().__init__()
        self.one, self.pixel = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 1)
        self.grouped, self.up = nn.Conv2d(6, 6, 3, groups=6), nn.ConvTranspose2d(6, 4, 2)
        self.table = nn.Parameter(torch.rand(2, 1, 4, 1, 1))
        self.line = nn.Conv1d(3, 3, 3)

    def forward(self, x):
        x = self.up(self.grouped(self.pixel(self.one(x))))
        return (x * self.table.mean(0)).mean((2, 3))


@pytest.mark.parametrize("wish", ["auto", "channels_last", "contiguous"])
def test_only_tensors_of_four_dimensions_are_laid_out_anew_and_all_train_as_before(wish):
    model = Grouped()
    strides = {name: param.stride() for name, param in model.named_parameters()}
    plain = copy.deepcopy(model)
    shared = build(model, sgd(model), memory_format=wish)
    if wish != "contiguous":
        for tensor in (param for param in plain.parameters() if param.dim() == 4):
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    assert [p.stride() for p in model.parameters()] == [p.stride() for p in plain.parameters()]
    formats = {"memory_format": torch.contiguous_format if wish == "contiguous" else torch.channels_last}
    batches = [(x.to(**formats), y) for x, y in images(3)]
    train(updating(shared), batches)
    train_plainly(plain, sgd(plain), batches)
    shared.release()
    assert same_bits(model, plain)
    assert {name: param.stride() for name, param in model.named_parameters()} == strides


def test_an_unknown_memory_format_or_state_is_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(ModelError, match="auto, contiguous or channels_last, got 'nhwc'"):
        build(model, sgd(model), memory_format="nhwc")
    with pytest.raises(OptimizerError, match="private or shared, got 'both'"):
        build(model, sgd(model), state="both")


def test_share_memory_called_again_keeps_the_views():
    model = ConvNet()
    build(model, sgd(model))
    before = addresses(model)
    model.share_memory()
    assert addresses(model) == before


def test_gradients_are_gone_before_sharing():
    model = nn.Linear(5, 2)
    train_plainly(model, sgd(model), vectors(1))
    build(model, sgd(model))
    assert all(param.grad is None for param in model.parameters())


def test_four_hundred_parameters_cost_a_few_descriptors():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(100)))
    before = len(os.listdir("/proc/self/fd"))
    shared = build(model, optim.Adam(model.parameters()), procs=8)
    assert len(shared.layout.flats.params) == 400
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * len(shared.regions) == 6


@pytest.mark.parametrize("procs", [0, 1, 5])
@pytest.mark.parametrize("state", ["private", "shared"])
def test_bytes_needed_is_what_build_allocates(procs, state):
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 2))
    rule = optim.Adam(model.parameters())
    needed = SharedModel.bytes_needed(model, rule, procs=procs, state=state)
    assert not model[0].weight.is_shared()
    regions = build(model, rule, procs, state=state).regions
    assert needed == {name: region.nbytes for name, region in regions.items()}


def test_with_no_processes_there_is_one_worker():
    model = nn.Linear(5, 2)
    shared = build(model, sgd(model, momentum=0.9), procs=0)
    train(updating(shared), vectors(2))
    assert shared.layout.workers == 1


# ---- what is refused -------------------------------------------------------------------------------------------------


def holding(**tensors: torch.Tensor) -> nn.Module:
    return nn.ParameterDict({name: nn.Parameter(tensor) for name, tensor in tensors.items()})


def real_part() -> nn.Module:
    whole = torch.zeros(4, dtype=torch.complex64)
    return holding(a=whole, b=torch.view_as_real(whole)[:, 1])


class Aliased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Parameter(self.a.weight.data[1:])


class Columns(nn.Module):
    """The first three columns of a matrix, and the rest from `start` on."""

    def __init__(self, start: int = 3) -> None:
        super().__init__()
        whole = torch.randn(5, 6)
        self.a, self.b = nn.Parameter(whole[:, :3]), nn.Parameter(whole[:, start:])


class ViewInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("seen", self.fc.weight.data[1])


class OwnParameters(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3), nn.Linear(3, 2))

    def parameters(self, recurse: bool = True):
        return self[1].parameters(recurse)


class OwnNames(OwnParameters):
    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True):
        return self[1].named_parameters("1")


class SparseBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("graph", torch.eye(3).to_sparse(), persistent=False)


class OnMeta(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.far = nn.Linear(2, 2, device="meta")


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)), r"parameter 1\.weight is lazy"),
        (OnMeta, r"parameter far\.weight is on meta; .*to_empty"),
        (SparseBuffer, r"buffer graph has the layout torch\.sparse_coo"),
        (lambda: holding(w=torch.zeros(1).expand(4)), r"parameter w has several elements at one address"),
        (
            lambda: holding(w=torch.zeros(6).as_strided((4, 3), (1, 1))),
            r"parameter w has several elements at one address",
        ),
        (Aliased, r"parameter a\.weight and parameter b are different tensors over the same memory"),
        (functools.partial(Columns, 2), r"parameter a and parameter b are different tensors over the same memory"),
        (real_part, r"parameter a and parameter b are different tensors over the same memory"),
        (ViewInBuffer, r"parameter fc\.weight and buffer seen are different tensors over the same memory"),
        (OwnParameters, r"OwnParameters overrides parameters\(\) or named_parameters\(\)"),
        (OwnNames, r"OwnNames overrides parameters\(\) or"),
        (lambda: nn.ParameterList([TwoTensor(torch.zeros(2), torch.zeros(2))]), r"parameter 0 is a TwoTensor"),
        (frozen, r"no trainable parameter"),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused_by_name(make, words):
    model = make()
    with pytest.raises(ModelError, match=words):
        build(model, sgd(model))


def test_columns_of_one_matrix_are_two_parameters():
    model = Columns()
    before = [param.detach().clone() for param in model.parameters()]
    build(model, sgd(model))
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def test_parameters_of_another_model_are_refused():
    model, other = nn.Linear(2, 2), nn.Linear(2, 3)
    groups = [{"params": model.parameters()}, {"params": other.parameters()}]
    with pytest.raises(OptimizerError, match=r"parameter 0 of the optimizer's group 1 \(shape \(3, 2\)\)"):
        build(model, optim.SGD(groups, 0.1))


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(OptimizerError, match=r"the optimizer is a str"):
        build(nn.Linear(2, 2), "sgd")  # type: ignore[arg-type]


# ---- snapshot and restore --------------------------------------------------------------------------------------------


def through_a_file(snapshot: dict) -> dict:
    file = io.BytesIO()
    torch.save(snapshot, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x))


def trained(procs: int, batches: int = 4, state: str = "private") -> tuple[Normed, SharedModel]:
    torch.manual_seed(0)
    model = Normed()
    shared = build(model, optim.Adam(model.parameters(), fused=False), procs=procs, state=state)
    for k in range(procs):
        train(updating(shared, k), vectors(batches, seed=k))
    shared.merge_buffers([batches] * procs)
    return model, shared


def test_a_snapshot_is_private_and_loads_into_stock_torch():
    model, shared = trained(2)
    snapshot = shared.snapshot()
    weight = snapshot["model"]["out.weight"]
    before = weight.clone()
    train(updating(shared, 0), vectors(3))
    assert torch.equal(weight, before)
    assert not weight.is_shared()
    stock = Normed()
    stock.load_state_dict(through_a_file(snapshot)["model"])
    rule = optim.Adam(stock.parameters())
    rule.load_state_dict(snapshot["optimizer"])
    train_plainly(stock, rule, vectors(1))
    assert float(rule.state[stock.out.weight]["step"]) == 5.0
    assert torch.equal(model.out.weight, attach(shared).model.out.weight)


def test_other_procs_take_regions_in_turn_and_the_log_hears_of_it():
    _, shared = trained(2)
    snapshot = through_a_file(shared.snapshot())
    again = Normed()
    resumed = build(again, optim.Adam(again.parameters()), procs=5)
    words = resumed.restore(snapshot)
    assert words is not None
    assert "of 2 workers restored onto 5" in words
    old = [private["state"][0]["exp_avg"] for private in snapshot["optimizer_private"]]
    assert not torch.equal(old[0], old[1])
    new = [attach(resumed, k).optimizer.state_dict()["state"][0]["exp_avg"] for k in range(5)]
    assert all(torch.equal(new[k], old[k % 2]) for k in range(5))


def test_a_worker_that_never_trained_has_no_state():
    model = Normed()
    shared = build(model, optim.Adam(model.parameters()), procs=2)
    train(updating(shared, 1), vectors(1))
    private = shared.snapshot()["optimizer_private"]
    assert private[0] is None
    assert set(private[1]["state"]) == {0, 1, 2, 3}


def test_rates_in_a_snapshot_are_the_groups_own():
    model = nn.Linear(5, 2)
    shared = build(model, sgd(model))
    update = updating(shared)
    update.backward(*(lambda x, y: ((x,), y))(*vectors(1)[0]))
    update.apply(0.125)
    assert shared.snapshot()["optimizer"]["param_groups"][0]["lr"] == 0.1


def test_tied_parameters_are_one_tensor_in_a_snapshot():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    saved = build(model, sgd(model)).snapshot()["model"]
    assert saved["0.weight"] is saved["1.weight"]


class Renames(Normed):
    """Saves itself under other names, without the norm; nothing of that is undone by a load."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.register_state_dict_post_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state: dict, prefix: str, metadata: dict) -> None:
        for name in list(state):
            value = state.pop(name)
            if not name.startswith("norm."):
                state[f"net.{name}"] = value
        state["saved_by"] = "us"


class NestsItsState(Normed):
    """Saves itself in a form of its own, and refuses to be loaded in any other."""

    def state_dict(self, *args, **kwargs):
        return {"net": super().state_dict(*args, **kwargs), "epoch": 3}

    def load_state_dict(self, state_dict, *args, **kwargs):
        return super().load_state_dict(state_dict["net"], *args, **kwargs)


class LoadsOnlyItsOwn(Normed):
    def _load_from_state_dict(self, *args) -> None:
        raise KeyError("renamed long ago")


@pytest.mark.parametrize("kind", [Renames, NestsItsState, LoadsOnlyItsOwn])
def test_a_model_goes_back_to_a_snapshot_whatever_its_own_state_dict_and_load_do(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    rule = optim.Adam(model.parameters())
    rule.register_state_dict_post_hook(lambda rule, state: {"wrapped": state})
    shared = build(model, rule)
    train(updating(shared), vectors(3))
    shared.merge_buffers([3])
    snapshot = through_a_file(shared.snapshot())
    saved = copy.deepcopy(dict([*model.named_parameters(), *model.named_buffers()]))
    train(updating(shared), vectors(2, seed=1))
    shared.merge_buffers([2])
    again = kind()
    for target, its_model in ((shared, model), (build(again, optim.Adam(again.parameters())), again)):
        target.restore(snapshot)
        found = dict([*its_model.named_parameters(), *its_model.named_buffers()])
        assert found.keys() == saved.keys() and all(torch.equal(found[name], saved[name]) for name in saved)
        assert state_dicts.checked_state(target.layout.state, [*saved], target.optimizer, snapshot["optimizer"])[0]
    own = snapshot["model"]
    assert own.keys() == model.state_dict().keys(), "what is exported is what the model says of itself"


PARTS = {"model", "optimizer", "optimizer_names", "optimizer_private", "optimizer_updates"}


def test_an_ordinary_models_snapshot_holds_every_tensor_once_and_under_its_own_name_alone() -> None:
    _, shared = trained(1)
    assert shared.snapshot().keys() == {
        "model",
        "optimizer",
        "optimizer_names",
        "optimizer_private",
        "optimizer_updates",
    }
    file = io.BytesIO()
    torch.save(build(model := Renames(), sgd(model)).snapshot(), file)
    assert len(file.getvalue()) < 2 * sum(t.nbytes for t in (*model.parameters(), *model.buffers())) + 8192


class Extra(Normed):
    def get_extra_state(self) -> dict:
        return {"words": ["a", "b"]}

    def set_extra_state(self, state: dict) -> None:
        self.words = state["words"]


def test_what_a_module_keeps_besides_comes_back_where_there_is_such_a_module_and_is_refused_elsewhere() -> None:
    snapshot = through_a_file(build(model := Extra(), sgd(model)).snapshot())
    assert snapshot.keys() == PARTS
    again = Extra()
    build(again, sgd(again)).restore(snapshot)
    assert again.words == ["a", "b"]
    plain = Normed()
    with pytest.raises(CheckpointError, match="this model lacks _extra_state"):
        build(plain, sgd(plain)).restore(snapshot)


class KeepsHistory(Normed):
    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(size), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.history.add_(x.mean(0))
        return super().forward(x)


def test_a_buffer_that_is_not_persistent_goes_back_too_and_is_not_exported() -> None:
    model = KeepsHistory()
    shared = build(model, sgd(model))
    train(updating(shared), vectors(2))
    shared.merge_buffers([2])
    snapshot, before = through_a_file(shared.snapshot()), model.history.clone()
    train(updating(shared), vectors(1))
    shared.merge_buffers([1])
    assert not torch.equal(model.history, before)
    shared.restore(snapshot)
    assert torch.equal(model.history, before) and torch.equal(attach(shared).model.history, before)
    assert "history" not in snapshot["model"]
    longer = KeepsHistory(7)  # it is derived: another program may make it otherwise
    build(longer, sgd(longer)).restore(snapshot)
    assert torch.equal(longer.history, torch.zeros(7)) and torch.equal(
        longer.out.weight, snapshot["model"]["out.weight"]
    )


def spoil(snapshot: dict, path: list, value: object) -> dict:
    place = snapshot
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return snapshot


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["model", "out.weight"], torch.zeros(3, 5), r"out\.weight: shape \(3, 5\) in the checkpoint, \(2, 5\)"),
        (
            ["model", "out.bias"],
            torch.zeros(2).double(),
            r"out\.bias: torch\.float64 in the checkpoint, torch\.float32",
        ),
        (["model", "extra"], torch.zeros(1), r"this model lacks extra"),
        (["model", "out.bias"], 3, r"out\.bias: the checkpoint has 3"),
        (
            ["optimizer_private", 0, "state", 2, "exp_avg"],
            torch.zeros(7),
            r"exp_avg of parameter out\.weight: shape \(7,\) in the checkpoint, \(2, 5\)",
        ),
        (
            ["optimizer_private", 0, "state", 3, "sum"],
            torch.zeros(2),
            r"sum for parameter out\.bias, which Adam does not",
        ),
        (["optimizer_private", 0, "param_groups"], [{"params": [0]}], r"groups of \[1\] parameters, this one of \[4\]"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_and_changes_nothing(path, value, words):
    _, shared = trained(1)
    snapshot = spoil(shared.snapshot(), path, value)
    again = Normed()
    before = {k: v.clone() for k, v in again.state_dict().items()}
    resumed = build(again, optim.Adam(again.parameters()))
    with pytest.raises(CheckpointError, match=words):
        resumed.restore(snapshot)
    assert all(torch.equal(v, before[k]) for k, v in again.state_dict().items())


def checked(now: optim.Optimizer, before: optim.Optimizer, model: nn.Module) -> str:
    """Return the words with which a job of `now` refuses the saved groups of `before`; '' if it does not."""
    shared = build(model, now)
    saved = through_a_file({"groups": before.state_dict()["param_groups"]})["groups"]
    try:
        check_groups(shared.layout.state, now, saved)
    except CheckpointError as error:
        return str(error)
    finally:
        shared.release()
    return ""


@pytest.mark.parametrize(
    ("rule", "before", "now", "words"),
    [
        (optim.SGD, {"lr": 0.5}, {"lr": 0.1}, "lr of group 0 was 0.5, now 0.1"),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.8}, "momentum of group 0 was 0.9, now 0.8"),
        (
            optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "nesterov": True},
            {"lr": 0.1, "momentum": 0.9},
            "nesterov of group 0 was True, now False",
        ),
        (optim.SGD, {"lr": 0.1}, {"lr": 0.1, "maximize": True}, "maximize of group 0 was False, now True"),
        (optim.Adam, {}, {"betas": (0.8, 0.999)}, r"betas of group 0 was \(0.9, 0.999\), now \(0.8, 0.999\)"),
        (optim.Adam, {}, {"weight_decay": 0.1, "eps": 1e-6}, r"eps of .* was 1e-08, now 1e-06; weight_decay of .*0.1"),
        (optim.Adam, {"lr": torch.tensor(0.01)}, {"lr": torch.tensor(0.02)}, "lr of group 0 was 0.0099.*, now 0.0199"),
        (optim.Adam, {"lr": torch.tensor(0.01)}, {"lr": 0.02}, "lr of group 0 was 0.0099.*, now 0.02"),
        (optim.Adafactor, {"beta2_decay": -0.8}, {"beta2_decay": -0.7}, "beta2_decay of group 0 was -0.8, now -0.7"),
    ],
)
def test_other_hyper_parameters_than_the_checkpoints_are_refused_with_both_values(rule, before, now, words):
    model = nn.Linear(5, 2)
    said = checked(rule(model.parameters(), **now), rule(model.parameters(), **before), model)
    assert re.search(f"^the optimizer {rule.__name__} has other hyper-parameters than the checkpoint: {words}", said)


def test_the_group_that_differs_is_named():
    model = Normed()

    def rule(lr: float) -> optim.Optimizer:
        return optim.SGD([{"params": model.norm.parameters()}, {"params": model.out.parameters(), "lr": lr}], lr=0.1)

    assert "lr of group 1 was 0.2, now 0.3" in checked(rule(0.3), rule(0.2), model)
    fewer = optim.SGD(model.parameters(), lr=0.1)
    assert "groups of [2, 2] parameters, this one of [4]" in checked(fewer, rule(0.2), model)


class CountsSteps(optim.SGD):
    """Counts in its group, as schedule-free rules do."""

    def __init__(self, params, count: int = 0) -> None:
        super().__init__(params, lr=0.1)
        self.param_groups[0]["count"] = count

    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["count"] += 1


def test_what_is_computed_otherwise_counted_or_of_another_version_is_no_difference():
    model = nn.Linear(5, 2)
    own = list(model.parameters())
    same: list[tuple[optim.Optimizer, optim.Optimizer]] = [
        (optim.Adam(own, foreach=True), optim.Adam(own, fused=True)),
        (optim.Adam(own), optim.Adam(own, capturable=True, differentiable=True)),
        (optim.Adam(own, lr=torch.tensor(0.01)), optim.Adam(own, lr=0.01)),
        (optim.Adam(own, lr=0.01), optim.Adam(own, lr=torch.tensor(0.01))),
        (optim.Adam(own, betas=[0.9, 0.99]), optim.Adam(own, betas=(0.9, 0.99))),  # type: ignore[arg-type]
        (CountsSteps(own), CountsSteps(own, count=7)),
    ]
    for now, before in same:
        assert checked(now, before, model) == ""
    older = optim.Adam(own)
    del older.param_groups[0]["decoupled_weight_decay"]
    assert checked(optim.Adam(own), older, model) == ""
    of_a_scheduler = optim.Adam(own)
    of_a_scheduler.param_groups[0]["initial_lr"] = 0.5
    assert checked(optim.Adam(own), of_a_scheduler, model) == ""


def test_a_snapshot_without_a_part_is_refused():
    _, shared = trained(1)
    with pytest.raises(CheckpointError, match="the checkpoint lacks optimizer; it holds model"):
        shared.restore({"model": shared.snapshot()["model"]})


def test_a_parameter_that_is_not_finite_is_seen():
    model = ConvNet()
    shared = build(model, sgd(model))
    assert shared.finite()
    with torch.no_grad():
        attach(shared).model.conv2.bias[1] = float("nan")
    assert not shared.finite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_number_is_found_wherever_it_is(
    dtype: torch.dtype, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dicts, "PIECE", 8)
    values = torch.linspace(-2, 2, 3 * 5 * 7).to(dtype).view(3, 5, 7).permute(0, 2, 1)
    assert state_dicts.is_finite(values)
    for at in ((0, 0, 0), (1, 3, 2), (2, 6, 4)):
        spoilt = values.clone(memory_format=torch.preserve_format)
        spoilt[at] = bad
        assert not state_dicts.is_finite(spoilt)


def test_numbers_near_the_end_of_the_range_are_finite_and_so_are_no_numbers() -> None:
    largest = torch.finfo(torch.float32).max
    assert state_dicts.is_finite(torch.tensor([largest, largest, -largest]))  # their sum is not
    assert state_dicts.is_finite(torch.empty(0)) and state_dicts.is_finite(torch.tensor([True, False]))


def test_a_snapshot_touches_neither_the_model_nor_the_optimizer() -> None:
    """It is taken beside the loop of a supervisor, which may give both back to the caller meanwhile."""
    model = ConvNet()
    rule = optim.Adam(model.parameters(), lr=0.125)
    shared = build(model, rule)
    train(updating(shared, 0), images(2))
    state, groups = rule.state, rule.param_groups
    seen: list[bool] = []

    class Watch:
        """Copied while the snapshot is taken."""

        def __deepcopy__(self, memo: dict) -> "Watch":
            seen.append(rule.state is state and rule.param_groups is groups)
            return self

    groups[0]["watch"] = Watch()
    before = [dict(group) for group in groups]
    snapshot = shared.snapshot()
    assert seen and all(seen) and snapshot["optimizer"]["state"][0]["step"] == 2
    assert rule.state is state and rule.param_groups is groups and [dict(group) for group in groups] == before


# ---- release ---------------------------------------------------------------------------------------------------------


def test_release_leaves_the_result_in_private_memory_in_the_same_objects():
    model = ConvNet()
    params, strides = list(model.parameters()), [p.stride() for p in model.parameters()]
    rule = sgd(model, momentum=0.9)
    shared = build(model, rule, procs=2)
    train(updating(shared, 0), images(3))
    result = [p.detach().clone() for p in params]
    momentum = shared.snapshot()["optimizer"]["state"][0]["momentum_buffer"]
    shared.release()
    assert all(a is b for a, b in zip(model.parameters(), params, strict=True))
    assert [p.stride() for p in params] == strides
    assert all(torch.equal(p, r) for p, r in zip(params, result, strict=True))
    assert not any(p.is_shared() for p in params)
    assert torch.equal(rule.state[params[0]]["momentum_buffer"], momentum)
    assert not rule.state[params[0]]["momentum_buffer"].is_shared()
    train_plainly(model, rule, images(2, seed=1))


def test_release_brings_buffers_home():
    model, shared = trained(2)
    mean = model.norm.running_mean.clone()
    shared.release()
    assert torch.equal(model.norm.running_mean, mean)
    assert not model.norm.running_mean.is_shared()


# ---- freezing --------------------------------------------------------------------------------------------------------


def test_freezing_by_pattern_returns_the_names():
    model = ConvNet()
    assert freeze_parameters(model, ["conv*", "out.bias"]) == [
        "conv1.weight",
        "conv1.bias",
        "conv2.weight",
        "conv2.bias",
        "out.bias",
    ]
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "hidden.weight",
        "hidden.bias",
        "out.weight",
    ]


@pytest.mark.parametrize(("pattern", "near"), [("conv1.wieght", "conv1.weight"), ("hidden", "hidden.weight")])
def test_a_pattern_that_freezes_nothing_is_an_error_with_near_names(pattern, near):
    model = ConvNet()
    with pytest.raises(ModelError, match=f"'{pattern}' matches no parameter; similar names: .*{near}"):
        freeze_parameters(model, ["conv2.*", pattern])
    assert all(p.requires_grad for p in model.parameters())


def test_the_state_of_the_first_worker_that_trained_stands_for_all():
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    shared = build(model, optimizer, procs=3)
    update = updating(shared, worker=1)  # worker 0 was still starting when the job was over
    update.backward((torch.ones(4, 3),), torch.zeros(4, dtype=torch.int64))
    update.apply(None)
    assert shared.snapshot()["optimizer"]["state"].keys() == {0, 1}
    shared.release()
    assert optimizer.state_dict()["state"].keys() == {0, 1}
