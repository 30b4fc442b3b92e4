"""The digits' model, which crawls after a while, so that whoever stops it meets it in the middle of an epoch."""

import multiprocessing
import time
from pathlib import Path

from torch import Tensor

from hogwild.models import Mlp

CRAWL_S = 0.5


class Crawling(Mlp):
    """After `batches` of them, a worker needs half a second for each, until there is a file `hurry` in `diary`."""

    def __init__(self, diary: Path, batches: int) -> None:
        super().__init__(features=64, hidden=[128], classes=10, dropout=0.2)
        self.diary = Path(diary)
        self.left = batches

    def forward(self, images: Tensor) -> Tensor:
        if self.training and multiprocessing.parent_process() is not None:
            self.left -= 1
            until = time.monotonic() + CRAWL_S
            while self.left < 0 and time.monotonic() < until and not (self.diary / "hurry").exists():
                time.sleep(0.005)
        return super().forward(images)
