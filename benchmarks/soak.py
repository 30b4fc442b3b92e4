"""A long run under fire: `make soak MINUTES=10`. A worker is killed every ten seconds; memory, open files and
throughput must stay flat. Writes benchmarks/results/soak.json, .md, .png and the curves, soak-curves.png. Needs the
MNIST files (`HOGWILD_DATA`)."""

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import results
from benchmarks.commands import MNIST
from benchmarks.row import Row
from benchmarks.watched import ENDLESS, LOOK_S, Running, running
from hogwild import host
from hogwild.chaos.inject import STATUS
from hogwild.storage.run_files import read_json

SUITE = "soak"
KILL_EVERY_S = 10.0
SAMPLE_EVERY_S = 2.0
FLAT = 0.05  # of a figure's own size
CURVES = "soak-curves.png"
TORCH_S = 20.0  # what the first workers need to reach the size they keep


@dataclass
class Curves:
    """One entry a sample: seconds since the first commit, bytes, descriptors, samples trained on in all."""

    at_s: list[float] = field(default_factory=list)
    pss: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    kills_s: list[float] = field(default_factory=list)

    def take(self, now: Running, at_s: float) -> None:
        """Take a sample of memory and descriptors of the supervisor and its workers."""
        status = read_json(now.run_dir, STATUS)
        workers = [row["pid"] for row in status.get("workers", ()) if row["pid"] is not None]
        pids = [now.process.pid, *workers]
        self.at_s.append(at_s)
        self.pss.append(sum(host.pss_bytes(pid) for pid in pids))
        self.files.append(_descriptors(now.process.pid))
        self.samples.append(int(status.get("samples", 0)))

    def thirds(self, values: Sequence[float]) -> tuple[list[float], list[float]]:
        """The first third of the run and the last, as they are sampled after the start."""
        kept = [value for at_s, value in zip(self.at_s, values, strict=True) if at_s >= TORCH_S]
        third = max(1, len(kept) // 3)
        return kept[:third], kept[-third:]

    def speeds(self) -> list[float]:
        """Samples per second up to each sample; the first is that of the second."""
        pairs = zip(self.at_s, self.samples, self.at_s[1:], self.samples[1:], strict=False)
        found = [(samples - before) / (at - then) for then, before, at, samples in pairs]
        return found[:1] + found


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def soak(minutes: float) -> Curves:
    curves = Curves()
    with running(MNIST, "--procs", "2", *ENDLESS, "log.every_s=0.2", "checkpoint.every_s=10") as now:
        now.until_all_train(2)
        began = time.monotonic()
        next_sample, next_kill = 0.0, KILL_EVERY_S
        while (at_s := time.monotonic() - began) < 60 * minutes:
            if now.process.poll() is not None:
                raise RuntimeError(f"the job ended: {now.words.read_text()[-2000:]}")
            now.watch.look()
            if at_s >= next_sample:
                curves.take(now, at_s)
                next_sample += SAMPLE_EVERY_S
            victim = now.watch.targets.get(len(curves.kills_s) % 2)
            if at_s >= next_kill and victim is not None and victim.send(signal.SIGKILL):
                curves.kills_s.append(at_s)
                next_kill += KILL_EVERY_S
            time.sleep(LOOK_S)
    return curves


def rows(curves: Curves, minutes: float) -> list[Row]:
    note = f"{minutes:g} minutes, {len(curves.kills_s)} kills; median of the last third over that of the first"

    def over(values: Sequence[float]) -> float:
        first, last = curves.thirds(values)
        return statistics.median(last) / statistics.median(first)

    first, last = curves.thirds(curves.speeds())
    speed = statistics.fmean(last) / statistics.fmean(first)
    return [
        Row("memory (PSS) of all processes, end over beginning", "", 1 + FLAT, [over(curves.pss)],
            statistics.median(curves.thirds(curves.pss)[0]) / 2**20, f"{note}; baseline in MiB",
            smaller_is_better=True),
        Row("open files of the supervisor, end over beginning", "", 1 + FLAT, [over(curves.files)],
            statistics.median(curves.thirds(curves.files)[0]), note, smaller_is_better=True),
        Row("throughput, end over beginning", "", 1 - FLAT, [speed], statistics.fmean(first),
            note.replace("median", "mean") + "; baseline in samples/s"),
    ]  # fmt: skip


def draw(curves: Curves, file: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(9, 7), layout="constrained")
    shown = (
        ("PSS, MiB", [value / 2**20 for value in curves.pss]),
        ("open files", curves.files),
        ("samples/s", curves.speeds()),
    )
    for axis, (label, values) in zip(axes, shown, strict=True):
        axis.plot(curves.at_s, values, linewidth=1)
        axis.vlines(curves.kills_s, 0, 0.03, transform=axis.get_xaxis_transform(), color="tab:red", linewidth=0.8)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[0].set_title(f"LeNet on MNIST, 2 workers, one killed every {KILL_EVERY_S:g} s (red)")
    axes[-1].set_xlabel("seconds since everybody trains")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args(argv)
    if given.minutes * 60 < 3 * TORCH_S:
        parser.error(f"--minutes must be at least {3 * TORCH_S / 60:g}, got {given.minutes:g}")
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = results.begin()
    curves = soak(given.minutes)
    measured = rows(curves, given.minutes)
    results.write(SUITE, measured, described)
    draw(curves, results.FOLDER / CURVES)
    return 0 if all(row.met for row in measured) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
