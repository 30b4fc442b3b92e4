"""Parameters chosen by name: `optimizer.groups` of the job file as torch's parameter groups, and `model.freeze`: those
that are not trained, for good or until an update.

    freeze: ["conv*"]                                never
    freeze: [{params: ["conv*"], until: 500}]        the first 500 updates do not change them; number 500 trains them

Parameters frozen for good have no `requires_grad` from here on. Those frozen until an update keep it in the parent, so
that the optimizer, the layout and the trial step include them; each worker clears it in its own model, and sets it at
that update (`WorkerModel.thaw`)."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hogwild.config.schema import FrozenUntil, Group
from hogwild.errors import ModelError, OptimizerError, nearest


def param_groups(model: nn.Module, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the argument for an optimizer's constructor: the parameters that no pattern matches, if there are any,
    then `groups` in their order, each with its parameters in the model's order. The first group that matches takes a
    parameter; a tied one matches under any of its names. Frozen parameters are in no group.

    Raises OptimizerError for a pattern without a trained parameter, and for a group whose parameters are all in earlier
    groups."""
    named = dict(model.named_parameters(remove_duplicate=False))
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    taken: dict[int, int] = {}  # id of a parameter -> number of its group
    for number, group in enumerate(groups):
        place = f"optimizer.groups[{number}]"
        found = [id(trained[name]) for name in _matching(place, group.params, named, trained)]
        if all(one in taken for one in found):
            earlier = ", ".join(f"optimizer.groups[{other}]" for other in sorted({taken[one] for one in found}))
            raise OptimizerError(
                f"{place}: {earlier} matched all its parameters already; the first match applies, so put the narrower "
                "patterns first",
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
    """Return the message that `pattern` at `place` matches none of `names`, with the nearest of them."""
    near = nearest(pattern, names, cutoff=0.4)
    near = near or [name for name in names if name.startswith(pattern.rstrip(".*"))][:3] or list(names[:3])
    return (
        f"{place}: {pattern!r} matches no {what}; similar names: {', '.join(near)}. A module's parameters are MODULE.*"
    )


def _matching(
    place: str, patterns: Sequence[str], named: Mapping[str, nn.Parameter], trained: Mapping[str, nn.Parameter]
) -> dict[str, None]:
    """Return the names of trained parameters that one of `patterns` matches, each once."""
    found: dict[str, None] = {}
    for position, pattern in enumerate(patterns):
        matching = fnmatch.filter(trained, pattern)
        here = f"{place}.params[{position}]"
        if not matching and fnmatch.filter(named, pattern):
            raise OptimizerError(
                f"{here}: {pattern!r} matches only frozen parameters, which are not trained", code="optimizer/no-match"
            )
        if not matching:
            raise OptimizerError(no_match(here, pattern, list(trained), "trained parameter"), code="optimizer/no-match")
        found |= dict.fromkeys(matching)
    return found


def freeze_parameters(model: nn.Module, entries: Sequence[str | FrozenUntil]) -> list[str]:
    """Clear `requires_grad` of every parameter that is frozen for good: whose name matches a pattern (shell wildcards:
    `conv*`, `*.bias`); return their names. Call it before the optimizer is built. Raises ModelError for a pattern
    without a match, with near names, and for an entry whose parameters are all in earlier ones."""
    named = dict(model.named_parameters(remove_duplicate=False))
    found = _assigned(named, entries)
    forever = [name for name, until in found.items() if until is None]
    for name, until in found.items():
        named[name].requires_grad_(until is not None)
    return forever


def late_parameters(model: nn.Module, entries: Sequence[str | FrozenUntil]) -> dict[str, int]:
    """Return name, as in `model.named_parameters()` -> the first update that trains it. Raises what `freeze_parameters`
    raises."""
    named = dict(model.named_parameters(remove_duplicate=False))
    until = {id(named[name]): until for name, until in _assigned(named, entries).items() if until is not None}
    return {name: until[id(param)] for name, param in model.named_parameters() if id(param) in until}


def require_trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, late: Mapping[str, int], planned_updates: int
) -> str | None:
    """Check late parameters. Raises ModelError if nothing would be trained before the first update that unfreezes, or
    if no optimizer group would train an unfrozen one. Returns a sentence if the job ends before that; `planned_updates`
    is 0 if unknown."""
    if not late:
        return None
    named = dict(model.named_parameters())
    owned = {id(param) for group in optimizer.param_groups for param in group["params"]}
    stranger = next((name for name in late if id(named[name]) not in owned), None)
    if stranger is not None:
        raise ModelError(
            f"model.freeze: {stranger} is frozen until update {late[stranger]}, but is in no optimizer group: it "
            "would never be trained. Build the optimizer over all of model.parameters()",
            code="model/thawed-untrained",
        )
    first = min(late.values())
    if not any(param.requires_grad and id(param) in owned and name not in late for name, param in named.items()):
        raise ModelError(
            f"model.freeze: every parameter is frozen until update {first}, so nothing is trained, and that update "
            "never comes. Leave some parameters unfrozen, such as the head",
            code="model/no-parameters",
        )
    never = sorted(until for until in set(late.values()) if until >= planned_updates > 0)
    if not never:
        return None
    return (
        f"model.freeze: parameters frozen until update {', '.join(map(str, never))} stay frozen: the job has only "
        f"{planned_updates} updates"
    )


def _assigned(named: Mapping[str, nn.Parameter], entries: Sequence[str | FrozenUntil]) -> dict[str, int | None]:
    """Return name -> the update that unfreezes it, None: never. The first entry that matches decides; a tied parameter
    is one, under any of its names."""
    until_of: dict[int, int | None] = {}
    for number, entry in enumerate(entries):
        patterns, until = ([entry], None) if isinstance(entry, str) else (entry.params, entry.until)
        place = "model.freeze" if until is None else f"model.freeze[{number}].params"
        matching: list[str] = []
        for pattern in patterns:
            matching += (found := fnmatch.filter(named, pattern))
            if not found:
                raise ModelError(no_match(place, pattern, list(named)), code="model/no-match")
        if until is not None and all(id(named[name]) in until_of for name in matching):
            raise ModelError(
                f"{place}: earlier entries matched all its parameters already; the first match applies, so put the "
                "narrower patterns first",
                code="model/no-match",
            )
        for name in matching:
            until_of.setdefault(id(named[name]), until)
    return {name: until_of[id(param)] for name, param in named.items() if id(param) in until_of}
