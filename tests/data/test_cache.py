"""The cache of what was read in: kept, found again, never believed when damaged, never in the way."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hogwild.data import cache as cache_module
from hogwild.data.cache import DATA, FORMAT, HASHES, CachedField, DatasetCache
from hogwild.storage.published_folder import MANIFEST, STALE_S, seal

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.arange(6, dtype=np.int64)
SPECS = (CachedField("float32", (6, 4)), CachedField("int64", (6,)))
PRINT = "ab" * 32


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> DatasetCache:
    return DatasetCache(tmp_path, keep=3, say=said.append)


def read(cache: DatasetCache, fingerprint: str = PRINT) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the cached arrays, through buffers that were something else before."""
    entry = cache.load(fingerprint)
    if entry is None:
        return None
    assert entry.specs == SPECS
    x, y = np.full_like(X, 7), np.full_like(Y, 7)
    return (x, y) if entry.read_into([memoryview(x), y]) else None


def entries(cache: DatasetCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir())


def test_what_was_stored_is_read_into_the_callers_memory(cache: DatasetCache, said: list[str], tmp_path: Path) -> None:
    assert cache.load(PRINT) is None
    assert cache.store(PRINT, SPECS, [X, memoryview(Y)])
    found = read(DatasetCache(tmp_path))
    assert found is not None and np.array_equal(found[0], X) and np.array_equal(found[1], Y)
    assert entries(cache) == [PRINT] and said == []
    assert cache.load("cd" * 32) is None


def test_fields_without_values_and_single_numbers_are_kept(cache: DatasetCache) -> None:
    specs = (CachedField("uint8", (3, 0)), CachedField("float64", ()))
    assert cache.store(PRINT, specs, [np.empty((3, 0), np.uint8), np.array(2.5)])
    entry = cache.load(PRINT)
    value = np.array(0.0)
    assert entry is not None and entry.read_into([np.empty((3, 0), np.uint8), value]) and value == 2.5


def cut(folder: Path) -> None:
    os.truncate(folder / DATA, 100)


def flip(folder: Path) -> None:
    raw = bytearray((folder / DATA).read_bytes())
    raw[60] ^= 1
    (folder / DATA).write_bytes(raw)


def rewrite(**changes: Any) -> Callable[[Path], Any]:
    """A manifest whose own hash is right."""

    def write(folder: Path) -> None:
        content = json.loads((folder / MANIFEST).read_text())
        content.pop("seal")
        (folder / MANIFEST).write_bytes(seal({**content, **changes}))

    return write


ODD = [{"dtype": "float33", "shape": [6, 4]}, {"dtype": "int64", "shape": [6]}]
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (cut, "holds 100 bytes, the manifest promises 144"),
    "a flipped bit": (flip, "data.bin is damaged"),
    "no data": (lambda folder: (folder / DATA).unlink(), "No such file"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "there is no manifest.json"),
    "half a manifest": (lambda folder: (folder / MANIFEST).write_text('{"format": 1, "fie'), "damaged manifest.json"),
    "no hash of its own": (
        lambda folder: (folder / MANIFEST).write_text(f'{{"format": {FORMAT}}}'),
        "damaged manifest",
    ),
    "no fields": (rewrite(fields=None), "damaged manifest.json"),
    "an unknown type": (rewrite(fields=ODD), "damaged manifest.json"),
    "another format": (lambda folder: (folder / MANIFEST).write_text('{"format": 1}'), "format 1, this version"),
}


@pytest.mark.parametrize("crime", DAMAGE)
def test_a_damaged_entry_is_removed_said_and_made_again(cache: DatasetCache, said: list[str], crime: str) -> None:
    damage, words = DAMAGE[crime]
    assert cache.store(PRINT, SPECS, [X, Y])
    damage(cache.folder / PRINT)
    entry = cache.load(PRINT)
    if entry is not None:
        assert not entry.read_into([np.empty_like(X), np.empty_like(Y)])
    assert entries(cache) == [] and len(said) == 1
    assert words in said[0] and str(cache.folder / PRINT) in said[0] and "the original files are read" in said[0]
    assert cache.store(PRINT, SPECS, [X, Y]) and read(cache) is not None


def test_an_entry_that_is_cut_after_it_was_found_is_noticed(cache: DatasetCache, said: list[str]) -> None:
    assert cache.store(PRINT, SPECS, [X, Y])
    entry = cache.load(PRINT)
    cut(cache.folder / PRINT)
    assert entry is not None and not entry.read_into([np.empty_like(X), np.empty_like(Y)])
    assert entries(cache) == [] and "data.bin is damaged or truncated" in said[0]


