"""Parts of a job's records without a job."""

from hogwild.config.load import job_from_mapping
from hogwild.workers.session.startup import StartUp


def no_start_up(**log: object) -> StartUp:
    """A start that shows nothing, of a job with these log settings."""
    values = {
        "version": 1,
        "model": {"class_path": "torch.nn.Linear"},
        "data": {"train": {"class_path": "x.Y"}},
        "log": log,
    }
    return StartUp(job_from_mapping(values, "test"), 1, progress=False, caller="test")
