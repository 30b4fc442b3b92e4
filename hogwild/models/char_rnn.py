"""Recurrent networks over characters (prediction of the next character, classification of lines), and an LSTM in plain
tensor operations, as an example of a custom recurrent cell. `torch.jit.script` and `torch.compile` both accept it.

    i, f, o = sigmoid(W x + b + U h + c) each      g = tanh(W x + b + U h + c)      c' = f c + i g      h' = o tanh(c')

(Hochreiter and Schmidhuber 1997, with the forget gate of Gers, Schmidhuber and Cummins 2000; weights as
`torch.nn.LSTM` keeps them: the rows are those of i, f, g and o, in this order.) With `layer_norm` W x, U h and the
new c are each normalised (Ba, Kiros and Hinton 2016, equations 20 to 22)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, Tensor]


class CustomLayer(nn.Module):
    """One layer in one direction. The inputs' contribution is one product for all times; only the recurrent part is
    computed step by step."""

    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(self, features: int, hidden: int, layer_norm: bool = False) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)  # as in torch.nn.LSTM
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, features).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        if layer_norm:  # each normalisation has a bias of its own
            self.bias_ih, self.bias_hh = None, None
        else:
            self.bias_ih = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
            self.bias_hh = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
        self.norm_ih = nn.LayerNorm(4 * hidden) if layer_norm else nn.Identity()
        self.norm_hh = nn.LayerNorm(4 * hidden) if layer_norm else nn.Identity()
        self.norm_c = nn.LayerNorm(hidden) if layer_norm else nn.Identity()

    def forward(self, x: Tensor, h: Tensor, c: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs (B, T, hidden), h and c of x (B, T, features); h and c are (B, hidden). Behind its end, by
        `lengths` (B,), a sequence keeps its state, and its outputs are 0."""
        bias_ih, bias_hh = self.bias_ih, self.bias_hh  # torch.jit.script knows of a local name that it is no None
        bias = bias_ih + bias_hh if bias_ih is not None and bias_hh is not None else None
        given = self.norm_ih(F.linear(x, self.weight_ih, bias))  # (B, T, 4 hidden)
        outputs: list[Tensor] = []
        for step, gates in enumerate(given.unbind(1)):
            i, f, g, o = (gates + self.norm_hh(F.linear(h, self.weight_hh))).chunk(4, 1)
            new_c = self.norm_c(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))
            new_h = torch.sigmoid(o) * torch.tanh(new_c)
            if lengths is None:
                h, c = new_h, new_c
                outputs.append(h)
            else:
                inside = (lengths > step).unsqueeze(1)  # (B, 1)
                h, c = torch.where(inside, new_h, h), torch.where(inside, new_c, c)
                outputs.append(torch.where(inside, h, torch.zeros_like(h)))
        return torch.stack(outputs, 1), h, c


