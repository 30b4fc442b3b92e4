"""`hogwild explain`: the chapters of docs/errors.md in the terminal. The file is part of a wheel."""

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated

import typer

from hogwild.cli.output import print_result
from hogwild.config.locate import shipped
from hogwild.errors import UsageError, did_you_mean

WIDEST = 100
IN_SHORT = "In short"  # the first part of a chapter


@cache
def chapters() -> Mapping[str, Mapping[str, str]]:
    """Return code -> heading -> paragraph, in the order of the file, which is the list of all codes."""
    text = shipped("docs/errors.md").read_text("utf-8")
    found = re.findall(r"^### `(.+)`\n((?:(?!##).*\n)*)", text, flags=re.MULTILINE)
    return {
        code: dict(re.findall(r"^- \*(.+?)\*: (.+(?:\n(?!- ).+)*)", body, flags=re.MULTILINE)) for code, body in found
    }


def explain(code: Annotated[str | None, typer.Argument(metavar="[CODE|GROUP]")] = None) -> None:
    """Explain an error code: cause, how to see, how to fix. Without a code: list all of them."""
    asked = (code or "").strip("[]`'\" ")
    if asked in chapters():
        print_result(*_chapter(asked))
        return
    group = [one for one in chapters() if one.startswith(asked.rstrip("/") + "/" if asked else "")]
    if not group:
        raise UsageError(_unknown(asked), code="usage/bad-value")
    print_result(*(f"{one:<{max(map(len, group))}}  {chapters()[one][IN_SHORT]}" for one in group))


def _unknown(asked: str) -> str:
    bare = " or ".join(f"'{one}'" for one in chapters() if one.partition("/")[2] == asked)
    close = f"; did you mean {bare}?" if bare else did_you_mean(asked, chapters())
    groups = ", ".join(dict.fromkeys(one.partition("/")[0] for one in chapters()))
    return f"no error code {asked!r}{close} (groups: {groups}; all codes: hogwild explain)"


def _chapter(code: str) -> Iterator[str]:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    for heading, words in chapters()[code].items():
        if heading == IN_SHORT:
            yield f"{code}: {words}"
            continue
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words)
        lines = textwrap.wrap(words, width - 2, break_long_words=False, break_on_hyphens=False)
        yield "\n".join(["", heading, *(f"  {line}" for line in lines)])
