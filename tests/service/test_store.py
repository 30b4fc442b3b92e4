"""The jobs on disk: what is read back is what was booked, whatever happened to the database and the disk."""

import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from hogwild.errors import ServiceError, UsageError
from hogwild.service.client import Beside
from hogwild.service.folders import FORMAT, StateFolder, check_files
from hogwild.service.states import VERSION, JobRecord
from hogwild.service.store import Store
from tests.helpers.processes import IS_THOROUGH
from tests.helpers.service import order

DAMAGES = 1000 if IS_THOROUGH else 150
STARTING = {"event": "starting", "attempt": 1, "cores": [0], "at": 1.0, "boot_id": "b"}
STARTED = {"event": "started", "pid": 7, "start_ticks": 9}


def filled(store: Store, jobs: int) -> dict[str, JobRecord]:
    for number in range(1, jobs + 1):
        added = order(number)
        store.add(added, store.write_aside({"job.yaml": b"name: x\n", "package/module.py": b"A = 1\n"}))
        for event in (STARTING, STARTED, {"event": "running"})[: number % 4]:
            store.book(added.id, event)
    return dict(store.jobs)


def read_again(state: StateFolder) -> dict[str, JobRecord]:
    store = Store(state)
    store.load()
    store.close()
    assert store.unreadable == {}
    assert {name: one.number for name, one in store.orders.items()} == {name: int(name, 16) for name in store.jobs}
    return store.jobs


def test_what_was_booked_is_read_back_with_the_database_and_without(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 9)
    assert read_again(state) == jobs
    store.close()
    for file in state.path.glob("index*"):
        file.unlink()
    assert read_again(state) == jobs
    assert (state.job(f"{1:012x}").files / "package/module.py").read_text() == "A = 1\n"


def test_a_row_that_is_older_than_its_journal_is_not_believed(store: Store, state: StateFolder) -> None:
    filled(store, 4)
    store.close()
    name = f"{4:012x}"
    journal = state.job(name).journal
    journal.write_text(journal.read_text() + json.dumps(STARTING) + "\n")
    assert read_again(state)[name].state == "starting"


def test_random_damage_of_the_database_loses_no_job(store: Store, state: StateFolder, tmp_path: Path) -> None:
    jobs = filled(store, 12)
    whole = tmp_path / "whole"
    shutil.copytree(state.path, whole)  # with its write-ahead log: nothing was closed
    files = [file.name for file in whole.glob("index*")]
    assert {"index.sqlite3", "index.sqlite3-wal"} <= set(files)
    dice = random.Random(1)
    for _ in range(DAMAGES):
        for name in files:
            shutil.copy(whole / name, state.path / name)
        file = state.path / dice.choice(files)
        content = bytearray(file.read_bytes())
        if dice.random() < 0.3:
            del content[dice.randrange(len(content)) :]
        else:
            for _ in range(dice.randint(1, 20)):
                content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        file.write_bytes(content)
        assert read_again(state) == jobs


def test_a_database_of_something_else_is_made_anew(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 3)
    store.close()
    for content in (b"", b"no database", None):
        if content is None:
            with sqlite3.connect(state.index) as other:
                other.execute("DROP TABLE jobs")
                other.execute("CREATE TABLE jobs (id INTEGER)")
            other.close()
        else:
            state.index.write_bytes(content)
        assert read_again(state) == jobs


def test_a_torn_last_line_of_a_journal_is_no_event(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 4)
    store.close()
    name = f"{3:012x}"
    with open(state.job(name).journal, "a") as stream:
        stream.write('{"event":"ended","sta')
    assert read_again(state) == jobs
    again = Store(state)
    again.load()
    assert again.book(name, {"event": "asked", "ask": "pause", "urgency": 0}).state == "stopping"
    again.close()
    assert read_again(state)[name].asked == "pause"


def test_what_a_killed_service_was_adding_or_removing_is_swept(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 2)
    shutil.copytree(state.job(f"{1:012x}").path, state.jobs / ".tmp-00000000000a")
    assert read_again(state) == jobs
    assert sorted(file.name for file in state.jobs.iterdir()) == sorted(jobs)


