"""docs/online.md as a reader follows it: its commands in their order, the jobs in process groups of their own."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from tests.helpers.jobs import HOME, RUN_PY, Job, environment
from tests.helpers.pages import Step, is_like, steps
from tests.helpers.processes import PATIENCE_S

PAGE = (HOME / "docs" / "online.md").read_text()


class Reader:
    """Does the page's steps in `folder`; waits, before a question, for the lines that it is about."""

    def __init__(self, folder: Path, start_job: Callable[..., Job]) -> None:
        self.folder, self.run_dir, self.start_job = folder, folder / "runs" / "online", start_job
        self.jobs: list[Job] = []
        self.answers: list[list[str]] = []

    def do(self, step: Step) -> None:
        words = shlex.split(step.command)
        if step.file:
            (self.folder / step.file).write_text(step.text)
        elif step.stays:
            arguments = words[1:]
            job = self.start_job(self.folder, *arguments, run_dir=self.run_dir, start_new_session=True)
            self.jobs.append(job)
            job.wait_for_event("resume" if "--resume" in words else "checkpoint")
        elif words[0] == "kill":
            self.kill_everything()
        else:
            if words[1] == "predict":
                self.jobs[-1].wait_for_updates(self.lines // 16)
            printed = self.printed_by(words)
            missing = [line for line in step.expected if not any(map(is_like(line).fullmatch, printed))]
            assert not missing, f"line {step.line}: {step.command}: {missing} is not in {printed}"
            if words[1] == "predict":
                self.answers.append([line for line in printed if line[:1].isdigit()])

    @property
    def lines(self) -> int:
        return len((self.folder / "ads.csv").read_text().splitlines()) - 1

    def kill_everything(self) -> None:
        job = self.jobs[-1]
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        assert not job.left_behind()

    def printed_by(self, words: list[str]) -> list[str]:
        program = [RUN_PY, *words[1:]] if words[0] == "hogwild" else words[1:]
        ended = subprocess.run(
            [sys.executable, *program],
            cwd=self.folder,
            env=environment("", self.folder / "command"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # as a terminal shows them
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, f"{words}: {ended.stdout}{self.jobs[-1].stderr() if self.jobs else ''}"
        return ended.stdout.splitlines()


@pytest.mark.processes
def test_users_that_nobody_knew_are_answered_for_and_outlive_a_kill_of_everything(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    reader = Reader(tmp_path / "page", start_job)
    reader.folder.mkdir()
    for step in steps("docs/online", PAGE):
        reader.do(step)
    ended = reader.jobs[-1].wait()
    predicted = [[line.split(",")[1] for line in answer] for answer in reader.answers]
    assert predicted == [["1", "0", "0", "1"]] * 2, "zoe likes tents, yuri novels"
    assert ended.reason == ("stopped", "SIGTERM") and not ended.left_behind
    assert ended.summary["samples"] == reader.lines == 960 + 2 * 400
    known = {line.split(",")[0] for line in (reader.folder / "ads.csv").read_text().splitlines()[1:]}
    assert sorted(np.load(reader.folder / "users.npz")["names"].tolist()) == sorted(known) and {"zoe", "yuri"} <= known
