"""`hogwild explain`: the chapters of docs/errors.md in the terminal. The file is part of a wheel."""

import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from hogwild.cli.output import print_result
from hogwild.config.locate import shipped
from hogwild.errors import CODES, UsageError, did_you_mean

WIDEST = 100


def explain(code: Annotated[str | None, typer.Argument(metavar="[CODE|GROUP]")] = None) -> None:
    """Explain an error code: cause, how to see, how to fix. Without a code: list all of them."""
    asked = (code or "").strip("[]`'\" ")
    if asked in CODES:
        print_result(*_chapter(asked))
        return
    group = [one for one in CODES if one.startswith(asked.rstrip("/") + "/" if asked else "")]
    if not group:
        raise UsageError(_unknown(asked), code="usage/bad-value")
    print_result(*(f"{one:<{max(map(len, group))}}  {CODES[one]}" for one in group))


def _unknown(asked: str) -> str:
    bare = " or ".join(f"'{one}'" for one in CODES if one.partition("/")[2] == asked)
    close = f"; did you mean {bare}?" if bare else did_you_mean(asked, CODES)
    groups = ", ".join(dict.fromkeys(one.partition("/")[0] for one in CODES))
    return f"no error code {asked!r}{close} (groups: {groups}; all codes: hogwild explain)"


def _chapter(code: str) -> Iterator[str]:
    text = shipped("docs/errors.md").read_text("utf-8")
    body = re.split(r"^##", text.partition(f"\n### `{code}`\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    yield f"{code}: {CODES[code]}"
    for heading, words in re.findall(r"^- \*(.+?)\*: (.+(?:\n(?!- ).+)*)", body, flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words)
        lines = textwrap.wrap(words, width - 2, break_long_words=False, break_on_hyphens=False)
        yield "\n".join(["", heading, *(f"  {line}" for line in lines)])
