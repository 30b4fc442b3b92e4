"""Ids: 7, 7.0, "7" and " 7 " are one, wherever they are written and asked for; 007 is another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.data import Ratings, Triples
from hogwild.data.ids import IdRows
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn


def spellings(number: int) -> list[Any]:
    return [number, float(number), str(number), f"{number}.0", f" {number}\t", np.int64(number), np.float64(number)]


@given(st.lists(st.integers(0, 2**50), min_size=1, unique=True), st.integers(0, 6), st.integers(0, 6))
def test_a_whole_number_is_found_under_every_spelling(numbers: list[int], kept: int, asked: int) -> None:
    rows = IdRows([spellings(number)[kept] for number in numbers])
    assert rows.rows([spellings(number)[asked] for number in numbers]).tolist() == [*range(len(numbers))]
    assert rows.row(max(numbers) + 1) == rows.row(f"00{numbers[0]}") == rows.row(numbers[0] + 0.5) == -1


def test_an_id_of_its_own_spelling_is_not_another() -> None:
    rows = IdRows(["7", "7.0", "007", "a b", "\u00a0x"])
    assert rows.rows(["7", "7.0", "007", " a b ", "\u00a0x", "x"]).tolist() == [0, 1, 2, 3, 4, -1]


def packed(path: Path, text: str, like: Packed | None = None, kind: Any = Ratings) -> Packed:
    path.write_text(text)
    return kind(path).pack(InTurn(0), "data.train", like)


@pytest.mark.parametrize("user", ["{}", "{}.0", " {}", '"{} "', "u{}"])
def test_files_that_spell_an_id_otherwise_have_the_same_names_and_numbers(tmp_path: Path, user: str) -> None:
    lines = [(10, 3, 1.0), (10, 20, 2.0), (7, 3, 3.0)]
    plain = user.replace(".0", "").replace(" ", "").replace('"', "")
    wanted = packed(tmp_path / "a", "".join(f"{plain.format(u)},{i},{r}\n" for u, i, r in lines))
    found = packed(tmp_path / "b", "".join(f"{user.format(u)},{i}.0 ,{r}\n" for u, i, r in lines))
    for kind, names in wanted.names.items():
        assert [*names] == [*found.names[kind]]
    for name, values in wanted.arrays().items():
        assert np.array_equal(found.arrays()[name], values)
    val = packed(tmp_path / "c", f"{user.format(7)},3.0,1\nstranger,3,1\n", like=wanted)
    assert {name: values.tolist() for name, values in val.arrays().items()} == {
        "user": [[*wanted.names["users"]].index(7 if plain == "{}" else "u7")],
        "item": [0],
        "rating": [1.0],
    }


def test_a_whole_number_among_words_is_one_id_in_both_spellings(tmp_path: Path) -> None:
    found = packed(tmp_path / "a", "7,1,1\n7.0,2,2\nx,1,3\n8.0,1,4\n-0.50,1,5\n")
    assert [*found.names["users"]] == ["-0.50", "7", "8.0", "x"]
    assert found.arrays()["user"].tolist() == [0, 1, 1, 2, 3]
    graph = packed(tmp_path / "b", "7\tlikes\t7.0\nx\tlikes\t7\n", kind=Triples)
    assert graph.names["entities"] == ["7", "x"] and graph.arrays()["triple"].tolist() == [[0, 0, 0], [1, 0, 0]]


def test_entities_of_a_graph_have_no_white_space_around_them(tmp_path: Path) -> None:
    found = packed(tmp_path / "a", "a \tlikes\tb\nb\t likes\ta\n", kind=Triples)
    assert found.names == {"entities": ["a", "b"], "relations": ["likes"]}
    assert found.arrays()["triple"].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_an_id_of_white_space_is_none(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="line 2: a user, an item or a time is empty"):
        packed(tmp_path / "a", "x,y,1\n  ,y,2\n")
