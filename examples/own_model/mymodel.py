"""A model, a data set and a loss of one's own. Plain torch, without hogwild; job.yaml names the classes.

How much will a reader like an article? A reader is a number, an article a list of features. The ratings are
generated:

    rating = taste[reader] . (mixing @ features) + noise

so the best possible loss is known: that of the formula itself, `Ratings.best_loss`.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

READERS, FEATURES, RANK = 200, 16, 4


class TwoTowers(nn.Module):
    """One tower for readers, one for articles; the score is the dot product of what they say."""

    def __init__(self, readers: int = READERS, features: int = FEATURES, rank: int = RANK) -> None:
        super().__init__()
        self.reader = nn.Embedding(readers, rank)
        self.article = nn.Linear(features, rank, bias=False)

    def forward(self, reader: Tensor, article: Tensor) -> Tensor:
        """reader (B,) int64, article (B, features) float -> scores (B,)."""
        return (self.reader(reader) * self.article(article)).sum(1)


class Ratings(Dataset):
    """`samples` ratings; `seed` draws readers and articles, the formula behind them is always the same.
    One sample: (reader int64, article (FEATURES,) float, rating float)."""

    def __init__(self, samples: int = 40_000, seed: int = 0, noise: float = 0.1) -> None:
        truth = torch.Generator().manual_seed(2011)
        taste = torch.randn(READERS, RANK, generator=truth)
        mixing = torch.randn(RANK, FEATURES, generator=truth) / FEATURES**0.5
        draw = torch.Generator().manual_seed(seed)
        self.reader = torch.randint(READERS, (samples,), generator=draw)
        self.article = torch.randn(samples, FEATURES, generator=draw)
        self.formula = (taste[self.reader] * (self.article @ mixing.T)).sum(1)
        self.rating = self.formula + noise * torch.randn(samples, generator=draw)

    def __len__(self) -> int:
        return len(self.rating)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.reader[index], self.article[index], self.rating[index]

    def best_loss(self, loss: nn.Module) -> float:
        """The loss of the formula itself: what is left is noise, which nobody can learn."""
        return float(loss(self.formula, self.rating))


class LogCosh(nn.Module):
    """Half the squared error near zero, the absolute error far away: one wild rating cannot shout down the
    rest."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        error = output - target
        return (error + nn.functional.softplus(-2 * error) - torch.tensor(2.0).log()).mean()
