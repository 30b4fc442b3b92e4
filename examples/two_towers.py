"""Two towers on a click log: which article does a reader open next?

A user's tower adds up the vectors of what the user opened before; an article's tower has a vector of its own and
those of its words. All are sparse tables. The other articles of a batch are the wrong answers (a softmax over the
batch), so nobody has to draw any. The log is invented: users and articles have hidden topics. Printed: how often a
user's last click is among the best ten of all articles, and how often it would be by chance."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild

USERS, ITEMS, TOPICS, HISTORY, WORDS, VOCABULARY = 2_000, 500, 20, 8, 6, 400
RECORDS = 40_000


def click_log() -> tuple[Tensor, Tensor, Tensor]:
    """Return histories (N, HISTORY), the article clicked next (N,), and the words of each article (ITEMS, WORDS)."""
    draw = torch.Generator().manual_seed(1)
    topic = torch.randint(TOPICS, (ITEMS,), generator=draw)
    likes = torch.rand(USERS, TOPICS, generator=draw) ** 8
    weights = likes[:, topic] / torch.arange(1, ITEMS + 1) ** 0.3  # topics, and some articles are popular
    per_user = RECORDS // USERS
    clicks = torch.multinomial(weights, HISTORY + per_user, replacement=False, generator=draw)
    histories = clicks.unfold(1, HISTORY, 1)[:, :per_user].reshape(-1, HISTORY)
    words = topic[:, None] * (VOCABULARY // TOPICS) + torch.randint(
        VOCABULARY // TOPICS, (ITEMS, WORDS), generator=draw
    )
    return histories, clicks[:, HISTORY:].reshape(-1), words


class TwoTowers(nn.Module):
    def __init__(self, words: Tensor, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("words", words)
        self.opened = nn.EmbeddingBag(ITEMS, width, mode="mean", sparse=True)
        self.item = nn.Embedding(ITEMS, width, sparse=True)
        self.word = nn.EmbeddingBag(VOCABULARY, width, mode="mean", sparse=True)
        nn.init.zeros_(self.item.weight)  # an article that nobody has opened yet is the sum of its words

    def of_items(self, item: Tensor) -> Tensor:
        """Return the vectors (B, width) of items (B,)."""
        return self.item(item) + self.word(self.words[item])

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        """Return scores (B, B) of each history (B, HISTORY) with each of the batch's items (B,)."""
        scores: Tensor = self.opened(history) @ self.of_items(item).T
        is_again = (item[:, None] == item) & ~torch.eye(len(item), dtype=torch.bool)  # the right item at another place
        return scores.masked_fill(is_again, -1e9)


def softmax_of_batch(scores: Tensor, place: Tensor) -> Tensor:
    """Return the mean cross-entropy of scores (B, B): the right answer of row i is column i."""
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


torch.manual_seed(1)
histories, clicked, words = click_log()
is_last = torch.arange(len(clicked)) % (RECORDS // USERS) == RECORDS // USERS - 1  # each user's last click
model = TwoTowers(words)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
data = TensorDataset(histories[~is_last], clicked[~is_last], clicked[~is_last])

result = hogwild.train(model, data, softmax_of_batch, optimizer, procs=2, epochs=5, batch_size=256)

with torch.no_grad():
    scores = model.opened(histories[is_last]) @ model.of_items(torch.arange(ITEMS)).T
    scores.scatter_(1, histories[is_last], -torch.inf)
    best = scores.topk(10).indices
hits = (best == clicked[is_last, None]).any(1).float().mean()
print(f"{result.samples:,} clicks in {result.updates:,} updates by {result.procs} workers")
print(f"the next click is among the best ten: {hits:.1%}; by chance: {10 / ITEMS:.1%}")
