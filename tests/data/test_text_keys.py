"""Keys of many texts at once are those of each by itself, and what is read in one go is what Python's parsers read."""

import csv
import io
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

import pyarrow

from hogwild.data import Follow, followed_file, key_of, text_keys
from hogwild.data.ids import digest_of
from hogwild.data.text_keys import NAMES, UNSURE, KnownKeys, NameFile, names_of
from hogwild.data.text_parsing import Format
from hogwild.errors import DataError
from hogwild.feeds.waiting import set_pause

ODD = (
    "", " ", "7", "7.0", "007", "0", "-7", "-7.00", "9223372036854775807", "9223372036854775808", "1" * 20, "٣",
    "1.50", "true", "TRUE", "FaLse", "tree", "\u3000ja", "ja\u2009", "\xa0a", "a\x85", "a\x1c", "ünal", " ünal\t",
    "。", "日本。", "x" * 120, "x" * 127, "x" * 128, "x" * 129, "é" * 64, "y" * 300, 'a "b"', "a,b", "#x", "# x", "NA",
    "a=b", "ann", "bob",
)  # fmt: skip
texts = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)


def keys_of(found: list[str], prefix: str = "", size: int = 0, *, is_utf8: bool = True) -> tuple[list[int], list[int]]:
    keys, checks = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    content = text_keys._content(pyarrow.array(found, pyarrow.string()))
    assert content is not None
    text_keys._kernels().keys_of(*content, np.frombuffer(prefix.encode(), np.uint8), size, is_utf8, keys, checks)
    return keys.tolist(), checks.tolist()


@given(st.lists(texts, max_size=20), st.sampled_from(["", "site=", "p" * 127]))
@example([*ODD], "")
@example([*ODD], "site=")
def test_a_text_has_the_key_and_the_check_that_it_has_by_itself(found: list[str], prefix: str) -> None:
    for text, key, check in zip(found, *keys_of(found, prefix), strict=True):
        if key != UNSURE:
            assert key == key_of(prefix + text)
            assert key >= 0 or check == zlib.crc32((prefix + text).encode())
            assert text.strip() == text != ""
    hashed, _ = keys_of(found, prefix, 1000)
    assert all(key in (UNSURE, digest_of(prefix + text) % 1000) for text, key in zip(found, hashed, strict=True))


def test_only_what_may_have_another_spelling_is_left_to_the_rules() -> None:
    sure = ["ann", "7", "007", "日本", "x" * 300, "treat", "10", "a.b", "ünal", "9" * 19]
    unsure = ["", " a", "a ", "\u3000a", "a\u3000", "a\xa0", "7.0", "true", "False"]
    assert [key == UNSURE for key in keys_of(sure + unsure)[0]] == [False] * len(sure) + [True] * len(unsure)
    assert UNSURE in keys_of(["ünal"], is_utf8=False)[0]  # may be no text of its encoding


@given(st.lists(st.lists(st.integers(-(2**63), -2) | st.integers(-60, -2), unique=True, max_size=300), max_size=8))
def test_keys_are_known_once_they_are_added(blocks: list[list[int]]) -> None:
    known, checks = KnownKeys(), dict[int, int]()
    for number, block in enumerate(blocks):
        keys = np.array(block, np.int64)
        is_known, found = known.find(keys)
        assert is_known.tolist() == [key in checks for key in block]
        assert found[is_known].tolist() == [checks[key] for key in block if key in checks]
        new = keys[~is_known]
        known.add(new, np.full(len(new), number))
        checks |= dict.fromkeys(new.tolist(), number)
    keys = np.array([*checks], np.int64)
    is_known, found = known.find(keys)
    assert is_known.all() and found.tolist() == [*checks.values()]


