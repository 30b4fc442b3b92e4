"""One row of the table of bad inputs, and the short ways to write a command."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What is given, and what must come of it. `code` is `config/invalid` where the lines have several; `words` name
    the place and the rule."""

    command: tuple[str, ...]
    status: int
    code: str
    words: tuple[str, ...]


def job(*changes: str) -> tuple[str, ...]:
    """The good job of the user's folder, with something changed."""
    return ("train", "job.yaml", *changes)


def check(*changes: str) -> tuple[str, ...]:
    """The same without torch: for what is wrong with the file itself."""
    return ("check", "job.yaml", *changes)


def model(name: str) -> tuple[str, ...]:
    return job(f"model.class_path=guilty.{name}")


def items(how: str) -> tuple[str, ...]:
    return job(f"data.train={{class_path: guilty.Items, init_args: {{how: {how}}}}}")


def reads(class_name: str, **arguments: str) -> tuple[str, ...]:
    """A dry run of the good job on files of the folder `damaged`, by a data class of ours."""
    given = ", ".join(f"{name}: {value}" for name, value in arguments.items())
    change = f"data.train={{class_path: hogwild.data.{class_name}, init_args: {{{given}}}}}"
    return ("train", "job.yaml", change, "--dry-run")
