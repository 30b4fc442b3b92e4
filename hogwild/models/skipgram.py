"""Skip-gram and CBOW with negative sampling: word vectors learnt from the words around each word.

Mikolov, Sutskever, Chen, Corrado and Dean, "Distributed Representations of Words and Phrases and their
Compositionality", 2013. As in their program: words are dropped by frequency before windows are formed, so that a window
reaches over them; its size is drawn for each word; the input vector of a context word predicts the word, against words
drawn by count^0.75. In CBOW (Mikolov, Chen, Corrado and Dean, "Efficient Estimation of Word Representations in Vector
Space", 2013) the mean of the contexts' input vectors predicts it, once.

Their program adds the gradient of CBOW's mean to each of its vectors, whole. Here each gets its share, as the loss has
it, which makes CBOW as good as skip-gram at a higher rate (Irsoy, Benton and Stratos, "Corrected CBOW Performs as well
as Skip-gram", 2021).

With `buckets` a word is the sum of a vector of its own and those of its character n-grams (Bojanowski, Grave, Joulin
and Mikolov, "Enriching Word Vectors with Subword Information", 2017), over the root of their number: a step moves a
word as far as without them, however long it is. Its n-grams are hashed to a fixed number of rows:

    where, 3 to 4 characters      <wh whe her ere re> <whe wher here ere>     ──FNV-1a, as fastText──►  [0, buckets)"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.kernels import signatures
from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally
from hogwild.losses import NegativeSampling, Pairs
from hogwild.metrics.built_in import spearman
from hogwild.models.row_checks import not_float32

AT_ONCE = 4096  # words whose pieces are in memory at one time
FLATTENED = 0.75  # exponent of word counts for drawing negatives


class WindowModel(nn.Module):
    """Base class: the words around a word predict it, against words that are drawn. Raises ValueError for a size below
    1 and a negative `sample`."""

    def __init__(self, sizes: Mapping[str, int], shared: bool, sample: float, cbow: bool) -> None:
        super().__init__()
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 at least")
        if not sample >= 0:
            raise ValueError(f"sample is {sample}; it must not be negative")
        self.window, self.negatives = sizes["window"], sizes["negatives"]
        self.shared, self.sample, self.cbow = shared, sample, cbow

    def pairs(self, windows: Tensor, samples: int) -> Pairs:
        """Return the pairs of windows (N, 2 c + 1) int of words, -1 for none, the centres in the middle; `samples`: of
        the batch that has them."""
        chosen = self._contexts(windows)
        sample, place = chosen.nonzero(as_tuple=True)
        context = self._vectors(windows[sample, place])
        if self.cbow:
            sums = context.new_zeros(len(windows), context.shape[1]).index_add(0, sample, context)
            sample, counts = sample.unique(return_counts=True)
            context = sums[sample] / counts[:, None]
        centre = windows[sample, windows.shape[1] // 2].long()
        negative = self._negatives(len(windows), sample)
        targets = torch.cat([centre[:, None], negative], 1)
        scores = torch.einsum("pd,pkd->pk", context, self._outputs(targets))
        weights = torch.ones_like(scores)
        weights[:, 1:] = (negative != centre[:, None]).to(scores.dtype)
        return Pairs(scores, weights / samples)

    def _vectors(self, words: Tensor) -> Tensor:
        """Return the input vectors (n, dim) of words (n,) int."""
        raise NotImplementedError

    def _outputs(self, words: Tensor) -> Tensor:
        """Return the output vectors (…, dim) of words (…) int64."""
        raise NotImplementedError

    def _drawn(self, count: int) -> Tensor:
        """Return `count` words as negatives, int64."""
        raise NotImplementedError

    def _kept(self, windows: Tensor) -> Tensor:
        """Return which words of the windows are there, bool."""
        return windows >= 0

    # ---- random draws

    def _contexts(self, windows: Tensor) -> Tensor:
        """Return (N, 2 c + 1) bool: the words of each window that are its contexts this time."""
        middle = windows.shape[1] // 2
        there = self._kept(windows)
        reach = torch.full((len(windows), 1), self.window)
        if self.training:
            reach = torch.randint(1, self.window + 1, (len(windows), 1))
        left, right = there[:, :middle].flip(1), there[:, middle + 1 :]
        left, right = (side & (side.cumsum(1) <= reach) for side in (left, right))
        own = there[:, middle : middle + 1]
        return torch.cat([left.flip(1) & own, torch.zeros_like(own), right & own], 1)

    def _negatives(self, batch: int, sample: Tensor) -> Tensor:
        """Return the negatives (P, K) of each pair: those of its sample if they are shared, otherwise its own."""
        rows = batch if self.shared else len(sample)
        drawn = self._drawn(rows * self.negatives).view(rows, self.negatives)
        return drawn[sample] if self.shared else drawn


class SkipGram(WindowModel):
    """Word vectors: an input vector for each word, and an output vector used only in training. With `NegativeSampling`
    and torch.optim.SGD a compiled kernel trains the job. The learning rate is per sample: autograd with batches of B
    needs B times the rate for steps of the same size.

    Arguments:
        words: different words.
        dim: numbers of a word's vector.
        window: a word's contexts are up to b words on each side, b drawn from 1 to this.
        negatives: words drawn as wrong answers.
        shared: draw negatives for each word; false: for each pair of a word and a context.
        sample: words whose share of the text is above this are sometimes dropped (0: never).
        context: no context is further away than this many words.
        cbow: the mean of all contexts predicts the word; false: each one does (skip-gram).
        buckets: rows for the character n-grams of words, found by a hash; 0: none. fastText has 2,000,000.
        min_n: characters of the shortest n-gram, with < and > at a word's ends.
        max_n: characters of the longest n-gram."""

    metrics = (spearman,)

    def __init__(
        self,
        words: int,
        dim: int = 100,
        window: int = 5,
        negatives: int = 5,
        shared: bool = True,
        sample: float = 1e-3,
        context: int = 20,
        cbow: bool = False,
        buckets: int = 0,
        min_n: int = 3,
        max_n: int = 6,
    ) -> None:
        sizes = {"words": words, "dim": dim, "window": window, "negatives": negatives, "context": context}
        super().__init__(sizes, shared, sample, cbow)
        if buckets < 0 or not 1 <= min_n <= max_n:
            raise ValueError(f"buckets is {buckets}, min_n {min_n}, max_n {max_n}; at least 0, and 1 <= min_n <= max_n")
        self.context, self.buckets, self.min_n, self.max_n = context, buckets, min_n, max_n
        self.input = nn.Embedding(words, dim, sparse=True)
        self.output = nn.Embedding(words, dim, sparse=True)
        nn.init.uniform_(self.input.weight, -0.5 / dim, 0.5 / dim)  # as in word2vec.c
        nn.init.zeros_(self.output.weight)
        self.subwords = nn.Embedding(buckets, dim, sparse=True) if buckets else None
        if self.subwords is not None:
            nn.init.uniform_(self.subwords.weight, -0.5 / dim, 0.5 / dim)
        self.counts: Tensor
        self.register_buffer("counts", torch.ones(words, dtype=torch.int64))
        self.piece_starts: Tensor
        self.register_buffer(
            "piece_starts", torch.zeros(words + 1 if buckets else 1, dtype=torch.int64), persistent=False
        )
        self.pieces: Tensor
        self.register_buffer("pieces", torch.zeros(0, dtype=torch.int32), persistent=False)

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Copy the word counts from the data's arrays; called before training. Raises ModelError if the data is not
        text, or has other words."""
        if "tokens" not in train:
            raise ModelError("SkipGram: data.train must be a text (hogwild.data.Text)", code="model/unlike-data")
        if len(train["counts"]) != len(self.counts):
            raise ModelError(
                f"SkipGram: words is {len(self.counts):,}, but the text has {len(train['counts']):,}; remove the "
                "argument to take it from the data",
                code="model/unlike-data",
            )
        self.counts.copy_(torch.from_numpy(np.array(train["counts"])))

    def on_names(self, names: Mapping[str, Sequence[Any]]) -> None:
        """Note the n-grams of `names["words"]`; called before training, and when a run is loaded."""
        if self.buckets and "words" in names:
            found = pieces_of([*map(str, names["words"])], self.min_n, self.max_n, self.buckets)
            self.piece_starts, self.pieces = map(torch.from_numpy, found)

    def vectors(self, kind: str = "words") -> Tensor:
        """Return the word vectors (words, dim), the only kind."""
        if self.subwords is None:
            return self.input.weight
        with torch.no_grad():
            return torch.cat([self._vectors(words) for words in torch.arange(len(self.counts)).split(AT_ONCE)])

    def spelled(self, words: Sequence[str]) -> Tensor:
        """Return vectors (n, dim) of unknown words, from their n-grams; 0 for one without any."""
        if self.subwords is None:
            return self.input.weight.new_zeros(len(words), self.input.embedding_dim)
        starts, pieces = map(torch.from_numpy, pieces_of(words, self.min_n, self.max_n, self.buckets))
        with torch.no_grad():
            sums = F.embedding_bag(pieces, self.subwords.weight, starts[:-1].int(), mode="sum")
        return sums / starts.diff().clamp(min=1).sqrt()[:, None]

    def forward(self, x: Tensor) -> Pairs | Tensor:
        """Return Pairs for x (B, 2 c + 1) int: windows of words, -1 for none, the sample's own in the middle. Return
        cosines (B,) for x (B, 2) int, pairs of words. In evaluation no word is dropped and windows are whole."""
        if x.shape[1] == 2:
            return F.cosine_similarity(self._vectors(x[:, 0]), self._vectors(x[:, 1]))
        return self.pairs(x, len(x))

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update for this loss and optimizer, or the reason why there is none."""
        return why_not(loss, optimizer) or not_float32(self) or SkipGramUpdate(self)

    def _vectors(self, words: Tensor) -> Tensor:
        """Return the vectors (n, dim) of words (n,) int."""
        words = words.long()
        rows: Tensor = self.input(words)
        if self.subwords is None:
            return rows
        first, counts = self.piece_starts[words], self.piece_starts[words + 1] - self.piece_starts[words]
        owner = torch.repeat_interleave(counts)
        places = torch.arange(len(owner)) + (first - counts.cumsum(0) + counts)[owner]
        sums = rows.index_add(0, owner, self.subwords(self.pieces[places].long()))
        return sums / (1 + counts).to(sums.dtype).sqrt()[:, None]

    def _outputs(self, words: Tensor) -> Tensor:
        found: Tensor = self.output(words)
        return found

    def _drawn(self, count: int) -> Tensor:
        share = self.counts.double().pow(FLATTENED)
        return torch.multinomial(share, max(1, count), replacement=True)[:count]

    def _kept(self, windows: Tensor) -> Tensor:
        if not (self.training and self.sample):
            return super()._kept(windows)
        keep = keep_probabilities(self.counts, self.sample)[windows.clamp(min=0).long()]
        return super()._kept(windows) & (torch.rand(windows.shape) < keep)


def why_not(loss: Any, optimizer: torch.optim.Optimizer) -> str:
    """Return why the kernel cannot train with this loss and optimizer, or ""."""
    if type(loss) is not NegativeSampling:
        return f"its fused update is for hogwild.losses.NegativeSampling, not for {type(loss).__qualname__}"
    if type(optimizer) is not torch.optim.SGD:
        return f"its fused update supports SGD, not {type(optimizer).__qualname__}"
    for group in optimizer.param_groups:
        for option in ("momentum", "dampening", "weight_decay", "maximize"):
            if group[option]:
                return f"its fused update does not support {option} of SGD"
    return ""


def keep_probabilities(counts: Tensor, sample: float, total: int | None = None) -> Tensor:
    """Return the probability of keeping each word, (V,) float32, from counts (V,), as in word2vec.c; the paper differs:
    (sqrt(f / t) + 1) t / f, at most 1, where f is the word's share of the text, of `total` words or of those counted,
    and t is `sample`. All 1 if `sample` is 0."""
    if not sample:
        return torch.ones(len(counts))
    share = counts.double() / max(1, int(counts.sum()) if total is None else total)
    kept = (torch.sqrt(share / sample) + 1) * sample / share.clamp(min=1e-300)
    return kept.clamp(max=1).float()


PAIRED = 6  # the kernel processes output rows three and two at a time


class SkipGramUpdate:
    """Fused update of a SkipGram (kernels.fused.FusedUpdate). No rows are hot: sub-sampling drops frequent words."""

    implements = frozenset({"lr_schedule", "freeze"})
    kernels = signatures.words()
    sides: tuple[Side, ...] = ()

    def __init__(self, model: SkipGram) -> None:
        self.name = f"{'CBOW' if model.cbow else 'skip-gram'}{' with subwords' if model.buckets else ''}, SGD"

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Make views of the vectors and of the text, sampling tables, and scratch memory for one word's contexts."""
        from hogwild.kernels import skipgram

        assert isinstance(model, SkipGram)
        self._kernel = skipgram.sgd
        keep = keep_probabilities(torch.from_numpy(np.array(arrays["counts"])), model.sample).numpy()
        chance, other = alias_tables(arrays["counts"].astype(np.float64) ** FLATTENED)
        tables = (model.input, model.output, model.subwords or model.input)  # without pieces the last is not used
        weights = (table.weight.detach().numpy() for table in tables)
        pieces = (part.numpy() for part in (model.piece_starts, model.pieces))
        sizes = np.int64(model.window), np.int64(model.context), bool(model.shared), bool(model.cbow)
        self._data = (arrays["tokens"], arrays["starts"], keep, chance, other, *weights, *pieces, *sizes)
        self._scratch = scratch(model.input.embedding_dim, model.window, model.negatives)
        rates = {param: float(group["lr"]) for group in optimizer.param_groups for param in group["params"]}
        parts = [table.weight for table in tables]
        self._rates = [rates.get(part, 0.0) if part.requires_grad else 0.0 for part in parts]

    def run(self, chunk: Chunk) -> Tally:
        """Update with the words at the places `chunk.rows` and the words around each."""
        rates = (np.float32(rate * chunk.rate) for rate in self._rates)
        loss, applied, not_finite = self._kernel(chunk.rows, *self._data, np.uint64(chunk.seed), *rates, *self._scratch)
        return Tally(float(loss), int(applied), int(not_finite))


