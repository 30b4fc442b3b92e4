"""Identity of a job's data: its samples, and the names that rows of a model stand for. A resume with other data is
refused; `model.init_from` copies a row's values by its name, never by its number.

    {"names": {"users": digest}, "data.train": {"samples": "1,000", "rating": "float32 () digest"}}  in every checkpoint

For packed data, ready tensors and our files all content is compared; for a data set that is read item by item only
integers (ids, labels), because the rest may be random; for a stream the number of its records."""

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import TensorDataset

from hogwild import host
from hogwild.config.field_types import Component
from hogwild.errors import DataError, HogwildError, ModelError, RunError
from hogwild.job.source import Source
from hogwild.scheduling.batch_plan import StreamPlan
from hogwild.storage.run_directory import NAMES
from hogwild.user_code import build, resolve

BLOCK = 1 << 20  # bytes hashed at once
LIMIT = 256 * BLOCK  # of a field; for a larger one, blocks spread over all of it: 0.2 s
WHOLE_NUMBERS = (torch.int16, torch.int32, torch.int64)

Identity = dict[str, dict[str, str]]
Names = Mapping[str, Sequence[Any]]  # by kind: users, items, words, …
Rows = Mapping[str, Mapping[int, tuple[str, int]]]  # tensor -> dimension -> its kind, and the rows of each


def identity_of(names: Mapping[str, Any] | None, **data: tuple[Source | None, Any]) -> Identity:
    """Return the identity. `names` as from `packed_data.names_of`; `data`: the data in memory, and its data set."""
    written = {kind: json.dumps([*values]).encode() for kind, values in (names or _NONE)["names"].items()}
    found = {"names": {kind: hashlib.sha256(content).hexdigest()[:16] for kind, content in written.items()}}
    return found | {f"data.{what}": dict(_fields(*given)) for what, given in data.items() if given[0] is not None}


def identified(names: Mapping[str, Any] | None, **data: tuple[Source | None, Any]) -> Future[Identity]:
    """Return the identity as a future of a thread: it is wanted with the first checkpoint, and a gigabyte takes a
    second. The sources may lose their tensors meanwhile."""
    given = {what: (copy(source), dataset) for what, (source, dataset) in data.items()}
    thread = ThreadPoolExecutor(1, "identity", initializer=host.leave_signals_to_main)
    found = thread.submit(identity_of, names, **given)
    thread.shutdown(wait=False)
    return found


def _fields(source: Any, dataset: Any) -> Iterator[tuple[str, str]]:
    fields = {f"field {number}": tensor for number, tensor in enumerate(source.tensors)}
    if source.packed is not None:
        fields = {name: torch.from_numpy(array) for name, array in source.packed.arrays().items()}
    if not isinstance(source.plan, StreamPlan):
        yield "samples", f"{source.plan.samples:,}"
    read = getattr(type(dataset), "__getitem__", None)
    is_whole = source.packed is not None or read is TensorDataset.__getitem__ or hasattr(dataset, "fingerprint")
    for name, field in fields.items():
        content = _digest(field) if is_whole or field.dtype in WHOLE_NUMBERS else ""
        yield name, f"{str(field.dtype).removeprefix('torch.')} {(*field.shape[1:],)} {content}".rstrip()


