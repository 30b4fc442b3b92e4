"""The words of the scoreboard: what stands where in a worker's row and in the control row."""

from enum import IntEnum, auto

STALENESS_BINS = 128  # exact up to 126; the last bin holds everything older
ROW_WORDS = 184  # 1,472 bytes: whole cache lines, and neighbours never share one
FURTHER_LOSSES = 8  # at most, beside the loss


class Phase(IntEnum):
    """What a worker is doing. Only WORKING charges a death to the item in progress."""

    BOOTING = 0
    WAITING = auto()
    WORKING = auto()
    EVALUATING = auto()
    PARKED = auto()
    LEAVING = auto()
    COMPILING = auto()  # its kernels, or waiting for the worker that compiles them


class Command(IntEnum):
    """What the supervisor wants of all workers."""

    RUN = 0
    PAUSE = auto()
    LEAVE = auto()


class Word(IntEnum):
    """Places in a worker's row."""

    INCARNATION = 0  # the supervisor, while no process has the row
    PHASE = auto()
    BEAT_NS = auto()
    INTENT = auto()
    COMMIT = auto()
    PARKED = auto()  # number of the pause it is parked in; the record of it is what the supervisor believes
    UPDATES = auto()
    BATCHES = auto()
    SLOWEST_NS = auto()
    STALEST = auto()
    FIRST_NS = auto()  # monotonic time of the first commit
    LAST_NS = auto()
    BUSY_NS = auto()
    LOSS_SUM = auto()  # float64: sum of the batches' mean losses
    LOSSES = auto()
    NOT_FINITE = auto()  # updates whose loss or gradient was not
    PHASE_NS = (
        16  # first of seven: how long this row was in each phase, of all incarnations; the current one is not in it
    )
    PHASE_SINCE_NS = 23  # monotonic time at which it came into the phase it is in
    STALENESS = 24  # first word of the histogram
    COMPILED = STALENESS + STALENESS_BINS  # so many things this incarnation has compiled for all, and kept if it could
    LANE_RESTARTS = auto()  # batches in the middle of a lane that began from zero state
    NO_INFERENCE = auto()  # 1: evaluations must leave tensors that training can use; for the whole attempt
    SCALE = auto()  # float64: what this worker's losses are multiplied by in fp16 (`scaler.py`); 0: none yet
    GOOD = auto()  # finite updates since it changed
    OVERFLOWS = auto()  # backward passes made again at half of it
    FURTHER = 160  # first of sixteen float64: sums of the further losses of a training_step, then how many each adds up


class Control(IntEnum):
    """Places in the control row."""

    COMMAND = 0
    PAUSE = auto()
    BASE_UPDATES = auto()  # updates of the attempts before this one (resume)
    SYNC_EVERY = auto()  # updates between two flushes of delta; 0: direct
    ACTIVE = auto()  # only so many train, the others stay parked; 0: all do
    FOR_NOW = auto()  # 1: another way to exchange is about to be tried, so that memory for it is worth keeping
    ROLLBACKS = auto()  # how often the run has gone back to a checkpoint: each halves the learning rate
    COMPILER = auto()  # the worker that compiles for all
    FIRST_ITEM = auto()  # items with a lower id were leased before the last rollback: nobody may work on them any more
