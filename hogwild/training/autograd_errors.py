"""Explanations of torch's errors in forward and backward: the meaning in a job, the module, and the remedy.

torch names an operation ("output 0 of ReluBackward0"), not the line of code. For an in-place change the batch is run
once more with anomaly detection, which records the line of every operation; the worker ends anyway."""

import linecache
import re
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from hogwild.errors import ModelError
from hogwild.training import inference_mode
from hogwild.user_code import user_frame

# Part of torch's message -> our code, and its meaning.
KNOWN = (
    (
        "modified by an inplace operation",
        "model/inplace",
        "a tensor that backward needs was changed in place (x += …, x[i] = …, an activation with inplace=True) "
        "after it was used. Other workers are not the cause: they write parameters only between batches. Write "
        "x = x + …, or clone() before the change",
    ),
    (
        "leaf Variable that requires grad",
        "model/inplace",
        "forward writes into a parameter, which only the optimizer may do; compute with a copy, or wrap an "
        "initialisation in torch.no_grad()",
    ),
    (
        "backward through the graph a second time",
        "model/backward-twice",
        "something of an earlier batch was used again: a hidden state or a loss kept on self, with its graph. detach() "
        "what is carried from batch to batch; do not call backward() in forward or training_step",
    ),
    (
        "does not require grad and does not have a grad_fn",
        "model/no-graph",
        "the loss does not depend on any parameter that is trained: it was detached (.item(), .detach(), .numpy(), "
        "argmax, no_grad), or all parameters it uses are frozen (model.freeze)",
    ),
    (
        inference_mode.KEPT,
        "model/kept-inference",
        "a tensor made in an evaluation, under torch.inference_mode, is used in training: it was kept outside the "
        "model, in a global or a closure. Keep it in a buffer, or clone() it where training takes it",
    ),
)


def explained(error: RuntimeError, model: nn.Module, again: Callable[[], Any]) -> ModelError | None:
    """Return the explained error; None for any other error. `again` repeats forward and backward of the same batch."""
    text = str(error)
    found = next(((code, meaning) for part, code, meaning in KNOWN if part in text), None)
    if found is None or isinstance(error, torch.OutOfMemoryError):
        return None
    code, meaning = found
    place = _in_forward(error.__traceback__, model)
    if not place and "modified by an inplace operation" in text:
        place = _in_backward(model, again)
    elif users := user_frame(error, or_innermost=False):
        place = f"{place} At {users}.".lstrip()
    where = f" {place}" if place else ""
    return ModelError(f"{meaning}.{where}\ntorch: {text}", code=code)


def _in_forward(trace: TracebackType | None, model: nn.Module) -> str:
    """Return the deepest module of the model on the traceback."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    while trace is not None:
        own = trace.tb_frame.f_locals.get("self")
        if isinstance(own, nn.Module) and paths.get(id(own)):
            found = f"In module {paths[id(own)]} ({type(own).__name__})."
        trace = trace.tb_next
    return found


def _in_backward(model: nn.Module, again: Callable[[], Any]) -> str:
    """Return the line of forward whose gradient fails, from a second run with anomaly detection."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=False):
                again()
        except Exception:  # the same error again, or another: the first one is reported
            pass
        else:
            return ""
    lines = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', "\n".join(str(one.message) for one in said))
    outside = [line for line in lines if f"{torch.__name__}/" not in line[0].replace("\\", "/")]
    for file, number, name in reversed(outside):
        if modules := _modules_at(model, file, int(number)):
            source = linecache.getline(file, int(number)).strip()
            return f"In {modules}, {file}:{number}, in {name}: {source}"
    return ""


def _modules_at(model: nn.Module, file: str, line: int) -> str:
    """Return the modules whose forward contains that line."""
    found = [
        f"module {path or '(the model itself)'}" for path, module in model.named_modules() if _has(module, file, line)
    ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more


def _has(module: nn.Module, file: str, line: int) -> bool:
    for name in ("forward", "training_step"):
        code = getattr(getattr(type(module), name, None), "__code__", None)
        if code is not None and code.co_filename == file:
            lines = [number for _, _, number in code.co_lines() if number is not None]
            if min(lines) <= line <= max(lines):
                return True
    return False
