"""Tables of ratings: turns parsed ratings into final ones: ids numbered, sorted, each pair once, and
optionally only one part of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.data.ids import IdRows
from hogwild.data.row_features import read_features, with_features
from hogwild.data.text_parsing.parsing import INPUT, Parsed, Parsing
from hogwild.errors import DataError
from hogwild.feeds.named_rows import held_out
from hogwild.feeds.packed import MEMBERSHIPS, Packed
from hogwild.formatting import counted as number_of
from hogwild.kernels.pair_order import pairs_of, places_in_order

# Numbers since 1970, from 1973 on; a time below is of another kind, or missing.
UNITS, SCALES = (
    ("below 1973", "in seconds", "in milliseconds", "in microseconds", "in nanoseconds"),
    (1e8, 1e11, 1e14, 1e17),
)


@dataclass(frozen=True, slots=True)
class Holdout:
    """The wanted part of a file that is divided: by a hash of the pair; `by_time`, where the newest `fraction` is the
    test part; or by each user's `last` ratings."""

    is_test: bool
    fraction: float = 0.0
    seed: int = 0
    by_time: bool = False
    last: int = 0

    @property
    def needs_time(self) -> bool:
        return self.by_time or bool(self.last)


@dataclass(slots=True)
class Rated:
    """Parsed ratings, (N,) each. `user` and `item` int32 are numbers of names; `time` only if it is needed."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    time: np.ndarray | None = None

    def rows(self, chosen: np.ndarray) -> "Rated":
        """Return the ratings `chosen`, without times."""
        return Rated(self.user[chosen], self.item[chosen], self.rating[chosen])


class RatedParsing(Parsing):
    """Base class: turns parsed ratings into the packed table. Its sources have `holdout`."""

    version = 2  # a holdout by a hash of names

    def table(self, rated: Rated, names: dict[str, Any], duplicates: str) -> Parsed:
        """Return the table, sorted by user and item. Raises DataError for duplicate pairs, if they fail."""
        names = {kind: np.array(ids, getattr(ids, "dtype", object)) for kind, ids in names.items()}
        if self.source.holdout is not None:
            rated = self._part(rated, names)
        if self.what != INPUT:
            rated = self._in_order(rated, names, duplicates)
        if self.like is not None:
            rated, names = self._as_in(self.like, rated, names), {k: self.like.names[k] for k in names}
        elif self.source.holdout is not None:
            names = {"users": dense(rated.user, names["users"]), "items": dense(rated.item, names["items"])}
        entries = self._add_features(names) if self.like is None else {}
        sizes = {kind: len(values) for kind, values in names.items()}
        names |= entries
        arrays = {"user": rated.user, "item": rated.item, "rating": rated.rating}
        return self.finished(Packed.of(self.region_name, "table", arrays, sizes, names))

    def places(self, user: str, item: str) -> list[str]:
        """Return the lines of one pair in the file, for an error."""
        return []

    def _add_features(self, names: dict[str, Any]) -> dict[str, list[str]]:
        """Add users and items that only have features, and the features, to `names`; return who has which."""
        found = {}
        for kind, path in getattr(self.source, "feature_files", {}).items():
            side, before = kind.removesuffix("s"), len(names[kind])
            given = read_features(path, self.encoding)
            if not given:
                raise DataError(f"{path}: the file has no features", code="data/empty")
            names[kind], names[f"{side}_features"], found[MEMBERSHIPS[side]] = with_features(names[kind], given)
            if more := len(names[kind]) - before:
                self.notes.append(
                    f"{number_of(more, side)} with features and without ratings: their features stand for them"
                )
        return found

    def _in_order(self, rated: Rated, names: dict[str, np.ndarray], duplicates: str) -> Rated:
        """Return the ratings sorted by user and item, each pair once unless duplicates are kept."""
        pairs = pairs_of(rated.user, rated.item)
        if (pairs[1:] > pairs[:-1]).all():
            return rated
        rated = rated.rows(places_in_order(pairs))
        is_again = (rated.user[1:] == rated.user[:-1]) & (rated.item[1:] == rated.item[:-1])
        many = int(is_again.sum())
        if duplicates == "keep" or not many:
            return rated
        if duplicates == "last":
            self.left_out["earlier ratings"] = many
            self.notes.append(f"{many:,} ratings are left out: the same user rated the same item again further down")
            return rated.rows(np.flatnonzero(np.append(~is_again, True)))
        if duplicates == "sum":
            self.left_out["repeats"] = many
            self.notes.append(f"{many:,} lines repeat a user and an item: their ratings are added up, as counts")
            first = np.flatnonzero(np.append(True, ~is_again))
            total = np.add.reduceat(rated.rating, first, dtype=np.float64).astype(np.float32)
            return Rated(rated.user[first], rated.item[first], total)
        place = int(is_again.argmax())
        pair = str(names["users"][rated.user[place]]), str(names["items"][rated.item[place]])
        where = " and ".join(self.places(*pair)[:2]) or str(self.source.path)
        raise DataError(
            f"{where}: user {pair[0]} rated item {pair[1]} twice; there are {many:,} such ratings; set duplicates: "
            "last (use the later one), sum (add them up, as counts) or keep",
            code="data/duplicate-rating",
        )

    def _part(self, rated: Rated, names: dict[str, np.ndarray]) -> Rated:
        """Return the wanted part, in the same order."""
        holdout: Holdout = self.source.holdout
        if rated.time is not None:
            self._note_scales(rated.time)
        is_held = np.zeros(len(rated.user), np.bool_)
        if holdout.last:
            self._hold_last(rated, len(names["users"]), is_held)
        elif holdout.by_time:
            assert rated.time is not None
            first = len(is_held) - max(1, round(holdout.fraction * len(is_held)))
            is_held[:] = rated.time >= np.partition(rated.time, first)[first]
        else:
            columns = (names["users"], rated.user), (names["items"], rated.item)
            is_held = held_out(columns, holdout.fraction, holdout.seed)
        rows = np.flatnonzero(is_held == holdout.is_test)
        if not len(rows):
            how = f"last {holdout.last}" if holdout.last else f"fraction {holdout.fraction}"
            raise DataError(
                f"{self.what}: holdout {how} of {len(rated.user):,} ratings leaves one part empty", code="data/split"
            )
        return rated.rows(rows)

    def _note_scales(self, times: np.ndarray) -> None:
        """Note times of different units, which cannot be compared."""
        counts = np.bincount(np.searchsorted(SCALES, np.abs(times), side="right"), minlength=len(UNITS))
        found = [f"{many:,} {unit}" for unit, many in zip(UNITS, counts.tolist(), strict=True) if many]
        if len(found) > 1:
            self.notes.append(
                f"times seem to have several units ({', '.join(found)}) and are compared as they are: write all in one"
            )

    def _hold_last(self, rated: Rated, users: int, is_held: np.ndarray) -> None:
        """Hold out each user's newest ratings; of the same time, those further down. Who has no others keeps them."""
        assert rated.time is not None
        last, order = self.source.holdout.last, places_in_order(rated.time)
        order = order[places_in_order(rated.user[order])]
        counts = np.bincount(rated.user, minlength=users)
        few = counts <= last
        behind = np.repeat(np.cumsum(counts), counts) - np.arange(len(order))  # 1 for a user's newest
        is_held[order[(behind <= last) & ~np.repeat(few, counts)]] = True
        if self.source.holdout.is_test and few.any():
            much = f"no more than {number_of(last, 'rating')}"
            self.notes.append(f"{number_of(int(few.sum()), 'user')} with {much} of all: they stay in the training part")

    def _as_in(self, like: Packed, rated: Rated, names: dict[str, np.ndarray]) -> Rated:
        """Return the ratings with the training data's numbers, without unknown users and items."""
        if {*names} - {*like.names}:
            raise DataError(f"{self.source.path}: data.train has no ratings", code="data/val-unlike-train")
        for ids, kind in ((rated.user, "users"), (rated.item, "items")):
            ids[:] = IdRows(like.names[kind]).rows(names[kind])[ids]
        is_known = (rated.user >= 0) & (rated.item >= 0)
        if not (unknown := int(np.count_nonzero(~is_known))):
            return rated
        self.left_out["unseen ratings"] = unknown
        self.notes.append(
            f"{unknown:,} of {len(is_known):,} ratings are left out: the training data does not have their user or item"
        )
        return Rated(rated.user[is_known], rated.item[is_known], rated.rating[is_known])


def dense(ids: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Return the names that are used, and replace `ids` by their numbers among those, in place."""
    is_used = np.zeros(len(names), np.bool_)
    is_used[ids] = True
    ids[:] = (np.cumsum(is_used, dtype=np.int32) - np.int32(1))[ids]
    return names[is_used]
