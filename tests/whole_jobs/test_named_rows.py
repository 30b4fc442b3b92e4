"""Jobs whose model has tables that are asked for by id (`hogwild.nn.NamedEmbedding`): ids get rows while workers train
and die, and are known by their ids afterwards."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.kernels.signatures import FREE
from tests.helpers.jobs import Ended, start

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytestmark = pytest.mark.processes

USERS, ITEMS = 500, 40
OWN = f"""
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hogwild.nn import NamedEmbedding


class Pairs(nn.Module):
    def __init__(self, capacity=700):
        super().__init__()
        self.users, self.items = NamedEmbedding(4, capacity), NamedEmbedding(4, capacity)

    def forward(self, pairs):
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


def pairs(count=20_000, seed=0):
    draw = torch.Generator().manual_seed(seed)
    user, item = (torch.randint(0, many, (count,), generator=draw) for many in ({USERS}, {ITEMS}))
    ids = torch.stack([user * 7_919_000_000_001 - 10**15, -item], 1)  # any int64
    return TensorDataset(ids, ((user + item) % 2).float())
"""
JOB = """
version: 1
model: {class_path: own.Pairs}
loss: {class_path: torch.nn.BCEWithLogitsLoss}
data:
  train: {class_path: own.pairs}
  val: {class_path: own.pairs, init_args: {count: 2000, seed: 1}}
  batch_size: 20
optimizer: {class_path: torch.optim.Adagrad, init_args: {lr: 0.5}}
train: {procs: 2, epochs: 4}
evaluate: {metrics: [accuracy]}
"""
ITEM_IDS = {-item for item in range(ITEMS)}
USER_OF = {user * 7_919_000_000_001 - 10**15: user for user in range(USERS)}  # by id


def rows_of(tensors: dict[str, Tensor], name: str) -> dict[int, Tensor]:
    keys = tensors[f"{name}.keys"]
    return {int(keys[row]): tensors[f"{name}.weight"][row] for row in (keys != FREE).nonzero().squeeze(1)}


@pytest.fixture(scope="module")
def trained(jobs_folder: Path) -> Ended:
    """Two workers, of which one is killed, then the supervisor; resumed, and ended by Ctrl-C."""
    folder = jobs_folder / "named"
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    (folder / "job.yaml").write_text(JOB)
    job = start(folder, "job.yaml", "train.epochs=100000", "checkpoint.every_s=0.3")
    job.wait_for_updates(1)
    os.kill(victim := job.workers()[0], signal.SIGKILL)
    job.wait_for_exit_of(victim)
    job.wait_for_event("checkpoint", len(job.events("checkpoint")) + 1)
    job.send(signal.SIGKILL)
    updates = job.status()["updates"]
    job.wait()
    again = start(folder, "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_updates(updates + 1000)
    again.send(signal.SIGINT)
    return again.wait()


def test_each_id_has_one_row_whoever_was_killed(trained: Ended) -> None:
    tensors = trained.tensors()
    for name, ids in (("users", {*USER_OF}), ("items", ITEM_IDS)):
        taken = tensors[f"{name}.keys"][tensors[f"{name}.keys"] != FREE].tolist()
        assert len(taken) == len(ids) and {*taken} == ids


def test_the_model_answers_for_ids_and_for_unknown_ones(trained: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(trained.run_dir.parent))
    loaded = hogwild.load(trained.run_dir)
    users, items = torch.tensor([*USER_OF]), torch.tensor([*ITEM_IDS])
    pairs = torch.cartesian_prod(users, items)
    odd = (torch.arange(USERS)[:, None] + torch.arange(ITEMS)) % 2  # the sets keep no order: looked up
    wanted = torch.tensor([odd[USER_OF[int(user)], -int(item)] for user, item in pairs])
    outputs = loaded.predict(TensorDataset(pairs), raw=True)
    assert ((outputs > 0) == wanted.bool()).float().mean() > 0.95
    unknown = loaded.predict(TensorDataset(torch.tensor([[1, -1], [2, -1]])), raw=True)
    assert unknown[0] == unknown[1] and loaded.model.get_submodule("users").taken == USERS


def test_another_capacity_takes_the_rows_over_with_their_state(trained: Ended) -> None:
    """Nothing is trained: with a rate of zero the next run's rows are those of this one."""
    folder = trained.run_dir.parent
    more = ("train.epochs=1", "optimizer.init_args.lr=0.0", "model.init_args.capacity=5000")
    given = (
        f"model.init_from={{path: {trained.run_dir}/checkpoints/latest, optimizer_state: true}}",
        "train.procs=1",
        *more,
    )
    next_run = start(folder, "job.yaml", *given, "--run-dir", str(folder / "next"), run_dir=folder / "next").wait()
    assert next_run.status == 0, next_run.stderr
    for name in ("users", "items"):
        old, new = (rows_of(one.tensors(), name) for one in (trained, next_run))
        assert old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)


def test_a_table_is_exported_with_its_ids(trained: Ended, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(trained.run_dir.parent))
        given = ["export", str(trained.run_dir / "checkpoints" / "latest"), "--format", "npz", "--kind", "users"]
        assert main.run([*given, "--out", str(tmp_path / "users.npz")]) == 0
    table = np.load(tmp_path / "users.npz")
    rows = rows_of(trained.tensors(), "users")
    assert sorted(table["names"].tolist()) == sorted(rows)
    assert all(np.array_equal(rows[name].numpy(), table["vectors"][row]) for row, name in enumerate(table["names"]))
