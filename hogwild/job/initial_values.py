"""`model.init_from`: initial values of a model from a file, instead of its constructor's.

    file or folder ── read as tensors by name ── without `skip` ── compared with the model's own ── copied in place

Names must match exactly: tensors missing in the file keep the constructor's values, tensors missing in the model are
not used, and both are listed. A tensor of another shape is an error, and so is a file without any matching tensor. Rows
that stand for users, words and the like are matched by name (`row_names.py`). Vectors of words, and a run that has no
tensor of the model's, give one table its rows by name (`NamedVectors`): the first `nn.Embedding` (or `EmbeddingBag`)
whose rows stand for names of the data. A checkpoint also has the optimizer's
state, which follows its parameters row by row."""

import fnmatch
import json
import os
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hogwild.config.load import Job
from hogwild.config.of_run import recorded
from hogwild.config.schema import Component, InitFrom, Split
from hogwild.data.locate import beside, folders
from hogwild.data.vector_file import VectorFile, has_vectors
from hogwild.errors import HogwildError, ModelError, NotFoundError
from hogwild.feeds.packed import Packed, columns_of
from hogwild.job.identity import NO_NAMES, identity_of, names_beside, read_names
from hogwild.job.known_rows import NamedRows
from hogwild.job.parameter_groups import no_match
from hogwild.job.row_names import (
    CATEGORIES,
    CLASSES,
    FEATURES,
    FIELDS,
    KnownNames,
    Move,
    Names,
    Rows,
    matched,
    moved,
    names_by_kind,
    renamed,
    rows_of,
)
from hogwild.kernels.signatures import HEAD
from hogwild.nn import NamedEmbedding, parts_in_use
from hogwild.parameters import state_dicts
from hogwild.parameters.optimizer_state import initial_state, parameters_of
from hogwild.storage.checkpoint import load as load_checkpoint
from hogwild.storage.checkpoint_format import MANIFEST, newest_good
from hogwild.storage.run_directory import ALL_TEXTS, BEST, RESOLVED

