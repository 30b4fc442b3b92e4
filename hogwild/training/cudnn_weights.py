"""Recurrent layers on a GPU whose weights are in a flat.

cuDNN wants all weights of an nn.LSTM, GRU or RNN in one piece of memory, in its own order and without gaps: first all
matrices, then all biases (torch/nn/modules/rnn.py, `flatten_parameters`; torch._cudnn_rnn_flatten_weight). In the flat
of a device every parameter begins on a cache line, in the optimizer's order. `flatten_parameters()` would move the
weights out of the flat, and their updates would be lost. So it is disabled here, and cuDNN gets the weights as they
are. torch then copies them into one piece in every forward pass, and would warn of that each time."""

import warnings

from torch import nn

WARNING = "RNN module weights are not part of single contiguous chunk of memory"


def keep_weights(model: nn.Module) -> list[str]:
    """Disable flattening in every recurrent layer; return sentences for the log."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    for _, layer in layers:
        layer.flatten_parameters = _nothing  # type: ignore[method-assign]
    if not layers:
        return []
    warnings.filterwarnings("ignore", message=WARNING)
    names = ", ".join(name or "(the model itself)" for name, _ in layers)
    return [
        f"warning: the weights of {names} stay in the shared memory: flatten_parameters() does nothing, and cuDNN "
        "copies them in each forward pass"
    ]


def _nothing() -> None:
    """Do nothing, in place of `flatten_parameters`."""
