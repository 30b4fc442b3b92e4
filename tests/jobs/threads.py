"""A program that trains with large products and writes down how many threads its worker had, and how many page faults
it took to allocate again what it had freed. Arguments: run directory, file for the answer, procs."""

import json
import os
import resource
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def allocate() -> list[Tensor]:
    """Return 24 MB, in blocks as large as a batch's activations."""
    return [torch.ones(2 << 20) for _ in range(3)]


def faults_of_an_allocation() -> int:
    """Return the page faults of an allocation of memory that was allocated and freed before."""
    allocate()
    before = page_faults()
    allocate()
    return page_faults() - before


class Counter(nn.Module):
    """Multiplies matrices large enough for every thread there is, then counts the threads of its process."""

    def __init__(self, answer: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 512)
        self.answer = answer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.linear(inputs)
        if self.training and len(inputs) > 3:  # a trial has three samples
            seen = {"threads": len(os.listdir("/proc/self/task")), "torch": torch.get_num_threads()}
            seen["faults"] = faults_of_an_allocation()
            with open(self.answer, "a") as notes:
                notes.write(json.dumps(seen) + "\n")
        return outputs


run_dir, answer, procs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
model = Counter(answer)
data = TensorDataset(torch.randn(8192, 512), torch.randn(8192, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
result = hogwild.train(model, data, nn.MSELoss(), optimizer, procs=procs, batch_size=256, run_dir=run_dir)
print(json.dumps({"threads": result.threads, "summary": json.loads((run_dir / "summary.json").read_text())["threads"]}))