DIVIDED_BY_PLACE = tuple(f"hogwild.data.{name}" for name in ("Characters", "Names", "Speakers"))
SHOWN = 12  # names in a list, before "and N more"
WRAPPED = ("state_dict", "model", "model_state_dict")  # keys that training scripts use in their own files
SAFETENSORS = ".safetensors"
LFS_POINTER = b"version https://git-lfs"
ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # torch.save writes a zip archive; it wrote pickles before torch 1.6
# Errors of torch.load for a truncated or overwritten file: anything that its reader may raise.
DAMAGED = (
    *(AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    *(pickle.UnpicklingError, struct.error),
)


def known_names(spec: str | InitFrom | None) -> KnownNames:
    """Return the names of the file's rows that get a row even if the data lacks them. Raises NotFoundError, ModelError,
    RunError."""
    if spec is None:
        return KnownNames()
    given = _as_map(spec)
    path = _found(given.path)
    return KnownNames.kept(read_names(path if path.is_dir() else path.parent), given.gone)


def texts_known_to(job: Job) -> bytes:
    """Return the texts of ids, in lines as `Follow` keeps them, of the run whose model is taken; b"" for none. Raises
    NotFoundError."""
    if job.model.init_from is None:
        return b""
    path = _found(_as_map(job.model.init_from).path)
    folder = path if path.is_dir() else path.parent
    for place in (folder, folder.parent.parent):
        if files := sorted(place.glob(ALL_TEXTS)):
            contents = (file.read_bytes() for file in files)
            # That run may be writing its next line.
            return b"".join(content[: content.rfind(b"\n") + 1] for content in contents)
    return b""


def rows_known_to(job: Job, own: NamedRows, *, is_resumed: bool) -> NamedRows:
    """Return a job's rows and those of the run that it continues, which may be gone for a resume. Raises NotFoundError,
    RunError, ModelError."""
    if job.model.init_from is None:
        return own
    given = _as_map(job.model.init_from).path
    try:
        path = _found(given)
    except NotFoundError:
        if not is_resumed:
            raise
        return replace(own, lacking=given)
    folder = path if path.is_dir() else path.parent
    names = read_names(folder)
    if not {*own.kinds} <= names["names"].keys():  # it knew nobody
        return own
    earlier = NamedRows.read(folder, names)
    return replace(own, lacking=str(path)) if earlier is None else own.joined(earlier)


def held_out_notes(job: Job, packed: Packed | None) -> list[str]:
    """Return what to say of a held-out part that the run whose model is taken may have been trained on. `packed`: the
    training data; rows that have names are held out by these, so that the same ones are in both runs."""
    assert job.model.init_from is not None
    path = _found(_as_map(job.model.init_from).path)
    is_by_name = packed is not None and columns_of(packed) is not None
    train, val, split = job.data.train, job.data.val, _split_of(job)
    if not path.is_dir():
        return []
    is_divided = isinstance(val, Component) and val.class_path == train.class_path in DIVIDED_BY_PLACE
    if is_divided or (isinstance(val, Split) and not is_by_name):
        return [
            "data.val: rows of this data are held out by their place, not by a name: if the data have changed since, "
            f"{path} may have been trained on some of them; use a file of its own as data.val"
        ]
    if split is None:
        return []
    run = path if (path / RESOLVED).exists() else path.parent.parent
    with suppress(HogwildError):  # not a run of ours, or of a version before
        if (before := _split_of(recorded(run)[0])) != split:
            return [f"data.val: {split} is held out, {before} in {path}, which may have been trained on some of it"]
    if {"by", "last"} & split.keys():
        return [
            f"data.val: the newest rows are held out: {path} was trained on some of them if the data have lost newer "
            "rows since, or got older ones"
        ]
    return []


def _split_of(job: Job) -> dict[str, Any] | None:
    """Return how the job divides its data into a training and a held-out part; None if it does not."""
    if isinstance(job.data.val, Split):
        return {"fraction": job.data.val.fraction, "seed": job.seed}
    holdout = job.data.train.init_args.get("holdout") if job.data.val is not None else None
    return None if holdout is None else {key: value for key, value in holdout.items() if key != "part"}


@dataclass(frozen=True, slots=True)
class InitialValues:
    """Initial values that a model got. `note`: a sentence about which were used and which were not. The optimizer state
    that the file has, by parameter; and the moves of rows, by tensor."""

    note: str
    _state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _groups: Sequence[Mapping[str, Any]] = ()
    _moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)

    def give_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Set the optimizer's state to the file's, row by row; rows that are new begin as the optimizer begins. Return
        the note, with a sentence about it. A parameter whose state has other parts, of another optimizer, begins
        anew."""
        if not self._state:
            return self.note
        initial, numbers = initial_state(model, optimizer)
        names, taken = state_dicts.names_of(model, optimizer), 0
        for index, (name, param) in enumerate(zip(names, parameters_of(optimizer), strict=True)):
            own, there = initial.get(index, {}), self._state.get(name, {})
            if own and own.keys() == there.keys():
                moves = self._moves.get(name, ())
                found = {key: _state_part(value, there[key], moves) for key, value in own.items()}
                if all(value is not None for value in found.values()):
                    optimizer.state[param] = found
                    taken += 1
        if len(self._groups) == len(optimizer.param_groups):
            for group, key, _ in numbers:
                optimizer.param_groups[group][key] = self._groups[group].get(key, optimizer.param_groups[group][key])
        return (
            f"{self.note}; optimizer state of {taken} of {len(initial)} parameters is from there"
            if initial
            else self.note
        )


def _state_part(own: Any, saved: Any, moves: Sequence[Move]) -> Any:
    """Return a part of a parameter's state with the saved rows; None if it does not fit."""
    if not isinstance(own, Tensor) or not isinstance(saved, Tensor):
        return saved if type(own) is type(saved) else None
    saved = saved.to(own.dtype)
    # A part may have fewer dimensions than its parameter, such as one number per row.
    moves = [move for move in moves if move[0] < own.dim()]
    try:
        found = moved(own.clone(memory_format=torch.contiguous_format), saved, moves)
    except (IndexError, RuntimeError):
        return None
    return found if found.shape == own.shape else None


