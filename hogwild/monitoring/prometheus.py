"""Export of a snapshot in Prometheus' text format 0.0.4, for node_exporter's textfile collector or any other reader of
`metrics.prom` in the run directory.

Values that only grow are counters, and their names end in `_total`. Every sample carries the run's name and directory,
because a collector reads the files of several runs at once.
https://prometheus.io/docs/instrumenting/exposition_formats/"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hogwild.monitoring.run_status import JobSnapshot, WorkerSnapshot

FILE = "metrics.prom"
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # in the value of a label
STATES = (
    *("starting", "running", "evaluating", "saving", "paused", "stopping"),
    *("succeeded", "stopped", "cancelled", "failed"),
)

Sample = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Values of None (not measured) are left out."""

    name: str
    words: str
    samples: Sequence[Sample]

    @classmethod
    def one(cls, name: str, words: str, value: float | None) -> "Family":
        return cls(name, words, [({}, value)])

    def lines(self, common: Mapping[str, str]) -> Iterator[str]:
        known = [(labels, value) for labels, value in self.samples if value is not None]
        if known:
            yield f"# HELP hogwild_{self.name} {self.words}"
            yield f"# TYPE hogwild_{self.name} {'counter' if self.name.endswith('_total') else 'gauge'}"
        for labels, value in known:
            escaped = ((key, text.translate(ESCAPED)) for key, text in {**common, **labels}.items())
            pairs = ",".join(f'{key}="{text}"' for key, text in escaped)
            yield f"hogwild_{self.name}{{{pairs}}} {_number(value)}"


def exposition(job: JobSnapshot) -> str:
    """Return the content of the whole file."""
    common = {"job": job.name, "run": job.run_dir}
    return "".join(f"{line}\n" for family in _families(job) for line in family.lines(common))


def _families(job: JobSnapshot) -> Iterator[Family]:
    one = Family.one
    states = [({"state": state}, float(state == job.state)) for state in STATES]
    metrics = [({"metric": name}, value) for name, value in job.metrics.items()]
    yield Family("state", "1 for what the job does, 0 for the others.", states)
    yield one("samples_total", "Samples trained on.", job.samples)
    yield one("updates_total", "Updates applied by all workers.", job.updates)
    yield one("updates_planned", "Updates of the whole job.", job.planned_updates)
    yield one("epochs_total", "Epochs that are complete.", job.epoch)
    yield one("progress_ratio", "The part of the job that is done, 0 to 1.", job.progress)
    yield one("samples_per_second", "Of all workers, since the record before.", job.samples_per_s)
    yield one("loss", "Mean training loss per batch since the record before.", job.loss)
    yield one("learning_rate", "Of the first group of parameters.", job.lr)
    yield Family("evaluation", "The metrics of the latest evaluation.", metrics)
    yield one("elapsed_seconds", "Since the run began, stops left out.", job.wall_s)
    yield one("left_seconds", "Until the job ends, at the speed until now.", job.left_s)
    yield one("batches_skipped_total", "Batches that were not applied.", job.skipped)
    words = "Batches skipped because they crashed too many workers."
    yield one("batches_quarantined_total", words, job.quarantined)
    yield one("restarts_total", "Of workers.", job.restarts)
    yield one("rollbacks_total", "To a checkpoint, because training diverged.", job.rollbacks)
    yield one("memory_bytes", "PSS of all processes of the job.", job.pss_bytes)
    stale = [({"quantile": "0.5"}, float(job.stale_p50)), ({"quantile": "0.99"}, float(job.stale_p99))]
    yield Family("staleness_updates", "Updates of others between reading and applying.", stale)
    if (server := job.server) is not None:
        yield one("fork_server_up", "1 while processes of the job are forked from it.", float(server.is_serving))
        yield one("fork_server_memory_bytes", "PSS of its process.", server.pss_bytes)
    if job.stream is not None:
        yield one("loaders", "Processes that read streamed data and are alive.", job.stream.loaders)
        yield one("loader_deaths_total", "Of loaders.", job.stream.deaths)
        yield one("slots", "Batches that the ring of a stream holds.", job.stream.slots)
        yield one("slots_filled", "Of them, those that hold one now.", job.stream.filled)
    if (cluster := job.cluster) is not None:
        yield one("nodes", "Nodes of the cluster that are left.", cluster.nodes)
        yield one("nodes_lost_total", "Nodes that were lost in this attempt.", cluster.lost)
        yield one("rounds_total", "Rounds that all nodes have committed.", cluster.round)
        yield one("exchanged_bytes_total", "Exchanged with other nodes in this attempt.", cluster.nbytes)
        yield one("exchange_seconds", "Duration of the last exchange.", cluster.seconds)
        yield one("drift_ratio", "Norm of this node's last difference over that of the anchor.", cluster.drift)
        yield one("cluster_samples_per_second", "Of all nodes, in the last round.", cluster.samples_per_s)

    workers = [({"worker": str(worker.worker)}, worker) for worker in job.workers]

    def each(name: str, words: str, value: Callable[[WorkerSnapshot], float | None]) -> Family:
        return Family(f"worker_{name}", words, [(labels, value(worker)) for labels, worker in workers])

    yield each("up", "1 while it trains.", lambda w: float(w.state == "training"))
    yield each("updates_total", "In this attempt.", lambda w: w.updates)
    yield each("samples_per_second", "Since the record before.", lambda w: w.samples_per_s)
    yield each("restarts_total", "In this attempt.", lambda w: w.restarts)
    yield each("cpu_cores", "Processor time per second.", lambda w: w.cpu)
    yield each("memory_bytes", "PSS of its process.", lambda w: w.pss_bytes)
    phases = [({**labels, "phase": phase}, part) for labels, worker in workers for phase, part in worker.phases.items()]
    yield Family("worker_phase_ratio", "The part of its time in each phase, 0 to 1.", phases)


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
