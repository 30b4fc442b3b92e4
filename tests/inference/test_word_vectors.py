"""Vectors of words in use: near words, analogies, agreement with people, word2vec's files."""

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch

from hogwild.errors import DataError, UsageError
from hogwild.inference.word_vectors import Agreement, AnalogySection, WordVectors
from hogwild.metrics.built_in import spearman

WORDS = ["king", "man", "woman", "queen", "apple", "Paris"]


@pytest.fixture
def vectors() -> WordVectors:
    royal, male, female, fruit, city = np.eye(5, dtype=np.float32)
    return WordVectors(
        WORDS, np.stack([royal + male, 3 * male, female, royal + 1.1 * female, fruit, city + 0.1 * fruit])
    )


# ---- near words


def test_the_nearest_words_come_first_without_the_ones_given(vectors: WordVectors) -> None:
    found = vectors.most_similar("king", topn=2)
    assert [word for word, _ in found] == ["man", "queen"]
    assert [cosine for _, cosine in found] == pytest.approx([0.5**0.5, 1 / (2 * 2.21) ** 0.5])
    assert vectors.similarity("king", "man") == pytest.approx(0.5**0.5)
    assert [word for word, _ in vectors.most_similar(["king", "woman"], ["man"], topn=1)] == ["queen"]
    assert len(vectors.most_similar("king", topn=100)) == 5
    assert vectors.most_similar("king", topn=0) == []


def test_as_many_near_words_as_asked_for_are_those_of_a_full_sort() -> None:
    draw = np.random.default_rng(1)
    matrix = draw.normal(size=(200, 7)).astype(np.float32)
    words = [f"w{k}" for k in range(200)]
    cosines = matrix @ matrix[3] / np.linalg.norm(matrix, axis=1) / np.linalg.norm(matrix[3])
    expected = [words[k] for k in np.argsort(-cosines) if k != 3][:17]
    assert [word for word, _ in WordVectors(words, matrix).most_similar(["w3"], topn=17)] == expected


def test_an_unknown_word_is_refused_with_words_that_are_written_alike(vectors: WordVectors) -> None:
    with pytest.raises(UsageError, match=r"'qeen' is not among the 6 words; did you mean 'queen'") as caught:
        vectors.most_similar("qeen")
    assert caught.value.code == "usage/unknown-name"
    with pytest.raises(UsageError, match="did you mean 'king'"):
        vectors["King"]
    with pytest.raises(UsageError, match=r"6 words$"):
        vectors.similarity("king", "zzzzzzzzzzzz")
    with pytest.raises(UsageError, match="needs a word"):
        vectors.most_similar([])


def test_a_word_that_is_not_among_them_has_the_vector_of_its_spelling(vectors: WordVectors) -> None:
    royal, male = np.eye(5, dtype=np.float32)[:2]
    spelled = WordVectors(WORDS, vectors.matrix, spelled=lambda word: 2 * male if "m" in word else 0 * royal)
    assert (spelled["mankind"] == 2 * male).all() and "mankind" not in spelled and len(spelled) == 6
    assert spelled.similarity("mankind", "man") == 1 and spelled.similarity("man", "men") == 1
    assert [word for word, _ in spelled.most_similar("mankind", topn=2)] == ["man", "king"]
    assert [word for word, _ in spelled.most_similar(["king", "woman"], ["men"], topn=1)] == ["queen"]
    with pytest.raises(UsageError, match="'qeen' is not among"):
        spelled.most_similar("qeen")


def test_a_word_with_a_vector_of_zeros_is_near_to_nothing() -> None:
    vectors = WordVectors(["a", "b", "c"], np.array([[0, 0], [1, 0], [1, 1]]))
    assert vectors.similarity("a", "b") == 0
    assert [cosine for _, cosine in vectors.most_similar("a")] == [0, 0]


def test_words_and_vectors_must_fit() -> None:
    with pytest.raises(UsageError, match="occurs twice among the 2 words"):
        WordVectors(["a", "a"], np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        WordVectors(["a", "b"], np.zeros((3, 2)))


# ---- agreement with people


@pytest.mark.parametrize(
    ("outputs", "targets", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),
        ([1, 1, 2, 3], [1, 2, 3, 4], 0.9486832980505138),  # ranks 1.5, 1.5, 3, 4
    ],
)
def test_rank_correlation_with_ties(outputs: list[float], targets: list[float], expected: float) -> None:
    assert spearman(torch.tensor(outputs), torch.tensor(targets)) == pytest.approx(expected)
    assert spearman.higher_is_better is True  # type: ignore[attr-defined]


def test_rank_correlation_of_what_is_all_alike_is_nan() -> None:
    assert np.isnan(spearman(torch.ones(3), torch.tensor([1.0, 2.0, 3.0])))


@pytest.mark.parametrize("samples", [0, 1])
def test_rank_correlation_of_less_than_two_samples_is_nan_without_a_warning(samples: int) -> None:
    assert np.isnan(spearman(torch.ones(samples), torch.ones(samples)))


