"""Pieces of words, in the kernel, in autograd, and in the vectors of words that nobody has seen."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.kernels.fused import Chunk, Tally
from hogwild.losses import NegativeSampling
from hogwild.models.skipgram import SkipGram, pieces_of
from tests.models.test_skipgram import RATE, bound, everything, model_of, places, random_text, text, windows_of

WORDS = ["where", "a", "", "Übermaß", "日本語", "naïve", "aaaa", "🙂b"]
ARGUMENTS = {"buckets": 7, "min_n": 2, "max_n": 3, "sample": 0.0}


def hashed(word: str, min_n: int, max_n: int, buckets: int) -> list[int]:
    """The rule, letter by letter."""
    marked, found = f"<{word}>", []
    for first, size in itertools.product(range(len(marked)), range(min_n, max_n + 1)):
        piece = marked[first : first + size]
        if len(piece) < size or piece in ("<", ">"):
            continue
        value = 2166136261
        for byte in piece.encode():
            value = (value ^ (byte | (0xFFFFFF00 if byte > 127 else 0))) * 16777619 % 2**32
        found.append(value % buckets)
    return sorted(found)


@pytest.mark.parametrize("lengths", [(3, 6), (1, 1), (2, 3), (5, 9)])
@pytest.mark.parametrize("buckets", [1, 1000, 2_000_000])
def test_pieces_are_hashed_as_fasttext_does(lengths: tuple[int, int], buckets: int) -> None:
    starts, pieces = pieces_of(WORDS, *lengths, buckets)
    for number, word in enumerate(WORDS):
        mine = sorted(pieces[starts[number] : starts[number + 1]].tolist())
        assert mine == hashed(word, *lengths, buckets), word
    starts, pieces = pieces_of([], *lengths, buckets)
    assert starts.tolist() == [0] and len(pieces) == 0


def spelling(arrays: dict[str, np.ndarray], **arguments: object) -> SkipGram:
    """A model whose words are called aa, ab, ac, …, which have pieces in common, and the last one has a piece twice."""
    model = model_of(arrays, **{**ARGUMENTS, **arguments})
    names = [f"a{chr(97 + number)}" for number in range(len(arrays["counts"]) - 1)]
    model.on_names({"words": [*names, "baba"]})
    assert model.subwords is not None
    nn.init.normal_(model.subwords.weight, std=0.5)
    return model


def tables_of(model: SkipGram) -> list[Tensor]:
    return [table.weight.detach().clone() for table in (model.input, model.output, model.subwords) if table is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "cbow"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("dim", [3, 20, 32])
def test_loss_and_gradient_of_a_sample_are_those_of_autograd(shared: bool, cbow: bool, dim: int) -> None:
    arrays = text([[0, 1, 2, 4], [4, 3]], [0, 0, 0, 0, 7])
    places_ = (1, 2) if shared or cbow else (0, 5)  # pair after pair, one sees what the one before it has learnt
    for place in places_:
        model = spelling(arrays, dim=dim, window=1, negatives=3, shared=shared, cbow=cbow)
        before = tables_of(model)
        loss = NegativeSampling()(model(windows_of(arrays, places(place), 20)), torch.zeros(1))
        loss.backward()
        expected = [param.grad.to_dense() for param in model.parameters() if param.grad is not None]
        tally = bound(model, arrays).run(Chunk(places(place), 1, rate=0.5))
        assert tally == Tally(pytest.approx(loss.item(), rel=1e-5), 1, 0)
        for now, was, gradient in zip(tables_of(model), before, expected, strict=True):
            assert gradient.abs().max() > 0.001
            torch.testing.assert_close((was - now) / (0.5 * RATE), gradient, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("cbow", [False, True])
def test_the_gradient_of_autograd_is_that_of_the_loss(cbow: bool) -> None:
    arrays = random_text(1, 6, [9, 5])
    model = spelling(arrays, dim=3, window=2, negatives=2, cbow=cbow).double()
    windows = windows_of(arrays, everything(arrays), 6)
    for table in (model.input, model.output, model.subwords):
        assert table is not None
        table.sparse = False

    def loss(*weights: Tensor) -> Tensor:
        torch.manual_seed(5)
        state = dict(zip([name for name, _ in model.named_parameters()], weights, strict=True))
        result: Tensor = NegativeSampling()(torch.func.functional_call(model, state, (windows,)), torch.zeros(14))
        return result

    assert torch.autograd.gradcheck(loss, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


@pytest.mark.parametrize("frozen", ["input", "subwords"])
def test_a_frozen_table_stays_as_it_is(frozen: str) -> None:
    arrays = text([[0, 1, 2]])
    model = spelling(arrays, window=2, negatives=2)
    getattr(model, frozen).weight.requires_grad_(False)
    before = tables_of(model)
    bound(model, arrays).run(Chunk(everything(arrays), 1))
    same = [torch.equal(now, was) for now, was in zip(tables_of(model), before, strict=True)]
    assert same == [frozen == "input", False, frozen == "subwords"]


def test_a_word_is_its_row_and_its_pieces_and_an_unknown_one_only_its_pieces() -> None:
    model = spelling(text([[0, 1, 2]]), dim=5)
    assert model.subwords is not None
    rows, pieces = model.input.weight.detach(), model.subwords.weight.detach()
    own = [hashed(word, 2, 3, 7) for word in ("aa", "ab", "baba")]
    expected = [(rows[k] + pieces[found].sum(0)) / (1 + len(found)) ** 0.5 for k, found in enumerate(own)]
    torch.testing.assert_close(model.vectors(), torch.stack(expected))
    cosine = torch.cosine_similarity(expected[0], expected[2], 0).item()
    assert model(torch.tensor([[0, 2]])).item() == pytest.approx(cosine, abs=1e-6)
    unknown = hashed("abracadabra", 2, 3, 7)
    found = model.spelled(["abracadabra", ""])  # of <> there is one piece of two characters
    torch.testing.assert_close(found[0], pieces[unknown].sum(0) / len(unknown) ** 0.5)
    torch.testing.assert_close(found[1], pieces[hashed("", 2, 3, 7)[0]])
    assert not SkipGram(3, dim=2, buckets=5, min_n=4).spelled(["a"]).any()
    assert not SkipGram(3, dim=2).spelled(["where"]).any()


@pytest.mark.parametrize("arguments", [{"buckets": -1}, {"min_n": 0}, {"min_n": 4, "max_n": 3}])
def test_sizes_that_cannot_be_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 0, and 1 <= min_n <= max_n"):
        SkipGram(3, **arguments)
