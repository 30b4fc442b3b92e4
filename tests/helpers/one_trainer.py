"""A trainer over real regions in this process, without pipes, and a row that writes down what it is told and what the
flats held at that moment. The other workers are words of the scoreboard."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim

from hogwild.feeds.resident import ResidentData
from hogwild.metrics.panel import Panel
from hogwild.parameters.shared_model import SharedModel
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Row, Scoreboard, Word
from hogwild.workers.child.build import make_trainer
from hogwild.workers.child.spec import Compute, DataSide, DataSpec, Rules, WorkerSpec
from hogwild.workers.child.trainer import Trainer
from tests.shared_model import build

FEATURES, CLASSES, BATCH, SEED = 4, 2, 8, 3
OTHER = 1  # the worker that exists only on the scoreboard


def go_on() -> bool:
    return True


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def examples(batches: int) -> tuple[Tensor, Tensor]:
    """Batch k holds the samples [8k, 8k + 8)."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(batches * BATCH, FEATURES, generator=random)
    return x, (x[:, 0] > 0).long()


def cut(data: tuple[Tensor, Tensor], *, without: int = -1) -> list[tuple[Tensor, Tensor]]:
    pairs = zip(data[0].split(BATCH), data[1].split(BATCH), strict=True)
    return [pair for number, pair in enumerate(pairs) if number != without]


@dataclass
class Note:
    """A word as it is written: `batches` of the item, and the flats at that moment."""

    kind: str
    batches: int
    skipped: int
    flats: list[Tensor]


class Notary(Row):
    """Writes down intents and commits, and what the shared parameters are meanwhile."""

    def __init__(self, board: Scoreboard, worker: int, shared: SharedModel) -> None:
        super().__init__(board, worker)
        self.shared = shared
        self.notes: list[Note] = []

    def _note(self, kind: str, batches: int, skipped: int) -> None:
        flats = [param.detach().clone() for param in self.shared.model.parameters()]
        self.notes.append(Note(kind, batches, skipped, flats))

    def intend(self, item: int, batches: int) -> None:
        self._note("intent", batches, 0)
        super().intend(item, batches)

    def commit(self, item: int, batches: int, skipped: int) -> None:
        super().commit(item, batches, skipped)
        self._note("commit", batches, skipped)

    @property
    def words_written(self) -> list[tuple[str, int]]:
        return [(note.kind, note.batches) for note in self.notes]


@dataclass
class Place:
    """A shared model, its data and its scoreboard, and the trainers that work on it."""

    data: tuple[Tensor, Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    rule: Callable[..., optim.Optimizer] = optim.SGD
    ids: int = 0
    late: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(SEED)
        self.model = Normed()
        self.initial = copy.deepcopy(self.model)
        self.shared = build(self.model, self.rule(self.model.parameters(), lr=0.1), procs=2, late=self.late)
        self.board = Scoreboard.allocate(2)
        resident = ResidentData.from_tensors("data-train", self.data)
        split = DataSpec(resident.fields, BatchPlan(len(self.data[0]), BATCH), "none")
        rules = {name: self.settings[name] for name in self.settings if name in Rules.__dataclass_fields__}
        compute = {name: self.settings[name] for name in self.settings if name not in rules}
        self.worker_spec = WorkerSpec(
            Compute(panel=Panel(("accuracy",), {}), **compute), DataSide(split, split), Rules(SEED, **rules)
        )
        self.regions = {**self.shared.regions, "data-train": resident.region, "data-val": resident.region}

    def exchange(self, sync_every: int) -> "Place":
        self.board.set_exchange(sync_every)
        return self

    def trainer(self, worker: int = 0) -> tuple[Trainer, Notary]:
        row = Notary(self.board, worker, self.shared)
        return make_trainer(self.worker_spec, self.shared.structure, self.regions, row), row

    def item(self, start: int = 0, stop: int | None = None) -> WorkItem:
        self.ids += 1
        return WorkItem(self.ids, Kind.TRAIN, 0, start, len(self.data[0]) // BATCH if stop is None else stop)

    def overtake(self, updates: int) -> None:
        """So many updates of the other worker are in the flats now."""
        self.board.words[OTHER, Word.UPDATES] += updates

    def overtaken_in(self, trainer: Trainer, plan: dict[int, int]) -> None:
        """In the k-th forward pass from now on, the other one makes `plan[k]` updates."""
        seen = iter(range(10_000))
        trainer.model.model.register_forward_hook(lambda *_: self.overtake(plan.get(next(seen), 0)))

    def is_untouched(self) -> bool:
        pairs = zip(self.model.parameters(), self.initial.parameters(), strict=True)
        return all(torch.equal(now, before) for now, before in pairs)

    def own_buffers(self, trainer: Trainer) -> list[Tensor]:
        return [buffer.clone() for buffer in trainer.model.model.buffers()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
