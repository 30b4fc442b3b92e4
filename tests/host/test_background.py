"""Work in a thread: its end wakes a poll, what follows from it is done by whoever settles it."""

import gc
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from hogwild import host
from hogwild.host import background_thread
from hogwild.host.background_thread import HANDOVER_S, Background, freeze, responsive
from tests.helpers.jobs import HOME
from tests.helpers.processes import PATIENCE_S, wait_for


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("test")
    yield made
    made.close()


def test_the_work_is_done_in_a_thread_and_what_follows_in_ours(background: Background) -> None:
    where: list[threading.Thread] = []
    for answer in ("one", "two"):  # the same thread again
        told: list[tuple[str, threading.Thread]] = []
        background.submit(
            lambda answer=answer: where.append(threading.current_thread()) or answer,  # type: ignore[misc]
            lambda got, told=told: told.append((got, threading.current_thread())),  # type: ignore[misc]
        )
        assert background.is_busy and not told
        assert select.select([background], [], [], PATIENCE_S)[0] == [background]
        assert background.is_busy and not told  # until it is settled
        assert background.finish()
        assert told == [(answer, threading.main_thread())] and not background.is_busy
        assert not background.finish() and select.select([background], [], [], 0)[0] == []
    assert where[0] is where[1] is not threading.main_thread()


def test_what_the_work_raises_is_raised_where_it_is_settled(background: Background) -> None:
    def work() -> None:
        raise SystemExit("user code")

    background.submit(work)
    with pytest.raises(SystemExit, match="user code"):
        background.wait()
    assert not background.is_busy
    told: list[int] = []
    background.submit(lambda: 1, told.append)
    assert background.wait() and told == [1]


def test_waiting_ends_with_the_time_that_is_left(background: Background) -> None:
    gate = threading.Event()
    background.submit(gate.wait)
    assert not background.wait(0.001) and background.is_busy
    with pytest.raises(AssertionError, match="one piece of work at a time"):
        background.submit(gate.wait)
    gate.set()
    assert background.wait()


def test_what_the_work_held_is_given_back_before_its_end_is_told(background: Background) -> None:
    """A gigabyte takes a tenth of a second, which the loop would have to wait for."""

    class Large:
        pass

    large = Large()
    gone_in: list[str] = []
    weakref.finalize(large, lambda: gone_in.append(threading.current_thread().name))
    background.submit(lambda held=large: None)  # type: ignore[misc]
    del large
    assert background.wait()
    assert gone_in == ["test"]


GIVEN_UP = """
import threading, torch
from hogwild import __main__
from hogwild.cli import main as cli
from hogwild.host.background_thread import Background

busy, has_begun = Background("busy"), threading.Event()

def work():
    has_begun.set()
    while True:
        torch.ones(1 << 24).clone()

def run(argv):
    busy.submit(work)
    has_begun.wait()
    return 143

cli.run = run
__main__.main()
"""


@pytest.mark.processes
def test_a_command_that_gives_up_work_in_native_code_ends_with_its_own_status() -> None:
    """The interpreter's end would abort the process, from inside torch."""
    ended = subprocess.run([sys.executable, "-c", GIVEN_UP], cwd=HOME, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (143, "")


LEFT_BEHIND = """
import atexit, sys, threading
from hogwild import __main__
from hogwild.cli import main as cli

class Object:
    def __del__(self):
        print("taken apart")

def run(argv):
    import torch
    sys.modules["kept"] = Object()
    atexit.register(print, "exit function")
    threading.Thread(target=lambda: print("thread")).start()
    return 75

cli.run = run
__main__.main()
"""


@pytest.mark.processes
def test_a_command_waits_for_threads_and_exit_functions_but_does_not_take_torch_apart() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_BEHIND], cwd=HOME, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (75, "thread\nexit function\n", "")


@pytest.mark.parametrize("how", ["closed", "forgotten", "closed at work", "never used"])
def test_nothing_of_it_is_left(how: str) -> None:
    threads, descriptors = threading.active_count(), host.descriptor_count()
    gate = threading.Event()
    made = Background("short")
    if how != "never used":
        made.submit(gate.wait)
    if how != "closed at work":
        gate.set()
        made.wait()
    if how != "forgotten":
        made.close()
    del made
    gate.set()
    wait_for("its end", lambda: (threading.active_count(), host.descriptor_count()) == (threads, descriptors))


def _are_still_frozen(count: int) -> bool:
    """Of `count` frozen objects some may have died meanwhile by their reference count; none was added or set free."""
    return count / 2 < gc.get_freeze_count() <= count


def test_the_loops_settings_are_as_before_afterwards() -> None:
    before = sys.getswitchinterval(), gc.get_freeze_count()
    with responsive():
        assert sys.getswitchinterval() <= HANDOVER_S and gc.get_freeze_count() > 0
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == before


def test_what_a_command_has_frozen_stays_so_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting walks over all frozen objects, 25 ms with torch."""
    monkeypatch.setattr(background_thread._Collector, "is_frozen", False)
    freeze()
    frozen = gc.get_freeze_count()
    try:
        with monkeypatch.context() as counting:
            counting.setattr(gc, "get_freeze_count", lambda: pytest.fail("counted"))
            with responsive():
                pass
        assert _are_still_frozen(frozen)
    finally:
        gc.unfreeze()


def test_what_a_caller_has_frozen_himself_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with responsive():
            assert _are_still_frozen(frozen)
        assert _are_still_frozen(frozen)
    finally:
        gc.unfreeze()