def load_initial(
    model: nn.Module,
    spec: str | InitFrom,
    names: Mapping[str, Any] | None = None,
    component: Component | None = None,
    unseen: Mapping[str, Sequence[int]] | None = None,
) -> InitialValues:
    """Copy matching tensors into the model, in place. `names`: of the data (`packed_data.names_of`), to match rows;
    `component`: what the model was built from; `unseen` as from `KnownNames.extend`. Raises NotFoundError, and
    ModelError for a file that cannot be read or does not fit; then nothing was changed."""
    given = _as_map(spec)
    path, skip = _found(given.path), given.skip
    ours = names_by_kind(names)
    if path.is_file() and path.suffix != SAFETENSORS and has_vectors(path):
        vectors = NamedVectors.of_file(path, ours)
        return _by_name(path, model, vectors, skip, ours, rows_of(component, names))
    saved, there, state = read_tensors(path)
    theirs = names_by_kind(there)
    recorded = state.get("data", {}).get("names")
    own, rows = model.state_dict(), rows_of(component, names)
    others = renamed(rows_of(component, there), rows) if theirs else {}
    saved = {new: value for name, value in saved.items() if (new := others.get(name, name)) is not None}
    left_out = _skipped(skip, [*own, *(name for name in saved if name not in own)])
    chosen = {name: value for name, value in saved.items() if name in own and name not in left_out}
    if not any(isinstance(value, Tensor) for value in chosen.values()):
        try:
            found = NamedVectors.of_run(saved, theirs, _rows_there(path, there))
        except ModelError as error:
            raise ModelError(f"model.init_from: {path}: {error}", code=error.code) from None
        if found is not None:
            return _by_name(path, model, found, skip, ours, rows)
        raise _mismatch(path, _nothing_fits(saved, own))
    if not theirs and recorded == identity_of(names)["names"]:
        theirs = ours
    told = (found["columns"] for found in (names or NO_NAMES, there) if found.get("columns"))
    if FEATURES not in {*ours, *theirs} and len({(*each,) for each in told}) > 1:
        raise ModelError(
            f"model.init_from: {path}: its inputs were {', '.join(there['columns'])}, those of data.train are "
            f"{', '.join((names or NO_NAMES)['columns'])}; a model takes them by their order: give the same",
            code="model/init-names",
        )
    if FEATURES not in theirs and isinstance(ours.get(FEATURES), range):  # numbers, not names
        ours.pop(FEATURES, None)
    try:
        moves, counts = matched(model, chosen, ours, theirs, rows, unseen or {})
    except ModelError as error:
        raise ModelError(f"model.init_from: {path}: {error}; or add it to skip", code=error.code) from None
    for prefix, module in model.named_modules():
        if isinstance(module, NamedEmbedding):
            moves |= _placed(path, prefix, module, chosen)
    own |= parts_in_use(model)  # they may have grown
    for name, moving in moves.items():
        chosen[name] = moved(own[name].detach().clone(), chosen[name].to(own[name].dtype), moving)
    for name, value in chosen.items():
        _check(path, name, own[name], value)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in chosen.keys() & parameters.keys():  # not the buffers: a mask may well hold infinity
        if not state_dicts.is_finite(chosen[name]):
            raise _mismatch(path, f"{name} is NaN or infinite; training cannot start from it")
    try:
        left = model.load_state_dict(chosen, strict=False)
    except RuntimeError as error:
        raise _mismatch(path, str(error)) from error
    if unknown := getattr(left, "unexpected_keys", ()):
        words = "the model's state_dict() has these names, but its load_state_dict() rejects them; add a load hook"
        raise _mismatch(path, f"{_some(unknown)}: {words}")
    here = ours.get(FIELDS, theirs.get(FIELDS, ()))
    if gone := [str(column) for column in theirs.get(FIELDS, ()) if column not in here]:
        counts.append(f"columns that the data lacks now: {_some(gone)}")
    note = "; ".join([_describe(path, own, saved, chosen, left_out), *counts])
    if not given.optimizer_state or "optimizer_names" not in state:
        return InitialValues(note)
    rule = state["optimizer"]
    their = state["optimizer_names"]
    by_param = {others.get(their[index], their[index]): part for index, part in rule["state"].items()}
    return InitialValues(
        note, {name: part for name, part in by_param.items() if name in chosen}, rule["param_groups"], moves
    )


