"""TensorBoard's event files in RUN/tensorboard, written by a thread of the supervisor from the records of
metrics.jsonl; the step of every curve is the number of samples.

    write(record) ──► queue ──► [thread: import the package, a file, a few events per record]

The package is imported in the thread, and with `auto` only once there is a curve to see: it costs 0.25 s. A full disk
or a broken package ends the thread and is reported once; the job continues. Points undone by a resume or a rollback are
deleted by a START event, as in TensorBoard's own writers (`purge_step`).

torch makes the summaries, but the file is our own. torch's SummaryWriter prints a traceback of its thread when the disk
is full, opens the file again for every event, and names it by the wall clock: after a step back of the clock, or within
one second, the points of a resume would be read before those that they replace (docs/findings.md)."""

import importlib.util
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from hogwild.errors import UsageError
from hogwild.metrics.catalog import RECORDED

BEGIN_AT = 10  # training records: fewer make no curve
MOST_RECORDS = 10_000  # records that may wait for a slow disk; later ones are dropped
MOST_VALUES = 1 << 20  # of one tensor in a histogram, evenly spread over it
CLOSE_S = 10.0
BINS = 64
ENDING = ".hogwild"

Tensors = Callable[[], Iterable[tuple[str, Any]]]


def is_installed() -> bool:
    """Return whether the package is installed, without importing it."""
    return importlib.util.find_spec("tensorboard") is not None


def check_wanted(setting: Literal["auto"] | bool) -> None:
    """Raise UsageError (usage/missing-extra) if `log.tensorboard: true` is not possible."""
    if setting is True and not is_installed():
        raise UsageError(
            "log.tensorboard: true needs the package tensorboard, which is not installed; "
            "pip install 'hogwild[tensorboard]', or set log.tensorboard to auto",
            code="usage/missing-extra",
        )


class Curves:
    """The curves of one attempt. Called by one thread; `close` waits for pending records, but not forever.

    `settings`: the job's, flattened, for the hyper-parameter page. `tensors`: names and values for histograms, called
    in the thread every `histograms_every` evaluations, while training may continue. `failure`: the reason why nothing
    more is written, or None."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        at_once: bool = False,
        tensors: Tensors = tuple,
        histograms_every: int | None = None,
    ) -> None:
        self.failure: str | None = None
        self._folder = folder
        self._settings = {key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))}
        self._at_once = at_once
        self._tensors = tensors
        self._histograms_every = histograms_every
        self._records: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._seen = 0
        self._thread: threading.Thread | None = None
        self._evaluations = 0
        self._samples = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Queue a record of metrics.jsonl; it must not change afterwards."""
        if self.failure is not None or self._records.qsize() >= MOST_RECORDS:
            return
        self._records.put(record)
        self._seen += record["kind"] == "train"
        if self._thread is None and (self._at_once or self._seen >= BEGIN_AT):
            thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
            thread.start()
            self._thread = thread

    def go_on_from(self, samples: int) -> None:
        """Delete the points after this number of samples: the run went back to it."""
        self._records.put({"kind": "back", "samples": samples})

    def close(self) -> None:
        if self._thread is not None:
            self._records.put(None)
            self._thread.join(CLOSE_S)

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a full disk, a broken package: the job continues without curves
            self.failure = f"{type(error).__name__}: {error}"

    def _serve(self) -> None:
        from torch.utils.tensorboard import summary

        self._make = summary
        record = self._records.get()
        if record is None:
            return
        with _EventFile(self._folder, record.get("time")) as file:
            self._file = file
            while record is not None:
                self._write(record)
                record = self._next()
            if self._evaluations:
                self._file.add(self._now, summary=self._make.hparams(self._settings, {})[2])

    def _next(self) -> Mapping[str, Any] | None:
        """Return the next record; flush to disk whenever the queue is empty."""
        try:
            return self._records.get_nowait()
        except Empty:
            self._file.flush()
            return self._records.get()

    def _write(self, record: Mapping[str, Any]) -> None:
        self._samples = record.get("samples", self._samples)
        self._now = record.get("time", getattr(self, "_now", 0.0))
        if record["kind"] == "back":
            self._file.strike_out(self._now, self._samples + 1)
        elif record["kind"] == "train":
            self._scalars("train", record, ("loss", "samples_per_s", "lr", "pss_bytes"))
            self._scalars("train/losses", {**record, **record.get("losses", {})}, tuple(record.get("losses", ())))
            self._scalars("cluster", record.get("cluster", {}), ("seconds", "drift", "nodes", "samples_per_s"))
        elif record["kind"] == "evaluation":
            self._evaluation(record)
        elif record["kind"] == "staleness":
            self._staleness(record["counts"])

    def _scalars(self, prefix: str, record: Mapping[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if isinstance(record.get(name), (int, float)) and not isinstance(record[name], bool):
                scalar = self._make.scalar(f"{prefix}/{name}", float(record[name]))
                self._file.add(self._now, self._samples, summary=scalar)

    def _evaluation(self, record: Mapping[str, Any]) -> None:
        names = [name for name in record if name not in RECORDED]
        if not self._evaluations:  # only now are the names known
            for made in self._make.hparams(self._settings, {f"val/{name}": None for name in names})[:2]:
                self._file.add(self._now, summary=made)
        self._scalars("val", record, names)
        if self._histograms_every is not None and self._evaluations % self._histograms_every == 0:
            self._histograms()
        self._evaluations += 1

    def _histograms(self) -> None:
        for name, tensor in self._tensors():
            values = tensor.detach().reshape(-1)
            values = values[:: max(1, len(values) // MOST_VALUES)].float()
            finite = values[values.isfinite()].numpy()
            if len(finite):
                made = self._make.histogram(f"parameters/{name}", finite, BINS)
                self._file.add(self._now, self._samples, summary=made)

    def _staleness(self, counts: list[int]) -> None:
        """Write the staleness of all updates so far as a histogram: bin k counts updates that were k updates old."""
        if not counts:
            return
        made = self._make.histogram_raw(
            "train/staleness",
            min=0.0,
            max=float(len(counts) - 1),
            num=float(sum(counts)),
            sum=float(sum(age * count for age, count in enumerate(counts))),
            sum_squares=float(sum(age * age * count for age, count in enumerate(counts))),
            bucket_limits=[age + 0.5 for age in range(len(counts))],
            bucket_counts=[float(count) for count in counts],
        )
        self._file.add(self._now, self._samples, summary=made)


class _EventFile:
    """One event file. TensorBoard reads files in the order of their names, so this one comes after all earlier ones."""

    def __init__(self, folder: Path, time_s: float | None) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event
        folder.mkdir(exist_ok=True)
        numbers = [int(found.name.split(".")[3]) for found in folder.glob(f"events.out.tfevents.*{ENDING}")]
        number = max(int(time_s or 0), *(number + 1 for number in numbers), 0)
        path = folder / f"events.out.tfevents.{number:010}.{socket.gethostname()}.{os.getpid()}{ENDING}"
        self._records = RecordWriter(open(path, "ab"))  # noqa: SIM115 - `__exit__` closes it
        self.add(time_s or 0.0, file_version="brain.Event:2")

    def __enter__(self) -> "_EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._records.close()

    def add(self, time_s: float, step: int = 0, **what: Any) -> None:
        self._records.write(self._event(wall_time=time_s, step=step, **what).SerializeToString())

    def strike_out(self, time_s: float, step: int) -> None:
        """Delete the points with this step or a later one."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self.add(time_s, step, session_log=SessionLog(status=SessionLog.START))

    def flush(self) -> None:
        self._records.flush()
