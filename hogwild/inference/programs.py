"""A trained model as a program that needs no hogwild: of torch.export, or ONNX. What it computes is traced with a block
of inputs; the number of rows stays free."""

import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from hogwild.data.locate import require
from hogwild.errors import ModelError, RunError
from hogwild.training.evaluator import evaluating
from hogwild.training.model_steps import forward_of, takes_state

Write = Callable[[BinaryIO], object]


class _OutputAlone(nn.Module):
    """A recurrent model that begins with zero state, as `predict` uses it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        return forward_of(self.model)(*inputs)


def torch_export(model: nn.Module, inputs: tuple[Tensor, ...]) -> Write:
    """Return a function that writes a program for `torch.export.load`. Raises ModelError for a model that cannot be
    traced, or only for this number of rows."""
    program = _traced(model, inputs)
    return lambda target: torch.export.save(program, target)


def onnx(model: nn.Module, inputs: tuple[Tensor, ...]) -> Write:
    """Return a function that writes an ONNX model, by torch's exporter. Inputs of int32 become int64, as ONNX's
    operators mix them with indices. Raises ModelError, UsageError without its packages, and RunError above 2 GiB."""
    for package in ("onnx", "onnxscript"):
        require(package, "--format onnx", package, "onnx")
    program = _traced(model, tuple(one.long() if one.dtype == torch.int32 else one for one in inputs))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells that torchvision is not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about torch's own code
        try:
            made: Any = torch.onnx.export(program, verbose=False)
        except Exception as error:
            raise _refused(model, "ONNX has no form of it", error) from error

    def write(target: BinaryIO) -> None:
        try:
            target.write(made.model_proto.SerializeToString())
        except ValueError as error:  # protobuf's limit
            raise RunError(
                f"the ONNX model is too large for one file: {error}", code="run/output-not-written"
            ) from error

    return write


def _traced(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    from torch.export import Dim

    def shape(value: Any) -> Any:
        return tuple(map(shape, value)) if isinstance(value, tuple) else {0: Dim.DYNAMIC}

    whole = _OutputAlone(model) if takes_state(model) else model
    try:
        given = inspect.signature(whole.forward).bind(*inputs).arguments
        shapes = {name: shape(value) for name, value in given.items()}
        with evaluating(whole), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a recurrent layer keeps its weights in a list
            return torch.export.export(whole, inputs, dynamic_shapes=shapes)
    except Exception as error:
        raise _refused(model, "torch.export cannot trace it for any number of rows", error) from error


def _refused(model: nn.Module, why: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ModelError(
        f"{type(model).__name__} cannot be exported: {why}: {type(error).__name__}: {' '.join(lines[:2])[:600]}",
        code="export/not-traceable",
    )
