"""A checkpoint when memory does not allow a second copy: the same checkpoint, written from the shared memory itself
while training waits. Memory is made 'short' through the margin that a second copy must leave. And how the second copy
is given back."""

import io
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild import host
from hogwild.parameters.optimizer_state import Copies
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage import checkpoint
from hogwild.workers.session import checkpointing
from tests.shared_model import ConvNet, build, images, train, updating


class Mixed(nn.Module):
    """Convolutions (channels_last), two dtypes, BatchNorm, a tied weight, an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ConvNet()
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.alias = self.body
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x)) * self.scale.float()


def trained(state: str = "private") -> SharedModel:
    torch.manual_seed(0)
    model = Mixed()
    shared = build(model, optim.Adam(model.parameters()), procs=2, state=state)
    train(updating(shared, 0), images(2))
    train(updating(shared, 1), images(1, seed=1))
    shared.merge_buffers([2, 1])
    return shared


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """path -> tensor or plain value."""
    if isinstance(tree, dict):
        return {name: leaf for key, value in tree.items() for name, leaf in leaves(value, f"{path}.{key}").items()}
    if isinstance(tree, list):
        return leaves(dict(enumerate(tree)), path)
    return {path: tree}


def same_values(one: Any, other: Any) -> bool:
    mine, theirs = leaves(one), leaves(other)
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[k], theirs[k]) if isinstance(mine[k], Tensor) else mine[k] == theirs[k] for k in mine
    )


def lies_in(shared: SharedModel, tensor: Tensor) -> bool:
    starts = [
        (region.array(np.uint8, (region.nbytes,)).ctypes.data, region.nbytes) for region in shared.regions.values()
    ]
    return any(start <= tensor.data_ptr() < start + nbytes for start, nbytes in starts)


@pytest.mark.parametrize("state", ["private", "shared"])
def test_a_snapshot_in_place_copies_nothing_and_is_written_as_the_copied_one(state: str) -> None:
    shared = trained(state)
    copied, in_place = shared.snapshot(), shared.snapshot(Copies(in_place=True))
    assert same_values(copied, in_place)
    tensors = [leaf for leaf in leaves(in_place).values() if isinstance(leaf, Tensor) and leaf.numel()]
    assert tensors and all(lies_in(shared, tensor) for tensor in tensors)
    files = [io.BytesIO(), io.BytesIO()]
    for file, snapshot in zip(files, (copied, in_place), strict=True):
        torch.save(snapshot, file)
        file.seek(0)
    assert abs(len(files[0].getvalue()) - len(files[1].getvalue())) < 4096  # no whole flat behind every view
    assert same_values(torch.load(files[0], weights_only=True), torch.load(files[1], weights_only=True))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_discarded_copies_give_their_memory_back_while_somebody_refers_to_them() -> None:
    value, copies = torch.ones(1 << 24), Copies()
    made = copies.of(value)
    before = resident_bytes()
    copies.discard()
    assert before - resident_bytes() > 0.9 * made.nbytes
    assert bool((value == 1).all())


def test_what_is_written_in_place_is_never_discarded() -> None:
    value, copies = torch.ones(1 << 20), Copies(in_place=True)
    made = copies.of(value)
    copies.discard()
    assert made.data_ptr() == value.data_ptr() and bool((value == 1).all())


def test_only_memory_of_this_machine_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a tensor on a device means something else here."""
    discarded: list[int] = []
    monkeypatch.setattr(host, "discard_pages", lambda address, nbytes: discarded.append(nbytes))
    copies = Copies()
    copies.of(torch.ones(8, device="meta"))
    copies.of(torch.ones(4))
    copies.discard()
    assert discarded == [16]


@pytest.mark.parametrize(("first", "nbytes", "lost"), [(0, 4.0, 4), (0.5, 3.0, 2), (1, 0.5, 0), (0.25, 0.5, 0)])
def test_only_whole_pages_are_discarded(first: float, nbytes: float, lost: int) -> None:
    """In pages, of a memory of four."""
    size = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE), np.uint8)
    memory[:] = 1
    host.discard_pages(memory.ctypes.data + int(first * size), int(nbytes * size))
    pages = memory.reshape(4, size)
    assert sum(not page.any() for page in pages) == lost
    assert sum(page.all() for page in pages) == 4 - lost


WIDTH = 100_000  # 3 MB to write: long enough that a next update would be seen in it
UPDATES, MORE_UPDATES = 4, 60
SHORT = "too little free memory: training is paused"


class Counting(nn.Module):
    """Counts the batches that it was trained on."""

    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.batches += 1
        return x


def job(run_dir: Path, procs: int, updates: int = UPDATES) -> dict[int, Path]:
    """A few updates with a checkpoint after each: update -> its checkpoint."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2), Counting())
    data = TensorDataset(torch.randn(16 * MORE_UPDATES, 3), torch.randint(2, (16 * MORE_UPDATES,)))
    result = hogwild.train(
        model,
        data,
        nn.CrossEntropyLoss(),
        optim.Adam(model.parameters()),
        procs=procs,
        batch_size=16,
        max_updates=updates,
        run_dir=run_dir,
        checkpoint={"every_updates": 1, "keep": MORE_UPDATES},
    )
    assert (result.state, result.updates) == ("succeeded", updates)
    return {int(path.name.removeprefix("update-")): path for path in (run_dir / "checkpoints").glob("update-*")}


def said(run_dir: Path) -> str:
    return (run_dir / "logs" / "supervisor.log").read_text()


@pytest.mark.slow
def test_the_copies_of_every_checkpoint_are_discarded_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded: list[int] = []
    discard = Copies.discard

    def discarding(copies: Copies) -> None:
        discarded.append(len(list((tmp_path / "run" / "checkpoints").glob("update-*"))))
        discard(copies)

    monkeypatch.setattr(Copies, "discard", discarding)
    checkpoints = job(tmp_path / "run", 0)
    assert discarded == list(range(1, len(checkpoints) + 1)) != []
    assert all(checkpoint.load(path)["model"]["0.weight"].any() for path in checkpoints.values())


@pytest.mark.slow
def test_with_short_memory_every_checkpoint_is_of_its_own_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {k: job(tmp_path / f"until-{k}", 0, k)[k] for k in range(1, UPDATES + 1)}
    monkeypatch.setattr(checkpointing, "MEMORY_MARGIN", 1e15)
    short = job(tmp_path / "short", 0)
    assert SHORT in said(tmp_path / "short") and SHORT not in said(tmp_path / "until-1")
    assert short.keys() == expected.keys()
    for update, path in expected.items():
        one, other = checkpoint.load(path), checkpoint.load(short[update])
        assert all(same_values(one[part], other[part]) for part in ("model", "optimizer", "optimizer_private"))


@pytest.mark.processes
def test_with_short_memory_workers_wait_for_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "MEMORY_MARGIN", 1e15)
    checkpoints = job(tmp_path / "run", 2, MORE_UPDATES)
    assert SHORT in said(tmp_path / "run")
    for update, path in checkpoints.items():
        assert int(checkpoint.load(path)["model"]["2.batches"]) == update  # nobody went on while it was written
