"""A batch of a stream as a kernel's arrays: those of packed data, copied and checked, because kernels check nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.feeds.packed import Packed
from hogwild.kernels.fused import Chunk, Streaming
from hogwild.losses import BprLoss, LogisticLoss, NegativeSampling, WarpLoss
from hogwild.models import (
    FactorizationMachine,
    FieldFactorizationMachine,
    MatrixFactorization,
    NamedBprFactorization,
    NamedFactorization,
    NamedFactorizationMachine,
    NamedLinear,
    NamedSkipGram,
    SparseLinear,
    WarpFactorization,
)

FEATURES, FIELDS, ROWS = 12, 3, 5
RANDOM = np.random.default_rng(2)
IDS = torch.from_numpy(RANDOM.integers(0, FEATURES, ROWS * FIELDS))
OFFSETS, VALUES = torch.arange(0, ROWS * FIELDS, FIELDS), torch.rand(ROWS * FIELDS)
SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
LABELS = torch.tensor([0, 3, 2, 1, 0])
SPARSE = (IDS, OFFSETS, VALUES)
MODELS: dict[str, tuple[nn.Module, nn.Module, tuple[Tensor, ...], Tensor]] = {
    "linear": (SparseLinear(FEATURES), LogisticLoss(), SPARSE, SIGNS),
    "softmax": (SparseLinear(FEATURES, classes=4), nn.CrossEntropyLoss(), SPARSE, LABELS),
    "machine": (FactorizationMachine(FEATURES, 4), LogisticLoss(), SPARSE, SIGNS),
    "field machine": (FieldFactorizationMachine(FEATURES, FIELDS, 4), LogisticLoss(), SPARSE, SIGNS),
    "named linear": (NamedLinear(20), LogisticLoss(), SPARSE, SIGNS),
    "named machine": (NamedFactorizationMachine(20, 4), LogisticLoss(), SPARSE, SIGNS),
    "named ratings": (NamedFactorization(20, 20, 4), nn.MSELoss(), (LABELS, IDS[:ROWS]), SIGNS),
    "named pairs": (NamedBprFactorization(20, 20, 4), BprLoss(), (LABELS, IDS[:ROWS]), SIGNS),
    "named words": (NamedSkipGram(40, 4), NegativeSampling(), (IDS.reshape(ROWS, FIELDS),), SIGNS),
    "ratings": (MatrixFactorization(ROWS, FEATURES, 4), nn.MSELoss(), (LABELS, IDS[:ROWS]), SIGNS),
}
TYPES = {  # of packed data
    "indptr": "int64",
    "indices": "int32",
    "values": "float32",
    "target": "float32",
    "user": "int32",
    "item": "int32",
    "rating": "float32",
    "words": "int64",
}
PAIR = {"user", "item"}
INDICES = {"softmax": {"indptr", "indices", "target"}, "ratings": PAIR, "named ratings": PAIR, "named pairs": PAIR}
INDICES |= {"named words": {"words"}}


def update_of(name: str) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    model, loss, _, _ = MODELS[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = model.fused(loss, optimizer)  # type: ignore[operator]
    assert isinstance(update, Streaming)
    return update, model, optimizer


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_copied_and_a_later_change_of_its_slot_moves_no_index(name: str, dtype: torch.dtype) -> None:
    update, model, _ = update_of(name)
    _, _, inputs, target = MODELS[name]
    slot = [one.clone() if one.is_floating_point() else one.to(dtype, copy=True) for one in (*inputs, target)]
    arrays = update.arrays_of(model, slot[:-1], slot[-1])
    before = {key: array.copy() for key, array in arrays.items()}
    for one in slot:
        one.fill_(-7)
    indices = {key for key, array in arrays.items() if array.dtype.kind == "i"}
    assert indices == INDICES.get(name, {"indptr", "indices"})
    assert all(np.array_equal(arrays[key], before[key]) for key in indices)


@pytest.mark.parametrize(
    ("name", "inputs", "target", "error", "said"),
    [
        ("linear", (IDS + 9, OFFSETS, VALUES), SIGNS, IndexError, "but the model has 12"),
        ("linear", (IDS - 1 - IDS.min(), OFFSETS, VALUES), SIGNS, IndexError, "features -1 to"),
        ("linear", (IDS + (1 << 32), OFFSETS, VALUES), SIGNS, IndexError, "features 4,294,967,"),
        ("linear", (IDS, OFFSETS + 4, VALUES), SIGNS, IndexError, "offsets 4 to 16, but the model has 16"),
        ("linear", (IDS, OFFSETS + 1, VALUES), SIGNS, IndexError, "offsets that do not begin with 0"),
        ("linear", (IDS, OFFSETS[[0, 2, 1, 3, 4]], VALUES), SIGNS, IndexError, "ascend"),
        ("linear", (IDS.float(), OFFSETS, VALUES), SIGNS, ValueError, "features must be"),
        ("linear", (IDS, OFFSETS, VALUES.double()), SIGNS, ValueError, "values must be"),
        ("linear", (IDS, OFFSETS, VALUES), SIGNS[:4], ValueError, "the target must be"),
        ("linear", (IDS, VALUES), SIGNS, ValueError, "or indices .B, F. alone"),
        ("linear", (IDS, OFFSETS, VALUES, VALUES), SIGNS, ValueError, "has 4 inputs"),
        ("named linear", (IDS.float(), OFFSETS, VALUES), SIGNS, ValueError, "features must be"),
        ("named machine", (torch.full_like(IDS, -(2**63)), OFFSETS, VALUES), SIGNS, IndexError, "which is reserved"),
        ("named machine", (IDS, OFFSETS + 1, VALUES), SIGNS, IndexError, "offsets that do not begin with 0"),
        ("field machine", (IDS.reshape(5, 3)[:, :2],), SIGNS, IndexError, "rows of 2 to 2 features"),
        ("softmax", SPARSE, LABELS + 1, IndexError, "labels 1 to 4, but the model has 4"),
        ("softmax", SPARSE, torch.where(LABELS == 3, -100, LABELS), IndexError, "labels -100 to 2"),
        ("softmax", SPARSE, SIGNS, ValueError, "labels must be"),
        ("field machine", (IDS, OFFSETS[[0, 1, 2, 3, 3]], VALUES), SIGNS, IndexError, "rows of 0 to 6 features"),
        ("ratings", (LABELS + 2, IDS[:ROWS]), SIGNS, IndexError, "users 2 to 5, but the model has 5"),
        ("ratings", (LABELS, IDS[:ROWS] + 12), SIGNS, IndexError, "but the model has 12"),
        ("ratings", (LABELS, IDS), SIGNS, ValueError, "a batch must be"),
        ("named ratings", (LABELS, IDS), SIGNS, ValueError, "a batch must be"),
        ("named words", (LABELS,), SIGNS, ValueError, "a batch must be words"),
        ("named words", (SIGNS[:, None],), SIGNS, ValueError, "words must be"),
        ("named words", (torch.full((ROWS, 2), -(2**63)),), SIGNS, IndexError, "words with the id"),
        ("named ratings", (LABELS.float(), LABELS), SIGNS, ValueError, "users must be"),
        ("named ratings", (LABELS, torch.full_like(LABELS, -(2**63))), SIGNS, IndexError, "items with the id"),
    ],
)
def test_a_batch_that_would_lead_a_kernel_astray_is_an_error(
    name: str, inputs: tuple[Tensor, ...], target: Tensor, error: type[Exception], said: str
) -> None:
    update, model, _ = update_of(name)
    with pytest.raises(error, match=said):
        update.arrays_of(model, inputs, target)


@pytest.mark.parametrize("name", MODELS)
def test_one_compiled_kernel_is_for_all_batches_and_for_packed_data(name: str) -> None:
    """Batches have no samples, 64 or 32 bits: another type would be compiled in the middle of a job."""
    update, model, optimizer = update_of(name)
    _, _, inputs, target = MODELS[name]
    types = TYPES | (dict.fromkeys(("indices", "user", "item"), "int64") if name.startswith("named") else {})
    of_all = {key: array.astype(types[key]) for key, array in update.arrays_of(model, inputs, target).items()}
    packed = Packed.of("data", "csr" if "indptr" in of_all else "table", of_all, {})
    update.bind(model, optimizer, packed.arrays(), {})
    update.run(Chunk(np.arange(ROWS), 0))
    compiled = signatures()
    for rows, dtype in ((0, torch.int64), (ROWS, torch.int64), (ROWS, torch.int32)):
        batch = [one if one.is_floating_point() else one.to(dtype) for one in (*inputs, target)]
        batch = batch if rows else [one[:0] for one in batch]
        update.bind(model, optimizer, update.arrays_of(model, batch[:-1], batch[-1]), {})
        assert update.run(Chunk(np.arange(rows), 0)).applied == rows
    assert compiled and signatures() == compiled


def signatures() -> int:
    """Return how many signatures all kernels together are compiled for."""
    from numba.core.registry import CPUDispatcher

    from hogwild.kernels import matrix_factorization, skipgram, sparse_models

    modules = (sparse_models, matrix_factorization, skipgram)
    found = (thing for module in modules for thing in vars(module).values() if isinstance(thing, CPUDispatcher))
    return sum(len(kernel.signatures) for kernel in found)


def test_a_kernel_that_looks_up_what_users_have_takes_no_stream() -> None:
    model = WarpFactorization(ROWS, FEATURES, 4)
    update = model.fused(WarpLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert not isinstance(update, str | Streaming)
