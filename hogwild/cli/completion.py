"""Shell completion: `hogwild completion SHELL` prints a script that asks this module for matching words.

    shell, at TAB ──► _HOGWILD_COMPLETE=bash hogwild WORDS... ──► one `word <TAB> what it is` per line

The words are arguments, the last one unfinished; no shell quoting is parsed here. The candidates come from the command
line parser and job.schema.json; neither torch nor pydantic is imported, because the user waits."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hogwild.cli.arguments import WITH_JOB
from hogwild.cli.ask import KINDS
from hogwild.cli.init import SCHEMA, TASKS
from hogwild.cli.output import print_result
from hogwild.config.locate import first_sentence, source
from hogwild.errors import HogwildError, UsageError

VARIABLE = "_HOGWILD_COMPLETE"  # set to the shell's name by its script
Word = tuple[str, str]  # candidate, description

SHELLS = ("bash", "zsh", "fish")
# bash splits words at = and :, so its script joins them, and the answer is cut in the same way.
SCRIPTS = Path(__file__).with_name("completions")
OF_RUNS = ("status", "logs", "attach", "stop", "ask")  # commands that take the name of a run
OF_JOBS = ("ps", "cancel", "pause", "resume", "retry", "delete")  # those that take the number of a job of the service
OF_BOTH = ("status", "logs", "attach", "ask")
WITHOUT_PATHS = ("doctor", "schema", "serve")
PATHS = ("--out", "--run-dir", "--data-dir", "--resume", "--state-dir")
CHOICES = {
    "--format": ("safetensors", "state_dict", "torch-export", "onnx", "word2vec"),
    "--which": ("best", "latest"),
    "--procs": ("auto",),
}


def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print a script that completes commands, options and fields in a shell."""
    if shell not in SHELLS:
        raise UsageError(f"no completion for {shell!r}: must be one of {', '.join(SHELLS)}", code="usage/bad-value")
    print_result((SCRIPTS / f"hogwild.{shell}").read_text("utf-8").rstrip("\n"))


def answer(shell: str, words: Sequence[str], group: Any) -> int:
    """Print the candidates for the last of `words`, the words after the program's name. `group` is the parser's
    command group."""
    unfinished = words[-1] if words else ""
    for word, about in candidates(list(words[:-1]), unfinished, group):
        if shell == "bash":
            print_result(word[max(unfinished.rfind("="), unfinished.rfind(":")) + 1 :])  # only what bash replaces
        else:
            print_result(f"{word}\t{about}")
    return 0


def candidates(before: list[str], unfinished: str, group: Any) -> list[Word]:
    """Return the words that begin with `unfinished` and may follow `before`."""
    return [found for found in _all(before, unfinished, group) if found[0].startswith(unfinished)]


def _all(before: list[str], unfinished: str, group: Any) -> Iterator[Word]:
    commands = group.commands
    name = before[0] if before and before[0] in commands else ""
    if before and (last := before[-1]) in (*PATHS, *CHOICES):
        yield from _paths(unfinished, "") if last in PATHS else ((word, "") for word in CHOICES[last])
        return
    if before and before[-1] == "--sweep":
        yield from _fields(unfinished)
        return
    if unfinished.startswith("-"):
        yield from _options(commands[name or "train"])
        return
    if not before:
        yield from ((each, _first_line(command.help)) for each, command in commands.items() if not command.hidden)
    if name == "show" and len(before) == 1:
        yield from _jobs()
    if name in WITH_JOB or not name:
        yield from _paths(unfinished, ".yaml")
        yield from _fields(unfinished)
    else:
        yield from _arguments(name, before[1:], unfinished)


