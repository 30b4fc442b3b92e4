"""Vectors with their names for other programs: any table of a model, any character in a name."""

from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn

from hogwild.config.schema import Component
from hogwild.errors import UsageError
from hogwild.inference.named_tables import NamedTable
from hogwild.inference.word_vectors import WordVectors
from hogwild.user_code import build

ODD = ["The Matrix (1999)", "100 %", "a%20b", '"q"', "two\nlines\t", "x" * 10_000, "東\u3000京", "zero\0byte", "é", "1"]


def table(kind: str | None, class_path: str, names: dict[str, Any], **arguments: Any) -> tuple[NamedTable, Any]:
    """The table of a kind of a new model, and the model."""
    sizes = {one: len(values) for one, values in names.items()}
    spec = Component(class_path=class_path, init_args=arguments)
    model = build(spec, **sizes)
    with torch.no_grad():
        for param in model.parameters():
            param.normal_()
    if hasattr(model, "on_names"):
        model.on_names(names)
    return NamedTable.of(model, spec, names, sizes, kind, {}), model


def written(of: NamedTable, format_: str, file: Path, *, binary: bool = False) -> str:
    write, note = of.writer(format_, binary=binary)
    with open(file, "wb") as target:
        write(target)
    return note


ITEMS = {"users": [3, 7], "items": ODD}


@pytest.mark.parametrize("format_", ["parquet", "npz"])
@pytest.mark.parametrize("kind", ["users", "items"])
def test_tables_have_names_vectors_and_biases_as_they_are(format_: str, kind: str, tmp_path: Path) -> None:
    of, model = table(kind, "hogwild.models.MatrixFactorization", ITEMS, factors=3)
    assert written(of, format_, tmp_path / "t") == ""
    if format_ == "parquet":
        found = pyarrow.parquet.read_table(tmp_path / "t").to_pydict()
        names, vectors, biases = found["name"], found["vector"], found["bias"]
    else:
        with np.load(tmp_path / "t") as arrays:
            names, vectors, biases = (arrays[key].tolist() for key in ("names", "vectors", "biases"))
    assert names == ITEMS[kind]
    side = kind.removesuffix("s")
    assert vectors == model.get_submodule(side).weight.tolist()
    assert biases == model.get_submodule(f"{side}_bias").weight[:, 0].tolist()


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (["x" * 3000, "é", *map(str, range(2000))], "would take 23 MiB for 9.7 KiB of text"),
        (["a\0", "b", "東京"], "loses a zero at its end"),
    ],
)
def test_names_of_very_different_lengths_take_what_they_need_in_an_npz(
    items: list[str], why: str, tmp_path: Path
) -> None:
    of, _ = table("items", "hogwild.models.BprFactorization", {"users": [1], "items": items}, factors=3)
    note = written(of, "npz", tmp_path / "t.npz")
    assert note == f"the names are in names_utf8 and names_offsets: an array of them {why}"
    with np.load(tmp_path / "t.npz", allow_pickle=False) as arrays:
        assert {*arrays} == {"names_utf8", "names_offsets", "vectors", "biases"}
        text, at = arrays["names_utf8"].tobytes(), arrays["names_offsets"].tolist()
    assert [text[start:stop].decode() for start, stop in pairwise(at)] == items
    rest = of.matrix.nbytes + 4 * len(items) + at[-1] + 8 * len(at)
    assert (tmp_path / "t.npz").stat().st_size < rest + 2000


