"""One update of a worker by autograd: forward, backward into private memory, then one write into the flats, without a
lock.

    backward (once or `accumulate` times)  ->  must_redo?  ->  is_finite  ->  apply, or discard

Lost updates are allowed here and nowhere else: between a worker's read of a parameter and its write, others write too.
"""

import linecache
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.parameters.checks import has_step_hooks, why_no_flat_rule, why_no_rows
from hogwild.parameters.optimizer_state import bare_step
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training import inference_mode
from hogwild.training.flat_rule import FlatRule, Gradients
from hogwild.training.flat_rule import describe as describe_shared
from hogwild.training.loss_scaler import Scaler, Unscaled, autocast, device_type_of
from hogwild.training.model_steps import Losses, forward_of
from hogwild.training.sparse_rule import CompiledRows, NoRows
from hogwild.training.update_graphs import Done, Graphs
from hogwild.user_code import user_frame

# What torch.autograd.backward calls in the end; after the gradients: retain_graph, create_graph, inputs.
_run_backward = torch.autograd.Variable._execution_engine.run_backward


class AutogradUpdate:
    """Any module, any `torch.optim` rule. `path` describes how updates are applied, and why, for the log.

    Dense parameters are updated over the flat if that gives the result of stock torch (see `flat_rule`), else by the
    user's optimizer, with None as gradient of unused parameters. Even if the flat rule fits, the first update of a rule
    with state is a stock one. Parameters with sparse gradients are updated by compiled rows, each by itself (see
    `sparse_rule`), independently of the others."""

    def __init__(
        self,
        worker_model: WorkerModel,
        *,
        grad_clip: float | None,
        enter: Callable[[str], None] = lambda phase: None,
        forward: Callable[..., Any] | None = None,
        updates: int = 0,
        loss_names: tuple[str, ...] = (),
        precision: str = "fp32",
        scaler: Scaler | None = None,
    ) -> None:
        """`enter` is called with "forward" and "backward" when they begin. `forward(*inputs)` returns the output for
        the loss; default: the model, or its compiled form. `updates`: made before, by all workers; `loss_names`: the
        further losses that the model's training_step returns. `precision` fp16 needs a `scaler`."""
        self._worker_model, self._model = worker_model, worker_model.model
        forward = forward_of(worker_model.runs) if forward is None else forward
        self._losses = Losses(worker_model.model, worker_model.loss, loss_names, forward)
        self._cast: AbstractContextManager[Any] = autocast(precision, device_type_of(worker_model.params))
        self._scaler = scaler or Unscaled()
        self._optimizer = worker_model.optimizer
        self._state = worker_model.state
        self._grad_clip, self._enter = grad_clip, enter
        rates = [group.get("lr") for group in self._optimizer.param_groups]
        self._base_rates = [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]
        self._bare_step = bare_step(self._optimizer)
        self._seed = torch.empty(0)  # the gradient that the last backward began with
        self._seed_scale = 0.0
        self.path = ""
        self._arrange(updates)

    def _arrange(self, updates: int) -> None:
        """Make gradients and rules for the parameters that are trained at present."""
        worker_model = self._worker_model
        self.next_thaw = worker_model.next_thaw(updates)
        self._gradients = Gradients(worker_model.layout.flats, worker_model.params, worker_model.params[0].device)
        spans = worker_model.layout.flats.spans
        self._dense = [worker_model.params[i] for span in spans if span.is_dense for i in span.params]
        has_sparse = any(span.sparse for span in spans)
        no_rows = why_no_rows(self._optimizer, worker_model.layout.flats) if has_sparse else None
        if has_sparse and worker_model.replica is not None:
            no_rows = "a parameter has sparse gradients, and compiled rules for rows are for the CPU"
        self._rows = CompiledRows(worker_model) if has_sparse and not no_rows else NoRows()
        reason = no_rows or why_no_flat_rule(self._optimizer, worker_model.layout.flats)
        self._rule = None if reason else FlatRule(worker_model, self._gradients)
        self._flat_now = self._rule is not None and self._rule.is_usable()
        self.path = self._described(f"stock: {reason}" if reason else f"flat: {type(self._optimizer).__qualname__}")
        self._norm: float | None = None
        self._losses_finite = True

    def thaw(self, updates: int) -> None:
        """Unfreeze the parameters that are trained after `updates` of the whole job, as far as this worker knows; call
        it between two updates."""
        if self.next_thaw is None or updates < self.next_thaw:
            return
        self._worker_model.thaw(updates)
        self._arrange(updates)

    def start_at(self, updates: int) -> None:
        """Reset to the state after `updates` of the whole job: parameters that are frozen then have no gradient."""
        self.discard()
        for param in self._worker_model.params:
            param.grad = None
        self._worker_model.thaw(updates)
        self._arrange(updates)

    @property
    def compiled(self) -> CompiledRows | None:
        """The compiled rows, if any: their `name` and `warm_up` serve to prepare the kernels. Imports numba."""
        if not isinstance(self._rows, CompiledRows):
            return None
        assert self._rows.kernels is not None  # import the kernels first: the cache looks at every existing kernel
        return self._rows

    def backward(self, inputs: tuple[Tensor, ...], target: Tensor, scale: float = 1.0) -> float:
        """Add the gradient of `scale` x loss to the private gradients; return the loss itself."""
        self._enter("forward")
        try:
            with self._cast:
                loss = self._losses.of(inputs, target)
            value = self._value_of(loss)
            self._enter("backward")
            self._norm = None
            self._losses_finite = self._losses_finite and math.isfinite(value)
            self._run_backward(loss, scale * self._scaler.scale)
        except RuntimeError as error:
            ours = explained(error, self._model, lambda: self._losses.of(inputs, target).backward())
            if ours is None:
                raise
            raise ours from error
        return value

    def _run_backward(self, loss: Tensor, scale: float) -> None:
        """Call autograd's engine as `(loss * scale).backward()` does, which makes a gradient of the loss each time and
        takes 5 us longer. Here one is kept, until a user's backward function writes into it."""
        if type(loss) is not Tensor or loss.dim() or not loss.is_floating_point():
            (loss if scale == 1.0 else loss * scale).backward()
            return
        seed = self._seed
        if scale != self._seed_scale or seed._version or seed.dtype != loss.dtype or seed.device != loss.device:
            seed = self._seed = torch.full_like(loss, scale, requires_grad=False)
            self._seed_scale = scale
        _run_backward((loss,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True)

    def pop_losses(self) -> tuple[list[float], list[int]]:
        """Return (sums, counts) of the further losses since the last `apply` or `discard`; call it before those."""
        return self._losses.pop()

    def must_redo(self) -> bool:
        """Return whether the gradients overflowed in fp16: then they are discarded, and the same batches must be
        repeated at half the scale. Otherwise unscale them. Call it once, after the last `backward`."""
        if not (self._scaler.is_on and self._losses_finite):
            return False
        self._rescale(1 / self._scaler.scale)
        if self.is_finite():
            self._scaler.succeed()
            return False
        if not self._scaler.lower():
            return False  # kept, so that `is_finite` sees them
        self.discard()
        return True

    def _rescale(self, factor: float) -> None:
        """Multiply the gradients, and numbers derived from them."""
        self._gradients.scale(factor)

    def _value_of(self, loss: Tensor) -> float:
        return float(loss.item())

    @property
    def late_losses(self) -> float:
        """The sum of the losses that `backward` could not return yet."""
        return 0.0

    def is_finite(self) -> bool:
        """Return whether every loss and gradient since the last `apply` or `discard` is finite. One reduction, shared
        with clipping."""
        if self._grad_clip is None:
            return self._losses_finite and self._gradients.is_finite(self._rows.stored_squares)
        return self._losses_finite and math.isfinite(self._gradient_norm())

    def set_groups(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Set settings of every group, such as its own rate, from the next update on."""
        for number, (group, own) in enumerate(zip(self._optimizer.param_groups, settings, strict=True)):
            group.update({key: value for key, value in own.items() if key != "lr"})
            if "lr" in own:
                base = self._base_rates[number]
                self._base_rates[number] = torch.full_like(base, own["lr"]) if isinstance(base, Tensor) else own["lr"]
        self._set_rates(1.0)

    def apply(self, lr_factor: float | None) -> None:
        """Clip, set every group's rate to its own times `lr_factor`, and write the update into the flats."""
        self._state.start_update()
        self._write(lr_factor)
        self._state.count()

    def _write(self, lr_factor: float | None) -> None:
        self._gradients.collect()
        factor = 1.0
        if self._grad_clip is not None:  # as torch's clip_grad_norm_; a norm too large for float32 is clipped, too
            factor = min(1.0, self._grad_clip / (self._gradient_norm() + 1e-6))
        if lr_factor is not None:
            self._set_rates(lr_factor)
        self._apply_rows(factor)
        if factor < 1.0:
            self._gradients.scale(factor)
        if self._gradients.outside or (self._dense and not (self._flat_now and self._gradients.complete)):
            self._step_stock()
            self._clear(were_touched=True)
            return
        if self._rule is not None and self._dense:
            self._step_flat()
            # The write went through the flat: autograd would not notice it in graphs that still exist.
            torch.autograd.graph.increment_version(self._dense)
        self.discard()

    def _step_flat(self) -> None:
        assert self._rule is not None
        self._rule.step()

    def discard(self) -> None:
        """Clear the gradients, after a batch that is not applied."""
        self._clear(were_touched=False)

    def _clear(self, *, were_touched: bool) -> None:
        self._gradients.clear(were_touched=were_touched)
        self._rows.clear()
        self._losses.discard()
        self._norm, self._losses_finite = None, True

    def _gradient_norm(self) -> float:
        if self._norm is None:
            self._norm = self._gradients.norm(self._rows.squares)
        return self._norm

    def _apply_rows(self, factor: float) -> None:
        """Apply sparse gradients to the rows they name; keep those that the kernels cannot apply."""
        applied = [param for param in self._gradients.outside if self._rows.apply(param, factor)]
        if applied:
            self._gradients.let_go(applied)
            torch.autograd.graph.increment_version(applied)

    def _set_rates(self, factor: float) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            if isinstance(base, Tensor):
                group["lr"].copy_(base * factor)
            elif base is not None:
                group["lr"] = base * factor

    def _step_stock(self) -> None:
        complete = self._gradients.complete
        self._gradients.hide_unused()
        if has_step_hooks(self._optimizer):
            self._optimizer.step()
        else:
            with torch.no_grad():
                self._bare_step(self._optimizer)
        self._state.adopt(self._optimizer)
        if self._rule is not None:
            if self._state.layout.shared and not complete:  # unequal for good
                self._rule = None
                self.path = self._described("stock: parameters are used unequally and the state is shared")
            self._flat_now = self._rule is not None and self._rule.is_usable()

    def _described(self, dense: str) -> str:
        """Return `path`; `dense` describes how dense parameters are updated."""
        if self._state.layout.shared:
            dense += describe_shared(self._optimizer, flat=dense.startswith("flat"))
        if not self._rows.path:
            return dense
        return f"{self._rows.path}; {dense}" if self._dense else self._rows.path


LOSS, SQUARE = range(2)  # indices of: the sum of the losses, the sum of the squared gradients


class DeviceUpdate(AutogradUpdate):
    """An update on a GPU: it waits for no number while kernels are still to be launched. `backward` returns 0;
    `late_losses` returns the sum of the losses afterwards.

        launch forward, backward (and, with `accumulate`, again) -> the sums of losses and squares come back, once ->
        finite? -> launch the update

    The only wait is in `is_finite`: until then this process gathers the next batch (`device_feed.py`). Both launches
    are replayed as graphs where that is the same (`update_graphs.py`); clipping, skipping and the counts are decided
    here, between the two. Other workers write `cuda-shared` flats: there the second launch is not replayed."""

    def __init__(self, worker_model: WorkerModel, *, graphs: bool = True, **options: object) -> None:
        """`graphs`: capture and replay what can be."""
        assert worker_model.replica is not None
        self._replica, self._is_delta = worker_model.replica, worker_model.exchange.is_delta
        self._accelerator = self._replica.accelerator
        # Not a bound method: the reference cycle would keep shared memory alive until garbage collection.
        say = partial(print, f"{self._accelerator.name}:", flush=True)
        self._graphs = Graphs(self._accelerator, (worker_model.model, worker_model.loss), say)
        super().__init__(worker_model, **options)  # type: ignore[arg-type]
        self._sums = self._accelerator.empty(2 * 8).view(torch.float64).zero_()  # (2,), on the device
        self._numbers = self._replica.pins.empty(2 * 8).view(torch.float64)  # (2,), pinned
        self._loss_sum, self._square = self._sums[LOSS], self._sums[SQUARE]
        self._is_sent = self._is_known = False
        if not graphs:
            self._graphs.stop("")
        elif reason := self._why_no_graphs(options):
            self._graphs.stop(reason)

    def _why_no_graphs(self, options: Mapping[str, object]) -> str:
        if options.get("forward") is not None:
            return "the model carries a state from batch to batch"
        if options.get("loss_names"):
            return "training_step returns further losses"
        if self._worker_model.runs is not self._model:
            return "the model is compiled"
        return "gradients are sparse" if any(s.sparse for s in self._worker_model.layout.flats.spans) else ""

    @property
    def replays(self) -> int:
        """The number of parts of updates that were replayed."""
        return self._graphs.replays

    def _arrange(self, updates: int) -> None:
        super()._arrange(updates)
        self._graphs.forget()  # they write the gradients of before

    def backward(self, inputs: tuple[Tensor, ...], target: Tensor, scale: float = 1.0) -> float:
        """As above; returns 0."""

        def work() -> None:
            super(DeviceUpdate, self).backward(inputs, target, scale)
            if scale == 1.0:  # the only batch of its update
                self._send()

        self._gradients.reopen()
        fields = (*inputs, target)
        # Not before every parameter had a gradient, in the update before: then all of them are bound to the flat.
        may_replay = self._graphs.stopped is None and self._gradients.complete
        if not (may_replay and all(isinstance(field, Tensor) for field in fields)):
            return super().backward(inputs, target, scale)
        places = tuple((field.data_ptr(), field.shape, field.stride(), field.dtype) for field in fields)
        self._enter("forward")
        key = places, scale * self._scaler.scale, self._model.training
        done = self._graphs.run(key, work, self._written)
        if done is Done.REPLAYED:
            self._gradients.replayed()
            self._norm, self._is_known, self._is_sent = None, False, scale == 1.0
        elif done is Done.TRIED:
            self._is_sent = False  # the trial has put back the sums of its first run
            if not self._gradients.tried(self._before):
                self._graphs.refuse(key)  # some parameters are for other batches
        return 0.0

    def _run_backward(self, loss: Tensor, scale: float) -> None:
        """As `backward()` does: a gradient of the loss that is kept would be replaced while graphs still read it."""
        (loss if scale == 1.0 else loss * scale).backward()

    def _written(self) -> list[Tensor]:
        """Return what a trial of `backward` must put back; called before it."""
        self._before = self._gradients.versions()
        loss = self._worker_model.loss
        kept = loss.buffers() if isinstance(loss, nn.Module) else ()
        return [*self._gradients.flats.values(), self._sums, *self._model.buffers(), *kept]

    def _step_flat(self) -> None:
        rule = self._rule
        assert rule is not None
        settings = rule.settings() if self._is_delta and self._graphs.replays else None  # after forward and backward
        if settings is None:
            rule.step()
            return

        def work() -> None:
            rule.apply()
            for flat in self._gradients.flats.values():
                flat.zero_()
            self._sums.zero_()

        rule.read()
        self._graphs.run(("apply", settings), work, lambda: [*rule.tensors(), self._sums])
        rule.write()
        self._gradients.is_zero = True

    def _value_of(self, loss: Tensor) -> float:
        self._loss_sum.add_(loss.detach())
        self._is_sent = self._is_known = False
        return 0.0

    @property
    def late_losses(self) -> float:
        """The sum of the losses since the last `apply` or `discard`. Waits for the device, once."""
        self._fetch()
        return float(self._numbers[LOSS])

    def _send(self) -> None:
        """Start the transfer of the two sums."""
        self._square.zero_()
        self._gradients.add_squares(self._square)
        self._accelerator.download(self._numbers, self._sums, None)
        self._is_sent = True

    def _fetch(self) -> None:
        if self._is_known:
            return
        if not self._is_sent:
            self._send()
        self._replica.synchronize()
        self._is_known = True

    def must_redo(self) -> bool:
        return math.isfinite(self.late_losses) and super().must_redo()  # `backward` could not return the loss

    def _rescale(self, factor: float) -> None:
        super()._rescale(factor)
        self._numbers[SQUARE] *= factor * factor  # the sum is here already; do not wait for another

    def is_finite(self) -> bool:
        if not math.isfinite(self.late_losses):
            return False
        if self._gradients.outside:  # check sparse gradients as on the CPU
            return super().is_finite()
        square = float(self._numbers[SQUARE])
        return math.isfinite(square) or super().is_finite()

    def _gradient_norm(self) -> float:
        if self._gradients.outside:
            return super()._gradient_norm()
        self._fetch()
        square = float(self._numbers[SQUARE])
        return math.sqrt(square) if math.isfinite(square) else super()._gradient_norm()

    def apply(self, lr_factor: float | None) -> None:
        super().apply(lr_factor)
        if not self._is_delta:  # wait: kernels of a dead process do not run, and the update is committed next
            self._replica.synchronize()

    def _clear(self, *, were_touched: bool) -> None:
        if not self._gradients.is_zero:
            self._loss_sum.zero_()
        super()._clear(were_touched=were_touched)
        self._is_sent = self._is_known = False


# ---- explanations of torch's errors
#
# torch names an operation ("output 0 of ReluBackward0"), not the line of code. For an in-place change the batch is run
# once more with anomaly detection, which records the line of every operation; the worker ends anyway.

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
    found = []
    for path, module in model.named_modules():
        methods = (getattr(type(module), name, None) for name in ("forward", "training_step"))
        for code in (getattr(method, "__code__", None) for method in methods):
            if code is not None and code.co_filename == file:
                lines = [number for _, _, number in code.co_lines() if number is not None]
                if min(lines) <= line <= max(lines):
                    found.append(f"module {path or '(the model itself)'}")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
