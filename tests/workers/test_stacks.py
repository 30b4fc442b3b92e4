"""A worker that does not move is named with the call it is blocked in, its stacks and everybody's are kept, and the
supervisor does not wait for them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hogwild import host
from hogwild.storage.run_directory import RunDir
from hogwild.workers.processes import stacks
from hogwild.workers.processes.roster import Role
from hogwild.workers.processes.stacks import blocked_in, training_thread
from tests.helpers.jobs import JOBS, Ended, InTurn, begin_in_turn
from tests.helpers.processes import state_of, wait_for

pytestmark = pytest.mark.processes

SLEEP = r"in the kernel's \w*nanosleep\w*"  # kernels name their functions in several ways
FUTEX = r"in the kernel's \w*futex\w*"
COUNTING = str(JOBS / "counting.yaml")
# As in test_supervision.py: no machine leaves a healthy worker silent for so long.
SILENCE_S = 8


# ---- what faulthandler wrote, in words -------------------------------------------------------------------------------

HERE = Path(__file__)
LIBRARY = threading.__file__
DUMP = f"""Thread 0x00007f0000000640 (most recent call first):
  File "{LIBRARY}", line 324 in wait
  File "{LIBRARY}", line 1002 in _bootstrap

Current thread 0x00007f0000000740 (most recent call first):
  File "{LIBRARY}", line 1 in wait
  File "/nowhere/mymodel.py", line 31 in forward
  File "{HERE.parents[1]}/workers/child/trainer.py", line 5 in train
  File "<string>", line 1 in <module>
"""


def test_the_training_thread_is_the_one_that_began_at_a_module_or_else_took_the_signal() -> None:
    assert [frame.function for frame in training_thread(DUMP)] == ["wait", "forward", "train", "<module>"]
    assert [frame.function for frame in training_thread(DUMP.replace("Current thread", "Thread"))][-1] == "<module>"
    cut = DUMP.replace('  File "<string>", line 1 in <module>\n', "  ...\n")
    assert [frame.function for frame in training_thread(cut)] == ["wait", "forward", "train"]


def test_the_innermost_call_is_quoted_and_the_users_line_that_led_there_named() -> None:
    first_line = Path(LIBRARY).read_text().splitlines()[0]
    assert blocked_in(DUMP) == f"in `{first_line}` at threading.py:1 (wait), called at mymodel.py:31 (forward)"


def test_a_line_without_source_is_named_by_its_place() -> None:
    dump = DUMP.replace(f'  File "{LIBRARY}", line 1 in wait\n', "")
    assert blocked_in(dump) == "in mymodel.py:31 (forward)"


@pytest.mark.parametrize("dump", ["", "Fatal Python error: Segmentation fault\n", "Thread 0x00007f (most recent"])
def test_of_a_dump_without_frames_nothing_is_said(dump: str) -> None:
    assert blocked_in(dump) == ""


def test_a_long_line_of_source_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text("x = " + "1 + " * 100 + "1\n")
    quoted = blocked_in(f'Thread 0x01 (most recent call first):\n  File "{file}", line 1 in <module>\n')
    assert len(quoted) < stacks.LONGEST_LINE + 60


# ---- what the kernel says --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that has said that it is about to do what it is there for."""
    arguments = [sys.executable, "-c", f"import os, signal, sys, time\nos.write(1, b'.')\n{code}"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.read(1) == b"."
            yield process
        finally:
            process.kill()


def words_of(pid: int) -> str:
    threads = host.kernel_threads(pid)
    return str(threads[0]) if threads else ""


def test_the_kernel_names_what_a_process_waits_for() -> None:
    with a_process("sys.stdin.buffer.read()") as process:
        wait_for("its read", lambda: re.fullmatch(r"in the kernel's \w*pipe_read", words_of(process.pid)))
        (details,) = [thread.details for thread in host.kernel_threads(process.pid)]
        assert details[0].startswith("  syscall 0 0x0 " if os.uname().machine == "x86_64" else "  syscall ")


def test_the_kernel_tells_a_stopped_process_from_one_that_works_and_one_that_is_gone() -> None:
    with a_process("while True: pass") as process:
        wait_for("its work", lambda: words_of(process.pid) == "running")
        process.send_signal(signal.SIGSTOP)
        wait_for("its stop", lambda: words_of(process.pid) == "stopped (SIGSTOP)")
        process.kill()
        wait_for("its end", lambda: state_of(process.pid) in (None, "Z"))
        assert words_of(process.pid) in ("", "dead, not reaped yet")
        process.wait()
        assert host.kernel_threads(process.pid) == []
        assert not host.is_writing_stack(process.pid)


def test_whoever_would_die_of_the_question_or_not_hear_it_is_not_asked() -> None:
    handler, mask = "signal.signal(signal.SIGUSR1, print)", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])"

    def can(process: subprocess.Popen[bytes]) -> bool:
        return host.can_write_stacks(host.kernel_threads(process.pid))

    for prepared, is_able in (("pass", False), (handler, True), (f"{handler}; {mask}", False)):
        with a_process(f"{prepared}; os.write(1, b'.'); time.sleep(3600)") as process:
            assert process.stdout is not None and process.stdout.read(1) == b"."
            assert can(process) == is_able, "without a handler the signal would end it"
            process.send_signal(signal.SIGSTOP)
            wait_for("its stop", lambda process=process: not can(process))  # type: ignore[misc]


