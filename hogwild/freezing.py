"""`model.freeze`: which parameters are not trained, for good or until an update.

    ["conv*"]                                  never
    [{params: ["conv*"], until: 500}]          the first 500 updates of the job leave them alone; number 500 trains them

What is frozen for good has no `requires_grad` from here on. What is frozen until an update keeps it in the parent, so
that the optimizer, the layout and the trial step know of it; each worker takes it away from its own view, and gives it
back at that update (`WorkerModel.thaw`)."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from hogwild.errors import ModelError
from hogwild.param_groups import no_match


class Until(Protocol):
    """An entry of `model.freeze` that ends."""

    @property
    def params(self) -> Sequence[str]: ...

    @property
    def until(self) -> int: ...


def freeze_parameters(model: nn.Module, entries: "Sequence[str | Until]") -> list[str]:
    """Takes `requires_grad` from every parameter that is frozen for good: whose name matches a pattern (shell
    wildcards: `conv*`, `*.bias`); returns their names. Before the optimizer is built. Raises ModelError for a pattern
    that matches nothing, with near names, and for an entry that earlier ones left nothing to."""
    named = dict(model.named_parameters(remove_duplicate=False))
    found = _assigned(named, entries)
    forever = [name for name, until in found.items() if until is None]
    for name, until in found.items():
        named[name].requires_grad_(until is not None)
    return forever


def late_parameters(model: nn.Module, entries: "Sequence[str | Until]") -> dict[str, int]:
    """Name, as `model.named_parameters()` has it -> the update that trains it first. Raises what `freeze_parameters`
    raises."""
    named = dict(model.named_parameters(remove_duplicate=False))
    until = {id(named[name]): until for name, until in _assigned(named, entries).items() if until is not None}
    return {name: until[id(param)] for name, param in model.named_parameters() if id(param) in until}


def require_trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, late: Mapping[str, int], planned_updates: int
) -> str | None:
    """Raises ModelError where nothing would be trained before the first update that unfreezes, or where no optimizer
    group would train what is unfrozen. Answers a sentence where the job ends before that; `planned_updates` is 0 where
    nobody knows."""
    if not late:
        return None
    named = dict(model.named_parameters())
    owned = {id(param) for group in optimizer.param_groups for param in group["params"]}
    stranger = next((name for name in late if id(named[name]) not in owned), None)
    if stranger is not None:
        raise ModelError(
            f"model.freeze: {stranger} is frozen until update {late[stranger]}, and is in no group of the optimizer: "
            "nobody would train it then. Build the optimizer over all of model.parameters()",
            code="model/thawed-untrained",
        )
    first = min(late.values())
    if not any(param.requires_grad and id(param) in owned and name not in late for name, param in named.items()):
        raise ModelError(
            f"model.freeze: every parameter is frozen until update {first}, which never comes: until then nothing is "
            "trained. Leave out of it what is trained from the beginning, a head",
            code="model/no-parameters",
        )
    never = sorted(until for until in set(late.values()) if until >= planned_updates > 0)
    if not never:
        return None
    return (
        f"model.freeze: what is frozen until update {', '.join(map(str, never))} stays so: the job has "
        f"{planned_updates} updates"
    )


def _assigned(named: Mapping[str, nn.Parameter], entries: "Sequence[str | Until]") -> dict[str, int | None]:
    """Name -> the update that unfreezes it, None: never. The first entry that matches decides; a tied parameter is one,
    under any of its names."""
    until_of: dict[int, int | None] = {}
    for number, entry in enumerate(entries):
        patterns, until = ([entry], None) if isinstance(entry, str) else (entry.params, entry.until)
        place = "model.freeze" if until is None else f"model.freeze[{number}].params"
        matching = [name for pattern in patterns for name in _of(pattern, named, place)]
        if until is not None and all(id(named[name]) in until_of for name in matching):
            raise ModelError(
                f"{place}: earlier entries took all its parameters; the first that matches decides, so put the "
                "narrower patterns first",
                code="model/no-match",
            )
        for name in matching:
            until_of.setdefault(id(named[name]), until)
    return {name: until_of[id(param)] for name, param in named.items() if id(param) in until_of}


def _of(pattern: str, named: Mapping[str, nn.Parameter], place: str) -> list[str]:
    matching = fnmatch.filter(named, pattern)
    if not matching:
        raise ModelError(no_match(place, pattern, list(named)), code="model/no-match")
    return matching
