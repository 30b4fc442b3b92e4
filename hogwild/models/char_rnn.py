"""Recurrent networks over characters (prediction of the next character, classification of lines), and an LSTM in plain
tensor operations, as an example of a custom recurrent cell. `torch.jit.script` and `torch.compile` both accept it.

    i, f, o = sigmoid(W x + b + U h + c) each      g = tanh(W x + b + U h + c)      c' = f c + i g      h' = o tanh(c')

(Hochreiter and Schmidhuber 1997, with the forget gate of Gers, Schmidhuber and Cummins 2000; weights as
`torch.nn.LSTM` keeps them: the rows are those of i, f, g and o, in this order.)"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, Tensor]


class CustomLayer(nn.Module):
    """One layer. The inputs' contribution is one product for all times; only the recurrent part is computed step by
    step."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)  # as in torch.nn.LSTM
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, features).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs (B, T, hidden), h and c of x (B, T, features); h and c are (B, hidden)."""
        given = F.linear(x, self.weight_ih, self.bias_ih + self.bias_hh)  # (B, T, 4 hidden)
        outputs: list[Tensor] = []
        for gates in given.unbind(1):
            i, f, g, o = (gates + F.linear(h, self.weight_hh)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, 1), h, c


class CustomLstm(nn.Module):
    """Stacked layers with dropout between them: the same function as `torch.nn.LSTM(…, batch_first=True)`."""

    def __init__(self, features: int, hidden: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.dropout = hidden, dropout
        self.layers = nn.ModuleList(CustomLayer(features if k == 0 else hidden, hidden) for k in range(layers))

    @classmethod
    def like(cls, lstm: nn.LSTM) -> "CustomLstm":
        """Return a copy of `lstm` with the same weights. Raises ValueError for other kinds of LSTM."""
        if lstm.bidirectional or lstm.proj_size or not lstm.bias or not lstm.batch_first:
            raise ValueError(f"only a one-way LSTM with biases and batch_first, not {lstm}")
        made = cls(lstm.input_size, lstm.hidden_size, lstm.num_layers, lstm.dropout)
        with torch.no_grad():
            for k, layer in enumerate(made.layers):
                for name, parameter in layer.named_parameters():
                    parameter.copy_(getattr(lstm, f"{name}_l{k}"))
        return made

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return ((B, T, hidden), state) of x (B, T, features); state (h, c), each (layers, B, hidden), None: zeros."""
        if state is None:
            zeros = torch.zeros(len(self.layers), x.size(0), self.hidden, dtype=x.dtype, device=x.device)
            state = (zeros, zeros)
        last_h: list[Tensor] = []
        last_c: list[Tensor] = []
        for k, layer in enumerate(self.layers):
            if k > 0 and self.dropout > 0.0:
                x = F.dropout(x, self.dropout, self.training)
            x, h, c = layer(x, state[0][k], state[1][k])
            last_h.append(h)
            last_c.append(c)
        return x, (torch.stack(last_h), torch.stack(last_c))


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
        cell: lstm, gru, or custom, an LSTM in plain tensor operations (`hogwild.models.char_rnn`).
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
