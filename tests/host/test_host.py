"""The operating system, for real where it matters: processes, signals, limits. Control groups are laid out in
a folder."""

import contextlib
import fcntl
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import pytest

from hogwild import host
from hogwild.errors import UsageError
from hogwild.host import limits, signals, topology
from tests.helpers.processes import PATIENCE_S, wait_for

DEADLINE_S = PATIENCE_S


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@contextlib.contextmanager
def python(code: str, **extra: object) -> Iterator[subprocess.Popen[str]]:
    """A child running `code`; ended at the end, whatever it does."""
    with subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **extra
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# --- one process, seen from another


@pytest.mark.processes
def test_a_pidfd_is_readable_once_the_process_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    pidfd = host.pidfd_open(sleeper.pid)
    assert select.select([pidfd], [], [], 0)[0] == []
    assert host.kill_by_pidfd(pidfd)
    assert select.select([pidfd], [], [], DEADLINE_S)[0] == [pidfd]
    assert sleeper.wait(DEADLINE_S) == -signal.SIGKILL
    os.close(pidfd)


@pytest.mark.processes
def test_the_time_without_a_core_is_counted_for_the_thread_that_waits_for_it() -> None:
    code = """if True:
        import os, signal, time
        from hogwild import host
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        began_s, waited_s, used_s = time.monotonic(), host.core_wait_s(), time.thread_time()
        other = os.fork()
        signal.alarm(60)
        while other == 0 or host.core_wait_s() - waited_s < 0.05:
            pass
        waited_s, used_s = host.core_wait_s() - waited_s, time.thread_time() - used_s
        os.kill(other, signal.SIGKILL)
        assert waited_s + used_s <= time.monotonic() - began_s + 0.01, (waited_s, used_s)
        print("waited")
    """
    with python(code) as process:
        assert process.communicate(timeout=DEADLINE_S)[0] == "waited\n"


@pytest.mark.processes
def test_a_late_kill_hits_nobody(sleeper: subprocess.Popen[bytes]) -> None:
    pidfd = host.pidfd_open(sleeper.pid)
    host.kill_by_pidfd(pidfd, signal.SIGTERM)
    sleeper.wait(DEADLINE_S)
    assert host.kill_by_pidfd(pidfd) is False
    os.close(pidfd)
    with pytest.raises(ProcessLookupError):
        host.pidfd_open(sleeper.pid)


@pytest.mark.processes
def test_the_state_letter_follows_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    wait_for("sleeping", lambda: host.process_status(sleeper.pid) == "sleeping")
    sleeper.send_signal(signal.SIGSTOP)
    wait_for("stopped", lambda: host.process_status(sleeper.pid) == "stopped")
    sleeper.kill()
    wait_for("dead, not reaped", lambda: host.process_status(sleeper.pid) == "zombie")
    sleeper.wait()
    assert host.process_status(sleeper.pid) is None
    assert host.pss_bytes(sleeper.pid) == 0


@pytest.mark.processes
def test_a_name_with_brackets_and_blanks_does_not_confuse_the_state(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([str(program), "600"]) as process:
        try:
            wait_for("sleeping", lambda: host.process_status(process.pid) == "sleeping")
            assert process.pid in host.children(os.getpid())
        finally:
            process.kill()


@pytest.mark.processes
def test_children_are_those_of_one_process_only(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in host.children(os.getpid())
    assert host.children(sleeper.pid) == []


@pytest.mark.processes
def test_pss_grows_with_what_a_process_touches() -> None:
    code = (
        "import sys; print(1, flush=True); sys.stdin.readline(); "
        "touched = b'x' * (64 << 20); print(2, flush=True); sys.stdin.readline()"
    )
    with python(code) as process:
        assert process.stdout and process.stdin
        process.stdout.readline()
        before = host.pss_bytes(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert host.pss_bytes(process.pid) - before >= 60 << 20


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-9, "killed by SIGKILL (perhaps out of memory)"),
        (-11, "killed by SIGSEGV (a crash in native code)"),
        (-15, "killed by SIGTERM"),
        (-63, "killed by signal 63"),
    ],
)
def test_an_exit_is_described_by_name(returncode: int, words: str) -> None:
    assert host.describe_exit(returncode) == words


def test_elsewhere_one_sentence_says_so() -> None:
    host.require_linux()
    with pytest.raises(UsageError, match=r"Linux only.*this is darwin"):
        host.require_linux("darwin")


