"""Published folders: whole or not there, whatever the writer met at which of its system calls."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hogwild.storage.files import TEMPORARY
from hogwild.storage.published_folder import (
    MANIFEST,
    REPLACED,
    STALE_S,
    Crc32,
    HashedFile,
    UnreadableFile,
    entry_of,
    publish,
    publish_instead,
    read_manifest,
    sweep,
    sweep_stale,
    write_manifest,
    written_aside,
)

CALLS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE)
MOST_CALLS = 40  # one writer makes fewer; a fault at a later one never comes
CASES = 400
SIZE = 1000

Publish = Callable[[Path, Path], None]


def write(target: Path, value: int, give_its_name: Publish) -> None:
    with written_aside(target) as aside:
        files = {}
        for name in ("a.bin", "b.bin"):
            with closing(HashedFile(aside / name, Crc32())) as file:
                file.write(bytes([value]) * SIZE)
                files[name] = file.finish()
        write_manifest(aside, {"files": files})
        give_its_name(aside, target)


def value_of(folder: Path) -> int:
    """The value of a folder that is whole; an AssertionError for any other."""
    content, is_intact = read_manifest(folder)
    assert is_intact and sorted(content["files"]) == ["a.bin", "b.bin"] == sorted({*os.listdir(folder)} - {MANIFEST})
    assert all(entry_of(folder / name, Crc32()) == entry for name, entry in content["files"].items())
    (value,) = {*(folder / "a.bin").read_bytes(), *(folder / "b.bin").read_bytes()}
    return value


# ---- kills and errors at random system calls


def fail_at(nth: int, number: int | None) -> None:
    """From now on in this process: SIGKILL, or an error, instead of the nth call; of a write half is made before."""
    left = nth

    def faulty(call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left:
                return original(*arguments, **options)
            if call == "write":
                original(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if number is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(number, os.strerror(number or 0))

        return called

    for call in CALLS:
        setattr(os, call, faulty(call, getattr(os, call)))


def start(target: Path, value: int, give_its_name: Publish, nth: int, number: int | None) -> int:
    """A writer in a process of its own, which ends with 0, with 1 after an error, or by SIGKILL."""
    if (pid := os.fork()) == 0:
        status = 0
        fail_at(nth, number)
        try:
            write(target, value, give_its_name)
        except OSError:
            status = 1
        os._exit(status)
    return pid


def end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def one_case(folder: Path, chance: random.Random) -> str:
    """A name that is written once or twice, by one writer or two at a time; the way in which the first one ended."""
    target, is_owned = folder / "it", chance.random() < 0.5
    allowed: set[int | None] = {None}
    if chance.random() < 0.5:
        write(target, 1, publish)
        allowed = {1}
    give_its_name = publish_instead if is_owned else publish
    number = chance.choice((None, *ERRORS))
    pids = [start(target, 2, give_its_name, chance.randrange(1, MOST_CALLS), number)]
    allowed.add(2)
    if not is_owned and chance.random() < 0.5:
        pids.append(start(target, 3, give_its_name, MOST_CALLS * 9, None))
        allowed = (allowed | {3}) - {None}
    ended, *others = map(end, pids)
    assert others in ([], [0]), "a fault of one writer is none of another's"
    if ended == 0:
        allowed -= {None, 1} if is_owned else {None}
    check(folder, target, allowed, is_owned)
    write(target, 4, publish_instead)
    assert value_of(target) == 4 and os.listdir(folder) == ["it"]
    return {0: "done", 1: "error", -signal.SIGKILL: "killed"}[ended]


def check(folder: Path, target: Path, allowed: set[int | None], is_owned: bool) -> None:
    strange = [name for name in os.listdir(folder) if name != "it" and not name.startswith((TEMPORARY, REPLACED))]
    assert not strange
    if is_owned:
        sweep(folder)
    assert (value_of(target) if target.exists() else None) in allowed
    sweep_stale(folder, folder.stat().st_mtime)
    left = {name for name in os.listdir(folder) if name.startswith(TEMPORARY)}
    assert not (left and is_owned)
    sweep_stale(folder, folder.stat().st_mtime + 2 * STALE_S)
    assert {*os.listdir(folder)} <= {"it"}


def campaign(folder: Path, seed: int, cases: int) -> dict[str, int]:
    """Return the number of writers that ended in each way. Raises AssertionError with the number of a case that is
    wrong."""
    tally: dict[str, int] = {}
    for case in range(cases):
        room = folder / str(case)
        room.mkdir()
        try:
            how = one_case(room, random.Random(f"{seed}/{case}"))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, case {case}: {error}") from error
        tally[how] = tally.get(how, 0) + 1
        shutil.rmtree(room)
    return tally


@pytest.mark.whole
@pytest.mark.processes
def test_kills_and_errors_at_random_system_calls_leave_a_whole_folder_or_none(tmp_path: Path) -> None:
    """In a process without threads, which may fork."""
    arguments = [sys.executable, "-m", "tests.storage.test_published_folder", str(tmp_path), "1", str(CASES)]
    said = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr
    tally = json.loads(said.stdout)
    assert min(tally["killed"], tally["error"], tally["done"]) > CASES // 20, tally


# ---- the order of writes, and what is refused


def test_everything_is_synced_before_the_name_is_given_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        made.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_rename(*arguments: Any) -> None:
        made.append("rename")
        rename(*arguments)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    write(tmp_path / "it", 1, publish)
    assert made == ["a.bin", "b.bin", MANIFEST, f"{TEMPORARY}it-{os.getpid()}", "rename", tmp_path.name]


def test_a_link_or_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableFile, match="cannot open link"):
        entry_of(tmp_path / "link")
    with pytest.raises(UnreadableFile, match="pipe is not a regular file"):
        entry_of(tmp_path / "pipe")


@pytest.mark.parametrize("raw", [b"", b"[1, 2]", b"7", b'{"a": 1}', b"[" * 100_000, b"\xff"])
def test_a_manifest_of_something_else_is_damage_and_no_error(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(raw)
    content, is_intact = read_manifest(tmp_path)
    assert isinstance(content, dict) and not is_intact


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