def _placed(path: Path, prefix: str, table: NamedEmbedding, chosen: dict[str, Any]) -> dict[str, list[Move]]:
    """Give a table the capacity of the saved one, if the ids lie where it would find them; else return the moves of its
    rows, and put the keys into `chosen`."""
    further = {*table._parameters, "counts", "seen"} - {"keys", "weight"}
    keys, weight, *rest = (f"{prefix}.{name}".lstrip(".") for name in ("keys", "weight", *further))
    saved, rows = chosen.get(keys), chosen.get(weight)
    if not (isinstance(saved, Tensor) and isinstance(rows, Tensor)) or rows.shape[1:] != table.weight.shape[1:]:
        return {}
    if len(rows) != len(saved) + HEAD:
        words = f"{weight} has {len(rows):,} rows for {len(saved):,} ids, not {HEAD} more: of a version before"
        raise _mismatch(path, words)
    for name in rest:  # when its ids were seen is counted anew
        chosen.pop(name, None)
    if table.is_laid_out_as(saved):
        if len(saved) > table.capacity:
            table.prepare(len(saved))
        table.resize(len(saved))
        return {}
    try:
        chosen[keys], there, here = table.placed(saved)
    except ModelError as error:
        raise _mismatch(path, f"{prefix}: {error}") from None
    return {weight: [(0, there, here)]}


def _rows_there(path: Path, names: Mapping[str, Any]) -> Rows:
    """Return the kinds of rows of the run's own model; {} if it cannot be built again."""
    with suppress(HogwildError):
        return rows_of(recorded(path if (path / RESOLVED).exists() else path.parent.parent)[0].model, names)
    return {}


def _by_name(
    path: Path,
    model: nn.Module,
    vectors: "NamedVectors",
    skip: Sequence[str],
    ours: Mapping[str, Sequence[Any]],
    rows: Rows,
) -> InitialValues:
    try:
        note = vectors.put_into(model, _skipped(skip, [*model.state_dict()]), ours, rows)
    except ModelError as error:
        raise ModelError(f"model.init_from: {path}: {error}", code=error.code) from None
    return InitialValues(f"model.init_from: {path}: {note}")


