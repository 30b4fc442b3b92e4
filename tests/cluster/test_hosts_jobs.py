"""Jobs of several nodes on hosts of our own: power cuts, cut cables, frozen hosts, long and lossy lines."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, why_not
from tests.cluster.running import SAMPLES, Nodes, assert_each_once, counting
from tests.helpers.processes import IS_THOROUGH

pytestmark = pytest.mark.processes
thorough = pytest.mark.skipif(not IS_THOROUGH, reason="make stress")

BLINK_S, LONG_S = 3.0, 30.0  # of an interruption: less than the deadline of 10 s, and more
SURVIVED_S = 60.0  # a net; a node that is silent is given up after some 12 s
TOGETHER_S = 5.0  # between the last batches of two nodes


@pytest.fixture(autouse=True)
def _hosts() -> None:
    if why := why_not():
        pytest.skip(why)


@contextmanager
def interrupted(hosts: Hosts, host: int, seconds: float, *, by: str) -> Iterator[None]:
    """Cut a host's cable, or freeze it, for so long; the body runs meanwhile."""
    begin, end = (hosts.cut, hosts.join) if by == "cable" else (hosts.freeze, hosts.thaw)
    until_s = time.monotonic() + seconds
    begin(host)
    yield
    time.sleep(max(0.0, until_s - time.monotonic()))  # the fault itself
    end(host)


def test_survivors_finish_the_work_of_a_node_without_power(tmp_path: Path) -> None:
    with Hosts(2) as hosts, counting(tmp_path, hosts=hosts, pace_s=0.04) as job:
        job.wait_for_round(3)
        hosts.kill(1)
        job.wait_for_event(0, "node-lost", SURVIVED_S)
        job.hurry()
        assert job.wait_for_end(0)["state"] == "succeeded"
        assert_each_once(job)
        assert job.summary()["cluster"]["lost"] == 1


@thorough
@pytest.mark.parametrize("by", ["cable", "host"])
def test_after_a_blink_of_a_cable_or_of_a_host_all_go_on_together(tmp_path: Path, by: str) -> None:
    with Hosts(2) as hosts, counting(tmp_path, hosts=hosts, pace_s=0.2) as job:
        job.wait_for_round(3)
        with interrupted(hosts, 1, BLINK_S, by=by):
            pass
        for node in (0, 1):
            job.wait_for_more_rounds(3, node)
        job.hurry()
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
        assert job.summary(0)["cluster"]["lost"] == job.summary(1)["cluster"]["lost"] == 0


@thorough
@pytest.mark.parametrize("by", ["cable", "host"])
def test_a_node_that_was_away_too_long_ends_with_a_round_that_was_committed(tmp_path: Path, by: str) -> None:
    with Hosts(3) as hosts, counting(tmp_path, hosts=hosts, count=3, pace_s=0.2, own_disks=True) as job:
        job.wait_for_round(3)
        with interrupted(hosts, 2, LONG_S, by=by):
            job.wait_for_event(0, "node-lost", SURVIVED_S)
            job.wait_for_more_rounds(3, node=0)
            job.wait_for_more_rounds(3, node=1)
        ended = job.wait_for_end(2)
        assert (ended["state"], ended["exit_status"]) == ("stopped", 75), job.text(2)
        effects = job.effects(2)
        assert 0 < ended["leases"]["done"] < SAMPLES / 4
        assert int(effects.sum()) == 4 * ended["leases"]["done"] and {*effects.tolist()} == {0.0, 1.0}
        job.hurry()
        assert job.wait_for_end(0)["state"] == job.wait_for_end(1)["state"] == "succeeded"
        for node in (0, 1):
            assert_each_once(job, node)
            assert job.summary(node)["cluster"]["lost"] == 1


@thorough
def test_a_long_thin_and_lossy_line_loses_nothing(tmp_path: Path) -> None:
    with (
        Hosts(2, delay_s=0.05, rate_bytes_s=1.25e6, loss=0.01) as hosts,
        counting(tmp_path, hosts=hosts, pace_s=0.05) as job,
    ):
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
        assert job.summary()["cluster"]["lost"] == 0


@thorough
def test_three_hosts_share_out_the_work_of_two_that_fail_one_after_the_other(tmp_path: Path) -> None:
    with Hosts(3) as hosts, counting(tmp_path, hosts=hosts, count=3, pace_s=0.2) as job:
        job.wait_for_round(3)
        for host in (2, 1):
            hosts.kill(host)
            job.wait_for_event(0, "node-lost", SURVIVED_S, count=3 - host)
        job.hurry()
        assert job.wait_for_end(0)["state"] == "succeeded"
        assert_each_once(job)
        assert [event["nodes"] for event in job.events(0, "node-lost")] == [[2], [1]]


@thorough
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_slow_node_gets_less_work_and_ends_with_the_others(tmp_path: Path) -> None:
    samples = 80_000
    cores = sorted(os.sched_getaffinity(0))[:2]
    with Hosts(2) as hosts:
        sizes = [f"{of_whom}.init_args.samples={samples}" for of_whom in ("model", "data.train")]
        job = counting(tmp_path, *sizes, "log.every_s=1", hosts=hosts, pace_s=0.0, cores=cores)
        busy = [sys.executable, "-c", "while True: pass"]
        with subprocess.Popen(["taskset", "--cpu-list", str(cores[1]), *busy]) as beside:
            try:
                with job:
                    assert job.wait() == [0, 0], job.text()
                    assert_each_once(job, samples=samples)
            finally:
                beside.kill()
    ends = [last_batch_s(job, node) for node in (0, 1)]
    made = [row["updates"] for row in job.summary()["cluster"]["of_nodes"]]
    assert abs(ends[0] - ends[1]) < TOGETHER_S, f"nodes ended {ends[0] - ends[1]:+.1f} s apart, with {made} batches"
    assert min(made) > 0


def last_batch_s(job: Nodes, node: int) -> float:
    """Return the time of the last batch that a worker of the node began."""
    notes = [job.folder / "diary" / f"train-{pid}" for pid in job.workers(node)]
    return max((note.stat().st_mtime for note in notes if note.exists()), default=math.nan)
