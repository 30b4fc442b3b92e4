"""`optimizer.groups` of the job file as torch's parameter groups: who is in which, by name."""

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from hogwild.errors import OptimizerError


class GroupSpec(Protocol):
    """One entry of `optimizer.groups`: patterns of names, and what these parameters have instead of the rule's own."""

    @property
    def params(self) -> Sequence[str]: ...

    @property
    def init_args(self) -> Mapping[str, Any]: ...


def param_groups(model: nn.Module, groups: Sequence[GroupSpec]) -> list[dict[str, Any]]:
    """What an optimizer's constructor takes: the parameters that no pattern matches, left out when there are none, then
    `groups` in their order, each with its parameters in the model's order. The first group that matches takes a
    parameter; a tied one is known under any of its names. Frozen parameters are in no group.

    Raises OptimizerError for a pattern that matches no parameter that is trained, and for a group that earlier ones
    left nothing to."""
    named = dict(model.named_parameters(remove_duplicate=False))
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    taken: dict[int, int] = {}  # id of a parameter -> number of its group
    for number, group in enumerate(groups):
        place = f"optimizer.groups[{number}]"
        found = [id(trained[name]) for name in _matching(place, group.params, named, trained)]
        if all(one in taken for one in found):
            earlier = ", ".join(f"optimizer.groups[{other}]" for other in sorted({taken[one] for one in found}))
            raise OptimizerError(
                f"{place}: {earlier} took all its parameters; the first group that matches takes a parameter, so put "
                "the narrower patterns first",
                code="optimizer/empty-group",
            )
        taken |= {one: number for one in found if one not in taken}
    members: list[list[nn.Parameter]] = [[] for _ in range(len(groups) + 1)]
    for parameter in model.parameters():
        if parameter.requires_grad:
            members[taken.get(id(parameter), -1) + 1].append(parameter)
    settings: list[Mapping[str, Any]] = [{}, *(group.init_args for group in groups)]
    return [{"params": own, **each} for own, each in zip(members, settings, strict=True) if own]


def no_match(place: str, pattern: str, names: Sequence[str], what: str = "parameter") -> str:
    """`place`: `pattern` matches none of `names`, with the nearest of them."""
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    near = near or [name for name in names if name.startswith(pattern.rstrip(".*"))][:3] or list(names[:3])
    return f"{place}: {pattern!r} matches no {what}; near names: {', '.join(near)}. A module's parameters are MODULE.*"


def _matching(
    place: str, patterns: Sequence[str], named: Mapping[str, nn.Parameter], trained: Mapping[str, nn.Parameter]
) -> dict[str, None]:
    """Names of trained parameters that one of `patterns` matches, each once."""
    found: dict[str, None] = {}
    for position, pattern in enumerate(patterns):
        matching = fnmatch.filter(trained, pattern)
        here = f"{place}.params[{position}]"
        if not matching and fnmatch.filter(named, pattern):
            raise OptimizerError(
                f"{here}: {pattern!r} matches frozen parameters only, which no optimizer trains",
                code="optimizer/no-match",
            )
        if not matching:
            raise OptimizerError(no_match(here, pattern, list(trained), "trained parameter"), code="optimizer/no-match")
        found |= dict.fromkeys(matching)
    return found
