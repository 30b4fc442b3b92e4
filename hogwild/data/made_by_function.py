"""A data set that a caller's function makes."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from torch.utils.data import IterableDataset

from hogwild.errors import DataError, HogwildError
from hogwild.user_code import raised_text


class GeneratedData(IterableDataset[Any]):
    """Records of a function that yields them, called anew for each pass."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return self._function()


def is_maker(given: Any) -> bool:
    """Return whether it is called to make an object: a function or a class."""
    return inspect.isroutine(given) or inspect.isclass(given) or isinstance(given, partial)


def made_by_function(given: Any, what: str) -> Any:
    """Return the data set that a function, or a class, makes without arguments; anything else as it is. Raises
    DataError."""
    if not is_maker(given):
        return given
    try:
        made = given()
    except HogwildError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(given, "__qualname__", "partial")
        raise DataError(
            f"{what}: {name}() raised {raised_text(error)}; it is called without arguments: give those that it needs "
            "by functools.partial",
            code="data/item-raised",
        ) from error
    return GeneratedData(cast("Callable[[], Iterator[Any]]", given)) if isinstance(made, Iterator) else made