def test_a_disk_without_room_is_a_word_and_no_error(
    cache: DatasetCache, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hogwild.data.cache.FREE_SHARE", 0.0)
    assert not cache.store(PRINT, SPECS, [X, Y])
    assert "more than half of the free disk space" in said[0] and entries(cache) == []


def test_a_folder_that_cannot_be_made_is_a_word_and_no_error(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "runs").write_text("a file where the runs should be")
    cache = DatasetCache(tmp_path / "runs", say=said.append)
    assert cache.load(PRINT) is None
    assert not cache.store(PRINT, SPECS, [X, Y])
    assert all("runs" in sentence for sentence in said) and said


def test_only_the_entries_that_were_used_last_are_kept(cache: DatasetCache) -> None:
    names = [f"{number:08x}" for number in range(5)]
    for age, name in enumerate(names[:3]):
        assert cache.store(name, SPECS, [X, Y])
        os.utime(cache.folder / name, (1000 + age, 1000 + age))
    assert cache.load(names[0]) is not None  # used: the youngest now
    assert cache.store(names[3], SPECS, [X, Y])
    assert entries(cache) == [names[0], names[2], names[3]]


def test_an_entry_that_goes_while_it_is_read_is_read_to_its_end(
    cache: DatasetCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job prunes: what is open stays."""
    assert cache.store(PRINT, SPECS, [X, Y])
    entry = cache.load(PRINT)
    assert entry is not None
    filled = cache_module._filled

    def prune_first(*arguments: Any) -> memoryview:
        cache.reject(cache.folder / PRINT, "pruned")
        return filled(*arguments)

    monkeypatch.setattr(cache_module, "_filled", prune_first)
    assert entry.read_into([np.empty_like(X), np.empty_like(Y)])


def test_what_a_killed_writer_left_is_removed_a_day_later(cache: DatasetCache) -> None:
    for name, age in ((".tmp-old-1", 2 * STALE_S), (".tmp-new-2", 60)):
        (cache.folder / name).mkdir(parents=True)
        now = (cache.folder / name).stat().st_mtime
        os.utime(cache.folder / name, (now - age, now - age))
    assert cache.store(PRINT, SPECS, [X, Y])
    assert entries(cache) == [".tmp-new-2", PRINT]


def test_types_that_cannot_be_kept_are_a_word(cache: DatasetCache, said: list[str]) -> None:
    assert not cache.store(PRINT, [CachedField("float8_e4m3fn", (6,))], [np.zeros(6, np.uint8)])
    assert "float8_e4m3fn" in said[0]


def test_buffers_of_another_size_and_odd_fingerprints_are_our_own_mistakes(cache: DatasetCache) -> None:
    with pytest.raises(ValueError, match="has 96 bytes, the buffer 48"):
        cache.store(PRINT, SPECS, [X[:3], Y])
    for odd in ("", "../" + PRINT, "AB" * 32, "ab"):
        with pytest.raises(ValueError, match="fingerprint"):
            cache.load(odd)


def test_a_manifest_that_cannot_be_read_now_is_a_word_and_the_entry_stays(
    cache: DatasetCache, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.store(PRINT, SPECS, [X, Y])

    def too_many(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_many)
        assert cache.load(PRINT) is None
    assert "Too many open files" in said[0] and entries(cache) == [PRINT] and read(cache) is not None


# ---- hashes of files ------------------------------------------------------------------------------------------------


def asked(cache: DatasetCache, file: Path) -> tuple[str, bool]:
    """The hash of a file, and whether it was computed."""
    computed: list[str] = []

    def compute() -> str:
        computed.append(f"of {file.read_text()}")
        return computed[-1]

    return cache.hash_of(file, compute), bool(computed)


def test_an_unchanged_file_is_hashed_once(cache: DatasetCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data.txt"
    file.write_text("one")
    assert asked(cache, file) == asked(cache, file) == ("of one", True)  # it was changed a moment ago
    monkeypatch.setattr(cache_module, "UNSURE_S", 0.0)
    assert [asked(cache, file) for _ in range(2)] == [("of one", True), ("of one", False)]
    assert asked(DatasetCache(tmp_path), file) == ("of one", False)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text("two")
    os.utime(file, ns=times)  # size and time as before, but not the time of change
    assert [asked(cache, file) for _ in range(2)] == [("of two", True), ("of two", False)]
    other = tmp_path / "other.txt"
    other.write_text("new")
    other.replace(file)
    assert asked(cache, file) == ("of new", True)


@pytest.mark.parametrize("content", ["", "[]", '{"/x": 1}', "{", '{"FILE": []}', '{"FILE": ["of it"]}', "\0"])
def test_damaged_hashes_are_no_hashes(cache: DatasetCache, tmp_path: Path, content: str) -> None:
    file = tmp_path / "data.txt"
    file.write_text("one")
    cache.folder.mkdir()
    (cache.folder / HASHES).write_text(content.replace("FILE", str(file)))
    assert asked(cache, file) == ("of one", True)


def test_only_the_newest_hashes_are_kept(cache: DatasetCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "UNSURE_S", 0.0)
    monkeypatch.setattr(cache_module, "MOST_HASHES", 2)
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for file in files:
        file.write_text(file.name)
        asked(cache, file)
    assert [asked(cache, file)[1] for file in (files[2], files[1], files[0])] == [False, False, True]
