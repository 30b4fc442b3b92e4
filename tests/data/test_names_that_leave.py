"""Names of ids without a row leave their file, and of no other: whatever is read, trained, forgotten, asked, answered
late and killed, in any order."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.data import key_of, text_keys
from hogwild.data.text_keys import NAMES, NameFile, names_of
from hogwild.storage.run_directory import REQUESTS
from hogwild.storage.run_files import answer_file

FEWEST, SLOTS, KEPT = 3, 3, 1
USERS = [f"user {number}" for number in range(24)]
STEPS = st.one_of(
    st.tuples(st.just("read"), st.lists(st.sampled_from(USERS), min_size=2, max_size=6)),
    st.tuples(st.just("fill"), st.integers(1, 6)),
    st.tuples(st.just("train"), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("expire"), st.integers(2, 9)),
    st.tuples(st.just("pause"), st.none()),
    st.tuples(st.just("write"), st.none()),
    st.tuples(st.sampled_from(["loader dies", "job dies", "roll back"]), st.none()),
)


class Job:
    """A loader with the real file, and what the other processes do to what it reads."""

    def __init__(self, run: Path) -> None:
        self.run, self.names = run, NameFile(run / NAMES)
        self.private, self.slots = list[str](), list[list[str]]()
        self.table, self.checkpoints = dict[str, None](), [list[str]()]
        self.asked, self.paused = list[str](), None

    def step(self, what: str, given: object) -> None:
        match what:
            case "read":
                for name in given:
                    self.names.note(key_of(name), name)
                self.names.flush()
                self.private += given
            case "fill" if len(self.slots) < SLOTS:
                self.names.leave_out()  # as `Filler`, before a batch
                self.slots.append(self.private[:given])
                del self.private[:given]
            case "train" if given < len(self.slots):
                self.table |= dict.fromkeys(self.slots.pop(given))
            case "expire":
                for name in [*self.table][:given]:
                    del self.table[name]
            case "pause":
                for file in (self.run / REQUESTS).glob("*.json"):
                    self.asked.append(file.stem)
                    file.unlink()
                self.paused = [*self.table], [name for slot in self.slots for name in slot]
            case "write" if self.paused is not None:
                (table, in_ring), self.paused = self.paused, None
                self.checkpoints = [*self.checkpoints, table][-KEPT:]
                keys = [*map(key_of, {*in_ring, *self.table, *(name for one in self.checkpoints for name in one)})]
                for name in self.asked:
                    answer_file(self.run, name).write_bytes(np.array(keys, np.int64).tobytes())
                self.asked.clear()
            case "loader dies" | "job dies" | "roll back":
                self.private = []
                if what != "loader dies":
                    self.slots, self.table = [], dict.fromkeys(self.checkpoints[-1])
                if what == "job dies":
                    self.asked, self.paused = [], None
                with open(self.run / NAMES, "a") as file:
                    file.write('[-1, "ha')
                self.names = NameFile(self.run / NAMES)

    @property
    def needed(self) -> set[str]:
        many = [*self.slots, *self.checkpoints, self.table, self.private]
        return {name for one in many for name in one}


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_no_name_is_lost_that_a_row_has_or_may_get(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_keys, "FEWEST_NAMES", FEWEST)
        job = Job(Path(folder))
        for step in steps:
            job.step(*step)
            assert {*names_of(job.run).values()} >= job.needed
        for what in ("pause", "write", "train", "fill", "pause", "write", "train", "fill"):  # at rest
            job.step(what, 0 if what == "train" else 4)
        lines = (job.run / NAMES).read_text().splitlines()
        names = [json.loads(line)[1] for line in lines if line.endswith("]")]
        assert len({*names}) == len(names) < max(FEWEST, 2 * len(job.needed) + 2 * len(USERS[:6])) or not names


KILLED = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from hogwild.data import text_keys
from hogwild.data.text_keys import NameFile
from hogwild.storage.run_files import answer_file

run = Path(sys.argv[1])
file, stays, number = run / "names.jsonl", range(2, 302, 7), 0
while True:
    number += 3
    file.write_text("".join(json.dumps([-key, f"name {key}"]) + "\\n" for key in range(2, 302)))
    if (pid := os.fork()) == 0:
        names = NameFile(file)
        names._asked, names._block = ("request", 2), 5
        answer_file(run, "request").write_bytes(np.array([-key for key in stays]).tobytes())
        steps = 0

        def step(frame, event, _):  # at each line of Python, but not in each turn of a comprehension
            global steps
            steps += event == "line"
            if steps == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return None if frame.f_code.co_name[0] == "<" else step

        sys.settrace(step)
        names.leave_out()
        names.note(-6000, "name 6000")
        names.flush()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = dict(json.loads(line) for line in file.read_text().splitlines())
    expected = {-key: f"name {key}" for key in stays}
    assert found.items() >= expected.items() and len(found) in (len(stays), len(stays) + 1, 300), (number, len(found))
    if status == 0:
        assert len(found) == len(stays) + 1 and len([*run.glob(".tmp*")]) <= number
        print(number)
        break
    assert status == -signal.SIGKILL, status
"""


@pytest.mark.processes
def test_a_writer_killed_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / REQUESTS).mkdir()
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 300