def alias_tables(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return alias tables (chance (V,) float32, other (V,) int32): to draw a word, draw u uniformly from V; take u with
    probability chance[u], else other[u]. Walker 1977; built in one pass (Vose 1991)."""
    count = len(weights)
    left = np.asarray(weights, np.float64) * (count / weights.sum())
    chance, other = np.ones(count), np.arange(count, dtype=np.int32)
    poor, rich = np.flatnonzero(left < 1).tolist(), np.flatnonzero(left >= 1).tolist()
    while poor and rich:
        needy, giver = poor.pop(), rich[-1]
        chance[needy], other[needy] = left[needy], giver
        left[giver] -= 1 - left[needy]
        if left[giver] < 1:
            poor.append(rich.pop())
    return chance.astype(np.float32), other


def scratch(dim: int, window: int, negatives: int) -> tuple[np.ndarray, ...]:
    """Return the kernel's arrays: contexts, targets, signs, x, y, dx, dy, z, likely. There is room for one extra
    context, because they are processed two at a time; rows of y that are never written stay 0."""
    from hogwild.kernels.simd import WIDTH, padded, zeros_on_lines

    contexts, targets, width = 2 * window + 1, 1 + negatives, padded(dim)
    filled = -(-targets // PAIRED) * PAIRED
    columns = padded(filled)
    assert columns % WIDTH == 0
    return (
        np.zeros(contexts, np.int32),
        np.zeros(targets, np.int32),
        zeros_on_lines(1, columns),
        *(zeros_on_lines(rows, width) for rows in (contexts, filled, contexts, filled)),
        zeros_on_lines(contexts, columns),
        zeros_on_lines(1, columns),
    )


_OFFSET, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_LONGEST = 4  # bytes of a character in UTF-8


def pieces_of(words: Sequence[str], min_n: int, max_n: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts (V + 1,) int64, pieces (n,) int32): word w has the rows pieces[starts[w]:starts[w + 1]]. Its
    n-grams are those of `<word>`, of min_n to max_n characters, but not < or > alone; one that occurs twice counts
    twice."""
    text = np.frombuffer("".join(f"<{word}>" for word in words).encode(), np.uint8)
    lengths = np.fromiter((len(word) + 2 for word in words), np.int64, len(words))
    owner = np.repeat(np.arange(len(words)), lengths)  # of each character
    stop = np.cumsum(lengths)[owner]
    begins = np.append(np.flatnonzero(text & 0xC0 != 0x80), len(text))  # bytes of characters, and the end
    at = np.arange(len(owner))
    is_edge = (at == stop - lengths[owner]) | (at == stop - 1)
    hashes, found = np.full(len(owner), _OFFSET, np.uint32), list[tuple[np.ndarray, np.ndarray]]()
    for size in range(1, max_n + 1):
        at = at[at + size <= stop[at]]
        last = at + size - 1
        for byte in range(_LONGEST):
            places = begins[last] + byte
            there = places < begins[last + 1]
            # fastText's bytes are signed, as its published vectors need.
            signed = text[places[there]].view(np.int8).astype(np.int32).view(np.uint32)
            hashes[at[there]] = (hashes[at[there]] ^ signed) * _PRIME
        if size >= min_n:
            whole = at[~is_edge[at]] if size == 1 else at
            found.append((owner[whole], (hashes[whole] % np.uint32(buckets)).astype(np.int32)))
    owners, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=len(words)), out=starts[1:])
    return starts, rows[np.argsort(owners, kind="stable")]
