"""Commands for the beginning: what there is to choose from, a job file's schema, a job as it is resolved."""

import json
from typing import Annotated

import typer

from hogwild.cli_base import print_result, reading
from hogwild.cli_input import load, split_arguments
from hogwild.cli_options import Arguments
from hogwild.errors import UsageError
from hogwild.host import raise_noted


def show(arguments: Arguments = None) -> None:
    """Prints the resolved job: every field, defaults and overrides included."""
    with reading():
        job, _ = load(*split_arguments(arguments))
    print_result(job.to_yaml().rstrip("\n"))


def schema() -> None:
    """Prints the job file's JSON Schema, for editors."""
    text = schema_text()
    raise_noted()
    print_result(text.rstrip("\n"))


def list_(what: Annotated[str, typer.Argument(metavar="models|data|configs")]) -> None:
    """Lists what comes with hogwild."""
    from hogwild.config import list_configs

    if what == "configs":
        rows = {str(path): "" for path in list_configs()}
    elif what in ("models", "data"):
        from importlib import import_module

        package = f"hogwild.{what}"
        rows = {f"{package}.{name}": text for name, text in import_module(package).CATALOG.items()}
    else:
        raise UsageError(f"cannot list {what!r}; choose models, data or configs")
    raise_noted()
    width = max((len(name) for name in rows), default=0)
    for name, text in rows.items():
        print_result(f"{name:<{width}}  {text}".rstrip())


def schema_text() -> str:
    """The content of configs/job.schema.json."""
    from hogwild.config import json_schema

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
