"""The counting model with a state of its own, which takes as long to save as the test wants."""

import time
from typing import Any

from counting import Counting, in_worker


class Gated(Counting):
    """While there is a file `gates` in the diary, the n-th save says so in `diary`/saving-N and waits for a file
    `saved-N`."""

    def __init__(self, samples: int, diary: str = "") -> None:
        super().__init__(samples, diary)
        self.saves = 0

    def get_extra_state(self) -> dict[str, Any]:
        if self.diary is not None and not in_worker() and (self.diary / "gates").exists():
            self.saves += 1
            (self.diary / f"saving-{self.saves}").touch()
            while not (self.diary / f"saved-{self.saves}").exists():
                time.sleep(0.005)
        return {"saves": self.saves}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.saves = state["saves"]
