"""Kernel or autograd, and who may write which rows meanwhile: decided before anything is shared."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hogwild.cli.catalog import sample_files
from hogwild.config.load import Job, job_from_mapping
from hogwild.config.schema import Component
from hogwild.data import Csv
from hogwild.errors import ModelError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.host import Cores
from hogwild.job.data import count_classes, pack, packs, require_fitting, sizes_for
from hogwild.job.foreseen_kernels import options_set
from hogwild.job.update_choice import choose, estimate_conflicts, sides_of
from hogwild.kernels.fused import Side
from hogwild.planning.cpu_plan import MachineFacts
from hogwild.planning.job_plan import JobFacts, completed, plan_job
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.grid_plan import NO_GRID, Shape, grid_shape


class Update:
    """A model's offers; nothing of them runs here."""

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


def test_without_an_offer_without_packed_data_or_without_numba_autograd_trains_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "no compiled kernel" in why(job(), nn.Linear(2, 2))
    assert "needs packed data" in why(job(), Factors(), None)
    assert "momentum" in why(job(), Factors(offer="no momentum here"), ratings())
    with pytest.raises(ModuleNotFoundError):
        why(job(), Factors(offer=ModuleNotFoundError("No module named 'mine'", name="mine")), ratings())
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "pip install 'hogwild[sparse]'" in why(job(), Factors(), ratings())


def test_a_job_that_insists_on_the_kernel_is_refused_where_there_is_none() -> None:
    given = job(train__update="fused", train__grad_clip=1.0)
    with pytest.raises(
        UsageError, match=r"train\.update: fused: factors, SGD does not implement train\.grad_clip"
    ) as found:
        why(given, Factors(), ratings())
    assert found.value.code == "train/not-fused"
    assert why(job(train__update="fused"), Factors(), ratings()) == "fused: factors, SGD"


# ---- who meets whom -------------------------------------------------------------------------------------------------


def met(model: Factors, packed: Packed, procs: int = 2, shape: Shape | None = None, **changes: Any):  # type: ignore[no-untyped-def]
    plan = plan_job(job(train__procs=procs, **changes), MachineFacts(Cores(4, None, 4.0, "of a test"), {}))
    facts = JobFacts(
        feed="packed",
        epoch=BatchPlan(packed.samples, 64),
        why="",
        is_fused=True,
        sides=sides_of(model.offer, model),
        grid_before=shape,
    )
    plan = completed(plan, facts)
    return estimate_conflicts(
        model.offer,
        model,
        packed,
        writers=plan.writers,
        grid=plan.grid,
        copied=plan.copied,
        may_copy=plan.may_copy,
    )


def test_two_sides_are_a_grid_also_for_one_worker_and_for_a_job_that_says_direct() -> None:
    for procs, changes in ((0, {}), (1, {}), (2, {}), (2, {"train__exchange": "delta"})):
        found = met(Factors(), ratings(), procs=procs, **changes)
        assert found.grid is not None and not found.hot
        rows, columns, starts = found.grid.shape
        assert (rows, columns, starts) == (2, 2 * max(1, procs), 2)
        assert f"a grid of {rows} x {columns} blocks of user and item" in found.words[0]


@pytest.mark.parametrize(("items", "procs", "is_copied"), [(40, 2, True), (40, 1, False), (9000, 2, False)])
def test_a_run_that_had_no_grid_goes_on_without_one(items: int, procs: int, is_copied: bool) -> None:
    found = met(Factors(9000, items), ratings(9000, items), procs=procs, shape=NO_GRID, train__exchange="delta")
    assert found.grid is None and bool(found.hot) == is_copied


def test_the_smaller_side_is_copied_where_it_has_too_few_rows_to_keep_workers_apart() -> None:
    model, packed = Factors(items=15), ratings(items=15)
    found = met(model, packed, procs=2, train__exchange="delta")
    assert {name: rows.tolist() for name, rows in found.hot.items()} == {"item": list(range(15))}
    assert found.grid is None and "all 15 rows" in found.words[0]
    assert met(Factors(items=7), ratings(items=7), procs=1).grid is not None
    assert met(Factors(items=16), ratings(items=16), procs=2).grid is not None