def _digest(field: Tensor) -> str:
    digest, rows = hashlib.sha256(), max(1, BLOCK * len(field) // max(1, field.nbytes))
    for start in range(0, len(field), rows * (1 + field.nbytes // LIMIT)):
        digest.update(field[start : start + rows].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


_NONE: Mapping[str, Any] = {"names": {}, "sizes": {}, "columns": None}


def read_names(file: Path) -> Mapping[str, Any]:
    """Read `names`, `sizes` and `columns` of a names.json; empty if there is no file. Raises RunError."""
    try:
        found = json.loads(file.read_text())
        return {"names": dict(found["names"]), "sizes": dict(found["sizes"]), "columns": found.get("columns")}
    except FileNotFoundError:
        return _NONE
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file}: cannot be read: {error}", code="run/unreadable") from error


def require_same(state: Mapping[str, Any], run: Path, names: Mapping[str, Any] | None, now: Identity) -> bool:
    """Compare `now` with the data of the checkpoint `state` of `run`; if the checkpoint does not record them (returns
    False), with the names in the run's names.json. Raises DataError."""
    was: Identity = state.get("data") or identity_of(read_names(run / NAMES))
    changed = []
    for what in (key for key in was if key in now):
        for key, old in was[what].items():
            new = now[what].get(key, "none" if what == "names" else old)  # one feed may know less than the other
            if new != old:
                words = _first_renamed(run, names or _NONE, key) if what == "names" else ""
                changed.append(f"{what}: {key}: {words}was {old}, now {new}")
    if changed:
        raise DataError(
            "the data has changed since this run was trained:\n  " + "\n  ".join(changed) + "\nRestore the data, or "
            f"start a new run from this run's model, with rows matched by name: model.init_from={run}",
            code="data/changed",
        )
    return "data" in state


def _first_renamed(run: Path, names: Mapping[str, Any], kind: str) -> str:
    old, new = (found["names"].get(kind, []) for found in (read_names(run / NAMES), names))
    rows = [row for row, pair in enumerate(zip_longest(old, new)) if pair[0] != pair[1]]
    if not rows:
        return ""
    was, now = (repr(side[rows[0]]) if rows[0] < len(side) else "nothing" for side in (old, new))
    return f"row {rows[0]} was {was}, now {now} ({len(rows):,} of {len(old):,} differ, now {len(new):,}); digest "


# ---- rows of a model by name ----------------------------------------------------------------------------------------


def names_by_kind(found: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """Return the names of each kind of row. Features have only numbers, starting at a number given by the data."""
    found = found or _NONE
    kinds = {kind: values for kind, values in found["names"].items() if kind != "first"}
    if "first" in found["names"]:
        first = int(found["names"]["first"][0])
        kinds["features"] = range(first, first + found["sizes"]["features"])
    return kinds


def rows_of(spec: Component | None, model: nn.Module, names: Mapping[str, Any] | None) -> Rows:
    """Find the kind of rows that each dimension of `model` counts, by building it without memory for more rows of each
    kind. Omits kinds for which that fails. `names`: of the data, with the sizes that the model took from there."""
    found: dict[str, dict[int, tuple[str, int]]] = {}
    if spec is None or names is None:
        return found
    parameters = inspect.signature(resolve(spec.class_path)).parameters
    arguments = {kind: size for kind, size in names["sizes"].items() if kind in parameters} | spec.init_args
    for kind in (kind for kind in names_by_kind(names) if isinstance(arguments.get(kind), int)):
        more = arguments[kind] + 64  # this number also reveals rounded-up sizes
        larger = spec.model_copy(update={"init_args": arguments | {kind: arguments[kind] + more}})
        with suppress(HogwildError), torch.random.fork_rng(devices=[]), torch.device("meta"):
            built = build(larger).state_dict()
            for name, own in model.state_dict().items():
                places = found.setdefault(name, {})
                for place, (size, grown) in enumerate(zip(_shape(own), _shape(built.get(name)), strict=False)):
                    if grown != size and place in places:  # depends on both kinds
                        places[place] = (f"{places[place][0]} and {kind}", 0)
                    elif grown != size:
                        places[place] = (kind, (grown - size) // more if (grown - size) % more == 0 else 0)
    return found


def by_name(
    model: nn.Module, saved: Mapping[str, Any], ours: Names, theirs: Names, rows: Rows
) -> tuple[dict[str, Tensor], list[str]]:
    """Return those tensors of `saved` whose rows stand for `theirs` with a row for each of `ours`: the saved row of
    that name, or the model's own; and a text with the counts. Raises ModelError for rows with unknown names."""
    changed = {kind: names for kind, names in ours.items() if theirs.get(kind) != names}
    pairs = {kind: _places(theirs[kind], names) for kind, names in changed.items() if kind in theirs}
    unclear = changed.keys() - {kind for places in rows.values() for kind, _ in places.values()}
    own, found = model.state_dict(), dict[str, Tensor]()
    for name, value in saved.items():
        moves: list[tuple[int, Tensor, Tensor]] = []
        for place, (here, there) in enumerate(zip(_shape(own[name]), _shape(value), strict=False)):
            alike = ((kind, 0) for kind in unclear if here == len(ours[kind]) or there == len(theirs.get(kind, ())))
            kind, times = rows.get(name, {}).get(place) or next(alike, ("", 0))
            if not changed.keys() & set(kind.split(" and ")):
                continue
            many = (len(theirs.get(kind, ())), len(ours.get(kind, ())))
            is_known = kind in pairs and (times == 1 or (times > 1 and kind in getattr(model, "in_blocks", ())))
            if not is_known or (there, here) != (times * many[0], times * many[1]):
                why = f"which differ now: none of {there:,} in the file can be matched to the {here:,} here"
                if not theirs:
                    why = f"but no {NAMES} beside it or in its run names them; put that file there"
                raise ModelError(f"{name} has rows for {kind}, {why}", code="model/init-names")
            blocks = torch.arange(times)[:, None]
            old, new = ((blocks * count + rows).flatten() for count, rows in zip(many, pairs[kind], strict=True))
            moves.append((place, old, new))
        if moves:
            found[name] = _moved(own[name].detach().clone(), value.to(own[name].dtype), moves)
    counts = ((kind, len(old), len(ours[kind]), len(theirs[kind])) for kind, (old, _) in pairs.items())
    return found, [
        f"{kind} by name: {k:,} kept, {here - k:,} new, {there - k:,} gone" for kind, k, here, there in counts
    ]


def _moved(target: Tensor, source: Tensor, moves: Sequence[tuple[int, Tensor, Tensor]]) -> Tensor:
    if not moves:
        return source
    (place, old, new), *rest = moves
    part = _moved(target.index_select(place, new), source.index_select(place, old), rest)
    return target.index_copy_(place, new, part)


def _places(old: Sequence[Any], new: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return the rows of the common names in each of the two. 42 and "42" are the same."""
    if isinstance(old, range) and isinstance(new, range):  # millions of features
        first = max(old.start, new.start)
        both = torch.arange(first, max(first, min(old.stop, new.stop)))
        return both - old.start, both - new.start
    rows = {str(name): row for row, name in enumerate(old)}
    pairs = [(rows[str(name)], row) for row, name in enumerate(new) if str(name) in rows]
    both = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) and not is_lazy(value) else ()
