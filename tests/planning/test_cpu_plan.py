"""procs x threads x cores: the rules as tables, and for real what an OpenMP runtime does to a process; and the memory
of processes: torch is imported once for all, or once for each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hogwild import host
from hogwild.errors import UsageError
from hogwild.host import Core, CoreLease, Cores
from hogwild.host.thread_pools import WORTH_THREADS, threads_for
from hogwild.planning.cpu_plan import MIB, VARIABLES, ProcessMemory, make_plan
from tests.helpers.jobs import RUN_PY, Job
from tests.helpers.processes import PATIENCE_S


def cores(usable: float) -> Cores:
    return Cores(int(usable) or 1, usable, usable, "of a test")


@pytest.mark.parametrize(
    ("procs", "threads", "usable", "environ", "expected"),
    [
        ("auto", "auto", 4, {}, (4, 1)),
        ("auto", "auto", 1.5, {}, (1, 1)),
        ("auto", "auto", 0.5, {}, (1, 1)),
        (2, "auto", 8, {}, (2, 4)),
        (3, "auto", 8, {}, (3, 2)),
        (4, "auto", 2, {}, (4, 1)),
        (2, "auto", 7.9, {}, (2, 3)),
        (0, "auto", 8, {}, (0, 8)),
        (2, 3, 4, {"OMP_NUM_THREADS": "7"}, (2, 3)),
        (2, 3, 4, {"OMP_NUM_THREADS": "abc"}, (2, 3)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "2"}, (2, 2)),
        (2, "auto", 8, {"OMP_NUM_THREADS": " 3 "}, (2, 3)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "4,2"}, (2, 4)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "1"}, (2, 1)),
        (2, "auto", 8, {"OMP_NUM_THREADS": ""}, (2, 4)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, (2, 4)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, (2, 2)),
        (2, "auto", 8, {"MKL_NUM_THREADS": "5"}, (2, 4)),
    ],
)
def test_procs_and_threads_follow_the_rules(procs, threads, usable, environ, expected) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(procs, threads, cores=cores(usable), environ=environ)
    assert (plan.procs, plan.threads) == expected
    assert plan.environment == dict.fromkeys(VARIABLES, str(expected[1]))


@pytest.mark.parametrize("value", ["abc", "0", "-1", "2.5", "4,", "4,x", "1e1", "²"])
def test_a_thread_count_that_is_none_names_the_variable_and_the_value(value: str) -> None:
    with pytest.raises(UsageError, match=f"OMP_NUM_THREADS={value}: "):
        make_plan(1, "auto", cores=cores(4), environ={"OMP_NUM_THREADS": value})


def test_the_reason_says_where_each_number_comes_from() -> None:
    assert "OMP_NUM_THREADS is set" in make_plan(1, "auto", cores=cores(4), environ={"OMP_NUM_THREADS": "2"}).reason
    assert "8 usable cores / 2" in make_plan(2, "auto", cores=cores(8), environ={}).reason
    assert "as given" in make_plan(1, 2, cores=cores(8), environ={}).reason
    by_torchrun = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}
    assert "torchrun" in make_plan(2, "auto", cores=cores(8), environ=by_torchrun).reason


@pytest.mark.parametrize(
    ("procs", "threads", "usable", "words"),
    [
        (4, "auto", 2, "4 workers share 2 usable cores"),
        (2, 2, 2, "2 workers x 2 threads"),
        (2, "auto", 2, ""),
        ("auto", "auto", 0.5, ""),
        (0, "auto", 0.5, ""),
    ],
)
def test_asking_for_more_than_there_is_warns(procs, threads, usable, words) -> None:  # type: ignore[no-untyped-def]
    warning = make_plan(procs, threads, cores=cores(usable), environ={}).warning
    assert warning.startswith(words) and bool(warning) == bool(words)


# --- what there is, in words


@pytest.mark.parametrize(
    ("usable", "said"),
    [
        (0.5, "procs 1 (one worker, as less than one core is usable); threads 1 "),
        (1, "procs 1 (one worker, as one whole core is usable); threads 1 "),
        (1.5, "procs 1 (one worker, as one whole core is usable); threads 1 "),
        (2, "procs 2 (one per usable core); threads 1 "),
    ],
)
def test_a_machine_of_one_core_or_less_gets_one_worker_and_one_thread_and_says_so(usable: float, said: str) -> None:
    assert make_plan("auto", "auto", cores=cores(usable), environ={}).reason.startswith(said)


@pytest.mark.parametrize(
    ("procs", "threads", "usable", "estimate"),
    [
        (2, 2, 2, "about 7.6 x slower"),  # what was measured: 182 s / 24 s
        (2, 2, 3, "about 3.2 x slower"),
        (1, 4, 2, "1 worker x 4 threads need more than 2 usable cores (of a test): threads wait"),
        (4, 2, 0.5, "about 47 x slower"),
        (4, 1, 2, "about 2 x as long, so the samples/s are at best about those of train.procs: 2"),
        (3, 1, 2, "about 1.5 x as long"),
        (3, 1, 0.5, "3 workers share 0.5 usable cores (of a test): each update takes about 3 x as long"),
        (2, 1, 1, "2 workers share 1 usable core (of a test)"),
    ],
)
def test_a_warning_estimates_what_is_lost(procs: int, threads: int, usable: float, estimate: str) -> None:
    assert estimate in make_plan(procs, threads, cores=cores(usable), environ={}).warning


# --- cores of one's own


def machine(*nodes: tuple[tuple[int, ...], ...]) -> Cores:
    """A node is its cores, a core its logical CPUs."""
    physical = tuple(Core(cpus, node) for node, inside in enumerate(nodes) for cpus in inside)
    return Cores(sum(len(core.cpus) for core in physical), None, float(len(physical)), "of a test", physical)


FOUR = machine(((0,), (1,), (2,), (3,)))
SMT = machine(((0, 2), (1, 3)))
TWO_NODES = machine(((0,), (1,), (2,)), ((3,), (4,), (5,)))


@pytest.mark.parametrize(
    ("procs", "threads", "cores", "pinned"),
    [
        pytest.param(2, 1, FOUR, ((0,), (1,)), id="one each"),
        pytest.param(2, 2, FOUR, ((0, 1), (2, 3)), id="two each"),
        pytest.param("auto", "auto", FOUR, ((0,), (1,), (2,), (3,)), id="auto"),
        pytest.param(2, 1, SMT, ((0, 2), (1, 3)), id="siblings stay together while there are cores enough"),
        pytest.param(4, 1, SMT, ((0,), (2,), (1,), (3,)), id="then a sibling is a core"),
        pytest.param(1, 3, SMT, ((0, 1, 2),), id="threads on siblings"),
        pytest.param(2, 2, TWO_NODES, ((0, 1), (3, 4)), id="no worker lies in two nodes"),
        pytest.param(3, 2, TWO_NODES, ((0, 1), (3, 4), (2, 5)), id="but the last, of what is left"),
        pytest.param(6, 1, TWO_NODES, ((0,), (1,), (2,), (3,), (4,), (5,)), id="node by node"),
    ],
)
def test_every_worker_is_pinned_to_cores_of_its_own(procs, threads, cores, pinned) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(procs, threads, cores=cores, environ={}, pin=True)
    assert plan.cores == pinned
    assert "pinned: " in plan.reason and "pin" not in plan.warning
    assert make_plan(procs, threads, cores=cores, environ={}).cores == ()


@pytest.mark.parametrize(("procs", "threads"), [(5, 1), (3, 2), (1, 8)])
def test_without_enough_cores_nobody_is_pinned_and_the_warning_says_so(procs: int, threads: int) -> None:
    plan = make_plan(procs, threads, cores=FOUR, environ={}, pin=True)
    assert plan.cores == ()
    assert f"workers are not pinned: {procs} x {threads} cores are needed, 4 are available" in plan.warning


def test_training_in_the_parent_pins_nobody() -> None:
    plan = make_plan(0, 1, cores=FOUR, environ={}, pin=True)
    assert plan.cores == () and plan.warning == "" and "not pinned, as there is no worker" in plan.reason


# ---- other jobs on this machine --------------------------------------------------------------------------------------

FOUR = Cores(4, None, 4.0, "of a test", tuple(Core((cpu,), 0) for cpu in range(4)))
TWO = Cores(2, None, 2.0, "of a test", tuple(Core((cpu,), 0) for cpu in range(2)))


@pytest.mark.parametrize(
    ("procs", "cores", "others", "threads"),
    [
        pytest.param(1, TWO, [CoreLease(1, 0, (0, 1))], 1, id="two jobs, two cores"),
        pytest.param(1, FOUR, [CoreLease(1, 0, (0, 1, 2, 3))], 2, id="they share what is left"),
        pytest.param(1, FOUR, [CoreLease(3, 0, (0, 1, 2, 3))], 1, id="the other has three workers"),
        pytest.param(3, FOUR, [CoreLease(1, 0, (0, 1, 2, 3))], 1, id="we have three workers"),
        pytest.param(1, FOUR, [CoreLease(1, 2, (0, 1, 2, 3))], 2, id="threads that were asked for stay"),
        pytest.param(1, FOUR, [CoreLease(4, 2, (0, 1, 2, 3))], 1, id="more than there are"),
        pytest.param(1, TWO, [CoreLease(2, 0, (2, 3))], 2, id="on cores that the service gave it"),
        pytest.param(1, FOUR, [CoreLease(2, 1, (0, 1, 4, 5))], 3, id="half of its cores are ours"),
    ],
)
def test_threads_are_what_other_jobs_leave(procs: int, cores: Cores, others: list[CoreLease], threads: int) -> None:
    plan = make_plan(procs, "auto", cores=cores, environ={}, others=others)
    assert (plan.procs, plan.threads, plan.follows) == (procs, threads, True)
    assert ("; other jobs use" in plan.reason) == (others[0].cpus != (2, 3))


OTHER = [CoreLease(1, 0, (0, 1))]


@pytest.mark.parametrize(
    ("threads", "environ", "others", "policy"),
    [
        pytest.param(2, {}, OTHER, "PASSIVE", id="as given, beside another job"),
        pytest.param("auto", {"OMP_NUM_THREADS": "2"}, OTHER, "PASSIVE", id="OMP_NUM_THREADS"),
        pytest.param(2, {}, [], None, id="alone"),
        pytest.param(1, {}, OTHER, None, id="nobody waits"),
        pytest.param("auto", {}, OTHER, None, id="counted"),
        pytest.param(2, {"OMP_WAIT_POLICY": "ACTIVE"}, OTHER, "ACTIVE", id="the user's own choice"),
    ],
)
def test_waiting_threads_sleep_where_a_core_may_be_another_jobs(threads, environ, others, policy) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(1, threads, cores=TWO, environ=environ, others=others)
    assert plan.environment.get("OMP_WAIT_POLICY") == policy
    assert plan.follows == (threads == "auto" and not environ)


several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to tell them apart")


@pytest.mark.whole
@pytest.mark.processes
@several_cores
def test_the_workers_of_a_pinned_job_run_where_the_plan_says(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    (tmp_path / "where.py").write_text(WHERE)
    job = tmp_path / "job.yaml"
    job.write_text("model: {class_path: where.Net}\ndata: {train: {class_path: where.Data}, batch_size: 4}\n")
    ended = start_job(
        tmp_path / "run here", str(job), "train.procs=2", "train.threads=1", "train.pin=true", "train.epochs=4"
    ).wait()
    assert ended.status == 0, ended.stderr
    expected = make_plan(2, 1, cores=host.usable_cores(), environ={}, pin=True).cores
    seen = {note["pid"]: note["cores"] for note in map(json.loads, (tmp_path / "seen").read_text().splitlines())}
    spawned = {event["pid"]: event["worker"] for event in ended.events("spawn")}
    workers = {pid: tuple(cores) for pid, cores in seen.items() if pid in spawned}  # the trial has its own process
    assert workers and workers == {pid: expected[spawned[pid]] for pid in workers}
    assert not ended.left_behind


WHERE = """
import json, os
from pathlib import Path
import torch

