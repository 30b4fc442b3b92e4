"""A model whose first evaluation sends the supervisor a Ctrl-C and goes on only when it was noted."""

import os
import signal
from pathlib import Path

from torch import Tensor, nn

from tests.helpers.processes import in_worker, wait_for


class Interrupting(nn.Module):
    """A linear classifier of the digits. `folder` is where the job writes events.jsonl, below run/."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.folder = Path(folder)

    def forward(self, inputs: Tensor) -> Tensor:
        once = self.folder / "interrupted"
        if not self.training and in_worker() and not once.exists():
            once.touch()
            os.kill(os.getppid(), signal.SIGINT)
            events = self.folder / "run" / "events.jsonl"
            wait_for("the signal is noted", lambda: '"signal"' in events.read_text())
        return self.linear(inputs)
