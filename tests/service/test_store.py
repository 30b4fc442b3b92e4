"""The jobs on disk: what is read back is what was booked, whatever happened to database, copies and disk. Without space
nothing is half-written, running jobs go on, and events are written once there is room."""

import json
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from dataclasses import replace as replace_fields
from pathlib import Path

import pytest

from hogwild.errors import ServiceError, StorageFullError, UsageError
from hogwild.service.client import Beside
from hogwild.service.folders import FORMAT, StateFolder, check_files
from hogwild.service.states import JobRecord
from hogwild.service.store import VERSION, Store
from hogwild.storage.files import replace
from tests.helpers import mounts
from tests.helpers.processes import IS_THOROUGH
from tests.helpers.service import LONG, opened_store, order, serving

DAMAGES = 1000 if IS_THOROUGH else 100
STARTING = {"event": "starting", "attempt": 1, "cores": [0], "at": 1.0, "boot_id": "b"}
STARTED = {"event": "started", "pid": 7, "start_ticks": 9}
ONE, TWO, THREE = (f"{number:012x}" for number in (1, 2, 3))


def filled(store: Store, jobs: int) -> dict[str, JobRecord]:
    for number in range(1, jobs + 1):
        added = order(number)
        store.add(added, store.write_aside({"job.yaml": b"name: x\n", "package/module.py": b"A = 1\n"}, added))
        for event in (STARTING, STARTED, {"event": "running"})[: number % 4]:
            store.book(added.id, event)
    return dict(store.jobs)


def read_again(state: StateFolder) -> Store:
    with opened_store(state.path) as store:
        return store


def all_of(store: Store) -> dict[str, JobRecord]:
    assert store.unreadable == {} and not store.is_behind
    assert {name: one.number for name, one in store.orders.items()} == {name: int(name, 16) for name in store.jobs}
    return store.jobs


def without_database(state: StateFolder) -> None:
    for file in state.path.glob("jobs.sqlite3*"):
        file.unlink()


def test_what_was_booked_is_read_back_with_the_database_and_without(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 9)
    again = read_again(state)
    assert all_of(again) == jobs and again.warning == ""
    store.close()
    without_database(state)
    again = read_again(state)
    assert all_of(again) == jobs
    assert again.warning == f"{state.database} was missing and is made anew from each job's job.json"
    assert (state.job(ONE).files / "package/module.py").read_text() == "A = 1\n"
    with closing(sqlite3.connect(state.database)) as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (9,)


