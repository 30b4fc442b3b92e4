"""Skip-gram and CBOW by id: against a dictionary of words and plain loops, with tables that grow, forget and are full;
what a checkpoint keeps, and what autograd computes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.errors import ModelError, UsageError
from hogwild.kernels import row_claims
from hogwild.kernels.fused import Chunk, Tally
from hogwild.kernels.signatures import HEAD
from hogwild.losses import NegativeSampling
from hogwild.models import NamedSkipGram, SkipGram
from hogwild.models import named_words as module
from hogwild.models.named_words import NO_WORD

DIM, MOST, LASTS, RATE, NEGATIVES, WINDOW = 5, 24, 4, 0.1, 3, 2
STEP, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
Text = list[int]


def batch_of(texts: list[Text], length: int = 8) -> torch.Tensor:
    return torch.tensor([[*text, *[NO_WORD] * (length - len(text))] for text in texts], dtype=torch.int64)


def learner(model: NamedSkipGram, rate: float = RATE) -> Any:
    """Return what trains the model on a batch by its compiled update, as one worker does."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    update: Any = model.fused(NegativeSampling(), optimizer)
    assert not isinstance(update, str), update

    def learn(words: torch.Tensor, seed: int = 0, pieces: int = 1) -> float:
        update.bind(model, optimizer, update.arrays_of(model, [words], torch.ones(len(words))), {})
        parts = [update.run(Chunk(rows, seed)) for rows in np.array_split(np.arange(len(words)), pieces)]
        assert sum(part.applied for part in parts) == len(words)
        return float(sum(part.loss for part in parts))

    return learn


def named_model(**arguments: Any) -> NamedSkipGram:
    torch.manual_seed(1)
    sizes = {"capacity": 6, "max_capacity": MOST, "dim": DIM, "negatives": NEGATIVES, "window": WINDOW}
    return NamedSkipGram(**{**sizes, **arguments})


def mixed(state: int) -> int:
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def below(bits: int, n: int) -> int:
    return ((bits >> 32) * n) >> 32


