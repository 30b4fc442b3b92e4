"""A worker that takes all memory: the kernel kills it, and nobody else, and its exit says so. In a control group of our
own, with a limit of its own; and what a limit on the address space does, which is an exception like others."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hogwild.formatting import size
from hogwild.host import limits
from hogwild.host.limits import OomKills, control_groups
from tests.helpers.jobs import HOME, JOBS, Ended, Job
from tests.helpers.processes import wait_for

COUNTING = str(JOBS / "counting.yaml")
LIMIT = 1 << 30  # bytes: three processes with torch need half of it
AT = 81  # the sample whose batch ends its worker

INSIDE = """
import os, sys
from pathlib import Path
Path(sys.argv.pop(1)).write_text(str(os.getpid()))
from hogwild.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Group:
    folder: Path
    limit: Path


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """A memory control group with a limit, directly under a mount point."""
    made = None
    for above in reversed(control_groups("memory")):  # of both versions: a machine may use either for memory
        if made := _made(above):
            break
    else:
        pytest.skip("no memory control group can be made here, or none with a limit")
    yield made
    wait_for("the last of its processes to be gone", lambda: not (made.folder / "cgroup.procs").read_text().strip())
    made.folder.rmdir()


def _made(above: limits.ControlGroup) -> Group | None:
    folder = above.folder / f"hogwild-test-{os.getpid()}"
    limit = folder / ("memory.max" if above.version == 2 else "memory.limit_in_bytes")
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        limit.write_text(str(LIMIT))
    except OSError:
        folder.rmdir()
        return None
    return Group(folder, limit)


@pytest.fixture(scope="module")
def short_of_memory(group: Group, jobs_folder: Path, start_shared_job: Callable[..., Job]) -> Ended:
    """One batch takes memory until its worker is killed, whoever tries."""
    diary = jobs_folder / "diary"
    diary.mkdir()
    arguments = [
        str(group.folder / "cgroup.procs"),
        "train",
        COUNTING,
        f"model.init_args.diary={diary}",
        f"model.init_args.crimes.always takes all memory={AT}",
        "data.shuffle=none",
        "train.procs=1",  # of two the kernel may choose the other, while the greedy one has only begun
        "--run-dir",
        str(jobs_folder / "job" / "run"),
    ]
    job = start_shared_job(jobs_folder / "job", *arguments, python=("-c", INSIDE), extra={"PYTHONPATH": str(HOME)})
    return job.wait()


@pytest.mark.processes
@pytest.mark.whole
def test_a_worker_that_takes_all_memory_is_named_and_the_supervisor_lives(group: Group, short_of_memory: Ended) -> None:
    exits = short_of_memory.events("exit")
    assert (short_of_memory.status, len(exits)) == (0, 3), short_of_memory.stderr
    expected = f"killed by the kernel: out of memory (limit {size(LIMIT)}, {group.limit})"
    assert [(event["kind"], event["how"]) for event in exits] == [("died", expected)] * 3
    assert expected in short_of_memory.stderr


@pytest.mark.processes
@pytest.mark.whole
def test_the_batch_that_takes_all_memory_is_put_aside(short_of_memory: Ended) -> None:
    assert short_of_memory.ledger_adds_up()
    assert (short_of_memory.leases["quarantined"], short_of_memory.summary["restarts"]) == (1, 3)
    assert not short_of_memory.left_behind
    effects = short_of_memory.effects()
    assert effects[AT // 4 * 4 :][:4].tolist() == [0] * 4
    assert int(effects.sum()) == 1600 - 4


# ---- whose kill it was ----------------------------------------------------------------------------------------------


@dataclass
class Counters:
    """A machine's counters of kills, as files."""

    root: Path
    version: int = 1

    def __post_init__(self) -> None:
        kind = "cgroup2 c rw" if self.version == 2 else "cgroup c rw,memory"
        self.write("proc/self/cgroup", "0::/job\n" if self.version == 2 else "4:memory:/job\n")
        self.write("proc/self/mountinfo", f"30 25 0:26 / /groups rw - {kind}\n")
        self.say(0, 0)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def say(self, group: int | None, machine: int) -> None:
        events = "memory.events" if self.version == 2 else "memory.oom_control"
        self.write(f"groups/job/{events}", "" if group is None else f"oom_kill {group}\n")
        self.write("proc/vmstat", f"nr_free_pages 1\noom_kill {machine}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_every_kill_is_claimed_by_one_death_and_names_the_lowest_limit(tmp_path: Path, version: int) -> None:
    counters = Counters(tmp_path, version)
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    counters.write(f"groups/{name}", "5000")
    counters.write(f"groups/job/{name}", "4000")
    kills = OomKills(tmp_path)
    assert kills.claim() == ""
    counters.say(2, 2)  # two workers at once
    words = f"killed by the kernel: out of memory (limit 3.9 KiB, {tmp_path}/groups/job/{name})"
    assert [kills.claim() for _ in range(3)] == [words, words, ""]


KERNEL = "killed by the kernel: out of memory"
COUNTED = "/proc/vmstat counts a kill"


@pytest.mark.parametrize(
    ("before", "then", "claims"),
    [
        pytest.param([None, 7], [[None, 8]], [f"{KERNEL} ({COUNTED})", ""], id="without a counter of the group"),
        pytest.param([0, 0], [[0, 1]], [f"killed by SIGKILL (perhaps out of memory: {COUNTED}"], id="elsewhere"),
        # Something that user code had started.
        pytest.param([0, 0], [[1, 1], "discard", "discard"], [""], id="long before"),
        # The memory of a large process is being taken apart meanwhile.
        pytest.param([0, 0], ["discard", [1, 1], "discard"], [KERNEL, ""], id="a death that takes a while"),
    ],
)
def test_a_kill_that_is_counted_is_claimed_as_the_kernels_if_it_may_be_this_death(
    tmp_path: Path, before: list[int | None], then: list[Any], claims: list[str]
) -> None:
    counters = Counters(tmp_path)
    counters.say(*before)
    kills = OomKills(tmp_path)
    for step in then:
        if step == "discard":
            kills.discard()
        else:
            counters.say(*step)
    for words in claims:
        claim = kills.claim()
        assert claim.startswith(words) and bool(claim) == bool(words)
        if len(then) > 1:
            kills.discard()
