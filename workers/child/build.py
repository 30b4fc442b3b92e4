"""Build a worker: receive the set-up, map the shared memory, build the trainer. Then `worker_loop.py` pulls items."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from hogwild import host
from hogwild.data.rollout import Rollout, RolloutFeed
from hogwild.devices.kinds import CPU
from hogwild.feeds.batch import Feed
from hogwild.feeds.packed import attach
from hogwild.feeds.ring import Ring, RingFeed, RingSpec
from hogwild.host.thread_pools import limit_pools
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.parameters.shared_model import WorkerModel
from hogwild.scheduling.lane_schedule import steps_of
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Control, Row, Scoreboard
from hogwild.training import torch_settings
from hogwild.training.compiled_model import make as make_runs
from hogwild.training.evaluator import Evaluator, Scorer
from hogwild.training.loss_scaler import scaler_for
from hogwild.training.model_steps import LaneState
from hogwild.training.place import CpuPlace, open_place
from hogwild.workers.child.adoption import adopt, limit_threads
from hogwild.workers.child.compile_once import make_model_ready, make_ready
from hogwild.workers.child.fused_trainer import make_fused
from hogwild.workers.child.profiler import Profile, make_profile
from hogwild.workers.child.spec import DataSpec, Numerics, WorkerSpec
from hogwild.workers.child.trainer import Trainer
from hogwild.workers.messages import Setup, Start


def build_trainer(start: Start, setup: Setup, descriptors: list[int]) -> Trainer:
    regions = adopt(setup, descriptors)
    if setup.cores:
        host.set_affinity(setup.cores)  # before any thread exists: threads keep the affinity they were made with
    torch.set_flush_denormal(setup.flush_denormal)  # first: threads made later inherit it
    limit_threads(setup.threads)
    host.keep_freed_memory()
    board = Scoreboard(regions.pop("scoreboard"), setup.rows)
    row = Row(board, setup.worker)
    row.beat()
    worker_spec: WorkerSpec = cloudpickle.loads(regions.pop("worker_spec").read_bytes())
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
    profile = make_profile(worker_spec.rules.profile, row.worker)

    make = partial(_numerics, worker_spec, structure, regions, row, lifeline, profile)
    return Trainer(worker_spec, make, row, profile)


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
    updates = row.board.job_updates()
    compute, data, seed = worker_spec.compute, worker_spec.data, worker_spec.rules.seed
    place = open_place(compute.devices[row.worker] if compute.devices else CPU, compute.device_handles)
    with contextlib.ExitStack() as broken_off:
        model = place.attach(structure, model_regions, row, updates)
        broken_off.callback(model.close)
        model.runs = make_runs(compute.compile, model.model)
        evaluator, scorer = make_evaluator(worker_spec, model, regions, place), None
        if compute.progressive and compute.panel is not None:
            scorer = Scorer(model.runs, model.loss, compute.panel, compute.precision)
        if compute.fused is not None:
            fused, sentence = make_fused(worker_spec, model, regions["data-train"], row, lifeline, scorer)
            print(sentence, flush=True)
            add_ranking(evaluator, worker_spec, model, regions, row, lifeline)
            broken_off.pop_all()
            return Numerics(model, None, None, evaluator, place, rollbacks, fused)
        plan = data.train.plan
        lanes = None if plan.lanes is None else LaneState(model.runs, steps_of(plan))
        update = place.update(
            model,
            grad_clip=compute.grad_clip,
            enter=profile.enter,
            forward=lanes,
            updates=updates,
            loss_names=compute.loss_names,
            precision=compute.precision,
            scaler=scaler_for(compute.precision, row),
        )
        if (rows := update.compiled) is not None:  # sparse gradients, applied by compiled rules
            print(make_ready(rows.name, rows.warm_up, (), row, lifeline), flush=True)
        host_feed = _feed("train", data.train, regions, model, seed, copies=data.copies_slots)
        feed = place.feed(model, host_feed, data.transform, seed)
        if compute.compile == "inductor":
            print(make_model_ready(worker_spec, model, update, feed, evaluator, row, lifeline), flush=True)
        add_ranking(evaluator, worker_spec, model, regions, row, lifeline)
        broken_off.pop_all()
        return Numerics(model, update, feed, evaluator, place, rollbacks, lanes=lanes, scorer=scorer)


def add_ranking(
    evaluator: Evaluator | None,
    worker_spec: WorkerSpec,
    model: WorkerModel,
    regions: Mapping[str, Region],
    row: Row,
    lifeline: int | None,
) -> None:
    """Give the evaluator the metrics of recommenders, if there are any, with their kernels; the parent has checked that
    the data suits. Last, so that nothing is ranked while a model is compiled."""
    panel, data = worker_spec.compute.panel, worker_spec.data
    if evaluator is None or panel is None or not panel.ranked:
        return
    from hogwild.kernels import signatures
    from hogwild.metrics.ranking import NAME, Ranking  # numba takes half a second

    sides: Any = ((data.train, regions["data-train"]), (data.val, regions["data-val"]))
    train, val = (split.data.attach(region).arrays() for split, region in sides)
    marks = regions["data-covered"].array("u1", data.covered) if panel.coverages else np.zeros(data.covered, np.uint8)
    evaluator.ranking = Ranking.of(panel.ranked, model.model, train, val, marks)
    kernels = [signatures.ranking()]
    print(make_ready(NAME, evaluator.ranking.warm_up, kernels, row, lifeline), flush=True)


def make_evaluator(
    worker_spec: WorkerSpec, model: WorkerModel, regions: Mapping[str, Region], place: CpuPlace
) -> Evaluator | None:
    """Build the evaluator, if any. The region `data-outputs` exists if a metric needs all outputs at once."""
    compute, data, seed = worker_spec.compute, worker_spec.data, worker_spec.rules.seed
    if data.val is None or compute.panel is None:
        return None
    feed = place.feed(model, _feed("val", data.val, regions, model, seed))
    outputs = wanted = weights = None
    if data.outputs is not None:
        wanted = _targets(data.val, regions["data-val"])
        outputs = data.outputs.view(regions["data-outputs"])
        if isinstance(model.loss, WeightedLoss):
            assert not isinstance(data.val.data, RingSpec | Rollout)  # `hogwild.job.weights` refuses it
            weights = attach(data.val.data, regions["data-val"]).weights()
    shared = outputs, wanted, compute.precision, place.seed, weights
    return Evaluator(model.runs, model.loss, feed, seed, compute.panel, *shared)


def _targets(split: DataSpec, region: Region) -> Tensor:
    """Return the targets (N, …) of a data set."""
    if isinstance(split.data, RingSpec):
        return Ring(region, split.data).targets()
    assert not isinstance(split.data, Rollout)  # metrics of all outputs are refused before the start
    return attach(split.data, region).targets()


def _feed(
    name: str, split: DataSpec, regions: Mapping[str, Region], model: WorkerModel, seed: int, *, copies: bool = False
) -> Feed:
    if isinstance(split.data, Rollout):
        return RolloutFeed(split.data, model.model, seed, is_val=name == "val")
    region = regions[f"data-{name}"]
    if isinstance(split.data, RingSpec):
        return RingFeed(Ring(region, split.data), split.plan.batch_size, copies=copies)
    return attach(split.data, region).feed(split.plan, seed=seed, order=split.order)