@dataclass
class Reference:
    """Vectors, counts and the list of recent words in dictionaries and lists; float64, word by word."""

    model: NamedSkipGram
    outputs: dict[int, np.ndarray] = field(default_factory=dict)
    inputs: dict[int, np.ndarray] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    seen: dict[int, int] = field(default_factory=dict)
    recent: list[int] = field(default_factory=list)
    total: int = 0
    entered: int = 0
    lookups: int = 0

    def meet(self, word: int) -> bool:
        """Return whether the word has a row; a new one gets the initial values of the row that it has in the model."""
        if word not in self.inputs and len(self.inputs) < MOST:
            table = self.model.words
            row = int(table.rows_of(torch.tensor([word])))
            made = np.zeros((row + 1, 2 * DIM), np.float32)
            row_claims.draw(made, np.array([row]), table.seed, table.std, table.zeros)
            self.outputs[word], self.inputs[word] = np.zeros(DIM), made[row, DIM:].astype(np.float64)
            assert self.inputs[word].any()
        self.seen[word] = self.lookups
        return word in self.inputs

    def learn(self, texts: list[Text], seed: int) -> float:
        """Learn a batch that the model has learnt."""
        known = [(number, word) for number, text in enumerate(texts) for word in text if self.meet(word)]
        self.lookups += 1
        self.counts.update(word for _, word in known)
        self.total += len(known)
        draws, takes_all = np.random.default_rng(seed), not self.recent
        for (_, word), drawn in zip(known, draws.random(len(known)), strict=True):
            if takes_all or drawn < self.counts[word] ** 0.75 - (self.counts[word] - 1) ** 0.75:
                self.recent[self.entered % self.size : self.entered % self.size + 1] = [word]
                self.entered += 1
        sample, kept = self.model.sample, []
        for (number, word), drawn in zip(known, draws.random(len(known), np.float32), strict=True):
            share = self.counts[word] / self.total
            if not sample or drawn < (np.sqrt(share / sample) + 1) * sample / share:
                kept.append((number, word))
        return sum(self.learn_word(kept, place, seed) for place in range(len(kept)))

    def learn_word(self, kept: list[tuple[int, int]], place: int, seed: int) -> float:
        number, centre = kept[place]
        bits = mixed(seed + STEP * (place + 1))
        reach = 1 + below(mixed(bits + STEP), WINDOW)
        aside = [*range(place - 1, place - 1 - reach, -1), *range(place + 1, place + 1 + reach)]
        contexts = [kept[at][1] for at in aside if 0 <= at < len(kept) and kept[at][0] == number]
        if not contexts:
            return 0.0
        model, loss, state = self.model, 0.0, bits + STEP
        before = dict(self.inputs)  # a word that is two contexts is read once
        groups = [contexts] if model.shared or model.cbow else [[word] for word in contexts]
        for group in groups:
            targets = [centre]
            for _ in range(NEGATIVES):
                state += STEP
                targets.append(self.recent[below(mixed(state), len(self.recent))])
            y = np.stack([self.outputs[word] for word in targets])
            x = np.stack([before[word] for word in group])
            x = x.mean(0, keepdims=True) if model.cbow else x
            signs = np.array([1.0, *(-1.0 * (word != centre) for word in targets[1:])])
            right = 1 / (1 + np.exp(-signs * (x @ y.T)))
            loss -= (np.log(right) * np.abs(signs)).sum()
            slopes = RATE * signs * (1 - right)
            for word, step in zip(targets, slopes.T @ x, strict=True):
                self.outputs[word] = self.outputs[word] + step
            steps = np.repeat(slopes @ y / len(group), len(group), 0) if model.cbow else slopes @ y
            for word, step in zip(group, steps, strict=True):
                self.inputs[word] = self.inputs[word] + step
        return loss

    @property
    def size(self) -> int:
        return len(self.model.words.recent)

    def expire(self) -> None:
        gone = [word for word in self.inputs if self.seen[word] < self.lookups - LASTS]
        for word in gone:
            del self.inputs[word], self.outputs[word], self.counts[word]
        if gone:
            turn = self.entered % self.size if self.entered >= self.size else 0
            self.recent = [word for word in self.recent[turn:] + self.recent[:turn] if word not in gone]
            self.entered = len(self.recent)


TEXTS = st.lists(st.lists(st.integers(-40, -2), max_size=8), min_size=1, max_size=5)


