"""`check --gradcheck`: compares backward with the change of the loss, for functions with a hand-written backward.

    a copy in float64, a few samples ── every small module alone, the deepest first ── then the loss of the whole model
      few elements: torch.autograd.gradcheck; many: along a random direction of each tensor, and if that is wrong,
                                                                                              element by element

Differences over 1e-6 to each side, as in torch's own check. If the two sides differ, the loss has a corner (a ReLU at
zero, a tie in a maximum): the gradient is undefined there, and other elements are checked."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from hogwild.errors import ModelError
from hogwild.training.model_steps import Losses, has_training_step, read_answer
from hogwild.user_code import raised_text

SAMPLES = 4  # more than BatchNorm needs; each costs time in every difference
SMALL = 20_000  # most parameters of a module that is tried alone
FEW = 256  # elements of all tensors, which torch compares one by one; for more, a random direction of each
LOOKED_AT = 512  # elements of one tensor, in the search for a wrong one
EPS, ATOL, RTOL = 1e-6, 1e-5, 1e-3  # torch's own
SEED = 1


@dataclass(frozen=True, slots=True)
class Tried:
    """A function with a gradient: `call` returns its outputs; `tensors`, by name, are the leaves it depends on."""

    what: str
    call: Callable[[], Sequence[Tensor]]
    tensors: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Slopes:
    """Derivatives of a number along a direction: to the left, to the right, and by backward."""

    left: float
    right: float
    analytic: float

    @property
    def slack(self) -> float:
        return ATOL + RTOL * max(abs(self.left), abs(self.right))

    @property
    def is_corner(self) -> bool:
        return abs(self.left - self.right) > self.slack

    @property
    def is_wrong(self) -> bool:
        return not self.is_corner and abs(self.analytic - (self.left + self.right) / 2) > self.slack


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


def _of_loss(model: nn.Module, loss: Any, fields: list[Tensor]) -> Tried:
    """Return the loss in training mode, with the same dropout in every call."""
    model.train()
    losses = Losses(model, loss)

    def call() -> list[Tensor]:
        torch.default_generator.manual_seed(SEED)
        if has_training_step(model):
            return [read_answer(model, model.training_step(tuple(fields), loss))[0]]  # type: ignore[operator]
        return [losses.of(tuple(fields[:-1]), fields[-1])]

    call()
    trained: dict[str, Tensor] = {
        name: param for name, param in model.named_parameters() if param.requires_grad and param.numel()
    }
    return Tried(f"the loss of {type(model).__name__}", call, trained)


def _parts(model: nn.Module, run: Callable[[], Any]) -> list[Tried]:
    """Return every submodule that was called with tensors and has few parameters, deepest first."""
    calls: dict[nn.Module, tuple[Any, ...]] = {}

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module not in calls and inputs and all(isinstance(one, Tensor) for one in inputs):
            calls[module] = tuple(one.detach().clone() for one in inputs)

    below = [(path, module) for path, module in model.named_modules() if path]
    hooks = [module.register_forward_pre_hook(note) for _, module in below]
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    below.sort(key=lambda item: -item[0].count("."))
    small = [(path, m) for path, m in below if sum(param.numel() for param in m.parameters()) <= SMALL]
    return [_of_module(path, module, calls[module]) for path, module in small if module in calls]


def _of_module(path: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tried:
    for one in inputs:
        one.requires_grad_(one.is_floating_point())
    tensors: dict[str, Tensor] = {
        f"{path}.{name}": param for name, param in module.named_parameters() if param.requires_grad
    }
    tensors |= {f"input {k} of {path}": one for k, one in enumerate(inputs) if one.requires_grad}

    def call() -> list[Tensor]:
        torch.default_generator.manual_seed(SEED)
        # A copy: a module that changes its input in place must find it unchanged in the next call.
        return [*_tensors(module(*(one.clone() for one in inputs)))]

    return Tried(f"module {path} ({type(module).__name__})", call, {k: t for k, t in tensors.items() if t.numel()})


def _tensors(answer: Any) -> Iterator[Tensor]:
    """Yield the tensors in a module's output that can have a gradient."""
    if isinstance(answer, Tensor):
        if answer.requires_grad and answer.is_floating_point():
            yield answer
    elif isinstance(answer, tuple | list):
        for one in answer:
            yield from _tensors(one)
    elif isinstance(answer, dict):
        yield from _tensors([*answer.values()])


def _check(tried: Tried) -> None:
    """Check the gradients of `tried`. Raises ModelError for the first element, or direction, with a wrong one."""
    tensors = tuple(tried.tensors.values())
    if not tensors or not tried.call():
        return
    try:
        if sum(tensor.numel() for tensor in tensors) > FEW or not _torch_agrees(tried, tensors):
            _compare(tried)
    except RuntimeError as error:
        words = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise ModelError(f"--gradcheck: {tried.what}: backward fails: {words}", code="model/wrong-gradient") from error


