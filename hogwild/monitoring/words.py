"""Words for the keys and events of records, the same on the terminal, in the report and on the service's page, whose
script reads words.json, too: `samples_per_s` is "samples per second". An unknown key is shown as it is, with spaces."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hogwild.formatting import format_value, ranges

WORDS: dict[str, str] = json.loads((Path(__file__).parent / "words.json").read_text("utf-8"))  # key of a record
PREFIXES = {
    "metrics.": "{}, last evaluation",
    "best.": "{}, best evaluation",
    "popularity.": "{}, most popular items",
    "plan.environment.": "{}",
    "plan.": "planned {}",
    "leases.": "batches {}",
}
# A row of a timeline. What is in TROUBLE stands out in a list.
TROUBLE, RESTARTS, EVALUATIONS, CHECKPOINTS, PAUSES, RESIZES, OTHER = (
    *("trouble", "restarts", "evaluations", "checkpoints", "pauses", "resizes", "other"),
)
EVENTS = {
    "start": ("job started", OTHER),
    "resume": ("resumed from a checkpoint", RESTARTS),
    "end": ("job ended", OTHER),
    "spawn": ("{who} starting", OTHER),
    "ready": ("{who} ready", OTHER),
    "exit": ("{who} died", TROUBLE),
    "exit left": ("{who} left", RESIZES),  # as it was told to
    "restart": ("{who} restarted", RESTARTS),
    "stall": ("{who} stalled", TROUBLE),
    "fence": ("{who} was killed", TROUBLE),
    "deadlock": ("no worker could go on", TROUBLE),
    "rollback": ("rolled back to a checkpoint", TROUBLE),
    "evaluation": ("evaluation", EVALUATIONS),
    "pause": ("pause", PAUSES),
    "checkpoint": ("checkpoint written", CHECKPOINTS),
    "checkpoint-failed": ("checkpoint failed", TROUBLE),
    "checkpoint-refused": ("checkpoint refused", TROUBLE),
    "best-restored": ("weights of the best evaluation restored", CHECKPOINTS),
    "checkpoint-rejected": ("checkpoint could not be loaded", CHECKPOINTS),
    "data-read": ("data read", OTHER),
    "bad-batch": ("{who} could not read a batch", TROUBLE),
    "quarantined": ("batch skipped after repeated crashes", TROUBLE),
    "cluster-joined": ("joined the other nodes", OTHER),
    "cluster-formed": ("the nodes formed their group again", OTHER),
    "cluster-out": ("the other nodes went on without this one", TROUBLE),
    "cluster-lost": ("the store on the first node was lost", TROUBLE),
    "node-lost": ("{who} lost", TROUBLE),
    "round-refused": ("parameters were not finite: batches since the last round are skipped", TROUBLE),
    "lane-restarts": ("lanes restarted", RESTARTS),
    "owner": ("process that owns the GPU", OTHER),
    "rows-grown": ("room for more ids", RESIZES),
    "rows-short": ("no room for more ids", TROUBLE),
    "rows-expired": ("rows of ids given back", OTHER),
    "resize": ("workers added or removed", RESIZES),
    "update": ("update path chosen", OTHER),
    "signal": ("signal received", OTHER),
}
ROUTINE = (EVALUATIONS, PAUSES)
ROLES = {"loader": "loader", "communicator": "communicator", "predictor": "predictor"}
PLAIN = ("how", "why", "reason", "error", "name", "checkpoint", "plan", "what", "choice", "state", "kind")
# In the title, or technical.
WITHIN = (
    *("time", "event", "worker", "loader", "incarnation", "pid", "loop_longest_ms", "id"),
    *("communicator", "predictor", "generation", "disk"),
)
TECHNICAL = {  # said by the title and by `how`
    **dict.fromkeys(("exit", "loader-exit", "communicator-exit", "predictor-exit"), "kind"),
    "node-lost": "nodes",
}


def in_words(key: str) -> str:
    """Return a key of a record, with dots where it is nested, in words."""
    if key in WORDS:
        return WORDS[key]
    for prefix, words in PREFIXES.items():
        if key.startswith(prefix):
            return words.format(in_words(key.removeprefix(prefix)))
    return key.removesuffix("_s").removesuffix("_bytes").replace("_", " ").replace(".", ": ")


def event_in_words(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return a title of the event, with its worker or loader, and the rest of its record."""
    kind = str(event["event"])
    who = next((f"{name} {event[name]}" for name in ("worker", "loader") if name in event), "")
    if kind == "node-lost":
        gone = event.get("nodes")
        who = f"node{'s' * (isinstance(gone, list) and len(gone) > 1)} {_plain(gone, 'nodes')}"
    title, _ = EVENTS.get(_name(event), (kind.replace("-", " ") + (" of {who}" if who else ""), OTHER))
    shown = [
        str(value) if key in PLAIN else f"{in_words(key)} {_plain(value, key)}"
        for key, value in event.items()
        if key not in WITHIN and value not in ("", None, [], {}, 0) and TECHNICAL.get(kind) != key
    ]
    return title.replace("{who}", who or ROLES.get(kind.partition("-")[0], "")), "; ".join(shown)


def row_of(event: Mapping[str, Any]) -> str:
    """Return the row of a timeline that the event belongs to."""
    return EVENTS.get(_name(event), ("", OTHER))[1]


def is_routine(event: Mapping[str, Any]) -> bool:
    """Return whether a timeline shows it well enough, or it happens in every job: a list of events leaves it out."""
    name = _name(event)
    return name in ("spawn", "ready", "restart", "checkpoint", "exit left") or row_of(event) in ROUTINE


def _name(event: Mapping[str, Any]) -> str:
    """Return the event's name in EVENTS, where other processes have those of workers."""
    kind = str(event["event"])
    role, _, end = kind.partition("-")
    if kind == "request":
        return str(event.get("ask"))
    kind = end if end and role in ROLES else kind
    return "exit left" if kind == "exit" and event.get("kind") == "left" else kind


def _plain(value: Any, key: str) -> str:
    """Return the value as text; numbers of nodes as `0-2,4`."""
    is_numbers = isinstance(value, list) and all(type(one) is int for one in value)
    return ranges(value) if is_numbers else format_value(value, key)
