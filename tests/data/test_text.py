"""A text as the numbers of its words: which words, sentences, windows; what is refused."""

import gzip
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.data import text_file
from hogwild.data.text import Text, WordPairs
from hogwild.data.text_parsing import Parsed, Parsing
from hogwild.errors import DataError, NotFoundError, UsageError
from hogwild.feeds.packed import Packed, TokenFeed
from hogwild.feeds.sample_order import InMemory
from hogwild.models.skipgram import SkipGram
from hogwild.scheduling.batch_plan import BatchPlan


class Here:
    """A reader without a cache."""

    def __init__(self) -> None:
        self.parsed: list[Parsed] = []

    def pack(self, parsing: Parsing) -> Parsed:
        self.parsed.append(parsing.parse(lambda done, size: None))
        return self.parsed[-1]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "a.txt") -> Path:
        path, raw = tmp_path / name, content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write


def sentences(packed: Packed) -> list[list[str]]:
    arrays, words = packed.arrays(), packed.names["words"]
    starts = arrays["starts"].tolist()
    return [[words[k] for k in arrays["tokens"][a:b]] for a, b in pairwise(starts)]


def random_lines(seed: int, count: int = 300) -> list[str]:
    draw = np.random.default_rng(seed)
    known = [f"{'wörter' if k % 3 else 'w'}{k}" for k in range(400)]
    return [
        " ".join(known[min(399, int(k))] for k in draw.zipf(1.3, draw.integers(0, 40))) + " " * int(draw.integers(2))
        for _ in range(count)
    ]


