"""One process that trains LeNet on what a `torch.utils.data.DataLoader` with two workers reads: how streamed data are
trained on without us. Channels_last, fused SGD, gradients set to None, the settings of configs/mnist.yaml; the workers
stay for all epochs. Warm-up is the first epoch; what counts are the whole epochs after it.

    python -m benchmarks.baselines.loader_fed --threads 1 --epochs 2        says {"samples_per_s": …, "loss": …}

A command of its own: the processes of `race.py` may have no children."""

import argparse
import json
import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.baselines.networks import LENET, Settings
from benchmarks.baselines.transformed import Transformed


def samples_per_s(
    data: Transformed, settings: Settings, *, workers: int, epochs: int, prefetch: int
) -> tuple[float, float]:
    """(samples a second, the last loss) over so many epochs after the first."""
    torch.manual_seed(1)
    model, loss = LENET.build(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, fused=True)
    loader = DataLoader(
        data,
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        prefetch_factor=prefetch,
    )

    def epoch() -> float:
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            last = loss(model(images.to(memory_format=torch.channels_last)), labels)
            last.backward()
            optimizer.step()
        return float(last.detach())

    epoch()
    began = time.monotonic()
    found = [epoch() for _ in range(epochs)]
    return epochs * len(data) / (time.monotonic() - began), found[-1]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="One process fed by a DataLoader; prints its samples a second.")
    parser.add_argument("--threads", type=int, default=1, help="of the process that trains")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1, help="after the first, which is not measured")
    parser.add_argument("--records", type=int, help="of the data; default: all 60,000")
    parser.add_argument("--jitter", action="store_true", help="shifts and noise as well")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--prefetch", type=int, default=2, help="batches in hand of each worker")
    asked = parser.parse_args(argv)
    torch.set_num_threads(asked.threads)
    torch.set_flush_denormal(True)  # as our workers
    data = Transformed(records=asked.records, jitter=asked.jitter)
    settings = Settings(updates=0, batch_size=asked.batch_size)
    found, loss = samples_per_s(data, settings, workers=asked.workers, epochs=asked.epochs, prefetch=asked.prefetch)
    print(json.dumps({"samples_per_s": found, "loss": loss}))


if __name__ == "__main__":
    main()