class CustomLstm(nn.Module):
    """Stacked layers with dropout between them. Without `layer_norm` the same function as
    `torch.nn.LSTM(…, batch_first=True)`, to which sequences of different lengths are given packed."""

    def __init__(
        self,
        features: int,
        hidden: int,
        layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.hidden, self.dropout, self.directions = hidden, dropout, 2 if bidirectional else 1
        # In the order of torch.nn.LSTM's state: of each layer the forward direction, then the backward one.
        self.layers = nn.ModuleList(
            CustomLayer(features if k == 0 else self.directions * hidden, hidden, layer_norm)
            for k in range(layers)
            for _ in range(self.directions)
        )

    @classmethod
    def like(cls, lstm: nn.LSTM) -> "CustomLstm":
        """Return a copy of `lstm` with the same weights. Raises ValueError for other kinds of LSTM."""
        if lstm.proj_size or not lstm.bias or not lstm.batch_first:
            raise ValueError(f"only an LSTM with biases, batch_first and no projection, not {lstm}")
        made = cls(lstm.input_size, lstm.hidden_size, lstm.num_layers, lstm.dropout, lstm.bidirectional)
        with torch.no_grad():
            for place, layer in enumerate(made.layers):
                k, backward = divmod(place, made.directions)
                for name, parameter in layer.named_parameters():
                    parameter.copy_(getattr(lstm, f"{name}_l{k}{'_reverse' if backward else ''}"))
        return made

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """Return ((B, T, directions * hidden), state) of x (B, T, features).

        state: (h, c), each (layers * directions, B, hidden). None: zeros.
        lengths: (B,) int64, 1 to T. What lies behind a sequence's end is never read, its outputs are 0, and the
            returned state is that of each sequence's own end. None: all sequences are T long.
        """
        if state is None:
            zeros = torch.zeros(len(self.layers), x.size(0), self.hidden, dtype=x.dtype, device=x.device)
            state = (zeros, zeros)
        if lengths is not None:
            lengths = lengths.to(x.device)
        last_h: list[Tensor] = []
        last_c: list[Tensor] = []
        outputs: list[Tensor] = []  # of one layer, a tensor per direction
        for place, layer in enumerate(self.layers):
            backward = place % self.directions == 1
            if place > 0 and not backward:
                x = torch.cat(outputs, 2)
                outputs = []
                if self.dropout > 0.0:
                    x = F.dropout(x, self.dropout, self.training)
            output, h, c = layer(_turned(x, lengths) if backward else x, state[0][place], state[1][place], lengths)
            outputs.append(_turned(output, lengths) if backward else output)
            last_h.append(h)
            last_c.append(c)
        return torch.cat(outputs, 2), (torch.stack(last_h), torch.stack(last_c))


def _turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (B, T, features) with the steps of each sequence in the other order. Padding stays where it is."""
    if lengths is None:
        return x.flip(1)
    steps = torch.arange(x.size(1), device=x.device).unsqueeze(0)  # (1, T)
    ends = lengths.unsqueeze(1)  # (B, 1)
    sources = torch.where(steps < ends, ends - 1 - steps, steps)
    return x.gather(1, sources.unsqueeze(2).expand_as(x))


CELLS = ("lstm", "gru", "custom", "layer_norm")


def _recurrent(cell: str, features: int, hidden: int, layers: int, dropout: float, bidirectional: bool = False) -> Any:
    if cell not in CELLS:
        raise ValueError(f"cell must be {', '.join(CELLS[:-1])} or {CELLS[-1]}, got {cell!r}")
    between = dropout if layers > 1 else 0.0  # torch warns about dropout with a single layer
    if cell in ("custom", "layer_norm"):
        return CustomLstm(features, hidden, layers, between, bidirectional, layer_norm=cell == "layer_norm")
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    return kind(features, hidden, layers, batch_first=True, dropout=between, bidirectional=bidirectional)


class CharRnn(nn.Module):
    """A predictor of the next symbol at every position of a window. It keeps its state between windows (`data.lanes`).

    Arguments:
        symbols: different characters.
        embedding: numbers of a character's learnt vector.
        hidden: width of a layer.
        layers: recurrent layers.
        cell: lstm; gru; custom, an LSTM in plain tensor operations (`hogwild.models.char_rnn`); or layer_norm, the
            same with layer normalisation.
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


def _unpacked(cells: nn.RNNBase, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return (outputs (B, T, directions * hidden), state (directions, B, hidden) of the last layer) of an LSTM or GRU
    without dropout, as of packed sequences, which no program can be traced with."""
    run: Any = torch._VF.lstm if isinstance(cells, nn.LSTM) else torch._VF.gru
    zeros = x.new_zeros(1, x.size(0), cells.hidden_size)
    begin = (zeros, zeros) if isinstance(cells, nn.LSTM) else zeros
    inside = (torch.arange(x.size(1), device=x.device) < lengths.unsqueeze(1)).unsqueeze(2)  # (B, T, 1)
    ends = (lengths - 1).reshape(-1, 1, 1).expand(-1, 1, cells.hidden_size)
    for layer in range(cells.num_layers):
        outputs, last = [], []
        for turned in (False, True)[: 1 + cells.bidirectional]:
            ending = f"_l{layer}{'_reverse' if turned else ''}"
            weights = [getattr(cells, f"{name}{ending}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            given = _turned(x, lengths) if turned else x
            found = run(given, begin, weights, True, 1, 0.0, False, False, True)[0]
            last.append(found.gather(1, ends).squeeze(1))
            outputs.append((_turned(found, lengths) if turned else found) * inside)
        x = torch.cat(outputs, 2)
    return x, torch.stack(last)


class SequenceClassifier(nn.Module):
    """A classifier of sequences of different lengths. Padding is never read.

    Arguments:
        symbols: different characters.
        classes: outputs.
        embedding: numbers of a character's learnt vector.
        hidden: width of a layer.
        layers: recurrent layers.
        cell: lstm, gru, custom or layer_norm, as of CharRnn.
        dropout: training dropout probability between layers and before the output layer.
        pool: last, the last layer's state at each sequence's own end; or mean, the mean of its states.
        bidirectional: whether each layer reads the sequence from its end, too; the output layer gets both."""

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
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if pool not in ("last", "mean"):
            raise ValueError(f"pool must be last or mean, got {pool!r}")
        self.pool = pool
        self.directions = 2 if bidirectional else 1
        self.embed = nn.Embedding(symbols, embedding)
        self.recurrent = _recurrent(cell, embedding, hidden, layers, dropout, bidirectional)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(self.directions * hidden, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return logits (B, classes) of x (B, T) int64, padded with any symbol; lengths (B,) int64, 1 to T."""
        state: Any
        if isinstance(self.recurrent, nn.RNNBase) and torch.compiler.is_exporting():
            outputs, state = _unpacked(self.recurrent, self.embed(x), lengths)
        elif isinstance(self.recurrent, nn.RNNBase):
            packed = pack_padded_sequence(self.embed(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
            outputs, state = self.recurrent(packed)
            if self.pool == "mean":
                outputs, _ = pad_packed_sequence(outputs, batch_first=True)
        else:
            outputs, state = self.recurrent(self.embed(x), None, lengths)
        if self.pool == "mean":  # outputs (B, T, directions * hidden) are 0 in the padding
            found: Tensor = outputs.sum(1) / lengths.unsqueeze(1)
        else:  # of the last layer, each direction's state after its own last step
            last = (state[0] if isinstance(state, tuple) else state)[-self.directions :]
            found = torch.cat(last.unbind(0), 1)
        logits: Tensor = self.out(self.drop(found))
        return logits
