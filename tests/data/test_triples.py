"""Triples as packed tables: numbered words, the training data's numbers, and lines that cannot be used."""

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.data import Triples, text_file
from hogwild.data.text_parsing import Format, TableText
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn


def written(data: Packed) -> list[tuple[str, str, str]]:
    entities, relations = data.names["entities"], data.names["relations"]
    return [(entities[h], relations[r], entities[t]) for h, r, t in data.arrays()["triple"]]


def test_triples_are_numbered_in_the_order_of_their_letters(tmp_path: Path) -> None:
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress('Rom\tin\tItalien\r\nÖlberg\tin\tRom\r\n\r\nRom\tBy night\t"Rom\r\n'.encode()))
    data = Triples(path).pack(InTurn(0))
    assert written(data) == [("Rom", "in", "Italien"), ("Ölberg", "in", "Rom"), ("Rom", "By night", '"Rom')]
    assert (data.names["entities"], data.names["relations"]) == (
        ['"Rom', "Italien", "Rom", "Ölberg"],
        ["By night", "in"],
    )
    assert data.spec.sizes == {"entities": 4, "relations": 2}
    assert [*data.arrays()] == ["triple", "weight"] and data.arrays()["weight"].tolist() == [1, 1, 1]


def test_quoted_values_with_line_ends_are_whole_wherever_a_piece_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.csv"
    lines = [(f"head {n}", "said", f"so\n{n}, and\nso") for n in range(40)]
    path.write_text("".join(f'{head},{relation},"{tail}"\n' for head, relation, tail in lines))
    for size in (4 << 20, 60, 100):
        monkeypatch.setattr(text_file, "LINES", size)
        dataset = Triples(path, ",")
        assert written(dataset.pack(InTurn(0), on_bad_line="skip")) == lines and not dataset.left_out
    path.write_text('a\t"b\tc\nd\t"e\tf\n')
    assert written(Triples(path).pack(InTurn(0))) == [("a", '"b', "c"), ("d", '"e', "f")], "no quotes between tabs"


def test_what_the_training_data_does_not_have_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "triples.txt"
    path.write_text("2\tlikes\t10\n10\thates\t2\n")
    train = Triples(path).pack(InTurn(0))
    assert train.names["entities"].tolist() == [2, 10]  # by size: all of them are whole numbers
    path.write_text("10\tlikes\t2\nx\tlikes\t2\n2\tadores\t10\n")
    dataset = Triples(path)
    val = dataset.pack(InTurn(0), "data.val", train)
    assert written(val) == [(10, "likes", 2)] and dataset.left_out == {"unseen triples": 2}
    assert val.spec.sizes == train.spec.sizes == {"entities": 2, "relations": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tb\tc\na\tb\n", "line 2: a line must be head, relation and tail, three fields: 'a\\\\tb'"),
        ("a\tb\tc\td\n", "line 1: a line must be head, relation and tail, three fields"),
        ("a\t\tc\n", "line 1: a field is empty"),
    ],
)
def test_a_bad_line_is_named_or_counted(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "triples.txt"
    path.write_text("u\tv\tw\n")
    like = Triples(path).pack(InTurn(0))
    path.write_text(text)
    dataset = Triples(path)
    with pytest.raises(DataError, match=words) as error:
        dataset.pack(InTurn(0))
    assert error.value.code == "data/bad-line"
    path.write_text(text + "u\tv\tu\n")
    assert written(dataset.pack(InTurn(0), "data.val", like, "skip")) == [("u", "v", "u")]
    assert dataset.left_out["bad lines"] == 1


FIELDS = st.sampled_from([
    b"a", b"ab c", b"1", b"007", b" 2 ", b"4.5", b"-3e2", b"nan", b"", b'"q"', b'"', b'"x,y"', b'a"b', b'""', b"+1",
    b"\xff",
])  # fmt: skip
LINE = st.lists(FIELDS, min_size=1, max_size=4)


@settings(max_examples=300)
@given(
    lines=st.lists(LINE, min_size=1, max_size=6),
    delimiter=st.sampled_from([",", "\t", "::", " "]),
    ending=st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r"]),
    form=st.sampled_from(
        [((0, 1), (2,), (), False), ((2, 0), (), (), False), ((0, 1, 2), (), (), True), ((0,), (1,), (2,), True)]
    ),
)
def test_pyarrow_reads_a_piece_as_the_careful_parser_does_or_not_at_all(
    lines: list[list[bytes]],
    delimiter: str,
    ending: bytes,
    form: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool],
) -> None:
    content = ending.join(delimiter.encode().join(line) for line in lines) + b"\n"
    words, numbers, times, has_quotes = form
    table = TableText(Format(delimiter, has_quotes=has_quotes), 3, words, numbers, times)
    rules = SimpleNamespace(rules=dict.fromkeys(range(12), "a rule"))
    quick, careful = table._quick(content), table._careful(rules, content)  # type: ignore[arg-type]
    if quick is None:
        return
    assert (quick.lines, quick.rows, [*quick.places]) == (careful.lines, careful.rows, [*careful.places])
    assert careful.bad_lines == 0
    for one, other in zip(quick.arrays, careful.arrays, strict=True):
        if isinstance(other, np.ndarray):
            assert np.array_equal(one, other)
        elif isinstance(one, np.ndarray):
            assert one.tolist() == [int(word) for word in other.to_pylist()]
        else:
            assert one.to_pylist() == other.to_pylist()