# --- this process


@pytest.mark.processes
def test_a_child_dies_with_its_parent() -> None:
    child = (
        "import os, sys; from hogwild import host; host.die_with_parent(int(sys.argv[1])); "
        "print(os.getpid(), flush=True); sys.stdin.readline()"
    )
    parent = (
        "import os, subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())]); sys.stdin.readline()"
    )
    with python(parent) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        assert host.process_status(pid) is not None
        process.kill()
        process.wait(DEADLINE_S)
        wait_for("the grandchild is dead", lambda: host.process_status(pid) in (None, "zombie"))


@pytest.mark.processes
def test_a_child_whose_parent_is_gone_already_does_not_go_on() -> None:
    with python("from hogwild import host; host.die_with_parent(1 << 30); print('went on')") as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (1, "")


@pytest.mark.processes
def test_core_dumps_are_off_and_the_oom_score_is_raised() -> None:
    code = (
        "import resource; from hogwild import host; host.no_core_dumps(); host.raise_oom_score(); "
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0], open('/proc/self/oom_score_adj').read())"
    )
    before = int(Path("/proc/self/oom_score_adj").read_text())
    with python(code) as process:
        limit, score = process.communicate(timeout=DEADLINE_S)[0].split()
    assert int(limit) <= 1
    assert int(score) == min(before + 300, 1000)


@pytest.mark.processes
def test_a_process_computes_longer_at_a_time_at_the_same_priority_and_so_do_its_threads() -> None:
    code = (
        "import ctypes, os, platform, struct, threading\n"
        "from hogwild import host; from hogwild.host import processes as p\n"
        "def found():\n"
        "    got = ctypes.create_string_buffer(struct.calcsize(p.SCHED_ATTR))\n"
        "    ctypes.CDLL(None).syscall(p.SCHED_CALLS[platform.machine()][0], 0, got, len(got), 0)\n"
        "    print(*(struct.unpack(p.SCHED_ATTR, got.raw)[k] for k in (1, 3, 5)))\n"
        "os.nice(3); found(); host.compute_longer_at_a_time(50_000_000); found()\n"
        "thread = threading.Thread(target=found); thread.start(); thread.join()"
    )
    with python(code) as process:
        before, after, of_thread = process.communicate(timeout=DEADLINE_S)[0].splitlines()
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    expected = "0 3 50000000" if release >= (6, 12) else before
    assert before.startswith("0 3 ") and (after, of_thread) == (expected, expected)


def test_descriptors_are_counted() -> None:
    before = host.descriptor_count()
    pipe = os.pipe()
    assert host.descriptor_count() == before + 2
    for descriptor in pipe:
        os.close(descriptor)
    assert host.open_file_limit() > before


def test_affinity_is_set_and_read() -> None:
    whole = host.affinity()
    try:
        host.set_affinity({min(whole)})
        assert host.affinity() == {min(whole)}
        assert host.usable_cores().affinity == 1
    finally:
        host.set_affinity(whole)


@pytest.mark.processes
def test_a_lock_is_exclusive_and_freed_by_a_sigkill(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from hogwild import host; "
        f"host.lock_file(Path({str(file)!r})); print(1, flush=True); sys.stdin.readline()"
    )
    with python(code) as process:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(BlockingIOError):
            host.lock_file(file)
        process.kill()
        process.wait(DEADLINE_S)
    os.close(host.lock_file(file))


def test_a_lock_is_never_one_on_a_file_that_its_last_holder_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flock = tmp_path / "lock", fcntl.flock

    def after_a_removal(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        file.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", after_a_removal)
    lock = host.lock_file(file)
    with pytest.raises(BlockingIOError):
        host.lock_file(file)
    os.close(lock)


# --- signals


def send_to_self(number: int) -> None:
    os.kill(os.getpid(), number)


def test_signals_are_noted_wake_a_poll_and_the_former_handlers_come_back() -> None:
    former = {number: signal.getsignal(number) for number in host.STOP_SIGNALS}
    with host.SignalWatch() as watch:
        assert select.select([watch], [], [], 0)[0] == []
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            send_to_self(number)
        assert select.select([watch], [], [], DEADLINE_S)[0] == [watch]
        watch.drain()
        assert select.select([watch], [], [], 0)[0] == []
        assert watch.received == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]  # HUP counts as TERM
        assert watch.received_at == sorted(watch.received_at)
    assert {number: signal.getsignal(number) for number in host.STOP_SIGNALS} == former


