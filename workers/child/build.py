"""Build a worker: receive the set-up, map the shared memory, build the trainer. Then `worker_loop.py` pulls items."""

import contextlib
from collections.abc import Callable, Mapping

import cloudpickle
import torch
from torch import Tensor

from hogwild import host
from hogwild.devices.discovery import open_accelerator
from hogwild.feeds.batch import Feed
from hogwild.feeds.device_feed import DeviceFeed
from hogwild.feeds.packed import attach
from hogwild.feeds.ring import Ring, RingFeed, RingSpec
from hogwild.host.thread_pools import limit_pools
from hogwild.parameters.shared_model import WorkerModel
from hogwild.scheduling.lane_schedule import steps_of
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Control, Row, Scoreboard
from hogwild.training import torch_settings
from hogwild.training.autograd_update import AutogradUpdate, DeviceUpdate
from hogwild.training.compiled_model import make as make_runs
from hogwild.training.evaluator import Evaluator
from hogwild.training.loss_scaler import scaler_for
from hogwild.training.recurrent_state import LaneState
from workers.child.adoption import adopt, limit_threads
from workers.child.fused_trainer import make_fused
from workers.child.on_device import OnDevice, attached, feeding, seeding
from workers.child.profiler import Profile, make_profile
from workers.child.spec import ON_CPU, DataSpec, Numerics, WorkerSpec
from workers.child.trainer import Trainer
from workers.messages import Setup, Start


def build_trainer(start: Start, setup: Setup, descriptors: list[int]) -> Trainer:
    regions = adopt(start, setup, descriptors)
    if setup.cores:
        host.set_affinity(setup.cores)  # before any thread exists: threads keep the affinity they were made with
    torch.set_flush_denormal(setup.flush_denormal)  # first: threads made later inherit it
    limit_threads(setup.threads)
    board = Scoreboard(regions.pop("scoreboard"), setup.rows)
    row = Row(board, setup.worker)
    row.beat()
    worker_spec: WorkerSpec = cloudpickle.loads(regions.pop("worker_spec").read_bytes(setup.spec_nbytes))
    structure = regions.pop("structure").array("u1", (setup.structure_nbytes,)).data
    trainer = make_trainer(worker_spec, structure, regions, row, start.lifeline)
    # After the structure, which imports the user's modules: they may change settings or create thread pools.
    torch_settings.apply(setup.torch_settings)
    for pool in limit_pools(setup.threads):
        print(f"{pool}, limited to {setup.threads}", flush=True)
    torch.set_num_threads(setup.threads)  # also sets the MKL inside torch
    return trainer


def make_trainer(
    worker_spec: WorkerSpec,
    structure: bytes | memoryview,
    regions: Mapping[str, Region],
    row: Row,
    lifeline: int | None = None,
) -> Trainer:
    """Build a trainer over mapped regions: `data-train` and `data-val` hold the data, the others the model. `lifeline`
    ends a wait for kernels; None in the supervisor itself."""
    profile = make_profile(worker_spec.profile, row.worker)

    def make() -> Numerics:
        return _numerics(worker_spec, structure, regions, row, lifeline, profile)

    return Trainer(worker_spec, make(), row, profile, make)


def _numerics(
    worker_spec: WorkerSpec,
    structure: bytes | memoryview,
    regions: Mapping[str, Region],
    row: Row,
    lifeline: int | None,
    profile: Profile,
) -> Numerics:
    rollbacks = row.board.control_words[Control.ROLLBACKS]  # before reading anything that a rollback writes
    model_regions = {name: region for name, region in regions.items() if not name.startswith("data-")}
    updates = row.board.updates()
    accelerator = open_accelerator(worker_spec.devices[row.worker]) if worker_spec.devices else None
    seed_generator = seeding(accelerator)
    with contextlib.ExitStack() as broken_off:
        model = attached(structure, model_regions, row, accelerator, worker_spec.device_handles, updates)
        broken_off.callback(model.close)
        model.runs = make_runs(worker_spec.compile, model.model)
        evaluator = make_evaluator(worker_spec, model, regions, seed_generator)
        if worker_spec.fused is not None:
            fused, sentence = make_fused(worker_spec, model, regions["data-train"], row, lifeline)
            print(sentence, flush=True)
            broken_off.pop_all()
            return Numerics(model, None, None, evaluator, seed_generator, rollbacks, fused)
        plan = worker_spec.train.plan
        lanes = LaneState(model.runs, steps_of(plan)) if plan.lanes is not None else None
        update = (AutogradUpdate if model.replica is None else DeviceUpdate)(
            model,
            grad_clip=worker_spec.grad_clip,
            enter=profile.enter,
            forward=lanes,
            updates=updates,
            loss_names=worker_spec.loss_names,
            precision=worker_spec.precision,
            scaler=scaler_for(worker_spec.precision, row),
        )
        if (rows := update.compiled) is not None:  # sparse gradients, applied by compiled rules
            from workers.child.compile_once import make_ready  # numba takes half a second

            print(make_ready(rows.name, rows.warm_up, row, lifeline), flush=True)
        seed, copies = worker_spec.seed, worker_spec.copies_slots
        host_feed = _feed(worker_spec.train, regions["data-train"], seed, copies=copies)
        feed = feeding(model, host_feed, worker_spec.transform, seed)
        if worker_spec.compile == "inductor":
            from workers.child.warm_up_model import make_model_ready  # with torch's compiler: another second

            print(make_model_ready(worker_spec, model, update, feed, evaluator, row, lifeline), flush=True)
        place = ON_CPU
        if accelerator is not None and isinstance(feed, DeviceFeed):
            place = OnDevice(accelerator, feed.prefetch)
        broken_off.pop_all()
        return Numerics(model, update, feed, evaluator, seed_generator, rollbacks, lanes=lanes, place=place)


def make_evaluator(
    worker_spec: WorkerSpec, model: WorkerModel, regions: Mapping[str, Region], seed_generator: Callable[[int], object]
) -> Evaluator | None:
    """Build the evaluator, if any. The region `data-outputs` exists if a metric needs all outputs at once."""
    if worker_spec.val is None or worker_spec.panel is None:
        return None
    feed = feeding(model, _feed(worker_spec.val, regions["data-val"], worker_spec.seed))
    outputs = wanted = None
    if worker_spec.outputs is not None:
        wanted = _targets(worker_spec.val, regions["data-val"])
        outputs = worker_spec.outputs.view(regions["data-outputs"])
    return Evaluator(
        model.runs,
        model.loss,
        feed,
        worker_spec.seed,
        worker_spec.panel,
        outputs,
        wanted,
        worker_spec.precision,
        seed_generator,
    )


def _targets(split: DataSpec, region: Region) -> Tensor:
    """Return the targets (N, …) of a data set."""
    if isinstance(split.data, RingSpec):
        return Ring(region, split.data).targets()
    return attach(split.data, region).targets()


def _feed(split: DataSpec, region: Region, seed: int, *, copies: bool = False) -> Feed:
    if isinstance(split.data, RingSpec):
        return RingFeed(Ring(region, split.data), split.plan.batch_size, copies=copies)
    return attach(split.data, region).feed(split.plan, seed=seed, order=split.order)
