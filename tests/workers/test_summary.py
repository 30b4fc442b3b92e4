"""The advice of a job whose workers did not pay: by what its updates write, and by the time they take."""

import pytest
from torch import nn

from hogwild.job.update_choice import UpdateChoice
from workers.session.summary import remedy

AUTOGRAD = UpdateChoice(None, "autograd: no compiled kernel for this model", is_worth_saying=False)


class Recommender(nn.Module):
    def __init__(self, *, sparse: bool, hidden: int = 8) -> None:
        super().__init__()
        self.users = nn.Embedding(1000, 16, sparse=sparse)
        self.items = nn.Embedding(5000, 16, sparse=sparse)
        self.net = nn.Linear(32, hidden)


@pytest.mark.parametrize(
    ("model", "choice", "update_s", "said"),
    [
        (Recommender(sparse=False), AUTOGRAD, 0.05, "all of the embedding items (312 KiB); with sparse=True"),
        (Recommender(sparse=True), AUTOGRAD, 0.05, "gradients are sparse, so writing them is not the limit"),
        (Recommender(sparse=True), AUTOGRAD, 0.0003, "an update takes 0.3 ms, most of it overhead"),
        # its tables are the smaller part of what an update writes
        (Recommender(sparse=False, hidden=5000), AUTOGRAD, 0.05, "each update writes 1.0 MiB: try a larger"),
        (nn.Linear(1000, 1000), AUTOGRAD, 0.05, "each update writes 3.8 MiB: try a larger data.batch_size, or one"),
        (nn.Linear(4, 2), AUTOGRAD, 0.0003, "try a larger data.batch_size"),
        (nn.Sequential(nn.EmbeddingBag(9, 4)), AUTOGRAD, 0.0003, "all of the embedding 0 (144 B); with sparse=True"),
        (
            Recommender(sparse=True),
            UpdateChoice(None, "autograd: numba is not installed; pip install 'hogwild[sparse]'"),
            0.0003,
            "the model's compiled kernel is not used: numba is not installed; pip install 'hogwild[sparse]'",
        ),
    ],
)
def test_the_remedy_fits_what_an_update_writes_and_how_long_it_takes(
    model: nn.Module, choice: UpdateChoice, update_s: float, said: str
) -> None:
    found = remedy(model, choice, update_s)
    assert said in found
    assert "DistributedDataParallel" not in found


def test_a_frozen_table_is_not_written() -> None:
    model = Recommender(sparse=False)
    model.users.requires_grad_(False)
    model.items.requires_grad_(False)
    assert "embedding" not in remedy(model, AUTOGRAD, 0.05)
