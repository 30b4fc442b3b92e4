"""The plan of a job: everything that is decided before its first worker starts, and why. Pure functions make it, and
each knows more than the one before:

    plan_job     job, machine               processes, threads, cores, loaders, nodes, resume
    placed       + its devices              device of each worker, place of the parameters     (`device_placement.py`)
    completed    + what the objects say     update, exchange, state, feed, ring, grid; memory  (`hogwild/job/facts.py`)

`plan`, `check --deep`, `--dry-run`, env.json, the first lines of a job and its summary read it. Whatever needs one of
these answers takes the plan: nothing asks the machine, or decides, a second time. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hogwild.config.load import Job
from hogwild.config.schema import loaders_for, surely_streams
from hogwild.errors import UsageError
from hogwild.formatting import counted
from hogwild.planning.cpu_plan import MachineFacts, Plan
from hogwild.scheduling.batch_plan import EpochPlan, SampledPlan, StreamPlan, updates_planned
from hogwild.scheduling.stream_schedule import fewest_slots, too_few_slots
from hogwild.scheduling.work_queue import Limits

if TYPE_CHECKING:  # they import torch or numpy
    from hogwild.feeds.ring import RingSpec
    from hogwild.scheduling.grid_plan import Shape, TableSide

CPU, REPLICA, SHARED = "cpu", "cuda-replica", "cuda-shared"
SPARE_SLOTS = 2  # times the minimum: a loader that is slow for a while delays no worker
# A kernel trains a batch in less time than the supervisor takes for a turn, which then has many batches.
KERNEL_SLOTS, KERNEL_BYTES = 256, 4 << 20  # at most


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan(Plan):
    """The decisions about one job. Those below `is_resumed` are of a job whose objects are built (`is_complete`)."""

    job: Job
    devices: tuple[str, ...] = ()  # of each worker; empty: the CPU
    placement: str = CPU  # of the parameters
    loaders: int = 1  # processes that read the training data, if it is streamed
    nodes: int = 0  # of a cluster; 0: this machine alone
    is_resumed: bool = False
    feed: str = ""  # resident, packed, stream or rollout
    epoch: EpochPlan | None = None  # the division of an epoch into batches, before it is laid out as a grid
    update: str = ""  # autograd, or fused: the model's own kernel
    why: str = ""  # of the update
    exchange: str = ""  # direct or delta
    state: str = ""  # of the optimizer: private or shared
    ring: "RingSpec | None" = None  # of streamed training data
    grid: "Shape | None" = None  # of two-sided data
    copied: str = ""  # the array of two-sided data, of whose rows each worker has private copies
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes of shared memory, by region
    compile_key: str = ""  # of the model's compiled code in the cache (inductor)

    @property
    def is_complete(self) -> bool:
        return bool(self.update)

    @property
    def is_fused(self) -> bool:
        return self.update == "fused"

    @property
    def leased_threads(self) -> int:
        """Threads of each worker in the job's lease on cores; 0: what others leave."""
        return 0 if self.follows else 1 if self.is_fused else self.threads

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def writers(self) -> int:
        """Workers that may write the parameters, those of all nodes."""
        return self.rows * max(1, self.nodes)

    @property
    def may_copy(self) -> bool:
        """True if workers of a kernel may have private copies of rows: delta, by the job."""
        return self.writers > 1 and self.job.train.exchange == "delta"

    @property
    def updates(self) -> int:
        """Updates of the whole job if nothing is skipped; 0 if unknown."""
        assert self.epoch is not None
        return updates_of(self.job, self.epoch)

    @property
    def early_loaders(self) -> int:
        """Loaders that may start before the data is read: the job file alone shows that there will be some."""
        return self.loaders if surely_streams(self.job) else 0

    def limits(self) -> Limits:
        """Return the limits of the work queue, which a resize changes."""
        job = self.job
        return Limits(
            procs=max(1, self.procs),
            epochs=job.train.epochs,
            accumulate=job.train.accumulate,
            max_updates=job.train.max_updates,
            max_attempts=job.supervise.max_item_attempts,
            redo_indeterminate=job.supervise.on_indeterminate == "redo",
        )

    def decisions(self) -> dict[str, Any]:
        """Return the complete plan in the words of `check --deep`, `--dry-run` and env.json."""
        assert self.epoch is not None
        return {
            "plan": self.reason,
            "procs": self.procs,
            "threads": self.threads,
            "feed": self.feed,
            "exchange": self.exchange,
            "optimizer_state": self.state,
            "update": self.why,
            "planned_updates": self.updates or None,
            "shared_memory_bytes": sum(self.memory.values()),
        }

    def record(self) -> dict[str, Any]:
        """Return the complete plan as plain values, for env.json."""
        machine = {name: getattr(self, name) for name in Plan.__dataclass_fields__}
        ring = None if self.ring is None else {**self.ring.record(), "loaders": self.ring.loaders}
        return {
            **machine,
            **{name: getattr(self, name) for name in ("devices", "placement", "nodes", "is_resumed", "seed")},
            **{name: value for name, value in self.decisions().items() if name != "plan"},  # it is the reason
            "grid": None if self.grid is None else list(self.grid),
            "ring": ring,
            "memory": dict(self.memory),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts about the objects of a job, on which its plan depends. `slot`: the ring of a stream with any number
    of slots; `sides`: tables whose rows the kernel writes; `grid_before`: of the run that is resumed (`rows_apart`)."""

    feed: str
    epoch: EpochPlan
    why: str
    is_fused: bool = False
    has_named_rows: bool = False  # a `NamedEmbedding`
    keeps_to_cpu: str = ""  # the reason for training on the CPU if the job leaves it open
    adds_sums: bool = False  # FTRL: its sums make the weights
    suits_sharing: bool = False  # several workers are better off with one optimizer state
    slot: "RingSpec | None" = None
    sides: "tuple[TableSide, ...]" = ()
    grid_before: "Shape | None" = None


def plan_job(job: Job, machine: MachineFacts, *, nodes: int = 0, is_resumed: bool = False) -> JobPlan:
    """Make the plan as far as job and machine tell. Raises UsageError."""
    train, procs, why = job.train, job.train.procs, ""
    if procs == "auto" and train.graphs == "auto" and train.device.partition(":")[2] and not train.device_per_worker:
        # One process that replays graphs was 2.2 to 3.7 times as fast as four workers (benchmarks/results/gpu.md).
        procs, why = 1, "one for one GPU, where it replays its updates"
    made = machine.plan(procs, train.threads, pin=train.pin)
    reason = made.reason.replace("as given", why, 1) if why else made.reason
    made = replace(made, procs_max=train.procs_max or 0, reason=reason)
    _check_lanes(job, made)
    return JobPlan(
        **{name: getattr(made, name) for name in Plan.__dataclass_fields__},
        job=job,
        loaders=loaders_for(job, made.procs),
        nodes=nodes,
        is_resumed=is_resumed,
    )


def completed(plan: JobPlan, facts: JobFacts) -> JobPlan:
    """Decide what depends on the objects of the job. Raises UsageError."""
    if plan.nodes:
        _check_cluster(facts.epoch, plan.nodes)
        if facts.has_named_rows:
            raise UsageError(
                "the model has a NamedEmbedding, whose ids get other rows on each node, and nodes exchange tensors row "
                "by row; use nn.Embedding, or train on one machine",
                code="cluster/named-rows",
            )
    if facts.keeps_to_cpu and plan.devices:
        reason = f"{plan.reason}, but the GPU is not used: {facts.keeps_to_cpu}"
        plan = replace(plan, devices=(), placement=CPU, reason=reason)
    grid, copied = None, ""
    if facts.sides:
        from hogwild.scheduling.grid_plan import rows_apart  # it imports numpy

        grid, copied = rows_apart(
            facts.sides, facts.epoch.samples, plan.writers, facts.grid_before, may_copy=plan.may_copy
        )
    return replace(
        plan,
        feed=facts.feed,
        epoch=facts.epoch,
        update="fused" if facts.is_fused else "autograd",
        why=facts.why,
        # A kernel has one thread; a compiled model is made for a number of threads.
        follows=plan.follows and not facts.is_fused and plan.job.model.compile != "inductor",
        exchange=exchange_of(plan.job, plan.rows, fused=facts.is_fused, placement=plan.placement),
        state=optimizer_state_of(plan, facts),
        ring=None if facts.slot is None else replace(facts.slot, slots=slots_of(plan, facts), loaders=plan.loaders),
        grid=grid,
        copied=copied,
    )


def grid_of(record: Mapping[str, Any]) -> "Shape | None":
    """Return the grid of the earlier attempt from its env.json, or NO_GRID: a resume continues in the same cells. None:
    of a version whose grids were others; the checkpoint will be refused."""
    from hogwild.scheduling.grid_plan import NO_GRID

    match record.get("plan", {}).get("grid", record.get("grid")):  # older runs have it beside the plan
        case [int(rows), int(columns), int(starts)]:
            return rows, columns, starts
        case None:
            return NO_GRID
    return None


def exchange_of(job: Job, procs: int, *, fused: bool, placement: str) -> str:
    """Return the exchange of a job, direct or delta. `auto` is direct: delta may be faster, but its updates are older.
    One worker equals the plain loop bit by bit; a kernel writes the flats, in delta with private copies of hot rows."""
    if placement != CPU:
        return "direct" if placement == SHARED else "delta"
    return "delta" if (job.train.exchange == "delta" and procs > 1 and not fused) else "direct"


def optimizer_state_of(plan: JobPlan, facts: JobFacts) -> str:
    """Return private or shared, the optimizer state of the workers."""
    job = plan.job
    if job.optimizer.state != "auto":
        return job.optimizer.state
    # Private if parameters are copied; kernels are half as fast if others write their accumulators' cache lines.
    # But with sums of its own a worker of FTRL would take a weight for 0 that is none to all together.
    if facts.adds_sums and plan.placement == CPU:
        return "shared"
    is_private = job.train.exchange == "delta" or plan.placement != CPU or facts.is_fused
    return "shared" if facts.suits_sharing and plan.rows > 1 and not is_private else "private"


def slots_of(plan: JobPlan, facts: JobFacts | None = None) -> int:
    """Return the number of slots of the ring. It must hold the leases of each worker, an exchange each, and the slots
    that each loader fills. Raises UsageError for too few. If delta is not requested but possible, its exchanges are as
    long as the ring allows; on a device, where each is a copy in both directions, the ring fits full ones.
    `facts`: once they are known."""
    train, data, procs, loaders = plan.job.train, plan.job.data, plan.rows, plan.loaders
    exchange = train.accumulate * (train.sync_every if train.exchange == "delta" else 1)
    least = fewest_slots(procs, loaders, exchange)
    if data.slots == "auto":
        is_copied = procs > 1 and plan.placement == REPLICA
        full = fewest_slots(procs, loaders, train.accumulate * train.sync_every)
        slot = facts.slot if facts is not None and facts.is_fused else None
        many = 0 if slot is None else min(KERNEL_SLOTS, KERNEL_BYTES // max(1, slot.slot_bytes))
        return max(SPARE_SLOTS * least, full if is_copied else 0, many)
    if data.slots < least:
        words = too_few_slots(data.slots, least, procs, loaders, exchange)
        raise UsageError(f"data.slots: {words}", code="config/contradiction")
    return data.slots


def updates_of(job: Job, epoch: EpochPlan) -> int:
    """Return the number of updates of the whole job if nothing is skipped; 0 if unknown."""
    train = job.train
    return updates_planned(epoch, epochs=train.epochs, accumulate=train.accumulate, max_updates=train.max_updates)


def _check_lanes(job: Job, planned: Plan) -> None:
    lanes = job.data.lanes
    if lanes is not None and planned.rows > lanes:
        raise UsageError(
            f"data.lanes is {lanes}, but there are {planned.procs} workers (train.procs: {job.train.procs}), and each "
            f"needs a lane; set train.procs={lanes}, or raise data.lanes",
            code="config/contradiction",
        )


def _check_cluster(epoch: EpochPlan, nodes: int) -> None:
    """Raise UsageError for data that cannot be shared out over so many nodes."""
    if isinstance(epoch, StreamPlan):
        raise UsageError(
            "data.train is an iterable, which nodes cannot divide: a cluster needs data with a length and an index",
            code="cluster/iterable",
        )
    if isinstance(epoch, SampledPlan):
        raise UsageError(
            "data.sampler: each node of a cluster would draw epochs of its own; leave the sampler out, or train on one "
            "machine",
            code="cluster/sampler",
        )
    if epoch.batches < nodes:
        raise UsageError(
            f"an epoch has {counted(epoch.batches, 'batch')}, too few for {nodes} nodes: lower data.batch_size, or use "
            "fewer nodes",
            code="cluster/too-few-batches",
        )
