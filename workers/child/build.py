"""The role of a child process: its task makes it a trainer, a loader, a reader, the trial of the job's code, the owner
of a GPU, a cluster's communicator, or a predictor. A trainer is built here; then `trainer.py` pulls items.

The kernels, or the model, of a job are compiled by one process, for all:

    there already     ──► loaded by the fork server: nothing to do
    cached, complete? ──► load
    else              ──► claim it (`artifact_cache.py`), compile, cache; while another process has the claim, beat

Nobody waits on a lock: a claim is asked for again and again, and ends with its process. One that dies while compiling
leaves a folder under a temporary name, which nobody reads.

A model under torch.compile is compiled by its first calls. One worker makes all that the job needs before the first
batch is leased, and changes nothing else:

    the first and the last batch (it may be smaller): forward and backward; of the validation data: forward
    streamed data, of which nothing is read yet: batches of the same sizes     (`Streamed.typical`)
    parameters frozen until an update: all of the above before each thaw, and after it
    afterwards: no gradient, the buffers and the random state as before"""

import contextlib
import importlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hogwild import host
from hogwild.data.rollout import Rollout, RolloutFeed
from hogwild.devices.kinds import CPU
from hogwild.errors import ModelError
from hogwild.feeds.batch import Feed, transformed
from hogwild.feeds.drawn_order import ORDER_REGIONS, DrawnOrder
from hogwild.feeds.packed import PackedSpec, attach
from hogwild.feeds.resident import ResidentData
from hogwild.feeds.ring import Ring, RingFeed, RingSpec
from hogwild.host.thread_pools import limit_pools
from hogwild.kernels import signatures
from hogwild.kernels.fused import Chunk, Declared, Fusable, FusedUpdate, Streaming
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.parameters.worker_model import WorkerModel
from hogwild.scheduling.batch_plan import SampledPlan
from hogwild.scheduling.schedules import steps_of
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Control, Phase, Row, Scoreboard
from hogwild.storage.artifact_cache import CompiledCache, made_ready
from hogwild.training import torch_settings
from hogwild.training.autograd_update import AutogradUpdate
from hogwild.training.compiled_model import ModelCache, refusing
from hogwild.training.compiled_model import make as make_runs
from hogwild.training.evaluator import Evaluator, Scorer
from hogwild.training.loss_scaler import scaler_for
from hogwild.training.model_steps import LaneState
from hogwild.training.place import CpuPlace, open_place
from hogwild.workers.child.profiler import Profile, make_profile
from hogwild.workers.child.spec import DataSpec, Fused, Numerics, WorkerSpec
from hogwild.workers.child.trainer import Loop, Trainer, serve
from hogwild.workers.messages import (
    CommunicateTask,
    Leaving,
    LoadTask,
    OwnTask,
    ParentGone,
    PredictTask,
    Report,
    Setup,
    Start,
    TrialTask,
    receive_task,
)
from hogwild.workers.warning_reports import hearing_warnings

if TYPE_CHECKING:
    from hogwild.kernels.hot_rows import HotRows
    from hogwild.kernels.signatures import Kernels

Parts = Sequence[tuple[CompiledCache, Callable[[], object]]]  # caches, each with what calls its content
LOOK_MS = 20  # between two looks at the cache
SLICE_NS = 30_000_000  # on a core that several workers share; a pause waits for a whole slice of each of them
# The module of each role but the trainer's.
MODULES = {
    LoadTask: "loader",
    PredictTask: "predictor",
    TrialTask: "trial",
    OwnTask: "gpu_owner",
    CommunicateTask: "communicator",
}