# ---- columns by name ------------------------------------------------------------------------------------------------

NAMES = [("head", "relation", "tail"), ("subject_id", "Predicate", "OBJECT"), ("s", "p", "o"), ("from", "type", "to")]
triple = st.tuples(st.sampled_from("abcd"), st.sampled_from(["r", "type"]), st.sampled_from("abcd"))


@settings(max_examples=40, deadline=None)
@given(
    triples=st.lists(triple, min_size=2, max_size=8, unique=True),
    names=st.sampled_from(NAMES),
    orders=st.tuples(st.permutations(range(3)), st.permutations(range(3))),
    sign=st.sampled_from(["\t", ","]),
    before=st.sampled_from(["", "# "]),
    random=st.randoms(),
)
def test_columns_and_rows_in_any_order_are_the_same_triples_in_training_and_validation(
    tmp_path_factory: pytest.TempPathFactory,
    triples: list[tuple[str, str, str]],
    names: tuple[str, str, str],
    orders: tuple[list[int], list[int]],
    sign: str,
    before: str,
    random: Any,
) -> None:
    file, found = tmp_path_factory.mktemp("graph") / "triples", list[Packed]()
    for order in orders:
        random.shuffle(triples)
        lines = [sign.join(row[place] for place in order) for row in [names, *triples]]
        file.write_text(before + "\n".join(lines) + "\n")
        found.append(Triples(file, sign).pack(InTurn(0), "data", *found))
        assert {*written(found[-1])} == {*triples} and len(written(found[-1])) == len(triples)
    assert found[0].names == found[1].names


def test_a_first_row_that_may_be_a_header_is_said(tmp_path: Path) -> None:
    file = tmp_path / "triples"
    for text, words, rows in (
        ("kopf\tart\tende\n1\t2\t3\n2\t2\t1\n", "the header is left out", [(1, 2, 3), (2, 2, 1)]),
        ("Kopf\tArt\tEnde\na\tr\tb\n", "no header: the first row is Kopf, Art, Ende, which occur nowhere else", None),
        ("a\tr\tb\nb\tr\ta\n", None, [("a", "r", "b"), ("b", "r", "a")]),
    ):
        file.write_text(text)
        parsed = Triples(file).parsing("data.train", None, "fail").parse(lambda done, size: None)
        assert parsed.notes == (() if words is None else (f"{file}: {words}",))
        assert rows is None or written(parsed.packed) == rows
