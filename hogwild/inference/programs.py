"""A trained model as a program that needs no hogwild: of torch.export, or ONNX. What it computes is traced with a block
of inputs; the number of rows stays free, and so does the length of sequences, unless the model's way depends on it: a
recurrent one is traced for the length to which the job pads at most."""

import inspect
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from hogwild.data.locate import require
from hogwild.errors import ModelError, RunError
from hogwild.inference.inputs import Example
from hogwild.training.evaluator import evaluating
from hogwild.training.model_steps import forward_of, takes_state
from hogwild.training.outputs import leaves_of

Write = Callable[[BinaryIO], object]
PLAIN = (Tensor, bool, int, float, str, type(None))  # in the output of a program, and dicts, lists and tuples
log = logging.getLogger(__name__)


class _OutputAlone(nn.Module):
    """A recurrent model that begins with zero state, as `predict` uses it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        return forward_of(self.model)(*inputs)


class _Named(nn.Module):
    """A model whose output is a dataclass, or another class that no program has: its tensors by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> dict[str, Tensor]:
        return leaves_of(self.model(*inputs))


def torch_export(model: nn.Module, example: Example) -> Write:
    """Return a function that writes a program for `torch.export.load`. Raises ModelError for a model that cannot be
    traced, or only for this number of rows."""
    program = _traced(model, example)

    def write(target: BinaryIO) -> None:
        try:
            torch.export.save(program, target)
        except NotImplementedError as error:  # a class of the user's around its inputs
            raise _refused(model, "no file has its inputs or outputs", error) from error

    return write


def onnx(model: nn.Module, example: Example) -> Write:
    """Return a function that writes an ONNX model, by torch's exporter. Inputs of int32 become int64, as ONNX's
    operators mix them with indices. Raises ModelError, UsageError without its packages, and RunError above 2 GiB."""
    for package in ("onnx", "onnxscript"):
        require(package, "--format onnx", package, "onnx")
    inputs = tree_map(lambda one: one.long() if one.dtype == torch.int32 else one, example.inputs)
    program = _traced(model, replace(example, inputs=inputs))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells that torchvision is not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about torch's own code
        try:
            made: Any = torch.onnx.export(program, verbose=False, output_names=_output_names(program))
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


def _is_plain(output: Any) -> bool:
    if type(output) in (dict, list, tuple):
        return all(map(_is_plain, output.values() if isinstance(output, dict) else output))
    return isinstance(output, PLAIN)


def _output_names(program: Any) -> list[str] | None:
    """Return the names of several outputs; None for one, or if some are no tensors."""
    spec = program.call_spec.out_spec
    names = [*leaves_of(tree_unflatten([torch.empty(0)] * spec.num_leaves, spec))]
    return names if "" not in names and len(names) == len(program.graph_signature.user_outputs) else None


def _traced(model: nn.Module, example: Example) -> Any:
    """Return the program for any number of rows, and for sequences of any length or, if that fails, of one length."""
    whole = _OutputAlone(model) if takes_state(model) else model
    try:
        with evaluating(whole):
            output = whole(*example.inputs)
        if not _is_plain(output):
            whole = _Named(whole)
        return _program(whole, example)
    except Exception as error:
        if not example.padded:
            raise _refused(model, "torch.export cannot trace it for any number of rows", error) from error
    fixed = example.of_one_length()
    try:
        program = _program(whole, fixed)
    except Exception as error:
        raise _refused(model, "torch.export cannot trace it for any number of rows", error) from error
    length = tree_flatten(fixed.inputs)[0][example.padded[0]].shape[1]
    words = "%s: the program takes sequences padded to %d with %g: its way depends on their length"
    log.warning(words, type(model).__name__, length, example.value)
    return program


def _program(model: nn.Module, example: Example) -> Any:
    from torch.export import Dim

    nesting = tree_flatten(example.inputs)[1]
    shapes = tree_unflatten([dict.fromkeys(dims, Dim.DYNAMIC) for dims in example.free], nesting)
    bound = inspect.signature(model.forward).bind(*shapes).arguments
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a recurrent layer keeps its weights in a list
        return torch.export.export(model, example.inputs, dynamic_shapes=dict(bound))


def _refused(model: nn.Module, why: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ModelError(
        f"{type(model).__name__} cannot be exported: {why}: {type(error).__name__}: {' '.join(lines[:2])[:600]}",
        code="export/not-traceable",
    )