def test_children_of_children_are_found() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '3600']).wait()"
    with a_process(code) as process:
        grandchild = wait_for("its child", lambda: host.children(process.pid, recursive=True))[0]
        assert grandchild in host.children(os.getpid(), recursive=True)
        wait_for("its name", lambda: host.command_line(grandchild) == "sleep 3600")
        os.kill(grandchild, signal.SIGKILL)


# ---- taken beside the loop -------------------------------------------------------------------------------------------


@dataclass
class Suspect:
    """The part of a `Handle` that `Stacks` needs, around a process of this test."""

    number: int
    process: subprocess.Popen[bytes]
    role: Role = Role.WORKER
    incarnation: int = 1
    words: int = field(default_factory=lambda: os.memfd_create("words"))

    def __post_init__(self) -> None:
        self.pid = self.process.pid
        self.pidfd = host.pidfd_open(self.pid)

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.words)


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.create(tmp_path / "run", "job") as run:
        run.make_folders()
        yield run


@pytest.fixture
def suspect() -> Iterator[Suspect]:
    with a_process("time.sleep(3600)") as process:
        made = Suspect(0, process)
        wait_for("its sleep", lambda: re.fullmatch(SLEEP, words_of(process.pid)))
        yield made
        made.close()


def let_go(rundir: RunDir, taken: stacks.Stacks) -> None:
    """Reads the pipe that a thread hangs in; what it opens next is an ordinary file."""
    reading = os.open((rundir.stacks / "worker-0.txt"), os.O_RDONLY | os.O_NONBLOCK)
    (rundir.stacks / "worker-0.txt").unlink()
    taken.close()
    os.close(reading)


def test_the_loop_goes_on_while_a_file_hangs(rundir: RunDir, suspect: Suspect) -> None:
    """A file system that does not answer: here a pipe that nobody reads."""
    os.mkfifo(rundir.stacks / "worker-0.txt")
    taken, heard = stacks.Stacks(rundir), []
    taken.collect([suspect], [], "stalled", 0.0, heard.append)
    taken.advance(0.0)  # no time is over yet: the thread hangs, this does not
    assert taken.is_waiting and heard == []
    taken.advance(float("inf"))
    assert not taken.is_waiting and len(heard) == 1
    let_go(rundir, taken)


