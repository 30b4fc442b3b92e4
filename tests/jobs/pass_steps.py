"""Steps of a pass over pieces, which note who did them, and some of which commit crimes, in workers only."""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hogwild.errors import DataError
from hogwild.shared_memory.region import Region

COUNT = 40


@dataclass(frozen=True)
class Squares:
    """Piece k is done when squares[k] is k * k + 1. `killed`: the piece that ends who does it, `often` times; `bad`: a
    piece that cannot be done, anywhere or `only_there`, in a worker."""

    diary: str
    killed: int = -1
    often: int = 1
    bad: int = -1
    only_there: bool = False

    def ready(self) -> None:
        (Path(self.diary) / f"ready-{os.getpid()}").touch()

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        in_worker = multiprocessing.parent_process() is not None
        if piece == self.bad and (in_worker or not self.only_there):
            raise DataError(f"piece {piece} is gone", code="data/file-changed")
        squares = regions["squares"].array("i8", (COUNT,))
        if in_worker and piece == self.killed:
            deaths = len([*Path(self.diary).glob("death-*")])
            if deaths < self.often:
                squares[piece] = -1  # half done
                (Path(self.diary) / f"death-{deaths}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        squares[piece] = piece * piece + 1
