"""Warnings on their way to the person, those of Python, torch and `logging`: each text once, in the display, the events
and the result. Torch-free."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MOST = 50  # texts of one process or job: one may hold a number that always changes


@contextmanager
def hearing_warnings(tell: Callable[[str, str], object]) -> Iterator[None]:
    """Call `tell(text, place)` for each new text, also of `logging` from WARNING on; `logging` then goes on as set. A
    told text of `warnings` is not shown again here: torch and numpy reset the filter that would see to it."""
    before: Any = warnings.showwarning
    make_record = logging.getLogRecordFactory()
    told = set[str]()

    def hear(text: str, place: str) -> None:
        if text not in told and len(told) < MOST:
            told.add(text)
            tell(text, place)

    def show(message: Any, category: Any, file: str, line: int, *more: Any) -> None:
        text = f"{category.__name__}: {message}"
        if text not in told:
            before(message, category, file, line, *more)
            hear(text, f"{file}:{line}")

    def heard_record(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make_record(*arguments, **options)
        # `logging.captureWarnings` before now: heard by `show`; after now: only here.
        if record.levelno >= logging.WARNING and not (record.name == "py.warnings" and module.showwarning is show):
            hear(f"{record.levelname}: {_message(record)}", f"{record.pathname}:{record.lineno}")
        return record

    module: Any = warnings
    module.showwarning = show
    logging.setLogRecordFactory(heard_record)
    try:
        yield
    finally:
        if module.showwarning is show:  # else the user's code has set another
            module.showwarning = before
        if logging.getLogRecordFactory() is heard_record:
            logging.setLogRecordFactory(make_record)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit: `logging` reports that itself, and the caller goes on
        return str(record.msg)
