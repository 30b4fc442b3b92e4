"""The documentation as something that runs: pages cut into blocks, blocks into steps, and steps run in turn in one
process, each page in a folder of its own. `python -m tests.helpers.pages STEPS.json` writes RESULTS.json beside it.

    ```console            lines with `$ ` are commands, the others what they print; `# exit status N` after a command
                          says that it ends so; `hogwild serve` runs beside the commands after it, to the page's end
    ```console needs HOGWILD_DATA     run only where MNIST's files are
    ```python, ```yaml    whose first line is a comment with a file's name: that file; other Python is a program
"""

import atexit
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.jobs import RUN_PY

FENCE = re.compile(r"^```(\S*) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.-]+\.(?:py|yaml|csv))")
STATUS = re.compile(r"  # exit status (\d+)$")
FIGURE = re.compile(r"\bs[0-9a-f]{11}\b|\d[\d,.e:-]*")
NEEDS_DATA = "needs HOGWILD_DATA"


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences. `line`: of the first of them, from 1."""

    language: str
    words: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        first = self.text.partition("\n")[0]
        found = FILE.fullmatch(first)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do in the page's folder: a command, or a file to write."""

    page: str
    line: int
    command: str = ""
    file: str = ""
    text: str = ""
    status: int = 0
    needs_data: bool = False
    expected: Sequence[str] = field(default_factory=list)


def blocks(page: str) -> Iterator[Block]:
    for found in FENCE.finditer(page):
        yield Block(found[1], found[2], found[3], page.count("\n", 0, found.start()) + 1)


def steps(name: str, page: str) -> Iterator[Step]:
    """In the order of the page."""
    for block in blocks(page):
        if block.language == "console":
            yield from _commands(name, block)
        elif block.file is not None:
            yield Step(name, block.line, file=block.file, text=block.text)
        elif block.language == "python":
            yield Step(name, block.line, file=f"line_{block.line}.py", text=block.text)
            yield Step(name, block.line, command=f"python line_{block.line}.py")


def _commands(name: str, block: Block) -> Iterator[Step]:
    """Each command with the lines below it."""
    text = block.text.replace("\\\n", "")
    for one in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = one.partition("\n")
        status = STATUS.search(command)
        yield Step(
            name,
            block.line,
            command=STATUS.sub("", command).strip(),
            status=int(status[1]) if status else 0,
            needs_data=block.words == NEEDS_DATA,
            expected=[line for line in printed.splitlines() if line.strip(" …")],
        )


def as_json(given: Sequence[Step]) -> str:
    """What `python -m tests.helpers.pages` takes."""
    return json.dumps([asdict(step) for step in given])


def beginning(line: str) -> tuple[str, ...]:
    """What two lines have in common when only figures and places differ: their first two words, a figure or the id of a
    sweep as # and a path as /."""
    return tuple(
        "/" if "/" in word and not word[0].isdigit() else FIGURE.sub("#", word.rstrip(",;:"))
        for word in line.split()[:2]
    )


# ---- in the process that runs them -----------------------------------------------------------------------------------


def run(folder: Path, given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step in `folder`/PAGE: its exit status and what it printed."""
    results = []
    for page in dict.fromkeys(step["page"] for step in given):
        here, modules, path = folder / page, set(sys.modules), [*sys.path]
        here.mkdir(parents=True, exist_ok=True)
        for step in given:
            if step["page"] == page:
                os.chdir(here)
                results.append(_one(here, step))
        while _services:
            _services[-1].terminate()
            _services.pop().communicate()
        sys.path[:] = path
        for name in set(sys.modules) - modules:  # two pages may both have a mymodel.py
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(here)):
                del sys.modules[name]
    return results


def _one(here: Path, step: dict[str, Any]) -> dict[str, Any]:
    if step["file"]:
        (here / step["file"]).write_text(step["text"])
        return {"status": 0, "output": ""}
    with tempfile.TemporaryFile() as printed:
        _to_file(printed.fileno())
        try:
            status = _run(shlex.split(step["command"]))
        except Exception:
            traceback.print_exc()
            status = 1
        _to_file(None)
        printed.seek(0)
        return {"status": status, "output": printed.read().decode()}


def _run(words: list[str]) -> int:
    from hogwild.cli import main

    if words[:2] == ["hogwild", "serve"]:
        return _serve(words[1:])
    if words[:2] == ["python", "run.py"] or words[0] == "hogwild":
        return main.run(words[2 if words[0] == "python" else 1 :])
    if words[0] == "python":
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_path(words[1], run_name="__main__")
        return 0
    return subprocess.run(words, check=False).returncode


def _serve(words: list[str]) -> int:
    """Start a service for the rest of the page, and print what it says first."""
    os.environ["HOGWILD_STATE"] = str(Path("state").absolute())
    command = [sys.executable, RUN_PY, *words, "--port", "0"]
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    print(service.stdout.readline() + service.stdout.readline())
    _services.append(service)
    return service.poll() or 0


_services: list["subprocess.Popen[str]"] = []
_streams: list[int] = []


def _to_file(file: int | None) -> None:
    """Both streams, as a terminal shows them; None: where they went before."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not _streams:
        _streams.extend(os.dup(number) for number in (1, 2))
    for number, before in zip((1, 2), _streams, strict=True):
        os.dup2(before if file is None else file, number)


if __name__ == "__main__":
    given_file = Path(sys.argv[1])
    found = run(given_file.parent / "pages", json.loads(given_file.read_text()))
    (given_file.parent / "RESULTS.json").write_text(json.dumps(found))
    atexit._run_exitfuncs()
    os._exit(0)  # as a command does: torch is not taken apart
