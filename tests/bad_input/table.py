"""The table of bad inputs that are tried as commands: crime -> what is given, exit status, code, words."""

from pathlib import Path

from tests.bad_input.commands import COMMANDS, TEXTS
from tests.bad_input.data_files import DAMAGED, DATA_FILES
from tests.bad_input.objects import OBJECTS
from tests.bad_input.row import Row

TABLE: dict[str, Row] = COMMANDS | OBJECTS | DATA_FILES
assert len(TABLE) == len(COMMANDS) + len(OBJECTS) + len(DATA_FILES), "a crime stands in two parts"


def write_files(folder: Path) -> None:
    """Write the files that the commands of the table name."""
    damaged = {f"damaged/{name}": content for name, content in DAMAGED.items()}
    texts = {name: text.encode() for name, text in TEXTS.items()}
    for name, content in {**texts, **damaged}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