def run(start: Start, channel: socket.socket, leaving: Leaving) -> int:
    """Receive the task of this process and carry it out; return its exit status."""

    def send_warning(text: str, place: str) -> None:
        with contextlib.suppress(ParentGone):  # the next message of ours will see it
            Report("warning", detail=text, place=place).send(channel)

    def receive_and_build() -> "Trainer | Loop":
        task, descriptors = receive_task(channel)
        if task.log:
            redirect_to_files(task.log, task.stacks)
        if isinstance(task, OwnTask | CommunicateTask):
            heard.close()  # its socket is for answers to others than the group
        # Each is for one process of few jobs. Imported now: below, the user's folders come first on sys.path, and what
        # a module of ours imports must not be a user's `fractions.py`.
        if (module := MODULES.get(type(task))) is not None:
            importlib.import_module(f"hogwild.workers.child.{module}")
        sys.path[:] = task.sys_path
        torch_settings.apply(task.torch_settings)
        regions = {
            name: Region.attach(descriptor, nbytes, writable=not isinstance(task, PredictTask) or name == "beats")
            for (name, nbytes), descriptor in zip(task.regions, descriptors, strict=True)
        }
        if isinstance(task, Setup):
            return build_trainer(start, task, regions)
        if not isinstance(task, OwnTask):
            limit_threads(1)
        if isinstance(task, LoadTask):
            from hogwild.workers.child.loader import load

            return load(start, channel, leaving, task, regions)
        if isinstance(task, PredictTask):
            from hogwild.workers.child.predictor import PredictorLoop

            return PredictorLoop(start, channel, leaving, task, regions)
        if isinstance(task, TrialTask):
            from hogwild.workers.child.trial import try_out

            return try_out(channel, task, regions)
        if isinstance(task, OwnTask):
            from hogwild.workers.child.gpu_owner import serve_flats

            serve_flats(channel, task.device, regions)
            raise ParentGone("nothing is to be owned any more")
        assert isinstance(task, CommunicateTask)
        from hogwild.workers.child.communicator import Communicator  # torch.distributed

        return Communicator(start, channel, leaving, task, regions)

    with contextlib.ExitStack() as heard:
        heard.enter_context(hearing_warnings(send_warning))
        return serve(start, channel, leaving, receive_and_build)


def redirect_to_files(log: str, stacks: str) -> None:
    """Redirect standard output and error to the worker's own log, opened for appending: one write is one line, with no
    shared buffer or lock, and no full pipe can block. Earlier output is copied there and removed from memory, so that
    the supervisor does not copy it again. Stacks go to their own file."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = os.dup(2)
    with open(log, "ab", buffering=0) as file:
        file.write(os.pread(words, os.fstat(words).st_size, 0))
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    os.ftruncate(words, 0)
    os.close(words)
    host.write_stacks_to(os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))


def limit_threads(threads: int) -> None:
    """Let torch compute with so many threads, one operation at a time."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # torch allows that once
        torch.set_num_interop_threads(1)


# ---- a trainer ---------------------------------------------------------------------------------------------------


def build_trainer(start: Start, setup: Setup, regions: dict[str, Region]) -> Trainer:
    if setup.cores:
        host.set_affinity(setup.cores)  # before any thread exists: threads keep the affinity they were made with
    torch.set_flush_denormal(setup.flush_denormal)  # first: threads made later inherit it
    limit_threads(setup.threads)
    host.keep_freed_memory()
    host.compute_longer_at_a_time(SLICE_NS)
    board = Scoreboard(regions.pop("scoreboard"), setup.rows)
    row = Row(board, setup.worker)
    row.beat()
    worker_spec: WorkerSpec = pickle.loads(regions.pop("worker_spec").read_bytes())
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
    device = compute.devices[row.worker] if compute.devices else CPU
    place = open_place(device, compute.device_handles, graphs=compute.graphs)
    fused = update = feed = lanes = scorer = None
    with contextlib.ExitStack() as broken_off:
        model = place.attach(structure, model_regions, row, updates)
        broken_off.callback(model.close)
        model.runs = make_runs(compute.compile, model.model)
        evaluator = _evaluator(worker_spec, model, regions, place)
        if compute.progressive and compute.panel is not None:
            scorer = Scorer(model.runs, model.loss, compute.panel, compute.precision)
        if compute.fused is not None:
            fused, sentence = _fused(worker_spec, model, regions["data-train"], row, lifeline, scorer)
            print(sentence, flush=True)
        else:
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
                print(_make_model_ready(worker_spec, model, update, feed, evaluator, row, lifeline), flush=True)
        panel = compute.panel
        if evaluator is not None and panel is not None and panel.ranked:  # last: nothing is ranked while compiling
            from hogwild.metrics.ranking import NAME, Ranking  # numba takes half a second

            sides: Any = ((data.train, regions["data-train"]), (data.val, regions["data-val"]))
            train, val = (split.data.attach(region).arrays() for split, region in sides)  # the parent has checked both
            shape = data.covered
            marks = regions["data-covered"].array("u1", shape) if panel.coverages else np.zeros(shape, np.uint8)
            evaluator.ranking = ranking = Ranking.of(panel.ranked, model.model, train, val, marks)
            print(make_ready(NAME, ranking.warm_up, [signatures.ranking()], row, lifeline), flush=True)
        broken_off.pop_all()
    if fused is not None:
        return Numerics(model, None, None, evaluator, place, rollbacks, fused)
    return Numerics(model, update, feed, evaluator, place, rollbacks, lanes=lanes, scorer=scorer)


