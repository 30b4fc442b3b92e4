"""Commands that explain: list what comes with hogwild, print the schema of job files and chapters of
docs/errors.md, which is part of a wheel; and `hogwild init`: a commented job file for a task, and the files it needs.

The job file of a task is the one in configs/, which the tests train with real data. Where the user cannot have that
data, `edits` put a sample in its place; the lines for the real data stay below, as comments. job.schema.json is
included because editors report a missing schema as an error of the job file."""

import json
import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from hogwild.cli.output import file_exists, print_message, print_result
from hogwild.config.locate import first_sentence, shipped
from hogwild.errors import NotFoundError, RunError, UsageError, did_you_mean
from hogwild.host import raise_noted

SCHEMA = "job.schema.json"
MODELINE = "# yaml-language-server: $schema="
STDOUT = Path("-")
FEW = 4  # files of a folder that are reported one by one
SAMPLED = "As written, this uses a small sample that hogwild init has made up, in samples/:"
REAL = "For the data named above use --data-dir DIR, and each commented line in place of the line above it."
EXPLAINED = "`hogwild list --arguments` explains every argument."


ARCHIVE = Path(__file__).with_name("samples.tar.xz")  # a folder per sample; beside it NAME.txt, a sentence about it


@dataclass(frozen=True, slots=True)
class InitTask:
    """A task, as tasks.yaml describes it."""

    job: str
    change: str
    beside: Sequence[str] = ()
    sample: str = ""
    edits: Mapping[str, str] = field(default_factory=dict)


@cache
def tasks() -> Mapping[str, InitTask]:
    """Return name -> task, in the order of the list."""
    import yaml  # which other commands do without

    text = Path(__file__).with_name("tasks.yaml").read_text("utf-8")
    return {name: InitTask(**values) for name, values in yaml.safe_load(text).items()}


@cache
def _samples() -> Mapping[str, bytes]:
    """Return path in the archive -> content: invented data in the formats of the data sets it stands for."""
    import tarfile

    with tarfile.open(ARCHIVE) as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive)
        return {name: file.read() for name, file in files if file is not None}


def sample_files(name: str) -> dict[str, bytes]:
    """Return the files of a sample: path below samples/ -> content."""
    start = f"{name}/"
    return {path.removeprefix(start): content for path, content in _samples().items() if path.startswith(start)}


def init(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Task; see --list.", autocompletion=tasks)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE|-", help="Job file to write (default: TASK.yaml); -: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists; no other file.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the tasks.")] = False,
) -> None:
    """Write a commented job file for a task, with sample data: it trains as written. Without TASK: list the tasks."""
    if list_ or task is None:
        raise_noted()
        width = max(map(len, tasks()))
        print_result(*(f"{name:<{width}}  {words}" for name, words in list_tasks().items()))
        return
    if task not in tasks():
        raise UsageError(
            f"unknown task {task!r}{did_you_mean(task, tasks())} (tasks: {', '.join(tasks())})",
            code="usage/unknown-task",
        )
    chosen = tasks()[task]
    text = job_text(task)
    out = Path(f"{task}.yaml") if out is None else out
    if out == STDOUT:
        print_result(text.rstrip("\n"))
        needed = [*chosen.beside, *(["its sample data"] if chosen.sample else [])]
        also = f"; use --out FILE to also write {' and '.join(needed)}" if needed else ""
        print_message(f"hogwild schema prints {SCHEMA}, for editors{also}")
        return
    _write(out, text.encode(), force)
    command = "search" if "\nsearch:" in text else "train"
    print_result(f"wrote {out}", *_bring(chosen, out.parent))
    print_result(f"next: hogwild {command} {out}", f"then, for your own data, change {chosen.change}")


def list_tasks() -> dict[str, str]:
    """Return name -> a sentence about it."""
    return {name: first_sentence(shipped(f"configs/{task.job}")) for name, task in tasks().items()}