def test_a_thousand_signals_do_not_stop_the_watch_from_waking() -> None:
    with host.SignalWatch() as watch:
        for _ in range(1000):
            send_to_self(signal.SIGTERM)
        assert select.select([watch], [], [], DEADLINE_S)[0] == [watch]
        watch.drain()
        assert 1 < len(watch.received) <= 1000  # the kernel merges equal signals that are pending together
        send_to_self(signal.SIGINT)  # the pipe, full or not, still wakes
        assert select.select([watch], [], [], DEADLINE_S)[0] == [watch]
        assert watch.received[-1] == signal.SIGINT


def test_a_terminal_that_hangs_up_twice_gives_one_order() -> None:
    with host.SignalWatch() as watch:
        send_to_self(signal.SIGHUP)
        send_to_self(signal.SIGHUP)
        assert watch.received == [signal.SIGTERM]


@pytest.mark.parametrize("number", host.NOTICES)
def test_a_schedulers_notice_and_its_time_limit_are_one_order(number: int) -> None:
    with host.SignalWatch() as watch:
        send_to_self(number)
        send_to_self(number)  # srun and the batch script may both pass it on
        assert watch.received == [number]
        for orders in ([signal.SIGTERM], [signal.SIGTERM] * 2):
            send_to_self(signal.SIGTERM)
            assert watch.received == orders
    with host.SignalWatch() as watch:
        send_to_self(number)
        send_to_self(signal.SIGINT)  # a person's
        assert watch.received == [number, signal.SIGINT]


def test_a_notice_that_the_calling_program_handles_is_its_own() -> None:
    noted: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, frame: noted.append(number))
    try:
        with host.raising_on_signals() as stops:
            send_to_self(signal.SIGUSR1)
            stops.hand_over()
            with host.SignalWatch(before=stops) as watch:
                send_to_self(signal.SIGUSR1)
                send_to_self(signal.SIGUSR2)
                assert noted == [signal.SIGUSR1] * 2 and watch.received == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_nohup_is_respected() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with host.SignalWatch() as watch:
            send_to_self(signal.SIGHUP)
            send_to_self(signal.SIGTERM)
            assert watch.received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_signal_between_the_hand_over_and_the_watch_is_the_first_of_the_watch() -> None:
    with host.raising_on_signals() as stops:
        stops.hand_over()
        send_to_self(signal.SIGINT)
        with host.SignalWatch(before=stops) as watch:
            assert watch.received == [signal.SIGINT]
            send_to_self(signal.SIGTERM)
            assert watch.received == [signal.SIGINT, signal.SIGTERM]


def swallow_a_signal(number: int, then: Callable[[signals.StopSignals], None]) -> None:
    """As user code with a bare `except:` may."""
    with host.raising_on_signals() as stops:
        with contextlib.suppress(host.Interrupted):
            send_to_self(number)
        then(stops)


def fail(stops: signals.StopSignals) -> None:
    raise AttributeError("module 'numpy' has no attribute 'matrix'")


def test_a_signal_before_the_hand_over_is_raised_by_it_however_it_was_swallowed() -> None:
    with pytest.raises(host.Interrupted) as caught:
        swallow_a_signal(signal.SIGTERM, signals.StopSignals.hand_over)
    assert caught.value.number == signal.SIGTERM


def test_an_error_after_a_swallowed_signal_is_its_consequence() -> None:
    with pytest.raises(host.Interrupted) as caught:
        swallow_a_signal(signal.SIGINT, fail)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    with pytest.raises(AttributeError, match="matrix"), host.raising_on_signals():
        raise AttributeError("matrix")


def test_a_signal_after_the_watch_is_for_the_caller_whose_handlers_come_back() -> None:
    caught: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    own = signal.getsignal(signal.SIGTERM)
    try:
        with host.raising_on_signals() as stops:
            stops.hand_over()
            with host.SignalWatch(before=stops):
                pass
            send_to_self(signal.SIGTERM)
            assert caught == []
        assert caught == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == own
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_watch_outside_the_main_thread_is_refused() -> None:
    errors: list[str] = []

    def enter() -> None:
        try:
            with host.SignalWatch():
                errors.append("entered")
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert len(errors) == 1 and "main thread" in errors[0]


