"""A recommender whose workers die while they rank items, at random times: a few times, by the files in a folder."""

import os
import random
import signal
from pathlib import Path
from typing import Any

from hogwild.models import BprFactorization
from tests.helpers.processes import in_worker

DEATHS = 5
LATEST_S = 0.002  # less than ranking a slice takes


class Mortal(BprFactorization):
    def score_tables(self) -> Any:
        if in_worker():
            notes = Path(os.environ["MORTAL_DIARY"])
            number = len([*notes.glob("death-*")])
            if number < DEATHS:
                (notes / f"death-{number}").touch()
                # SIGALRM, which nobody handles, ends the process in the middle of a kernel or after it.
                signal.setitimer(signal.ITIMER_REAL, random.Random(number).uniform(1e-4, LATEST_S))
        return super().score_tables()
