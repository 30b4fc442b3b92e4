"""Limits on processes, threads and address space: they are counted as the kernel counts, and named where it refuses."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hogwild import host
from hogwild.errors import MemoryShortError, RunError
from hogwild.host import limits
from hogwild.host.limits import Limit


@pytest.fixture
def a_limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    monkeypatch.setattr(limits, "task_limits", lambda: [limit])
    monkeypatch.setattr(limits, "address_limit", lambda: None)
    return (limit := Limit(40, 35, "pids.max in /a/group"))


def test_what_does_not_fit_is_refused_with_the_limit_and_what_is_in_use(a_limit: Limit) -> None:
    host.require_tasks(5)
    with pytest.raises(
        RunError, match=r"6 more .*: 40 processes and threads \(pids\.max in /a/group\), 35 in use; raise"
    ):
        host.require_tasks(6)


def test_the_users_own_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "task_limits", lambda: [Limit(40, 35, "ulimit -u")])
    found = [(40, 45)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    host.require_tasks(10)
    assert found[-1] == (45, 45)
    with pytest.raises(RunError, match="ulimit -u"):
        host.require_tasks(11)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        MemoryError(),
        ImportError("many words\nlibx.so: failed to map segment from shared object"),
    ],
)
def test_a_refusal_of_the_machine_names_the_limit_and_any_other_error_stays(error: Exception, a_limit: Limit) -> None:
    with pytest.raises(RunError, match=r"\(pids\.max in /a/group\), 35 in use") as found, host.naming_limits():
        raise error
    assert (found.value.code, found.value.__cause__) == ("run/process-limit", error)
    for other in (RuntimeError("of a user"), OSError(errno.EAGAIN, "of a file", "name"), ImportError("no module x")):
        with pytest.raises(type(other), match=str(other).split()[-1]), host.naming_limits():
            raise other


def test_a_limit_that_is_far_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "task_limits", lambda: [Limit(4000, 35, "ulimit -u")])
    monkeypatch.setattr(limits, "address_limit", lambda: None)
    error = BlockingIOError(errno.EAGAIN, "refused")
    with pytest.raises(BlockingIOError), host.naming_limits():
        raise error
    assert host.refusal_in_words(error) == str(error)


def test_too_little_address_space_is_refused_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "address_limit", lambda: Limit(500 << 20, 30 << 20, "ulimit -v", is_memory=True))
    words = r"640 MiB of address space, the limit is 500 MiB \(ulimit -v\)"
    with pytest.raises(MemoryShortError, match=words), host.naming_limits():
        raise AssertionError("it went on")


COUNTING = """
import json, os, sys, threading
from hogwild.host.limits import task_limits
threads = [threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(3)]
for one in threads: one.start()
pid = os.fork()
if pid == 0: threading.Event().wait()
(found,) = [one for one in task_limits() if one.name == "ulimit -u"]
os.kill(pid, 9)
print(found.most, found.used, flush=True)
os._exit(0)
"""


@pytest.mark.processes
def test_threads_and_processes_of_a_user_are_counted_as_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    limited = [sys.executable, "-m", "tests.helpers.limited", '{"tasks": 5}', str(tmp_path / "counting.py")]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "."})
    if os.getuid() == 0:  # a user of its own: nobody else's processes count
        assert done.stdout.split() == ["5", "5"], done.stderr
    else:
        assert done.stdout.split()[0] == "5" or "refused" in done.stderr.lower() or "Resource" in done.stderr