@pytest.mark.parametrize(("items", "procs", "is_copied"), [(40, 2, True), (40, 1, False), (9000, 2, False)])
def test_a_side_that_is_drawn_has_no_grid(items: int, procs: int, is_copied: bool) -> None:
    sides = TWO_SIDES[0], Side("item", ("item",), is_drawn=True)
    model, packed = Factors(9000, items, offer=Update(set(), sides)), ratings(9000, items)
    found = met(model, packed, procs=procs, train__exchange="delta")
    assert found.grid is None and bool(found.hot) == is_copied
    assert not met(model, packed, procs=procs).hot
    assert met(model, packed, procs=procs, shape=(2, 4, 2)).grid is not None, "a resumed run keeps its cells"


@pytest.mark.parametrize(
    ("samples", "procs", "columns", "width", "shape"),
    [
        (4000, 2, 40, 32, (2, 4, 2)),  # a row block and two columns for each worker, though they are small
        (4000, 1, 40, 32, (2, 2, 2)),  # a run of one worker may go on with two
        (1_000_000, 2, 60_000, 68, (2, 32, 2)),  # row blocks of a quarter of a million ratings at least
        (10_000_000, 2, 60_000, 68, (8, 32, 2)),  # four for each worker: the fastest can have more
        (100_000_000, 3, 60_000, 68, (45, 32, 3)),  # of two million ratings at most
        (10**10, 2, 60_000, 68, (256, 32, 2)),
        (10_000_000, 8, 60_000, 68, (32, 64, 8)),  # two workers seldom want the same column
        (10_000_000, 2, 60_000, 680, (8, 104, 2)),  # a column's numbers stay in the cache
        (10_000_000, 2, 60_000, 6800, (8, 256, 2)),
        (10_000_000, 2, 480, 680, (8, 30, 2)),  # columns of 16 items at least
        (500_000, 4, 60_000, 680, (4, 61, 4)),  # cells of 2048 ratings at least
    ],
)
def test_a_grid_has_as_many_blocks_as_the_work_bears(
    samples: int, procs: int, columns: int, width: int, shape: Shape
) -> None:
    assert grid_shape(samples, procs, columns, width) == shape


@pytest.mark.parametrize("procs", [64, 65, 128, 200, 256, 300, 1024])
def test_a_grid_has_256_blocks_a_side_at_most_however_many_workers_there_are(procs: int) -> None:
    rows, columns, _ = grid_shape(100_000_000, procs, 60_000, 680)
    assert rows <= 256 and columns <= 256
    found = met(Factors(users=9000, items=9000, width=64), ratings(9000, 9000), procs=procs)
    assert found.grid is not None and max(found.grid.shape[:2]) <= 256


def test_a_block_that_keeps_workers_waiting_for_each_other_is_said() -> None:
    packed = ratings()
    assert len(met(Factors(), packed).words) == 1
    packed.arrays()["item"][:3400] = 7  # a popular item
    _, crowded = met(Factors(), packed).words
    assert crowded == "85% of the samples are of one block of item ids: about 1 worker can be busy at once"
    assert len(met(Factors(), packed, procs=1).words) == 1, "nobody to wait for"


def test_a_resumed_run_keeps_its_grid_whatever_the_number_of_workers() -> None:
    model, packed = Factors(users=3000, items=2000, width=64), ratings(3000, 2000)
    for procs in (1, 2, 5):
        found = met(model, packed, procs=procs, shape=(8, 9, 3))
        assert found.grid is not None and found.grid.shape == (8, 9, 3)


@pytest.mark.parametrize(
    ("procs", "changes"), [(1, {"train__exchange": "delta"}), (2, {}), (2, {"train__exchange": "direct"})]
)
def test_with_one_side_only_several_workers_in_delta_are_kept_apart(procs: int, changes: dict[str, Any]) -> None:
    found = met(Factors(offer=Update(set(), TWO_SIDES[:1])), ratings(), procs=procs, **changes)
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
    found = met(model, Packed.of("rows", "csr", arrays, {"features": features}), train__exchange="delta")
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
