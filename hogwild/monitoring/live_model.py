"""The model of a running job, for `hogwild predict --live` and `similar --live`: a module whose forward is a call to
the job's predictor; and tensors as both sides of a call write and read them."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, treespec_dumps

from hogwild.errors import UsageError
from hogwild.inference.trained_model import Trained
from hogwild.monitoring.live_calls import LiveCalls

ALIGNED = 64  # bytes, as torch aligns its own tensors


class LiveModel(nn.Module):
    """The model that a job trains at this moment. `consistent`: each block is computed inside a pause. Raises what
    `LiveCalls.call` raises."""

    def __init__(self, calls: LiveCalls, *, consistent: bool) -> None:
        super().__init__()
        names, _ = calls.call({"do": "describe"})
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

        def forward(*inputs: Any) -> Tensor | dict[str, Tensor]:
            leaves, nesting = tree_flatten(inputs)
            whole = [one.contiguous() for one in leaves]
            header = {"do": "predict", "form": "tensors", "inputs": [described(one) for one in whole]}
            if len(leaves) != len(inputs) or not all(isinstance(one, Tensor) for one in inputs):
                try:
                    header["nesting"] = treespec_dumps(nesting)
                except NotImplementedError as error:
                    words = "a live call takes inputs nested in dicts, tuples and lists only"
                    raise UsageError(f"{words}: {error}", code="predict/bad-message") from error
            limit = {"limit_s": None} if consistent else {}
            content = bytes_of(whole[0]) if len(whole) == 1 else b"".join(map(bytes_of, whole))
            answer, payload = calls.call(header | {"consistent": consistent}, content, **limit)
            if "outputs" not in answer:
                dtype, shape = answer["output"]
                return tensor_of(getattr(torch, dtype), shape, payload)
            found, rest = {}, memoryview(payload)
            for name, dtype, shape in answer["outputs"]:
                kind = getattr(torch, dtype)
                size = math.prod(shape) * kind.itemsize
                found[name], rest = tensor_of(kind, shape, rest[:size]), rest[size:]
            return found

        # That of the job's model: its arguments are names of arrays in a file.
        parameters = [inspect.Parameter(name, kind) for name in names["inputs"]]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward
        self._calls = calls

    def similar_live(
        self, names: Sequence[Any], minus: Sequence[Any], kind: str | None, top: int
    ) -> list[tuple[str, float]]:
        """Return what `Trained.similar` returns in the predictor."""
        asked = {"names": names, "minus": minus, "kind": kind, "top": top}
        _, answer = self._calls.call({"do": "similar"}, json.dumps(asked, default=str).encode())
        return [(name, cosine) for name, cosine in json.loads(answer)]


def described(tensor: Tensor) -> list[Any]:
    """Return [dtype, shape], for a header."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, in its own memory."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data if tensor.nbytes else memoryview(b"")


def tensor_of(dtype: torch.dtype, shape: Sequence[int], content: bytearray | memoryview) -> Tensor:
    """Return a tensor over its bytes, which belong to it from now on; a copy where they are not aligned."""
    if not len(content):
        return torch.empty(tuple(shape), dtype=dtype)
    whole = torch.frombuffer(content, dtype=torch.uint8)
    return (whole if whole.data_ptr() % ALIGNED == 0 else whole.clone()).view(dtype).view(tuple(shape))


def live_model(run: Path, calls: LiveCalls, *, consistent: bool, collate: Callable[..., Any] | None = None) -> Trained:
    """Return the model of a running job, in the form of a trained one. Raises what `LiveCalls.call` raises."""
    return Trained.live(run, LiveModel(calls, consistent=consistent).eval(), collate)
