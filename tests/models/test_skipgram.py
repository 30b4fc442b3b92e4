"""Skip-gram and CBOW: the compiled update against autograd, what is drawn, what is shared, what is not finite."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.errors import ModelError
from hogwild.kernels import skipgram as kernels
from hogwild.kernels.compiling import kernel
from hogwild.kernels.fused import Chunk, Tally
from hogwild.losses import NegativeSampling, Pairs
from hogwild.models.skipgram import SkipGram, SkipGramUpdate, alias_tables, keep_probabilities, pieces_of

RATE = 0.05
WORDS = ["where", "a", "", "Übermaß", "日本語", "naïve", "aaaa", "🙂b"]
ARGUMENTS = {"buckets": 7, "min_n": 2, "max_n": 3, "sample": 0.0}
Arrays = Mapping[str, np.ndarray]


def text(sentences: list[list[int]], counts: list[int] | None = None) -> dict[str, np.ndarray]:
    """`counts` may be others than the text's: they decide which negatives are drawn."""
    tokens = np.array([word for sentence in sentences for word in sentence], np.int32)
    starts = np.cumsum([0, *map(len, sentences)]).astype(np.int64)
    return {
        "tokens": tokens,
        "starts": starts,
        "counts": np.bincount(tokens) if counts is None else np.array(counts, np.int64),
    }


