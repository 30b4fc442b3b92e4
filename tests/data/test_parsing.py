"""Texts on their way into packed arrays: in pieces, by threads, through the cache, and what becomes of it when a file
changes, or the cache is damaged."""

import gzip
import io
import os
import socket
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hogwild.config.load import Job as Config
from hogwild.config.load import job_from_mapping
from hogwild.data import LibSvm, Ratings, cache, packed_cache, text_file
from hogwild.data.cache import DATA, DatasetCache
from hogwild.data.text_file import TextFile, TextStream
from hogwild.data.text_parsing import Parsed, in_threads
from hogwild.errors import DataError, MemoryShortError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.host import Memory
from hogwild.workers.loading.loading import Loading
from hogwild.workers.processes.group import KeptEvents, ProcessGroup
from tests.helpers.processes import PATIENCE_S
from tests.helpers.reading import Said
from tests.helpers.run_status import no_start_up

ROWS = "".join(f"{n % 2} {1 + n % 7}:{n} {8 + n % 5}:1\n" for n in range(600))


def config(**supervise: float) -> Config:
    limits = {"start_timeout_s": PATIENCE_S, "stall_timeout_s": PATIENCE_S, **supervise}
    model, data = {"class_path": "torch.nn.Linear"}, {"train": {"class_path": "x.Y"}}
    return job_from_mapping({"version": 1, "seed": 3, "model": model, "data": data, "supervise": limits}, "test")


def same(one: Packed, other: Packed) -> bool:
    mine, theirs = one.arrays(), other.arrays()
    return [*mine] == [*theirs] and one.spec.sizes == other.spec.sizes and all(
        np.array_equal(mine[name], theirs[name]) and mine[name].dtype == theirs[name].dtype for name in mine
    )  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.svm"
    path.write_text(ROWS)
    return path


@pytest.fixture
def nobody() -> ProcessGroup:
    return ProcessGroup(config().supervise)


# ---- pieces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_pieces_are_whole_lines_that_cover_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(text_file, "LINES", piece)
    text = b"one\n\n" + b"long" * 50 + b"\nlast, without an end"
    for content in (text, gzip.compress(text), zipped(text)):
        (tmp_path / "text").write_bytes(content)
        pieces = [*TextFile(tmp_path / "text").lines()]
        assert b"".join(pieces) == text and all(one.endswith(b"\n") for one in pieces[:-1])
        assert len(pieces) > 1 or piece > 100
        assert b"".join(TextFile(tmp_path / "text").lines(4)) == text[4:]


def zipped(content: bytes) -> bytes:
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("text", content)
        return out.getvalue()


def test_a_file_that_becomes_shorter_or_another_one_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "LINES", 10)
    text = TextFile(file)
    lines = text.lines()
    next(lines)
    os.truncate(file, 100)
    with pytest.raises(DataError, match="was changed") as error:
        list(lines)
    assert error.value.code == "data/file-changed"
    text.close()
    with pytest.raises(DataError, match="was changed"):
        list(text.lines())


def test_what_is_parsed_must_fit_into_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hogwild.data.text_parsing.host.available_memory", lambda: Memory(1000, "a test"))
    with pytest.raises(MemoryShortError, match=r"data.train: .* are parsed .* but only 1\.0 KiB are free \(a test\)"):
        LibSvm(file).pack(InTurn(0))


def test_without_numba_the_error_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(UsageError, match=r"pip install 'hogwild\[sparse\]'") as error:
        LibSvm(file)
    assert error.value.code == "usage/missing-extra"
    file.write_text("3,4,1\n5,6,2\n")
    assert Ratings(file).pack(InTurn(0)).samples == 2, "a table needs only pyarrow"