SEEN = Path(__file__).parent / "seen"

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, inputs):
        if self.training:
            note = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0))}
            with open(SEEN, "a") as notes:
                notes.write(json.dumps(note) + "\\n")
        return super().forward(inputs)

class Data(torch.utils.data.TensorDataset):
    def __init__(self):
        super().__init__(torch.randn(64, 3), torch.zeros(64, dtype=torch.long))
"""


# --- what an OpenMP runtime takes


@pytest.mark.parametrize(
    ("environ", "unbinds"),
    [
        ({}, False),
        ({"OMP_PROC_BIND": "true"}, True),
        ({"OMP_PROC_BIND": "spread"}, True),
        ({"OMP_PLACES": "cores"}, True),
        ({"GOMP_CPU_AFFINITY": "0-3"}, True),
        ({"OMP_PROC_BIND": "false"}, False),
        ({"OMP_PROC_BIND": "FALSE", "OMP_PLACES": "cores"}, False),
        ({"OMP_PROC_BIND": ""}, False),
        ({"KMP_AFFINITY": "disabled"}, False),
        ({"OMP_PROC_BIND": "false", "KMP_AFFINITY": "compact"}, True),
    ],
)
def test_workers_are_told_not_to_bind_where_the_environment_would(environ: dict[str, str], unbinds: bool) -> None:
    environment = make_plan(2, 1, cores=FOUR, environ=environ).environment
    assert ("OMP_PROC_BIND" in environment) == unbinds
    assert not unbinds or (environment["OMP_PROC_BIND"], environment["KMP_AFFINITY"]) == ("false", "disabled")


PLAN_AFTER_TORCH = """
import json, os, sys
if sys.argv[1:]:
    os.sched_setaffinity(0, map(int, sys.argv[1:]))  # as taskset does
