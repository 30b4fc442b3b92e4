"""The roles of a job's processes, and the limits of each: one table.

    reader    reads rows of a data set before training, or predicts those of a file
    trial     tries the job's code before training
    worker    trains
    loader    fills slots of a stream
    owner     owns the parameters on a GPU
    communicator  exchanges parameters with the other nodes of a cluster
    predictor  answers calls with the model while it trains, on request

Every process has the same life (`roster.py`, `group.py`); a role only has another task."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hogwild.config.schema import Supervise  # with pydantic, which no process of a job needs


LONGEST_BACKOFF_S = 5.0
LOADER_LEAVE_S = 1.0  # time for user code to end in order
COMMUNICATOR_LEAVE_S = 2.0  # time to tell the others that this node leaves
COMMUNICATOR_STALL_S = 30.0  # its own waits end after 10 s: longer silence means that it is stopped


class Role(StrEnum):
    READER = "reader"
    TRIAL = "trial"
    WORKER = "worker"
    LOADER = "loader"
    OWNER = "owner"
    COMMUNICATOR = "communicator"
    PREDICTOR = "predictor"


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """Limits of the processes of one role. `needed`: least number of them, by `rule`; `by_records`: a beat is a
    record read, and a batch may take any time; `leave_s`: time to leave in order."""

    needed: int
    rule: str
    start_timeout_s: float = math.inf
    stall_timeout_s: float = math.inf
    deadlock_timeout_s: float = math.inf
    max_restarts: float = math.inf  # within window_s
    window_s: float = math.inf
    max_item_attempts: float = math.inf
    failed_starts: float = math.inf  # in a row
    leave_s: float = 0.0
    by_records: bool = False


def limits_of(role: Role, supervise: "Supervise", *, needed: int = 1) -> RoleLimits:
    """Return the limits of a role. `needed`: of loaders, as no setting says how many."""
    if role is Role.TRIAL:  # `workers/loading/trial.py` judges it
        return RoleLimits(needed=0, rule="")
    if role is Role.OWNER:  # its death is the end of what it owns
        return RoleLimits(1, "it owns the parameters", start_timeout_s=supervise.start_timeout_s, max_restarts=0)
    least = RoleLimits(
        needed=0,
        rule="",
        start_timeout_s=supervise.start_timeout_s,
        stall_timeout_s=supervise.stall_timeout_s,
        max_restarts=supervise.max_restarts,
        window_s=supervise.window_s,
        failed_starts=3,
    )
    if role is Role.PREDICTOR:  # nobody needs it
        return least
    if role is Role.COMMUNICATOR:
        rule = "it exchanges with the other nodes"
        return replace(least, needed=1, rule=rule, stall_timeout_s=COMMUNICATOR_STALL_S, leave_s=COMMUNICATOR_LEAVE_S)
    rules = {
        Role.WORKER: f"supervise.min_workers is {supervise.min_workers}",
        Role.LOADER: "each reads its own part of the stream" if needed > 1 else "at least one must read the stream",
        Role.READER: "at least one must read",
    }
    return replace(
        least,
        needed=supervise.min_workers if role is Role.WORKER else needed,
        rule=rules[role],
        deadlock_timeout_s=math.inf if role is Role.READER else supervise.deadlock_timeout_s,
        max_item_attempts=supervise.max_item_attempts,
        leave_s={Role.WORKER: supervise.grace_s, Role.LOADER: LOADER_LEAVE_S}.get(role, 0.0),
        by_records=role is not Role.WORKER,
    )
