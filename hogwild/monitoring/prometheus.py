"""Export of a glance in Prometheus' text format 0.0.4, for node_exporter's textfile collector or any other reader of
`metrics.prom` in the run directory.

Values that only grow are counters, and their names end in `_total`. Every sample carries the run's name and directory,
because a collector reads the files of several runs at once.
https://prometheus.io/docs/instrumenting/exposition_formats/"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hogwild.monitoring.job_view import Glance, WorkerGlance

FILE = "metrics.prom"
STATES = (
    "starting",
    "running",
    "evaluating",
    "saving",
    "paused",
    "stopping",
    "succeeded",
    "stopped",
    "cancelled",
    "failed",
)

Sample = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Values of None (not measured) are left out."""

    name: str
    kind: str  # counter, gauge
    words: str
    samples: Sequence[Sample]

    def lines(self, common: Mapping[str, str]) -> Iterator[str]:
        known = [(labels, value) for labels, value in self.samples if value is not None]
        if known:
            yield f"# HELP hogwild_{self.name} {self.words}"
            yield f"# TYPE hogwild_{self.name} {self.kind}"
        for labels, value in known:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**common, **labels}.items())
            yield f"hogwild_{self.name}{{{pairs}}} {_number(value)}"


def exposition(glance: Glance) -> str:
    """Return the content of the whole file."""
    common = {"job": glance.name, "run": glance.run_dir}
    families = (*_of_the_job(glance), *_of_the_workers(glance))
    return "".join(f"{line}\n" for family in families for line in family.lines(common))


def _of_the_job(glance: Glance) -> Iterator[Family]:
    def one(name: str, kind: str, words: str, value: float | None) -> Family:
        return Family(name, kind, words, [({}, value)])

    states = [({"state": state}, float(state == glance.state)) for state in STATES]
    metrics = [({"metric": name}, value) for name, value in glance.metrics.items()]
    yield Family("state", "gauge", "1 for what the job does, 0 for the others.", states)
    yield one("samples_total", "counter", "Samples trained on.", glance.samples)
    yield one("updates_total", "counter", "Updates applied by all workers.", glance.updates)
    yield one("updates_planned", "gauge", "Updates of the whole job.", glance.planned_updates)
    yield one("epochs_total", "counter", "Epochs that are complete.", glance.epoch)
    yield one("progress_ratio", "gauge", "The part of the job that is done, 0 to 1.", glance.progress)
    yield one("samples_per_second", "gauge", "Of all workers, since the record before.", glance.samples_per_s)
    yield one("loss", "gauge", "Mean training loss per batch since the record before.", glance.loss)
    yield one("learning_rate", "gauge", "Of the first group of parameters.", glance.lr)
    yield Family("evaluation", "gauge", "The metrics of the latest evaluation.", metrics)
    yield one("elapsed_seconds", "gauge", "Since the run began, stops left out.", glance.wall_s)
    yield one("left_seconds", "gauge", "Until the job ends, at the speed until now.", glance.left_s)
    yield one("batches_skipped_total", "counter", "Batches that were not applied.", glance.skipped)
    yield one(
        "batches_quarantined_total",
        "counter",
        "Batches skipped because they crashed too many workers.",
        glance.quarantined,
    )
    yield one("restarts_total", "counter", "Of workers.", glance.restarts)
    yield one("rollbacks_total", "counter", "To a checkpoint, because training diverged.", glance.rollbacks)
    yield one("memory_bytes", "gauge", "PSS of all processes of the job.", glance.pss_bytes)
    stale = [({"quantile": "0.5"}, float(glance.stale_p50)), ({"quantile": "0.99"}, float(glance.stale_p99))]
    yield Family("staleness_updates", "gauge", "Updates of others between reading and applying.", stale)
    yield one("spares", "gauge", "Processes that wait to replace a worker.", glance.spares)
    if glance.stream is not None:
        yield one("loaders", "gauge", "Processes that read streamed data and are alive.", glance.stream.loaders)
        yield one("loader_deaths_total", "counter", "Of loaders.", glance.stream.deaths)
        yield one("slots", "gauge", "Batches that the ring of a stream holds.", glance.stream.slots)
        yield one("slots_filled", "gauge", "Of them, those that hold one now.", glance.stream.filled)


def _of_the_workers(glance: Glance) -> Iterator[Family]:
    workers = [({"worker": str(worker.worker)}, worker) for worker in glance.workers]

    def each(name: str, kind: str, words: str, value: Callable[[WorkerGlance], float | None]) -> Family:
        return Family(f"worker_{name}", kind, words, [(labels, value(worker)) for labels, worker in workers])

    yield each("up", "gauge", "1 while it trains.", lambda w: float(w.state == "training"))
    yield each("updates_total", "counter", "In this attempt.", lambda w: w.updates)
    yield each("samples_per_second", "gauge", "Since the record before.", lambda w: w.samples_per_s)
    yield each("restarts_total", "counter", "In this attempt.", lambda w: w.restarts)
    yield each("cpu_cores", "gauge", "Processor time per second.", lambda w: w.cpu)
    yield each("memory_bytes", "gauge", "PSS of its process.", lambda w: w.pss_bytes)
    phases = [({**labels, "phase": phase}, part) for labels, worker in workers for phase, part in worker.phases.items()]
    yield Family("worker_phase_ratio", "gauge", "The part of its time in each phase, 0 to 1.", phases)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