@pytest.mark.processes  # gensim's import asks for the processor
@pytest.mark.parametrize("binary", [False, True])
def test_word2vecs_formats_have_every_name_percent_encoded_where_it_must_be(binary: bool, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models", reason="needs gensim")
    of, _ = table("items", "hogwild.models.BprFactorization", ITEMS, factors=3)
    note = written(of, "word2vec", tmp_path / "v", binary=binary)
    assert note.startswith("4 of 10 names, such as 'The Matrix (1999)', are percent-encoded") and "no biases" in note
    ours = WordVectors.load_word2vec(tmp_path / "v", binary=binary)
    theirs = models.KeyedVectors.load_word2vec_format(str(tmp_path / "v"), binary=binary)
    assert ours.names == theirs.index_to_key and [*map(unquote, ours.names)] == ODD
    np.testing.assert_array_equal(ours.matrix, of.matrix)
    np.testing.assert_array_equal(theirs.vectors, of.matrix)
    graph = {"entities": ["100", "a%20b"], "relations": [1]}
    plain, _ = table("entities", "hogwild.models.ComplEx", graph, dim=4)
    assert written(plain, "word2vec", tmp_path / "v") == ""
    assert WordVectors.load_word2vec(tmp_path / "v").names == ["100", "a%20b"], "as they are, if all are possible"


@pytest.mark.processes  # gensim's import asks for the processor
def test_fasttexts_file_is_loaded_by_gensim_with_any_name(tmp_path: Path) -> None:
    fasttext = pytest.importorskip("gensim.models.fasttext", reason="needs gensim")
    of, _ = table("items", "hogwild.models.BprFactorization", ITEMS, factors=3)
    assert "1 of 10 names, such as 'zero\\x00byte'" in written(of, "fasttext", tmp_path / "v.bin")
    found = fasttext.load_facebook_vectors(str(tmp_path / "v.bin"))
    assert [*map(unquote, found.index_to_key)] == ODD
    np.testing.assert_array_equal(found.vectors, of.matrix)


@pytest.mark.processes  # gensim's import asks for the processor
@pytest.mark.parametrize("cbow", [False, True])
def test_subwords_are_in_fasttexts_file_so_unknown_words_have_the_same_neighbours(cbow: bool, tmp_path: Path) -> None:
    fasttext = pytest.importorskip("gensim.models.fasttext", reason="needs gensim")
    words = ["the", "where", "there", "naïve", "東京", "a", "xyz"]
    options = {"dim": 5, "buckets": 90, "min_n": 2, "max_n": 4, "cbow": cbow}
    of, model = table("words", "hogwild.models.SkipGram", {"words": words}, **options)
    model.counts.copy_(torch.tensor([9, 2, 7, 3, 1, 5, 0]))  # as a run that continues may have them
    written(of, "fasttext", tmp_path / "v.bin")
    loaded = fasttext.load_facebook_model(str(tmp_path / "v.bin"))
    assert loaded.wv.index_to_key == ["the", "there", "a", "naïve", "where", "東京", "xyz"]
    assert [loaded.wv.get_vecattr(word, "count") for word in loaded.wv.index_to_key] == [9, 7, 5, 3, 2, 1, 1]
    assert (loaded.cbow_mean if cbow else loaded.sg) and (loaded.wv.min_n, loaded.wv.max_n) == (2, 4)
    own = [of.matrix[words.index(word)] for word in words]
    spelled = ["elsewhere", "東京都", "zz"]
    for word, vector in zip([*words, *spelled], [*own, *model.spelled(spelled).numpy()], strict=True):
        theirs = loaded.wv[word]
        assert theirs @ vector == pytest.approx(float(np.linalg.norm(theirs) * np.linalg.norm(vector)), rel=1e-5), word
    order = [words.index(word) for word in loaded.wv.index_to_key]
    np.testing.assert_array_equal(loaded.syn1neg, model.output.weight.detach()[order])


class Tagger(nn.Module):
    """A user's own model: a table of words, one of tags, and one that both words and tags count."""

    def __init__(self, words: int, tags: int) -> None:
        super().__init__()
        self.word, self.again = nn.Embedding(words, 3), nn.Embedding(tags, 2)
        self.tag, self.prior = nn.Embedding(tags, 2), nn.Parameter(torch.zeros(tags))
        self.pairs = nn.Parameter(torch.zeros(words, tags))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Plain(nn.Module):
    """A user's own model, with one row more than there are words."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.word, self.prior = nn.Embedding(words + 1, 3, padding_idx=words), nn.Parameter(torch.zeros(words))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Nameless(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)


GRAPH = {"entities": ["a", 2], "relations": ["r"]}
TAGS = {"words": ["a"], "tags": ["n", "v"]}
FEATURES = {"features": [f"site={k}" for k in range(6)]}
FM = "hogwild.models.FactorizationMachine"


@pytest.mark.parametrize(
    ("class_path", "names", "arguments", "kind", "matrix", "bias"),
    [
        ("hogwild.models.SparseLinear", FEATURES, {}, "features", "weight", None),
        ("hogwild.models.SparseLinear", FEATURES, {"classes": 4}, "features", "weight", None),
        (FM, FEATURES, {"factors": 3}, "features", "factors", "weight"),
        (FM, {"first": [1], "features": range(6)}, {"factors": 3}, "features", "factors", "weight"),
        ("hogwild.models.DistMult", GRAPH, {"dim": 4}, "entities", "entities.weight", None),
        ("hogwild.models.MatrixFactorization", ITEMS, {"bias": False}, "items", "item.weight", None),
        (f"{__name__}.Plain", {"words": ["b", "a"]}, {}, "words", "word.weight", "prior"),
    ],
)  # fmt: skip
def test_any_table_that_has_names_is_found(
    class_path: str, names: Any, arguments: Any, kind: str, matrix: str, bias: str | None
) -> None:
    if "first" in names:
        names = dict(names)
        sizes, first = {"features": len(names.pop("features"))}, names
        spec = Component(class_path=class_path, init_args=arguments)
        model = build(spec, **sizes)
        of = NamedTable.of(model, spec, first, sizes, kind, {})
        assert [*of.names] == [1, 2, 3, 4, 5, 6]
    else:
        of, model = table(kind, class_path, names, **arguments)
        assert [*of.names] == names[kind]
        assert np.array_equal(table(None, class_path, names, **arguments)[0].matrix.shape, of.matrix.shape)
    tensors, count = model.state_dict(), len(of.names)
    np.testing.assert_array_equal(of.matrix, tensors[matrix][:count])
    assert (of.bias is None) == (bias is None)
    if bias is not None:
        np.testing.assert_array_equal(of.bias, tensors[bias].flatten()[:count])


@pytest.mark.parametrize(
    ("kind", "class_path", "names", "words"),
    [
        ("words", FM, FEATURES, "no vectors of words; it has features"),
        (None, f"{__name__}.Nameless", {}, "no vectors of words, items, entities, users, relations$"),
        (
            "tags",
            f"{__name__}.Tagger",
            TAGS,
            "several tables of tags: again.weight, tag.weight; use --format safetensors",
        ),
    ],
)
def test_a_table_that_is_not_there_or_not_alone_is_refused(
    kind: str | None, class_path: str, names: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        table(kind, class_path, names)
    assert refused.value.code == "usage/no-vectors"


@pytest.mark.parametrize(
    ("format_", "items", "words"),
    [
        ("word2vec", ["", "b"], "it is empty"),
        ("fasttext", ["", "b"], "it is empty"),
        ("word2vec", ["a", "a"], "'a' occurs twice among the 2 items"),
        ("fasttext", ["a", "a"], "'a' occurs twice among the 2 items"),
    ],
)
def test_a_name_that_a_format_cannot_have_is_refused(format_: str, items: list[str], words: str) -> None:
    of, _ = table("items", "hogwild.models.BprFactorization", {"users": [1], "items": items})
    with pytest.raises(UsageError, match=words):
        of.writer(format_, binary=False)
