"""Parameters on one device, held by a process of its own and written by all workers: through a device that is
simulated, whose memory another process really holds."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hogwild.config.load import load_job
from hogwild.devices import discovery
from hogwild.errors import DataError, DeviceSharingError
from hogwild.job.build import build
from hogwild.job.facts import complete
from hogwild.parameters.exchange import Replica
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.planning.device_placement import planned
from hogwild.planning.job_plan import JobPlan
from hogwild.training.autograd_update import AutogradUpdate, DeviceUpdate
from hogwild.workers.child.gpu_owner import Flats
from tests.helpers.jobs import HOME, JOBS, Ended, Job, in_turn
from tests.helpers.simulated_gpu import Simulated
from tests.shared_model import (
    ConvNet,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    train,
)
from tests.training.test_device_replica import made

COUNTING, FAILING = str(JOBS / "counting.yaml"), str(JOBS / "failing_gpu.yaml")
DIVERGING = str(JOBS / "diverging.yaml")
EXPLODING = "model.init_args.stiffness=3"  # a step at the full rate doubles the swing, at half the rate it halves it
# With two workers, who move the swing between each other's steps, it may grow at half the rate, too.
POISONED = ["model.init_args.poisoned=swing", "model.init_args.poisoned_at=80"]
ON_ONE = ["train.device=simulated:0", "train.placement=cuda-shared"]


# ---- in one process -------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("rule", ["momentum", "Adam"])
def test_every_update_is_in_the_owners_memory_and_in_the_flats_once_they_are_fetched(rule: str) -> None:
    shared, plain = made_twice(rule)
    flats = held(shared)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(Simulated(1), flats.handles))
    before = [param.detach().clone() for param in shared.model.parameters()]
    update = DeviceUpdate(worker, grad_clip=None)
    for x, y in images(5):
        update.backward((x,), y)
        assert update.is_finite()
        update.apply(None)
    worker.exchange.flush()
    worker.rest()
    assert all(torch.equal(now, then) for now, then in zip(shared.model.parameters(), before, strict=True))
    flats.fetch()
    ordinary = WorkerModel.attach(plain.structure, plain.regions, 0)
    train(AutogradUpdate(ordinary, grad_clip=None), images(5))
    assert same_bits(shared.model, plain.model)
    worker.close()
    flats.close()


def made_twice(rule: str) -> tuple[SharedModel, SharedModel]:
    return made(ConvNet, rule, procs=2), made(ConvNet, rule, procs=2)


def held(shared: SharedModel) -> Flats:
    names = [name for name in shared.regions if name.startswith("params-")]
    flats = Flats(Simulated(0), {name: shared.regions[name] for name in names})
    flats.push()
    return flats


def test_two_workers_see_each_other_at_once() -> None:
    shared, _ = made_twice("SGD")
    flats = held(shared)
    one, other = (
        WorkerModel.attach(shared.structure, shared.regions, k, replica=Replica.on(Simulated(1), flats.handles))
        for k in range(2)
    )
    with torch.no_grad():
        one.params[0].fill_(7.0)
    assert (other.params[0] == 7.0).all()
    with torch.no_grad():
        shared.model.conv1.weight.fill_(3.0)  # type: ignore[union-attr, operator]
    flats.push()
    assert (one.params[0] == 3.0).all()
    flats.close()


def test_what_cannot_be_mapped_is_a_clear_error() -> None:
    shared, _ = made_twice("SGD")
    gone = {name: f"{os.getpid()} 9999" for name in shared.regions}
    with pytest.raises(DeviceSharingError, match="memory of another process cannot be mapped") as raised:
        WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(Simulated(1), gone))
    assert raised.value.code == "device/sharing" and "cuda-replica" in str(raised.value)


# ---- what cannot be shared is said in the parent --------------------------------------------------------------------


def plan_of(monkeypatch: pytest.MonkeyPatch, *, procs: int = 2, device: str = "simulated:0", **environ: str) -> JobPlan:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    fields = [f"train.device={device}", "train.placement=cuda-shared", f"train.procs={procs}"]
    return planned(load_job(Path(FAILING), fields))


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(DeviceSharingError, match=f"{name}=.*other processes cannot map memory"):
        plan_of(monkeypatch, **{name: "max_split_size_mb:64, expandable_segments:True"})


def test_several_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceSharingError, match="they are on simulated:0, simulated:1; set train"):
        plan_of(monkeypatch, device="simulated")


def test_a_process_alone_has_nothing_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(monkeypatch, procs=0)
    assert plan.placement == "cuda-replica" and "nothing to share" in plan.reason
    assert plan_of(monkeypatch).placement == "cuda-shared"


@pytest.mark.parametrize("kind", ["ratings", "rollouts"])
def test_what_is_compiled_or_played_leaves_a_gpu_that_is_there_to_others(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With device: auto; a job that asks for the GPU gets it."""
    monkeypatch.setattr(discovery, "visible_gpus", lambda: 1)
    monkeypatch.syspath_prepend(str(JOBS))
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n},{n % 5}\n" for n in range(40)))
    ratings = f"data.train={{class_path: hogwild.data.Ratings, init_args: {{path: {tmp_path / 'ratings.csv'}}}}}"
    file, reason, *settings = {
        "ratings": (HOME / "configs" / "ratings.yaml", "is compiled for the CPU", ratings, "data.val=null"),
        "rollouts": (JOBS / "bandit.yaml", "workers play a Rollout on the CPU"),
    }[kind]
    job = load_job(file, settings)
    plan = planned(job)
    assert plan.placement == "cuda-replica"
    kept = complete(plan, build(plan, None))
    assert (kept.placement, kept.devices) == ("cpu", ()) and reason in kept.reason
    bound = load_job(file, [*settings, "train.device=cuda"])
    if kind == "rollouts":
        with pytest.raises(DataError, match=r"leave out train\.device"):
            build(planned(bound), None)
    else:
        assert build(planned(bound), None).keeps_to_cpu == ""


