"""libsvm files as packed rows: against scikit-learn's reader, in their order, with the training data's numbers, and
what is said of lines that cannot be used."""

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from hogwild.data import LibSvm, libsvm, text_file
from hogwild.data.libsvm import PIECE
from hogwild.data.text_file import TextFile
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.inference.inputs import SparseLines
from hogwild.job.row_names import KnownNames

GOOD = "1 1:1 3:2\n-1 2:0.5 3:-1e-1 4:3\n1 3:7\n"


def packed(
    path: Path, text: str | bytes, like: Packed | None = None, on_bad_line: str = "fail", **options: Any
) -> Packed:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return LibSvm(path, **options).pack(InTurn(0), "data.train", like, on_bad_line)


def rows(data: Packed) -> list[dict[int, float]]:
    arrays = data.arrays()
    ends = arrays["indptr"]
    return [
        {int(i): float(v) for i, v in zip(arrays["indices"][a:b], arrays["values"][a:b], strict=True)}
        for a, b in pairwise(ends)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.svm"


@pytest.mark.slow
def test_a_random_file_is_what_scikit_learn_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of a few rows, rows of any length, some empty; each row most frequent feature first."""
    monkeypatch.setattr(text_file, "LINES", 3000)
    random = np.random.default_rng(3)
    density = random.random((1, 200)) ** 3
    table = scipy.sparse.csr_matrix(np.where(random.random((300, 200)) < density, random.normal(size=(300, 200)), 0))
    dump_svmlight_file(table, random.normal(size=300), str(file), zero_based=False)
    theirs, labels = load_svmlight_file(str(file), n_features=200, zero_based=False)
    data = LibSvm(file, features=200).pack(InTurn(0))
    arrays, counts = data.arrays(), np.diff(theirs.tocsc().indptr)
    assert data.spec.sizes == {"features": 200}
    assert np.array_equal(arrays["target"], labels.astype(np.float32))
    ours = scipy.sparse.csr_matrix((arrays["values"], arrays["indices"], arrays["indptr"]), (300, 200))
    assert (abs(ours - theirs.astype(np.float32)) > 0).nnz == 0
    for begin, end in zip(arrays["indptr"][:-1], arrays["indptr"][1:], strict=True):
        row = arrays["indices"][begin:end]
        assert np.array_equal(row, row[np.lexsort((row, -counts[row]))])


def test_indices_begin_with_one_unless_a_zero_is_there(file: Path) -> None:
    data = packed(file, GOOD)
    assert (data.spec.sizes, list(data.names["first"])) == ({"features": 4}, [1])
    assert rows(data) == [{2: 2.0, 0: 1.0}, {2: pytest.approx(-0.1), 1: 0.5, 3: 3.0}, {2: 7.0}]
    assert [*rows(data)[1]] == [2, 1, 3]  # the feature of all three rows stands first
    data = packed(file, "1 0:1\n0 4:2\n")
    assert (data.spec.sizes["features"], list(data.names["first"]), rows(data)) == (5, [0], [{0: 1.0}, {4: 2.0}])
    assert packed(file, GOOD, one_based=False).spec.sizes["features"] == 5


def test_the_first_feature_stays_the_first_where_the_next_data_lack_it(file: Path) -> None:
    def next_run(names: dict[str, Any], many: int, text: str, **options: Any) -> tuple[int, int, list[Any]]:
        known = KnownNames.kept({"names": names, "sizes": {"features": many}}, "keep")
        file.write_text(text)
        dataset = LibSvm(file, **options)
        dataset.remember(known.names)
        data, _ = known.extend(dataset.pack(InTurn(0)))
        return int(data.names["first"][0]), data.spec.sizes["features"], rows(data)

    assert next_run({"first": [0]}, 5, "1 1:1\n0 3:2\n") == (0, 5, [{1: 1.0}, {3: 2.0}])
    assert next_run({"first": [0]}, 5, "1 1:1\n0 3:2\n", features=5) == (0, 5, [{1: 1.0}, {3: 2.0}])
    assert next_run({"first": [1]}, 5, "1 1:1\n0 3:2\n") == (1, 5, [{0: 1.0}, {2: 2.0}])
    assert next_run({"first": [1]}, 5, "1 0:1\n0 3:2\n") == (0, 6, [{0: 1.0}, {3: 2.0}])
    assert next_run({"first": [0]}, 5, "1 1:1\n0 3:2\n", one_based=True)[0] == 1
    notes = LibSvm(file).parsing("data.train", None, "fail").parse(lambda *_: None).notes
    assert notes == (f"{file}: features are numbered from 1 on, as no line has a 0 (one_based)",)


def test_a_comment_of_any_length_is_no_block_of_inputs(file: Path) -> None:
    long = "".join(f"# {n} {'long ' * 20}\n" for n in range(2 * PIECE // 100))
    trained = packed(file, GOOD)
    for text in (f"{long}1 1:1\n2:2\n{long}0 3:3 # last\n{long}", f"\ufeff# {'x' * 3 * PIECE}\n1:1\n2:2\n3:3\n"):
        file.write_text(text)
        source = LibSvm(file)
        inputs = SparseLines(source, trained.spec.sizes, trained.names, TextFile(file))
        blocks = [inputs.read(cut) for cut in inputs.cuts()]
        assert [row for block in blocks for row in block.names["sample"]] == [0, 1, 2]
        assert all(len(block.names["sample"]) == len(block.inputs[1]) for block in blocks)
        assert torch.cat([block.inputs[0] for block in blocks]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_comments_blank_lines_marks_and_rows_without_a_feature(file: Path, ending: str) -> None:
    text = f"\ufeff# heights\n\n+1 1:1 # tall\n   \n-1\t\n-1  2:4{ending}"
    data = packed(file, text)
    assert rows(data) == [{0: 1.0}, {}, {1: 4.0}]
    assert data.arrays()["target"].tolist() == [1.0, -1.0, -1.0]


def test_numbers_are_read_as_python_reads_them(file: Path) -> None:
    numbers = [
        "1e3",
        "-.5",
        "5.",
        "+2E-3",
        "123456789012345678901234567890",
        "1e-400",
        "0.1000000000000000000001",
        "3e38",
        "1e-45",
    ]
    numbers += ["16777217", "00012", "0.0000000000000000000000000000000001", "1E+05", "9" * 30 + "e-20"]
    data = packed(file, "1 " + " ".join(f"{i}:{number}" for i, number in enumerate(numbers, 1)))
    expected = np.array([float(number) for number in numbers]).astype(np.float32)
    assert np.array_equal(np.array([rows(data)[0][i] for i in range(len(numbers))], np.float32), expected)


def test_gzip_and_unit_rows(file: Path) -> None:
    data = packed(file, gzip.compress(b"1 1:3 2:4\n1 1:0\n"), normalise="l2")
    assert rows(data) == [{0: pytest.approx(0.6), 1: pytest.approx(0.8)}, {0: 0.0}]


def test_classes_are_numbered_in_rising_order(file: Path) -> None:
    data = packed(file, "7 1:1\n-2 2:1\n7 1:1\n30 1:1\n", labels="classes")
    assert data.arrays()["target"].tolist() == [1, 0, 1, 2] and data.arrays()["target"].dtype == np.int64
    assert (data.spec.sizes["classes"], list(data.names["classes"])) == (3, [-2, 7, 30])
    val = LibSvm(file, labels="classes")
    file.write_text("30 1:1\n8 1:1\n-2\n")
    other = val.pack(InTurn(0), "data.val", data)
    assert (other.arrays()["target"].tolist(), val.left_out) == ([2, 0], {"unseen classes": 1})


def test_validation_data_takes_the_numbers_of_the_training_data(file: Path) -> None:
    train = packed(file, "1 0:1 4:1\n0 3:1\n")
    file.write_text("1 1:1 9:5\n0 5:1 4:2\n")
    dataset = LibSvm(file)
    val = dataset.pack(InTurn(0), "data.val", train)
    assert rows(val) == [{1: 1.0}, {4: 2.0}]  # without a 0 in it, it would have been taken to begin with 1
    assert (val.spec.sizes["features"], dataset.left_out) == (5, {"unseen features": 2})


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("1 1:1\nx 1:1\n", {}, "line 2: a line begins with its label, a number, not 'x': 'x 1:1'"),
        ("1 1:1\n\n# c\n1 1:1 2\n", {}, "line 4: behind the label stand pairs index:value, not '2'"),
        ("1 1:a\n", {}, "line 1: '1:a': the value behind the colon must be a number"),
        ("1 1:1:1\n", {}, "line 1: '1:1:1': the value behind the colon must be a number"),
        ("1 1:nan\n", {}, "line 1: '1:nan' is NaN or infinite"),
        ("1 1:1e39\n", {}, "line 1: '1:1e39' is NaN or infinite"),
        ("inf 1:1\n", {}, "line 1: 'inf' is NaN or infinite"),
        ("1 0:1\n", {"one_based": True}, "line 1: '0:1': features are numbered from 1 on"),
        ("1 -3:1\n", {}, "line 1: '-3:1': an index is not negative"),
        ("1 3:1\n1 4:1\n", {"features": 3}, "line 2: '4:1': the index is past the last feature"),
        ("1 0:1\n1 3:1\n", {"features": 3}, "line 2: '3:1': the index is past the last feature"),
        ("1 99999999999999999999:1\n", {}, "line 1: '99999999999999999999:1': the index is past the last feature"),
        ("1 1:1\n#\n1 2:1 1:3 2:0\n", {}, "line 3: '1 2:1 1:3 2:0': a feature occurs twice"),
        ("1 1:1\n1e30 1:1\n", {"labels": "classes"}, "line 2: '1e30 1:1': labels: classes are whole numbers up to"),
        ("1 1:1\n1.5 1:1\n", {"labels": "classes"}, "classes are whole numbers up to 16,777,216, not 1.5"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_rule(file: Path, text: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as error:
        packed(file, text, **options)
    assert words in str(error.value) and str(file) in str(error.value) and error.value.code == "data/bad-line"


def test_bad_lines_are_counted_where_they_are_skipped(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(text_file, "LINES", 64)
    text = "".join(f"1 {i}:1 {i + 1}:{'x' if i % 7 == 3 else i}\n" for i in range(1, 100)) + "-1 5:1 5:2\n"
    file.write_text(text)
    dataset = LibSvm(file)
    data = dataset.pack(InTurn(0), "data.train", None, "skip")
    assert rows(data) == [{i - 1: 1.0, i: float(i)} for i in range(1, 100) if i % 7 != 3]
    assert dataset.left_out == {"bad lines": 15}
    assert "14 lines cannot be parsed and are left out; the first" in caplog.text
    assert "1 rows name a feature twice and are left out" in caplog.text and "line 100" in caplog.text


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "data/empty", "the file is empty"),
        (b"\n# nothing\n", "data/empty", "contains no samples"),
        (gzip.compress(b""), "data/empty", "the file is empty"),
    ],
    ids=["empty", "only a remark", "gzip of nothing"],
)
def test_files_that_hold_nothing_are_refused(file: Path, content: bytes, code: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        packed(file, content)
    assert error.value.code == code and str(file) in str(error.value)


def test_arguments_that_are_none(file: Path) -> None:
    file.write_text(GOOD)
    for options in ({"features": 0}, {"one_based": "yes"}, {"labels": "binary"}, {"normalise": "l1"}):
        with pytest.raises(UsageError, match=r"LibSvm\(path="):
            LibSvm(file, **options)  # type: ignore[arg-type]


def test_an_unknown_feature_to_predict_is_said_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = packed(file, GOOD)
    source = LibSvm(file)
    caplog.clear()
    file.write_text("1 9:1 2:1\n1 1:1\n" * 3)
    blocks = [*SparseLines(source, trained.spec.sizes, trained.names, TextFile(file)).blocks()]
    assert blocks[0].inputs[0].tolist() == [1, 0] * 3
    assert caplog.messages == [f"{file}: values are left out: their features are past the training data's last one"]


@pytest.mark.parametrize(
    ("text", "line"), [("1:1\n\n2:1\n", 2), ("1:1\r\n \r\n2:1\r\n", 2), ("\n1:1\n", 1), ("1:1\n" * 9 + "\n2:1\n", 10)]
)
def test_an_empty_line_among_rows_without_labels_is_refused(
    text: str, line: int, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row without features would be such a line: the answers behind it would be those of other rows."""
    monkeypatch.setattr(libsvm, "PIECE", 16)
    trained = packed(file, GOOD)
    file.write_bytes(text.encode())
    with pytest.raises(DataError, match=rf"line {line}: is empty, among rows without labels") as told:
        [*blocks_of(file, trained)]
    assert told.value.code == "data/bad-line"
    for fine in ("1:1\n# a comment\n2:1\n\n\n", "0\n\n1 2:1\n", "\n1 2:1\n\n"):
        file.write_text(fine)
        assert sum(len(block.names["sample"]) for block in blocks_of(file, trained)) == fine.count(":1") + (
            fine[0] == "0"
        )


def blocks_of(file: Path, trained: Packed) -> Any:
    return SparseLines(LibSvm(file), trained.spec.sizes, trained.names, TextFile(file)).blocks()
