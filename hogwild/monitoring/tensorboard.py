"""TensorBoard's event files in RUN/tensorboard, written by a thread of the supervisor from the records of
metrics.jsonl; the step of every curve is the number of samples.

    write(record) ──► queue ──► [thread: a file, a few events per record]

With `auto` there is a file only once there is a curve to see. A full disk ends the thread and is reported once; the job
continues. Points undone by a resume or a rollback are deleted by a START event, as in TensorBoard's own writers
(`purge_step`).

Nothing is imported for it: the import of TensorBoard's writers takes 0.11 to 0.25 s of a core, more than all events of
a job of an hour. The few messages are encoded here, by the numbers of their fields in tensorboard/compat/proto/*.proto.
torch's SummaryWriter, besides, prints a traceback of its thread when the disk is full, opens the file again for every
event, and names it by the wall clock: after a step back of the clock, or within one second, the points of a resume
would be read before those that they replace (docs/findings.md)."""

import importlib.util
import math
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np

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
        except Exception as error:  # a full disk: the job continues without curves
            self.failure = f"{type(error).__name__}: {error}"

    def _serve(self) -> None:
        record = self._records.get()
        if record is None:
            return
        with _EventFile(self._folder, record.get("time")) as file:
            self._file = file
            while record is not None:
                self._write(record)
                record = self._next()
            if self._evaluations:
                self._file.add(self._now, _settings_of("session_end_info", (4, _message((1, SUCCESS)))))

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
                self._file.add(self._now, _value(f"{prefix}/{name}", _number(float(record[name]))), self._samples)

    def _evaluation(self, record: Mapping[str, Any]) -> None:
        names = [name for name in record if name not in RECORDED]
        if not self._evaluations:  # only now are the names known
            known = {key: one if isinstance(one, str) else float(one) for key, one in self._settings.items()}
            kinds = [(4, _message((1, key), (4, STRING if isinstance(known[key], str) else NUMBER))) for key in known]
            metrics = [(5, _message((1, _message((2, f"val/{name}"))))) for name in names]
            self._file.add(self._now, _settings_of("experiment", (2, _message(*kinds, *metrics))))
            values = [(3 if isinstance(one, str) else 2, one) for one in known.values()]
            given = [(1, _message((1, key), (2, _message(one)))) for key, one in zip(known, values, strict=True)]
            self._file.add(self._now, _settings_of("session_start_info", (3, _message(*given))))
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
                finite = finite.astype(np.float64)
                counts, limits = np.histogram(finite, bins=BINS)
                ends = float(finite.min()), float(finite.max()), float(len(finite))
                sums = float(finite.sum()), float(finite @ finite)
                # A bin has its upper limit only: an empty one tells where the first begins.
                made = _histogram((*ends, *sums), limits.tolist(), [0.0, *counts.tolist()])
                self._file.add(self._now, _value(f"parameters/{name}", (5, made)), self._samples)

    def _staleness(self, counts: list[int]) -> None:
        """Write the staleness of all updates so far as a histogram: bin k counts updates that were k updates old."""
        if not counts:
            return
        ages = [age * count for age, count in enumerate(counts)]
        squares = sum(age * one for age, one in enumerate(ages))
        figures = 0.0, len(counts) - 1.0, float(sum(counts)), float(sum(ages)), float(squares)
        made = _histogram(figures, [age + 0.5 for age in range(len(counts))], counts)
        self._file.add(self._now, _value("train/staleness", (5, made)), self._samples)


class _EventFile:
    """One event file. TensorBoard reads files in the order of their names, so this one comes after all earlier ones."""

    def __init__(self, folder: Path, time_s: float | None) -> None:
        folder.mkdir(exist_ok=True)
        numbers = [int(found.name.split(".")[3]) for found in folder.glob(f"events.out.tfevents.*{ENDING}")]
        number = max(int(time_s or 0), *(number + 1 for number in numbers), 0)
        path = folder / f"events.out.tfevents.{number:010}.{socket.gethostname()}.{os.getpid()}{ENDING}"
        self._file = open(path, "ab")  # noqa: SIM115 - `__exit__` closes it
        self.add(time_s or 0.0, (3, "brain.Event:2"))

    def __enter__(self) -> "_EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, time_s: float, what: "_Field", step: int = 0) -> None:
        """Write an event: its length and its bytes, each followed by a checksum."""
        event = _message((1, float(time_s)), (2, step), what)
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))

    def strike_out(self, time_s: float, step: int) -> None:
        """Delete the points with this step or a later one."""
        self.add(time_s, (7, _message((1, START))), step)

    def flush(self) -> None:
        self._file.flush()


# ---- protocol buffers ------------------------------------------------------------------------------------------------

START, SUCCESS = 1, 1  # of SessionLog.SessionStatus, of hparams' Status
STRING, NUMBER = 1, 3  # of hparams' DataType
_Field = tuple[int, int | float | str | bytes | np.float32 | Sequence[float]]


def _message(*fields: _Field) -> bytes:
    """Return a message with these fields: (number, value). An int becomes a varint, a float a double, a sequence packed
    doubles."""
    found = bytearray()
    for number, value in fields:
        if isinstance(value, np.float32):
            found += _varint(number << 3 | 5) + value.tobytes()
        elif isinstance(value, float):
            found += _varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            found += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            content = content if isinstance(content, bytes) else struct.pack(f"<{len(content)}d", *content)
            found += _varint(number << 3 | 2) + _varint(len(content)) + content
    return bytes(found)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _value(tag: str, *what: _Field) -> _Field:
    """Return an event's summary with one value."""
    return 5, _message((1, _message((1, tag), *what)))


def _number(value: float) -> _Field:
    """Return the value of a scalar, which has 32 bits."""
    most = float(np.finfo(np.float32).max)
    return 2, np.float32(value if not abs(value) > most else math.copysign(math.inf, value))


def _histogram(figures: Sequence[float], limits: Sequence[float], counts: Sequence[float]) -> bytes:
    """`figures`: the least and the greatest value, how many, their sum and that of their squares."""
    return _message(*enumerate(figures, 1), (6, limits), (7, counts))


def _settings_of(tag: str, what: _Field) -> _Field:
    """Return a summary for the page of hyper-parameters."""
    plugin = _message((1, "hparams"), (2, _message(what)))
    return _value(f"_hparams_/{tag}", (9, _message((1, plugin))))


def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return found


_TABLE = _table()


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C of a record's part."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