before = sorted(os.sched_getaffinity(0))
import torch
narrowed = sorted(os.sched_getaffinity(0))
from hogwild.planning.cpu_plan import plan_here
plan = plan_here("auto", "auto")
after = sorted(os.sched_getaffinity(0))
print(json.dumps({"before": before, "narrowed": narrowed, "after": after, "procs": plan.procs, "why": plan.reason}))
"""


def plan_after_torch(variable: str, *cores: int) -> Any:
    name, _, value = variable.partition("=")
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", PLAN_AFTER_TORCH, *map(str, cores)],
        env={**kept, name: value},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.processes
@several_cores
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND=true", "OMP_PLACES=threads"])
def test_a_caller_that_imported_torch_first_gets_the_cores_back_that_openmp_took(variable: str) -> None:
    seen = plan_after_torch(variable)
    assert len(seen["narrowed"]) < len(seen["before"])  # or there is nothing to repair, and this tests nothing
    assert seen["after"] == seen["before"]
    assert seen["procs"] == int(host.usable_cores().usable)
    assert f"{variable} had bound this process to 1 core of {len(seen['before'])}; undone" in seen["why"]


@pytest.mark.processes
@several_cores
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND=true", "OMP_PROC_BIND=false"])
def test_a_mask_that_was_narrow_before_torch_stays_narrow(variable: str) -> None:
    core = max(os.sched_getaffinity(0))
    seen = plan_after_torch(variable, core)
    assert seen["after"] == [core] and seen["procs"] == 1 and "undone" not in seen["why"]


@pytest.mark.processes
@several_cores
def test_a_command_plans_with_the_cores_it_began_with() -> None:
    done = subprocess.run(
        [sys.executable, RUN_PY, "--dry-run", "--json"],
        env={**os.environ, "OMP_PROC_BIND": "true"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["procs"] == int(host.usable_cores().usable) and "OMP_PROC_BIND=true had bound" in said["plan"]


# --- thread pools

LIMIT_POOLS = """
import json
import numpy, torch
from hogwild.host.thread_pools import limit_pools, pools
torch.set_num_threads(3)
before, said, after = pools(), limit_pools(2), pools()
print(json.dumps({"before": before, "said": said, "after": after, "again": limit_pools(2), "at most": limit_pools(4)}))
"""


@pytest.mark.processes
def test_every_pool_is_limited_and_named_with_what_it_had() -> None:
    environ = {key: text for key, text in os.environ.items() if not key.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", LIMIT_POOLS],
        env={**environ, "OPENBLAS_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    seen = json.loads(done.stdout)
    larger = [name for name, threads in seen["before"] if threads > 2]
    assert any("libgomp" in name for name in larger)
    assert [line.rpartition(": ")[0] for line in seen["said"]] == larger
    assert all("3 threads" in line for line in seen["said"])
    assert max(threads for _, threads in seen["after"]) == 2
    assert seen["again"] == seen["at most"] == []


@pytest.mark.processes
def test_a_pool_that_user_code_brings_is_limited_in_the_worker(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    """The module of the model sets the number of threads when it is imported, as some do."""
    (tmp_path / "greedy.py").write_text(WHERE.replace("import torch\n", "import torch\ntorch.set_num_threads(4)\n"))
    job = tmp_path / "job.yaml"
    job.write_text("model: {class_path: greedy.Net}\ndata: {train: {class_path: greedy.Data}, batch_size: 4}\n")
    ended = start_job(tmp_path / "run here", str(job), "train.procs=1", "train.threads=1").wait()
    assert ended.status == 0, ended.stderr
    assert "4 threads, limited to 1" in (ended.run_dir / "logs" / "worker-0.log").read_text()


@pytest.mark.processes
def test_a_pool_has_the_threads_of_training_after_the_trial(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    """The trial runs its forwards with one thread, in the same process; then training makes two."""
    module = "import torch\nfrom hogwild.host.thread_pools import pools\nfrom threadpoolctl import threadpool_limits\n"
    module = WHERE.replace("import torch\n", f"{module}threadpool_limits(3, user_api='blas')\n")
    (tmp_path / "wide.py").write_text(module.replace('"cores": sorted(os.sched_getaffinity(0))', '"pools": pools()'))
    job = tmp_path / "job.yaml"
    job.write_text("model: {class_path: wide.Net}\ndata: {train: {class_path: wide.Data}, batch_size: 32}\n")
    ended = start_job(tmp_path / "run here", str(job), "train.procs=1", "train.threads=2").wait()
    assert ended.status == 0, ended.stderr
    seen = [json.loads(line)["pools"] for line in (tmp_path / "seen").read_text().splitlines()]
    assert {threads for pools in seen[-2:] for _, threads in pools} == {2}


def test_work_on_few_bytes_is_done_by_one_thread() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads_for(WORTH_THREADS - 1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with threads_for(WORTH_THREADS):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


MEASURED = ProcessMemory(import_private=150 * MIB, import_shared=80 * MIB, fork_private=9 * MIB)


@pytest.mark.parametrize(
    ("procs", "is_forked", "words"),
    [
        (16, True, "374 MiB: the fork server 230 MiB, each of 16 workers 9.0 MiB"),
        (1, False, "230 MiB: shared 80 MiB, each of 1 worker, a fresh interpreter, 150 MiB"),
        (0, True, "none: it trains in the command's own process"),
    ],
)
def test_an_import_counts_once_where_processes_are_forked(procs: int, is_forked: bool, words: str) -> None:
    assert MEASURED.words(procs, is_forked=is_forked) == words


@given(procs=some.integers(1, 512))
def test_a_further_worker_is_a_fork_or_an_import(procs: int) -> None:
    forked, fresh = (MEASURED.of(procs + 1, is_forked=one) - MEASURED.of(procs, is_forked=one) for one in (True, False))
    assert (forked, fresh) == (9 * MIB, 150 * MIB)
    assert MEASURED.further(procs, is_forked=True) == MEASURED.of(procs, is_forked=True) - 230 * MIB
    assert MEASURED.of(procs, is_forked=True) >= MEASURED.of(1, is_forked=False)


def test_without_a_measurement_the_usual_figures_hold() -> None:
    assert ProcessMemory.measured({"why": "it died"}) == ProcessMemory()
    assert ProcessMemory.measured({"import_private": 1, "import_shared": 2, "fork_private": 3, "fork_s": 0.1}) == (
        ProcessMemory(1, 2, 3)
    )
