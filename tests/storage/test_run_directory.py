"""The run directory: one owner, whole files, whole records. Real locks, real full disks."""

import json
import math
import os
import pwd
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.data.locate import find_file
from hogwild.errors import NotFoundError, RunDirError, RunError
from hogwild.job.initial_values import load_initial
from hogwild.service.folders import StateFolder, state_folder
from hogwild.storage import files
from hogwild.storage.artifact_cache import Kept, cache_root
from hogwild.storage.files import point, to_json
from hogwild.storage.run_directory import RunDir
from tests.helpers.processes import PATIENCE_S

DEADLINE_S = PATIENCE_S

HOLDER = """
import sys
from pathlib import Path
from hogwild.storage import files
from hogwild.storage.run_directory import RunDir
run = RunDir.create(Path(sys.argv[1]), "job")
run.write_text("resolved.yaml", "version: 1\\n")
print("mine", flush=True)
sys.stdin.readline()
"""


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file may grow past it: what a full disk or a quota is, without being root."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.create(tmp_path / "run", "job") as created:
        created.make_folders()
        yield created


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def start_holder(path: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", HOLDER, str(path)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "mine\n"
    return process


# --- whose it is


def test_a_run_without_a_path_is_named_after_the_job_and_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with RunDir.create(None, "my job/1") as first, RunDir.create(None, "my job/1") as second:
        assert first.path.parent == tmp_path / "runs"
        assert re.fullmatch(r"my_job_1-\d{8}-\d{6}", first.path.name)
        assert first.path != second.path


@pytest.mark.whole
@pytest.mark.processes
def test_a_second_job_in_a_run_directory_is_refused_by_the_number_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with start_holder(path) as holder:
        try:
            with pytest.raises(RunDirError, match=f"in use by another job, process {holder.pid}"):
                RunDir.create(path, "job")
            with pytest.raises(RunDirError, match=f"in use by another job, process {holder.pid}"):
                RunDir.open(path)
        finally:
            holder.kill()
        holder.wait(DEADLINE_S)
    with pytest.raises(RunDirError, match="--resume"):
        RunDir.create(path, "job")
    RunDir.open(path).close()


@pytest.mark.processes
def test_a_child_that_user_code_forked_does_not_keep_the_lock_of_a_killed_job(tmp_path: Path) -> None:
    path = tmp_path / "run"
    program = HOLDER.replace("run.write_text", "import os\nrun.write_text").replace(
        'print("mine"', 'if os.fork():\n    os.wait()\nprint("mine"'
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "mine\n", "the child's"
        with pytest.raises(RunDirError, match="in use"):
            RunDir.open(path)
        holder.kill()
        holder.wait(DEADLINE_S)
        RunDir.open(path).close()


@pytest.mark.processes
def test_of_two_jobs_that_start_at_once_one_gets_the_directory(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    jobs = [subprocess.Popen(arguments, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    first_words = [job.stdout.readline() for job in jobs]
    errors = [job.communicate("\n", timeout=DEADLINE_S)[1] for job in jobs]
    assert sorted(first_words) == ["", "mine\n"]
    assert sorted("RunDirError" in error for error in errors) == [False, True]


def test_a_directory_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("!")
    with pytest.raises(RunDirError, match="not empty and not a run"):
        RunDir.create(tmp_path, "job")
    assert names(tmp_path) == {"thesis.tex"}


def test_what_a_job_leaves_that_was_killed_before_there_was_a_run_is_taken(tmp_path: Path) -> None:
    for name in (".lock", "env.json", "names.json", ".tmp-resolved.yaml-4711"):
        (tmp_path / name).write_text("4711\n")
    RunDir.create(tmp_path, "job").close()
    assert {entry.name for entry in tmp_path.iterdir()} == {".lock", "env.json", "names.json"}


def test_without_a_lock_the_same_files_are_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "env.json").write_text("{}")
    with pytest.raises(RunDirError, match="not empty and not a run"):
        RunDir.create(tmp_path, "job")


def test_an_empty_directory_or_one_with_a_mere_lock_is_taken(tmp_path: Path) -> None:
    RunDir.create(tmp_path, "job").close()
    assert names(tmp_path) == {".lock"}
    with RunDir.create(tmp_path, "job") as run:
        assert (run.path / ".lock").read_text() == f"{os.getpid()}\n"


def test_what_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunDirError, match=re.escape(str(path))):
            RunDir.create(path, "job")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(RunDirError, match=re.escape(str(tmp_path))):
        RunDir.create(tmp_path, "job")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_of_somebody_else_is_named(tmp_path: Path) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(RunDirError, match=f"{re.escape(str(tmp_path))}.*Permission denied"):
            RunDir.create(tmp_path / "run", "job")
    finally:
        os.seteuid(0)


def test_a_run_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(NotFoundError, match=re.escape(str(path))):
            RunDir.open(path)


def test_opening_sweeps_what_a_killed_writer_left(run: RunDir) -> None:
    run.write_text("resolved.yaml", "version: 1\n")
    (run.path / ".tmp-status.json-123").write_text("{")
    run.close()
    with RunDir.open(run.path) as opened:
        assert ".tmp-status.json-123" not in names(opened.path)


# --- whole files


def test_json_is_readable_by_everybody_and_replaced_as_a_whole(run: RunDir) -> None:
    run.write_json(
        "status.json",
        {"loss": math.nan, "best": -math.inf, "n": np.int64(3), "at": Path("x"), "of": (1, 2.5)},
    )
    text = run.status_file.read_text()
    assert json.loads(text) == {"loss": None, "best": None, "n": 3, "at": "x", "of": [1, 2.5]}
    assert "NaN" not in text and "Infinity" not in text
    before = run.status_file.stat().st_ino
    run.write_json("status.json", {}, sync=True)
    assert run.status_file.stat().st_ino != before
    assert not any(name.startswith(".tmp-") for name in names(run.path))


def test_what_json_cannot_hold_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        to_json({"a": {object()}})


def test_a_full_disk_leaves_the_old_file_and_no_other(run: RunDir) -> None:
    run.write_text("status.json", "old")
    with file_size_limit(1000):
        with pytest.raises(RunDirError, match=r"cannot write .*status\.json: File too large"):
            run.write_text("status.json", "x" * 5000)
        assert run.try_write_json("status.json", ["x" * 5000]) is False
    assert run.status_file.read_text() == "old"
    assert not any(name.startswith(".tmp-") for name in names(run.path))
    assert run.try_write_json("status.json", []) is True


# --- records


def test_records_are_lines_of_json(run: RunDir) -> None:
    run.metrics.append({"updates": 1, "loss": math.inf})
    run.metrics.append({"updates": 2, "loss": 0.5})
    assert run.metrics.path.read_text() == '{"updates":1,"loss":null}\n{"updates":2,"loss":0.5}\n'


def test_a_record_that_does_not_fit_leaves_no_half_line(run: RunDir) -> None:
    run.events.append({"kind": "spawn"})
    whole = run.events.path.read_bytes()
    with file_size_limit(len(whole) + 10):
        assert run.events.try_append({"kind": "x" * 100}) is False
        with pytest.raises(RunDirError, match=r"cannot append to .*events\.jsonl"):
            run.events.append({"kind": "x" * 100})
    assert run.events.path.read_bytes() == whole
    assert run.events.try_append({"kind": "exit"}) is True
    assert len(run.events.path.read_text().splitlines()) == 2


def test_a_resume_cuts_later_records_and_a_torn_line(run: RunDir) -> None:
    for record in ({"updates": 10}, {"note": "without a count"}, {"updates": 20}, {"updates": 30}):
        run.metrics.append(record)
    run.metrics.close()
    with open(run.metrics.path, "ab") as stream:
        stream.write(b'{"updates": 1')
    assert run.cut_records_after(20) == 2
    run.metrics.append({"updates": 21})
    lines = run.metrics.path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"updates": 10},
        {"note": "without a count"},
        {"updates": 20},
        {"updates": 21},
    ]
    assert run.cut_records_after(100) == 0


def test_a_cut_and_an_append_read_only_the_end_of_a_long_file(run: RunDir) -> None:
    """The first terabyte of this file is a hole."""
    hole = 1 << 40
    with open(run.metrics.path, "wb") as stream:
        stream.seek(hole)
        stream.write(b"\n")
        stream.writelines(b'{"updates":%d}\n' % updates for updates in range(10_000, 90_000))
    assert run.cut_records_after(10_005) == 79_994
    run.metrics.append({"updates": 10_006})
    with open(run.metrics.path, "rb") as stream:
        stream.seek(hole + 1)
        assert [json.loads(line)["updates"] for line in stream] == [*range(10_000, 10_007)]


def test_records_are_read_backwards_whole_wherever_a_block_ends(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"x" * (number % 7) + b"\n" for number in range(50)] + [b"torn"]
    run.metrics.path.write_bytes(b"".join(lines))
    for block in range(1, 12):
        monkeypatch.setattr(files, "BLOCK", block)
        found = list(run.metrics.backwards())
        assert [line for _, line in found] == lines[::-1]
        assert [begin for begin, _ in found] == [sum(map(len, lines[:k])) for k in reversed(range(len(lines)))]


def test_a_run_without_records_has_none_to_cut(run: RunDir) -> None:
    assert run.cut_records_after(0) == 0
    assert not run.metrics.path.exists()


def test_a_line_torn_by_a_kill_is_cut_off_before_the_next(run: RunDir) -> None:
    run.events.path.write_bytes(b'{"kind":"spawn"}\n{"kind":"ex')
    run.events.append({"kind": "exit"})
    assert run.events.path.read_text() == '{"kind":"spawn"}\n{"kind":"exit"}\n'


def test_latest_is_a_relative_link_that_is_never_missing(run: RunDir) -> None:
    for name in ("update-000000001", "update-000000002"):
        (run.checkpoints / name).mkdir()
        point(run.latest, name)
        assert os.readlink(run.latest) == name
        assert run.latest.resolve() == run.checkpoints / name
    assert names(run.checkpoints) == {"update-000000001", "update-000000002", "latest"}


# --- a power cut


class Disk:
    """The disk as a power cut would leave it: files whose content was synced, under names whose folder was
    synced after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: set[str] = set()  # contents, by the names they were written under
        self.pending: set[str] = set()  # names whose folder was not synced since
        self.durable: set[str] = set()
        self.at_checkpoints: list[set[str]] = []  # what was durable when each checkpoint was
        for name in ("fsync", "replace", "rename", "mkdir"):
            monkeypatch.setattr(os, name, self.watched(getattr(self, name), getattr(os, name)))

    def watched(self, note: Any, call: Any) -> Any:
        def watched(*arguments: Any, **options: Any) -> Any:
            answer = call(*arguments, **options)
            note(*arguments)
            return answer

        return watched

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.synced.add(path)
        done = {one for one in self.pending if os.path.dirname(one) == path}
        self.pending -= done
        self.durable |= done
        if any("update-" in os.path.basename(one) for one in done):
            self.at_checkpoints.append(set(self.durable))

    def replace(self, source: Any, target: Any) -> None:
        self.durable.discard(str(target))
        if str(source) in self.synced:
            self.pending.add(str(target))

    rename = replace

    def mkdir(self, path: Any, *_: Any) -> None:
        self.pending.add(str(path))


class Named(TensorDataset):
    vocabularies: ClassVar = {"classes": ["no", "yes"]}


def test_a_power_cut_after_a_checkpoint_leaves_all_that_a_resume_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "new" / "folder" / "run"
    data = Named(torch.randn(8, 2), torch.arange(8) % 2)
    model = nn.Linear(2, 2)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, data, nn.CrossEntropyLoss(), rule, procs=0, batch_size=4, run_dir=path)
    names = ("env.json", "names.json", "resolved.yaml", "job.yaml", "checkpoints")
    needed = {str(one) for one in (tmp_path / "new", path.parent, path, *(path / name for name in names))}
    assert disk.at_checkpoints and all(durable >= needed for durable in disk.at_checkpoints)


# --- a user without a home folder


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HOGWILD_STATE"):
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("no_home")
def test_code_is_compiled_and_not_kept() -> None:
    kept, compiled = Kept(cache_root() / "kernels-1"), []
    assert not kept.is_whole()
    assert "compiled kernels are not kept" in kept.filled(lambda folder: None, lambda: compiled.append(1))
    assert compiled == [1]


@pytest.mark.usefixtures("no_home")
def test_a_path_in_the_home_folder_is_not_found_under_the_name_that_was_given() -> None:
    with pytest.raises(NotFoundError, match=r"no folder holds ~/rows\.csv"):
        find_file("Csv(path='~/rows.csv')", "~/rows.csv", None, "Your own file.")
    with pytest.raises(NotFoundError, match=r"there is no ~/model\.safetensors"):
        load_initial(torch.nn.Linear(1, 1), "~/model.safetensors")


@pytest.mark.usefixtures("no_home")
def test_the_service_says_which_folder_it_cannot_make() -> None:
    with pytest.raises(RunError, match="cannot make the state folder /dev/null/"):
        StateFolder(state_folder(None)).make()