def test_every_event_is_kept_in_its_order_until_its_job_is_removed(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    with closing(sqlite3.connect(state.database)) as database:
        found = [json.loads(text) for (text,) in database.execute("SELECT event FROM events WHERE job = ?", (THREE,))]
        assert found == [STARTING, STARTED, {"event": "running"}]
        store.remove(THREE)
        assert database.execute("SELECT count(*) FROM events WHERE job = ?", (THREE,)).fetchone() == (0,)


@pytest.mark.parametrize("is_copied", [True, False], ids=["an older row", "an older copy"])
def test_of_a_row_and_a_copy_the_newer_one_is_believed(store: Store, state: StateFolder, is_copied: bool) -> None:
    """A write-ahead log that lost its end; a service killed between the two."""
    filled(store, 4)
    store.close()
    saved = state.path / "saved"
    file = state.database if is_copied else state.job(ONE).order
    shutil.copy(file, saved)
    with opened_store(state.path) as again:
        newer = again.book(ONE, {"event": "ended", "state": "paused", "at": 2.0})
    shutil.copy(saved, file)
    assert all_of(read_again(state))[ONE] == newer


@pytest.mark.parametrize("is_closed", [False, True], ids=["with its write-ahead log", "closed"])
def test_random_damage_of_the_database_loses_no_job(
    store: Store, state: StateFolder, tmp_path: Path, is_closed: bool
) -> None:
    jobs = filled(store, 12)
    if is_closed:
        store.close()
    whole = tmp_path / "whole"
    shutil.copytree(state.path, whole)
    store.close()
    files = [file.name for file in whole.glob("jobs.sqlite3*")]
    assert {"jobs.sqlite3", *([] if is_closed else ["jobs.sqlite3-wal"])} <= set(files)
    dice = random.Random(1)
    for _ in range(DAMAGES):
        without_database(state)
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
        assert all_of(read_again(state)) == jobs


def test_a_database_of_something_else_is_set_aside_and_made_anew(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 3)
    store.close()
    for content in (b"", b"no database", None):
        if content is None:
            with closing(sqlite3.connect(state.database)) as other:
                other.executescript("DROP TABLE jobs; CREATE TABLE jobs (id INTEGER)")
        else:
            state.database.write_bytes(content)
        again = read_again(state)
        assert all_of(again) == jobs
        assert content == b"" or ("was damaged" in again.warning and "job.json" in again.warning)
    assert state.path.joinpath("jobs.sqlite3.damaged").exists()


def test_a_database_that_is_damaged_while_the_service_runs_is_made_anew(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    assert store._database is not None
    store._database.execute("DROP TABLE jobs")
    store.close()
    replace(state.database, b"x" * 4096, sync=False)
    store.book(THREE, {"event": "ended", "state": "paused", "at": 2.0})
    assert store.is_behind and "was damaged" in store.warning
    store.write_late()
    assert not store.is_behind
    store.close()
    with closing(sqlite3.connect(state.database)) as database:
        assert database.execute("SELECT id FROM jobs ORDER BY number").fetchall() == [(ONE,), (TWO,), (THREE,)]


def test_numbers_are_never_given_twice_not_even_of_removed_jobs(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    store.remove(THREE)
    store.close()
    with opened_store(state.path) as again:
        assert (again.next_number(), again.next_number()) == (4, 5)
        assert sorted(again.jobs) == [ONE, TWO] and not state.job(THREE).path.exists()


def test_the_number_of_a_removed_newest_job_is_not_given_again_without_the_database(
    store: Store, state: StateFolder
) -> None:
    filled(store, 3)
    for _ in range(4):
        store.next_number()
    for name in (ONE, THREE):
        store.remove(name)
    store.close()
    without_database(state)
    assert read_again(state).next_number() == 5
    state.numbered.write_text("9" * 30)
    with opened_store(state.path) as again:
        added = replace_fields(order(7), number=again.next_number())
        again.add(added, again.write_aside({"job.yaml": b"x"}, added))
        assert not again.is_behind


def test_of_two_jobs_with_one_number_the_later_one_gets_a_new_one_for_good(store: Store, state: StateFolder) -> None:
    """A folder jobs/ID that was brought from the state folder of another machine."""
    filled(store, 3)
    store.remove(THREE)
    with opened_store(state.path / "other") as elsewhere:
        brought = replace_fields(order(7), number=2, submitted=9.0)
        elsewhere.add(brought, elsewhere.write_aside({"job.yaml": b"name: y\n"}, brought))
        shutil.copytree(elsewhere.state.job(brought.id).path, state.job(brought.id).path)
    store.close()
    for _ in range(2):
        again = read_again(state)
        assert {name: one.number for name, one in again.orders.items()} == {ONE: 1, TWO: 2, brought.id: 4}
        with closing(sqlite3.connect(state.database)) as database:
            assert database.execute("SELECT number FROM jobs ORDER BY number").fetchall() == [(1,), (2,), (4,)]
        assert not again.is_behind and again.next_number() == 5
        without_database(state)


def test_new_code_replaces_modules_and_leaves_the_job_file_and_other_jobs_alone(
    store: Store, state: StateFolder
) -> None:
    code = {"job.yaml": b"name: x\n", "old.py": b"A = 1\n", "net.py": b"A = 1\n"}
    for one in (order(1), order(2)):
        store.add(one, store.write_aside(code, one))
    store.replace_code(ONE, {"net.py": b"A = 2\n", "parts/more.py": b""})
    found = [{str(one.relative_to(files)): one.read_bytes() for one in files.rglob("*") if one.is_file()}
             for files in (state.job(ONE).files, state.job(TWO).files)]  # fmt: skip
    assert found[0] == {"job.yaml": b"name: x\n", "net.py": b"A = 2\n", "parts/more.py": b""}
    assert found[1] == {"job.yaml": b"name: x\n", "net.py": b"A = 1\n", "old.py": b"A = 1\n"}


def test_a_refused_job_leaves_no_gap_in_the_numbers(store: Store, state: StateFolder) -> None:
    assert store.next_number() == 1
    aside = store.write_aside({"job.yaml": b"x"}, order(1))
    (state.job(ONE).path / "in its way").mkdir(parents=True)
    with pytest.raises(StorageFullError):
        store.add(order(1), aside)
    assert store.next_number() == 1 and store.jobs == {} and not aside.exists()
    store.next_number()
    store.return_number(order(1))
    assert store.next_number() == 3, "a later one was given since"


def test_a_database_deleted_while_the_service_runs_is_made_anew(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    without_database(state)
    store.book(ONE, {"event": "running"})
    with closing(sqlite3.connect(state.database)) as database:
        assert database.execute("SELECT id FROM jobs ORDER BY number").fetchall() == [(ONE,), (TWO,), (THREE,)]


def test_a_row_that_waits_is_written_although_an_event_was_refused(store: Store, state: StateFolder) -> None:
    filled(store, 3)
    store.close()
    with closing(sqlite3.connect(state.database, isolation_level=None)) as other:
        other.execute("DELETE FROM jobs WHERE id = ?", (TWO,))
        other.execute("BEGIN IMMEDIATE")
        with opened_store(state.path) as again:
            with pytest.raises(StorageFullError):
                again.book(TWO, STARTING, must=True)
            other.execute("ROLLBACK")
            again.write_late()
        assert other.execute("SELECT count(*) FROM jobs").fetchone() == (3,)


def test_a_start_waits_for_a_program_that_has_locked_the_database(store: Store, state: StateFolder) -> None:
    filled(store, 1)
    older = state.job(ONE).order.read_text()
    newer = store.book(ONE, {"event": "asked", "ask": "cancel", "urgency": 0})
    state.job(ONE).order.write_text(older)
    store.close()
    other = sqlite3.connect(state.database, isolation_level=None, check_same_thread=False)
    other.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE")
    unlock = threading.Timer(0.3, other.close)
    unlock.start()
    again = read_again(state)
    unlock.join()
    assert again.jobs == {ONE: newer} and again.warning == ""


def test_a_copy_that_cannot_be_read_costs_no_job_that_has_a_row(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 3)
    store.close()
    state.job(ONE).order.unlink()
    state.job(ONE).order.mkdir()
    state.job(TWO).order.write_text('{"version": 1}')  # its journal is missing
    assert all_of(read_again(state)) == jobs


def test_what_a_killed_service_was_adding_or_removing_is_swept(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 2)
    shutil.copytree(state.job(ONE).path, state.jobs / ".tmp-00000000000a")
    assert all_of(read_again(state)) == jobs
    assert sorted(file.name for file in state.jobs.iterdir()) == sorted(jobs)


def test_a_damaged_copy_is_made_anew_from_its_row(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 3)
    store.close()
    file = state.job(TWO).order
    whole = file.read_bytes()
    for content in (b"", whole[:50], b"\xff", whole.replace(b"job", b"jab")):
        file.write_bytes(content)
        assert all_of(read_again(state)) == jobs and file.read_bytes() == whole


def newer(content: str) -> str:
    return content.replace(f'"version": {VERSION}', f'"version": {VERSION + 1}')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:50], "its checksum does not fit"),
        (lambda content: "", "it is empty or missing"),
        (newer, f"it has version {VERSION + 1}, written by a newer hogwild"),
    ],
    ids=["torn", "empty", "newer"],
)
def test_a_job_that_neither_row_nor_copy_has_is_left_alone_and_named(
    store: Store, state: StateFolder, damage: Callable[[str], str], words: str
) -> None:
    filled(store, 3)
    store.close()
    without_database(state)
    file = state.job(TWO).order
    file.write_text(damage(file.read_text()))
    again = read_again(state)
    assert [one.number for one in again.orders.values()] == [1, 3]
    assert again.unreadable == {TWO: f"{file}: {words}"} and file.exists()


