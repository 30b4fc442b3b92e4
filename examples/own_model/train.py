"""The same from Python. No main guard is needed, and in a notebook the classes may be defined in a cell."""

import torch
from mymodel import LogCosh, Ratings, TwoTowers

import hogwild

model, loss = TwoTowers(), LogCosh()
val = Ratings(samples=4_000, seed=1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)

result = hogwild.train(model, Ratings(), loss, optimizer, procs=2, epochs=4, batch_size=64, val=val)

print(f"{result.samples:,} samples in {result.updates:,} updates by {result.procs} workers: {result.run_dir}")
print(f"loss {result.metrics['loss']:.4f}; the formula behind the data scores {val.best_loss(loss):.4f}")
