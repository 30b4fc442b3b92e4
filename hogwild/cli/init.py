"""`hogwild init`: a commented job file for a task, and the files it needs. They are copies of those in configs/, which
the tests train. job.schema.json is included because editors report a missing schema as an error of the job file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hogwild.cli.output import file_exists, print_message, print_result
from hogwild.config.locate import first_sentence, source
from hogwild.errors import NotFoundError, RunError, UsageError, did_you_mean
from hogwild.host import raise_noted

SCHEMA = "job.schema.json"
MODELINE = "# yaml-language-server: $schema="
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class InitTask:
    """A task. `job`: the file in configs/; `beside`: files it needs in its folder; `change`: fields that users edit."""

    job: str
    change: str
    beside: tuple[str, ...] = ()


TASKS: dict[str, InitTask] = {
    "digits": InitTask("digits.yaml", "nothing: its data is bundled"),
    "mnist": InitTask("mnist.yaml", "nothing; --data-dir DIR is the folder of MNIST's four files"),
    "fashion-mnist": InitTask("fashion_mnist.yaml", "nothing; --data-dir DIR is the folder of its four files"),
    "mnist-stream": InitTask("mnist_stream.yaml", "shifted.py beside it: your own data set", ("shifted.py",)),
    "csv-regression": InitTask(
        "csv_regression.yaml", "path, target, inputs, categorical and the model's numbers", ("houses.csv",)
    ),
    "csv-classification": InitTask(
        "templates/csv_classification.yaml",
        "path, target, inputs, categorical and the model's numbers",
        ("houses.csv",),
    ),
    "libsvm": InitTask("imdb.yaml", "path, and the rate"),
    "libsvm-pairs": InitTask("a9a.yaml", "path, factors, and the rate"),
    "ratings": InitTask("ratings.yaml", "path, and factors"),
    "ratings-jester": InitTask("jester.yaml", "nothing; --data-dir DIR is the folder of its zip file"),
    "implicit": InitTask("implicit.yaml", "path, and factors"),
    "words": InitTask("skipgram.yaml", "path, min_count, and dim"),
    "words-text8": InitTask("text8.yaml", "path, and dim"),
    "knowledge-graph": InitTask("codex.yaml", "paths, dim and negatives"),
    "knowledge-graph-steps": InitTask("codex_transe.yaml", "paths, dim and negatives"),
    "shakespeare": InitTask("shakespeare.yaml", "path; for tinyshakespeare nothing"),
    "speakers": InitTask("speakers.yaml", "path, lines and longest; for tinyshakespeare nothing"),
    "names": InitTask("names.yaml", "path: a folder, a .txt file per class"),
    "npz": InitTask("templates/npz.yaml", "path, and how many features and classes the model has"),
    "images": InitTask("templates/images.yaml", "path, and how many classes the model has"),
    "finetune": InitTask("finetune.yaml", "init_from.path, the model, and which names are the head's"),
    "own-model": InitTask("own_model.yaml", "mymodel.py beside it: model, loss, data, metric", ("mymodel.py",)),
}


def init(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Task; see --list.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE|-", help="Job file to write; -: print it.")] = Path("job.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists; no other file.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the tasks.")] = False,
) -> None:
    """Write a commented job file for a task."""
    if list_ or task is None:
        raise_noted()
        width = max(map(len, TASKS))
        print_result(*(f"{name:<{width}}  {first_sentence(source(one.job))}" for name, one in TASKS.items()))
        return
    if task not in TASKS:
        raise UsageError(
            f"unknown task {task!r}{did_you_mean(task, [*TASKS])} (tasks: {', '.join(TASKS)})",
            code="usage/unknown-task",
        )
    chosen = TASKS[task]
    text = job_text(chosen)
    if out == STDOUT:
        print_result(text.rstrip("\n"))
        also = f"; use --out FILE to also write {' and '.join(chosen.beside)}" if chosen.beside else ""
        print_message(f"hogwild schema prints {SCHEMA}, for editors{also}")
        return
    _write(out, text, force)
    print_result(f"wrote {out}: change {chosen.change}")
    print_result(*_bring(chosen, out.parent))
    print_result(f"next: hogwild check {out} --deep\nthen: hogwild train {out}")


def job_text(task: InitTask) -> str:
    """Return the job file's text; its first line names the schema beside it."""
    first, _, rest = source(task.job).read_text("utf-8").partition("\n")
    assert first.startswith(MODELINE), task.job
    return f"{MODELINE}./{SCHEMA}\n{rest}"


def _bring(task: InitTask, folder: Path) -> list[str]:
    """Write the files that the job needs beside it. Existing files are kept: they may be the user's."""
    lines = []
    for name in (*task.beside, SCHEMA):
        content = source(name).read_text("utf-8")
        file = folder / name
        if not os.path.lexists(file):
            _write(file, content, force=False)
            lines.append(f"wrote {file}")
        elif not _holds(file, content):
            hint = f"; update it with: hogwild schema > {file}" if name == SCHEMA else ""
            lines.append(f"kept {file}, which differs from this version's file{hint}")
    return lines


def _holds(file: Path, content: str) -> bool:
    try:
        return file.read_bytes() == content.encode()
    except OSError:  # a folder, or not readable: not our file
        return False


def _write(file: Path, text: str, force: bool) -> None:
    """Write the file. Raises UsageError if it exists, NotFoundError without its folder, RunError for other errors."""
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise file_exists(file) from None
    except FileNotFoundError:
        raise NotFoundError(
            f"--out {file}: there is no folder {file.parent.absolute()}; create it first", code="usage/no-folder"
        ) from None
    except OSError as error:
        raise RunError(f"{file}: cannot be written: {error.strerror}", code="run/output-not-written") from error
