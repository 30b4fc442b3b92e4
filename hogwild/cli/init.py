"""`hogwild init`: a commented job file for a task, and the files it needs, so that it trains as written.

The job file is the one in configs/, which the tests train with real data. Where the user cannot have that data, `edits`
put a sample in its place (`hogwild.cli.samples`); the lines for the real data stay below, as comments.
job.schema.json is included because editors report a missing schema as an error of the job file."""

import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from hogwild.cli.output import file_exists, print_message, print_result
from hogwild.cli.samples import about_sample, sample_files
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


@dataclass(frozen=True, slots=True)
class InitTask:
    """A task. `job`: the file in configs/; `change`: what users change for their own data; `beside`: files it needs in
    its folder; `sample`: of `hogwild.cli.samples`; `edits`: text in the job's fields -> text for the sample."""

    job: str
    change: str
    beside: tuple[str, ...] = ()
    sample: str = ""
    edits: Mapping[str, str] = field(default_factory=dict)


# fmt: off
COLUMNS = "path, target, inputs and categorical"
IDX = {"batch_size: 64": "batch_size: 16", "every_epochs: 1": "every_epochs: 5"}
DIGITS, CLOTHES = (
    {f"split: {part}": f"split: {part}, root: samples/{name}" for part in ("train", "test")} | IDX
    for name in ("digits", "clothes")
)
JESTER, RATINGS = "hogwild.data.Jester, init_args: {holdout", "hogwild.data.Ratings, init_args: {path: samples/"
WORDS = {
    "word-similarity/wordsim353.tsv": "samples/word_pairs.tsv", "dim: 100": "dim: 32", "sample: 0.001": "sample: 0",
    "batch_size: 4096": "batch_size: 512", "every_epochs: 1": "every_epochs: 5",
}
GRAPH = {
    "codex-m/train.txt": "samples/family_train.txt", "codex-m/valid.txt": "samples/family_valid.txt",
    "batch_size: 1024": "batch_size: 64", "epochs: 6": "epochs: 15", "every_epochs: 3": "every_epochs: 5",
    "dim: 200, negatives: 192": "dim: 32, negatives: 32",
}
TASKS: dict[str, InitTask] = {
    "digits": InitTask("digits.yaml", "data.train and data.val; hogwild init npz and csv-classification show how"),
    "mnist": InitTask("mnist.yaml", "root (a folder with MNIST's four files)", (), "digits",
        DIGITS | {"epochs: 4": "epochs: 10"}),
    "fashion-mnist": InitTask("fashion_mnist.yaml", "root (a folder with MNIST's four files)", (), "clothes",
        CLOTHES),
    "mnist-stream": InitTask("mnist_stream.yaml", "shifted.py (your own data set)", ("shifted.py",), "digits",
        DIGITS | {"epochs: 2": "epochs: 10"}),
    "csv-regression": InitTask("csv_regression.yaml", COLUMNS, ("houses.csv",)),
    "csv-classification": InitTask("templates/csv_classification.yaml", COLUMNS, ("houses.csv",)),
    "libsvm": InitTask("imdb.yaml", "path and lr", (), "reviews", {
        "imdb/imdb_bow_train.svm.gz": "samples/reviews_train.svm", "batch_size: 1024": "batch_size: 64",
        "imdb/imdb_bow_test.svm.gz": "samples/reviews_test.svm"}),
    "libsvm-pairs": InitTask("a9a.yaml", "path, factors and lr", (), "pairs", {
        "a9a/a9a}": "samples/pairs_train.svm}", "a9a/a9a.t}": "samples/pairs_test.svm}",
        "batch_size: 1024": "batch_size: 64"}),
    "clicks": InitTask("templates/clicks.yaml", "path, target, buckets, hash and min_count", (), "clicks"),
    "ratings": InitTask("ratings.yaml", "path, factors and lr; columns, if they are not recognised", (), "ratings", {
        JESTER: f"{RATINGS}ratings.csv, holdout", "factors: 32": "factors: 4", "batch_size: 4096": "batch_size: 256",
        "epochs: 10": "epochs: 20"}),
    "ratings-jester": InitTask("jester.yaml", "path, factors and lr", (), "jokes", {
        "init_args: {holdout": "init_args: {path: samples/jokes.zip, holdout", "factors: 16": "factors: 4",
        "batch_size: 1024": "batch_size: 256"}),
    "implicit": InitTask("implicit.yaml", "path, factors and l2", (), "plays", {
        JESTER: f"{RATINGS}plays.csv, holdout", "batch_size: 1024": "batch_size: 64", "epochs: 10": "epochs: 40"}),
    "words": InitTask("skipgram.yaml", "path, min_count and dim; evaluate and data.val may be left out", (),
        "sentences", WORDS | {"imdb/imdb_text.txt.gz": "samples/sentences.txt", "epochs: 3": "epochs: 10"}),
    "words-text8": InitTask("text8.yaml", "path and dim; evaluate and data.val may be left out", (), "words",
        WORDS | {"text8.zip": "samples/words.zip", "epochs: 5": "epochs: 10", "window: 5": "window: 3"}),
    "knowledge-graph": InitTask("codex.yaml", "both paths, dim and negatives", (), "family", GRAPH),
    "knowledge-graph-best": InitTask("codex_best.yaml", "both paths, dim and n3", (), "family", {
        "codex-m/train.txt": "samples/family_train.txt", "codex-m/valid.txt": "samples/family_valid.txt",
        "batch_size: 1024": "batch_size: 64", "epochs: 24": "epochs: 15", "every_epochs: 4": "every_epochs: 5",
        "dim: 512, negatives: 1024": "dim: 32, negatives: 64"}),
    "knowledge-graph-steps": InitTask("codex_transe.yaml", "both paths, dim and negatives", (), "family", GRAPH),
    "shakespeare": InitTask("shakespeare.yaml", "path (any text), lanes and batch_size", (), "play", {
        "steps: 64": "steps: 64, path: samples/play.txt", "lanes: 16": "lanes: 4", "batch_size: 32": "batch_size: 8",
        "hidden: 192": "hidden: 64", "epochs: 6": "epochs: 2"}),
    "speakers": InitTask("speakers.yaml", "path, lines and longest", (), "play", {
        "lines: 3": "lines: 3, path: samples/play.txt", "epochs: 8": "epochs: 5"}),
    "names": InitTask("names.yaml", "path (a folder with a .txt file per class)", (), "names",
        {"path: names": "path: samples/names"}),
    "npz": InitTask("templates/npz.yaml", "path and the names of the arrays", (), "arrays"),
    "images": InitTask("templates/images.yaml", "path (a folder with a folder per class) and size", (), "pictures"),
    "finetune": InitTask("finetune.yaml", "model, init_from, freeze, groups and data", (), "network",
        {"path: digits.safetensors": "path: samples/digits.safetensors"}),
    "own-model": InitTask("own_model.yaml", "mymodel.py (model, loss, data, metric)", ("mymodel.py",)),
}
# fmt: on


