"""`check --gradcheck`: compares backward with the change of the loss, for functions with a hand-written backward.

    a copy in float64, a few samples ── every small module alone, the deepest first ── then the loss of the whole model
      torch.autograd.gradcheck of each tensor: few elements: all of them; many: a step along a random direction;
                                                              if that is wrong, element by element

Not `fast_mode`: it takes random directions, too, but after a difference it goes through all elements, hours for a
million. At a corner of the loss (a ReLU at zero, a tie in a maximum) the gradient is undefined: an element is wrong
only if it is also wrong a little to either side."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from hogwild.errors import ModelError
from hogwild.training.model_steps import Losses, has_training_step, read_answer
from hogwild.user_code import raised_text

SAMPLES = 4  # more than BatchNorm needs; each costs time in every difference
SMALL = 20_000  # most parameters of a module that is tried alone
FEW = 256  # elements of all tensors, which are checked one by one; for more, a random direction of each tensor
LOOKED_AT = 512  # elements of one tensor, in the search for a wrong one
EPS, ATOL, RTOL = 1e-6, 1e-5, 1e-3  # torch's own
ASIDE = (0.0, 1e-3, -1e-3)  # steps: a corner is at one of them at most
SEED = 1

Change = Callable[[Tensor], Tensor]  # steps of some elements, or along a direction -> the value to differentiate


@dataclass(frozen=True, slots=True)
class Tried:
    """A function with a gradient: `call` returns its outputs, with other values for the tensors that are named."""

    what: str
    call: Callable[[Mapping[str, Tensor]], Sequence[Tensor]]
    tensors: dict[str, Tensor]

    def value(self, name: str, replaced: Tensor) -> Tensor:
        """Return a weighted sum of the outputs, with the same dropout and weights in every call."""
        if replaced.requires_grad:  # an embedding's gradient may be sparse, which is not comparable
            replaced.register_hook(lambda gradient: gradient.to_dense() if gradient.is_sparse else gradient)
        torch.default_generator.manual_seed(SEED)
        outputs = self.call({name: replaced})
        torch.default_generator.manual_seed(SEED + 1)
        return torch.stack([((torch.rand_like(one) + 0.5) * one).sum() for one in outputs]).sum()


def check_gradients(model: nn.Module, loss: Any, sample: Sequence[Tensor]) -> dict[str, Any]:
    """Check the gradients and return counts of what was compared. `sample` is a batch, the target last; the model and
    the loss are copied. Raises ModelError for a wrong gradient, and for a model that cannot be computed in float64."""
    try:
        twin, judge = _doubled(model), _doubled(loss) if isinstance(loss, nn.Module) else loss
        fields = tree_map(lambda one: one.double() if one.is_floating_point() else one.clone(), [*sample])
        whole = _of_loss(twin, judge, fields)
        parts = _parts(twin, whole.call)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"--gradcheck: {type(model).__name__} fails in float64: {raised_text(error)}",
            code="model/no-double",
        ) from error
    for tried in (*parts, whole):
        _check(tried)
    return {
        "modules": len(parts),
        "parameters": sum(tensor.numel() for tensor in whole.tensors.values()),
        "samples": len(fields[-1]),
        "result": "analytic and numeric gradients agree",
    }


def _doubled(thing: nn.Module) -> nn.Module:
    twin = copy.deepcopy(thing).double()
    for module in twin.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False  # the same gradient, in a form that can be compared
        if callable(drop_penalty := getattr(module, "drop_penalty", None)):
            drop_penalty()
    return twin


class _LossOf(nn.Module):
    """The loss of a model for a batch, as a module: tensors of the model can be replaced in a call."""

    def __init__(self, model: nn.Module, loss: Any, fields: list[Tensor]) -> None:
        super().__init__()
        self.model, self._judge, self._fields, self._losses = model, loss, tuple(fields), Losses(model, loss)

    def forward(self) -> Tensor:
        if has_training_step(self.model):
            return read_answer(self.model, self.model.training_step(self._fields, self._judge))[0]  # type: ignore[operator]
        return self._losses.of(self._fields[:-1], self._fields[-1])


def _of_loss(model: nn.Module, loss: Any, fields: list[Tensor]) -> Tried:
    """Return the loss in training mode."""
    whole = _LossOf(model.train(), loss, fields)

    def call(replaced: Mapping[str, Tensor]) -> list[Tensor]:
        return [functional_call(whole, {f"model.{name}": value for name, value in replaced.items()}, ())]

    torch.default_generator.manual_seed(SEED)
    call({})
    return Tried(f"the loss of {type(model).__name__}", call, _trained(model))


def _trained(module: nn.Module) -> dict[str, Tensor]:
    """Return the trained real parameters; not those of scripted modules, whose backward nobody wrote by hand."""
    scripts = (below for below in module.modules() if isinstance(below, torch.jit.ScriptModule))
    scripted = {id(param) for script in scripts for param in script.parameters()}
    named = ((name, one) for name, one in module.named_parameters() if one.requires_grad and one.is_floating_point())
    return {name: one for name, one in named if one.numel() and id(one) not in scripted}


def _parts(model: nn.Module, run: Callable[[Mapping[str, Tensor]], Any]) -> list[Tried]:
    """Return every submodule that was called with tensors and has few parameters, deepest first."""
    calls: dict[nn.Module, tuple[Any, ...]] = {}

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module not in calls and inputs and all(isinstance(one, Tensor) for one in inputs):
            calls[module] = tuple(one.detach().clone() for one in inputs)

    below = [(path, m) for path, m in model.named_modules() if path and not isinstance(m, torch.jit.ScriptModule)]
    hooks = [module.register_forward_pre_hook(note) for _, module in below]
    try:
        with torch.no_grad():
            run({})
    finally:
        for hook in hooks:
            hook.remove()
    below.sort(key=lambda item: -item[0].count("."))
    small = [(path, m) for path, m in below if sum(param.numel() for param in m.parameters()) <= SMALL]
    return [_of_module(path, module, calls[module]) for path, module in small if module in calls]


def _of_module(path: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tried:
    given = {f"input {k} of {path}": one for k, one in enumerate(inputs)}
    differentiable = {name: one for name, one in given.items() if one.is_floating_point() and one.numel()}
    tensors = {f"{path}.{name}": param for name, param in _trained(module).items()} | differentiable

    def call(replaced: Mapping[str, Tensor]) -> list[Tensor]:
        weights = {name.removeprefix(f"{path}."): value for name, value in replaced.items() if name not in given}
        # A copy: a module that changes its input in place must find it unchanged in the next call.
        answer = functional_call(module, weights, tuple(replaced.get(name, one).clone() for name, one in given.items()))
        return [one for one in tree_leaves(answer) if isinstance(one, Tensor) and one.is_floating_point()]

    return Tried(f"module {path} ({type(module).__name__})", call, tensors)


def _check(tried: Tried) -> None:
    """Check the gradients of `tried`. Raises ModelError for the first element, or direction, with a wrong one."""
    is_small = sum(tensor.numel() for tensor in tried.tensors.values()) <= FEW
    try:
        if tried.call({}):
            for name in tried.tensors:
                _check_tensor(tried, name, is_small)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ModelError(f"--gradcheck: {tried.what}: backward fails: {words}", code="model/wrong-gradient") from error


def _check_tensor(tried: Tried, name: str, is_small: bool) -> None:
    base, random = tried.tensors[name].detach(), torch.Generator().manual_seed(SEED + 1)
    count, one = base.numel(), torch.ones(1, dtype=base.dtype)
    direction = torch.randn(base.shape, dtype=base.dtype, generator=random)
    direction /= direction.norm()

    def along(steps: Tensor) -> Tensor:
        return tried.value(name, base + steps.sum() * direction)

    def elements(places: Tensor, steps: Tensor) -> Tensor:
        return tried.value(name, base.flatten().index_add(0, places, steps).reshape(base.shape))

    every = partial(elements, torch.arange(count))
    if _agrees(every, direction.flatten()) if is_small else _agrees(along, one):
        return
    first, second = _gradient(every, count), _gradient(every, count)
    if not torch.allclose(first, second, equal_nan=True):
        raise ModelError(
            f"--gradcheck: {tried.what}: backward returns different gradients for {name} from the same numbers; it "
            "must depend only on its inputs and saved tensors",
            code="model/wrong-gradient",
        )
    for place in _places(first, random):
        change = partial(elements, torch.tensor([place]))
        if not _agrees(change, one):
            index = torch.unravel_index(torch.tensor(place), base.shape)
            raise _wrong(tried, f"the gradient of {name}[{', '.join(str(int(k)) for k in index)}]", change)
    if count > LOOKED_AT:
        raise _wrong(tried, f"the derivative along a random direction of {name}", along)


def _agrees(change: Change, toward: Tensor) -> bool:
    """Return whether torch's gradcheck passes at no step, or a little forward or backward."""
    options: dict[str, Any] = {"check_undefined_grad": False, "raise_exception": False, "nondet_tol": ATOL}
    starts = ((toward * aside).requires_grad_() for aside in ASIDE)
    return any(torch.autograd.gradcheck(change, (one,), eps=EPS, atol=ATOL, rtol=RTOL, **options) for one in starts)


def _gradient(change: Change, count: int = 1) -> Tensor:
    steps = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(change(steps), steps, allow_unused=True, materialize_grads=True)
    return found.detach()


def _wrong(tried: Tried, what: str, change: Change) -> ModelError:
    analytic, step = float(_gradient(change)), torch.full((1,), EPS, dtype=torch.float64)
    with torch.no_grad():
        numeric = float(change(step) - change(-step)) / (2 * EPS)
    return ModelError(
        f"--gradcheck: {tried.what}: {what} is {analytic:.6g} by backward, but {numeric:.6g} by differences of "
        f"the outputs (float64, {SAMPLES} samples); correct its backward",
        code="model/wrong-gradient",
    )


def _places(analytic: Tensor, random: torch.Generator) -> list[int]:
    """Return all elements of a small tensor; of a large one those with the largest gradients and some random ones."""
    count = analytic.numel()
    if count <= LOOKED_AT:
        return [*range(count)]
    largest = analytic.abs().topk(LOOKED_AT // 2).indices.tolist()
    return [*dict.fromkeys([*largest, *torch.randint(count, (LOOKED_AT // 2,), generator=random).tolist()])]
