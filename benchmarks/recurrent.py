"""Recurrent models: a second worker's worth for an LSTM with truncated back-propagation in lanes, and what a cell of
one's own costs, written out in plain operations, beside torch's: eager, scripted, compiled."""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks import commands
from benchmarks.bench import NO_EVALUATION, in_turn, say
from benchmarks.figures import Figure
from benchmarks.row import Row
from hogwild.models.char_rnn import CustomLstm

CONFIG = str(commands.ROOT / "configs" / "shakespeare.yaml")
STEPS = 64  # characters of a window, in that job
TWO_OVER_ONE = Figure("truncated-BPTT LSTM, characters/s: 2 workers over 1 on 2 cores", 1.8)
# Of the job: what a worker's update computes.
BATCH, FEATURES, HIDDEN = 32, 64, 192
LENGTHS = torch.linspace(STEPS / 4, STEPS, BATCH).long()  # from a quarter of a window to all of it


@dataclass(frozen=True, slots=True)
class Effort:
    """`runs` of each figure; `epochs` of a job; `passes` forward and backward that a cell is timed over, the median of
    which counts. `cut`: further settings, which end a trial early."""

    runs: int = 3
    epochs: int = 3
    passes: int = 30
    cut: tuple[str, ...] = ()


FULL = Effort()
QUICK = Effort(1, 1, 3, ("train.max_updates=40",))


def lanes(effort: Effort) -> list[Row]:
    """About two minutes. Nothing is evaluated; one thread a worker; direct exchange in both, as one worker has it."""

    def speed(procs: int) -> Callable[[], float]:
        def run() -> float:
            settings = ("train.threads=1", "train.exchange=direct", f"train.epochs={effort.epochs}")
            _, summary = commands.job("train", CONFIG, "--procs", str(procs), *NO_EVALUATION, *settings, *effort.cut)
            found = STEPS * float(summary["samples_per_s"])
            say(f"LSTM in lanes, {procs} procs: {found:,.0f} characters/s, idle {summary['idle']:.3f}")
            return found

        return run

    two, one = in_turn(effort.runs, speed(2), speed(1))
    ratios = [a / b for a, b in zip(two, one, strict=True)]
    note = f"configs/shakespeare.yaml; an aim; baseline: one worker, characters/s; two: {statistics.median(two):,.0f}"
    return [TWO_OVER_ONE.row(ratios, statistics.median(one), note)]


def cells(effort: Effort) -> list[Row]:
    """Milliseconds of a forward and backward pass over a window, on one thread; compiling comes before. A way that
    this machine cannot go (no C++ compiler) has a row without a value that says so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for name, make in WAYS.items():
            runs, note = _timed(make, effort)
            rows.append(Row(f"LSTM cell, {name}: forward + backward", "ms", None, runs, None, note, True))
            say(f"LSTM cell, {name}: {', '.join(f'{ms:.1f}' for ms in runs) or note} ms")
        return rows
    finally:
        torch.set_num_threads(threads)


def _timed(make: Callable[[], Callable[[Tensor], Any]], effort: Effort) -> tuple[list[float], str]:
    """(the median of each run in milliseconds, what is to be said)."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, STEPS, FEATURES)
    began = time.perf_counter()
    try:
        cell = make()
        for _ in range(3):  # the first compiles; a scripted cell is optimised for the shapes of the first two
            _pass(cell, x)
    except RuntimeError as error:  # a compiler that is missing or fails
        return [], f"not measured: {str(error).splitlines()[0]}"
    ready_s = time.perf_counter() - began
    runs = [statistics.median(_pass(cell, x) for _ in range(effort.passes)) for _ in range(effort.runs)]
    return runs, f"{BATCH} x {STEPS} steps, {FEATURES} -> {HIDDEN}, one thread; ready after {ready_s:.1f} s"


def _pass(cell: Callable[[Tensor], Any], x: Tensor) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    cell(x)[0].square().mean().backward()
    return 1000 * (time.perf_counter() - began)


def _scripted(**options: bool) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit", DeprecationWarning)
        scripted: Callable[..., Any] = torch.jit.script(CustomLstm(FEATURES, HIDDEN, **options))
    return scripted


def _packed() -> Callable[[Tensor], Any]:
    """torch's own, both ways, over sequences of different lengths."""
    lstm = nn.LSTM(FEATURES, HIDDEN, batch_first=True, bidirectional=True)

    def both_ways(x: Tensor) -> Any:
        outputs, _ = lstm(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(outputs, batch_first=True)

    return both_ways


def _scripted_over_lengths() -> Callable[[Tensor], Any]:
    scripted = _scripted(bidirectional=True)
    return lambda x: scripted(x, None, LENGTHS)


def _compiled() -> Callable[[Tensor], Any]:
    compiled: Callable[[Tensor], Any] = torch.compile(CustomLstm(FEATURES, HIDDEN), fullgraph=True)
    return compiled


WAYS: dict[str, Callable[[], Callable[[Tensor], Any]]] = {
    "torch.nn.LSTM": lambda: nn.LSTM(FEATURES, HIDDEN, batch_first=True),
    "custom, eager": lambda: CustomLstm(FEATURES, HIDDEN),
    "custom, torch.jit.script": _scripted,
    "custom, torch.compile (inductor)": _compiled,
    "layer norm, torch.jit.script": lambda: _scripted(layer_norm=True),
    "torch.nn.LSTM, both ways, different lengths": _packed,
    "custom, both ways, different lengths, torch.jit.script": _scripted_over_lengths,
}
