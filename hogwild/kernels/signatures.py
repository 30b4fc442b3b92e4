"""Argument types of our own kernels. A kernel is compiled for types, not for sizes, so a job file says which ones a job
needs long before there is a model (`hogwild/job/foreseen_kernels.py`). No numba and no torch here.

    "int64"       a number                       "float32:2"  an array of two dimensions, C-contiguous
    "int64:1A"    of any strides                 "uint8:1R"   read-only
    "S32:1"       a width, see `simd.of_width`   (…, …)       a tuple

Models name the kernels of their updates by the same functions (`FusedUpdate.kernels`)."""

import importlib.util
from dataclasses import dataclass
from typing import Any

RULES = {"SGD": (0,), "Adagrad": (0, 0), "FTRL": (0, 0, 0)}  # `rule` of kernels/steps.py, which needs numba
FREE, GONE = -(2**63), -(2**63) + 1  # in the keys of `row_claims.py`: a row that nobody has; ids of these are refused
HEAD = 2  # rows before those of keys: the default row, and one that nobody ever asks for
DEFAULT, BLANK = 0, 1
WIDEST = 128  # numbers of a row that is compiled for its width: with 200 a loop is faster
Types = tuple[Any, ...]  # texts as above, or tuples of them

_ROWS, _SEED = "int64:1", "uint64"
_NUMBERS = ("float32",) * 3
_USERS_AND_ITEMS = ("int32:1", "int32:1", "float32:1")


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels of one module of `hogwild.kernels` that are compiled and kept together: the types of each one's
    arguments."""

    module: str
    types: tuple[tuple[str, Types], ...]

    @property
    def name(self) -> str:
        """Return the text that is hashed for the cache: equal for what is compiled to equal code."""
        return f"{self.module}: {self.types}"

    def plain(self) -> tuple[str, list[Any]]:
        """Return it as JSON can hold it."""
        return self.module, [list(one) for one in self.types]

    @classmethod
    def of(cls, plain: Any) -> "Kernels":
        """Return what `plain` describes; lists are tuples."""
        module, types = plain
        return cls(module, _tuples(types))


def has_numba() -> bool:
    """Return whether kernels can be compiled, without importing what compiles them, which takes half a second."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "llvmlite"))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _rule(name: str) -> Types:
    return ("int64",) * len(RULES[name])


def sparse(name: str, rule: str) -> Kernels:
    """Return that kernel of `sparse_models.py`."""
    private: Any
    tables, private = {
        "linear": ((_table(1),), (_table(1), "float32:2")),
        "softmax": ((_table(2),), (_table(2), "uint32:1", "float32:2")),
        "factorization_machine": ((_table(2),) * 2, (_table(2), "uint32:1", _table(2), "float32:1")),
        "field_factorization_machine": ((_table(2),) * 2, "int64"),
    }[name]
    is_softmax = name == "softmax"
    data = ("uint64:1", "uint32:1", "float32:1", "int64:1" if is_softmax else "float32:1", "float32:1")
    kinds = () if is_softmax else ("int64",)
    numbers = (_NUMBERS,) * (len(tables) + 1)
    arguments = (_ROWS, data, *kinds, tables, _table(1), private, _rule(rule), numbers)
    return Kernels("sparse_models", ((name, arguments),))


def _table(dimensions: int, sums: int = 0) -> Types:
    """Return the types of a parameter, its sums and its z; sums and z have `sums` dimensions, or the parameter's."""
    return f"float32:{dimensions}", *(f"float32:{sums or dimensions}",) * 2


def ratings(rule: str, factors: int, *, is_named: bool = False) -> Kernels:
    """Return that kernel of `matrix_factorization.py`. `is_named`: vectors and biases are columns of one table."""
    batches = (_ROWS, "int64:1", "float32:1", "int64:1")
    place = ("int64:1A", "int64", "bool")
    name, sums = {"SGD": ("sgd", 2), "Adagrad": ("adagrad", 2), "RowWiseAdagrad": ("row_adagrad", 1)}[rule]
    vectors, bias = (("float32:2A",) * 3, ("float32:1A",) * 3) if is_named else (_table(2, sums), _table(1))
    tables = (vectors, vectors, bias, bias)
    data, width = (*_USERS_AND_ITEMS, "float32"), f"S{factors}:1" if factors <= WIDEST else "none"
    return Kernels("matrix_factorization", ((name, (batches, place, width, data, tables, "float32:2")),))


