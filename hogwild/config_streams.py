"""What a job file alone says about streaming, before there is a data set to look at. Torch-free: processes start, and
faults are planned, before torch is imported. Whether `feed: auto` streams is only known later (`streaming.py`)."""

from hogwild.config import Job


def surely_streams(job: Job) -> bool:
    """Loaders will read the training data, whatever it is. A job that streams because its data set is an iterable, or
    does not fit into memory, is not among these."""
    data = job.data
    is_asked_for = data.feed == "stream" or data.collate is not None or data.padding is not None
    return is_asked_for and data.lanes is None and data.feed != "resident" and job.train.procs != 0


def cannot_stream(job: Job) -> str:
    """Why no loader will be there; "" where some will, or may."""
    if job.train.procs == 0:
        return "train.procs: 0 reads in the parent"
    if job.data.lanes is not None:
        return "data.lanes keeps its data in memory"
    return "data.feed: resident" if job.data.feed == "resident" else ""


def loaders_for(job: Job, procs: int) -> int:
    """How many processes read a stream: as many as train; more would take cores from them. 1 in `procs: 0`, where the
    only process there is does it."""
    if procs == 0:
        return 1
    return procs if job.data.loaders == "auto" else job.data.loaders
