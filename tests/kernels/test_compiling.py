"""Compiled kernels on disk: whole or not there, made by one worker, loaded by the others."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.kernels import compiling, kernel_cache, signatures
from hogwild.kernels.compiling import kernel
from hogwild.kernels.kernel_cache import KernelCache
from hogwild.shared_memory.scoreboard import Phase, Row, Scoreboard
from hogwild.storage import artifact_cache
from hogwild.storage.artifact_cache import cache_root
from hogwild.storage.published_folder import MANIFEST
from hogwild.workers.child.build import make_all_ready, make_ready
from hogwild.workers.messages import ParentGone

NAME = "a kernel of the tests"


@kernel
def _sum(values):  # type: ignore[no-untyped-def]
    total = 0.0
    for value in values:
        total += value
    return total


def add_up() -> None:
    assert _sum(np.ones(3)) == 3.0


def forget() -> None:
    """As in a new process: nothing is compiled."""
    _sum._reset_overloads()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "KERNELS", [_sum])  # those of other tests in this process are not known elsewhere
    yield tmp_path / "hogwild"
    forget()


def loads(cache: KernelCache) -> bool:
    """In another process: numba takes what is kept, and compiles nothing."""
    program = (
        "import numpy as np, tests.kernels.test_compiling as t; c = t.KernelCache.of(t.NAME);"
        "print(c.is_whole()); c.load(t.add_up);"
        "print(sum(t._sum.stats.cache_hits.values()), sum(t._sum.stats.cache_misses.values()))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    return said.stdout.split() == ["True", "1", "0"]


@pytest.mark.whole
@pytest.mark.processes
def test_what_one_process_compiles_another_loads(root: Path) -> None:
    cache = KernelCache.of(NAME)
    assert not cache.is_whole()
    assert cache.fill(add_up) == ""
    assert cache.is_whole() and cache.folder.parent == root == cache_root()
    assert [entry.name for entry in root.iterdir()] == [cache.folder.name], "nothing else is left behind"
    assert loads(cache)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def empty(file: Path) -> None:
    file.write_bytes(b"")


DAMAGES: tuple[Callable[[Path], None], ...] = (truncate, flip, empty, Path.unlink)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["*.nbi", "*.nbc", MANIFEST])
def test_a_damaged_cache_is_removed_and_made_again(root: Path, damage: Callable[[Path], None], which: str) -> None:
    cache = KernelCache.of(NAME)
    cache.fill(add_up)
    damage(next(cache.folder.rglob(which)))
    assert not KernelCache.of(NAME).is_whole()
    assert not cache.folder.exists()
    forget()
    assert cache.fill(add_up) == "" and cache.is_whole()


def test_a_manifest_of_something_else_is_damage(root: Path) -> None:
    cache = KernelCache.of(NAME)
    cache.fill(add_up)
    (cache.folder / MANIFEST).write_text(json.dumps([1, 2]))
    assert not cache.is_whole()


def test_the_folder_s_name_follows_from_what_would_be_compiled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [KernelCache.of(NAME).folder, KernelCache.of("another").folder]
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    folders.append(KernelCache.of(NAME).folder)
    monkeypatch.setattr(kernel_cache, "versions", lambda: ["0.0.1"])
    folders.append(KernelCache.of(NAME).folder)
    monkeypatch.setattr(kernel_cache.host, "processor", lambda: "another")
    folders.append(KernelCache.of(NAME).folder)
    monkeypatch.chdir(root.parent)
    (root.parent / kernel_cache.CONFIGURATION).write_text("opt: 0")
    folders.append(KernelCache.of(NAME).folder)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "7")
    assert KernelCache.of(NAME).folder == folders[-1], "it changes no code"
    assert len(set(folders)) == 6


def test_a_change_of_any_kernel_s_source_makes_another_folder_in_sub_folders_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Path(shutil.copytree(Path(compiling.__file__).parent, tmp_path / "kernels"))
    monkeypatch.setattr(kernel_cache, "__file__", str(kernels / "kernel_cache.py"))
    (kernels / "more").mkdir()
    (kernels / "more" / "deep.py").touch()
    fingerprints = [kernel_cache.fingerprint()]
    assert kernel_cache.fingerprint() == fingerprints[0]
    for name in ("linear.py", "more/deep.py"):
        with (kernels / name).open("a") as source:
            source.write("# changed\n")
        fingerprints.append(kernel_cache.fingerprint())
    assert len(set(fingerprints)) == 3


def test_where_nothing_can_be_kept_the_kernels_are_compiled_all_the_same(root: Path) -> None:
    root.parent.mkdir(exist_ok=True)
    root.write_text("in the way")
    assert "not kept" in KernelCache.of(NAME).fill(add_up)
    assert _sum.overloads


def test_a_job_that_was_first_is_not_disturbed(root: Path) -> None:
    cache = KernelCache.of(NAME)
    cache.fill(add_up)
    forget()
    before = (cache.folder / MANIFEST).read_bytes()
    assert cache.fill(add_up) == ""
    assert (cache.folder / MANIFEST).read_bytes() == before and len(list(root.iterdir())) == 1


# ---- who compiles ---------------------------------------------------------------------------------------------------


@pytest.fixture
def board() -> Scoreboard:
    return Scoreboard.allocate(2)


class Never:
    """A file descriptor of a parent that lives."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()


