"""Who has what, of a run and of all runs that it continued: by name, each row once, in a file beside the checkpoint."""

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hogwild.errors import HogwildError
from hogwild.job import known_rows
from hogwild.job.known_rows import NamedRows
from hogwild.storage.run_directory import KNOWN

Named = dict[tuple[str, ...], bool]  # row -> whether it was only held out
PAIRS = ("users", "items")
ODD = ["a b", '"quoted"', "two\nlines", "x" * 10_000, "Zoë", "", "7"]


def of(named: Named, kinds: Sequence[str], names: Mapping[str, Sequence[Any]]) -> NamedRows:
    places = {kind: {str(name): row for row, name in enumerate(values)} for kind, values in names.items()}
    rows = [[places[kind][name] for kind, name in zip(kinds, row, strict=True)] for row in named]
    return NamedRows.of(kinds, names, np.array(rows, np.int32).reshape(-1, len(kinds)), np.array([*named.values()]))


def named(known: NamedRows) -> Named:
    rows = ([str(known.names[kind][n]) for kind, n in zip(known.kinds, row, strict=True)] for row in known.rows)
    return dict(zip(map(tuple, rows), known.held_out.tolist(), strict=True))


@pytest.mark.parametrize("largest", [known_rows.LARGEST, 100])
@pytest.mark.parametrize("kinds", [PAIRS, ("entities", "relations", "entities")])
def test_rows_of_many_runs_are_those_of_plain_sets_also_where_names_go_and_come_again(
    kinds: tuple[str, ...], largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_rows, "LARGEST", largest)  # beyond it a row's key is its place among all rows
    rng = random.Random(len(kinds))
    every = [*ODD, *range(30)]
    for life in range(15):
        wanted: Named = {}
        known: NamedRows | None = None
        for month in range(4):
            names = {kind: rng.sample(every, rng.randint(2, 25)) for kind in {*kinds}}
            drawn = [tuple(str(rng.choice(names[kind])) for kind in kinds) for _ in range(rng.randint(1, 60))]
            rows = {row: rng.random() < 0.4 for row in drawn}
            own = of(rows, kinds, names)
            known = own if known is None else own.joined(known)
            for row, is_held in rows.items():
                wanted[row] = is_held and wanted.get(row, True)
            assert named(known) == wanted and len(known.rows) == len(wanted)
            folder = tmp_path / f"{life}-{month}"
            folder.mkdir()
            (folder / KNOWN).write_bytes(known.content())
            known = NamedRows.read(folder, json.loads(json.dumps({"names": names})))
            assert known is not None and named(known) == wanted
            assert known.sizes == {kind: len(values) for kind, values in names.items()}
            assert named(known.trained()) == {row: False for row, is_held in wanted.items() if not is_held}


def content(**changed: Any) -> bytes:
    names = {"users": ["ann", "bob"], "items": ["film", "song"]}
    with np.load(io.BytesIO(of({("ann", "song"): False, ("bob", "film"): True}, PAIRS, names).content())) as found:
        arrays = {**found, **changed}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def about(**changed: Any) -> np.ndarray:
    with np.load(io.BytesIO(content())) as found:
        return np.frombuffer(json.dumps(json.loads(found["about"].tobytes()) | changed).encode(), np.uint8)


DAMAGED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "truncated": lambda: content()[:-100],
    "another byte": lambda: content().replace(b'"kinds"', b'"kindz"', 1),
    "text": lambda: b"ann,song\n",
    "an object": lambda: content(first=np.array([{}], object)),
    "numbers without a name": lambda: content(others=np.array([[1], [2]], np.int32)),
    "negative": lambda: content(others=np.array([[1], [-1]], np.int32)),
    "too few": lambda: content(others=np.array([[1]], np.int32)),
    "falling": lambda: content(first=np.array([0, 3, 2])),
    "of something else": lambda: content(about=about(kinds=["words"])),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_is_refused_by_name(how: str, tmp_path: Path) -> None:
    (tmp_path / KNOWN).write_bytes(DAMAGED[how]())
    with pytest.raises(HogwildError, match=KNOWN) as refused:
        NamedRows.read(tmp_path, {"names": {"users": ["ann", "bob"], "items": ["film", "song"]}})
    assert refused.value.code in ("run/unreadable", "model/init-names")


def test_the_file_of_other_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / KNOWN).write_bytes(content())
    assert NamedRows.read(tmp_path, {"names": {"users": ["ann", "bob"], "items": ["film", "song"]}}) is not None
    with pytest.raises(HogwildError, match="does not belong to the names beside it") as refused:
        NamedRows.read(tmp_path, {"names": {"users": ["bob", "ann"], "items": ["film", "song"]}})
    assert refused.value.code == "model/init-names"
