"""A run's trained model: predictions, similar words or items, recommendations, links of a graph, generated text.

    hogwild.load("runs/ratings-20261121-101500").recommend("42", top=10)

The model comes from the run's best checkpoint (or the newest, or any), and so do the names of words, users and items,
and who has what. The training data is not needed."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.config.load import Job
from hogwild.config.of_run import looking_where, recorded
from hogwild.data.cache import DatasetCache
from hogwild.data.ids import IdRows
from hogwild.data.packed_cache import load as load_kept
from hogwild.data.pair_tables import PairTable
from hogwild.data.text_file import TextStream
from hogwild.data.text_keys import names_of
from hogwild.errors import CheckpointError, HogwildError, ModelError, RunError, UsageError
from hogwild.feeds.row_reader import InTurn
from hogwild.formatting import one_line
from hogwild.inference.inputs import SYMBOLS, Example, TrainedOn
from hogwild.inference.named_tables import KINDS, NamedTable, grown_tables
from hogwild.inference.predict import Meaning, Predictor
from hogwild.inference.recommend import WITH_KNOWN, Had, ItemRanker, Recommendation, complete
from hogwild.inference.word_vectors import WordVectors
from hogwild.job.data import sizes_for
from hogwild.job.identity import names_beside, read_names
from hogwild.job.known_rows import NamedRows, rows_of_names
from hogwild.parameters.state_dicts import load_model
from hogwild.storage.checkpoint import load as load_checkpoint
from hogwild.storage.run_directory import KNOWN
from hogwild.training.model_steps import divided, takes_state
from hogwild.user_code import build, resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trained:
    """The model of a checkpoint, in evaluation mode. `names`: of words, users or items, by number; `padded`: the fields
    of a sample that the job pads; `collate`: in the place of the job's `data.collate`, if that was an object."""

    job: Job
    checkpoint: Path
    model: nn.Module
    names: dict[str, list[Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    columns: list[str] | None = None  # of the file it was trained on
    padded: Sequence[int] = ()
    unseen: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the last names of a kind: not in the data
    collate: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        known = (f"{len(names):,} {kind}" for kind, names in self.names.items())
        return one_line(f"Trained({', '.join([type(self.model).__name__, *known])}; {self.checkpoint})")

    @classmethod
    def of(
        cls,
        job: Job,
        checkpoint: Path,
        model: nn.Module | None = None,
        *,
        is_of_objects: bool = False,
        collate: Callable[..., Any] | None = None,
    ) -> "Trained":
        """Load the checkpoint's weights into `model`, or into a new one of the job's class. `is_of_objects`: the job
        comes from a call of `hogwild.train`, without the arguments of its classes. Raises CheckpointError, RunError,
        UsageError, ModelError, and errors of the model's class."""
        if model is not None and not isinstance(model, nn.Module):
            raise ModelError(f"model= is a {type(model).__name__}, not a torch.nn.Module", code="model/not-a-module")
        state = load_checkpoint(checkpoint)
        known = names_beside(checkpoint, state)
        made = _new_model(job, checkpoint, known["sizes"], is_of_objects=is_of_objects) if model is None else model
        if callable(on_names := getattr(made, "on_names", None)):
            on_names(known["names"])
        try:
            if "tensors" in state:  # its own state_dict is incomplete, or not what it loads
                load_model(made, state)
            else:
                made.load_state_dict(state["model"])
        except (RuntimeError, CheckpointError) as error:
            what = job.model.class_path if model is None else f"the {type(model).__name__} given as model="
            if model is None and is_of_objects:
                raise _needs_model(job, checkpoint, f"the checkpoint does not fit {what}: {error}") from None
            raise RunError(f"{checkpoint}: does not fit {what}: {error}", code="run/other-model") from None
        if model is None and is_of_objects:
            _warn_of_defaults(job, checkpoint, known["sizes"])
        return cls(job, checkpoint, made.eval(), collate=collate, **_known(known))

    @classmethod
    def live(cls, run: Path, model: nn.Module, collate: Callable[..., Any] | None = None) -> "Trained":
        """Return `model` as the one of a run that runs, or has just ended, with the names in its run directory. Raises
        NotFoundError, RunError."""
        job, _, _ = recorded(run)
        return cls(job, run / "checkpoints" / "live", model, collate=collate, **_known(read_names(run)))

    def predict(self, source: Any, *, raw: bool = False) -> Any:
        """Return the answers (N, …) for the samples of `source`: a path to a file like the training data's, a table
        of pandas, polars or arrow with its columns, a data set, or a list of samples. They are probabilities, if the
        job's loss says that the model classifies; else, or with `raw`, the model's outputs. Where the model returns
        several tensors, in a dict, tuple or dataclass, it is the same with the answers (N, …) in their places. Targets
        are not used and may be missing: in a file, in a `TensorDataset` of one tensor, in samples that are padded or
        nested. Raises DataError, UsageError, ModelError."""
        if isinstance(source, str | Path):
            return self.predictor(str(source), raw=raw).answers()
        return Predictor(self.model, self._trained_on.of_dataset(source), self.meaning(raw=raw)).answers()

    def predictor(self, path: str, *, ids: str | None = None, raw: bool = False) -> Predictor:
        """Return the predictor for a file, or for standard input ("-"). `ids`: its column of ids. Raises as
        `predict`."""
        meaning = self.meaning(raw=raw)
        return Predictor(self.model, self._trained_on.of_file(path, ids, self.model), meaning)

    def stream_predictor(self, stream: TextStream, *, raw: bool = False) -> Predictor:
        """Return the predictor for a table or libsvm rows that are read once. Raises as `predict`."""
        return Predictor(self.model, self._trained_on.of_stream(stream, None), self.meaning(raw=raw))

    def meaning(self, *, raw: bool = False) -> Meaning:
        """Return the meaning of the model's outputs. Raises UsageError if they have none for a row."""
        return Meaning.of(self.job, self.names, raw=raw)

    def inputs_of(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return what the model gets of some items, as a batch of the job's evaluations. Raises DataError."""
        return self._trained_on.batching.inputs(items)

    def example(self, path: str | None = None) -> Example:
        """Return a block of inputs: of a file as `predict` reads it, or of the training data. Raises UsageError if it
        has fewer than two rows, or if there is no training data to read."""
        if path is not None:
            inputs = self._trained_on.of_file(path, None, self.model)
        else:
            try:
                inputs = self._trained_on.of_dataset(self._built())
            except HogwildError as error:
                raise UsageError(
                    f"the training data shows the shapes of the model's inputs, and cannot be read: {error}\nGive a "
                    "file with rows to predict: --example FILE",
                    code="export/no-example",
                ) from error
        return Example.of(inputs, self._trained_on.batching)

    def similar(
        self, names: Any | Sequence[Any], minus: Sequence[Any] = (), *, kind: str | None = None, top: int = 10
    ) -> list[tuple[str, float]]:
        """Return what is nearest to the sum of `names` less `minus`, with its cosine, best first: words, items,
        entities or users; `kind` says which, if the model has several. Raises UsageError as `vectors_of`, and for an
        unknown name."""
        wanted = [names] if isinstance(names, str) or not isinstance(names, Sequence) else names
        if (live := getattr(self.model, "similar_live", None)) is not None:  # of a running job
            return cast("list[tuple[str, float]]", live([*wanted], [*minus], kind, top))
        vectors = self.vectors_of(kind)
        known = IdRows(vectors.names) if vectors.kind != "words" else None
        plus, less = (
            [str(one) if known is None or (row := known.row(one)) < 0 else vectors.names[row] for one in group]
            for group in (wanted, minus)
        )
        return vectors.most_similar(plus, less, top)

    @property
    def vectors(self) -> WordVectors:
        """The words and their vectors; of a model with subwords also those of unknown words. Raises UsageError for a
        model without words."""
        return self.vectors_of("words")

    def vectors_of(self, kind: str | None = None) -> WordVectors:
        """Return the vectors of words, items, entities, users or relations, or of a `NamedEmbedding` by its name in the
        model; by default the first of these that the model has. Raises UsageError for a model without them."""
        grown = grown_tables(self.model)
        known = [one for one in KINDS if one in self.names] if hasattr(self.model, "vectors") else []
        known += [*grown]
        if not known or kind not in (None, *known):
            there = f"; it has {', '.join(known)}" if known else ""
            words = f"{self.checkpoint}: its model has no vectors of {kind or ', '.join(KINDS)}{there}"
            raise UsageError(words, code="usage/no-vectors")
        chosen = kind or known[0]
        if chosen in grown:
            table = self.table(chosen)
            return WordVectors([*map(str, table.names)], table.matrix, chosen)
        vectors: Tensor = self.model.vectors(chosen)  # type: ignore[operator]
        spelled = getattr(self.model, "spelled", None) if chosen == "words" else None
        made = spelled and (lambda word: spelled([word])[0])
        return WordVectors([*map(str, self.names[chosen])], vectors.detach().numpy(), chosen, made)

    def table(self, kind: str | None = None) -> NamedTable:
        """Return the vectors, and perhaps biases, of anything that has names: words, items, entities, users, relations,
        features, …; by default of the first of these that the model has. Raises UsageError for a model without
        them."""
        try:
            texts = names_of(self.checkpoint.parent.parent)
            return NamedTable.of(self.model, self.job.model, self.names, self.sizes, kind, texts)
        except UsageError as error:
            raise UsageError(f"{self.checkpoint}: {error}", code=error.code) from None

    def sample(self, prompt: str = "", length: int = 400, temperature: float = 1.0, seed: int = 1) -> str:
        """Return `length` characters that follow `prompt` (`hogwild.inference.trained_model`). Raises UsageError for a
        model that predicts no characters, and for a prompt with unknown ones."""
        if SYMBOLS not in self.names:
            raise UsageError(f"{self.checkpoint}: its model predicts no characters", code="usage/no-symbols")
        return sample(self.model, self.names[SYMBOLS], prompt, length, temperature, seed)

    def recommend(self, user: Any, top: int | None = None, exclude: Sequence[Any] = ()) -> Recommendation:
        """Return items for a user, as `ranker` does, which should be kept for more than one user."""
        return self.ranker().for_user(user, top, exclude)

    def ranker(self, *, had: Any = None, gone: bool = False, held_out: bool = False) -> ItemRanker:
        """Return what recommends to a user, to many, or to somebody new, without those items that the user has: in the
        data of this run and of all runs that it continued, and in `had`, a file or a table of more pairs. Items that
        the data no longer has are only recommended with `gone`, held-out pairs only with `held_out`. Raises UsageError
        for a model without users and items, RunError if the run has not recorded who has what, and `had` is not
        given."""
        if hasattr(self.model, "numbered"):
            return self._ranker_by_id(had)
        if not {"users", "items"} <= self.names.keys():
            raise UsageError(f"{self.checkpoint}: its model has no users and items", code="usage/no-users")
        known = NamedRows.read(self.checkpoint, {"names": self.names})
        if had is None and (known is None or known.lacking):
            who = f"{self.checkpoint}:" if known is None else f"{self.checkpoint}: it continued {known.lacking}, which"
            raise RunError(
                f"{who} has no {KNOWN}, so it is not known what its users have: the file is lost, or the run is of a "
                "version before it; give the pairs of its data: --had FILE, or ranker(had=…)",
                code="run/pairs-unknown",
            )
        if known is None:
            known = NamedRows.of(("users", "items"), self.names, np.zeros((0, 2), np.int32))
        known = known.trained() if held_out else known
        if had is not None:
            more = self._pairs_in(had)
            items = {*more.names["items"]}
            if unknown := len(items.difference(self.names["items"])):
                log.warning("had: %d of its %d items have no name that the model knows", unknown, len(items))
            known = known.joined(more)
        many = len(self.names["items"])
        lacking = () if gone else range(many - len(self.unseen.get("items", ())), many)
        return ItemRanker(self.model, self.names["users"], self.names["items"], Had.of_rows(known), lacking)

    def complete(self, head: Any, relation: Any, tail: Any, top: int = 10) -> Recommendation:
        """Return the best tails for (head, relation, None), or heads for (None, relation, tail), with their scores,
        without those that this run, or a run that it continued, was trained on; if these are not recorded, a note says
        so. Raises UsageError for a model without a graph, for an unknown name, and unless exactly one of head and tail
        is None."""
        if not {"entities", "relations"} <= self.names.keys():
            raise UsageError(f"{self.checkpoint}: its model has no entities and relations", code="usage/no-graph")
        known = NamedRows.read(self.checkpoint, {"names": self.names})
        triples = None if known is None else known.trained().rows
        if triples is not None and known is not None:  # without entities that the model does not know
            triples = triples[(triples < [known.sizes[kind] for kind in known.kinds]).all(1)]
        found = complete(self.model, self.names, head, relation, tail, top, triples)
        return replace(found, notes=(WITH_KNOWN,)) if known is not None and known.lacking else found

    # ---- parts

    def _ranker_by_id(self, had: Any) -> ItemRanker:
        """Return the ranker of a model that asks for users and items by id: of those that it has met."""
        if had is None:
            raise RunError(
                f"{self.checkpoint}: a stream does not record what its users have; give the pairs: --had FILE (perhaps "
                "the file that it follows), or ranker(had=…)",
                code="run/pairs-unknown",
            )
        try:
            model, *ids = self.model.numbered()  # type: ignore[operator]
        except UsageError as error:
            raise UsageError(f"{self.checkpoint}: {error}", code=error.code) from None
        texts = names_of(self.checkpoint.parent.parent)
        users, items = ([texts.get(one, one) for one in each] for each in ids)
        known = NamedRows.of(("users", "items"), {"users": users, "items": items}, np.zeros((0, 2), np.int32))
        return ItemRanker(model, users, items, Had.of_rows(known.joined(self._pairs_in(had))))

    def _pairs_in(self, given: Any) -> NamedRows:
        """Return the users and items in a table, or in a file like that of the training data. Raises DataError,
        UsageError."""
        kinds = ("users", "items")
        if not isinstance(given, str | Path):
            table = PairTable.of(given)
            columns = [np.unique(ids, return_inverse=True) for ids in (table.users, table.items)]
            names = {kind: one.tolist() for kind, (one, _) in zip(kinds, columns, strict=True)}
            return NamedRows.of(kinds, names, np.stack([rows for _, rows in columns], 1))
        packed = self._trained_on.pairs_of_file(str(given))
        return NamedRows.of(kinds, {kind: [*packed.names[kind]] for kind in kinds}, rows_of_names(packed))

    def _built(self) -> Any:
        """Return the training data, found where the run found them."""
        with looking_where(self.checkpoint.parent.parent):
            return build(self.job.data.train)

    @property
    def _reader(self) -> InTurn:
        return _Kept(self.job.seed, self.checkpoint.parent.parent.parent)

    @property
    def _trained_on(self) -> TrainedOn:
        known = self.columns, self.sizes, self.names
        return TrainedOn(self.job.data, *known, self._reader, self.job.seed, self.padded, self.collate)


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Trained that a names.json has (`job.identity.read_names`)."""
    return {name: found[name] for name in ("names", "sizes", "columns", "padded", "unseen")}


def _new_model(job: Job, checkpoint: Path, sizes: Mapping[str, Any], *, is_of_objects: bool) -> nn.Module:
    """Return a new model of the job's class. Raises UsageError if that needs arguments that were not recorded."""
    try:
        made: nn.Module = build(job.model, **sizes_for(job.model, sizes))
    except (HogwildError, TypeError, ValueError) as error:
        if not is_of_objects:
            raise
        raise _needs_model(job, checkpoint, str(error)) from error
    return made


def _warn_of_defaults(job: Job, checkpoint: Path, sizes: Mapping[str, Any]) -> None:
    """Warn of arguments that may have been others: another activation, say, has the same shapes, so the weights fit and
    the outputs are wrong."""
    parameters = inspect.signature(resolve(job.model.class_path)).parameters
    names = [name for name, one in parameters.items() if one.default is not one.empty and name not in sizes]
    if names:
        words = "%s: %s is built with the defaults of its arguments (%s); give model= if it was trained with others"
        log.warning(words, checkpoint, job.model.class_path, ", ".join(names))


def _needs_model(job: Job, checkpoint: Path, why: str) -> UsageError:
    return UsageError(
        f"{checkpoint}: its model, {job.model.class_path}, was an object given to hogwild.train, and cannot be built "
        f"again: {why}\nLoad it from Python with a module of the same architecture: hogwild.load(RUN, model=…)",
        code="usage/needs-model",
    )


class _Kept(InTurn):
    """A reader in this process; files that the runs in `runs` have parsed before come from their cache."""

    def __init__(self, seed: int, runs: Path) -> None:
        super().__init__(seed)
        self._runs = runs

    def pack(self, parsing: Any) -> Any:
        cache = DatasetCache(self._runs, say=log.info)
        found = load_kept(cache, parsing.key(cache))
        return super().pack(parsing) if found is None else found


START = "\n"  # stands for an empty prompt, if the model knows it: the beginning of a line


def sample(
    model: nn.Module, symbols: Sequence[str], prompt: str, length: int, temperature: float = 1.0, seed: int = 1
) -> str:
    """Return `length` characters that follow `prompt`, without the prompt. Each is drawn with probability
    softmax(logits / temperature): below 1 the samples are more conservative, 0 always takes the most probable
    character. The same seed gives the same text. `model` is in evaluation mode. Raises UsageError for a model without
    state, and for characters in the prompt that it does not know."""
    if not takes_state(model):
        raise UsageError(
            f"{type(model).__qualname__} is not recurrent: its forward has no argument `state` with a default",
            code="usage/no-symbols",
        )
    if not temperature >= 0 or temperature == float("inf"):
        raise UsageError(f"temperature must be a number >= 0, got {temperature}", code="usage/bad-value")
    given = _numbers(symbols, prompt or (START if START in symbols else symbols[0]))
    with torch.no_grad():
        return "".join(symbols[number] for number in _drawn(model, given, length, temperature, seed))


def _drawn(model: nn.Module, given: Tensor, length: int, temperature: float, seed: int) -> Iterator[int]:
    """Yield the drawn numbers; given (1, T) int64."""
    generator = torch.Generator().manual_seed(seed)
    x, state = given, None
    for _ in range(length):
        answer = model(x) if state is None else model(x, state=state)
        logits, state = divided(model, answer)  # (1, symbols, T)
        number = _next(logits[0, :, -1], temperature, generator)
        x = torch.tensor([[number]])
        yield number


def _next(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """Return the next symbol's number; logits (symbols,)."""
    if temperature == 0:
        return int(logits.argmax())
    # In double precision, after subtracting the maximum: a small temperature divides by nearly zero.
    scaled = (logits.double() - logits.max()) / temperature
    return int(torch.multinomial(torch.softmax(scaled, 0), 1, generator=generator))


def _numbers(symbols: Sequence[str], prompt: str) -> Tensor:
    """Return the prompt's symbol numbers (1, T) int64."""
    places = {symbol: number for number, symbol in enumerate(symbols)}
    unknown = [*dict.fromkeys(symbol for symbol in prompt if symbol not in places)]
    if unknown:
        raise UsageError(
            f"prompt: the model does not know {', '.join(map(repr, unknown[:10]))}; its training text has "
            f"{len(symbols)} characters: {''.join(symbols)!r}",
            code="usage/bad-value",
        )
    return torch.tensor([[places[symbol] for symbol in prompt]])
