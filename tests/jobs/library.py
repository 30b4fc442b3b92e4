"""A program that calls hogwild.train with a class of its own, without a main guard. Argument: the run directory.
Also what a notebook's cells would hold: nothing here can be imported by a worker."""

import json
import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild

RUN_DIR = sys.argv[1] if len(sys.argv) > 1 else os.environ["RUN_DIR"]
PROCS = int(os.environ["PROCS"])


class Own(nn.Module):
    """Two layers; the state of the second is tied to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        return self.second(torch.relu(self.first(inputs)))


def own_loss(output, target):  # type: ignore[no-untyped-def]
    return nn.functional.cross_entropy(output, target)


def mistakes(outputs, targets):  # type: ignore[no-untyped-def]
    return int((outputs.argmax(1) != targets).sum())


torch.manual_seed(0)
features = torch.randn(512, 6)
dataset = TensorDataset(features, (features.sum(1) > 0).long())
model = Own()
parameters = list(model.parameters())
before = [param.detach().clone() for param in parameters]
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
settings = {"procs": PROCS, "epochs": 6, "batch_size": 16, "run_dir": RUN_DIR}
evaluate = {"metrics": ["accuracy", mistakes], "monitor": "mistakes", "mode": "min"}
result = hogwild.train(model, dataset, own_loss, optimizer, val={"fraction": 0.25}, evaluate=evaluate, **settings)
with torch.no_grad():
    accuracy = float((model(features).argmax(1) == dataset.tensors[1]).float().mean())
print(
    json.dumps(
        {
            "state": result.state,
            "samples": result.samples,
            "leases": dict(result.leases),
            "run_dir": str(result.run_dir),
            "accuracy": accuracy,
            "metrics": dict(result.metrics),
            "same_objects": all(one is other for one, other in zip(parameters, model.parameters(), strict=True)),
            "changed": not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)),
            "shared": any(param.is_shared() for param in model.parameters()),
        }
    )
)