def pairs(rule: str, *, has_features: bool = False, is_named: bool = False) -> Kernels:
    """Return that kernel of `bpr.py`. `is_named`: an item's vector and bias are columns of one table."""
    owned, choice = ("int64:1", "int32:1", "int32:1"), (_SEED, "int64", "float32")
    members = (("int64:1", "int64:1", "float32:1"),) * 2 if has_features else ()
    items = (("float32:2A",) * 3, ("float32:1A",) * 3) if is_named else (_table(2), _table(1))
    tables = (_table(2), *items) * (2 if has_features else 1)
    arguments = (_ROWS, _USERS_AND_ITEMS, owned, choice, tables, members, _rule(rule), "float32:2")
    return Kernels("bpr", (("hybrid" if has_features else "plain", arguments),))


def words(*, is_named: bool = False) -> Kernels:
    """Return the kernel of `skipgram.py`. `is_named`: its words are dropped before, its negatives those of a list."""
    shares = "none" if is_named else "float32:1"
    text = ("int32:1", "int64:1", shares, shares, "int32:1")
    model = (*("float32:2",) * 3, "int64:1", "int32:1", "int64", "int64", "bool", "bool")
    scratch = ("int32:1", "int32:1", *("float32:2",) * 7)
    return Kernels("skipgram", (("sgd", (_ROWS, *text, *model, _SEED, *("float32",) * 3, *scratch)),))


def graph() -> Kernels:
    tables = ("float32:2",) * 2
    scratch = (("int64:1",) * 7, ("float32:2",) * 8, ("float32:1",) * 5)
    arguments = ("int32:2", _ROWS, _SEED, "int64:1", "float32:1", tables, tables, ("int64:1",) * 2, scratch)
    return Kernels("knowledge_graph", (("train", arguments),))


def hot_rows() -> Kernels:
    copy = ("float32:2", "int32:1", "int32:1", "float32:2", "float32:2")
    return Kernels("hot_rows", (("_read", copy), ("_flush", copy), ("_flush_whole", ("float32:1",) * 3)))


def row_claims() -> Kernels:
    """Return the kernels of `row_claims.py`."""
    words, table, number = "int64:1", "float32:2", "int64"
    lookup = (words, words, words, table, "int32:1", number, words, words, *(number,) * 4, words)
    of_rows = (
        ("draw", (table, words, number, "float64", number)),
        ("open_part", (words, table, words, number, number, number, "float64", number)),
        ("show", (words, number, number)),
        ("unseen", (words, words, number, words)),
        ("give_back", (words, words, number, number)),
    )
    return Kernels("row_claims", (("find", lookup), *of_rows))


def ranking() -> Kernels:
    scratch = (*("float32:2",) * 6, "int32:2", "float32:1", "int64:2")
    known = ("int64:1", "int32:1", "int64:1", "int32:1")
    tables = ("float32:2", "float32:2", "float32:1")
    rank = ("int64:1", *tables, *known, "bool", scratch, "int32:2", "uint8:2", "float64:1")
    return Kernels("ranking", (("keep_new", (*known, "bool:1")), ("rank", rank)))


def libsvm() -> tuple[Kernels, Kernels]:
    found = ("int64:1", "int32:1", "float32:1", "float32:1")
    parse = ("uint8:1R", "int64", "int64", "bool", *found, "int64:1")
    kept = ("int64:1", "int32:1", "float32:1", "float32:1", "uint8:1", "int64", "int64")
    return (
        Kernels("libsvm", (("parse", parse),)),
        Kernels("libsvm", (("by_frequency", (*found, "int64", "int64:1", "bool", *kept)),)),
    )


def text_keys() -> Kernels:
    arguments = ("uint8:1R", "int32:1R", "uint8:1R", "int64", "bool", "int64:1", "int64:1")
    return Kernels("text_keys", (("keys_of", arguments),))
