"""What a worker builds after its first lines: it receives the set-up, maps the shared memory, builds the trainer, and
pulls items then (`worker_loop.py`)."""

from collections.abc import Callable, Mapping

import cloudpickle
import torch
from torch import Tensor

from hogwild import host
from hogwild.devices.accelerator import Accelerator
from hogwild.feeds.batch import Feed
from hogwild.feeds.packed import attach, open_feed, targets
from hogwild.feeds.ring import Ring, RingFeed, RingSpec
from hogwild.host.thread_pools import limit_pools
from hogwild.parameters.shared_model import WorkerModel
from hogwild.scheduling.lane_schedule import steps_of
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Control, Row, Scoreboard
from hogwild.training import torch_settings
from hogwild.training.compiled_model import make as make_runs
from hogwild.training.evaluator import Evaluator
from hogwild.training.loss_scaler import scaler_for
from hogwild.training.recurrent_state import LaneState
from workers.child.adoption import adopt
from workers.child.fused_trainer import make_fused
from workers.child.on_device import attached, computing, feeding, opened, seeding, updating
from workers.child.profiler import Profile, make_profile
from workers.child.spec import Kit, Numerics, Split
from workers.child.trainer import Trainer
from workers.messages import Setup, Start


def build_trainer(start: Start, setup: Setup, descriptors: list[int]) -> Trainer:
    adopt(start, setup)
    if setup.cores:
        host.set_affinity(setup.cores)  # before there are threads that would keep the cores they were made on
    torch.set_flush_denormal(setup.flush_denormal)  # first: the threads made later inherit it
    torch.set_num_threads(setup.threads)
    if torch.get_num_interop_threads() != 1:  # one that has read data has set it, and torch allows it once
        torch.set_num_interop_threads(1)
    regions = {
        name: Region.attach(descriptor, nbytes)
        for (name, nbytes), descriptor in zip(setup.regions, descriptors, strict=True)
    }
    board = Scoreboard(regions.pop("scoreboard"), setup.procs)
    row = Row(board, setup.worker)
    row.beat()
    kit: Kit = cloudpickle.loads(regions.pop("kit").read_bytes(setup.kit_nbytes))
    structure = regions.pop("structure").array("u1", (setup.structure_nbytes,)).data
    trainer = make_trainer(kit, structure, regions, row, start.lifeline)
    # After the structure, which imports the user's modules: they may have set something else, or brought a pool.
    torch_settings.apply(setup.torch_settings)
    for pool in limit_pools(setup.threads):
        print(f"{pool}, limited to {setup.threads}", flush=True)
    torch.set_num_threads(setup.threads)  # which reaches the MKL inside torch, too
    return trainer


def make_trainer(
    kit: Kit, structure: bytes | memoryview, regions: Mapping[str, Region], row: Row, lifeline: int | None = None
) -> Trainer:
    """A trainer over mapped regions: `data-train` and `data-val` hold the data, the others the model. `lifeline` ends a
    wait for kernels; None in the supervisor itself."""
    profile = make_profile(kit.profile, row.worker)

    def make() -> Numerics:
        return _numerics(kit, structure, regions, row, lifeline, profile)

    return Trainer(kit, make(), row, profile, make)


def _numerics(
    kit: Kit,
    structure: bytes | memoryview,
    regions: Mapping[str, Region],
    row: Row,
    lifeline: int | None,
    profile: Profile,
) -> Numerics:
    rollbacks = row.board.control_words[Control.ROLLBACKS]  # before anything is read of what a rollback writes
    model_regions = {name: region for name, region in regions.items() if not name.startswith("data-")}
    updates = row.board.updates()
    accelerator = opened(kit, row.worker)
    model = attached(structure, model_regions, row, accelerator, kit.lent, updates)
    model.runs = make_runs(kit.compile, model.model)
    try:
        return _around(model, accelerator, kit, regions, row, lifeline, profile, rollbacks, updates)
    except BaseException:
        model.close()
        raise


def _around(
    model: WorkerModel,
    accelerator: Accelerator | None,
    kit: Kit,
    regions: Mapping[str, Region],
    row: Row,
    lifeline: int | None,
    profile: Profile,
    rollbacks: int,
    updates: int,
) -> Numerics:
    seed_generator = seeding(accelerator)
    evaluator = make_evaluator(kit, model, regions, seed_generator)
    if kit.fused is not None:
        fused, sentence = make_fused(kit, model, regions["data-train"], row, lifeline)
        print(sentence, flush=True)
        return Numerics(model, None, None, evaluator, seed_generator, rollbacks, fused)
    plan = kit.train.plan
    lanes = LaneState(model.runs, steps_of(plan)) if plan.lanes is not None else None
    update = updating(
        model,
        grad_clip=kit.grad_clip,
        enter=profile.enter,
        forward=lanes,
        updates=updates,
        loss_names=kit.loss_names,
        precision=kit.precision,
        scaler=scaler_for(kit.precision, row),
    )
    if (rows := update.compiled) is not None:  # sparse gradients, applied by compiled rules
        from workers.child.compile_once import make_ready  # numba takes half a second

        print(make_ready(rows.name, rows.warm_up, row, lifeline), flush=True)
    host_feed = _feed(kit.train, regions["data-train"], kit.seed, copies=kit.copies_slots)
    feed = feeding(model, host_feed, kit.transform, kit.seed)
    if kit.compile == "inductor":
        from workers.child.warm_up_model import make_model_ready  # with torch's compiler: another second

        print(make_model_ready(kit, model, update, feed, evaluator, row, lifeline), flush=True)
    place = computing(accelerator, feed)
    return Numerics(model, update, feed, evaluator, seed_generator, rollbacks, lanes=lanes, place=place)


def make_evaluator(
    kit: Kit, model: WorkerModel, regions: Mapping[str, Region], seed_generator: Callable[[int], object]
) -> Evaluator | None:
    """`data-outputs` is among the regions where a metric needs all outputs at once."""
    if kit.val is None or kit.panel is None:
        return None
    feed = feeding(model, _feed(kit.val, regions["data-val"], kit.seed))
    outputs = wanted = None
    if kit.outputs is not None:
        wanted = _targets(kit.val, regions["data-val"])
        outputs = kit.outputs.view(regions["data-outputs"])
    return Evaluator(model.runs, model.loss, feed, kit.seed, kit.panel, outputs, wanted, kit.precision, seed_generator)


def _targets(split: Split, region: Region) -> Tensor:
    """(N, …)"""
    if isinstance(split.data, RingSpec):
        return Ring(region, split.data).targets()
    return targets(attach(split.data, region))


def _feed(split: Split, region: Region, seed: int, *, copies: bool = False) -> Feed:
    if isinstance(split.data, RingSpec):
        return RingFeed(Ring(region, split.data), split.plan.batch_size, copies=copies)
    return open_feed(attach(split.data, region), split.plan, seed=seed, order=split.order)
