"""Users who come one after the other, and a table of a million rows that is nearly short of them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from hogwild.nn import NamedEmbedding

CAPACITY, DIM = 1 << 20, 32
KNOWN = int(0.5 * CAPACITY)  # with more, some ids would find no room nearby, and the table would grow at once
NEW = 16  # one of so many is new


class Users(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = NamedEmbedding(DIM, CAPACITY, max_capacity=2 * CAPACITY)
        self.users.rows_of(torch.arange(KNOWN), claim=True)

    def forward(self, users: Tensor) -> Tensor:
        """users (B,) int64 -> their rows (B, DIM)."""
        return self.users(users)


class Ids(IterableDataset[tuple[Tensor, Tensor]]):
    """Users for ever."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        draws, known = torch.Generator().manual_seed(1), KNOWN
        nothing = torch.zeros(())
        while True:
            users = torch.randint(known, (1024,), generator=draws)
            users[::NEW] = torch.arange(known, known + len(users[::NEW]))
            known += len(users[::NEW])
            for user in users:
                yield user, nothing


class Mean(nn.Module):
    def forward(self, rows: Tensor, nothing: Tensor) -> Tensor:
        return rows.mean()