# ---- jobs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(jobs_folder: Path) -> dict[str, Ended]:
    diary = jobs_folder / "diary"
    for name in ("crimes", "one", "cpu", "back"):
        (diary / name).mkdir(parents=True)
    crimes = ["model.init_args.crimes.is killed=20", "model.init_args.crimes.raises=420"]
    plain = [FAILING, "train.procs=1", "train.epochs=1"]
    return in_turn(
        jobs_folder / "jobs",
        {
            "crimes": [COUNTING, f"model.init_args.diary={diary / 'crimes'}", "data.shuffle=none", *ON_ONE, *crimes],
            "one": [*plain, f"model.init_args.diary={diary / 'one'}", *ON_ONE],
            "back, shared": [DIVERGING, *POISONED, f"model.init_args.diary={diary / 'back'}", *ON_ONE],
            "back, replica": [DIVERGING, EXPLODING, "train.device=simulated", "train.exchange=delta", "train.procs=1"],
            "cpu": [*plain, f"model.init_args.diary={diary / 'cpu'}", "train.device=cpu", "train.procs=0"],
        },
    )


@pytest.mark.processes
def test_one_worker_does_what_it_does_on_the_cpu(jobs: dict[str, Ended]) -> None:
    assert jobs["one"].status == jobs["cpu"].status == 0, jobs["one"].stderr
    assert jobs["one"].model_bytes() == jobs["cpu"].model_bytes()
    summary = jobs["one"].summary
    assert (summary["placement"], summary["exchange"]) == ("cuda-shared", "direct")


@pytest.mark.processes
@pytest.mark.parametrize("name", ["back, shared", "back, replica"])
def test_a_run_that_diverges_goes_back_on_the_device_too(jobs: dict[str, Ended], name: str) -> None:
    """To its beginning: every sample that counts was applied once, at the last rate."""
    job = jobs[name]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    rollbacks = job.summary["rollbacks"]
    assert rollbacks >= 1 and torch.all(job.effects() == 0.5**rollbacks)
    assert job.leases["done"] == job.leases["total"] == 400 and not job.left_behind


@pytest.mark.processes
def test_killed_workers_leave_the_memory_as_it_was_and_nothing_behind(jobs: dict[str, Ended]) -> None:
    job = jobs["crimes"]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert job.leases["done"] == job.leases["total"] == 400
    effects = job.effects()
    assert set(effects.tolist()) <= {0.0, 1.0, 2.0} and int((effects != 1.0).sum()) <= 4 * 4
    assert job.process_leaks == {"descriptors": 0, "threads": 0} and not job.left_behind


@pytest.fixture
def held_job(start_job: Callable[..., Job], tmp_path: Path) -> Job:
    """Both workers wait in the middle of their first item."""
    diary = tmp_path / "diary"
    diary.mkdir()
    job = start_job(
        tmp_path / "job", COUNTING, f"model.init_args.diary={diary}", "model.init_args.pace_s=0.02", *ON_ONE
    )
    job.wait_for_updates(4)
    return job


@pytest.mark.processes
@pytest.mark.whole
def test_an_owner_that_is_killed_ends_the_job_with_a_clear_error(held_job: Job) -> None:
    (owner,) = held_job.events("owner")
    os.kill(owner["pid"], signal.SIGKILL)
    ended = held_job.wait()
    assert (ended.status, ended.reason) == (1, ("failed", "device/sharing"))
    assert "that owns the parameters on the device has failed" in ended.stderr and "--resume" in ended.stderr
    assert not ended.left_behind
