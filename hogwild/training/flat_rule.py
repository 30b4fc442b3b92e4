"""torch's own rule, run over one tensor per span instead of one per parameter.

A shadow of the user's optimizer has the spans as its parameters, the gradient flat's spans as their gradients and the
state arrays beside the spans as its state. For an elementwise rule that is the same arithmetic in the same order, so
the result is the same to the bit; for LeNet it takes 15 us instead of 73. torch's fused kernel is used if there is one
(one pass over the memory), unless the user chose otherwise: SGD is the same to the bit, Adam, AdamW and Adagrad round
differently in the last place. SGD's kernel is called without its Python wrapper, which would double the time after a
model has emptied the caches.

The rule may be used in a batch if every optimised parameter got a dense gradient, and all their state exists and has
counted the same steps. So the first update of a rule with state is a stock one, and after unequal use of parameters
rules that count steps stay with the stock path; SGD returns to the flat. With `state: shared` a worker that saw unequal
use stays with the stock path. Shared state of the rules in `shared_state_rule.HARDENED` is read into private memory
before the step and written back after it.
"""

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW

from hogwild.parameters.device_replica import Replica
from hogwild.parameters.flat_layout import Span
from hogwild.parameters.trial_step import bare_step, parameters_of
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.gradient_flat import Gradients
from hogwild.training.shared_state_rule import HARDENED, PrivateState

_FUSED = (Adam, AdamW, Adagrad)


class FlatRule:
    """torch's rule over the spans. Call `step` only while `is_usable`."""

    def __init__(self, worker_model: WorkerModel, gradients: Gradients) -> None:
        optimizer = worker_model.optimizer
        self._optimizer = optimizer
        self._state = worker_model.state
        self._step = bare_step(optimizer)
        self._shadow = type(optimizer).__new__(type(optimizer))
        vars(self._shadow).update(vars(optimizer) | {"state": {}, "param_groups": []})
        self._groups: list[tuple[dict, dict, dict]] = []  # shadow's, user's, differences
        self._counters: list[tuple[Tensor, Tensor]] = []  # the first parameter's 0-dim state, the others'
        # With sparse parameters the gain is small, and the result would not be the same to the bit.
        self._may_fuse = not any(span.sparse for span in worker_model.layout.flats.spans)
        self._hardened = self._state.layout.shared and type(optimizer) in HARDENED
        self._on_device = isinstance(worker_model.replica, Replica)
        self._own: list[PrivateState | DeviceStep] = []
        self._sgd: list[tuple[dict, list[Tensor], list[Tensor], list[Tensor]]] = []  # group, flat, gradient, buffer
        for s, span in enumerate(worker_model.layout.flats.spans):
            if span.is_dense:
                flat = worker_model.exchange.span(span)
                flat.grad = gradients.flats[span.dtype][span.offset : span.offset + span.numel]
                self._add(s, span, flat)
        self._is_fused_sgd = len(self._sgd) == len(self._groups)
        params = parameters_of(optimizer)
        slots = self._state.layout.slots  # without those of frozen parameters, which may not exist yet
        self._needed = [slot for slot in slots if slot.in_group or params[slot.index].requires_grad]

    def _add(self, s: int, span: Span, flat: Tensor) -> None:
        assert span.group is not None
        group = self._optimizer.param_groups[span.group]
        lacks_kernel = flat.device.type != "cpu" and type(self._optimizer) is Adagrad  # torch's is for the CPU only
        fuses = self._may_fuse and _prefers_fused(self._optimizer, group) and not lacks_kernel
        different = {"params": [flat]} | ({"fused": True} if fuses else {})
        shadow_group = group | different
        self._shadow.param_groups.append(shadow_group)
        self._groups.append((shadow_group, group, different))
        arrays = {p.key: (p, self._state.array(p)) for p in self._state.layout.arrays if p.span == s}
        if self._hardened:
            private = PrivateState(group, {key: whole for key, (_, whole) in arrays.items()})
            self._own.append(private)
            self._shadow.state[flat] = private.own
            return
        self._shadow.state[flat] = {k: whole if p.kind == "like" else whole[0] for k, (p, whole) in arrays.items()}
        step = self._shadow.state[flat].get("step")
        if self._on_device and different.get("fused") and step is not None:
            counter = DeviceStep(step, flat)
            self._own.append(counter)
            self._shadow.state[flat]["step"] = counter.own
        if different.get("fused") and type(self._optimizer) is SGD:
            assert flat.grad is not None
            buffers = [whole for p, whole in arrays.values() if p.key == "momentum_buffer"]
            self._sgd.append((group, [flat], [flat.grad], buffers))
        self._counters += [(w[0], w[1:]) for p, w in arrays.values() if p.kind == "scalar" and len(w) > 1]

    def step(self) -> None:
        """Update all spans once, in place; no other worker writes the divisors of a hardened rule."""
        if self._is_fused_sgd and all(buffer or not group["momentum"] for group, _, _, buffer in self._sgd):
            self._step_sgd()
            return
        for shadow_group, group, different in self._groups:
            shadow_group.update(group)
            shadow_group.update(different)
        with torch.no_grad():
            for own in self._own:
                own.read()
            self._step(self._shadow)
            for own in self._own:
                own.write()
            for first, others in self._counters:
                others.copy_(first)

    def _step_sgd(self) -> None:
        """Call the kernel as torch.optim.sgd does with `fused=True` once there are buffers."""
        for group, flat, grad, buffer in self._sgd:
            torch._fused_sgd_(
                flat,
                grad,
                buffer if group["momentum"] else [],
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                is_first_step=False,
                grad_scale=None,
                found_inf=None,
            )

    def is_usable(self) -> bool:
        """Return whether all state exists, and parameters that are updated together have counted the same steps."""
        if not all(self._state.is_present(slot) for slot in self._needed):
            return False
        if self._state.layout.shared:
            return True  # counters differ for a moment while another worker writes them
        return all(bool((others == first).all()) for first, others in self._counters)


class DeviceStep:
    """A step counter on the device of `flat`, for a fused kernel, and its public copy in host memory: `counted` ()
    float32."""

    def __init__(self, counted: Tensor, flat: Tensor) -> None:
        self._counted, self._last = counted, -1.0
        self.own = torch.zeros((), dtype=counted.dtype, device=flat.device)

    def read(self) -> None:
        """Read the counter before a step: another worker may have counted since."""
        now = float(self._counted)  # host memory: waits for no kernel
        if now != self._last:
            self.own.fill_(now)
            self._last = now

    def write(self) -> None:
        """Count a step, after it."""
        self._last += 1.0
        self._counted.fill_(self._last)


def _prefers_fused(optimizer: torch.optim.Optimizer, group: dict) -> bool:
    """Return whether a fused kernel saves passes over memory. Plain SGD is one pass anyway."""
    if group.get("fused") is not None or group.get("foreach") is not None or isinstance(group["lr"], Tensor):
        return False
    if type(optimizer) is SGD:
        return bool(group["momentum"] or group["weight_decay"])
    return type(optimizer) in _FUSED