def init(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Task; see --list.", autocompletion=lambda: TASKS)
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
        width = max(map(len, TASKS))
        print_result(
            *(f"{name:<{width}}  {first_sentence(shipped(f'configs/{one.job}'))}" for name, one in TASKS.items())
        )
        return
    if task not in TASKS:
        raise UsageError(
            f"unknown task {task!r}{did_you_mean(task, [*TASKS])} (tasks: {', '.join(TASKS)})",
            code="usage/unknown-task",
        )
    chosen = TASKS[task]
    text = job_text(task)
    out = Path(f"{task}.yaml") if out is None else out
    if out == STDOUT:
        print_result(text.rstrip("\n"))
        needed = [*chosen.beside, *(["its sample data"] if chosen.sample else [])]
        also = f"; use --out FILE to also write {' and '.join(needed)}" if needed else ""
        print_message(f"hogwild schema prints {SCHEMA}, for editors{also}")
        return
    _write(out, text.encode(), force)
    print_result(f"wrote {out}", *_bring(chosen, out.parent))
    print_result(f"next: hogwild train {out}", f"then, for your own data, change {chosen.change}")


def job_text(name: str) -> str:
    """Return the text of a task's job file; its first line names the schema beside it."""
    task = TASKS[name]
    first, *lines = shipped(f"configs/{task.job}").read_text("utf-8").splitlines()
    assert first.startswith(MODELINE), task.job
    begin = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    words = [SAMPLED, about_sample(task.sample)] if task.sample else []
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
                _make_folder(file.parent)
            _write(file, content, force=False)
            written.setdefault(file.parent, []).append(file)
        elif not _holds(file, content):
            hint = f"; update it with: hogwild schema > {file}" if name == SCHEMA else ""
            lines.append(f"kept {file}, which differs from this version's file{hint}")
    for place, many in written.items():
        lines += [f"wrote {place}: {len(many)} files"] if len(many) > FEW else [f"wrote {file}" for file in many]
    return lines


def _holds(file: Path, content: bytes) -> bool:
    try:
        return file.read_bytes() == content
    except OSError:  # a folder, or not readable: not our file
        return False


def _make_folder(folder: Path) -> None:
    """Make the folder, and those above it. Raises RunError, for example if a file has its name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}", code="run/output-not-written") from error


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