def _evaluator(
    worker_spec: WorkerSpec, model: WorkerModel, regions: Mapping[str, Region], place: CpuPlace
) -> Evaluator | None:
    """Build the evaluator, if any. The region `data-outputs` exists if a metric needs all outputs at once."""
    compute, data, seed = worker_spec.compute, worker_spec.data, worker_spec.rules.seed
    if data.val is None or compute.panel is None:
        return None
    feed = place.feed(model, _feed("val", data.val, regions, model, seed))
    outputs = wanted = weights = None
    if data.outputs is not None:
        spec, region = data.val.data, regions["data-val"]
        assert not isinstance(spec, Rollout)  # metrics of all outputs are refused before the start
        outputs = data.outputs.view(regions["data-outputs"])
        if isinstance(spec, RingSpec):
            wanted = Ring(region, spec).targets()  # (N, …), as below
            assert not isinstance(model.loss, WeightedLoss)  # `hogwild.job.weights` refuses it
        else:
            wanted = attach(spec, region).targets()
            weights = attach(spec, region).weights() if isinstance(model.loss, WeightedLoss) else None
    shared = outputs, wanted, compute.precision, place.seed, weights
    return Evaluator(model.runs, model.loss, feed, seed, compute.panel, *shared)


def _feed(
    name: str, split: DataSpec, regions: Mapping[str, Region], model: WorkerModel, seed: int, *, copies: bool = False
) -> Feed:
    if isinstance(split.data, Rollout):
        return RolloutFeed(split.data, model.model, seed, is_val=name == "val")
    region = regions[f"data-{name}"]
    if isinstance(split.data, RingSpec):
        return RingFeed(Ring(region, split.data), split.plan.positions(1)[0], copies=copies)
    data = attach(split.data, region)
    if isinstance(split.plan, SampledPlan):
        assert isinstance(data, ResidentData), "packed data have no sampler"
        return data.feed(split.plan, seed=seed, order=DrawnOrder([regions[place] for place in ORDER_REGIONS]))
    return data.feed(split.plan, seed=seed, order=split.order)


def _fused(
    worker_spec: WorkerSpec,
    model: WorkerModel,
    region: Region,
    row: Row,
    lifeline: int | None,
    scorer: Scorer | None,
) -> tuple[Fused, str]:
    """Build the fused update; return it with a log message on its kernels."""
    update = cast(Fusable, model.model).fused(model.loss, model.optimizer)
    if isinstance(update, str):
        raise ModelError(
            f"the model returned a fused update in the parent process, but not in a worker: {update}",
            code="model/fused",
        )
    split, typical = worker_spec.data.train, worker_spec.data.typical
    if isinstance(split.data, RingSpec):
        assert isinstance(update, Streaming)
        bind = partial(_bind_batch, update, update.arrays_of, model)
        *inputs, target = typical[0]
        bind(inputs, target)  # to be compiled
        feed = RingFeed(Ring(region, split.data), split.plan.positions(1)[0])
        fused = Fused(update, split.plan, None, (), model.state.count, feed, bind)
    else:
        assert isinstance(split.data, PackedSpec), "a fused update reads packed data, or a stream"
        data, seed = split.data.attach(region), worker_spec.rules.seed
        hot = _hot_rows(model, update, worker_spec.compute.fused or {})
        update.bind(model.model, model.optimizer, data.arrays(), hot)
        fused = Fused(update, split.plan, data.order(split.order, seed), [*hot.values()], model.state.count)
        if scorer is not None:
            fused.feed = data.feed(split.plan, seed=seed, order=split.order)
    fused.scorer = scorer

    def run_on_nothing() -> None:
        update.run(Chunk(np.empty(0, np.int64), 0))
        fused.refresh()
        fused.flush()

    kernels = [update.kernels] if isinstance(update, Declared) else []
    kernels += [signatures.hot_rows()] if kernels and fused.hot else []
    sentence = make_ready(update.name, run_on_nothing, kernels, row, lifeline)
    fused.refresh()
    return fused, sentence


