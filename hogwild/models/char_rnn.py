"""Recurrent networks over characters: prediction of the next character, classification of lines."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hogwild.models.lstm_cell import CustomLstm

CELLS = ("lstm", "gru", "custom")


def _recurrent(cell: str, features: int, hidden: int, layers: int, dropout: float) -> Any:
    if cell not in CELLS:
        raise ValueError(f"cell must be {', '.join(CELLS[:-1])} or {CELLS[-1]}, got {cell!r}")
    between = dropout if layers > 1 else 0.0  # torch warns about dropout with a single layer
    if cell == "custom":
        return CustomLstm(features, hidden, layers, between)
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    return kind(features, hidden, layers, batch_first=True, dropout=between)


class CharRnn(nn.Module):
    """A predictor of the next symbol at every position of a window. It keeps its state between windows (`data.lanes`).

    Arguments:
        symbols: different characters.
        embedding: numbers of a character's learnt vector.
        hidden: width of a layer.
        layers: recurrent layers.
        cell: lstm, gru, or custom, an LSTM in plain tensor operations (`hogwild.models.lstm_cell`).
        dropout: training dropout probability between layers and before the output layer."""

    def __init__(
        self,
        symbols: int,
        embedding: int = 64,
        hidden: int = 256,
        layers: int = 1,
        cell: str = "lstm",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, embedding)
        self.recurrent = _recurrent(cell, embedding, hidden, layers, dropout)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, symbols)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return logits (B, symbols, T) of x (B, T) int64, as CrossEntropyLoss expects them with targets (B, T), and
        the state: (h, c), each (layers, B, hidden), or only h for a GRU. A state of None means zeros."""
        hidden, state = self.recurrent(self.embed(x), state)
        # The logits are stored as (B, T, symbols): softmax is fast over the last dimension in memory.
        return self.out(self.drop(hidden)).transpose(1, 2), state


class SequenceClassifier(nn.Module):
    """A classifier of sequences of different lengths. Padding is never read.

    Arguments:
        symbols: different characters.
        classes: outputs.
        embedding: numbers of a character's learnt vector.
        hidden: width of a layer.
        layers: recurrent layers.
        cell: lstm or gru.
        dropout: training dropout probability between layers and before the output layer.
        pool: last, the last layer's state at each sequence's own end; or mean, the mean of its states."""

    def __init__(
        self,
        symbols: int,
        classes: int,
        embedding: int = 32,
        hidden: int = 128,
        layers: int = 1,
        cell: str = "lstm",
        dropout: float = 0.0,
        pool: str = "last",
    ) -> None:
        super().__init__()
        if pool not in ("last", "mean"):
            raise ValueError(f"pool must be last or mean, got {pool!r}")
        self.pool = pool
        if cell == "custom":
            raise ValueError("cell must be lstm or gru: packed sequences are torch's own cells' business")
        self.embed = nn.Embedding(symbols, embedding)
        self.recurrent = _recurrent(cell, embedding, hidden, layers, dropout)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return logits (B, classes) of x (B, T) int64, padded with any symbol; lengths (B,) int64, 1 to T."""
        packed = pack_padded_sequence(self.embed(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, state = self.recurrent(packed)
        if self.pool == "mean":
            padded, _ = pad_packed_sequence(outputs, batch_first=True)  # (B, T, hidden), 0 in the padding
            found: Tensor = padded.sum(1) / lengths.unsqueeze(1)
        else:
            found = (state[0] if isinstance(state, tuple) else state)[-1]  # (B, hidden)
        logits: Tensor = self.out(self.drop(found))
        return logits
