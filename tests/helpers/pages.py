"""The documentation as something that runs: pages cut into blocks, blocks into steps, and steps run in turn in one
process, each page in a folder of its own. `python -m tests.helpers.pages STEPS.json` writes RESULTS.json beside it.

    ```console            lines with `$ ` are commands, the others what they print; `# exit status N` after a command
                          says that it ends so
    ```console needs HOGWILD_DATA     run only where MNIST's files are
    ```console in its own terminal    `hogwild serve`: runs beside the commands that follow, until the page's end (a job
                                      that follows a file: tests/whole_jobs/test_online_page.py)
    ```python, ```yaml    whose first line is a comment with a file's name: that file; other Python is a program
"""

import atexit
import contextlib
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.processes import PATIENCE_S, wait_for

FENCE = re.compile(r"^```(\S*) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.-]+\.(?:py|yaml|csv))")
STATUS = re.compile(r"  # exit status (\d+)$")
NEEDS_DATA = "needs HOGWILD_DATA"
OWN_TERMINAL = "in its own terminal"
RUN_PY = str(Path(__file__).resolve().parents[2] / "run.py")
# A number with its sign, commas, exponent, or the parts of a time or date; the id of a job of the service.
FIGURE = re.compile(r"(?:\bs?[0-9a-f]{11,12}\b|[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?(?:-\d[\d:]*)*)")
OF_THE_MACHINE = re.compile(r"(?<=usable cores: ).*")
READY = "finds them."  # printed by `serve` shortly before the end of its first words


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences. `line`: of the first of them, from 1."""

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
    stays: bool = False
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
            stays=block.words == OWN_TERMINAL,
            expected=[line for line in printed.splitlines() if line.strip(" …")],
        )


def as_json(given: Sequence[Step]) -> str:
    """Return the arguments of `python -m tests.helpers.pages`."""
    return json.dumps([asdict(step) for step in given])


def is_like(line: str) -> re.Pattern[str]:
    """The lines that may be printed where a page shows `line`: all of it counts, but figures, times and ids may be
    others, columns wider, and `…` is any text. The usable cores, which are the machine's, stand for others."""
    words = "…".join(OF_THE_MACHINE.split(line.strip()))
    parts = re.split(rf"(…|{FIGURE.pattern}|\s+)", words)
    return re.compile("".join(_pattern(part) for part in parts if part))


def _pattern(part: str) -> str:
    if part == "…":
        return ".*"
    if FIGURE.fullmatch(part):
        return FIGURE.pattern
    return r"\s+" if part.isspace() else re.escape(part)


# ---- in the process that runs them -----------------------------------------------------------------------------------


def run(folder: Path, given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step in `folder`/PAGE: its exit status and what it printed."""
    results = []
    for page in dict.fromkeys(step["page"] for step in given):
        here, modules, path = folder / page, set(sys.modules), [*sys.path]
        here.mkdir(parents=True, exist_ok=True)
        os.environ["HOGWILD_STATE"] = str(here / "state")
        with contextlib.ExitStack() as ends:
            for step in given:
                if step["page"] == page:
                    os.chdir(here)
                    results.append(_beside(here, step, ends) if step["stays"] else _one(here, step))
        sys.path[:] = path
        for name in set(sys.modules) - modules:  # two pages may both have a mymodel.py
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(here)):
                del sys.modules[name]
    return results


def _beside(here: Path, step: dict[str, Any], ends: contextlib.ExitStack) -> dict[str, Any]:
    """Start a service; return what it prints until it answers. Any free port: another one may run on this machine."""
    log = here / "serve.log"
    words = shlex.split(step["command"])[1:]
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, RUN_PY, *words, "--port", "0"], stdout=stream, stderr=stream, stdin=subprocess.DEVNULL
        )

    def end() -> None:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)

    ends.callback(end)
    wait_for("the service", lambda: process.poll() is not None or READY in log.read_text())
    return {"status": process.poll() or 0, "output": log.read_text()}


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

    if words[:2] == ["python", "run.py"] or words[0] == "hogwild":
        return main.run(words[2 if words[0] == "python" else 1 :])
    if words[0] == "python":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = words[1:]
        runpy.run_path(words[1], run_name="__main__")
        return 0
    return subprocess.run(words, check=False).returncode


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