def test_a_bit_flipped_in_a_copy_or_a_copied_folder_costs_no_other_job(store: Store, state: StateFolder) -> None:
    jobs = filled(store, 3)
    store.close()
    file = state.job(TWO).order
    whole = file.read_bytes()
    for place in range(0, len(whole), 1 if IS_THOROUGH else 23):
        without_database(state)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        again = read_again(state)
        assert again.jobs.keys() | again.unreadable.keys() == jobs.keys()
        assert {name: jobs[name] for name in again.jobs} == again.jobs and {ONE, THREE} <= again.jobs.keys()
    file.write_bytes(whole)
    shutil.copytree(state.job(TWO).path, state.job(f"{9:012x}").path)
    again = read_again(state)
    assert again.jobs == jobs and "order of job" in again.unreadable[f"{9:012x}"]


# ---- a folder of version 1: an order that never changes, and a journal with the events


@pytest.fixture
def former(store: Store, state: StateFolder) -> StateFolder:
    """Three jobs as version 1 wrote them; the last line of the third's journal is torn."""
    for number in (1, 2, 3):
        folder = state.job(f"{number:012x}").path
        folder.joinpath("files").mkdir(parents=True)
        values = {**asdict(order(number)), "sweep": "s00000000000", "sweep_values": {"seed": "1"}}  # once known
        (folder / "job.json").write_text(json.dumps({**values, "version": 1}))
        events = (STARTING, STARTED, {"event": "running"})[:number]
        (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with open(state.job(THREE).journal, "a") as stream:
        stream.write('{"event":"ended","sta')
    (state.path / "format").write_text("1\n")
    (state.path / "index.sqlite3").touch()
    store.close()
    without_database(state)
    return state


def test_a_folder_of_version_1_is_taken_over_once(former: StateFolder) -> None:
    former.check_format()
    assert (former.path / "format").read_text() == f"{FORMAT}\n" and not (former.path / "index.sqlite3").exists()
    taken = read_again(former)
    assert [(one.state, one.pid) for one in all_of(taken).values()] == [
        ("starting", None),
        ("starting", 7),
        ("running", 7),
    ]
    assert [*taken.orders.values()] == [order(number) for number in (1, 2, 3)]
    former.job(TWO).journal.unlink()
    again = read_again(former)
    assert (all_of(again), again.orders, again.warning) == (taken.jobs, taken.orders, "")


def test_a_job_of_version_1_without_its_journal_does_not_run_again(former: StateFolder) -> None:
    former.job(ONE).journal.unlink()
    again = read_again(former)
    assert sorted(again.jobs) == [TWO, THREE] and "journal.jsonl" in again.unreadable[ONE]


# ---- the folder


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


@pytest.mark.parametrize(
    "made",
    [
        *("state/jobs.sqlite3", "out/job-1/resolved.yaml", "env/pyvenv.cfg", "conda/conda-meta/history"),
        *("cache/CACHEDIR.TAG", ".git/config", "node_modules/x/index.js"),
    ],
)
def test_folders_that_programs_write_are_not_copied(tmp_path: Path, made: str) -> None:
    """A state folder beside the job file would have each job's files in those of the next one."""
    mark = tmp_path / made
    for file in (mark, mark.parent / "jobs/a/files/net.py", tmp_path / "net.py", tmp_path / "lists/words.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"a")
    assert Beside.of(tmp_path, 0) == Beside({"net.py": "a"}, {"lists/words.txt": b"a"}, [])


def test_a_job_file_in_the_state_folder_leaves_its_jobs_alone(state: StateFolder) -> None:
    for file in ("jobs.sqlite3", "net.py", "jobs/0123456789ab/files/net.py"):
        (state.path / file).parent.mkdir(parents=True, exist_ok=True)
        (state.path / file).write_bytes(b"a")
    assert Beside.of(state.path, 0) == Beside({"net.py": "a"}, {}, [])


def test_linked_folders_are_copied_once_and_one_that_leads_back_ends(tmp_path: Path) -> None:
    job, shared = tmp_path / "job", tmp_path / "shared"
    for folder in (job / "lists" / "deep", shared):
        folder.mkdir(parents=True)
    (job / "model.py").touch()
    (shared / "words.txt").write_text("a")
    (job / "lists" / "deep" / "shared").symlink_to(shared)
    (job / "lists" / "deep" / "up").symlink_to(job / "lists")
    assert Beside.of(job, 0).others == {"lists/deep/shared/words.txt": b"a"}


MEBIBYTE = 1 << 20


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    file = disk / "filler"
    with open(file, "wb", buffering=0) as stream:
        for size in (MEBIBYTE, 4096, 1):
            try:
                while True:
                    stream.write(b"x" * size)
            except OSError:
                continue
    return file


@pytest.mark.processes
def test_a_full_disk_takes_no_new_job_and_keeps_the_events_of_the_others(tmp_path: Path) -> None:
    with mounts.disk(tmp_path / "disk", "2m") as disk:
        state = StateFolder(disk / "state")
        state.make()
        store = Store(state)
        store.load()
        first = order(1)
        store.add(first, store.write_aside({"job.yaml": b"x"}, first))
        filler = fill(disk)
        with pytest.raises(StorageFullError, match="not accepted"):
            store.write_aside({"job.yaml": b"x" * 10_000}, order(2))
        starting = {"event": "starting", "attempt": 1, "cores": [0], "at": 1.0, "boot_id": "b"}
        with pytest.raises(StorageFullError, match="disk full"):
            store.book(first.id, starting, must=True)
        assert store.jobs[first.id].state == "queued" and not store.is_behind
        assert store.book(first.id, starting).state == "starting" and store.is_behind
        assert store.book(first.id, {"event": "started", "pid": 7, "start_ticks": 9}).pid == 7
        filler.unlink()
        store.write_late()
        assert not store.is_behind
        store.close()
        again = Store(state)
        again.load()
        assert again.jobs == store.jobs == {first.id: again.jobs[first.id]}
        assert again.jobs[first.id].pid == 7
        again.close()


@pytest.mark.whole
@pytest.mark.processes
def test_on_a_full_disk_submit_is_refused_and_cancel_works(tmp_path: Path) -> None:
    with mounts.disk(tmp_path / "disk", "16m") as disk, serving(disk, TMPDIR=str(tmp_path)) as service:
        row = service.start().running(
            *LONG, "log.every_s=3600", "checkpoint.every_s=3600", "evaluate.every_epochs=null"
        )
        filler = fill(disk)
        with pytest.raises(StorageFullError) as caught:
            service.submit(*LONG)
        assert caught.value.code == "service/full"
        assert [one["id"] for one in service.client.jobs()] == [row["id"]]
        assert service.client.job(row["id"])["state"] == "running"
        service.client.cancel(row["id"])
        assert service.wait_for_state(row["id"], "cancelled", "failed")["attempt"] == 1
        os.unlink(filler)
        service.kill()
        service.start()
        service.wait_for_state(row["id"], "cancelled", "failed")  # it has yet to look at the dead process
        assert [one["id"] for one in service.client.jobs()] == [row["id"]]