def test_a_job_with_a_damaged_order_is_left_alone_and_named(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    store.close()
    damaged = state.job(f"{2:012x}").order
    damaged.write_text(damaged.read_text()[:50])
    again = Store(state)
    again.load()
    again.close()
    assert [one.number for one in again.orders.values()] == [1, 3]
    assert str(damaged) in again.unreadable[f"{2:012x}"]
    assert damaged.exists()


def test_a_job_of_a_newer_version_is_left_alone_and_named(store: Store, state: StateFolder) -> None:
    filled(store, 2)
    store.close()
    file = state.job(f"{2:012x}").order
    file.write_text(file.read_text().replace(f'"version": {VERSION}', f'"version": {VERSION + 1}'))
    again = Store(state)
    again.load()
    again.close()
    assert [one.number for one in again.orders.values()] == [1]
    assert again.unreadable == {f"{2:012x}": f"{file}: it has version {VERSION + 1}, written by a newer hogwild"}


def test_a_bit_flipped_in_an_order_or_a_copied_folder_costs_no_other_job(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 3)
    store.close()
    file = state.job(f"{2:012x}").order
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        again = Store(state)
        again.load()
        again.close()
        assert again.jobs.keys() | again.unreadable.keys() == jobs.keys()
        assert again.jobs.keys() >= {f"{1:012x}", f"{3:012x}"}
    file.write_bytes(whole)
    shutil.copytree(state.job(f"{2:012x}").path, state.job(f"{9:012x}").path)
    again = Store(state)
    again.load()
    again.close()
    assert again.jobs == jobs and "order of job" in again.unreadable[f"{9:012x}"]


def test_a_job_without_its_journal_does_not_run_again(store: Store, state: StateFolder) -> None:
    filled(store, 1)
    store.close()
    state.job(f"{1:012x}").journal.unlink()
    again = Store(state)
    again.load()
    again.close()
    assert again.jobs == {} and "journal.jsonl" in again.unreadable[f"{1:012x}"]


def test_removed_jobs_stay_removed(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    store.remove(f"{2:012x}")
    store.close()
    assert sorted(read_again(state)) == [f"{1:012x}", f"{3:012x}"]
    assert not state.job(f"{2:012x}").path.exists()


def test_a_newer_state_folder_is_refused_and_not_changed(state: StateFolder) -> None:
    state.check_format()
    file = state.path / "format"
    file.write_text(f"{FORMAT + 1}\n")
    with pytest.raises(ServiceError, match=f"newer hogwild .format {FORMAT + 1}") as caught:
        state.check_format()
    assert caught.value.code == "service/newer-store"
    file.write_bytes(b"\xff")
    state.check_format()
    assert file.read_text() == f"{FORMAT}\n"


def test_a_state_folder_that_others_can_change_is_refused(state: StateFolder) -> None:
    state.path.chmod(0o777)
    with pytest.raises(ServiceError, match="mode 777"):
        state.make()


def test_the_token_is_private_and_stays(state: StateFolder) -> None:
    token = state.token()
    assert len(token) > 40 and state.token() == token
    (state.path / "token").write_text("\n")
    assert len(state.token()) > 40, "an empty token would let everybody in"
    assert (state.path / "token").stat().st_mode & 0o777 == 0o600
    assert state.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["../x.py", "/etc/x.py", "a/../b.py", "a//b.py", "", ".", "a\nb.py", "x" * 501])
def test_a_file_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="must be a relative path"):
        check_files({name: b""})


def test_more_than_a_thousand_files_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 1000"):
        check_files({f"m{number}.py": b"" for number in range(1001)})


def test_more_than_ten_mebibytes_are_refused() -> None:
    check_files({"a.py": b"x" * (10 << 20)})
    with pytest.raises(UsageError, match="10 MiB"):
        check_files({"a.py": b"x" * (10 << 20), "b.py": b"y"})


def test_only_code_of_the_jobs_own_has_files_copied_for_it(tmp_path: Path) -> None:
    for name in ("words.txt", "data/rows.csv", ".secret", "runs/old/model.pt", "spaces/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert Beside.of(tmp_path, 0) == Beside({}, {}, [])
    (tmp_path / "spaces" / "mine.py").write_text("")  # a package without __init__.py
    assert Beside.of(tmp_path, 0).others.keys() == {"words.txt", "data/rows.csv", "spaces/mine.py"}
    assert Beside.of(tmp_path, 10 << 20).left_out == ["data/rows.csv (1 B)", "words.txt (1 B)"], "the job file is large"


def test_linked_folders_are_copied_once_and_one_that_leads_back_ends(tmp_path: Path) -> None:
    job, shared = tmp_path / "job", tmp_path / "shared"
    for folder in (job / "lists" / "deep", shared):
        folder.mkdir(parents=True)
    (job / "model.py").touch()
    (shared / "words.txt").write_text("a")
    (job / "lists" / "deep" / "shared").symlink_to(shared)
    (job / "lists" / "deep" / "up").symlink_to(job / "lists")
    assert Beside.of(job, 0).others == {"lists/deep/shared/words.txt": b"a"}