@pytest.mark.filterwarnings("ignore:NamedEmbedding")
@pytest.mark.parametrize(("shared", "cbow"), [(True, False), (False, False), (True, True)])
@settings(deadline=None)
@given(
    st.lists(st.one_of(TEXTS, TEXTS, st.just("expire")), max_size=12), st.sampled_from([0.0, 0.02]), st.integers(1, 3)
)
def test_training_equals_plain_loops_over_a_dictionary(
    shared: bool, cbow: bool, steps: list[list[Text] | str], sample: float, pieces: int
) -> None:
    """With words that nobody knew, a table that grows, is full and forgets, and a list that goes round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EACH", 1)
        model = named_model(shared=shared, cbow=cbow, sample=sample, expire_after=LASTS)
    learn, other = learner(model), Reference(model)
    for seed, step in enumerate(steps, 2**62):
        if isinstance(step, str):
            model.words.expire()
            other.expire()
        else:
            loss = learn(batch_of(step), seed, pieces)
            assert loss == pytest.approx(other.learn(step, seed), rel=1e-4, abs=1e-4)
    words, rows = model.words.named()
    word_of = {int(model.words.rows_of(words[at : at + 1])): int(words[at]) for at in range(len(words))}
    assert {*words.tolist()} == {*other.inputs}
    assert [other.counts[word] for word in words.tolist()] == sorted(other.counts[w] for w in other.inputs)[::-1]
    if other.recent:
        assert [word_of[row] for row in (model.words.drawable // 2).tolist()] == other.recent
    for word, row in zip(words.tolist(), rows.numpy(), strict=True):
        np.testing.assert_allclose(row, [*other.outputs[word], *other.inputs[word]], rtol=1e-3, atol=1e-5)


def test_the_kernel_computes_what_skip_gram_computes_with_numbered_words() -> None:
    """To the bit: the words numbered as the rows are, and a list in the place of its table for negatives."""
    from hogwild.kernels import skipgram

    model = named_model(sample=0.0, dim=33, capacity=20, max_capacity=20)
    learn, texts = learner(model), batch_of([[-2, -3, -4, -5], [-6, -2, -7]] * 4)
    learn(texts, 1)
    before = model.words.weight.detach().numpy().copy()
    learn(texts, 2)
    tokens = (2 * model.words.rows_of(texts[texts != NO_WORD])).numpy().astype(np.int32)
    starts = np.cumsum([0, *[4, 3] * 4])
    ring, flat = model.words.drawable, before.reshape(-1)
    keep, chance = np.ones(2 * len(before), np.float32), np.zeros(len(ring), np.float32)
    own = SkipGram(3, dim=33, window=WINDOW, negatives=NEGATIVES)
    pieces = np.zeros(1, np.int64), np.zeros(0, np.int32)
    skipgram.sgd(
        np.arange(len(tokens)), tokens, starts, keep, chance, ring, flat[33:].reshape(-1, 33), flat.reshape(-1, 33),
        own.input.weight.detach().numpy(), *pieces, WINDOW, WINDOW, True, False, np.uint64(2),
        *[np.float32(RATE)] * 3, *module.scratch(33, WINDOW, NEGATIVES),
    )  # fmt: skip
    assert np.array_equal(before, model.words.weight.detach().numpy())


def test_a_model_that_is_loaded_goes_on_as_if_it_had_never_stopped() -> None:
    draws, model = np.random.default_rng(0), named_model(sample=0.05, max_capacity=60)
    texts = [batch_of(draws.integers(-22, -2, (6, 8)).tolist()) for _ in range(12)]
    learn = learner(model)
    for seed in range(6):
        learn(texts[seed], seed)
    other = named_model(sample=0.05, max_capacity=60)
    other.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    for each in (learn, learner(other)):
        for seed in range(6, 12):
            each(texts[seed], seed)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_table_of_another_capacity_takes_the_vectors_and_no_rows_of_others() -> None:
    model, other = named_model(), named_model(capacity=20)
    learner(model)(batch_of([[-2, -3, -4]] * 4))
    learner(other)(batch_of([[-9, -8, -7]] * 4))
    other.load_state_dict(model.state_dict())
    (words, rows), (theirs, moved) = ((ids.sort()[0], found[ids.argsort()]) for ids, found in _named(model, other))
    assert torch.equal(words, theirs) and torch.equal(rows, moved)
    assert other.words.drawable.tolist() == [0] and not other.words.times.any() and not other.words.noted.any()


def _named(*models: NamedSkipGram) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [model.words.named() for model in models]


@pytest.mark.parametrize("cbow", [False, True])
def test_autograd_computes_the_loss_of_the_kernel(cbow: bool) -> None:
    """Where both draw the same: a window of 1, one word to draw, and a rate of 0 as the kernel learns word by word."""
    model = named_model(window=1, sample=0.0, cbow=cbow)
    texts = batch_of([[-2, -3, -4, -5], [-6], [], [-2, -7]])
    learner(model)(texts, 3)
    torch.nn.init.normal_(model.words.weight, std=0.5)
    model.words.recent.fill_(int(model.words.recent[0]))
    for each in (model.train(), model.eval()):
        taken = int(each.words.noted[0])
        loss = NegativeSampling()(each(texts), torch.ones(4))
        assert (int(each.words.noted[0]) > taken) == each.training
        model.words.recent.fill_(int(model.words.recent[0]))
    loss.backward()
    gradient = model.words.weight.grad
    assert gradient is not None and gradient.is_sparse and torch.isfinite(gradient.to_dense()).all()
    learn = learner(model, 0.0)
    assert 4 * loss.item() == pytest.approx(learn(texts, 5), rel=0.35), "other words may have entered the list"


def test_words_without_a_row_are_left_out_and_the_default_row_learns_nothing() -> None:
    model = named_model(min_count=3, sample=0.0)
    default = model.words.weight[0].detach().clone()
    learn = learner(model)
    assert learn(batch_of([[-2, -3, -2, -2, -2]])) > 0 and model.words.named()[0].tolist() == [-2]
    with torch.no_grad():
        assert model.eval()(batch_of([[-2, -3, -9, -3]])).scores.shape[0] == 0
    assert int(model.words.times.sum()) == 2 and torch.equal(model.words.weight[0], default)
    with pytest.warns(RuntimeWarning, match="are left out"):
        learner(named_model(max_capacity=6))(batch_of([[*range(8)]]))


def test_frequent_words_are_dropped_by_their_counts_so_far() -> None:
    model = named_model(sample=0.01)
    texts = batch_of([[-2, -2, -2, -2, -2, -2, -3, -4]] * 200)
    rows, _ = model.learnt(texts.numpy(), np.random.default_rng(1))
    counts = {word: int((rows == int(model.words.rows_of(torch.tensor([word])))).sum()) for word in (-2, -3)}
    for word, share in ((-2, 0.75), (-3, 0.125)):
        kept = (np.sqrt(share / 0.01) + 1) * 0.01 / share
        assert counts[word] == pytest.approx(1600 * share * kept, rel=0.25)


def test_negatives_have_the_share_of_their_count_to_the_power_of_three_quarters() -> None:
    model, draws, rows = named_model(), np.random.default_rng(1), np.arange(4) + HEAD
    share = np.array([0.7, 0.2, 0.09, 0.01])
    for _ in range(200):
        model.words.note(draws.choice(rows, 500, p=share), draws)
    found = np.bincount(model.words.drawable // 2 - HEAD) / len(model.words.drawable)
    np.testing.assert_allclose(found, share**0.75 / (share**0.75).sum(), atol=0.08)


def test_a_diverged_model_skips_its_texts_and_leaves_no_batch() -> None:
    model = named_model(sample=0.0)
    texts = batch_of([[-2, -3, -4]] * 3)
    learner(model)(texts)
    model.words.weight.data.fill_(float("nan"))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    update: Any = model.fused(NegativeSampling(), optimizer)
    update.bind(model, optimizer, update.arrays_of(model, [texts], torch.ones(3)), {})
    tally = update.run(Chunk(np.arange(3), 1))
    assert (tally.applied, tally.not_finite) == (0, 3)
    assert update.run(Chunk(np.arange(0), 1)) == Tally(0.0, 0, 0)


def test_wrong_sizes_and_frozen_tables_are_told() -> None:
    with pytest.raises(UsageError, match="dim must be a whole number >= 1, got 0"):
        NamedSkipGram(3, dim=0)
    with pytest.raises(ValueError, match="window is 0"):
        NamedSkipGram(3, window=0)
    model = named_model()
    with pytest.raises(ModelError, match="use SkipGram"):
        model.on_data({"tokens": np.zeros(1, np.int32)}, None)
    assert "supports SGD" in str(model.fused(NegativeSampling(), torch.optim.Adagrad(model.parameters(), lr=0.1)))
    model.words.weight.requires_grad_(False)
    assert "frozen" in str(model.fused(NegativeSampling(), torch.optim.SGD(model.parameters(), lr=0.1)))
