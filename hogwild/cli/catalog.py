"""Commands that explain: list what comes with hogwild, print the schema of job files, a resolved job, and chapters of
docs/errors.md, which is part of a wheel."""

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated

import typer

from hogwild.cli.arguments import Arguments, Json, StateDir, is_job_id, split_arguments
from hogwild.cli.init import SCHEMA, list_tasks
from hogwild.cli.output import print_result, reading
from hogwild.config.locate import first_sentence, shipped
from hogwild.config.of_run import load
from hogwild.errors import UsageError, did_you_mean
from hogwild.host import raise_noted

# Groups that `hogwild list` can list.
LISTED = {
    "models": "model.class_path",
    "data": "data.train.class_path",
    "configs": "job files: hogwild train FILE",
    "losses": "loss.class_path",
    "metrics": "evaluate.metrics",
    "tasks": "hogwild init TASK",
}
CLASSES = {"models": "Model", "data": "Component", "losses": "Loss"}  # group -> its definition in the schema
KINDS = ("models", "data", "losses", "metrics")  # those with a page in docs/reference
MOST = 110  # letters about one name: with it, they fit a line


def show(arguments: Arguments = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Print the resolved job: every field, with defaults and overrides. With the ID of a job of the service: that
    job."""
    if arguments and len(arguments) == 1 and is_job_id(arguments[0]):
        from hogwild.cli.jobs import show_job

        show_job(arguments[0], state_dir, as_json=as_json)
        return
    with reading():
        job, _ = load(*split_arguments(arguments))
    print_result(job.to_yaml().rstrip("\n"))


def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    print_result(shipped(f"configs/{SCHEMA}").read_text("utf-8").rstrip("\n"))


def list_(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[models|data|configs|losses|metrics|tasks]", autocompletion=lambda: LISTED),
    ] = None,
    arguments: Annotated[bool, typer.Option("--arguments", help="Explain each argument: docs/reference/.")] = False,
) -> None:
    """List what comes with hogwild: everything, or one kind."""
    known = KINDS if arguments else LISTED
    if what is not None and what not in known:
        raise UsageError(f"cannot list {what!r}; choose {', '.join(known)}", code="usage/bad-value")
    if arguments:
        for kind in [what] if what else KINDS:
            print_result((shipped("docs/reference") / f"{kind}.md").read_text("utf-8").rstrip("\n"))
        return
    groups = {name: dict(_rows(name)) for name in ([what] if what else LISTED)}
    raise_noted()
    for name, rows in groups.items():
        if what is None:
            print_result(f"{name}: {LISTED[name]}")
        width = max((len(row) for row in rows), default=0)
        for row, text in rows.items():
            print_result(f"{'' if what else '  '}{row:<{width}}  {text}".rstrip())


def _rows(group: str) -> Iterator[tuple[str, str]]:
    """Yield each name with a line about it."""
    if group in CLASSES:
        classes = json.loads(shipped(f"configs/{SCHEMA}").read_text("utf-8"))["$defs"][CLASSES[group]]["allOf"]
        known = [[one[part]["properties"]["class_path"] for part in ("if", "then")] for one in classes]
        yield from ((name["const"], textwrap.shorten(of["description"], MOST, placeholder=" …")) for name, of in known)
    elif group == "metrics":
        from hogwild.metrics.catalog import CATALOG

        yield from ((name, known.words) for name, known in CATALOG.items())
    elif group == "tasks":
        yield from list_tasks().items()
    else:
        from hogwild.config.load import list_configs

        yield from ((str(path), first_sentence(path)) for path in list_configs())


# ---- error codes -----------------------------------------------------------------------------------------------------

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