def _torch_agrees(tried: Tried, tensors: tuple[Tensor, ...]) -> bool:
    """Return whether torch's gradcheck passes. The tensors are leaves that it changes in place, so `call` sees the
    changes. For few elements only: after an error it checks every element again, hours for a million."""
    found = torch.autograd.grad(sum(one.sum() for one in tried.call()), tensors, allow_unused=True)  # type: ignore[arg-type]
    if any(one is not None and one.layout != torch.strided for one in found):
        return False  # it would complain about sparse gradients, not compare them
    options = {"eps": EPS, "atol": ATOL, "rtol": RTOL, "check_undefined_grad": False, "raise_exception": False}
    return bool(torch.autograd.gradcheck(lambda *_: tuple(tried.call()), tensors, **options))  # type: ignore[arg-type]


def _compare(tried: Tried) -> None:
    """Compare derivatives of a weighted sum of the outputs along a random direction of each tensor, and of its elements
    if that is wrong."""
    torch.default_generator.manual_seed(SEED + 1)
    weights = [torch.rand_like(one) + 0.5 for one in tried.call()]
    random = torch.Generator().manual_seed(SEED + 1)  # `call` seeds the default generator

    def value() -> Tensor:
        parts = [(weight * one).sum() for weight, one in zip(weights, tried.call(), strict=True)]
        return torch.stack(parts).sum()

    def gradients() -> list[Tensor]:
        found = torch.autograd.grad(value(), [*tried.tensors.values()], allow_unused=True)
        return [_dense(grad, tensor) for grad, tensor in zip(found, tried.tensors.values(), strict=True)]

    first, second = gradients(), gradients()
    for (name, tensor), one, other in zip(tried.tensors.items(), first, second, strict=True):
        if not torch.allclose(one, other):
            raise ModelError(
                f"--gradcheck: {tried.what}: backward returns different gradients for {name} from the same numbers; it "
                "must depend only on its inputs and saved tensors",
                code="model/wrong-gradient",
            )
        direction = torch.randn(tensor.shape, dtype=tensor.dtype, generator=random)
        direction /= direction.norm()
        along = _slopes(value, tensor, direction, float((one * direction).sum()))
        if along.is_corner or along.is_wrong:
            _blame(tried, value, name, one, random, along)


def _dense(gradient: Tensor | None, tensor: Tensor) -> Tensor:
    """Return a dense gradient: sparse ones (an embedding's) converted, zeros for an unused tensor."""
    if gradient is None:
        return torch.zeros_like(tensor)
    return gradient.detach() if gradient.layout == torch.strided else gradient.detach().to_dense()


def _blame(
    tried: Tried, value: Callable[[], Tensor], name: str, analytic: Tensor, random: torch.Generator, along: Slopes
) -> None:
    """Raise for the first wrong element or, for a tensor too large to check all, for the direction `along`. Does
    nothing if all elements are right: the direction met a corner."""
    tensor = tried.tensors[name]
    for place in _elements(analytic, random):
        index = tuple(int(k) for k in torch.unravel_index(torch.tensor(place), tensor.shape))
        unit = torch.zeros_like(tensor)
        unit[index] = 1.0
        found = _slopes(value, tensor, unit, float(analytic[index]))
        if found.is_wrong:
            raise _wrong(tried, f"the gradient of {name}[{', '.join(map(str, index))}]", found)
    if analytic.numel() > LOOKED_AT and along.is_wrong:
        raise _wrong(tried, f"the derivative along a random direction of {name}", along)


def _wrong(tried: Tried, what: str, slopes: Slopes) -> ModelError:
    numeric = (slopes.left + slopes.right) / 2
    return ModelError(
        f"--gradcheck: {tried.what}: {what} is {slopes.analytic:.6g} by backward, but {numeric:.6g} by differences of "
        f"the outputs (float64, {SAMPLES} samples); correct its backward",
        code="model/wrong-gradient",
    )


def _elements(analytic: Tensor, random: torch.Generator) -> list[int]:
    """Return all elements of a small tensor; of a large one those with the largest gradients and some random ones."""
    count = analytic.numel()
    if count <= LOOKED_AT:
        return [*range(count)]
    largest = analytic.reshape(-1).abs().topk(LOOKED_AT // 2).indices.tolist()
    return [*dict.fromkeys([*largest, *torch.randint(count, (LOOKED_AT // 2,), generator=random).tolist()])]


def _slopes(value: Callable[[], Tensor], tensor: Tensor, direction: Tensor, analytic: float) -> Slopes:
    words = tensor.detach()  # the same memory, but writable
    before, middle = words.clone(), float(value().detach())
    words.copy_(before - EPS * direction)
    left = (middle - float(value().detach())) / EPS
    words.copy_(before + EPS * direction)
    right = (float(value().detach()) - middle) / EPS
    words.copy_(before)
    return Slopes(left, right, analytic)
