"""The table of bad inputs, whole: crime -> what is given, exit status, code, words."""

from pathlib import Path

from tests.bad_input.commands import COMMANDS
from tests.bad_input.damaged import DAMAGED, DATA_FILES
from tests.bad_input.frames import FRAMES
from tests.bad_input.guesses import GUESSES
from tests.bad_input.jobs import FIELDS, FILES, TEXTS
from tests.bad_input.objects import OBJECTS
from tests.bad_input.row import Row
from tests.bad_input.sparse import FILES_OF_LINES, SPARSE
from tests.bad_input.yaml_mistakes import SLIP_TEXTS, YAML

PARTS = (FILES, FIELDS, COMMANDS, OBJECTS, DATA_FILES, SPARSE, YAML, GUESSES, FRAMES)
TABLE: dict[str, Row] = {crime: row for part in PARTS for crime, row in part.items()}


def write_files(folder: Path) -> None:
    """What the commands of the table name."""
    damaged = {f"damaged/{name}": content for name, content in {**DAMAGED, **FILES_OF_LINES}.items()}
    for name, content in {**TEXTS, **SLIP_TEXTS, **damaged}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
