"""LSTM in plain tensor operations, as an example of a custom recurrent cell. `torch.jit.script` and `torch.compile`
both accept it.

    i, f, o = sigmoid(W x + b + U h + c) each      g = tanh(W x + b + U h + c)      c' = f c + i g      h' = o tanh(c')

(Hochreiter and Schmidhuber 1997, with the forget gate of Gers, Schmidhuber and Cummins 2000; weights as
`torch.nn.LSTM` keeps them: the rows are those of i, f, g and o, in this order.)"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
