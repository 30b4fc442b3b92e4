"""Modules for tables whose rows are asked for by name."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hogwild.errors import ModelError, UsageError
from hogwild.kernels.signatures import BLANK, FREE, GONE, HEAD, has_numba, row_claims

__all__ = ["NamedEmbedding"]
NOTHING, NO_COUNTS = np.zeros(0, np.int64), np.zeros(0, np.int32)
SHORT = 0.7  # of the rows are taken: time to grow, or to say so
FULL = 0.95  # of the rows are taken: ids begin to find no room
OLDEST = 0.1  # of the ids give theirs back, where the least recently seen make room
LOOKS = 64  # the rows taken, which reads all keys, are counted for each such part of the table that a process claims
SAMPLE = 1 << 16  # keys that tell how full a table is, within a percent
CELLS = 4  # of the sketch for each row
FINE = 64  # units in which `expire_after` is counted: a row that all look up is noted less often
# In `life`: rows in use, training lookups, their number when the sketch began, and where the part begins in which ids
# claim rows first.
ACTIVE, LOOKUPS, CLEARED, OPENED = 0, 1, 2, 3
NEW = np.zeros(4, np.int64)
EXPIRED_AT_ONCE = 1 << 17  # rows given back in one pause: some 50 ms


@cache
def _kernels() -> Any:
    """Return `row_claims`, compiled or from the cache of kernels. numba is imported here, half a second."""
    from hogwild.kernels import kernel_cache
    from hogwild.kernels import row_claims as kernels

    kernel_cache.make_ready(row_claims())
    return kernels


class Arrays(NamedTuple):
    """A table as arrays: `weight` whole, `keys` and `seen` of the rows in use, `counts` of the sketch in use."""

    weight: np.ndarray
    keys: np.ndarray
    seen: np.ndarray
    counts: np.ndarray
    life: np.ndarray


class NamedEmbedding(nn.Embedding):
    """A table of embeddings that is asked for by any int64 id, such as a user's number or the hash of a text. An id not
    seen before gets a row of its own in its first training batch, in all worker processes the same one.

        ids (…,) int64  ->  rows (…, dim) float32

    Arguments:
        dim: numbers in a row.
        capacity: ids that have a row of their own, at first.
        max_capacity: rows to which the table may grow, by doubling when 70 % are taken; by default it does not grow.
            Further ids share the default row, and a warning says so when 70 % of the last rows are taken, and when all
            are. Rows that the table has not grown to take no memory, but in optimizers that write all of their state
            at first (torch's Adagrad), outside of a job.
        min_count: an id gets its row when training sees it for the so-manieth time; before that it uses the default
            row. Counted in a sketch of 4 * capacity cells, which may count an id too often, never too rarely (Cormode
            and Muthukrishnan, "An improved data stream summary: the count-min sketch", 2005).
        expire_after: an id that was not looked up in so many training batches loses its row, which then begins anew,
            with its optimizer's state. A job does so by itself, in pauses; elsewhere call `expire`.
        when_full: for ids that come once `max_capacity` rows are taken. "default": they share the default
            row; "oldest": the tenth of all ids that was not looked up for longest loses its rows, as in `expire_after`.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        std: standard deviation of initial values; 1 / sqrt(dim) by default.

    Outside of training (`eval()`) nothing is claimed: an unknown id has the default row. `named()` returns the ids and
    their rows. Parameters: `weight` (max_capacity + 2, dim) float32, first the default row and one that nobody uses,
    and, frozen so that workers share them, `keys` (max_capacity,) int64, the id of each further row, `life`, `seen`
    if ids may lose their rows, and `counts` with `min_count` > 1. A saved table has the rows in use. A row is claimed
    by one compare-and-swap, and no row moves when the table grows (`hogwild/kernels/row_claims.py`; needs the extra
    `sparse`). One process grows a table: a job's supervisor, or the only one; in shared memory without a job, the one
    that calls `grow`. The table stays in the memory of the host.

    Raises UsageError for a wrong argument, and in `forward` for ids that are no int64 or are -2**63 or the next;
    ModelError for a saved table with more ids than `max_capacity`, or rows of another length."""

    zeros = 0  # so many numbers of each row, the first ones, begin with 0
    whole: tuple[str, ...] = ("life",)  # parameters that have no row of each id
    without_room = "share the default row"

    def __init__(
        self,
        dim: int,
        capacity: int,
        *,
        max_capacity: int | None = None,
        min_count: int = 1,
        expire_after: int | None = None,
        when_full: Literal["default", "oldest"] = "default",
        sparse: bool = True,
        std: float | None = None,
    ) -> None:
        most = capacity if max_capacity is None else max_capacity
        never = 1 if expire_after is None else expire_after
        given = {"dim": dim, "capacity": capacity, "max_capacity": most, "min_count": min_count, "expire_after": never}
        for name, value in given.items():
            least = capacity if name == "max_capacity" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                words = f"NamedEmbedding: {name} must be a whole number >= {least}, got {value!r}"
                raise UsageError(words, code="usage/bad-value")
        if when_full not in ("default", "oldest"):
            words = f"NamedEmbedding: when_full must be default or oldest, got {when_full!r}"
            raise UsageError(words, code="usage/bad-value")
        if most > capacity and not sparse:
            words = "NamedEmbedding: a table that grows (max_capacity) needs sparse gradients, got sparse=False"
            raise UsageError(words, code="usage/bad-value")
        if not has_numba():
            raise UsageError("NamedEmbedding needs numba: install the extra `sparse`", code="usage/missing-extra")
        self.std, self.min_count = 1 / math.sqrt(dim) if std is None else std, min_count
        self.first, self.max_capacity, self.expire_after, self.when_full = capacity, most, expire_after, when_full
        self.seed = int(torch.randint(2**62, ()))  # of initial values
        self._views: tuple[list[int], int, Arrays] | None = None
        self._tally = np.zeros(2, np.int64)  # of this process: rows claimed, ids refused as there was no room
        self._look_at, self._is_short, self._is_full = 0, False, False  # claims; and was said
        super().__init__(most + HEAD, dim, sparse=sparse)
        keys = torch.empty(most, dtype=torch.int64)
        keys[:capacity] = FREE
        self.keys = _frozen(keys)
        self.life = _frozen(torch.tensor([capacity, 0, 0, 0]))
        self.seen = _frozen(torch.zeros(most, dtype=torch.int64)) if self.forgets else None
        cells = CELLS * sum(self.sizes)
        self.counts = _frozen(torch.zeros(cells, dtype=torch.int32)) if min_count > 1 else None

    def reset_parameters(self) -> None:
        """Draw all rows in use, also those that nobody has yet: a claim writes nothing but the key."""
        if self.weight.device.type == "cpu":
            rows = np.arange(self.first + HEAD)
            _kernels().draw(self.weight.detach().numpy(), rows, self.seed, self.std, self.zeros)

    # ---- its size

    @property
    def sizes(self) -> list[int]:
        """The capacities that it has one after the other."""
        found = [self.first]
        while found[-1] < self.max_capacity:
            found.append(min(2 * found[-1], self.max_capacity))
        return found

    @property
    def capacity(self) -> int:
        """The number of ids that may have a row of their own now."""
        return int(self._arrays().life[ACTIVE])

    @property
    def taken(self) -> int:
        """The number of ids that have a row of their own."""
        return int((self._arrays().keys > GONE).sum())

    @property
    def share_taken(self) -> float:
        """The share of the rows in use that are taken, by a sample of them."""
        return _share_taken(self._arrays().keys)

    @property
    def forgets(self) -> bool:
        """True if ids may lose their rows."""
        return self.expire_after is not None or self.when_full == "oldest"

    @property
    def is_crowded(self) -> bool:
        """True if the ids that were not looked up for longest are to make room now."""
        is_last = self.when_full == "oldest" and self.capacity == self.max_capacity
        return is_last and self.share_taken >= FULL

    @property
    def next_capacity(self) -> int | None:
        """The capacity that it may grow to, as far as it has memory for more rows; None if it may not."""
        now = self.capacity
        then = min(2 * now, self.max_capacity)
        return then if now < then <= len(self.keys) else None

    def grow(self) -> bool:
        """Grow once; return whether that was possible. Only one process may call it, and others may look up ids
        meanwhile."""
        now, then = self.capacity, self.next_capacity
        if then is None:
            return False
        self.prepare(then)
        has_grown = self.show(now, then)
        if not self.keys.is_shared():
            self.open_emptiest()
        return has_grown

    def prepare(self, capacity: int) -> None:
        """Write the rows that a larger `capacity` adds, which nobody uses yet. A count that another process adds
        meanwhile may be lost."""
        now, then, arrays = self.capacity, capacity, self._arrays()
        keys, seen = self.keys.detach().numpy(), NOTHING if self.seen is None else self.seen.detach().numpy()
        _kernels().open_part(keys, arrays.weight, seen, now, then, self.seed, self.std, self.zeros)
        if self.counts is not None:  # each new cell stands for a part of an old one, or of two neighbours
            old, cells = arrays.counts, np.arange(CELLS * then)
            lower, upper = cells * len(old) // len(cells), ((cells + 1) * len(old) - 1) // len(cells)
            self._sketch(then)[:] = np.maximum(old[lower], old[upper])

    def show(self, before: int, capacity: int) -> bool:
        """Use `capacity` rows from now on, in all processes, if `before` were used until now; return whether."""
        return bool(_kernels().show(self._arrays().life, before, capacity))

    def open_emptiest(self) -> None:
        """Have ids claim rows in the emptiest part first: a search goes over all that is taken of a part. Call it while
        no process looks up ids."""
        keys, life = self._arrays().keys, self._arrays().life
        ends = [0, *(size for size in self.sizes if size <= len(keys))]
        shares = {begin: _share_taken(keys[begin:end]) for begin, end in pairwise(ends)}
        life[OPENED] = min(shares, key=shares.__getitem__)

    def _sketch(self, capacity: int) -> np.ndarray:
        """Return the counts that are used with a capacity: for each there is an array of its own."""
        if self.counts is None:
            return NO_COUNTS
        end = CELLS * sum(size for size in self.sizes if size <= capacity)
        found: np.ndarray = self.counts.detach().numpy()[end - CELLS * capacity : end]
        return found

    def rows_in(self, name: str, begin: int, end: int) -> tuple[int, int]:
        """Return the rows of a parameter [first, end) that become used when the capacity goes from `begin` to `end`."""
        head = HEAD if name == "weight" else 0
        if name != "counts":
            return begin + head, end + head
        before, after = (CELLS * sum(size for size in self.sizes if size <= one) for one in (begin, end))
        return before, after

    def in_use(self) -> dict[str, Tensor]:
        """Return the parts of its parameters that are in use, by name; views, with a storage that covers no more:
        torch.save writes whole storages."""
        now, found = self.capacity, {}
        for name, param in self._parameters.items():
            if param is not None:
                whole = param.detach()
                end = len(whole) if name in self.whole else self.rows_in(name, 0, now)[1]
                found[name] = whole if end == len(whole) else _alone(whole[:end])
        return found

    # ---- ids and rows

    def named(self) -> tuple[Tensor, Tensor]:
        """Return the ids that have a row, (n,) int64 in the order of the table, and their rows (n, dim), copied."""
        keys = self.in_use()["keys"]
        places = (keys > GONE).nonzero().squeeze(1)
        return keys[places], self.weight.detach()[places + HEAD]

    def divided(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the vectors (n, D), for files and for cosines, and perhaps the constants (n,), of rows (n, dim)."""
        return rows, None

    def rows_of(self, ids: Tensor, *, claim: bool = False) -> Tensor:
        """Return the row of each id, (…,) int64; 0, the default row, for those without one. `claim`: unknown
        ids get one if they have been seen often enough and there is room."""
        find = _kernels().find
        if ids.dtype != torch.int64:
            kind = str(ids.dtype).removeprefix("torch.")
            raise UsageError(f"NamedEmbedding: ids must be int64, got {kind}", code="usage/bad-value")
        if not ids.is_cpu or not self._parameters["keys"].is_cpu:  # type: ignore[union-attr]
            where = self.keys.device if ids.is_cpu else ids.device
            words = f"NamedEmbedding: ids and the table stay in the memory of the host, got {where}"
            raise UsageError(words, code="usage/bad-value")
        flat = ids.reshape(-1)
        rows = torch.empty_like(flat)
        weight, keys, seen, counts, life = self._arrays()
        limits = self.first, self.max_capacity, int(claim)
        refused = int(self._tally[1])
        rule = counts, self.min_count, seen, life, self._unit
        if not find(keys, flat.numpy(), rows.numpy(), weight, *rule, *limits, self._tally):
            raise UsageError(f"NamedEmbedding: the ids {FREE} and {GONE} are reserved", code="usage/bad-value")
        if claim and self._has_grown(len(keys), wanted_more=self._tally[1] > refused):
            life[LOOKUPS] -= self.seen is not None  # it is one lookup
            return self.rows_of(ids, claim=True)
        return rows if ids.dim() == 1 else rows.view(ids.shape)

    def _has_grown(self, capacity: int, *, wanted_more: bool) -> bool:
        """Grow, if it is time and up to this process, or warn that rows are short; return whether ids that wanted a row
        should look again. `capacity`: that of their lookup, after which another process may have let it grow."""
        claimed = int(self._tally[0])
        if not wanted_more and (self._is_short or claimed <= self._look_at):
            return False
        if self.next_capacity is not None and not self.keys.is_shared():
            self._look_at = claimed + self.capacity // LOOKS
            has_grown = (wanted_more or self.taken >= SHORT * self.capacity) and self.grow()
            return has_grown and wanted_more
        if capacity == self.max_capacity and self.when_full == "default":
            self._warn_of_room(claimed, wanted_more=wanted_more)
        return False

    def _warn_of_room(self, claimed: int, *, wanted_more: bool) -> None:
        """Warn, once in this process, when SHORT of the rows are taken, by whomever, and when all are."""
        if wanted_more and not self._is_full:
            self._is_full = self._is_short = True
            words = f"all {self.capacity:,} rows are taken: further ids {self.without_room}"
        elif not self._is_short and claimed > self._look_at:
            self._look_at = claimed + self.capacity // LOOKS
            self._is_short = self.taken >= SHORT * self.capacity
            if not self._is_short:
                return
            words = f"{SHORT:.0%} of {self.capacity:,} rows are taken; when all are, further ids {self.without_room}"
        else:
            return
        cure = "a run with a larger `max_capacity` takes over what was learnt: model.init_from"
        warnings.warn(f"NamedEmbedding: {words} ({cure})", RuntimeWarning, stacklevel=5)

    # ---- the end of a row

    @property
    def _unit(self) -> int:
        return FINE if self.expire_after is None else max(1, self.expire_after // FINE)

    @property
    def lookups(self) -> int:
        """Training lookups so far, in all processes; counted only if ids may lose their rows."""
        return int(self._arrays().life[LOOKUPS])

    def expire(self, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Give back the rows of ids that were not looked up in `expire_after` training batches, or make room as
        `when_full` says; return their number. Call it between two updates, while no process looks up ids. `optimizer`:
        its state of these rows begins anew, too."""
        state = {} if optimizer is None else optimizer.state.get(self.weight, {})
        rows = [one for one in state.values() if isinstance(one, Tensor) and one.dim() and len(one) == len(self.weight)]
        total = 0
        while found := self.give_back(rows):
            total += found
        self.open_emptiest()
        return total

    def give_back(self, states: Iterable[Tensor]) -> int:
        """Give back EXPIRED_AT_ONCE rows at most; return their number. `states`: of the optimizer, a row each for one
        of `weight`. As `expire`."""
        if not self.forgets:
            return 0
        weight, keys, seen, counts, life = self._arrays()
        lookups, oldest = int(life[LOOKUPS]), 0
        if self.expire_after is not None:
            oldest = (lookups - self.expire_after) // self._unit
            if lookups - int(life[CLEARED]) >= self.expire_after:
                counts[:] = 0  # or, in a stream without an end, all ids would be seen often enough some day
                life[CLEARED] = lookups
        if self.is_crowded:
            times = seen[keys > GONE]
            least = int(len(times) * OLDEST)
            oldest = max(oldest, int(np.partition(times, least)[least]))
        places = np.empty(EXPIRED_AT_ONCE, np.int64)
        places = places[: _kernels().unseen(keys, seen, oldest, places)]
        if len(places):
            rows = places + HEAD
            for state in states:  # before the keys: an id that comes next must not inherit anything
                whole = state.detach().numpy()
                whole[rows] = whole[BLANK]
            _kernels().draw(weight, rows, self.seed, self.std, self.zeros)
            _kernels().give_back(keys, places, self.first, self.max_capacity)
            self._forget(places)
        return len(places)

    def _forget(self, places: np.ndarray) -> None:
        """Do more once the rows of `places` (n,), numbers in `keys`, are given back."""

    # ---- saved tables

    def placed(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Place a saved table's `keys` (n,) int64 in this table, as if it were empty; it grows if they need that.
        Returns `keys` (capacity,) for this module, and the rows of each id and of the first two rows there and here.
        Raises ModelError for more ids than fit."""
        taken = (keys > GONE).nonzero().squeeze(1)
        while len(taken) > SHORT * self.capacity and self.grow():
            pass
        weight = self._arrays().weight
        while True:
            own, here = np.full(self.capacity, FREE), np.empty(len(taken), np.int64)
            tally, rule = np.zeros(2, np.int64), (NO_COUNTS, 1, NOTHING, NEW, 1)
            limits = self.first, self.max_capacity, 1
            _kernels().find(own, keys[taken].numpy(), here, weight, *rule, *limits, tally)
            if not tally[1]:
                break
            if not self.grow():
                words = f"{len(taken):,} saved ids do not fit into a capacity of {self.max_capacity:,}"
                raise ModelError(words, code="model/init-mismatch")
        ends = torch.arange(HEAD)
        return torch.from_numpy(own), torch.cat([ends, taken + HEAD]), torch.cat([ends, torch.from_numpy(here)])

    def is_laid_out_as(self, keys: Tensor) -> bool:
        """Return whether each of a saved table's `keys` lies where this table would find it, in one of its sizes."""
        if len(keys) not in self.sizes or len(keys) > len(self.keys):
            return False
        places = (keys > GONE).nonzero().squeeze(1)
        rows, rule = np.empty(len(places), np.int64), (NO_COUNTS, 1, NOTHING, NEW, 1)
        ids, limits = keys[places].numpy(), (self.first, self.max_capacity, 0)
        _kernels().find(keys.numpy(), ids, rows, self._arrays().weight, *rule, *limits, np.zeros(2, np.int64))
        return bool((rows == places.numpy() + HEAD).all())

    def resize(self, capacity: int) -> None:
        """Have `capacity` rows, one of `sizes`, whose content is written next."""
        self._arrays().life[ACTIVE] = capacity

    def _arrays(self) -> Arrays:
        """Return the table as arrays, kept while the tensors stay where they are and it keeps its size: 3 us each."""
        own: Any = self._parameters  # as attributes, each would take half a microsecond
        tensors = own["weight"], own["keys"], own["life"]
        places = [one.data_ptr() for one in tensors]
        if self._views is None or self._views[0] != places or self._views[2].life[ACTIVE] != self._views[1]:
            weight, keys, life = (one.detach().numpy() for one in tensors)
            now = int(life[ACTIVE])
            seen = NOTHING if self.seen is None else self.seen.detach().numpy()
            self._views = places, now, Arrays(weight, keys[:now], seen[:now], self._sketch(now), life)
        return self._views[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": None}

    def forward(self, input: Tensor) -> Tensor:
        rows = self.rows_of(input, claim=self.training)
        return functional.embedding(rows, self.weight, sparse=self.sparse)

    def extra_repr(self) -> str:
        more = f", max_capacity={self.max_capacity}" if self.max_capacity > self.first else ""
        more += f", min_count={self.min_count}" if self.min_count > 1 else ""
        more += f", expire_after={self.expire_after}" if self.expire_after is not None else ""
        more += f", when_full={self.when_full}" if self.when_full != "default" else ""
        return f"{self.embedding_dim}, capacity={self.first}{more}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the rows in use."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, part in self.in_use().items():
            destination[prefix + name] = part

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, meta: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        """Load a table of any capacity. One that is laid out as this one stays as it is; of another each id takes its
        row along, in the order of the saved table."""
        saved = {name: state_dict[prefix + name] for name in self._parameters if prefix + name in state_dict}
        if not saved.keys() >= {"keys", "weight"}:
            super()._load_from_state_dict(state_dict, prefix, meta, strict, missing, *rest)
            return
        keys, weight = saved["keys"].cpu(), saved["weight"]
        if weight.shape != (len(keys) + HEAD, self.embedding_dim):
            raise ModelError(
                f"{prefix}weight: saved rows for {len(keys):,} ids are {tuple(weight.shape)}, not "
                f"{(len(keys) + HEAD, self.embedding_dim)}",
                code="model/init-mismatch",
            )
        with torch.no_grad():
            if self.is_laid_out_as(keys):
                self.resize(len(keys))
                own = self.in_use()
                missing += [prefix + name for name in own if strict and name not in saved]
                for name, part in own.items():
                    if name in saved and part.shape == saved[name].shape:
                        part.copy_(saved[name])
                return
            try:
                placed, there, here = self.placed(keys)
            except ModelError as error:
                raise ModelError(f"{prefix}keys: {error}", code=error.code) from None
            own = self.in_use()
            own["keys"].copy_(placed)
            own["weight"][here] = weight[there].to(own["weight"])
            for name, part in own.items():  # all are seen now
                if name not in ("keys", "weight"):
                    part[LOOKUPS if name == "life" else 0 :] = 0
            self.open_emptiest()


def _share_taken(keys: np.ndarray) -> float:
    return float((keys[:: 1 + len(keys) // SAMPLE] > GONE).mean())


def tables_in(model: nn.Module) -> dict[str, NamedEmbedding]:
    """Return the tables of a model, by their names in it."""
    return {name: one for name, one in model.named_modules() if isinstance(one, NamedEmbedding)}


def parts_in_use(model: nn.Module) -> dict[str, Tensor]:
    """Return the parts in use of the parameters of a model's tables, by their names in it; views."""
    return {
        f"{path}.{name}".lstrip("."): part
        for path, table in tables_in(model).items()
        for name, part in table.in_use().items()
    }


@contextmanager
def cut_to_use(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Have only the rows in use in the tensors of each table that may grow, and in its optimizer's state, for code that
    reads, copies or fills all of them."""
    before, state = list[tuple[nn.Parameter, Tensor]](), list[tuple[dict[str, Any], str, Tensor]]()
    for name, part in parts_in_use(model).items():
        param = model.get_parameter(name)
        if len(part) == len(param):
            continue
        own = {} if optimizer is None else optimizer.state.get(param, {})
        for key, value in own.items():
            if isinstance(value, Tensor) and value.dim() and len(value) == len(param):
                state.append((own, key, value))
                own[key] = value[: len(part)]
        before.append((param, param.data))
        param.data = part
    try:
        yield
    finally:
        for param, data in before:
            param.data = data
        for own, key, value in state:
            own[key] = value


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _alone(part: Tensor) -> Tensor:
    """Return a contiguous part of a tensor over the same memory, with a storage that covers nothing else."""
    start, size = part.storage_offset() * part.element_size(), part.nbytes
    own = part.untyped_storage()[start : start + size]
    return torch.empty(0, dtype=part.dtype).set_(own, 0, part.shape, part.stride())