def test_agreement_leaves_out_pairs_with_an_unknown_word(vectors: WordVectors, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("# a\tcomment\nking\tman\t9\nKing\tqueen\t5\nking\tapple\t1\nking\tunicorn\t3\n")
    assert vectors.spearman(path) == Agreement(pytest.approx(1.0), 3, 1)
    path.write_text("man king 1\nking queen 5 more\n")
    assert vectors.spearman(path).spearman == pytest.approx(-1.0)
    path.write_text("x\ty\t1\n")
    assert vectors.spearman(path).pairs == 0
    odd = WordVectors(["New\u00a0York", "東\u3000京", "x"], np.eye(3))
    for separator in "\t ":
        path.write_text(f"New\u00a0York{separator}東\u3000京{separator}1\n", encoding="utf-8")
        assert odd.spearman(path).pairs == 1
    path.write_text(": odd\nNew\u00a0York x x 東\u3000京\n", encoding="utf-8")
    assert odd.analogies(path)["odd"].asked == 1


# ---- analogies


def test_analogies_are_counted_by_section(vectors: WordVectors, tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(
        ": family\nman king woman queen\nMAN KING WOMAN QUEEN\nman king woman apple\nman king girl queen\n"
        ": places\nman king woman Paris\n: empty\n"
    )
    assert vectors.analogies(path) == {"family": AnalogySection(2, 3, 1), "places": AnalogySection(0, 1, 0)}
    assert vectors.analogies(path)["family"].accuracy == pytest.approx(2 / 3)
    assert vectors.analogies(path, restrict=3) == {"family": AnalogySection(0, 0, 4), "places": AnalogySection(0, 0, 1)}


def test_a_question_of_three_words_is_refused(vectors: WordVectors, tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(": family\nman king woman\n")
    with pytest.raises(DataError, match=r"questions\.txt: line 2: must have four words"):
        vectors.analogies(path)


# ---- word2vec's files


def odd_vectors() -> WordVectors:
    words = [
        "the",
        "naïve",
        "日本",
        "a.b",
        "-",
        "New\u00a0York",
        "東\u3000京",
        "\u00a0",
        "\u2028x\x85",
        "\ufeffq\u2003",
    ]
    matrix = np.random.default_rng(0).normal(size=(len(words), 6)).astype(np.float32)
    matrix[0, 0] = np.frombuffer(b"\n \n ", "<f4")[0]  # bytes that look like the end of a word
    matrix[1] = [1e-38, -3.4e38, 0, 1 / 3, 16777217, -0.0]
    return WordVectors(words, matrix)


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_saved_is_loaded_to_the_last_digit(tmp_path: Path, binary: bool) -> None:
    ours = odd_vectors()
    ours.save_word2vec(tmp_path / "v", binary=binary)
    again = WordVectors.load_word2vec(tmp_path / "v", binary=binary)
    assert again.names == ours.names
    assert again.matrix.tobytes() == ours.matrix.tobytes()


@pytest.mark.processes  # gensim asks for the platform, which starts `uname`
@pytest.mark.parametrize("binary", [False, True])
def test_gensim_loads_ours_and_we_load_gensims(tmp_path: Path, binary: bool) -> None:
    models = pytest.importorskip("gensim.models", reason="gensim is not installed (pip install gensim)")
    ours = odd_vectors()
    ours.save_word2vec(tmp_path / "ours", binary=binary)
    theirs = models.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert theirs.index_to_key == ours.names
    np.testing.assert_array_equal(theirs.vectors, ours.matrix)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    again = WordVectors.load_word2vec(tmp_path / "theirs", binary=binary)
    assert again.names == ours.names
    np.testing.assert_array_equal(again.matrix, ours.matrix)


@pytest.mark.parametrize(
    ("content", "binary", "words"),
    [
        (b"", False, "line 1 must be"),
        (b"a b 0.5\n", False, "line 1 must be"),
        (b"a 0.5 0.5\n", True, "line 1 must be"),
        (b"2 0\n", False, "line 1 must be"),
        (b"2 2\na 1 2\n", False, "promises 2 words, but the file holds 1"),
        (b"2 2\na 1 2\nb 1\n", False, "line 3: must have a word and 2 numbers: 1 numbers"),
        (b"1 2\na 1 x\n", False, "the row of 'a' must have 2 numbers"),
        (b"2 2\na 1 2\na 1 2\n", False, "twice"),
        (b"2 1\na \0\0\0\0\nb \0\0", True, "promises 2 words, but the file holds 1"),
        (b"1 1\n\xff\xff \0\0\0\0", True, "word 1 is not text"),
        (b"999999999999 999999999\na", True, "the file holds 0"),
    ],
)
def test_a_file_that_is_not_word2vecs_is_refused(tmp_path: Path, content: bytes, binary: bool, words: str) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        WordVectors.load_word2vec(tmp_path / "v", binary=binary)
    assert caught.value.code == "data/wrong-format"


@pytest.mark.parametrize("word", ["a b", "a\n", "\ta", "a\x1fb", "5 %"])
def test_a_word_that_the_format_cannot_say_is_percent_encoded(tmp_path: Path, word: str) -> None:
    WordVectors([word, "50%"], np.zeros((2, 2))).save_word2vec(tmp_path / "v")
    assert [*map(unquote, WordVectors.load_word2vec(tmp_path / "v").names)] == [word, "50%"]


def test_an_empty_word_is_refused_and_an_id_is_found_as_a_number_or_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'' cannot be written in this format"):
        WordVectors([""], np.zeros((1, 2))).save_word2vec(tmp_path / "v")
    assert not (tmp_path / "v").exists()
    vectors = WordVectors(["7", "x"], np.eye(2), "items")
    assert 7 in vectors and 8 not in vectors and vectors[7.0].tolist() == vectors["7"].tolist() == [1, 0]
    with pytest.raises(UsageError, match="'8' is not among the 2 items"):
        vectors[8]
