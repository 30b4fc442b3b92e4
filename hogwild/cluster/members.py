"""The nodes of a cluster: what must be equal when they join, and who is left after a failure. Pure.

    generation g ── a node fails ──► everybody who notices writes how far it was, and has given g up
                                     one compare-and-set decides:  members of g', and the round that all take
    generation g' ── …

A round is *buffered* at a node when the sums of all are there, and *committed* once it has passed the barrier, which
needs everybody's sums. So if anybody committed it, all that are left can take it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

WORDS = 8  # of the region that a communicator shares with its supervisor: a cache line
LONGEST = 60  # characters of a value in a message


class RoundWord(IntEnum):
    """Places in it; the communicator writes them, but for one."""

    BEAT = 0
    BUFFERED = 1  # the last round whose sums are complete
    COMMITTED = 2  # the last round whose barrier it has passed
    SUPERVISOR = 3  # beat of the supervisor's loop


@dataclass(frozen=True, slots=True)
class Standing:
    """Progress of a node when it gave a generation up. `is_gone`: it leaves."""

    committed: int
    buffered: int
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next group. `take`: the round that everybody in it has after this, or 0."""

    members: tuple[int, ...]
    take: int


def decide(members: Sequence[int], standings: Mapping[int, Standing]) -> Proposal:
    """Return the next group, from what the members of this one have written."""
    furthest = max((standing.committed for standing in standings.values()), default=0)
    left = [
        number
        for number in members
        if (standing := standings.get(number)) is not None
        and not standing.is_gone
        and furthest in (standing.committed, standing.buffered)
    ]
    return Proposal(tuple(left), furthest)


def differences(facts: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each fact in which a node differs from the first one. A fact is a text; of a JSON map each
    key is compared, of several lines each line."""
    first = min(facts)
    found = []
    for number in sorted(facts.keys() - {first}):
        for name in facts[first]:
            here, there = _parts(name, facts[number].get(name, "")), _parts(name, facts[first][name])
            for key in dict.fromkeys([*there, *here]):
                if here.get(key) != there.get(key):
                    own, other = _short(here.get(key)), _short(there.get(key))
                    found.append(f"node {number}: {key} is {own}, on node {first} it is {other}")
    return found


def _parts(name: str, text: str) -> dict[str, Any]:
    """Return the parts of a fact that are compared one by one."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if isinstance(values, dict):
        return {key if name == "job" else f"{name}.{key}": value for key, value in values.items()}
    lines = text.splitlines()
    if len(lines) > 1:
        return {f"{name} {line.partition(':')[0]}": line.partition(":")[2].strip() for line in lines}
    return {name: text}


def _short(value: Any) -> str:
    words = "missing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
