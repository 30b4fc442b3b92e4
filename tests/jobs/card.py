"""A program that calls hogwild.train and watches the shared parameters from a thread of the parent meanwhile. The
watcher makes a file `changed` in the diary when it saw a write of a worker."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from witness import Witness

import hogwild

SAMPLES, BATCH = 1200, 4
diary, run_dir = Path(sys.argv[1]), Path(sys.argv[2])
torch.manual_seed(1)
model = Witness(diary)
inputs = torch.rand(SAMPLES, 8)
inputs[-BATCH:, 0] = -1  # the last batch is the one that is held
initial = [param.detach().clone() for param in model.parameters()]
ended = threading.Event()
seen: dict[str, float] = {}


def watch() -> None:
    while not ended.is_set() and "changed" not in seen:
        if any(not torch.equal(param, before) for param, before in zip(model.parameters(), initial, strict=True)):
            seen["changed"] = time.time()
            (diary / "changed").touch()
        time.sleep(0.002)


watcher = threading.Thread(target=watch)
watcher.start()
result = hogwild.train(
    model,
    TensorDataset(inputs, inputs.sum(1)),
    torch.nn.MSELoss(),
    torch.optim.SGD(model.parameters(), lr=0.01),
    procs=2,
    batch_size=BATCH,
    shuffle="none",
    run_dir=run_dir,
    log={"every_s": 0.02},
    supervise={"start_timeout_s": 900, "stall_timeout_s": 900, "deadlock_timeout_s": 900},
)
returned = time.time()
ended.set()
watcher.join()
facts = {
    "pid": os.getpid(),
    "changed": seen.get("changed"),
    "returned": returned,
    "state": result.state,
    "samples": result.samples,
    "private": not any(param.is_shared() for param in model.parameters()),
}
(diary / "facts.json").write_text(json.dumps(facts))
