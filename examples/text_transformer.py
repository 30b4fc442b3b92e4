"""A Transformer classifies text: is this sentence about food, travel or work?

Sentences have different lengths, so `collate` pads each batch to its longest one, and the model masks what is no
word. The sentences are invented: words of a topic among words of any. Printed: the accuracy on new sentences, and the
topics of three."""

import random

import torch
from torch import Tensor, nn

import hogwild

TOPICS = {
    "food": "bread soup cheese pepper kitchen taste bake fry lemon salt plate hungry",
    "travel": "train ticket border mountain map luggage harbour tent flight road island guide",
    "work": "meeting desk salary report boss deadline office project contract printer shift team",
}
COMMON = "the a my we they was is very not again with for under before good bad long new old and"
VOCABULARY = {word: number for number, word in enumerate(sorted({*" ".join([COMMON, *TOPICS.values()]).split()}), 1)}
NAMES = list(TOPICS)


def sentences(count: int, seed: int) -> list[tuple[list[int], int]]:
    """Return sentences as numbers of words, and their topics."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        topic = draw.randrange(len(NAMES))
        own, other = TOPICS[NAMES[topic]].split(), TOPICS[draw.choice(NAMES)].split()
        words = draw.choices(COMMON.split(), k=draw.randint(3, 20)) + draw.choices(own, k=3) + draw.choices(other, k=1)
        draw.shuffle(words)
        made.append(([VOCABULARY[word] for word in words], topic))
    return made


def padded(records: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Return sentences (B, longest) with zeros behind their ends, and topics (B,)."""
    rows = [torch.tensor(words) for words, _ in records]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([topic for _, topic in records])


class Classifier(nn.Module):
    def __init__(self, width: int = 32, longest: int = 32) -> None:
        super().__init__()
        self.word = nn.Embedding(len(VOCABULARY) + 1, width, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(longest, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(NAMES))

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (B, topics) for sentences (B, L); 0 is no word."""
        is_word = words > 0
        states = self.encoder(self.word(words) + self.place[: words.shape[1]], src_key_padding_mask=~is_word)
        return self.head((states * is_word[..., None]).sum(1) / is_word.sum(1, keepdim=True))


torch.manual_seed(1)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)

result = hogwild.train(
    model,
    sentences(6_000, seed=0),
    nn.CrossEntropyLoss(),
    optimizer,
    procs=2,
    epochs=2,
    batch_size=32,
    collate=padded,
    val=sentences(1_000, seed=1),
    evaluate={"metrics": ["accuracy"]},
)

print(f"{result.samples:,} sentences in {result.updates:,} updates by {result.procs} workers")
print(f"accuracy {result.metrics['accuracy']:.3f}")
model.eval()
for text in ("the cheese was very good", "my luggage is under the old map", "we have a long meeting with the boss"):
    words = torch.tensor([[VOCABULARY[word] for word in text.split() if word in VOCABULARY]])
    print(f"  {text}: {NAMES[int(model(words).argmax())]}")