def _bind_batch(
    update: FusedUpdate, arrays_of: Callable[..., Any], model: WorkerModel, inputs: Sequence[Tensor], target: Tensor
) -> np.ndarray:
    """Bind the update to a batch of a stream; return the batch's rows (n,)."""
    update.bind(model.model, model.optimizer, arrays_of(model.model, inputs, target), {})
    return np.arange(len(target))


def _hot_rows(model: WorkerModel, update: FusedUpdate, chosen: Mapping[str, np.ndarray]) -> "dict[str, HotRows]":
    """Return private copies of the chosen rows of each parameter of the side (key: its name) and of its optimizer state
    (key: `name.key`)."""
    if not chosen:
        return {}
    from hogwild.kernels.hot_rows import HotRows  # numba takes half a second

    found: dict[str, HotRows] = {}
    for side in update.sides:
        for name in side.params if side.array in chosen else ():
            param, rows = model.model.get_parameter(name), chosen[side.array]
            found[name] = HotRows(param.detach().numpy(), rows)  # of an array (R, …)
            for key, value in model.optimizer.state.get(param, {}).items():
                if getattr(value, "ndim", 0) and len(value) == len(param):
                    found[f"{name}.{key}"] = HotRows(value.numpy(), rows)
    return found


# ---- compiled once -----------------------------------------------------------------------------------------------


def make_ready(
    name: str, run: Callable[[], object], kernels: "Sequence[Kernels]", row: Row, lifeline: int | None
) -> str:
    """Make every kernel of `name`, an update or a metric, callable: those of ours, or without any all that `run` calls,
    on empty data. Return a log message: there already, loaded or compiled, and the time. `lifeline`: None in the
    supervisor itself (`procs: 0`). Raises ParentGone."""
    from hogwild.kernels.compiling import compile_all, is_ready  # numba takes half a second
    from hogwild.kernels.kernel_cache import KernelCache

    parts: Parts = [(KernelCache.of(one), partial(compile_all, one)) for one in kernels if not is_ready(one)]
    if not kernels:
        parts = [(KernelCache.of(name), run)]
    return make_all_ready(f"kernels of {name}", parts, row, lifeline)


def make_all_ready(what: str, parts: Parts, row: Row, lifeline: int | None) -> str:
    """As `make_ready`, for any caches."""

    def pause() -> None:
        if host.wait_readable([] if lifeline is None else [lifeline], LOOK_MS):
            raise ParentGone
        row.beat()

    began_s = time.monotonic()
    row.enter(Phase.COMPILING)
    how = dict.fromkeys(made_ready(cache, run, pause) for cache, run in parts) or ("there already",)
    row.enter(Phase.BOOTING)
    return f"{what}: {' and '.join(how)} in {time.monotonic() - began_s:.1f} s"


def _make_model_ready(
    worker_spec: WorkerSpec,
    model: WorkerModel,
    update: AutogradUpdate,
    feed: Feed,
    evaluator: Evaluator | None,
    row: Row,
    lifeline: int | None,
) -> str:
    """Make the compiled model ready; return a log message. Raises ModelError, ParentGone."""
    data = worker_spec.data

    def batches() -> Iterator[tuple[tuple[Any, ...], Tensor]]:
        """Yield (inputs, target) of every batch size, on the model's device; typical ones for unread streamed data."""
        for fields in data.typical:
            fresh = tree_map(torch.clone, fields)
            changed = fresh if data.transform is None else transformed(data.transform, fresh)
            *inputs, target = tree_map(lambda leaf: leaf.to(model.params[0].device), [*changed])
            yield tuple(inputs), target
        for number in () if data.typical else sorted({0, data.train.plan.batches - 1}):
            batch = feed.gather(0, number)
            yield batch.inputs, batch.target

    def run() -> None:
        model.keep_buffers()
        try:
            for updates in (0, *model.thaws):  # always from 0: this order decides which code is compiled for any size
                update.start_at(updates)
                for inputs, target in batches():
                    update.backward(inputs, target)
                    row.beat()
                if evaluator is not None and data.val is not None:
                    evaluator.sums(sorted({0, data.val.plan.batches - 1}), row.beat)
        finally:
            update.start_at(row.board.job_updates())
            model.restore_buffers()

    cache = ModelCache.of(worker_spec.compute.compile_key, worker_spec.compute.compile_scratch)
    undisturbed = torch.random.fork_rng(devices=[])(refusing(run))  # restores the random state after each call
    return make_all_ready("the compiled model", [(cache, undisturbed)], row, lifeline)
