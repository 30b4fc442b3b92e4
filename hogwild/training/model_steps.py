"""Methods by which a model may replace loss(model(*inputs), target):

    training_step(self, batch, loss)      batch: (*inputs, target). Returns the loss, or a dict: "loss", and further
                                          numbers by name, whose means are recorded beside it
    evaluation_step(self, batch, loss)    returns (output, target), for the job's loss and metrics

Both are optional and found by their names. If samples have weights, they are the last of the inputs, and the loss is
called as loss(output, target, weight).

A model that carries a state from one window of a sequence to the next has `forward(*inputs, state=None) -> (output,
state)`, known by the argument's name and default. `state`: a tensor, or nested tuples, lists and dicts of tensors.
Loss, metrics and predictions get the output.

    without data.lanes     every batch begins with zero state (None), and its final state is dropped
    with data.lanes        batch t of a lane begins with the final state of batch t - 1, detached: gradients stop there,
                           values do not (truncated back-propagation through time; Williams and Peng, "An efficient
                           gradient-based algorithm for on-line training of recurrent network trajectories", 1990)
    in evaluations         every window begins with zero state: any worker may evaluate any slice of the data
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.metrics.loss_sums import WeightedLoss, parted

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


LOSS = "loss"
MOST_NAMES = 8  # further losses, each with its own words in a worker's row
Predict = Callable[[tuple[Tensor, ...], Tensor], tuple[Any, Any]]


def has_training_step(model: nn.Module) -> bool:
    return callable(getattr(model, "training_step", None))


def has_evaluation_step(model: nn.Module) -> bool:
    return callable(getattr(model, "evaluation_step", None))


def predictor(model: nn.Module, loss: Any) -> Predict:
    """Return the function (inputs, target) -> (output, target) for evaluations."""
    if not has_evaluation_step(model):
        forward = forward_of(model)
        return lambda inputs, target: (forward(*parted(loss, inputs)[0]), target)
    step: Callable[..., Any] = model.evaluation_step  # type: ignore[assignment]

    def predict(inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Any, Any]:
        answer = step((*inputs, target), loss)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Tensor):
            raise ModelError(
                f"{type(model).__name__}.evaluation_step returned {_described(answer)}; it must return (output, "
                "target), with a tensor as target",
                code="model/step",
            )
        return answer

    return predict


class Losses:
    """The loss of a batch; for a model with a training_step, also the sums of its further losses since the last `pop`.
    `sums[k]`, `counts[k]` belong to `names[k]`; values that are not finite are in neither."""

    def __init__(
        self, model: nn.Module, loss: Any, names: tuple[str, ...] = (), forward: Callable[..., Any] | None = None
    ) -> None:
        """`forward(*inputs)` returns the output for the loss; by default the model's."""
        self._model, self._loss, self.names = model, loss, names
        self._is_weighted = isinstance(loss, WeightedLoss)
        self._forward = forward_of(model) if forward is None else forward  # a compiled model has a len() that raises
        self._step: Callable[..., Any] | None = model.training_step if has_training_step(model) else None  # type: ignore[assignment]
        self._found: list[tuple[float, ...]] = []

    def of(self, inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        """Return the loss with its graph. Raises ModelError for an invalid result of training_step."""
        if self._step is None:
            weight: tuple[Tensor, ...] = ()
            if self._is_weighted:
                inputs, weight = parted(self._loss, inputs)
            loss: Tensor = self._loss(self._forward(*inputs), target, *weight)
            return loss
        loss, further = read_answer(self._model, self._step((*inputs, target), self._loss))
        if further.keys() != set(self.names):
            raise ModelError(
                f"{type(self._model).__name__}.training_step returned {_listed(further)} beside the loss, but "
                f"{_listed(self.names)} in its trial: the names must be the same for every batch",
                code="model/step",
            )
        if self.names:
            self._found.append(tuple(further[name] for name in self.names))
        return loss

    def pop(self) -> tuple[list[float], list[int]]:
        """Return (sums, counts) of the batches since the last call."""
        columns = [[value for value in column if math.isfinite(value)] for column in zip(*self._found, strict=True)]
        self._found.clear()
        return [math.fsum(column) for column in columns], [len(column) for column in columns]

    def discard(self) -> None:
        """Drop the losses of batches that were not applied."""
        self._found.clear()


def read_answer(model: nn.Module, answer: Any) -> tuple[Tensor, dict[str, float]]:
    """Return the loss, and the further numbers. Raises ModelError for any other result of a training_step."""
    who = f"{type(model).__name__}.training_step"
    loss: Any = answer
    further: Mapping[str, Any] = {}
    if isinstance(answer, Mapping):
        loss = answer.get(LOSS)
        further = {name: value for name, value in answer.items() if name != LOSS}
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise ModelError(
            f"{who} returned {_described(answer)}; it must return the loss, a tensor with one floating-point number or "
            f"a dict with it under {LOSS!r}",
            code="model/step",
        )
    if len(further) > MOST_NAMES or not all(isinstance(name, str) and name.isidentifier() for name in further):
        raise ModelError(
            f"{who} returned {_listed(further)} beside the loss: at most {MOST_NAMES} names, such as kl or aux_loss",
            code="model/step",
        )
    return loss, {name: _number(who, name, value) for name, value in further.items()}


def _number(who: str, name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.detach())
    if isinstance(value, int | float):
        return float(value)
    raise ModelError(f"{who}: {name} is {_described(value)}; it must be one number", code="model/step")


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Restore buffers, modes and the random state afterwards; gradients are enabled inside."""
    tables = [module._buffers for module in model.modules()]
    kept = [(table, key, one, one.clone()) for table in tables for key, one in table.items() if one is not None]
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training
        with torch.no_grad():
            for buffers, key, one, content in kept:
                buffers[key] = one.copy_(content)


def try_training_step(model: nn.Module, loss: Any, sample: list[Tensor]) -> tuple[str, ...]:
    """Run one training_step on a few samples in training mode, with a graph that is dropped, and return the names of
    its further losses. Raises what the step raises."""
    step: Callable[..., Any] = model.training_step  # type: ignore[assignment]
    with leaving_no_trace(model):
        model.train()
        _, further = read_answer(model, step(tuple(sample), loss))
    return tuple(further)


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return f"a dict of {_listed(value)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
