"""Skip-gram and CBOW whose words are asked for by id, as a stream of texts brings them, also those that nobody has seen
before; and their compiled update: that of `SkipGram`, on the rows that the ids have.

    texts of a batch ──► rows of their words (new ones claim one) ──► counted; some enter `recent`
                    ──► frequent words are dropped by their counts so far ──► kernel: negatives are any of `recent`

No vocabulary is known from which a table for negatives could be made. So a list of recent words stands for it, as in
the adaptive table of Kaji and Kobayashi, "Incremental Skip-gram Model with Negative Sampling", 2017: a word that was
seen f times enters it with probability f^0.75 - (f - 1)^0.75, so that a word of a stream that does not change has the
share f^0.75 in it. Theirs is a sample of all that came, and a word of an old stream hardly enters it; here a word that
enters takes the place of the oldest one, so negatives are those of late.

Counts and list lie beside the rows of the table (`WordRows`), shared by all workers and in every checkpoint. Several
workers write them without a lock: a count, or a place of the list, that is lost now and then changes a probability a
little. A row that is given back leaves both in the same pause; a table that grows moves no row, so the list stays true.
All draws of a batch follow from its seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hogwild.errors import ModelError, UsageError
from hogwild.kernels import signatures
from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import Numbers
from hogwild.kernels.signatures import GONE, HEAD
from hogwild.losses import Pairs
from hogwild.models.named_rows import any_ids
from hogwild.models.skipgram import FLATTENED, WindowModel, keep_probabilities, scratch, why_not
from hogwild.nn import NamedEmbedding

NO_WORD = -1  # in a text's ids, behind its last word
RECENT, EACH = 1 << 20, 16  # places of the list: so many, but not more than this for each row
MOST_ROWS = (1 << 30) - HEAD  # twice the number of a row is int32
SPREAD = 1 / 12**0.5  # standard deviation of word2vec's uniform numbers in [-0.5, 0.5)
COUNTED, ENTERED = 0, 1  # in `noted`


class WordRows(NamedEmbedding):
    """A `NamedEmbedding` of (max_capacity + 2, 2 dim): a word's output vector, 0 at first, then its input vector, so
    that one claim makes both. Seen as (2 (max_capacity + 2), dim), `2 row` is the one and `2 row + 1` the other.

    Further parameters, frozen and shared as `keys`: `times` (max_capacity,) int64, how often a word was seen since it
    has its row; `recent` (n,) int32, a ring of twice the rows of words; `noted` (2,) int64: words that were counted,
    and that entered `recent`."""

    whole = ("life", "recent", "noted")
    without_room = "are left out"

    def __init__(self, dim: int, capacity: int, **more: Any) -> None:
        is_size = type(dim) is int and dim > 0
        self.zeros = dim
        super().__init__(2 * dim if is_size else dim, capacity, std=SPREAD / dim if is_size else 1.0, **more)
        if self.max_capacity > MOST_ROWS:
            words = f"WordRows: max_capacity must be <= {MOST_ROWS:,}, got {self.max_capacity:,}"
            raise UsageError(words, code="usage/bad-value")
        sizes = (self.max_capacity, torch.int64), (min(RECENT, EACH * self.max_capacity), torch.int32), (2, torch.int64)
        self.times, self.recent, self.noted = (
            nn.Parameter(torch.zeros(size, dtype=dtype), requires_grad=False) for size, dtype in sizes
        )

    def note(self, rows: np.ndarray, draws: np.random.Generator) -> None:
        """Count the words that have these rows (n,) int64, and let some of them into `recent`; all while it is empty:
        none of those that it had may be left, and of frequent words few enter."""
        times, recent, noted = (one.detach().numpy() for one in (self.times, self.recent, self.noted))
        places, many = np.unique(rows - HEAD, return_counts=True)
        times[places] += many
        noted[COUNTED] += len(rows)
        seen = times[rows - HEAD].astype(np.float64)
        enters = draws.random(len(rows)) < seen**FLATTENED - np.maximum(seen - 1, 0) ** FLATTENED
        enters |= noted[ENTERED] == 0
        count = np.count_nonzero(enters)
        recent[(noted[ENTERED] + np.arange(count)) % len(recent)] = 2 * rows[enters]  # of one place the last one stays
        noted[ENTERED] += count

    def kept(self, rows: np.ndarray, sample: float, draws: np.random.Generator) -> np.ndarray:
        """Return which of the words with these rows (n,) sub-sampling keeps, by their counts so far."""
        counts = torch.from_numpy(self.times.detach().numpy()[rows - HEAD])
        keep: np.ndarray = keep_probabilities(counts, sample, int(self.noted[COUNTED])).numpy()
        return draws.random(len(rows), np.float32) < keep

    @property
    def drawable(self) -> np.ndarray:
        """Twice the rows of the words in `recent`, (n,) int32, a view; the default row alone while it is empty."""
        found: np.ndarray = self.recent.detach().numpy()
        return found[: min(max(1, int(self.noted[ENTERED])), len(found))]

    def named(self) -> tuple[Tensor, Tensor]:
        """Return the ids that have a row, (n,) int64, those that were seen most often first, and their rows (n, 2 dim),
        copied."""
        ids, rows = super().named()
        parts = self.in_use()
        order = parts["times"][parts["keys"] > GONE].argsort(descending=True, stable=True)
        return ids[order], rows[order]

    def divided(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return np.ascontiguousarray(rows[:, self.zeros :]), None

    def prepare(self, capacity: int) -> None:
        self.times.detach()[self.capacity : capacity] = 0
        super().prepare(capacity)

    def _forget(self, places: np.ndarray) -> None:
        """Begin the counts anew, and take the words out of `recent`: the next ones of these rows are others."""
        self.times.detach()[torch.from_numpy(places)] = 0
        recent, noted = self.recent.detach().numpy(), self.noted.detach().numpy()
        turned = np.roll(recent, -int(noted[ENTERED])) if noted[ENTERED] >= len(recent) else self.drawable
        left = turned[self.in_use()["keys"].numpy()[turned // 2 - HEAD] > GONE]
        recent[: len(left)], noted[ENTERED] = left, len(left)


class NamedSkipGram(WindowModel):
    """A `SkipGram`, or CBOW, whose words are asked for by id, as `Follow` and `Kafka` make them of texts (`text`). A
    word gets its row in the first training batch that has it; see `hogwild.nn.NamedEmbedding`. With `NegativeSampling`
    and torch.optim.SGD a compiled kernel trains the job. A sample is a text: its loss is the sum over its words.

        words (B, L) int64, -1 behind a text's last one  ->  Pairs

    Negatives are drawn from words seen of late, frequent words are dropped by their counts so far; words without a row
    are left out. The learning rate is per pair, as a SkipGram's: autograd with batches of B needs B times the rate. A
    row of `words` is the output vector, then the input vector. Raises UsageError and ValueError for a size below 1.

    Arguments:
        capacity: words that have a row of their own at first.
        dim: numbers of a word's vector.
        window: a word's contexts are up to b words on each side, b drawn from 1 to this.
        negatives: words drawn as wrong answers.
        shared: draw negatives for each word; false: for each pair of a word and a context.
        sample: words whose share of what was seen so far is above this are sometimes dropped (0: never).
        cbow: the mean of all contexts predicts the word; false: each one does (skip-gram).
        min_count: a word gets its row when training sees it for the so-manieth time.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        max_capacity: words that have a row of their own at most; null: `capacity`.
        expire_after: a word that is not in so many training batches loses its row; null: never."""

    def __init__(
        self,
        capacity: int,
        dim: int = 100,
        window: int = 5,
        negatives: int = 5,
        shared: bool = True,
        sample: float = 1e-3,
        cbow: bool = False,
        min_count: int = 1,
        sparse: bool = True,
        max_capacity: int | None = None,
        expire_after: int | None = None,
    ) -> None:
        super().__init__({"window": window, "negatives": negatives}, shared, sample, cbow)
        life: Any = {"max_capacity": max_capacity, "expire_after": expire_after}
        self.words = WordRows(dim, capacity, min_count=min_count, sparse=sparse, **life)

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Raise ModelError: packed data has numbered its words."""
        words = "NamedSkipGram takes texts of a stream (Follow, Kafka); this data has numbered its words: use SkipGram"
        raise ModelError(words, code="model/unlike-data")

    def forward(self, words: Tensor) -> Pairs:
        """Return the pairs of texts (B, L) int64. In evaluation no word is dropped, windows are whole and nothing is
        counted."""
        draws = np.random.default_rng(int(torch.randint(2**62, ()))) if self.training else None
        rows, starts = self.learnt(words.long().numpy(), draws)
        sentence = np.repeat(np.arange(len(words)), np.diff(starts))
        places = np.arange(len(rows))[:, None] + np.arange(-self.window, self.window + 1)
        is_in = (places >= starts[sentence][:, None]) & (places < starts[sentence + 1][:, None])
        windows = np.where(is_in, rows.take(places, mode="clip") if len(rows) else 0, NO_WORD)
        return self.pairs(torch.from_numpy(windows), max(1, len(words)))

    def learnt(self, words: np.ndarray, draws: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (n,) int64 of the words of texts (B, L) that are learnt, one text after the other, and where
        each begins, and the end, (B + 1,) int64. With `draws` unknown words claim rows; all are counted, some
        dropped."""
        text, place = np.nonzero(words != NO_WORD)
        rows = self.words.rows_of(torch.from_numpy(words[text, place]), claim=draws is not None).numpy()
        is_known = rows >= HEAD
        text, rows = text[is_known], rows[is_known]
        if draws is not None:
            self.words.note(rows, draws)
            is_kept = self.words.kept(rows, self.sample, draws)
            text, rows = text[is_kept], rows[is_kept]
        return rows, np.searchsorted(text, np.arange(len(words) + 1))

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update for this loss and optimizer, or the reason why there is none."""
        weight = self.words.weight
        if weight.dtype != torch.float32 or not weight.requires_grad:
            return "words.weight is frozen, or not float32"
        return why_not(loss, optimizer) or NamedWordsUpdate(self)

    def _vectors(self, words: Tensor) -> Tensor:
        return self._rows(words)[:, self.words.zeros :]

    def _outputs(self, words: Tensor) -> Tensor:
        return self._rows(words)[..., : self.words.zeros]

    def _rows(self, words: Tensor) -> Tensor:
        return functional.embedding(words, self.words.weight, sparse=self.words.sparse)

    def _drawn(self, count: int) -> Tensor:
        recent = self.words.drawable
        return torch.from_numpy(recent[torch.randint(len(recent), (count,)).numpy()] // 2).long()


class NamedWordsUpdate:
    """Fused update of a NamedSkipGram. Words become rows as their batch is learnt, so one that is only looked at, or
    scored beforehand, has none yet."""

    implements = frozenset({"lr_schedule"})
    kernels = signatures.words(is_named=True)
    sides: tuple[Side, ...] = ()

    def __init__(self, model: NamedSkipGram) -> None:
        self.name = f"{'CBOW' if model.cbow else 'skip-gram'} by id, SGD"
        self._scratch = scratch(model.words.zeros, model.window, model.negatives)

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and a batch, as `arrays_of` returns it."""
        from hogwild.kernels import skipgram

        assert isinstance(model, NamedSkipGram)
        self._kernel, self._model, self._words = skipgram.sgd, model, arrays["words"]
        self._text: tuple[np.ndarray, np.ndarray] | None = None
        self._rate = Numbers.of(optimizer, model.words.weight, 1.0).rate
        flat, dim = model.words.weight.detach().numpy().reshape(-1), model.words.zeros
        self._tables = flat[dim:].reshape(-1, dim), flat.reshape(-1, dim)

    def arrays_of(self, model: nn.Module, inputs: Sequence[Tensor], target: Tensor) -> Arrays:
        """Return a batch words (B, L), target (B,), as arrays."""
        if len(inputs) != 1 or inputs[0].dim() != 2 or inputs[0].shape[:1] != target.shape:
            raise ValueError("a batch must be words (B, L), target (B,)")
        return {"words": any_ids("words", inputs[0].reshape(-1)).reshape(inputs[0].shape)}

    def run(self, chunk: Chunk) -> Tally:
        """Update with the words of the texts `chunk.rows`; one with a word whose loss is not finite is counted."""
        if self._text is None and len(chunk.rows):  # once: a batch may be computed in pieces
            rows, starts = self._model.learnt(self._words, np.random.default_rng(chunk.seed))
            self._text = (2 * rows).astype(np.int32), starts
        tokens, starts = self._text or (np.zeros(0, np.int32), np.zeros(1, np.int64))
        parts = [np.arange(starts[text], starts[text + 1]) for text in chunk.rows.tolist()]
        places = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        model, (inputs, outputs) = self._model, self._tables
        options = np.int64(model.window), np.int64(model.window), bool(model.shared), bool(model.cbow)
        loss, _, bad = self._kernel(
            places, tokens, starts, None, None, model.words.drawable, inputs, outputs, inputs, *NO_PIECES, *options,
            np.uint64(chunk.seed), *(np.float32(self._rate * chunk.rate),) * 3, *self._scratch,
        )  # fmt: skip
        not_finite = min(int(bad), len(chunk.rows))
        return Tally(float(loss), len(chunk.rows) - not_finite, not_finite)


NO_PIECES = np.zeros(1, np.int64), np.zeros(0, np.int32)
