"""The model of a running job, for `hogwild predict --live`: a module whose forward is a call to the job's predictor."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.inference.trained_model import Trained
from hogwild.monitoring.live_calls import LiveCalls


class LiveModel(nn.Module):
    """The model that a job trains at this moment. `consistent`: each block is computed inside a pause. Raises what
    `LiveCalls.call` raises."""

    def __init__(self, calls: LiveCalls, *, consistent: bool) -> None:
        super().__init__()
        self._calls, self._consistent = calls, consistent
        names, _ = calls.call({"do": "describe"})
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.forward = self._forward_with([inspect.Parameter(name, kind) for name in names["inputs"]])

    def _forward_with(self, parameters: list[inspect.Parameter]) -> Any:
        """Return the forward with the signature of the job's model: its arguments are names of arrays in a file."""

        def forward(*inputs: Tensor) -> Tensor:
            return self._answer(inputs)

        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return forward

    def _answer(self, inputs: tuple[Tensor, ...]) -> Tensor:
        whole = [one.contiguous() for one in inputs]
        header = {
            "do": "predict",
            "form": "tensors",
            "inputs": [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in whole],
            "consistent": self._consistent,
        }
        content = b"".join(one.view(-1).view(torch.uint8).numpy().tobytes() for one in whole if one.numel())
        limit = {"limit_s": None} if self._consistent else {}
        answer, payload = self._calls.call(header, content, **limit)
        dtype, shape = answer["output"]
        made = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
        if payload:
            made.view(-1).view(torch.uint8).copy_(torch.from_numpy(np.frombuffer(bytearray(payload), np.uint8)))
        return made


def live_model(run: Path, calls: LiveCalls, *, consistent: bool) -> Trained:
    """Return the model of a running job, in the form of a trained one. Raises what `LiveCalls.call` raises."""
    return Trained.live(run, LiveModel(calls, consistent=consistent).eval())
