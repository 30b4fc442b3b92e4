"""Loaders killed in the middle of batches, again and again, and every record counted:
`python -m benchmarks.loader_kills --kills 100`.

The job streams records into a model that counts how often each took effect (tests/jobs/counting.py), so what a death
loses or repeats is seen record by record. A file holds whoever reads a record, in the middle of its batch; one of those
who say so is killed, and the others go on. Map-style data, an iterable that its readers divide among themselves and one
that says where it stands take turns: in the last two a replacement has to find its place again."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks import commands
from benchmarks.bench import say
from benchmarks.figures import Figure
from benchmarks.results import table
from benchmarks.row import Row
from benchmarks.watched import LOOK_S, Running, running
from hogwild.chaos.inject import STATUS, events_of
from hogwild.storage.run_files import read_json

COUNTING = str(commands.ROOT / "tests" / "jobs" / "counting.yaml")
KINDS = ("Numbers", "Divided", "Stateful")  # of tests/jobs/streaming.py
RECORDS, EPOCHS = 20_000, 2
KILLS = 100
FIGURE = f"killed loaders during a streaming job, {KILLS}: records lost or repeated"
WRONG = Figure(FIGURE, 0.0, "records", smaller_is_better=True)


@dataclass
class Gate:
    """Holds readers in the middle of their batches: while `stop` is there, whoever reads a record waits, and says so
    under its number."""

    folder: Path
    killed: set[int] = field(default_factory=set)

    def close(self) -> None:
        (self.folder / "stop").touch()

    def open(self) -> None:
        (self.folder / "stop").unlink(missing_ok=True)

    def held(self) -> list[int]:
        """Those that are alive, and were held since the last call of `forget`."""
        found = {int(file.name.removeprefix("stopped-")) for file in self.folder.glob("stopped-*")}
        return sorted(found - self.killed)

    def forget(self) -> None:
        for file in self.folder.glob("stopped-*"):
            file.unlink()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one job: loaders killed, and records that took effect less, or more, often than once an epoch."""

    kind: str
    kills: int
    lost: int
    repeated: int
    restarts: int

    @property
    def wrong(self) -> int:
        return self.lost + self.repeated


def trial(kind: str, kills: int) -> Outcome:
    """A job that streams `kind`, in which so many loaders are killed; it must end well. Raises RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(Path(folder))
        gate.close()
        with running(COUNTING, "--procs", "2", *settings(kind, gate.folder)) as now:
            for number in range(kills):
                kill_one(now, gate, number)
            gate.open()
            while now.process.poll() is None:
                time.sleep(LOOK_S)
            if now.process.returncode:
                raise RuntimeError(f"exit status {now.process.returncode}: {now.words.read_text()[-2000:]}")
            return outcome(kind, kills, now)


def settings(kind: str, gate: Path) -> list[str]:
    """Kills are no reason to give a batch up, or the job: it is they that are counted here."""
    data = f"{{samples: {RECORDS}, diary: {gate}}}"
    return [
        f"data.train.class_path=streaming.{kind}", f"data.train.init_args={data}", "data.feed=stream",
        "data.loaders=2", f"model.init_args.samples={RECORDS}", f"train.epochs={EPOCHS}", "train.exchange=direct",
        "checkpoint.every_s=null", "supervise.max_restarts=1000000", "supervise.max_item_attempts=1000000",
    ]  # fmt: skip


def kill_one(now: Running, gate: Gate, number: int) -> None:
    """The next loader that is in the middle of a batch, and only when the supervisor knows of the one before."""
    gate.close()
    gate.forget()  # those that are held say it again every few milliseconds

    def victims() -> list[int]:
        alive = set(loaders(now))
        return [pid for pid in gate.held() if pid in alive]

    found = now.until("loader in the middle of a batch", victims)
    victim = found[number % len(found)]
    os.kill(victim, signal.SIGKILL)
    gate.killed.add(victim)
    now.event("loader-exit", pid=victim)
    before = samples(now)
    gate.open()
    now.until("update after a death", lambda: samples(now) > before)


def samples(now: Running) -> int:
    """Trained so far."""
    return int(read_json(now.run_dir, STATUS).get("samples", 0))


def loaders(now: Running) -> Iterator[int]:
    """Process numbers of those that were started and are not gone."""
    events: list[dict[str, Any]] = [event for _, event in events_of(now.run_dir)]
    gone = [event["pid"] for event in events if event["event"] == "loader-exit" and "pid" in event]
    yield from (event["pid"] for event in events if event["event"] == "loader-spawn" and event["pid"] not in gone)


def outcome(kind: str, kills: int, now: Running) -> Outcome:
    effects = load_file(now.run_dir / "checkpoints" / "latest" / "model.safetensors")["effects.weight"].flatten()
    assert len(effects) == RECORDS
    exits = sum(event["event"] == "loader-exit" for _, event in events_of(now.run_dir))
    found = Outcome(kind, kills, int((effects < EPOCHS).sum()), int((effects > EPOCHS).sum()), exits)
    say(f"{kind}: {exits} loaders died, {found.lost} records lost, {found.repeated} repeated")
    return found


def rows(kills: int) -> list[Row]:
    """`kills` over all jobs together, in about a second each."""
    shares = [kills // len(KINDS) + (number < kills % len(KINDS)) for number in range(len(KINDS))]
    found = [trial(kind, share) for kind, share in zip(KINDS, shares, strict=True) if share]
    parts = "; ".join(f"{one.kind}: {one.kills} killed, {one.lost} lost, {one.repeated} repeated" for one in found)
    note = f"{RECORDS:,} records, {EPOCHS} epochs, 2 loaders, 2 workers, killed in the middle of a batch; {parts}"
    return [WRONG.row([float(sum(one.wrong for one in found))], note=note)]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader_kills")
    parser.add_argument("--kills", type=int, default=KILLS)
    given = parser.parse_args(argv)
    (row,) = rows(given.kills)
    print(table([row]))
    return 0 if row.value == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
