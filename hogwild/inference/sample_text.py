"""Text written by a model that has learnt which character comes next (`hogwild.models.CharRnn`): one character after
the other, each drawn from what the model makes of all before it, which its state carries."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from hogwild.errors import UsageError
from hogwild.training.recurrent_state import divided, takes_state

SYMBOLS = "symbols"
START = "\n"  # what an empty prompt stands for, where the model knows it: the beginning of a line


def sample(
    model: nn.Module, symbols: Sequence[str], prompt: str, length: int, temperature: float = 1.0, seed: int = 1
) -> str:
    """`length` characters that follow `prompt`, which is not repeated. Each is drawn with probability
    softmax(logits / temperature): below 1 the model is surer of itself than it was trained to be, 0 takes the most
    probable. The same seed gives the same text. `model` is in evaluation mode. Raises UsageError for a model without
    state, and for a prompt with characters that it does not know."""
    if not takes_state(model):
        raise UsageError(
            f"{type(model).__qualname__} is not recurrent: its forward has no argument `state` with a default",
            code="usage/no-symbols",
        )
    if not temperature >= 0 or temperature == float("inf"):
        raise UsageError(f"temperature must be a number >= 0, got {temperature}", code="usage/bad-value")
    given = _numbers(symbols, prompt or (START if START in symbols else symbols[0]))
    with torch.no_grad():
        return "".join(symbols[number] for number in _drawn(model, given, length, temperature, seed))


def _drawn(model: nn.Module, given: Tensor, length: int, temperature: float, seed: int) -> Iterator[int]:
    """given (1, T) int64"""
    generator = torch.Generator().manual_seed(seed)
    x, state = given, None
    for _ in range(length):
        answer = model(x) if state is None else model(x, state=state)
        logits, state = divided(model, answer)  # (1, symbols, T)
        number = _next(logits[0, :, -1], temperature, generator)
        x = torch.tensor([[number]])
        yield number


def _next(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """logits (symbols,)"""
    if temperature == 0:
        return int(logits.argmax())
    # In double, and the largest taken off first: a small temperature divides by nearly nothing.
    scaled = (logits.double() - logits.max()) / temperature
    return int(torch.multinomial(torch.softmax(scaled, 0), 1, generator=generator))


def _numbers(symbols: Sequence[str], prompt: str) -> Tensor:
    """(1, T) int64"""
    places = {symbol: number for number, symbol in enumerate(symbols)}
    unknown = [*dict.fromkeys(symbol for symbol in prompt if symbol not in places)]
    if unknown:
        raise UsageError(
            f"prompt: the model does not know {', '.join(map(repr, unknown[:10]))}; its training text has "
            f"{len(symbols)} characters: {''.join(symbols)!r}",
            code="usage/bad-value",
        )
    return torch.tensor([[places[symbol] for symbol in prompt]])