def test_of_two_names_of_one_key_that_come_together_one_is_kept_and_the_other_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = NameFile(tmp_path / NAMES)
    names = ["ann", "bob", "cy", "ann"]
    checks = np.array([zlib.crc32(name.encode()) for name in names])
    for _ in range(2):
        file.note_all(np.array([-5, -5, -6, -5]), checks, names.__getitem__)
        file.flush()
    assert names_of(tmp_path) == {-5: "ann", -6: "cy"}
    assert caplog.text.count("shares its key") == 1 and "'bob' shares its key -5" in caplog.text


numbers = st.sampled_from(["1", "0", "1.5", "-2e3", "", "NA", "1e999", "inf", "true", "x", " 2", "1_0", "+4", ".5"])
sound = st.sampled_from(["1", "0", "2.5"])


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A CSV file, nearly right."""
    is_odd = draw(st.booleans())
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = ["user,site,price,click"]
    for _ in range(draw(st.integers(0, 12))):
        text = io.StringIO()
        values = [draw(texts), draw(texts), *(draw(numbers if is_odd else sound) for _ in range(2))]
        csv.writer(text, lineterminator="").writerow(value.replace("\n", "") for value in values)
        lines.append(text.getvalue())
        if is_odd:
            lines.append(draw(st.sampled_from(["", "", "\r", "\r\r", " ", "a,b", 'a"b,c,1,0', '"a', "# no", lines[0]])))
    content = (line_end.join(lines) + draw(st.sampled_from(["", line_end]))).encode()
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content + draw(st.sampled_from([b"", b"\xff,s,1,1\n"]))


@given(
    tables(), st.sampled_from([30, 1 << 20]), st.sampled_from(["fail", "drop", 0.0]), st.sampled_from(["fail", "skip"]),
    st.sampled_from([None, 50]),
)  # fmt: skip
def test_rows_names_and_errors_are_those_of_reading_value_by_value(
    content: bytes, block: int, missing: Any, on_bad_line: Any, hash: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(followed_file, "BLOCK", block)
        path = Path(folder, "clicks")
        path.write_bytes(content)

        def read() -> tuple[list[Any], list[Any], str, list[str]]:
            given: dict[str, Any] = {"inputs": ["price"], "ids": ["user"], "features": ["site"], "hash": hash}
            data = Follow(path, "click", until="end", missing=missing, on_bad_line=on_bad_line, **given)
            data.run_dir_of_job = folder
            rows, states, error = list[Any](), list[Any](), ""
            reader = iter(data)
            try:
                for record in reader:
                    rows.append([np.asarray(field).tolist() for field in record])
                    states.append(reader.state_dict())
            except DataError as why:
                error = str(why)
            names = Path(folder, NAMES)
            lines = names.read_text().split("\n") if names.exists() else []
            names.unlink(missing_ok=True)
            return rows, states, error, sorted(lines)

        quick = read()
        patch.setattr(text_keys, "_kernels", lambda: None)
        patch.setattr(Format, "columns", lambda *_: None)
        assert quick == read()


def test_lines_that_cannot_be_used_do_not_part_the_others(tmp_path: Path) -> None:
    lines = [f"u{number},{number % 2}" for number in range(1000)]
    lines[17], lines[18], lines[900] = "u17", "u18,x", '"u900,1'
    path = tmp_path / "clicks"
    path.write_text("\n".join(["user,click", *lines, ""]))
    reader = iter(Follow(path, "click", ids=["user"], until="end", on_bad_line="skip"))
    found = reader.next_columns(2000)
    assert found is not None and len(found) == 997
    assert found.fields[0].tolist() == [key_of(f"u{number}") for number in range(1000) if number not in (17, 18, 900)]
    assert reader.state_dict()["line"] == 1001


def test_a_block_of_bad_lines_does_not_look_stalled(tmp_path: Path) -> None:
    path, pauses = tmp_path / "clicks", list[float]()
    path.write_text("user,click\n" + "ann\n" * 600 + "bob,1\n")
    set_pause(pauses.append)
    try:
        assert len([*Follow(path, "click", ids=["user"], until="end", on_bad_line="skip")]) == 1
    finally:
        set_pause(None)
    assert pauses == [0, 0]
