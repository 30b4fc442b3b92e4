"""Fine-tuning a small ResNet: a new scanner, and only five pictures of each digit that have a label.

The network is trained on the bundled digits. The new scanner's pictures are blurred and noisy, which it does not
know. So it gets a new head while its body is frozen (`freeze` takes those parameters out of the workers' updates, so
a step costs less), and then all of it is trained at a low rate. Printed: the accuracy on the new scanner's pictures
before and after, and that of a network which starts from nothing with the same fifty."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.data import Digits


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2016), with group norms: batch norms would need the statistics of
    all workers."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, after) for _ in range(2))
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(found)) + self.shortcut(x)).relu()


class ResNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Block(1, 16, 1), Block(16, 32, 2), Block(32, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) for pictures (B, 1, 8, 8)."""
        return self.head(self.body(x))


def pictures(split: str) -> tuple[Tensor, Tensor]:
    """Return the bundled pictures (N, 1, 8, 8) and their digits (N,)."""
    x, y = Digits(split).tensors
    return x.reshape(-1, 1, 8, 8), y


def fit(net: nn.Module, x: Tensor, y: Tensor, lr: float, epochs: int, **more: object) -> None:
    """Train with two workers."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    hogwild.train(
        net, TensorDataset(x, y), nn.CrossEntropyLoss(), optimizer, procs=2, epochs=epochs, batch_size=16, **more
    )


def scanned(x: Tensor) -> Tensor:
    """Return how the new scanner sees pictures (N, 1, 8, 8)."""
    blurred = nn.functional.avg_pool2d(x, 2, 1, 1)[:, :, :8, :8]
    return blurred + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(len(x)))


def accuracy(net: nn.Module) -> str:
    """Return the share of the new scanner's pictures that are right."""
    net.eval()
    with torch.no_grad():
        return f"{(net(new_test_x).argmax(1) == test_y).float().mean():.1%}"


(train_x, train_y), (test_x, test_y) = pictures("train"), pictures("test")
few = torch.cat([(train_y == digit).nonzero()[:5, 0] for digit in range(10)])
new_x, new_y, new_test_x = scanned(train_x)[few], train_y[few], scanned(test_x)

torch.manual_seed(1)
model = ResNet()
from_nothing = copy.deepcopy(model)
fit(model, train_x, train_y, lr=0.003, epochs=6)
print(f"trained on the old scanner: {accuracy(model)} of the new one's pictures")

model.head = nn.Linear(32, 10)
fit(model, new_x, new_y, lr=0.02, epochs=30, model={"freeze": ["body.*"]})
print(f"a new head on the frozen body: {accuracy(model)}")
fit(model, new_x, new_y, lr=0.001, epochs=30)
print(f"and then all of it: {accuracy(model)}")
fit(from_nothing, new_x, new_y, lr=0.003, epochs=60)
print(f"from nothing, with the same {len(few)} pictures: {accuracy(from_nothing)}")
