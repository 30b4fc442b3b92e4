"""`hogwild recommend`: items for one user, for many, or for somebody new."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hogwild.cli.arguments import Json, Run, Which
from hogwild.cli.output import print_answer, print_message, put_parts, reading
from hogwild.cli.results import check_file, model_of
from hogwild.errors import DataError, UsageError
from hogwild.host import raising_on_signals

if TYPE_CHECKING:
    from hogwild.inference.recommend import ItemRanker

ALL = "all"


def recommend(
    source: Run,
    user: Annotated[str | None, typer.Option(help="One user, as named in the training data.")] = None,
    users: Annotated[
        str | None,
        typer.Option(help="Many: a file with a user per line, - for standard input, or all.", metavar="FILE|all"),
    ] = None,
    rated: Annotated[
        list[str] | None,
        typer.Option(
            help="Somebody new who has this item, or rated it; may be repeated.",
            metavar="ITEM[=RATING]",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Number of items; default: 10, if there are so many.")] = None,
    only: Annotated[
        Path | None, typer.Option("--filter", help="Recommend only items of this file, one per line.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for many users; default: print CSV.", metavar="FILE.csv|FILE.parquet")
    ] = None,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Recommend items, best first, without those that the user already has."""
    with reading():
        if sum(one is not None for one in (user, users, rated or None)) != 1:
            words = "give --user NAME, --users FILE (or all), or --rated ITEM: one of the three"
            raise UsageError(words, code="usage/contradiction")
        if (users is None and out is not None) or (users is not None and as_json):
            raise UsageError("--out is for --users, --json for one user", code="usage/contradiction")
        if out is not None:
            check_file("--out", out, (".csv", ".parquet"))
        chosen = None if users in (None, ALL) else _lines("--users", users)
        allowed = None if only is None else _lines("--filter", str(only))
    ranker = model_of(source, which, None).ranker()
    if allowed is not None:
        ranker.allow(allowed)
    if users is not None:
        with raising_on_signals():
            _for_users(ranker, chosen, top, out)
        return
    found = ranker.for_user(user, top) if user is not None else ranker.for_items(_ratings(ranker, rated or []), top)
    record: dict[str, Any] = {"user": user} if user is not None else {"rated": rated}
    lines = [*found.notes, *(f"{score:.4f}  {name}" for name, score in found.items)]
    print_answer(record | {"items": found.items}, lines, as_json)


def _for_users(ranker: "ItemRanker", chosen: Sequence[str] | None, top: int | None, out: Path | None) -> None:
    """Write or print a row for each user and item."""
    from hogwild.inference.answer_file import encoder_for
    from hogwild.inference.recommend import WITH_RATED

    if ranker.had is None:
        print_message(WITH_RATED)
    encode = encoder_for(out)
    blocks = enumerate(ranker.for_users(chosen, top))
    put_parts(((len(block.user), encode(block, number == 0)) for number, block in blocks), out, "recommendations")


def _ratings(ranker: "ItemRanker", rated: Sequence[str]) -> dict[str, float | None]:
    """Return the ratings by item; None for an item alone. An item's name may contain "=". Raises UsageError."""
    found: dict[str, float | None] = {}
    for text in rated:
        item, equals, number = (text, "", "") if ranker.knows(text) else text.rpartition("=")
        item = item if equals else text
        if item in found:
            raise UsageError(f"--rated {text}: {item!r} is given twice", code="usage/bad-value")
        try:
            found[item] = float(number) if equals else None
        except ValueError:
            raise UsageError(f"--rated {text}: {number!r} is not a number", code="usage/bad-value") from None
    return found


def _lines(option: str, path: str) -> list[str]:
    """Return the lines of a text file, or of standard input ("-"), without empty ones. Raises DataError, and UsageError
    for a file without any."""
    from hogwild.data.ids import WHITE
    from hogwild.data.locate import read

    content = sys.stdin.buffer.read() if path == "-" else read(Path(path))
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{option} {path}: is not text in UTF-8: {error}", code="data/unreadable") from None
    found = [line.strip(WHITE) for line in text.split("\n") if line.strip(WHITE)]
    if not found:
        raise UsageError(f"{option} {path}: has no lines", code="usage/bad-value")
    return found
