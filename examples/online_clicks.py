"""Online learning from clicks that never end, and predictions of the model while it learns.

A click has three features (site, advertisement, hour) and a label. A field-aware factorisation machine scores each
batch before its compiled kernel learns it (progressive validation), so no data is held back. What people like changes,
and the model is never finished. A customer of the running job comes with each checkpoint, once a second, takes a copy
of the model the first time, and stops the job after 150,000 clicks. The clicks are invented. Printed: the loss of the
live model and of the customer's old copy on the next clicks, and that of the stream's clicks before they are learnt."""

import json
import math
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset

import hogwild
from hogwild.losses import LogisticLoss
from hogwild.models import FieldFactorizationMachine

SITES, ADS, HOURS = 20, 30, 24
FEATURES, FIELDS = SITES + ADS + HOURS, 3
BLOCK, BLOCK_S = 500, 0.02  # clicks arrive: 25,000 per second at most
EARLY, ENOUGH, TURN = 20_000, 150_000, 500_000  # clicks until the copy, until the stop, and until likes are as before


def clicks_after(seen: int, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the features (count, FIELDS) int64 of clicks after `seen` others, and labels (count,) float32."""
    site, ad, hour = (random.integers(many, size=count) for many in (SITES, ADS, HOURS))
    topics = 2 * math.pi * (site / SITES - ad / ADS + seen / TURN)  # on a circle that turns
    is_click = random.random(count) < 1 / (1 + np.exp(-4 * np.cos(topics)))
    return np.stack([site, SITES + ad, SITES + ADS + hour], axis=1), is_click.astype(np.float32)


class Clicks(IterableDataset):
    """All clicks, as they come."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.float32]]:
        random, seen = np.random.default_rng(1), 0
        while True:
            yield from zip(*clicks_after(seen, BLOCK, random), strict=True)
            seen += BLOCK
            time.sleep(BLOCK_S)


class Customer:
    """Asks the running job, as any other program can."""

    copy, seen = None, 0

    def on_start(self, event) -> None:
        self.live = hogwild.load(event.run_dir, live=True)
        self.loss_of(self.live)  # the first call starts a process that answers

    def on_checkpoint(self, event) -> None:
        if self.seen > ENOUGH:
            return
        self.seen = json.loads((event.run_dir / "status.json").read_text())["samples"]
        if self.seen > EARLY and self.copy is None:
            model = FieldFactorizationMachine(FEATURES, FIELDS)
            self.copy = hogwild.load(event.run_dir, which="latest", model=model)
        if self.seen > ENOUGH:
            self.losses = self.loss_of(self.live), self.loss_of(self.copy)
            event.stop()

    def loss_of(self, trained) -> float:
        features, labels = map(torch.from_numpy, clicks_after(self.seen, 4000, np.random.default_rng(2)))
        return float(LogisticLoss()(trained.predict(TensorDataset(features), raw=True), labels))


torch.manual_seed(1)
model, customer = FieldFactorizationMachine(FEATURES, FIELDS), Customer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
result = hogwild.train(
    model,
    Clicks(),
    LogisticLoss(),
    optimizer,
    procs=2,
    batch_size=BLOCK,
    evaluate={"progressive": True},
    checkpoint={"every_s": 1.0},
    log={"every_s": 1.0},
    callbacks=[customer],
)
records = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
windows = [record["losses"]["progressive_loss"] for record in records if record.get("losses")]
live, copy = customer.losses
print(f"{result.samples:,} clicks learnt by {result.procs} workers, then {result.state}")
print(f"loss on the next clicks: {live:.3f} of the live model, {copy:.3f} of the old copy")
print(f"loss before learning: {windows[0]:.3f} in the first second, {windows[-1]:.3f} in the last")
