"""Named points at which a test ends the service as SIGKILL would: HOGWILD_FAILPOINT=NAME or NAME:N, for the Nth time
that the point is reached. Without the variable they do nothing."""

import os

VARIABLE = "HOGWILD_FAILPOINT"
POINTS = (
    *("added-aside", "added", "booked", "copied"),  # store
    *("before-start", "spawned", "started"),  # attempts
    *("before-move", "move-asked", "moved"),  # moves
    *("before-signal", "signalled", "before-end", "ended", "removed-aside"),  # loop and store
)
_reached: dict[str, int] = {}


def reach(point: str) -> None:
    """End the process here, without any cleanup, if the variable names this point."""
    wanted, _, number = os.environ.get(VARIABLE, "").partition(":")
    if wanted != point:
        return
    assert point in POINTS, point
    _reached[point] = _reached.get(point, 0) + 1
    if _reached[point] == int(number or 1):
        os._exit(137)
