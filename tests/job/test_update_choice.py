"""Kernel or autograd, and who may write which rows meanwhile: decided before anything is shared."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hogwild.cli.samples import sample_files
from hogwild.config.field_types import Component
from hogwild.config.load import Job, job_from_mapping
from hogwild.data import Csv
from hogwild.errors import ModelError, UsageError
from hogwild.feeds.materialise import InTurn
from hogwild.feeds.packed import Packed
from hogwild.job.packed_data import count_classes, pack, packs, require_fitting, sizes_for
from hogwild.job.update_choice import choose, meetings, options_set
from hogwild.kernels.fused import Side


class Update:
    """What a model may offer; nothing of it runs here."""

    name = "factors, SGD"

    def __init__(self, implements: set[str], sides: tuple[Side, ...]) -> None:
        self.implements, self.sides = frozenset(implements), sides


class Factors(nn.Module):
    def __init__(self, users: int = 500, items: int = 40, width: int = 8, offer: Any = None) -> None:
        super().__init__()
        self.user, self.item = nn.Parameter(torch.zeros(users, width)), nn.Parameter(torch.zeros(items, width))
        self.offer = offer if offer is not None else Update({"lr_schedule"}, TWO_SIDES)

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        if isinstance(self.offer, Exception):
            raise self.offer
        return self.offer


TWO_SIDES = (Side("user", ("user",)), Side("item", ("item",)))


def ratings(users: int = 500, items: int = 40, samples: int = 4000) -> Packed:
    random = np.random.default_rng(1)
    user, item = random.integers(users, size=samples), random.integers(items, size=samples)
    arrays = {"user": user.astype(np.int32), "item": item.astype(np.int32), "rating": np.zeros(samples, np.float32)}
    return Packed.of("ratings", "table", arrays, {"users": users, "items": items})


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "model": {"class_path": "a.b"},
        "loss": {"class_path": "torch.nn.MSELoss"},
        "data": {"train": {"class_path": "a.c"}},
    }
    for path, value in changes.items():
        place = values
        *sections, last = path.split("__")
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return job_from_mapping(values, "a test")


def why(given: Job, model: nn.Module, packed: Packed | None = None) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    choice = choose(given, model, nn.MSELoss(), optimizer, packed)
    assert choice.kind == ("fused" if choice.update is not None else "autograd")
    assert choice.why.startswith(choice.kind)
    return choice.why


def test_a_kernel_is_used_where_the_model_offers_one_that_fits() -> None:
    assert why(job(), Factors(), ratings()) == "fused: factors, SGD"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (job(train__update="autograd"), "set by train.update"),
        (job(train__grad_clip=1.0), "factors, SGD does not implement train.grad_clip"),
        (job(train__max_staleness=4), "does not implement train.max_staleness"),
        (job(train__accumulate=2), "does not implement train.accumulate"),
        (job(model__freeze=["user"]), "does not implement model.freeze"),
        (job(model__freeze=[{"params": ["user"], "until": 5}]), "model.freeze, model.freeze until an update"),
        (job(data__transform={"class_path": "a.d"}), "does not implement data.transform"),
        (job(train__grad_clip=1.0, model__freeze=["user"]), "model.freeze, train.grad_clip"),
    ],
)
def test_an_option_that_the_kernel_does_not_implement_is_never_ignored(given: Job, said: str) -> None:
    assert said in why(given, Factors(), ratings())


@pytest.mark.parametrize(
    "given",
    [
        job(lr_schedule__name="linear"),
        job(lr_schedule__warmup_updates=5),
        job(supervise__on_nan="rollback"),
    ],
)
def test_whatever_changes_the_rate_needs_a_kernel_that_follows_it(given: Job) -> None:
    assert why(given, Factors(), ratings()).startswith("fused")
    assert "autograd" in why(given, Factors(offer=Update(set(), ())), ratings())


def test_every_option_at_its_neutral_value_asks_for_nothing() -> None:
    assert options_set(job()) == []


def test_without_an_offer_without_packed_data_or_without_numba_autograd_trains_and_says_why() -> None:
    assert "no compiled kernel" in why(job(), nn.Linear(2, 2))
    assert "needs packed data" in why(job(), Factors(), None)
    assert "momentum" in why(job(), Factors(offer="no momentum here"), ratings())
    missing = ModuleNotFoundError("No module named 'numba'", name="numba")
    assert "pip install 'hogwild[sparse]'" in why(job(), Factors(offer=missing), ratings())
    with pytest.raises(ModuleNotFoundError):
        why(job(), Factors(offer=ModuleNotFoundError("No module named 'mine'", name="mine")), ratings())


def test_a_job_that_insists_on_the_kernel_is_refused_where_there_is_none() -> None:
    given = job(train__update="fused", train__grad_clip=1.0)
    with pytest.raises(
        UsageError, match=r"train\.update: fused: factors, SGD does not implement train\.grad_clip"
    ) as found:
        why(given, Factors(), ratings())
    assert found.value.code == "train/not-fused"
    assert why(job(train__update="fused"), Factors(), ratings()) == "fused: factors, SGD"


# ---- who meets whom -------------------------------------------------------------------------------------------------


def met(model: Factors, packed: Packed, procs: int = 2, blocks: tuple[int, int] | None = None, **changes: Any):  # type: ignore[no-untyped-def]
    return meetings(job(**changes), model.offer, model, packed, procs, blocks)


def test_the_smaller_side_is_copied_where_it_is_small() -> None:
    found = met(Factors(), ratings())
    assert {name: rows.tolist() for name, rows in found.hot.items()} == {"item": list(range(40))}
    assert found.grid is None and "all 40 rows" in found.words[0]


@pytest.mark.slow
def test_two_large_sides_are_a_grid_of_four_blocks_a_side_and_worker() -> None:
    found = met(Factors(users=3000, items=2000, width=64), ratings(3000, 2000), procs=2)
    assert found.grid is not None and found.grid.sides == (8, 8) and not found.hot
    assert "grid of 8 x 8" in found.words[0]


def test_a_grid_has_256_blocks_a_side_at_most_however_many_workers_there_are() -> None:
    model, packed = Factors(users=3000, items=2000, width=64), ratings(3000, 2000)
    for procs, sides in ((64, (256, 256)), (65, (256, 256)), (1024, (256, 256))):
        found = met(model, packed, procs=procs)
        assert found.grid is not None and found.grid.sides == sides


def test_a_resumed_run_keeps_its_grid_whatever_the_number_of_workers() -> None:
    model, packed = Factors(users=3000, items=2000, width=64), ratings(3000, 2000)
    for procs in (1, 2, 5):
        found = met(model, packed, procs=procs, blocks=(8, 8))
        assert found.grid is not None and found.grid.sides == (8, 8)


def test_one_worker_alone_works_cell_by_cell_where_both_sides_are_larger_than_its_cache() -> None:
    large, packed = Factors(users=9000, items=5000, width=64), ratings(9000, 5000)
    for procs in (0, 1):
        found = met(large, packed, procs=procs)
        assert found.grid is not None and found.grid.sides == (4, 4)
    assert met(large, packed, procs=1, train__exchange="direct").grid is None
    assert met(Factors(users=9000, items=500, width=64), ratings(9000, 500), procs=1).grid is None


@pytest.mark.parametrize("changes", [{"train__exchange": "direct"}, {}])
def test_one_worker_or_a_job_that_says_direct_keeps_nobody_apart(changes: dict[str, Any]) -> None:
    found = met(Factors(), ratings(), procs=2 if changes else 1, **changes)
    assert not found.hot and found.grid is None and not found.words


def test_of_one_side_the_most_frequent_rows_are_copied() -> None:
    features = 1 << 20
    model = Factors(users=features, items=1, width=1, offer=Update(set(), (Side("indices", ("user",)),)))
    random = np.random.default_rng(0)
    hot = random.permutation(features)[:50].astype(np.int32)
    indices = np.where(random.random(40_000) < 0.5, random.choice(hot, 40_000), random.integers(features, size=40_000))
    arrays = {
        "indptr": np.arange(0, 40_001, 10), "indices": indices.astype(np.int32), "values": np.ones(40_000, np.float32),
        "target": np.zeros(4000, np.float32),
    }  # fmt: skip
    found = met(model, Packed.of("rows", "csr", arrays, {"features": features}))
    assert {*hot.tolist()} <= {*found.hot["indices"].tolist()}
    assert len(found.hot["indices"]) < features / 10 and "private copies" in found.words[0]


# ---- sizes ----------------------------------------------------------------------------------------------------------


class Sized:
    def __init__(self, users: int, items: int, factors: int = 4) -> None: ...


def test_a_model_takes_the_sizes_it_names_from_the_data_where_the_job_leaves_them_out() -> None:
    path = f"{__name__}.Sized"
    assert sizes_for(Component(class_path=path), ratings().spec.sizes) == {"users": 500, "items": 40}
    assert sizes_for(Component(class_path=path, init_args={"items": 7}), ratings().spec.sizes) == {"users": 500}
    assert sizes_for(Component(class_path=path), {}) == {}
    assert sizes_for(Component(class_path=path), {"users": 5, "items": 6, "factors": 7}) == {"users": 5, "items": 6}
    lenet = Component(class_path="hogwild.models.LeNet")
    assert sizes_for(lenet, {"classes": 3, "channels": 3}) == {"classes": 3, "channels": 3}, "a default of ours yields"


@pytest.mark.parametrize(
    ("sample", "data", "sizes"),
    [
        ("arrays", "hogwild.data.Npz path=data.npz", {"features": 20, "classes": 3, "outputs": 3}),
        ("pictures", "hogwild.data.ImageFolder path=pictures size=8", {"classes": 3, "channels": 3, "features": 192}),
        ("digits", "hogwild.data.Mnist root=digits", {"classes": 10, "channels": 1, "features": 784}),
        ("names", "hogwild.data.Names path=names", {"classes": 3, "symbols": 29}),
        (
            "ratings",
            "hogwild.data.Csv path=ratings.csv target=rating",
            {"features": 2, "categories": [], "classes": 1, "outputs": 1},
        ),
    ],
)
def test_a_data_set_that_is_not_packed_tells_its_sizes(
    sample: str, data: str, sizes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in sample_files(sample).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    class_path, *words = data.split()
    arguments = {key: int(value) if value.isdigit() else value for key, _, value in (w.partition("=") for w in words)}
    job = job_from_mapping(
        {
            "name": "sizes",
            "model": {"class_path": "hogwild.models.Mlp"},
            "data": {"train": {"class_path": class_path, "init_args": arguments}},
        },
        "test",
    )
    assert pack(job, InTurn(1)).sizes == sizes


@pytest.mark.parametrize("given", [{}, {"classes": 5}])
def test_classes_of_a_table_are_counted_only_for_a_model_that_asks(given: dict[str, int], tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("a,b,kind\n" + "".join(f"{row},{row / 2},{row % 3}\n" for row in range(50)))
    table = Csv(str(file), target="kind", target_type="class")
    count_classes(Component(class_path="hogwild.models.Mlp", init_args=given), table)
    assert table.sizes == {"features": 2, "categories": []} | ({} if given else {"classes": 3, "outputs": 3})


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        ({"features": 4}, True),
        ({"features": 5}, False),
        ({"categories": [3, 2]}, True),
        ({"categories": [4, 2]}, True),
        ({"categories": [2, 2]}, False),
        ({"categories": [3]}, False),
        ({"channels": 9}, True),
    ],
)
def test_a_size_of_the_inputs_that_the_job_gives_is_the_one_of_the_data(given: dict[str, Any], is_right: bool) -> None:
    data = SimpleNamespace(sizes={"features": 4, "categories": [3, 2]})
    refused = (
        nullcontext() if is_right else pytest.raises(ModelError, match=r"but the data has .* from model\.init_args")
    )
    with refused:
        require_fitting(Component(class_path="hogwild.models.Tabular", init_args=given), data)
    require_fitting(Component(class_path="mymodel.Net", init_args=given), data)


def test_what_can_be_packed_says_so_itself() -> None:
    assert not packs(nn.Linear) and not packs(object())
