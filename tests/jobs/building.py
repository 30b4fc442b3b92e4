"""A model whose constructor takes its time: what happens while the parent builds. Everything is written down in
`diary`: `building`, how many children the parent had (`children`), and what a worker sees (`saw-PID`)."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hogwild import host
from tests.helpers.processes import in_worker

WATCHED = ("BUILDING_NEW", "BUILDING_CHANGED", "BUILDING_GONE", "OMP_NUM_THREADS")
FORWARD_OF_INTEREST = 3


class Slow(nn.Module):
    """The constructor waits while `diary`/hold is there, and changes the environment and sys.path of its process, as
    modules of users do when they are imported."""

    def __init__(self, diary: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.diary, self.forwards = Path(diary), 0
        (self.diary / "children").write_text(str(len(host.children(os.getpid()))))
        (self.diary / "building").touch()
        while (self.diary / "hold").exists():
            time.sleep(0.005)
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
