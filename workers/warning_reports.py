"""Warnings of Python and torch on their way to the person: each text once, in the display, the events and the result.
Torch-free."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MOST = 20  # texts of one process or job: one may hold a number that always changes


@contextmanager
def hearing_warnings(tell: Callable[[str, str], object]) -> Iterator[None]:
    """Call `tell(text, place)` for each new text, after it was shown as before."""
    before: Any = warnings.showwarning
    told = set[str]()

    def show(message: Any, category: Any, file: str, line: int, *more: Any) -> None:
        before(message, category, file, line, *more)
        text = f"{category.__name__}: {message}"
        if text not in told and len(told) < MOST:
            told.add(text)
            tell(text, f"{file}:{line}")

    module: Any = warnings
    module.showwarning = show
    try:
        yield
    finally:
        if module.showwarning is show:  # else the user's code has set another
            module.showwarning = before