# ---- words and sentences


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_words_are_numbered_by_frequency_and_rare_ones_are_as_if_they_were_not_there(
    write: Callable[..., Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "LINES", 50)  # a line is longer than a part
    lines = random_lines(1)
    packed = Text(write("\n".join(lines), name), min_count=3).pack(reader := Here())
    counts = Counter(word for line in lines for word in line.split())
    kept = {word: count for word, count in counts.items() if count >= 3}
    found = dict(zip(packed.names["words"], packed.arrays()["counts"].tolist(), strict=True))
    assert found == kept
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert sentences(packed) == [left for line in lines if (left := [word for word in line.split() if word in kept])]
    assert packed.spec.sizes == {"words": len(kept), "context": 20}
    assert packed.samples == sum(kept.values())
    (told,) = reader.parsed[0].notes
    assert f"{sum(counts.values()) - packed.samples:,} words rarer than min_count 3" in told


@pytest.mark.parametrize("part", [4 << 20, 100])
def test_a_text_of_one_line_is_cut_after_ten_thousand_words(
    write: Callable[..., Path], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "LINES", part)
    words = ["a", "b", "c"] * 7000
    packed = Text(write(" ".join(words))).pack(Here())
    assert packed.arrays()["starts"].tolist() == [0, 10_000, 20_000, 21_000]
    assert [word for sentence in sentences(packed) for word in sentence] == words
    packed = Text(write("\n".join(["rare", " ".join(words[:10_000]), "", " ".join(words[:10_001]), "a"]))).pack(Here())
    assert packed.arrays()["starts"].tolist() == [0, 10_000, 20_000, 20_001, 20_002]


def test_white_space_and_control_characters_stand_between_words(write: Callable[..., Path]) -> None:
    packed = Text(write("\ufeffa\tb\x0b c\r\n\r\n \na\x00b  "), min_count=1).pack(Here())
    assert sentences(packed) == [["a", "b", "c"], ["a", "b"]]


def test_validation_text_is_written_in_the_words_of_the_training_data(write: Callable[..., Path]) -> None:
    train = Text(write("a a a b b c"), min_count=1).pack(Here())
    val = Text(write("c new a\nnew\nb", "b.txt"), min_count=1)
    packed = val.pack(Here(), "data.val", train)
    assert sentences(packed) == [["c", "a"], ["b"]]
    assert packed.arrays()["counts"].tolist() == [3, 2, 1]
    assert val.left_out == {"words unknown to the training data": 2}


# ---- what is refused


@pytest.mark.parametrize(
    ("content", "name", "code", "words"),
    [
        (b"a b c\na b d", "a.txt", "data/no-words", "of 6 words, 4 different ones, none of its words occurs 5 times"),
        (b" \n \n", "a.txt", "data/no-words", "of 0 words"),
        (b"", "a.txt", "data/empty", "a.txt"),
        (b"good\n\nbad \xff\xfe word", "a.txt", "data/bad-line", r"line 3: not UTF-8: b'\\xff\\xfe'"),
    ],
)
def test_a_text_that_cannot_be_learnt_from_is_refused(
    write: Callable[..., Path], content: bytes, name: str, code: str, words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        Text(write(content, name)).pack(Here())
    assert caught.value.code == code


def test_validation_text_without_a_known_word_is_refused(write: Callable[..., Path]) -> None:
    train = Text(write("a a"), min_count=1).pack(Here())
    with pytest.raises(DataError, match="none of its words is in the training data") as caught:
        Text(write("b", "b.txt")).pack(Here(), "data.val", train)
    assert caught.value.code == "data/no-words"


def test_words_that_are_not_utf8_can_be_left_out(write: Callable[..., Path]) -> None:
    text = Text(write(b"a \xff b\n\xff"), min_count=1)
    assert sentences(text.pack(Here(), on_bad_line="skip")) == [["a", "b"]]
    assert text.left_out == {"words that are not UTF-8": 2}


def test_arguments_and_files_are_looked_at_before_anything_is_read(write: Callable[..., Path]) -> None:
    path = write("a")
    with pytest.raises(UsageError, match="min_count"):
        Text(path, min_count=0)
    with pytest.raises(UsageError, match="context"):
        Text(path, context=1.5)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=r"nowhere\.txt"):
        Text("nowhere.txt")


# ---- windows for autograd


def test_a_window_ends_where_its_sentence_does() -> None:
    tokens, starts = np.arange(100, 111, dtype=np.int32), np.array([0, 1, 4, 11], np.int64)
    arrays = {"tokens": tokens, "starts": starts, "counts": np.ones(111, np.int64)}
    packed = Packed.of("text", "tokens", arrays, {"words": 111, "context": 2})
    feed = TokenFeed(packed, BatchPlan(11, 4), InMemory(11))
    seen = []
    for number in range(3):
        batch = feed.gather(0, number)
        (windows,) = batch.inputs
        assert windows[:, 2].tolist() == batch.target.tolist()
        seen += windows.tolist()
    for place, window in enumerate(seen):
        begin, end = max(a for a in starts if a <= place), min(b for b in starts if b > place)
        around = [100 + p if begin <= p < end else -1 for p in range(place - 2, place + 3)]
        assert window == around


# ---- pairs of words


def test_pairs_are_numbers_of_the_training_words_and_unknown_ones_are_left_out(write: Callable[..., Path]) -> None:
    train = Text(write("cat cat cat dog dog tiger"), min_count=1).pack(Here())
    pairs = WordPairs(write("# two words\ncat\tdog\t8\nTiger\tcat\t4.5\ncat\tunicorn\t1\n", "pairs.tsv"))
    packed = pairs.pack(Here(), like=train)
    assert packed.arrays()["pair"].tolist() == [[0, 1], [2, 0]]
    assert packed.arrays()["score"].tolist() == [1.0, 0.5625]
    assert pairs.left_out == {"pairs with an unknown word": 1}
    model = SkipGram(3, dim=4).eval()
    assert model(torch.from_numpy(packed.arrays()["pair"])).shape == (2,)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("cat\tdog\n", "data/bad-line", "line 1: must have two words and a number"),
        ("cat\tdog\tmuch\n", "data/bad-line", "line 1"),
        ("ox\tcow\t3\n", "data/empty", "none of 1 pairs"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused(write: Callable[..., Path], content: str, code: str, words: str) -> None:
    train = Text(write("cat dog"), min_count=1).pack(Here())
    with pytest.raises(DataError, match=words) as caught:
        WordPairs(write(content, "pairs.tsv")).pack(Here(), like=train)
    assert caught.value.code == code


def test_pairs_without_a_text_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"can only be data\.val"):
        WordPairs(write("cat\tdog\t3")).pack(Here())


drawn = st.lists(
    st.lists(st.sampled_from(["a", "b", "é", "c d", "\u3000"]), min_size=1, max_size=5), min_size=1, max_size=6
)


@settings(max_examples=40, deadline=None)
@given(trained=drawn, held=drawn, random=st.randoms())
def test_words_of_validation_data_are_the_training_datas_in_any_order_of_both(
    tmp_path_factory: pytest.TempPathFactory, trained: list[list[str]], held: list[list[str]], random: Random
) -> None:
    """U+3000 and U+00A0 are characters of a word."""
    file = tmp_path_factory.mktemp("text") / "text"

    def packed(lines: list[list[str]], like: Packed | None = None) -> Packed:
        file.write_text("".join(" ".join(word.replace(" ", "\u00a0") for word in line) + "\n" for line in lines))
        return Text(file, min_count=1).pack(Here(), "data", like)

    train = packed(trained)
    again = packed(random.sample(trained, len(trained)))
    assert (
        {*again.names["words"]}
        == {*train.names["words"]}
        == {w.replace(" ", "\u00a0") for line in trained for w in line}
    )
    counts = [dict(zip(one.names["words"], one.arrays()["counts"].tolist(), strict=True)) for one in (train, again)]
    assert counts[0] == counts[1]
    known = [word.replace(" ", "\u00a0") for line in held for word in line]
    known = [word for word in known if word in train.names["words"]]
    for like in (train, again) if known else ():
        val = packed(held, like)
        assert [like.names["words"][number] for number in val.arrays()["tokens"]] == known
