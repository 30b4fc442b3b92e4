"""The kernels that a job file announces are those that its model's update calls, with the types of its arguments."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import numba

from hogwild import losses, models, optimizers
from hogwild.config.load import Job, job_from_mapping
from hogwild.data import Follow, LibSvm, text_keys
from hogwild.feeds.row_reader import InTurn
from hogwild.job.foreseen_kernels import foreseen
from hogwild.kernels import compiling, signatures
from hogwild.kernels.fused import Chunk
from hogwild.kernels.hot_rows import HotRows
from hogwild.kernels.signatures import Kernels
from hogwild.metrics.ranking import Ranking

SPARSE: dict[str, Any] = {
    "indptr": np.zeros(1, np.int64), "indices": np.zeros(0, np.int32), "values": np.zeros(0, np.float32),
    "target": np.zeros(0, np.float32),
}  # fmt: skip
PAIRS: dict[str, Any] = {
    "user": np.zeros(0, np.int32), "item": np.zeros(0, np.int32), "rating": np.zeros(0, np.float32)
}  # fmt: skip
WORDS: dict[str, Any] = {
    "tokens": np.zeros(2, np.int32), "starts": np.zeros(2, np.int64), "counts": np.ones(2, np.int64)
}  # fmt: skip
TEXTS: dict[str, Any] = {"words": np.zeros((0, 4), np.int64)}
TRIPLES: dict[str, Any] = {"triple": np.zeros((0, 3), np.int32)}
GRAPH, TABLES, FEATURES = {"entities": 3, "relations": 2}, {"users": 3, "items": 3}, {"features": 3}
OF_ROWS = (losses.LogisticLoss, losses.HingeLoss, nn.MSELoss, nn.BCEWithLogitsLoss)
# (model, sizes that come from the data, further arguments, losses, data)
MODELS: list[tuple[str, dict[str, int], dict[str, Any], tuple[type, ...], dict[str, Any]]] = [
    ("SparseLinear", FEATURES, {}, OF_ROWS, SPARSE),
    ("SparseLinear", FEATURES, {"bias": False}, OF_ROWS[:1], SPARSE),
    ("SparseLinear", {**FEATURES, "classes": 2}, {}, (nn.CrossEntropyLoss,), SPARSE),
    ("FactorizationMachine", FEATURES, {"factors": 4}, OF_ROWS, SPARSE),
    ("FieldFactorizationMachine", {**FEATURES, "fields": 2}, {}, OF_ROWS, SPARSE),
    ("NamedLinear", {}, {"capacity": 3}, OF_ROWS, SPARSE),
    ("NamedFactorizationMachine", {}, {"capacity": 3, "factors": 4}, OF_ROWS, SPARSE),
    ("NamedFactorization", {}, {"user_capacity": 3, "item_capacity": 4, "factors": 12}, (nn.MSELoss,), PAIRS),
    ("NamedBprFactorization", {}, {"user_capacity": 3, "item_capacity": 4}, (losses.BprLoss,), PAIRS),
    ("MatrixFactorization", TABLES, {}, (nn.MSELoss,), PAIRS),
    ("MatrixFactorization", TABLES, {"factors": 12, "bias": False}, (nn.MSELoss,), PAIRS),
    ("MatrixFactorization", TABLES, {"factors": 200}, (nn.MSELoss,), PAIRS),
    ("BprFactorization", TABLES, {}, (losses.BprLoss,), PAIRS),
    ("BprFactorization", TABLES, {"user_features": 2}, (losses.BprLoss,), PAIRS),
    ("WarpFactorization", TABLES, {"factors": 4, "item_features": 2}, (losses.WarpLoss,), PAIRS),
    ("SkipGram", {"words": 2}, {"dim": 8}, (losses.NegativeSampling,), WORDS),
    ("SkipGram", {"words": 2}, {"cbow": True, "shared": False, "buckets": 4}, (losses.NegativeSampling,), WORDS),
    ("NamedSkipGram", {}, {"capacity": 3, "dim": 8}, (losses.NegativeSampling,), TEXTS),
    ("NamedSkipGram", {}, {"capacity": 3, "cbow": True, "shared": False}, (losses.NegativeSampling,), TEXTS),
    *[
        (name, GRAPH, {"dim": 4}, (losses.SoftmaxLoss, losses.CandidateLogisticLoss, losses.MarginLoss), TRIPLES)
        for name in ("ComplEx", "DistMult", "RotatE", "TransE")
    ],
]
RULES = (torch.optim.SGD, torch.optim.Adagrad, optimizers.RowWiseAdagrad, optimizers.FTRL)


def path_of(kind: type) -> str:
    home = {"torch": "torch.nn" if issubclass(kind, nn.Module) else "torch.optim"}
    return f"{home.get(kind.__module__.partition('.')[0], kind.__module__)}.{kind.__name__}"


def job(
    model: str, more: dict[str, Any], loss: type = nn.MSELoss, rule: type = torch.optim.SGD, **sections: Any
) -> Job:
    described = {
        "model": {"class_path": model if "." in model else f"hogwild.models.{model}", "init_args": more},
        "loss": {"class_path": path_of(loss)},
        "optimizer": {"class_path": path_of(rule), "init_args": {"lr": 0.1}},
        "data": {"train": {"class_path": "mine.Own"}},
    }
    return job_from_mapping(described | sections, "the test")


class Called(Exception):
    """A kernel was called."""


def called(
    kernels: Kernels, run: Callable[[], object], home: str = "", *, is_last: bool = True
) -> list[tuple[str, Any]]:
    """Return what `run` calls of these kernels, found in `home`, with the types of the arguments; only the first call,
    if `is_last`."""
    found: list[tuple[str, Any]] = []

    def note(name: str, *values: Any) -> None:
        found.append((name, tuple(map(numba.typeof, values))))
        if is_last:
            raise Called

    with pytest.MonkeyPatch.context() as patch:
        for name, _ in kernels.types:
            patch.setattr(f"{home or f'hogwild.kernels.{kernels.module}'}.{name}", partial(note, name))
        with suppress(Called):
            run()
    return found


def described(kernels: Kernels) -> list[tuple[str, Any]]:
    return [(made.py_func.__name__, types) for made, types in compiling._dispatchers(kernels)]


@pytest.mark.parametrize(("name", "sizes", "more", "kinds", "data"), MODELS)
def test_the_job_file_announces_the_kernel_that_the_update_calls(
    name: str, sizes: dict[str, int], more: dict[str, Any], kinds: tuple[type, ...], data: dict[str, Any]
) -> None:
    tried = 0
    for loss, rule in product(kinds, RULES):
        model = getattr(models, name)(**sizes, **more)
        optimizer = rule(model.parameters(), lr=0.1)
        update = model.fused(loss(), optimizer)
        if isinstance(update, str):
            continue
        claims = (signatures.row_claims(),) if name.startswith("Named") else ()
        assert foreseen(job(name, more, loss, rule)) == (update.kernels, *claims)
        assert foreseen(job("Mlp", {}), update) == (update.kernels,)
        given = data | {"target": np.zeros(0, np.int64)} if loss is nn.CrossEntropyLoss else data

        def run(*bound: Any) -> None:
            bound[0].bind(*bound[1:], {})
            bound[0].run(Chunk(np.empty(0, np.int64), 0))

        assert called(update.kernels, partial(run, update, model, optimizer, given)) == described(update.kernels)
        tried += 1
    assert tried


def test_every_model_with_kernels_is_among_them() -> None:
    known = {name for name in models.CATALOG if hasattr(getattr(models, name), "fused")}
    assert known == {name for name, *_ in MODELS}


def test_private_copies_of_hot_rows_call_the_kernels_that_are_announced() -> None:
    table, column = np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
    some, every = HotRows(table, np.array([1], np.int32)), HotRows(column, np.arange(4, dtype=np.int32))
    found = called(signatures.hot_rows(), lambda: (some.refresh(), some.flush(), every.flush()), is_last=False)
    assert found == described(signatures.hot_rows())


def test_the_metrics_of_all_items_call_those_that_are_announced() -> None:
    one = {"user": np.zeros(1, np.int32), "item": np.zeros(1, np.int32), "rating": np.ones(1, np.float32)}
    tables = np.zeros((1, 4), np.float32), np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    ranking = Ranking(["recall@1", "auc"], lambda: tables, one, one, 0.0, np.zeros((0, 3), np.uint8))
    found = called(
        signatures.ranking(), lambda: ranking.sums(0, 1, lambda: None), "hogwild.metrics.ranking", is_last=False
    )
    assert found == described(signatures.ranking())


def test_the_parser_of_libsvm_is_called_with_the_announced_types(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1 1:2 3:1\n-1 2:1\n")
    LibSvm(tmp_path / "rows").pack(InTurn(0), "data.train", None, "fail")
    for kernels in signatures.libsvm():
        for made, types in compiling._dispatchers(kernels):
            assert [*made.overloads] == [types]


@pytest.mark.parametrize("given", [{"ids": ["user"]}, {"features": ["user"]}, {"text": True}])
def test_the_ids_of_a_stream_get_their_keys_from_the_announced_kernel(given: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow")
    (tmp_path / "clicks").write_text("user,click\n7,1\nann,1\n")
    target = {} if "text" in given else {"target": "click"}
    arguments = {"path": str(tmp_path / "clicks"), "until": "end", **target, **given}
    data = {"train": {"class_path": "hogwild.data.Follow", "init_args": arguments}}
    assert foreseen(job("mine.Own", {}, data=data)) == (signatures.text_keys(),)
    text_keys._kernels()  # ready, before its functions are watched
    found = called(signatures.text_keys(), lambda: [*Follow(**arguments)])
    assert found == described(signatures.text_keys())


def test_rankings_come_after_the_update_and_data_that_may_be_parsed_already_announce_no_parser() -> None:
    svm = {"train": {"class_path": "hogwild.data.LibSvm", "init_args": {"path": "x"}}}
    ranked = job("BprFactorization", {}, losses.BprLoss, evaluate={"metrics": ["ndcg@10"]}, data=svm)
    assert foreseen(ranked) == (signatures.pairs("SGD", has_features=False), signatures.ranking())


@pytest.mark.parametrize(
    ("model", "more", "sections"),
    [
        ("SparseLinear", {}, {"train": {"update": "autograd"}}),
        ("SparseLinear", {}, {"train": {"grad_clip": 1.0}}),
        ("SparseLinear", {}, {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.9}}}),
        ("SparseLinear", {}, {"optimizer": {"class_path": "mine.SGD"}}),
        ("mine.SparseLinear", {}, {}),
        ("DeepFm", {}, {}),
        ("MatrixFactorization", {"factors": "many"}, {}),
    ],
)
def test_a_job_that_autograd_trains_announces_none(model: str, more: dict[str, Any], sections: dict[str, Any]) -> None:
    assert foreseen(job(model, more, losses.LogisticLoss, **sections)) == ()
