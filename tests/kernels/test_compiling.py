"""Compiled kernels on disk: whole or not there, made by one worker, loaded by the others."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.kernels import compiling
from hogwild.kernels.compiling import KernelCache, kernel
from hogwild.shared_memory.scoreboard import Control, Phase, Row, Scoreboard, Word
from hogwild.storage.artifact_cache import cache_root
from hogwild.storage.published_folder import MANIFEST
from workers.child.compile_once import make_all_ready, make_ready
from workers.messages import ParentGone

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
    monkeypatch.setattr(compiling, "_KERNELS", [_sum])  # those of other tests in this process are not known elsewhere
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
    monkeypatch.setattr(compiling.numba_config, "BOUNDSCHECK", 1)
    folders.append(KernelCache.of(NAME).folder)
    monkeypatch.setattr(compiling.numba, "__version__", "0.0.1")
    folders.append(KernelCache.of(NAME).folder)
    monkeypatch.setattr(compiling.binding, "get_host_cpu_name", lambda: "another")
    folders.append(KernelCache.of(NAME).folder)
    assert len(set(folders)) == 5


def test_a_change_of_any_kernel_s_source_makes_another_folder_in_sub_folders_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Path(shutil.copytree(Path(compiling.__file__).parent, tmp_path / "kernels"))
    monkeypatch.setattr(compiling, "__file__", str(kernels / "compiling.py"))
    (kernels / "more").mkdir()
    (kernels / "more" / "deep.py").touch()
    fingerprints = [compiling.fingerprint()]
    assert compiling.fingerprint() == fingerprints[0]
    for name in ("linear.py", "more/deep.py"):
        with (kernels / name).open("a") as source:
            source.write("# changed\n")
        fingerprints.append(compiling.fingerprint())
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


def test_the_worker_that_is_named_compiles_and_says_so(root: Path, board: Scoreboard) -> None:
    row = Row(board, 0)
    said = make_ready(NAME, add_up, row, Never().read)
    assert "compiled" in said and board.words[0, Word.COMPILED] == 1
    assert board.phase_s(time.monotonic_ns())[0, Phase.COMPILING] > 0
    forget()
    assert "loaded" in make_ready(NAME, add_up, Row(board, 1), Never().read)


class Waiting(Row):
    """A row that tells the test when its worker has looked and waits."""

    def __init__(self, board: Scoreboard, worker: int, on_beat: Callable[[int], None]) -> None:
        super().__init__(board, worker)
        self.beats, self._on_beat = 0, on_beat

    def beat(self) -> None:
        super().beat()
        self.beats += 1
        self._on_beat(self.beats)


def test_the_others_wait_and_beat_until_the_word_is_there(root: Path, board: Scoreboard) -> None:
    def kept_after_three_looks(beats: int) -> None:
        if beats == 3:
            KernelCache.of(NAME).fill(add_up)
            board.words[0, Word.COMPILED] = 1

    row = Waiting(board, 1, kept_after_three_looks)
    assert "loaded" in make_ready(NAME, add_up, row, Never().read)
    assert row.beats == 3


def test_a_compiler_that_dies_is_followed_by_the_one_the_supervisor_names(root: Path, board: Scoreboard) -> None:
    def name_another(beats: int) -> None:
        if beats == 2:
            board.control[Control.COMPILER] = 1

    row = Waiting(board, 1, name_another)
    assert "compiled" in make_ready(NAME, add_up, row, Never().read)
    assert row.beats == 2


def test_where_the_compiler_could_keep_nothing_each_compiles_for_itself(root: Path, board: Scoreboard) -> None:
    root.parent.mkdir(exist_ok=True)
    root.write_text("in the way")
    board.words[0, Word.COMPILED] = 1
    assert "compiled" in make_ready(NAME, add_up, Row(board, 1), Never().read)


def test_what_is_kept_between_two_looks_is_loaded_and_not_compiled_again(board: Scoreboard) -> None:
    class JustKept:
        """The compiler is done a moment after this worker has found nothing."""

        looks = 0

        def is_whole(self) -> bool:
            self.looks += 1
            board.words[0, Word.COMPILED] = 1
            return self.looks > 1

        def load(self, run: Callable[[], object]) -> None:
            pass

        def fill(self, run: Callable[[], object]) -> str:
            raise AssertionError("compiled again")

    assert "loaded" in make_all_ready("it", JustKept(), add_up, Row(board, 1), Never().read, 1)


def test_nobody_waits_for_a_compiler_when_the_parent_is_gone(root: Path, board: Scoreboard) -> None:
    lifeline = Never()
    os.close(lifeline.write)
    with pytest.raises(ParentGone):
        make_ready(NAME, add_up, Row(board, 1), lifeline.read)


SERVED = """
import os, socket
from tests.kernels.test_compiling import NAME, Scoreboard, Waiting, add_up, make_ready
from workers.child.entry import Leaving, Start
from workers.child.worker_loop import serve
supervisor, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
lifeline, its_end = os.pipe()
def die(beats):
    if beats == 2:
        supervisor.close()
        os.close(its_end)
row = Waiting(Scoreboard.allocate(2), 1, die)
start = Start(os.getppid(), -1, -1, channel.fileno(), lifeline, -1, ())
serve(start, channel, Leaving(), lambda: make_ready(NAME, add_up, row, lifeline))
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


def test_a_new_incarnation_has_compiled_nothing_yet(board: Scoreboard) -> None:
    board.words[0, Word.COMPILED] = 1
    board.renew(0, 2)
    assert board.words[0, Word.COMPILED] == 0