def random_text(seed: int, words: int, lengths: list[int]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    share = 1 / np.arange(1, words + 1)
    made = [draw.choice(words, size, p=share / share.sum()).tolist() for size in lengths]
    return text(made, [max(1, n) for n in np.bincount(np.concatenate(made).astype(int), minlength=words)])


def model_of(arrays: Arrays, *, spread: float = 0.5, **arguments: object) -> SkipGram:
    torch.manual_seed(3)
    model = SkipGram(len(arrays["counts"]), **{"dim": 20, **arguments})  # type: ignore[arg-type]
    model.on_data(arrays, None)
    for table in (model.input, model.output):
        nn.init.normal_(table.weight, std=spread)
    return model


def bound(model: SkipGram, arrays: Arrays, rate: float = RATE) -> SkipGramUpdate:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    update = model.fused(NegativeSampling(), optimizer)
    assert isinstance(update, SkipGramUpdate), update
    update.bind(model, optimizer, arrays, {})
    return update


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def everything(arrays: Arrays) -> np.ndarray:
    return np.arange(len(arrays["tokens"]))


def windows_of(arrays: Arrays, chosen: np.ndarray, context: int) -> Tensor:
    tokens, starts = arrays["tokens"], arrays["starts"]
    windows = np.full((len(chosen), 2 * context + 1), -1, np.int32)
    for row, place in enumerate(chosen):
        sentence = int(np.searchsorted(starts, place, side="right"))
        for p in range(max(starts[sentence - 1], place - context), min(starts[sentence], place + context + 1)):
            windows[row, p - place + context] = tokens[p]
    return torch.from_numpy(windows)


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


# ---- one sample


# The only word that is ever drawn as a negative is the last one, so both draw the same; a window of 1 is always 1.
@pytest.mark.slow
@pytest.mark.parametrize(("shared", "cbow"), [(True, False), (False, False), (True, True), (False, True)])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("negatives", [1, 5])
@pytest.mark.parametrize("spread", [0.3, 2.0])  # scores up to about 1, and up to about 30
def test_loss_and_gradient_of_a_sample_are_those_of_autograd(
    place: int, negatives: int, shared: bool, cbow: bool, spread: float
) -> None:
    arrays = text([[0, 1, 2], [4, 3]], [0, 0, 0, 0, 7])
    model = model_of(arrays, spread=spread, window=1, negatives=negatives, shared=shared, cbow=cbow, sample=0.0)
    before = tables_of(model)
    scores = model(windows_of(arrays, places(place), 20))
    loss = NegativeSampling()(scores, torch.zeros(1))
    loss.backward()
    expected = [table.weight.grad.to_dense() for table in (model.input, model.output)]  # type: ignore[union-attr]
    tally = bound(model, arrays).run(Chunk(places(place), 1, rate=0.5))
    if not (shared or cbow) and len(scores.scores) > 1:  # pair after pair: the second sees what the first has learnt
        assert tally.loss != pytest.approx(loss.item(), rel=1e-6)
        return
    # Beyond a score of -8 the loss is written as the score itself: off by 3e-4 at most.
    assert tally == Tally(pytest.approx(loss.item(), rel=1e-5, abs=1e-3 if spread > 1 else 1e-5), 1, 0)
    for now, was, gradient in zip(tables_of(model), before, expected, strict=True):
        assert gradient.abs().max() > (0.001 if spread < 1 else 1e-5)
        torch.testing.assert_close((was - now) / (0.5 * RATE), gradient, rtol=1e-4, atol=2e-5 * max(1, spread))


def test_a_negative_that_is_the_word_itself_does_not_count() -> None:
    arrays = text([[0, 1]], [5, 0])  # only word 0 is drawn
    model = model_of(arrays, window=1, negatives=4, sample=0.0)
    scores = model(windows_of(arrays, places(0), 20))
    expected = NegativeSampling()(scores, torch.zeros(1)).item()
    assert expected == pytest.approx(-nn.functional.logsigmoid(scores.scores[0, 0]).item())
    assert bound(model, arrays).run(Chunk(places(0), 1)).loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_word_of_cbow_is_updated_as_the_paper_says(place: int) -> None:
    """By plain loops: the mean of up to two words on each side predicts the word; word 6 is every negative."""
    arrays = text([[0, 1, 2, 3, 1, 1, 4, 5]], [0, 0, 0, 0, 0, 0, 9])
    model = model_of(arrays, cbow=True, window=1, negatives=3, sample=0.0)
    inputs, outputs = (table.double().numpy() for table in tables_of(model))
    tokens = arrays["tokens"].tolist()
    contexts = [tokens[p] for p in (place - 1, place + 1) if 0 <= p < len(tokens)]
    mean, error, loss = sum(inputs[word] for word in contexts) / len(contexts), np.zeros(20), 0.0
    steps = []
    for word, label in [(tokens[place], 1.0), *[(6, 0.0)] * 3]:
        likely = 1 / (1 + np.exp(-mean @ outputs[word]))
        loss -= np.log(likely if label else 1 - likely)
        error += (label - likely) * outputs[word]
        steps.append((word, RATE * (label - likely) * mean))
    for word, step in steps:
        outputs[word] += step
    for word in contexts:
        inputs[word] += RATE * error / len(contexts)
    assert bound(model, arrays).run(Chunk(places(place), 1)) == Tally(pytest.approx(loss, rel=1e-5), 1, 0)
    for now, expected in zip(tables_of(model), (inputs, outputs), strict=True):
        np.testing.assert_allclose(now.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("make", [model_of, spelling])
def test_the_gradient_of_autograd_is_that_of_the_loss(make: Callable[..., SkipGram], cbow: bool) -> None:
    arrays = random_text(1, 8, [12, 5])
    model = make(arrays, dim=3, window=2, negatives=2, cbow=cbow).double()
    windows = windows_of(arrays, everything(arrays), 6)
    for table in model.children():
        table.sparse = False  # type: ignore[assignment]

    def loss(*weights: Tensor) -> Tensor:
        torch.manual_seed(5)
        state = dict(zip([name for name, _ in model.named_parameters()], weights, strict=True))
        result: Tensor = NegativeSampling()(torch.func.functional_call(model, state, (windows,)), torch.zeros(17))
        return result

    assert torch.autograd.gradcheck(loss, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "cbow"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("dim", [3, 20, 32])
def test_loss_and_gradient_of_pieces_are_those_of_autograd(shared: bool, cbow: bool, dim: int) -> None:
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


# ---- what is drawn


@pytest.mark.parametrize("sample", [0.0, 0.02])
@pytest.mark.parametrize("context", [3, 20])
def test_kernel_and_autograd_draw_as_many_pairs(sample: float, context: int) -> None:
    """With out-vectors of zeros each score is 0, and each pair's loss (1 + K) log 2 but for negatives that are the word
    itself: the loss counts pairs. Of 6,000 words the mean is within 2 % of the expected one (four deviations)."""
    arrays = random_text(2, 50, [1, 2, 3, 30, 1, 400] * 60)
    arrays = {key: value[: int(arrays["starts"][90])] if key == "tokens" else value for key, value in arrays.items()}
    arrays["starts"] = arrays["starts"][:91]
    model = model_of(arrays, window=4, sample=sample, context=context)
    nn.init.zeros_(model.output.weight)
    torch.manual_seed(1)
    chosen = everything(arrays)
    expected = NegativeSampling()(model(windows_of(arrays, chosen, context)), torch.zeros(len(chosen)))
    tally = bound(model, arrays, rate=0.0).run(Chunk(chosen, 4))
    assert tally.applied == len(chosen)
    assert tally.loss / len(chosen) == pytest.approx(expected.item(), rel=0.02)


def test_negatives_are_drawn_by_count_to_the_power_of_three_quarters() -> None:
    share = np.array([1000, 1, 50, 0, 7, 7, 300], np.float64) ** 0.75
    chance, other = alias_tables(share)
    drawn = np.zeros(len(share))
    for place in range(len(share)):
        drawn[place] += chance[place] / len(share)
        drawn[other[place]] += (1 - chance[place]) / len(share)
    np.testing.assert_allclose(drawn, share / share.sum(), atol=1e-7)
    # And autograd's, of the same counts.
    model = SkipGram(7, dim=2, negatives=50)
    model.on_data({"tokens": np.zeros(1), "counts": np.array([1000, 1, 50, 0, 7, 7, 300])}, None)
    torch.manual_seed(0)
    found = torch.bincount(model._negatives(400, torch.arange(400)).reshape(-1), minlength=7) / 20_000
    np.testing.assert_allclose(found.numpy(), share / share.sum(), atol=0.02)


@kernel
def _draw(seed, count, chance, other, targets, signs, found):  # type: ignore[no-untyped-def]
    state = np.uint64(seed)
    for _ in range(count):
        state = kernels.draw_targets(state, np.int32(0), chance, other, targets, signs)
        for k in range(1, len(targets)):
            found[targets[k]] += 1


def test_the_kernel_draws_negatives_as_its_tables_say() -> None:
    share = np.array([1000, 1, 50, 0, 7, 7, 300], np.float64) ** 0.75
    found, targets = np.zeros(7, np.int64), np.zeros(6, np.int32)
    _draw(7, 20_000, *alias_tables(share), targets, np.zeros((1, 16), np.float32), found)
    np.testing.assert_allclose(found / 100_000, share / share.sum(), atol=0.006)


def test_words_are_dropped_as_word2vec_drops_them() -> None:
    kept = keep_probabilities(torch.tensor([900, 99, 1]), 0.01)
    assert kept.tolist() == pytest.approx([(9.486833 + 1) / 90, (3.146427 + 1) / 9.9, 1.0], rel=1e-5)
    assert keep_probabilities(torch.tensor([5, 1]), 0.0).tolist() == [1.0, 1.0]


def test_what_is_drawn_does_not_depend_on_how_a_chunk_is_cut() -> None:
    arrays = random_text(3, 40, [50, 70])
    found = []
    for cuts in ([0, 120], [0, 1, 50, 77, 120]):
        model = model_of(arrays, sample=0.05)
        update = bound(model, arrays)
        for first, last in pairwise(cuts):
            update.run(Chunk(everything(arrays)[first:last], 9))
        found.append(tables_of(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_sentences_are_found_in_any_order_of_places() -> None:
    arrays = random_text(6, 30, [5, 1, 40, 2, 2, 17, 60])
    update = bound(model_of(arrays, sample=0.0), arrays, rate=0.0)
    rows = everything(arrays)
    alone = [update.run(Chunk(rows[place : place + 1], 3)).loss for place in rows]
    assert alone[5] == 0  # a sentence of one word
    for seed in range(3):
        mixed = np.random.default_rng(seed).permutation(rows)
        assert update.run(Chunk(mixed, 3)).loss == pytest.approx(sum(alone), rel=1e-6)


# ---- what is shared, and what is not finite


@kernel
def _read_rows(weight, rows, local):  # type: ignore[no-untyped-def]
    kernels.copy_rows(weight, rows, 0, len(rows), local)


@kernel
def _add_rows(weight, rows, steps):  # type: ignore[no-untyped-def]
    kernels.add_rows(weight, rows, 0, len(rows), steps)


@pytest.mark.parametrize("dim", [5, 16, 40])
def test_what_others_write_while_a_word_is_computed_stays(dim: int) -> None:
    """A row is added to, not replaced by what was read of it; and no column of the next row is touched."""
    weight = np.arange(4 * dim, dtype=np.float32).reshape(4, dim)
    rows, local = np.array([2, 0], np.int32), np.zeros((2, 48), np.float32)
    _read_rows(weight, rows, local)
    assert (local[:, :dim] == weight[[2, 0]]).all()
    assert not local[:, dim:].any()
    weight += 100  # by somebody else
    before = weight.copy()
    _add_rows(weight, rows, np.full((2, 48), 0.5, np.float32))
    before[[2, 0]] += 0.5
    assert (weight == before).all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sample_whose_gradient_is_not_finite_is_counted_and_not_applied(value: float, shared: bool) -> None:
    arrays = text([[0, 1, 2], [3, 4, 5, 6]])
    model = model_of(arrays, window=1, sample=0.0, shared=shared)
    with torch.no_grad():
        model.input.weight[1, 7] = value
    before = tables_of(model)
    update = bound(model, arrays)
    tally = update.run(Chunk(places(0, 2), 1))
    assert (tally.applied, tally.not_finite, tally.loss) == (0, 2, 0.0)
    assert torch.equal(model.output.weight, before[1])
    tally = update.run(Chunk(everything(arrays), 1))
    assert (tally.applied, tally.not_finite) == (5, 2)
    assert np.isfinite(tally.loss)
    assert model.output.weight.isfinite().all()
    assert model.input.weight.isfinite().sum() == model.input.weight.numel() - 1


def test_a_chunk_of_nothing_compiles_and_changes_nothing() -> None:
    arrays = text([[0, 1]])
    model = model_of(arrays)
    before = tables_of(model)
    assert bound(model, arrays).run(Chunk(np.empty(0, np.int64), 0)) == Tally(0.0, 0, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, tables_of(model), strict=True))


@pytest.mark.parametrize(("make", "frozen"), [(model_of, "input"), (spelling, "input"), (spelling, "subwords")])
def test_a_frozen_table_stays_as_it_is(make: Callable[..., SkipGram], frozen: str) -> None:
    arrays = text([[0, 1, 2]])
    model = make(arrays, window=2, negatives=2, sample=0.0)
    getattr(model, frozen).weight.requires_grad_(False)
    before = tables_of(model)
    bound(model, arrays).run(Chunk(everything(arrays), 1))
    same = [torch.equal(now, was) for now, was in zip(tables_of(model), before, strict=True)]
    assert same == [frozen == "input", False, frozen == "subwords"][: len(same)]


# ---- when there is a kernel, and when not


@pytest.mark.parametrize(
    ("rule", "arguments", "words"),
    [
        (torch.optim.Adagrad, {}, "supports SGD, not Adagrad"),
        (torch.optim.SGD, {"momentum": 0.5}, "momentum"),
        (torch.optim.SGD, {"weight_decay": 0.1}, "weight_decay"),
    ],
)
def test_another_rule_is_left_to_autograd(rule: type, arguments: dict[str, float], words: str) -> None:
    model = SkipGram(3, dim=2)
    why = model.fused(NegativeSampling(), rule(model.parameters(), lr=0.1, **arguments))
    assert isinstance(why, str)
    assert words in why


def test_another_loss_or_type_is_left_to_autograd() -> None:
    model = SkipGram(3, dim=2)
    assert "not for MSELoss" in str(model.fused(nn.MSELoss(), torch.optim.SGD(model.parameters())))
    model = model.double()
    assert "float32" in str(model.fused(NegativeSampling(), torch.optim.SGD(model.parameters())))


def test_a_text_of_other_words_is_refused() -> None:
    with pytest.raises(ModelError, match="words is 3, but the text has 2"):
        SkipGram(3).on_data(text([[0, 1]]), None)
    with pytest.raises(ModelError, match="must be a text"):
        SkipGram(3).on_data({"user": np.zeros(3, np.int32)}, None)


# ---- what is learnt


def topics(seed: int, count: int) -> dict[str, np.ndarray]:
    """Sentences of 12 words, each of one of four topics of six words."""
    draw = np.random.default_rng(seed)
    return text([(6 * draw.integers(4) + draw.integers(0, 6, 12)).tolist() for _ in range(count)])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For operations so small, a second one is only waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("cbow", [False, True])
def test_kernel_and_autograd_learn_the_same(cbow: bool, one_thread: None) -> None:
    """Losses of both models within 3 %; of 24 words in four topics each is nearer to its own than to any other."""
    arrays, losses = topics(5, 150), []
    windows = windows_of(arrays, everything(arrays), 3)
    for learn in (_learn_fused, _learn_by_autograd):
        torch.manual_seed(1)
        model = SkipGram(24, dim=16, window=3, negatives=4, sample=0.0, cbow=cbow)
        model.on_data(arrays, None)
        learn(model, arrays, windows, 0.1 if cbow else 0.025)
        unit = nn.functional.normalize(model.vectors().detach())
        same = torch.arange(24)[:, None] // 6 == torch.arange(24) // 6
        assert (unit @ unit.T)[same].min() > (unit @ unit.T)[~same].max()
        torch.manual_seed(2)
        with torch.no_grad():
            losses.append(NegativeSampling()(model.eval()(windows), torch.zeros(1)).item())
    assert losses[0] == pytest.approx(losses[1], rel=0.03)


def _learn_fused(model: SkipGram, arrays: Arrays, windows: Tensor, rate: float) -> None:
    update = bound(model, arrays, rate=rate)
    for epoch in range(20):
        update.run(Chunk(everything(arrays), epoch))


def _learn_by_autograd(model: SkipGram, arrays: Arrays, windows: Tensor, rate: float) -> None:
    model.input.sparse = model.output.sparse = False  # of 24 words, dense gradients are quicker
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * 8)
    for _ in range(20):
        for batch in windows.split(8):
            optimizer.zero_grad()
            NegativeSampling()(model(batch), torch.zeros(1)).backward()
            optimizer.step()


def test_in_evaluation_a_window_is_whole_and_pairs_have_cosines() -> None:
    arrays = text([[0, 1, 2, 3, 4, 5]])
    model = model_of(arrays, window=2, sample=1e-9, negatives=3).eval()
    output = model(windows_of(arrays, everything(arrays), 20))
    assert isinstance(output, Pairs)
    assert len(output.scores) == 2 + 3 + 4 + 4 + 3 + 2
    cosines = model(torch.tensor([[0, 0], [1, 2]], dtype=torch.int32)).detach()
    a, b = model.vectors().detach()[1:3]
    assert cosines.tolist() == pytest.approx([1.0, float(a @ b / (a.norm() * b.norm()))], abs=1e-6)
    loss = NegativeSampling()(cosines, torch.tensor([1.0, 0.0]))
    assert loss.item() == pytest.approx(cosines[1].item() ** 2 / 2, rel=1e-4)


# ---- pieces of words


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