@pytest.mark.slow
def test_nothing_is_written_past_the_places_a_piece_was_given() -> None:
    """As if a piece held more than was counted."""
    from hogwild.kernels.libsvm import FOUND, OVERFLOW, parse

    found, ids, floats = np.zeros((2, FOUND), np.int64), np.full((2, 9), 77, np.int32), np.full((4, 9), 77, np.float32)
    longs, svm = np.full((2, 9), 77), np.frombuffer(b"1 1:1 2:1\n1 3:1 4:1\n1\n", np.uint8)
    parse(svm, 0, 9, False, longs[0, :3], ids[0, :3], floats[0, :3], floats[1, :3], found[0])
    parse(svm, 0, 9, False, longs[1, :1], ids[1], floats[2], floats[3, :1], found[1])
    assert (found[:, OVERFLOW] == 1).all()
    assert (ids[0, 3:] == 77).all() and (floats[:2, 3:] == 77).all() and (longs[0, 3:] == 77).all()
    assert (longs[1, 1:] == 77).all() and (floats[3, 1:] == 77).all()


# ---- by threads -----------------------------------------------------------------------------------------------------


def test_what_threads_parse_is_what_is_parsed_at_once(
    file: Path, nobody: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = LibSvm(file).pack(InTurn(0))
    monkeypatch.setattr(text_file, "LINES", 700)
    for content in (ROWS.encode(), gzip.compress(ROWS.encode())):
        file.write_bytes(content)
        nobody.sink = KeptEvents()
        assert same(LibSvm(file).pack(Loading(nobody, config(), None, no_start_up())), expected)
        (event,) = Said(nobody).events
        assert (event["samples"], event["readers"], event["deaths"], event["cached"]) == (600, 0, 0, False)
    file.write_text(ROWS + "1 2:x\n" * 200)
    with pytest.raises(DataError, match="line 601: '2:x'"):
        LibSvm(file).pack(Loading(nobody, config(), None, no_start_up()))


def test_what_two_parts_of_one_file_mean_is_said_once(tmp_path: Path, nobody: ProcessGroup) -> None:
    table = tmp_path / "ratings.csv"
    table.write_text("userId,movieId,rating\n" + "".join(f"{user},{item},3\n" for user in "12345" for item in "6789"))
    loading, nobody.sink = Loading(nobody, config(), None, no_start_up()), KeptEvents()
    train, _ = (
        Ratings(table, holdout={"fraction": 0.3, "part": part}).pack(loading, what, None, "skip")
        for part, what in (("train", "data.train"), ("test", "data.val"))
    )
    assert 0 < train.samples < 20
    (said,) = [line for line in Said(nobody).sentences if "columns:" in line]
    assert said.startswith("data.train: ")


def test_an_error_is_that_of_the_first_piece_and_nothing_goes_on_behind_it() -> None:
    began: list[int] = []

    def parse(number: int) -> int:
        began.append(number)
        if number >= 5:
            raise ValueError(str(number))
        return number * number

    results = in_threads(parse, range(10_000))
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    with pytest.raises(ValueError, match=r"^5$"):
        next(results)
    assert len(began) < 200 and not [one for one in threading.enumerate() if one.name.startswith("parse")]


# ---- the cache ------------------------------------------------------------------------------------------------------


def load(dataset: Any, runs: Path, nobody: ProcessGroup, like: Packed | None = None) -> tuple[Packed, Said]:
    nobody.sink = KeptEvents()
    loading = Loading(nobody, config(), runs, no_start_up())
    return dataset.pack(loading, "data.train", like, "skip"), Said(nobody)


def test_the_next_job_maps_what_this_one_parsed(
    file: Path, tmp_path: Path, nobody: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "UNSURE_S", 0.0)  # the file may be as new as it is
    file.write_text(ROWS + "what is this\n")
    first, said = load(LibSvm(file, normalise="l2"), tmp_path, nobody)
    assert not said.events[0]["cached"] and said.events[0]["left_out"] == {"bad lines": 1}
    monkeypatch.setattr(TextFile, "lines", None)  # nothing is parsed any more, and only the head is read
    monkeypatch.setattr(TextFile, "hash_into", None)
    dataset = LibSvm(file, normalise="l2")
    second, said = load(dataset, tmp_path, nobody)
    assert same(first, second) and dict(second.names)["first"].tolist() == [1]
    assert os.readlink(f"/proc/self/fd/{second.region.descriptor}").endswith(f"/{DATA}")
    assert said.events[0]["cached"] and dataset.left_out == {"bad lines": 1}
    assert any("mapped from the cache" in one for one in said.sentences)
    assert any("1 lines cannot be parsed and are left out" in one for one in said.sentences)


@pytest.mark.slow
def test_another_content_other_options_or_other_training_data_is_another_entry(file: Path) -> None:
    file.write_text("3,4,1\n5,6,2\n")
    train, keys = Ratings(file).pack(InTurn(0)), []
    file.write_text("3,4,1\n5,7,2\n")
    other = Ratings(file).pack(InTurn(0))

    class Asks:
        def pack(self, parsing: Any) -> Parsed:
            keys.append(parsing.key())
            return Parsed(train)

    asked: tuple[tuple[Packed | None, str, dict[str, Any]], ...] = (
        (None, "fail", {}), (train, "fail", {}), (other, "fail", {}), (None, "skip", {}),
        (None, "fail", {"duplicates": "keep"}),
    )  # fmt: skip
    for like, policy, options in asked:
        Ratings(file, **options).pack(Asks(), "data.train", like, policy)
    file.write_text("3,4,1\n5,7,3\n")
    Ratings(file).pack(Asks())
    assert len({*keys}) == len(keys) == 6


@pytest.mark.slow
def test_names_are_kept_words_and_numbers(file: Path, tmp_path: Path, nobody: ProcessGroup) -> None:
    file.write_text("zé,4,1\nal,6,2\nal,40,5\n")
    first, _ = load(Ratings(file), tmp_path, nobody)
    second, said = load(Ratings(file), tmp_path, nobody)
    assert said.events[0]["cached"] and same(first, second)
    assert [*second.names["users"]] == ["al", "zé"] and [*second.names["items"]] == [4, 6, 40]
    val, said = load(Ratings(file), tmp_path, nobody, second)
    assert not said.events[0]["cached"] and same(val, first)


@pytest.mark.parametrize("at", [0, 9000, -200, -1])
def test_a_damaged_entry_is_removed_and_the_file_parsed_again(
    file: Path, tmp_path: Path, nobody: ProcessGroup, at: int
) -> None:
    first, _ = load(LibSvm(file), tmp_path, nobody)
    (data,) = tmp_path.glob(f".cache/*/{DATA}")
    content = bytearray(data.read_bytes())
    content[at] ^= 1
    data.write_bytes(content)
    second, said = load(LibSvm(file), tmp_path, nobody)
    assert same(first, second) and not said.events[0]["cached"]
    assert any("is damaged or truncated; it is removed" in one for one in said.sentences)
    assert load(LibSvm(file), tmp_path, nobody)[1].events[0]["cached"]


def csr(**changes: Any) -> Packed:
    arrays: dict[str, Any] = {
        "indptr": np.array([0, 1, 3]), "indices": np.array([0, 1, 2], np.int32),
        "values": np.ones(3, np.float32), "target": np.array([0, 1]),
    }  # fmt: skip
    return Packed.of("csr", "csr", arrays | changes, {"features": 3, "classes": 2})


def table(**changes: Any) -> Packed:
    arrays: dict[str, Any] = {
        "user": np.array([0, 1], np.int32), "item": np.array([3, 0], np.int32), "rating": np.ones(2, np.float32),
    }  # fmt: skip
    return Packed.of("table", "table", arrays | changes, {"users": 2, "items": 4})


def triples(*rows: tuple[int, int, int]) -> Packed:
    arrays = {"triple": np.array(rows, np.int32), "weight": np.ones(len(rows), np.float32)}
    return Packed.of("triples", "table", arrays, {"entities": 3, "relations": 2})


def text(tokens: list[int], starts: list[int]) -> Packed:
    arrays = {"tokens": np.array(tokens, np.int32), "starts": np.array(starts)}
    return Packed.of("text", "tokens", arrays, {"words": 5})


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (csr(), ""),
        (csr(indices=np.array([0, 3, 2], np.int32)), "indices holds 3; there are 3 features"),
        (csr(indices=np.array([0, -1, 2], np.int32)), "indices holds -1"),
        (csr(indptr=np.array([0, 4, 3])), "indptr falls"),
        (csr(indptr=np.array([0, 1, 4])), "indptr does not go from 0 to 3"),
        (csr(indptr=np.array([1, 1, 3])), "indptr does not go from 0"),
        (csr(indptr=np.array([0, 3])), "indptr has 2 rows, there are 2 samples"),
        (csr(values=np.ones(2, np.float32)), "not as many values as indices"),
        (csr(target=np.array([0, 2])), "target holds 2; there are 2 classes"),
        (table(), ""),
        (table(user=np.array([0, 2], np.int32)), "user holds 2; there are 2 users"),
        (table(item=np.array([-4, 2], np.int32)), "item holds -4"),
        (table(item=np.array([1], np.int32)), "item has 1 rows, there are 2 samples"),
        (triples((2, 1, 0)), ""),
        (triples((2, 1, 0), (3, 0, 0)), "triple holds 3; there are 3 entities"),
        (triples((2, 2, 0)), "triple holds 2; there are 2 relations"),
        (triples((2, 1, -7)), "triple holds -7"),
        (text([0, 4, 1], [0, 2, 3]), ""),
        (text([0, 5, 1], [0, 2, 3]), "tokens holds 5; there are 5 words"),
        (text([0, 4, 1], [0, 2, 4]), "starts does not go from 0 to 3"),
        (text([0, 4, 1], [0, 2, 1, 3]), "starts falls"),
    ],
)
def test_arrays_that_point_outside_are_refused_when_they_are_loaded(packed: Packed, words: str, tmp_path: Path) -> None:
    """With right checksums: whoever wrote them."""
    said: list[str] = []
    cache = DatasetCache(tmp_path, say=said.append)
    assert packed_cache.store(cache, "ab" * 8, Parsed(packed))
    found = packed_cache.load(cache, "ab" * 8)
    assert (found is not None) == (words == "") and (words in " ".join(said))
    if found is not None:
        assert same(found.packed, packed)


