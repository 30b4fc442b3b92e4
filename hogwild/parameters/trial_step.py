"""A trial step: the state that an optimizer's first step creates, learnt on a copy before anything is allocated."""

import copy
import inspect
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import OptimizerError
from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.user_code import raised_text

PORTION = 64 << 20  # bytes of parameters that are tried at once
TIMES = 6  # memory per parameter byte: a copy, its gradient, two moments, two temporary tensors of torch's


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters in the order of a stock state_dict."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def trial_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the peak private memory of `dry_step`, in bytes."""
    return TIMES * max((sum(param.nbytes for param in portion) for portion in _portions(optimizer)), default=0)


def _portions(optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]]:
    """Return groups of parameters to try at once, in the optimizer's order. torch's own rules treat every parameter
    separately, so large models are tried piece by piece; another rule may need all of them together."""
    params = parameters_of(optimizer)
    starts = accumulate((param.nbytes for param in params), initial=0)
    numbers = (start // PORTION if _is_stock(optimizer) else 0 for start in starts)
    numbered = zip(numbers, params, strict=False)
    return [[param for _, param in portion] for _, portion in groupby(numbered, lambda pair: pair[0])]


def dry_step(
    optimizer: torch.optim.Optimizer, sparse: set[int]
) -> tuple[dict[int, dict[str, Any]], list[tuple[int, str, Any]]]:
    """Return the state after one step with zero gradients on a copy, and the numbers in groups that the step changed. A
    constant tensor may be stored as one number (stride 0).

    The user's objects stay unchanged: parameters and state are copied, hooks left out, the generator's state
    restored."""
    state: list[dict[str, Any]] = []  # of each parameter
    numbers: list[tuple[int, str, Any]] = []
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real first step repeats these warnings
            for portion in _portions(optimizer):
                found, numbers = _rehearse(
                    _copy(optimizer, portion, sparse), {i for i, param in enumerate(portion) if id(param) in sparse}
                )
                state += [{key: _compact(value) for key, value in own.items()} for own in found]
    except Exception as error:
        raise OptimizerError(
            f"{type(optimizer).__qualname__} failed in a trial step with zero gradients on a copy of the parameters: "
            f"{raised_text(error)}",
            code="optimizer/trial-step",
        ) from error
    return {i: own for i, own in enumerate(state) if own}, numbers


def _compact(value: Any) -> Any:
    """Return a constant tensor, as most initial state is, as one expanded number, to save memory until it is
    written."""
    if not isinstance(value, Tensor) or value.numel() < 2:
        return value
    number = value[(0,) * value.dim()].clone()
    return number.expand(value.shape) if bool((value == number).all()) else value


def _rehearse(
    rule: torch.optim.Optimizer, sparse_places: set[int]
) -> tuple[list[dict[str, Any]], list[tuple[int, str, Any]]]:
    before = [dict(group) for group in rule.param_groups]
    params = parameters_of(rule)
    _step_with_zeros(rule, params, sparse_places)
    if _densify(rule, params):
        _step_with_zeros(rule, params, sparse_places)  # does the rule work with the dense buffer?
    return [dict(rule.state.get(param) or {}) for param in params], _changed_numbers(before, rule.param_groups)


def attributes_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return all instance attributes, unlike torch's own `__getstate__`, which omits those that a subclass adds. A
    `step` replaced on the instance (learning rate schedulers do that, with a weak reference) is left out."""
    return {key: value for key, value in vars(optimizer).items() if key != "step"}


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], Any]:
    """Return the rule without torch's wrappers, to be called without gradients. They cost a profiler record per step,
    and import torch._dynamo (a second of every worker's start). For a user's class only the profiler's wrapper is
    removed."""
    step: Callable[[torch.optim.Optimizer], Any] = type(optimizer).step
    if _is_stock(optimizer):
        step = inspect.unwrap(step)
    elif getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]
    return step


def _is_stock(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.split(".")[:2] == ["torch", "optim"]


def _copy(optimizer: torch.optim.Optimizer, portion: list[nn.Parameter], sparse: set[int]) -> torch.optim.Optimizer:
    """Copy the optimizer over copies of these parameters alone. A known rule reads and writes only the row
    that a sparse gradient names: then the copy is not filled, which takes seconds for gigabytes."""
    memo: dict[int, Any] = {}
    is_known = _is_stock(optimizer) or type(optimizer) in (RowWiseAdagrad, FTRL)
    for param in portion:
        is_untouched = is_known and id(param) in sparse
        values = torch.empty_like(param) if is_untouched else param.detach().clone()
        clone = nn.Parameter(values, param.requires_grad)
        clone.__dict__.update(param.__dict__)
        memo[id(param)] = clone
    left_out = {id(param) for param in parameters_of(optimizer)} - memo.keys()
    own = attributes_of(optimizer)
    own["state"] = defaultdict(dict, {key: value for key, value in own["state"].items() if id(key) not in left_out})
    own["param_groups"] = [
        {**group, "params": [param for param in group["params"] if id(param) in memo]} for group in own["param_groups"]
    ]
    attributes = {
        key: OrderedDict() if key.endswith("_hooks") else copy.deepcopy(value, memo) for key, value in own.items()
    }
    clone_of_rule = type(optimizer).__new__(type(optimizer))
    vars(clone_of_rule).update(attributes)
    return clone_of_rule


def _step_with_zeros(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], sparse_places: set[int]) -> None:
    for i, param in enumerate(params):
        if param.requires_grad:
            param.grad = _sparse_zero(param) if i in sparse_places else torch.zeros_like(param)
    for group in optimizer.param_groups:
        if isinstance(group.get("weight_decay"), float | int):
            group["weight_decay"] = 0.0
    with torch.no_grad():
        bare_step(optimizer)(optimizer)


def _sparse_zero(param: Tensor) -> Tensor:
    """Return a sparse gradient with one stored row of zeros."""
    row = torch.zeros(1, *param.shape[1:], dtype=param.dtype)
    return torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), row, param.shape, check_invariants=False)


def _densify(optimizer: torch.optim.Optimizer, params: list[nn.Parameter]) -> bool:
    """Replace sparse state (SGD with momentum keeps a sparse buffer for sparse gradients) by the same numbers stored
    densely, as a region requires."""
    found = False
    for param in params:
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor) and value.layout != torch.strided:
                optimizer.state[param][key] = value.to_dense()
                found = True
    return found


def _changed_numbers(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[tuple[int, str, Any]]:
    """Return (group, key, value) of the rule's counters in its groups (`k` of schedule-free rules), without the rate,
    which we set."""
    return [
        (g, key, new[key])
        for g, (old, new) in enumerate(zip(before, after, strict=True))
        for key in new
        if key not in ("lr", "weight_decay", "params")
        and isinstance(new[key], int | float)
        and old.get(key) != new[key]
    ]