WORKER = """
import os, sys, time
from hogwild import host
stacks = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
asked = []
print("started", flush=True)
sys.stdin.readline()
host.worker_signals(lambda: asked.append(1), stacks)
print("ready", flush=True)
def the_loop():
    while not asked:
        time.sleep(0.002)
the_loop()
print("left", flush=True)
"""


@pytest.mark.processes
def test_a_worker_starts_deaf_then_ignores_ctrl_c_writes_its_stack_and_leaves_on_sigterm(
    tmp_path: Path,
) -> None:
    stacks = tmp_path / "stacks"
    arguments = [sys.executable, "-c", WORKER, str(stacks)]
    with host.blocked_signals():
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdin and process.stdout
            pidfd = host.pidfd_open(process.pid)
            assert process.stdout.readline() == "started\n"
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                host.kill_by_pidfd(pidfd, number)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            # asked again until it answers from its loop: it may still be on its way there
            wait_for("its stack is written", lambda: host.request_stack(pidfd) and "the_loop" in stacks.read_text())
            host.kill_by_pidfd(pidfd, signal.SIGTERM)
            assert process.stdout.readline() == "left\n"
            assert process.wait(DEADLINE_S) == 0
            os.close(pidfd)
        finally:
            process.kill()


# --- the resource tracker


@pytest.mark.processes
@pytest.mark.parametrize("crime", [None, signal.SIGSTOP, signal.SIGKILL])
def test_the_resource_tracker_is_reaped_whatever_state_it_is_in(crime: signal.Signals | None) -> None:
    host.stop_resource_tracker(DEADLINE_S)
    descriptors = host.descriptor_count()
    resource_tracker.ensure_running()
    pid = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    if crime is not None:
        os.kill(pid, crime)
        wait_for("the crime is done", lambda: host.process_status(pid) in ("stopped", "zombie"))
    assert host.stop_resource_tracker(DEADLINE_S)
    assert host.process_status(pid) is None
    assert host.descriptor_count() == descriptors