def test_of_one_who_cannot_answer_there_is_the_kernels_part_and_nobody_waits(rundir: RunDir, suspect: Suspect) -> None:
    taken, heard = stacks.Stacks(rundir), []
    taken.collect([suspect], [suspect], "stalled", 0.0, heard.append)
    wait_for("the answer", lambda: taken.advance(0.0) or heard)
    (words,) = [answer[suspect.pid] for answer in heard]
    assert re.fullmatch(SLEEP, words)
    text = (rundir.stacks / "worker-0.txt").read_text()
    assert "stalled: worker 0, incarnation 1" in text and "it cannot write its Python stacks" in text
    assert 'test_stacks.py", line' in (rundir.stacks / "supervisor.txt").read_text()
    assert suspect.process.poll() is None  # it has no handler: the signal would have ended it
    taken.close()


def test_one_that_dies_meanwhile_is_not_waited_for(rundir: RunDir, suspect: Suspect) -> None:
    os.mkfifo(rundir.stacks / "worker-0.txt")
    taken, heard = stacks.Stacks(rundir), []
    taken.collect([suspect], [], "stalled", 0.0, heard.append)
    taken.leave_out(suspect)
    assert len(heard) == 1 and not taken.is_waiting
    let_go(rundir, taken)


def test_without_a_descriptor_left_nothing_is_known_and_the_job_goes_on(rundir: RunDir, suspect: Suspect) -> None:
    taken, heard = stacks.Stacks(rundir), []
    suspect.close()
    taken.collect([suspect], [], "stalled", 0.0, heard.append)
    taken.advance(0.0)
    assert heard == [{}]
    suspect.__post_init__()
    suspect.words = os.memfd_create("words")


# ---- whole jobs ------------------------------------------------------------------------------------------------------

DEADLOCK = {
    "sleeps": rf"in `time\.sleep\(LONG_S\)` at blocked\.py:\d+ \(sleeps\), {SLEEP}",
    "sleeps_in_native_code": r"in `ctypes\.PyDLL\(None\)\.sleep\(int\(LONG_S\)\)` at blocked\.py:\d+ "
    rf"\(sleeps_in_native_code\), {SLEEP}",
    "waits_for_a_lock": rf"in `lock\.acquire\(\)` at blocked\.py:\d+ \(waits_for_a_lock\), {FUTEX}",
    "reads_a_pipe": r"in `os\.read\(reading, 1\)` at blocked\.py:\d+ \(reads_a_pipe\), "
    r"in the kernel's \w*pipe_read",
    "stops": r"stopped \(SIGSTOP\)",
    "hears_nothing": SLEEP,
}
STALLS = {
    "works_on_beside": r"in `.*` at threading\.py:\d+ \(wait\), called at blocked\.py:\d+ \(works_on_beside\), "
    rf"{FUTEX}",
    "stops_in_its_beat": r"stopped \(SIGSTOP\)",
}


def hanging(diary: Path, hangs: list[str], *arguments: str) -> list[str]:
    diary.mkdir(parents=True)
    model = f"{{samples: 1600, diary: {diary}, hangs: [{', '.join(hangs)}], together: {len(hangs)}}}"
    # No checkpoint on the way: who hangs in a pause is judged by its silence, and the clock of deadlocks stands still.
    more = (f"train.procs={len(hangs)}", "checkpoint.every_s=null")
    return [COUNTING, "model.class_path=blocked.Hanging", f"model.init_args={model}", *more, *arguments]


@pytest.fixture(scope="module")
def begun(jobs_folder: Path) -> Iterator[dict[str, InTurn]]:
    """Beside each other: both are about waiting."""
    silence = ("supervise.grace_s=1", f"supervise.deadlock_timeout_s={SILENCE_S}")
    stall = (f"supervise.stall_timeout_s={SILENCE_S}", "model.init_args.waits=true")
    jobs = {
        "deadlock": hanging(jobs_folder / "diary-deadlock", list(DEADLOCK), "train.epochs=1000000", *silence),
        "stalls": hanging(jobs_folder / "diary-stalls", list(STALLS), *stall),
    }
    started = {name: begin_in_turn(jobs_folder / name, {name: job}) for name, job in jobs.items()}
    yield started
    for one in started.values():
        one.runner.destroy()


@pytest.fixture(scope="module")
def deadlock(begun: dict[str, InTurn]) -> Ended:
    return begun["deadlock"].wait()["deadlock"]


