"""The way of the well-known Hogwild example (`mnist_hogwild` in the repository pytorch/examples), written anew.

N spawned processes share the parameters of one model and nothing else. Each of them draws its own batches from the
*whole* training set, so an epoch is N times the work; each sample is made into a tensor and normalised in Python when
it is asked for; each process has an SGD of its own.

Fair, and kinder than the example: one thread per process (left alone, two processes of two threads on two cores take
seven times as long); samples are arrays already, where torchvision goes through a PIL image first; the file is read
once, in the parent. `python -m benchmarks.baselines.well_known` trains until the test accuracy is reached: after each
epoch of all processes the parent evaluates, as the example does after its last, and it stops as soon as it is."""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.baselines.networks import Settings
from benchmarks.baselines.race import Line, hear, race, rate, runners, total
from hogwild.data import Mnist
from hogwild.models import LeNet

TEST_BATCH = 1000
REACHED = "reached"


class Digits(Dataset):
    """images (N, 28, 28) uint8, labels (N,); transformed sample by sample, each time, as torchvision's ToTensor and
    Normalize do it."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    @classmethod
    def of(cls, split: str) -> "Digits":
        """The MNIST files through HOGWILD_DATA, as bytes again."""
        x, y = Mnist(split=split, normalize=False).tensors
        return cls((x[:, 0] * 255).round_().to(torch.uint8), y)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return normalize(to_tensor(self.images[index].numpy())), int(self.labels[index])


def to_tensor(image: np.ndarray) -> Tensor:
    """(H, W) uint8 -> (1, H, W) float32 in [0, 1]."""
    return torch.from_numpy(image[:, :, None].transpose(2, 0, 1)).contiguous().to(torch.float32).div(255)


def normalize(image: Tensor) -> Tensor:
    """(C, H, W) float, minus the mean of the training pixels, over their deviation."""
    image = image.clone()
    mean = torch.as_tensor([Mnist.mean], dtype=image.dtype)
    deviation = torch.as_tensor([Mnist.deviation], dtype=image.dtype)
    return image.sub_(mean.view(-1, 1, 1)).div_(deviation.view(-1, 1, 1))


class Endless:
    """One process's updates, epoch after epoch."""

    def __init__(self, model: nn.Module, data: Digits, settings: Settings) -> None:
        self._model = model.train()
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
        self._loader = DataLoader(data, batch_size=settings.batch_size, shuffle=True)
        self._epoch = iter(())

    def update(self) -> None:
        try:
            self._train(*next(self._epoch))
        except StopIteration:
            self._epoch = iter(self._loader)
            self._train(*next(self._epoch))

    def epoch(self) -> None:
        for inputs, labels in self._loader:
            self._train(inputs, labels)

    def _train(self, inputs: Tensor, labels: Tensor) -> None:
        self._optimizer.zero_grad()
        self._loss(self._model(inputs), labels).backward()
        self._optimizer.step()


def samples_per_s(data: Digits, procs: int, settings: Settings) -> float:
    """Return the samples a second of all processes together."""
    model = LeNet().share_memory()
    return total(race(_measure, [(model, data, settings, rank) for rank in range(procs)]))


def epochs_to(accuracy: float, train: Digits, test: Digits, procs: int, seed: int, most: int) -> int | None:
    """After how many epochs of each process the test accuracy was reached; None: not after `most`."""
    torch.manual_seed(seed)
    model, settings = LeNet().share_memory(), Settings(updates=0)
    with runners(_train_on, [(model, train, settings, seed + rank) for rank in range(procs)]) as lines:
        for epoch in range(1, most + 1):
            for line in lines:
                hear(line)
            reached = evaluate(model, test) >= accuracy
            for line in lines:
                line.send(not reached and epoch < most)
            if reached:
                return epoch
    return None


def evaluate(model: nn.Module, test: Digits) -> float:
    """The part of the samples whose class is right."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, batch_size=TEST_BATCH))
    return right / len(test)


def _measure(line: Line, model: nn.Module, data: Digits, settings: Settings, rank: int) -> None:
    torch.manual_seed(1 + rank)
    endless = Endless(model, data, settings)
    rate(endless.update, settings.warm_up, settings.batch_size)
    line.ready()
    line.answer(rate(endless.update, settings.updates, settings.batch_size))


def _train_on(line: Line, model: nn.Module, data: Digits, settings: Settings, seed: int) -> None:
    torch.manual_seed(seed)
    endless = Endless(model, data, settings)
    while True:
        endless.epoch()
        if not line.ask("epoch"):
            return


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains until a test accuracy is reached, then says so.")
    parser.add_argument("--accuracy", type=float, default=0.98)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-epochs", type=int, default=10)
    asked = parser.parse_args(argv)
    epochs = epochs_to(
        asked.accuracy, Digits.of("train"), Digits.of("test"), asked.procs, asked.seed, asked.most_epochs
    )
    if epochs is None:
        raise SystemExit(f"a test accuracy of {asked.accuracy:g} was not reached in {asked.most_epochs} epochs")
    print(f"{REACHED} after {epochs} epochs of {asked.procs} processes")


if __name__ == "__main__":
    main()
