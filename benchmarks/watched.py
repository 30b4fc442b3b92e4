"""A job that is measured while it runs: started as a user starts it, and watched through its run directory."""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.commands import ROOT
from hogwild.chaos.inject import Target, Watch, events_of

LOOK_S = 0.005
PATIENCE_S = 600.0
ENDLESS = ["train.epochs=100000", "data.val=null", "train.exchange=direct", "supervise.max_restarts=1000000"]
Seen = TypeVar("Seen")


@dataclass
class Running:
    """A job in a run directory of its own, and what is seen of it."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    words: Path
    watch: Watch

    def until(self, what: str, look: Callable[[], Seen]) -> Seen:
        """The first true answer of `look`. Raises RuntimeError when the job ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := look()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {what} came; the job said:\n{self.words.read_text()[-2000:]}")
            time.sleep(LOOK_S)
            self.watch.look()
        return found

    def until_all_train(self, procs: int) -> dict[int, Target]:
        """The workers, once each has committed something."""

        def all_train() -> bool:
            targets = self.watch.targets
            return len(targets) == procs and all(target.has_trained for target in targets.values())

        self.until("worker that trains", all_train)
        return dict(self.watch.targets)

    def event(self, kind: str, **values: Any) -> dict[str, Any]:
        """The first event of that kind with these values, once it is there."""

        def look() -> dict[str, Any] | None:
            kinds = (event for _, event in events_of(self.run_dir) if event["event"] == kind)
            return next((event for event in kinds if values.items() <= event.items()), None)

        found = self.until(kind, look)
        assert found is not None
        return found


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """A job that is stopped afterwards, if it still runs."""
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words"
        argv = [sys.executable, str(ROOT / "run.py"), "train", *arguments, "--run-dir", f"{folder}/run"]
        with open(words, "w") as file:
            process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=file)
        with Watch(Path(folder) / "run", process.pid) as watch:
            try:
                yield Running(process, watch.run_dir, words, watch)
            finally:
                process.terminate()
                process.wait()