class Waiting(Row):
    """A row that tells the test when its worker has looked and waits."""

    def __init__(self, board: Scoreboard, worker: int, on_beat: Callable[[int], None]) -> None:
        super().__init__(board, worker)
        self.beats, self._on_beat = 0, on_beat

    def beat(self) -> None:
        super().beat()
        self.beats += 1
        self._on_beat(self.beats)


CLAIMING = """
import os, signal
from tests.kernels.test_compiling import KernelCache, NAME
with KernelCache.of(NAME).claimed() as is_ours:
    print(is_ours, flush=True)
    signal.pause()
"""


@contextmanager
def claimed_elsewhere() -> Iterator[subprocess.Popen[str]]:
    """Another process, which claims the kernels and compiles for ever."""
    with subprocess.Popen([sys.executable, "-c", CLAIMING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


def test_who_is_first_compiles_and_the_others_load(root: Path, board: Scoreboard) -> None:
    said = make_ready(NAME, add_up, (), Row(board, 0), Never().read)
    assert "compiled" in said and board.phase_s(time.monotonic_ns())[0, Phase.COMPILING] > 0
    forget()
    assert "loaded" in make_ready(NAME, add_up, (), Row(board, 1), Never().read)


@pytest.mark.processes
def test_the_others_wait_and_beat_until_it_is_there(root: Path, board: Scoreboard) -> None:
    def kept_after_three_looks(beats: int) -> None:
        if beats == 3:
            KernelCache.of(NAME).fill(add_up)

    row = Waiting(board, 1, kept_after_three_looks)
    with claimed_elsewhere():
        assert "loaded" in make_ready(NAME, add_up, (), row, Never().read)
    assert row.beats == 3


@pytest.mark.whole
@pytest.mark.processes
def test_a_compiler_that_is_killed_is_followed_by_another_at_once(root: Path, board: Scoreboard) -> None:
    with claimed_elsewhere() as process:

        def kill(beats: int) -> None:
            if beats == 2:
                process.kill()
                process.wait()

        row = Waiting(board, 1, kill)
        assert "compiled" in make_ready(NAME, add_up, (), row, Never().read)
    assert row.beats == 2 and KernelCache.of(NAME).is_whole()


@pytest.mark.processes
def test_one_that_is_stopped_is_not_waited_for_for_ever(
    root: Path, board: Scoreboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_cache, "CLAIMED_S", 0.1)
    with claimed_elsewhere():
        assert "compiled" in make_ready(NAME, add_up, (), Row(board, 1), Never().read)


def test_where_nothing_can_be_kept_each_compiles_for_itself(root: Path, board: Scoreboard) -> None:
    root.parent.mkdir(exist_ok=True)
    root.write_text("in the way")
    assert "compiled (compiled kernels are not kept" in make_ready(NAME, add_up, (), Row(board, 1), Never().read)


def test_what_is_kept_between_two_looks_is_loaded_and_not_compiled_again(board: Scoreboard) -> None:
    class JustKept:
        """The compiler is done a moment after this worker has found nothing."""

        looks = 0

        def is_whole(self) -> bool:
            self.looks += 1
            return self.looks > 1

        def claimed(self) -> AbstractContextManager[bool]:
            return nullcontext(True)

        def load(self, run: Callable[[], object]) -> None:
            pass

        def fill(self, run: Callable[[], object]) -> str:
            raise AssertionError("compiled again")

    assert "loaded" in make_all_ready("it", [(JustKept(), add_up)], Row(board, 1), Never().read)


@pytest.mark.processes
def test_nobody_waits_for_a_compiler_when_the_parent_is_gone(root: Path, board: Scoreboard) -> None:
    lifeline = Never()
    os.close(lifeline.write)
    with claimed_elsewhere(), pytest.raises(ParentGone):
        make_ready(NAME, add_up, (), Row(board, 1), lifeline.read)


@pytest.mark.processes
def test_of_processes_that_begin_together_one_compiles(root: Path) -> None:
    program = "from hogwild.kernels import kernel_cache as k, signatures; print(k.make_ready(signatures.hot_rows()))"
    command = [sys.executable, "-c", program]
    together = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(process.communicate(timeout=300)[0].strip() for process in together)
    assert said == ["compiled", "loaded", "loaded"]
    assert KernelCache.of(signatures.hot_rows()).is_whole() and len([*root.iterdir()]) == 1


def test_a_kernel_whose_module_is_imported_by_its_first_call_is_kept(root: Path) -> None:
    """That of a factorisation machine never was: its module was unknown when numba was told the folder."""
    made: list[Any] = []

    def run() -> None:
        made.append(kernel(lambda value: value + 1))
        assert made[0](1) == 2

    cache = KernelCache.of(NAME)
    assert cache.fill(run) == "" and cache.is_whole()


SERVED = """
import contextlib, os, socket
from tests.kernels.test_compiling import KernelCache, NAME, Scoreboard, Waiting, add_up, make_ready
from hogwild.workers.child.entry import Leaving, Start
from hogwild.workers.child.trainer import serve
supervisor, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
lifeline, its_end = os.pipe()
def die(beats):
    if beats == 2:
        supervisor.close()
        os.close(its_end)
row = Waiting(Scoreboard.allocate(2), 1, die)
KernelCache.claimed = lambda cache: contextlib.nullcontext(False)
start = Start(os.getppid(), -1, -1, channel.fileno(), lifeline, -1, ())
serve(start, channel, Leaving(), lambda: make_ready(NAME, add_up, (), row, lifeline))
"""


@pytest.mark.processes
def test_a_supervisor_that_dies_while_a_worker_waits_for_another_s_compile_leaves_no_traceback(root: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_what_nobody_used_for_long_goes(root: Path) -> None:
    old, stale, fresh = (root / name for name in ("kernels-old", ".tmp-kernels-stale-1", ".tmp-kernels-fresh-1"))
    data = root / "mnist"  # downloaded
    for folder, age_s in ((old, 31 * 86400.0), (stale, 2 * 86400.0), (fresh, 3600.0), (data, 400 * 86400.0)):
        folder.mkdir(parents=True)
        if folder == old:
            (folder / MANIFEST).write_text("{}")
        os.utime(folder, (time.time() - age_s,) * 2)
    cache = KernelCache.of(NAME)
    cache.fill(add_up)
    assert sorted(root.iterdir()) == sorted([cache.folder, fresh, data])


def test_an_empty_folder_is_not_kept(root: Path) -> None:
    add_up()  # compiled before the cache was asked, so numba writes nothing
    assert "before" in KernelCache.of(NAME).fill(add_up)
    assert not KernelCache.of(NAME).is_whole()