def read_tensors(path: Path) -> tuple[dict[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Return (name -> tensor on the CPU, and modules' extra state, from a state_dict, a .safetensors file, a checkpoint
    or a run directory; names of its rows, from a names.json beside it or its run's; the checkpoint's whole state).
    Raises ModelError, CheckpointError, RunError."""
    try:
        folder, state = path.parent, dict[str, Any]()
        if path.is_dir():
            folder = _checkpoint_in(path)
            state = load_checkpoint(folder)
            saved = dict(state["model"])
        else:
            _look_whether_it_came(path)
            saved = _safetensors(path) if path.suffix == SAFETENSORS else _state_dict(path)
        return saved, names_beside(folder, state), state
    except (OSError, EOFError, ValueError, RuntimeError, AttributeError, pickle.UnpicklingError) as error:
        raise _unreadable(path, f"cannot be read: {error}") from error


def _as_map(spec: str | InitFrom) -> InitFrom:
    return InitFrom(path=spec) if isinstance(spec, str) else spec


def _found(given: str) -> Path:
    """Find a user's file: beside the job file, in the current folder, in the data folders."""
    path = Path(os.path.expanduser(given))
    where = [Path()] if path.is_absolute() else [*beside(), *folders(None, None)]
    for folder in where:
        if (folder / path).exists():
            return folder / path
    raise NotFoundError(
        f"model.init_from: there is no {given}; looked for {', '.join(str((f / path).absolute()) for f in where)}",
        code="model/init-not-found",
    )


def _checkpoint_in(folder: Path) -> Path:
    """Return the checkpoint at `folder`: the folder itself, or the best one of a run's evaluations, or its newest."""
    if (folder / MANIFEST).exists():
        return folder
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        raise _unreadable(folder, f"neither a checkpoint (no {MANIFEST}) nor a run (no folder checkpoints/)")
    if (checkpoints / BEST).exists():
        return (checkpoints / BEST).resolve()
    newest, rejected = newest_good(checkpoints)
    if newest is None:
        why = f": {'; '.join(rejected)}" if rejected else ""
        raise _unreadable(folder, f"holds no good checkpoint{why}")
    return newest


def _look_whether_it_came(path: Path) -> None:
    """Check that the file was downloaded. Raises ModelError for an empty file or a git-LFS pointer."""
    begins = _first_bytes(path)
    if not begins:
        raise _unreadable(path, "is empty; fetch it again")
    if begins.startswith(LFS_POINTER):
        raise _unreadable(
            path,
            "is only a git-LFS pointer; the file itself was not downloaded. Run `git lfs pull` in its repository, or "
            "download it from its web page",
        )


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER))


def _unreadable(path: Path, words: str) -> ModelError:
    return ModelError(f"model.init_from: {path}: {words}", code="model/init-unreadable")


def _mismatch(path: Path, words: str) -> ModelError:
    return ModelError(f"model.init_from: {path}: {words}", code="model/init-mismatch")


def _safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
            aliases = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    # The other names of a tied tensor, as stored by the library's own `load_model`.
    return tensors | {alias: tensors[name] for alias, name in aliases.items() if name in tensors}


def _state_dict(path: Path) -> dict[str, Any]:
    saved = _load(path)
    for key in WRAPPED:
        if isinstance(saved, Mapping) and isinstance(saved.get(key), Mapping):
            saved = saved[key]
    if not isinstance(saved, Mapping) or not any(isinstance(value, Tensor) for value in saved.values()):
        held = f"a dict of {_some(map(str, saved))}" if isinstance(saved, Mapping) else f"a {type(saved).__name__}"
        raise _unreadable(
            path, f"holds {held}, not a state_dict (tensors by name, or such a dict under {' or '.join(WRAPPED)})"
        )
    return dict(saved)