@pytest.mark.processes
@pytest.mark.parametrize("crime", [signal.SIGSTOP, signal.SIGKILL])
def test_a_resource_tracker_that_is_killed_or_stopped_is_replaced_without_a_warning(crime: signal.Signals) -> None:
    resource_tracker.ensure_running()
    pid = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    os.kill(pid, crime)
    wait_for("the crime is done", lambda: host.process_status(pid) in ("stopped", "zombie"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        host.ensure_resource_tracker()
    assert resource_tracker._resource_tracker._pid != pid  # type: ignore[attr-defined]
    assert host.stop_resource_tracker(DEADLINE_S)


# --- what the machine allows


class Machine:
    """A folder that looks like / of a machine, as far as limits go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounts: list[str] = []
        self.groups: list[str] = []

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mount(self, kind: str, inside: str, point: str, options: str) -> None:
        self.mounts.append(f"31 23 0:28 {inside} {point} rw,relatime shared:9 - {kind} {kind} rw,{options}\n")
        self.write("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n" + "".join(self.mounts))

    def join(self, line: str) -> None:
        self.groups.append(line + "\n")
        self.write("proc/self/cgroup", "".join(self.groups))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    memory = SimpleNamespace(total=16_384_000_000, available=8_192_000_000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    return Machine(tmp_path)


def version_2(machine: Machine, levels: dict[str, str], file: str) -> None:
    machine.mount("cgroup2", "/", "/sys/fs/cgroup", "nsdelegate")
    machine.join("0::/slice/job/inner")
    for level in ("", "slice", "slice/job", "slice/job/inner"):
        machine.write(f"sys/fs/cgroup/{level}/cgroup.procs", "")
    for level, text in levels.items():
        machine.write(f"sys/fs/cgroup/{level}/{file}", text)


AFFINITY = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("levels", "quota"),
    [
        ({}, None),
        ({"slice/job/inner": "max 100000\n"}, None),
        ({"slice/job/inner": "50000 100000\n"}, 0.5),
        ({"slice": "150000 100000\n", "slice/job/inner": "max 100000\n"}, 1.5),
        ({"slice": "20000 10000\n", "slice/job": "400000 100000\n"}, 2.0),
        ({"slice/job": "6400000 100000\n"}, 64.0),
        ({"": "25000 100000\n"}, 0.25),
        ({"slice": "garbage\n"}, None),
    ],
)
def test_the_smallest_quota_of_any_level_counts(machine: Machine, levels: dict[str, str], quota: float | None) -> None:
    version_2(machine, levels, "cpu.max")
    cores = host.usable_cores(machine.root)
    assert cores.quota == quota
    assert cores.usable == (AFFINITY if quota is None else min(quota, AFFINITY))
    assert ("quota of" in cores.reason) == (quota is not None and quota < AFFINITY)


@pytest.mark.parametrize(
    ("inside", "path"), [("/", "/docker/abc"), ("/docker/abc", "/docker/abc"), ("/docker", "/docker/abc")]
)
def test_version_1_quotas_are_found_in_and_outside_of_a_container(machine: Machine, inside: str, path: str) -> None:
    machine.mount("cgroup", "/", "/sys/fs/cgroup/memory", "memory")
    machine.mount("cgroup", inside, "/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct")
    machine.join("9:memory:/elsewhere")
    machine.join(f"4:cpu,cpuacct:{path}")
    folder = "sys/fs/cgroup/cpu,cpuacct" + path.removeprefix(inside if inside != "/" else "")
    folder = folder.rstrip("/")
    machine.write(f"{folder}/cpu.cfs_quota_us", "75000\n")
    machine.write(f"{folder}/cpu.cfs_period_us", "100000\n")
    assert host.usable_cores(machine.root).usable == 0.75


def lay_out_cores(machine: Machine, siblings: dict[int, str], nodes: dict[int, str], name: str) -> None:
    for cpu, together in siblings.items():
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/topology/{name}", f"{together}\n")
    for node, cpus in nodes.items():
        machine.write(f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")


EIGHT = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}  # 4 cores of two threads each
PAIRS = {cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(4)}


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize(
    ("cpus", "siblings", "nodes", "expected"),
    [
        pytest.param(range(4), EIGHT, {}, [((0,), 0), ((1,), 0), ((2,), 0), ((3,), 0)], id="siblings not in the mask"),
        pytest.param(
            range(8), EIGHT, {}, [((0, 4), 0), ((1, 5), 0), ((2, 6), 0), ((3, 7), 0)], id="two threads on each core"
        ),
        pytest.param([4, 5, 1], EIGHT, {}, [((1, 5), 0), ((4,), 0)], id="a part of the machine"),
        pytest.param(range(4), PAIRS, {0: "0-1", 1: "2-3"}, [((0, 1), 0), ((2, 3), 1)], id="neighbours are siblings"),
        pytest.param(range(4), {}, {1: "0,2", 0: "1,3"}, [((1,), 0), ((3,), 0), ((0,), 1), ((2,), 1)], id="two nodes"),
        pytest.param([0, 1], {}, {}, [((0,), 0), ((1,), 0)], id="nothing is known"),
        pytest.param([0, 1], {0: "garbage", 1: ""}, {0: "0-x"}, [((0,), 0), ((1,), 0)], id="nothing can be read"),
    ],
)
def test_physical_cores_are_told_from_smt_siblings_node_by_node(  # type: ignore[no-untyped-def]
    machine: Machine, name: str, cpus, siblings, nodes, expected
) -> None:
    lay_out_cores(machine, siblings, nodes, name)
    cores = topology.physical_cores(set(cpus), machine.root)
    assert [(core.cpus, core.node) for core in cores] == expected


def test_siblings_count_once_among_the_usable_cores(machine: Machine) -> None:
    mask = sorted(host.affinity())
    lay_out_cores(machine, dict.fromkeys(mask, ",".join(map(str, mask))), {}, "core_cpus_list")  # all on one core
    cores = host.usable_cores(machine.root)
    assert (cores.affinity, cores.usable, len(cores.physical)) == (len(mask), 1.0, 1)
    assert cores.reason.startswith("1 in the affinity mask") and ("with SMT" in cores.reason) == (len(mask) > 1)


def test_without_a_binding_variable_no_affinity_is_touched() -> None:
    before = host.affinity()
    try:
        host.set_affinity({min(before)})
        assert host.restore_affinity({"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}) == ""
        assert host.affinity() == {min(before)}
    finally:
        host.set_affinity(before)


def test_a_quota_of_minus_one_is_none(machine: Machine) -> None:
    machine.mount("cgroup", "/", "/sys/fs/cgroup/cpu", "cpu")
    machine.join("4:cpu:/")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert host.usable_cores(machine.root).quota is None


@pytest.mark.parametrize("path", ["/../../outside", "/not/under/the/mount"])
def test_a_group_outside_of_what_is_mounted_leaves_the_mount_point(machine: Machine, path: str) -> None:
    machine.mount("cgroup2", "/ours", "/sys/fs/my\\040groups", "rw")
    machine.join(f"0::{path}")
    machine.write("sys/fs/my groups/cpu.max", "50000 100000\n")
    assert host.usable_cores(machine.root).usable == 0.5


def test_no_control_groups_at_all_is_no_error(machine: Machine) -> None:
    assert host.usable_cores(machine.root).usable == AFFINITY
    assert host.available_memory(machine.root) == host.Memory(8_000_000 * 1024, "the memory of the machine")
    assert host.oom_kills(machine.root) is None
    assert limits.control_groups("cpu", machine.root) == []


GB = 1 << 30


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({}, 8_000_000 * 1024),
        ({"slice/job/inner": (4 * GB, 1 * GB, 0)}, 3 * GB),
        ({"slice/job/inner": (4 * GB, 3 * GB, 2 * GB)}, 3 * GB),
        ({"slice/job/inner": (4 * GB, 1 * GB, 0), "slice": (5 * GB, 4 * GB, 0)}, 1 * GB),
        ({"slice/job": (1 * GB, 2 * GB, 0)}, 0),
        ({"slice/job": (500 * GB, 2 * GB, 0)}, 8_000_000 * 1024),
    ],
)
def test_available_memory_is_the_least_of_machine_and_levels(
    machine: Machine, limits: dict[str, tuple[int, int, int]], left: int
) -> None:
    version_2(machine, {}, "memory.max")
    for level, (limit, usage, inactive) in limits.items():
        machine.write(f"sys/fs/cgroup/{level}/memory.max", f"{limit}\n")
        machine.write(f"sys/fs/cgroup/{level}/memory.current", f"{usage}\n")
        machine.write(f"sys/fs/cgroup/{level}/memory.stat", f"anon 5\ninactive_file {inactive}\n")
    assert host.available_memory(machine.root).bytes == left


def test_memory_limits_of_version_1_count_too(machine: Machine) -> None:
    machine.mount("cgroup", "/", "/sys/fs/cgroup/memory", "memory")
    machine.join("4:memory:/job")
    for level, limit in (("", 0x7FFFFFFFFFFFF000), ("job", 3 * GB)):
        machine.write(f"sys/fs/cgroup/memory/{level}/memory.limit_in_bytes", f"{limit}\n")
        machine.write(f"sys/fs/cgroup/memory/{level}/memory.usage_in_bytes", f"{2 * GB}\n")
        machine.write(f"sys/fs/cgroup/memory/{level}/memory.stat", f"total_inactive_file {GB // 2}\n")
    machine.write("sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill 4\n")
    memory = host.available_memory(machine.root)
    assert memory.bytes == 3 * GB - 2 * GB + GB // 2
    assert memory.limited_by.endswith("memory/job")
    assert host.oom_kills(machine.root) == 4


def test_oom_kills_of_version_2_are_those_of_our_own_group(machine: Machine) -> None:
    counts = {"slice": "oom 9\noom_kill 9\n", "slice/job/inner": "oom 1\noom_kill 2\n"}
    version_2(machine, counts, "memory.events")
    assert host.oom_kills(machine.root) == 2


def test_the_real_machine_is_described_in_json() -> None:
    described = json.loads(json.dumps(host.describe_host()))
    assert described["usable_cores"] > 0
    assert 0 < described["available_memory_bytes"] < described["memory_bytes"]
    assert described["cpu"] and described["python"].startswith("3.")


WRITES_STACKS = """
import faulthandler, os, signal, sys
reading, writing = map(int, sys.argv[1:])
faulthandler.register(signal.SIGUSR1, file=writing)
os.set_blocking(writing, False)
try:
    while True:
        os.write(writing, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writing, True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_process_is_seen_to_write_its_stacks_until_the_last_byte() -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", WRITES_STACKS, str(reading), str(writing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(reading, writing),
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        os.close(writing)
        assert not host.is_writing_stack(child.pid)
        child.send_signal(signal.SIGUSR1)
        assert host.is_writing_stack(child.pid)  # its pipe is full: it cannot be done
        os.set_blocking(reading, False)

        def is_done() -> bool:
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 1 << 20)
            return not host.is_writing_stack(child.pid)

        wait_for("the end of the dump", is_done)
        child.kill()
    os.close(reading)
    assert not host.is_writing_stack(child.pid)