def test_what_does_not_fit_into_memory_is_mapped_without_being_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, packed = DatasetCache(tmp_path), table()
    assert packed_cache.store(cache, "ab" * 8, Parsed(packed))
    monkeypatch.setattr("hogwild.data.cache.Entry.matches", None)
    monkeypatch.setattr("hogwild.data.packed_cache.host.available_memory", lambda: Memory(10, "a test"))
    found = packed_cache.load(cache, "ab" * 8)
    assert found is not None and same(found.packed, packed)


def test_a_cache_that_cannot_be_mapped_is_no_obstacle(
    file: Path, tmp_path: Path, nobody: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = load(LibSvm(file), tmp_path, nobody)
    (data,) = tmp_path.glob(f".cache/*/{DATA}")
    real = os.open
    monkeypatch.setattr(
        packed_cache.os, "open", lambda path, *rest: real(tmp_path / "nowhere" if path == data else path, *rest)
    )
    second, said = load(LibSvm(file), tmp_path, nobody)
    assert same(first, second) and any("cannot be mapped (No such file or directory)" in one for one in said.sentences)


@pytest.mark.parametrize(
    ("parts", "skip_lines", "header", "begin", "records"),
    [
        ((b"a,", b"b\n", b"1,2"), 0, b"a,b\n", 4, [(b"1,2", 1, 2)]),
        ((b"# one", b"\n\n", b'"a\nx"', b",b\n1,2\n3,", b"4\n"), 1, b'# one\n\n"a\nx",b\n1,2\n3,', 15,
         [(b"1,2\n", 1, 5), (b"3,4\n", 1, 6)]),
        ((b"a\n1\n\n2\n", b"\n3\n"), 0, b"a\n1\n\n2\n", 2, [(b"1\n\n2\n", 2, 2), (b"\n3\n", 1, 5)]),
        ((b"a",), 0, b"a", 1, []),
    ],
)  # fmt: skip
def test_a_stream_waits_for_its_header_and_gives_whole_records(
    parts: tuple[bytes, ...], skip_lines: int, header: bytes, begin: int, records: list[tuple[bytes, int, int]]
) -> None:
    """A read returns one part, as from a pipe into which another program writes now and then."""
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with writer, reader:
        for part in parts:
            writer.send(part)
        writer.close()
        stream = TextStream(Path("stream"), reader.fileno())
        stream.wait_for_header(skip_lines)
        assert stream.read_at(0, 100) == header
        line = 1 + header[:begin].count(b"\n")
        assert [*stream.records(begin, line)] == records