def _load(path: Path) -> Any:
    """Load a file of torch.save. Hides torch's own error messages: they advise weights_only=False, which executes
    whatever code an unknown author put into the file."""
    begins = _first_bytes(path)
    if not begins.startswith((ZIP, PICKLE)):
        raise _unreadable(
            path,
            f"is not a file of torch.save: it begins with {begins!r}. Perhaps it is a web page or another format? "
            "The name of a safetensors file must end in .safetensors",
        )
    if begins.startswith(ZIP) and not zipfile.is_zipfile(path):
        raise _unreadable(
            path, "cannot be read: it is truncated (a zip archive without its end); download or copy it again"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the file's format: reported below if it matters
            return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        raise _unreadable(path, _why(error)) from error


def _why(error: Exception) -> str:
    words = str(error)
    if code := re.search(r"GLOBAL (\S+)", words):
        return (
            f"is damaged, or holds objects ({code[1]}) that would run code when loaded. If you trust the file, load it "
            "yourself and save only model.state_dict()"
        )
    if "TorchScript" in words:
        return "is a TorchScript archive; save the state_dict() of that module with torch.save"
    if isinstance(error, pickle.UnpicklingError):
        return "cannot be read: it is truncated, damaged, or a pickle that torch.save did not write"
    if not words or isinstance(error, IndexError | struct.error):  # the reader's own, about its stack and buffers
        return "cannot be read: it is truncated or damaged"
    return f"cannot be read: {words}"


def _skipped(patterns: Sequence[str], names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for number, pattern in enumerate(patterns):
        matching = fnmatch.filter(names, pattern)
        if not matching:
            place = f"model.init_from.skip[{number}]"
            raise ModelError(no_match(place, pattern, names, "tensor"), code="model/no-match")
        found.update(matching)
    return found


def _check(path: Path, name: str, own: Any, saved: Any) -> None:
    if isinstance(own, Tensor) != isinstance(saved, Tensor):
        kinds = f"a {type(saved).__name__} in the file, but a {type(own).__name__} in the model"
        raise _mismatch(path, f"{name} is {kinds}")
    if isinstance(own, Tensor) and not is_lazy(own) and own.shape != saved.shape:
        module = name.rpartition(".")[0]
        whole = f"{module}.*" if module else name  # all of the module: a weight of another size comes with a bias
        raise _mismatch(
            path,
            f"{name} is {tuple(saved.shape)} in the file and {tuple(own.shape)} in the model; give the model the same "
            f"sizes, or skip it: init_from: {{path: {path.name}, skip: {json.dumps([whole])}}}",
        )


def _nothing_fits(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    words = f"no tensor in it fits the model. It holds {_some(saved)}; the model's tensors are {_some(own)}"
    first = next(iter(saved), "")
    prefix = next((first.removesuffix(name) for name in own if first.endswith(f".{name}")), "")
    if prefix:
        words += f". Its names begin with {prefix!r}: save it from inside that wrapper (wrapper.module.state_dict())"
    return words


def _describe(
    path: Path, own: Mapping[str, Any], saved: Mapping[str, Any], chosen: Mapping[str, Any], left_out: set[str]
) -> str:
    missing = [name for name in own if name not in saved and name not in left_out]
    unexpected = [name for name in saved if name not in own and name not in left_out]
    parts = [f"model.init_from: {path}: {len(chosen)} of the model's {len(own)} tensors are from this file"]
    if missing:
        parts.append(f"missing there, as the constructor made them: {_some(missing)}")
    if unexpected:
        parts.append(f"not in the model, not used: {_some(unexpected)}")
    if skipped := sorted(left_out & own.keys()):
        parts.append(f"left out by skip: {_some(skipped)}")
    return "; ".join(parts)


def _some(names: Any) -> str:
    listed = [*names]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{', '.join(listed[:SHOWN])}{more}" or "nothing"


@dataclass(frozen=True, slots=True)
class NamedVectors:
    """Vectors (n, D) by name; `kind`: of the names, None if the file does not say; `total`: how many there are."""

    names: Sequence[str]
    matrix: Tensor
    total: int
    kind: str | None = None

    @classmethod
    def of_file(cls, path: Path, ours: Names) -> "NamedVectors":
        """Read those vectors of a file that the data has names for. Raises DataError."""
        wanted = {str(name) for kind in _kinds(ours) for name in ours[kind]}
        found = VectorFile.read(path, wanted)
        return cls(found.words, torch.from_numpy(found.matrix), found.total)

    @classmethod
    def of_run(cls, saved: Mapping[str, Any], theirs: Names, rows: Rows) -> "NamedVectors | None":
        """Return the first table of a run that has a row for each name of a kind; None if there is none. `rows`: of the
        run's model. Raises ModelError if two kinds have as many names and nothing says which it is."""
        for name, value in saved.items():
            is_table, known = isinstance(value, Tensor) and value.dim() == 2, rows.get(name, {}).get(0, {})
            kinds = [kind for kind in _kinds(theirs) if is_table and len(value) == len(theirs[kind])]
            kinds = [kind for kind in kinds if kind in known] if known else kinds
            if len(kinds) > 1:
                raise ModelError(
                    f"{name} has {len(value):,} rows there, and there are as many {' and '.join(kinds)}: nothing says "
                    "for which of them its rows stand",
                    code="model/init-names",
                )
            if kinds:
                return cls([*map(str, theirs[kinds[0]])], value, len(value), kinds[0])
        return None

    def put_into(self, model: nn.Module, skipped: set[str], ours: Names, rows: Rows) -> str:
        """Copy the vectors of known names into the model; return a note with the counts. Raises ModelError."""
        tables = [one for one in _tables(model, skipped, ours, rows) if self.kind in (None, one[1])]
        fitting = [one for one in tables if model.get_parameter(one[0]).shape[1] == self.matrix.shape[1]]
        name, kind = self._first_known(tables, fitting, ours)
        table, places = model.get_parameter(name), {each: row for row, each in enumerate(self.names)}
        if table.shape[1] != self.matrix.shape[1]:
            raise _no_vectors(
                f"its vectors have {self.matrix.shape[1]:,} numbers, but {name} has rows of {table.shape[1]:,}; give "
                "the model that size"
            )
        pairs = [(places[str(each)], row) for row, each in enumerate(ours[kind]) if str(each) in places]
        there, here = torch.tensor(pairs).T
        values = self.matrix[there].to(table.dtype)
        if not values.isfinite().all():
            raise _no_vectors("some of its vectors are NaN or infinite; training cannot start from them")
        with torch.no_grad():
            table[here] = values
        others = [other for other, its in tables if other != name and its == kind]
        return (
            f"{len(pairs):,} of {len(table):,} {kind} have their vector from there, in {name}; "
            f"{len(table) - len(pairs):,} begin as the constructor made them"
            + (f"; skip {name} to fill {others[0]} instead" if others else "")
        )

    def _first_known(
        self, tables: Sequence[tuple[str, str]], fitting: Sequence[tuple[str, str]], ours: Names
    ) -> tuple[str, str]:
        """Return the first table with a row whose name has a vector, if possible one of `fitting`, whose rows are as
        long. Raises ModelError, also if the names are those of several kinds."""
        if not tables:
            raise _no_vectors(
                f"it has vectors by name, but no nn.Embedding of the model has a row for each of the data's "
                f"{self.kind or 'names'}; the data names: {', '.join(_kinds(ours)) or 'nothing'}"
            )
        known, kinds = {*self.names}, [kind for _, kind in tables]
        found = {kind: sum(str(each) in known for each in ours[kind]) for kind in kinds}
        chosen = [one for one in fitting if found[one[1]]] or [one for one in tables if found[one[1]]]
        if len({kind for _, kind in chosen}) > 1:
            of_kinds = " and ".join(f"{many:,} {kind}" for kind, many in found.items() if many)
            raise ModelError(
                f"its names are those of {of_kinds}: nothing says whose vectors they are; add the tables of the others "
                f"to skip, of {', '.join(table for table, _ in chosen)}",
                code="model/init-names",
            )
        if chosen:
            return chosen[0]
        own = f"{kinds[-1]}, as {str(ours[kinds[-1]][0])!r}" if len(ours[kinds[-1]]) else kinds[-1]
        raise _no_vectors(f"none of its {self.total:,} names is one of the data's {len(ours[kinds[-1]]):,} {own}")


def _no_vectors(why: str) -> ModelError:
    return ModelError(why, code="model/init-mismatch")


def _kinds(names: Names) -> list[str]:
    return [kind for kind in names if kind not in (FEATURES, CLASSES, FIELDS, CATEGORIES)]


def _tables(model: nn.Module, skipped: set[str], ours: Names, rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield (parameter, kind) of each embedding that has a row for each name of a kind of the data. Raises ModelError
    if it may be either of two kinds."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            name = f"{path}.weight" if path else "weight"
            if name in skipped:
                continue
            known = rows.get(name, {}).get(0, {})
            kinds = [kind for kind in _kinds(ours) if module.num_embeddings == len(ours[kind])]
            yield from ((name, kind) for kind in kinds if kind in known)
            if not known and len(kinds) > 1:
                raise ModelError(
                    f"{name} has {module.num_embeddings:,} rows, and there are as many {' and '.join(kinds)}: nothing "
                    "says for which of them its rows stand; name the model's argument for their number after the kind, "
                    "or add it to skip",
                    code="model/init-names",
                )
            yield from ((name, kind) for kind in kinds if not known)
