"""A model whose constructor takes its time: what happens while the parent builds. Everything is written down in
`diary`: `building`, how many children the parent had (`children`), and what a worker sees (`saw-PID`)."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

from hogwild import host
from tests.helpers.processes import in_worker

WATCHED = ("BUILDING_NEW", "BUILDING_CHANGED", "BUILDING_GONE", "OMP_NUM_THREADS")
FORWARD_OF_INTEREST = 3


class Slow(nn.Module):
    """The constructor waits while `diary`/hold is there; with `fails` it raises then. `vast` is a parameter of 2^45
    numbers, which are one: its size is compared with the memory that is left. The constructor changes the environment
    and sys.path of its process, as modules of users do when they are imported."""

    def __init__(self, diary: str, fails: bool = False, vast: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.vast = nn.Parameter(torch.zeros(1).expand(1 << 45)) if vast else None
        self.diary, self.forwards = Path(diary), 0
        (self.diary / "children").write_text(str(len(host.children(os.getpid()))))
        (self.diary / "building").touch()
        while (self.diary / "hold").exists():
            time.sleep(0.005)
        if fails:
            raise ValueError("no such luck")
        os.environ.update(BUILDING_NEW="new", BUILDING_CHANGED="changed", OMP_NUM_THREADS="7")
        os.environ.pop("BUILDING_GONE", None)
        sys.path.append(str(self.diary))

    def forward(self, inputs: Tensor) -> Tensor:
        self.forwards += 1
        if in_worker() and self.forwards == FORWARD_OF_INTEREST:
            seen = {
                "environment": {name: os.environ.get(name) for name in WATCHED},
                "path": sys.path,
                "modules": sorted(sys.modules),
            }
            (self.diary / f"saw-{os.getpid()}").write_text(json.dumps(seen))
        return self.linear(inputs)


class Pairs(TensorDataset):
    def __init__(self) -> None:
        super().__init__(torch.randn(800, 4), torch.arange(800) % 2)


class PairStream(IterableDataset):
    """The same, one after the other, for whoever reads."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(torch.randn(800, 4), torch.arange(800) % 2, strict=True))
