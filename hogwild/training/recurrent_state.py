"""Models that carry a state from one window of a sequence to the next, and the state itself.

Such a model has `forward(*inputs, state=None) -> (output, state)`, known by the argument's name and default. `state`: a
tensor, or nested tuples, lists and dicts of tensors. Loss, metrics and predictions get the output.

    without data.lanes     every batch begins with zero state (None), and its final state is dropped
    with data.lanes        batch t of a lane begins with the final state of batch t - 1, detached: gradients stop there,
                           values do not (truncated back-propagation through time; Williams and Peng, "An efficient
                           gradient-based algorithm for on-line training of recurrent network trajectories", 1990)
    in evaluations         every window begins with zero state: any worker may evaluate any slice of the data
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError

STATE = "state"


def takes_state(model: nn.Module) -> bool:
    """Return whether its forward has an argument `state` with a default. One without a default is an input: an agent's
    observation."""
    whole: Any = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(whole, torch.jit.ScriptModule):
        scripted: Any = whole.forward
        return any(one.name == STATE and one.has_default_value() for one in scripted.schema.arguments)
    try:
        found = inspect.signature(whole.forward).parameters.get(STATE)
    except (TypeError, ValueError):  # implemented in C: it has no signature
        return False
    return found is not None and found.default is not found.empty


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """Return a callable for the output: the model, started from zero state if it takes a state."""
    if not takes_state(model):
        return model
    return lambda *inputs: divided(model, model(*inputs))[0]


def divided(model: nn.Module, answer: Any) -> tuple[Any, Any]:
    """Return (output, state). Raises ModelError if the model's result is no such pair."""
    if isinstance(answer, tuple | list) and len(answer) == 2:
        return answer[0], answer[1]
    got = f"{len(answer)} values" if isinstance(answer, tuple | list) else f"a {type(answer).__name__}"
    raise ModelError(
        f"{type(model).__qualname__}.forward has an argument `state` with a default, so it must return a pair "
        f"(output, state), but returned {got}; if it keeps no state, rename the argument",
        code="model/state",
    )


def detached(state: Any) -> Any:
    """Return the same values without a graph, in the same tuples, lists and dicts; named tuples keep their names."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, dict):
        return {key: detached(value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        parts = [detached(value) for value in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return state


class LaneState:
    """The state of a worker's lane: only one, for a worker begins another lane only after the end of its own. In
    private memory: it is lost when the worker dies."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        """`steps`: batches per lane."""
        self._model, self._steps = model, steps
        self._state: Any = None
        self._next = (-1, -1)  # (epoch, batch) that the state belongs to
        self._now = self._next
        self._begun: Any = None  # the initial state of the present batch

    def start_batch(self, epoch: int, batch: int) -> bool:
        """Prepare the state before a forward. Returns True if the batch is in the middle of a lane but begins with zero
        state: the worker with the state is gone, the run was rolled back, or the batch before was skipped. A repeated
        batch (fp16, at a smaller scale) begins with the same state again, and is counted once."""
        if self._now == (epoch, batch):
            self._state = self._begun
            return False
        self._now = (epoch, batch)
        is_first, continues = batch % self._steps == 0, self._now == self._next
        if is_first or not continues:
            self._state = None
        self._begun = self._state
        return not is_first and not continues

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the output; keep the state for the next batch."""
        state, self._state = self._state, None
        answer = self._model(*inputs) if state is None else self._model(*inputs, state=state)
        output, fresh = divided(self._model, answer)
        epoch, batch = self._now
        self._state, self._next = detached(fresh), (epoch, batch + 1)
        return output

    def drop(self) -> None:
        """Drop the state, which may be NaN after this batch; the next one begins with zero state."""
        self._state = self._begun = None
        self._next = self._now = (-1, -1)