def _arguments(name: str, before: list[str], unfinished: str) -> Iterator[Word]:
    """Yield the arguments of the commands that take no job file."""
    from hogwild.cli.catalog import GROUPS

    if name == "init":
        yield from ((task, first_sentence(source(each.job))) for task, each in TASKS.items())
    elif name == "list":
        yield from GROUPS.items()
    elif name == "completion":
        yield from ((shell, "") for shell in SHELLS)
    elif name in OF_RUNS and not before:
        from hogwild.monitoring.run_status import LATEST, RUNS

        yield LATEST, "the newest run"
        yield from ((entry.name, "run") for entry in (RUNS.iterdir() if RUNS.is_dir() else ()))
        if name in OF_BOTH:
            yield from _jobs()
        yield from _paths(unfinished, "/")
    elif name == "ask" and len(before) == 1:
        yield from ((kind, "") for kind in KINDS)
    elif name in OF_JOBS:
        if not before:
            yield from _jobs()
    elif name not in WITHOUT_PATHS:
        yield from _paths(unfinished, "")


def _jobs() -> Iterator[Word]:
    """Yield the numbers of the service's jobs, and the ids of its sweeps."""
    from hogwild.service.folders import StateFolder, state_folder

    sweeps = {}
    with contextlib.suppress(HogwildError):  # no service was ever started
        for folder in StateFolder(state_folder(None)).job_folders():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                order = folder.read_order()
                yield str(order.number), order.name
                if order.sweep:
                    sweeps[order.sweep] = f"sweep of {order.name}"
    yield from sweeps.items()


def _options(command: Any) -> Iterator[Word]:
    for param in command.params:
        for option in param.opts:
            if option.startswith("--"):
                yield option, _first_line(getattr(param, "help", ""))
    yield "--help", "Show the options."


def _paths(unfinished: str, ending: str) -> Iterator[Word]:
    """Yield folders, and files with this ending."""
    shown, slash, _ = unfinished.rpartition("/")
    folder = Path(os.path.expanduser(shown + slash))
    try:
        entries = sorted(folder.iterdir())
    except OSError:  # missing, or not readable
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield f"{shown}{slash}{entry.name}/", "folder"
        elif entry.name.endswith(ending):
            yield f"{shown}{slash}{entry.name}", "file"


def _fields(unfinished: str) -> Iterator[Word]:
    """Yield `train.`, then `train.procs=`, then the field's values that are words."""
    schema = json.loads(source(SCHEMA).read_text("utf-8"))
    key, equals, _ = unfinished.partition("=")
    sections: set[str] = set()
    for path, field in _leaves(schema, schema, ()):
        end = path.find(".", len(unfinished)) + 1
        if equals:
            yield from ((f"{path}={word}", "") for word in _choices(schema, field) if path == key)
        elif not end and f"{path}." != unfinished:
            is_map = any(kind.get("type") == "object" for kind in _kinds(schema, field))  # of any keys: init_args
            yield path + ("." if is_map else "="), field.get("description", "")
        elif end and path[:end] not in sections and path.startswith(unfinished):
            sections.add(path[:end])
            yield path[:end], "section"


def _leaves(schema: Any, section: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield every field that is not a section, with its path in a job file."""
    for name, field in section.get("properties", {}).items():
        sections = [one for one in _kinds(schema, field) if one.get("properties")]
        for one in sections:
            yield from _leaves(schema, one, (*path, name))
        if not sections:
            yield ".".join((*path, name)), field


def _kinds(schema: Any, field: Any) -> Iterator[Any]:
    """Yield each type that a field may have."""
    if "$ref" in field:
        yield from _kinds(schema, schema["$defs"][field["$ref"].rpartition("/")[2]])
    elif options := field.get("anyOf") or field.get("oneOf"):
        for option in options:
            yield from _kinds(schema, option)
    else:
        yield field


def _choices(schema: Any, field: Any) -> Iterator[str]:
    for kind in _kinds(schema, field):
        if kind.get("type") == "boolean":
            yield from ("true", "false")
        for value in [*kind.get("enum", ()), *([kind["const"]] if "const" in kind else [])]:
            yield str(value)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