@pytest.fixture(scope="module")
def stalls(begun: dict[str, InTurn]) -> Ended:
    return begun["stalls"].wait()["stalls"]


def culprit(jobs_folder: Path, job: str, hang: str) -> int:
    return int((jobs_folder / f"diary-{job}" / f"claim-{hang}").read_text())


@pytest.mark.parametrize("hang", DEADLOCK)
def test_a_deadlock_names_the_call_that_each_worker_is_blocked_in(
    deadlock: Ended, jobs_folder: Path, hang: str
) -> None:
    pid = culprit(jobs_folder, "deadlock", hang)
    (line,) = [line for line in deadlock.summary["error"].splitlines() if f"(pid {pid})" in line]
    assert re.fullmatch(rf"  worker \d \(pid {pid}\): {DEADLOCK[hang]}", line)


def test_a_deadlock_ends_the_job_with_what_was_learnt(deadlock: Ended) -> None:
    assert (deadlock.status, deadlock.reason) == (1, ("failed", "train/deadlocked")), deadlock.stderr
    first = f"no worker committed a batch for {SILENCE_S} s (supervise.deadlock_timeout_s)"
    assert deadlock.summary["error"].startswith(first) and first in deadlock.stderr
    assert deadlock.ledger_adds_up()
    assert 0 < deadlock.summary["samples"] == int(deadlock.effects().sum())
    assert not deadlock.left_behind
    assert deadlock.process_leaks == {"descriptors": 0, "threads": 0}


def test_a_deadlock_leaves_the_stacks_of_every_process(deadlock: Ended) -> None:
    (event,) = deadlock.events("deadlock")
    folder = deadlock.run_dir / "stacks"
    assert len(event["blocked"]) == len(DEADLOCK)
    for worker in range(len(DEADLOCK)):
        text = (folder / f"worker-{worker}.txt").read_text()
        assert "nobody commits: worker" in text and re.search(r"^thread \d+ \S+: [A-Z], ", text, re.MULTILINE)
    answered = "".join(file.read_text() for file in folder.glob("worker-*.txt"))
    assert {hang for hang in DEADLOCK if f" in {hang}\n" in answered} == DEADLOCK.keys() - {"stops", "hears_nothing"}
    assert re.search(r'File ".*supervisor\.py", line \d+ in ', (folder / "supervisor.txt").read_text())
    assert re.search(r"process \d+, .*multiprocessing\.resource_tracker", (folder / "others.txt").read_text())


@pytest.mark.whole
@pytest.mark.parametrize("hang", STALLS)
def test_a_stalled_worker_is_named_with_its_call_and_replaced(stalls: Ended, jobs_folder: Path, hang: str) -> None:
    pid = culprit(jobs_folder, "stalls", hang)
    (stall,) = [event for event in stalls.events("stall") if event["pid"] == pid]
    (end,) = [event for event in stalls.events("exit") if event["pid"] == pid]
    assert re.fullmatch(rf"stalled: silent for .* s \(limit {SILENCE_S} s\)", stall["why"])
    assert re.fullmatch(STALLS[hang], stall["blocked"])
    assert end["how"].startswith(f"{stall['why']}, {stall['blocked']}")


@pytest.mark.whole
def test_only_those_that_hang_are_replaced_and_nothing_is_lost(stalls: Ended) -> None:
    assert (stalls.status, stalls.summary["restarts"]) == (0, len(STALLS)), stalls.stderr
    assert stalls.ledger_adds_up()
    assert not stalls.left_behind
    assert stalls.process_leaks == {"descriptors": 0, "threads": 0}


def test_a_thread_that_works_on_is_not_taken_for_the_training_one(stalls: Ended) -> None:
    """The dump names both; the stalled call is the training thread's."""
    text = "".join(file.read_text() for file in (stalls.run_dir / "stacks").glob("worker-*.txt"))
    assert " in _work\n" in text
    assert all("_work" not in event["blocked"] for event in stalls.events("stall"))
