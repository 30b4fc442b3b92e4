"""A model of users and advertisements that are asked for by name: each has a row of its own from the first batch that
brings it, in all workers the same one."""

from torch import Tensor, nn

from hogwild.nn import NamedEmbedding


class Tastes(nn.Module):
    """The more alike the rows of a user and an advertisement, the likelier a click."""

    def __init__(self, dim: int = 8, capacity: int = 10_000, max_capacity: int = 10_000_000) -> None:
        super().__init__()
        self.users = NamedEmbedding(dim, capacity, max_capacity=max_capacity)
        self.ads = NamedEmbedding(dim, capacity, max_capacity=max_capacity)

    def forward(self, user: Tensor, ad: Tensor) -> Tensor:
        """user, ad (B,) int64, one for each column in `ids`  ->  logits (B,)."""
        return (self.users(user) * self.ads(ad)).sum(1)
