"""A peer's run is a program of its own: its imports, threads and memory are nobody else's, and a crash is its own.

    run("lib_mf", threads=2, train=…, factors=32)         ->  python -m benchmarks.baselines.lib_mf '{"threads": 2, …}'
                                                          <-  one line of JSON, the last one: a `Found`

Nothing heavy is imported here: a peer's program imports this module before it looks at its clock."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.commands import ROOT, CommandFailed
from hogwild.planning.cpu_plan import VARIABLES

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Found:
    """The work of a peer. `curve`: (seconds of training so far, quality on the test part), as training went on; what it
    takes to evaluate is not in the seconds. `import_s` and `load_s` (reading, converting what it was given into what it
    wants) are what a user of it waits before."""

    per_s: float  # samples, words, ratings, triples
    curve: Curve
    version: str
    import_s: float = 0.0
    load_s: float = 0.0
    note: str = ""

    @property
    def quality(self) -> float:
        """Return the quality of the result, after the last epoch."""
        return self.curve[-1][1]

    def seconds_to(self, goal: float, *, smaller_is_better: bool = False) -> float | None:
        """Until it was first as good as `goal`; None if it never was."""
        return seconds_to(self.curve, goal, smaller_is_better=smaller_is_better)

    def best(self, *, smaller_is_better: bool = False) -> float:
        return best(self.curve, smaller_is_better=smaller_is_better)


def best(curve: Curve, *, smaller_is_better: bool = False) -> float:
    return (min if smaller_is_better else max)(quality for _, quality in curve)


def seconds_to(curve: Curve, goal: float, *, smaller_is_better: bool = False) -> float | None:
    for seconds, quality in curve:
        if quality <= goal if smaller_is_better else quality >= goal:
            return seconds
    return None


def run(peer: str, *, threads: int, **asked: Any) -> Found:
    """`benchmarks/baselines/PEER.py` with so many threads. Raises CommandFailed with its last words."""
    argv = [sys.executable, "-m", f"benchmarks.baselines.{peer}", json.dumps({"threads": threads, **asked})]
    environment = os.environ | dict.fromkeys(VARIABLES, str(threads))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        raise CommandFailed(f"{peer}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return Found(**{**answer, "curve": [(seconds, quality) for seconds, quality in answer["curve"]]})


def answer(measure: Callable[..., Found]) -> None:
    """The main program of a peer: it measures what `run` asked for."""
    found = measure(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(found)), flush=True)