def job_text(name: str) -> str:
    """Return the text of a task's job file; its first line names the schema beside it."""
    task = tasks()[name]
    first, *lines = shipped(f"configs/{task.job}").read_text("utf-8").splitlines()
    assert first.startswith(MODELINE), task.job
    begin = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    words = [SAMPLED, _samples()[f"{task.sample}.txt"].decode().strip()] if task.sample else []
    words += [REAL] if task.edits else []
    note = textwrap.wrap(" ".join([*words, f"For your own data change {task.change}.", EXPLAINED]), 118)
    body = [edited for line in lines[begin:] for edited in _edited(line, task.edits)]
    body = [f"name: {name}" if line.startswith("name: ") else line for line in body]
    return "\n".join([f"{MODELINE}./{SCHEMA}", *lines[:begin], "#", *(f"# {line}" for line in note), *body, ""])


def _edited(line: str, edits: Mapping[str, str]) -> list[str]:
    """Return the line, or the line with the edits, then itself as a comment."""
    code = re.sub(r"(^|\s+)#.*", "", line)
    changed = code
    for old, new in edits.items():
        changed = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, changed)
    indent = len(line) - len(line.lstrip())
    return [line] if changed == code else [changed, f"{line[:indent]}# {line[indent:]}"]


def needed_files(task: InitTask) -> dict[str, bytes]:
    """Return the files that the job needs in its folder: relative path -> content."""
    files = {name: shipped(f"configs/{name}").read_bytes() for name in task.beside}
    if task.sample:
        files |= {f"samples/{name}": content for name, content in sample_files(task.sample).items()}
    return files


def _bring(task: InitTask, folder: Path) -> list[str]:
    """Write the files that the job needs beside it; return a line about each, or about a folder of many. Existing files
    are kept: they may be the user's."""
    files = {**needed_files(task), SCHEMA: shipped(f"configs/{SCHEMA}").read_bytes()}
    lines, written = [], dict[Path, list[Path]]()
    for name, content in files.items():
        file = folder / name
        if not os.path.lexists(file):
            if file.parent != folder:
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:  # a file has its name, for example
                    raise RunError(
                        f"{file.parent}: cannot be made: {error.strerror}", code="run/output-not-written"
                    ) from error
            _write(file, content, force=False)
            written.setdefault(file.parent, []).append(file)
        elif not (file.is_file() and os.access(file, os.R_OK) and file.read_bytes() == content):
            hint = f"; update it with: hogwild schema > {file}" if name == SCHEMA else ""
            lines.append(f"kept {file}, which differs from this version's file{hint}")
    for place, many in written.items():
        lines += [f"wrote {place}: {len(many)} files"] if len(many) > FEW else [f"wrote {file}" for file in many]
    return lines


def _write(file: Path, content: bytes, force: bool) -> None:
    """Write the file. Raises UsageError if it exists, NotFoundError without its folder, RunError for other errors."""
    try:
        with open(file, "wb" if force else "xb") as stream:
            stream.write(content)
    except FileExistsError:
        raise file_exists(file) from None
    except FileNotFoundError:
        raise NotFoundError(
            f"--out {file}: there is no folder {file.parent.absolute()}; create it first", code="usage/no-folder"
        ) from None
    except OSError as error:
        raise RunError(f"{file}: cannot be written: {error.strerror}", code="run/output-not-written") from error


# ---- list and schema -------------------------------------------------------------------------------------------------

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
        bare = " or ".join(f"'{one}'" for one in chapters() if one.partition("/")[2] == asked)
        close = f"; did you mean {bare}?" if bare else did_you_mean(asked, chapters())
        groups = ", ".join(dict.fromkeys(one.partition("/")[0] for one in chapters()))
        raise UsageError(
            f"no error code {asked!r}{close} (groups: {groups}; all codes: hogwild explain)", code="usage/bad-value"
        )
    print_result(*(f"{one:<{max(map(len, group))}}  {chapters()[one][IN_SHORT]}" for one in group))


def _chapter(code: str) -> Iterator[str]:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    for heading, words in chapters()[code].items():
        if heading == IN_SHORT:
            yield f"{code}: {words}"
            continue
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words)
        lines = textwrap.wrap(words, width - 2, break_long_words=False, break_on_hyphens=False)
        yield "\n".join(["", heading, *(f"  {line}" for line in lines)])
