"""The exchange of a job: what a person asks for, and direct wherever the job leaves it open."""

from pathlib import Path

import pytest

from hogwild.config.load import load_job
from hogwild.planning.job_plan import CPU, REPLICA, SHARED, exchange_of


@pytest.mark.parametrize(
    ("given", "procs", "is_fused", "placement", "exchange"),
    [
        ("auto", 2, False, CPU, "direct"),
        ("auto", 64, False, CPU, "direct"),
        ("direct", 4, False, CPU, "direct"),
        ("delta", 4, False, CPU, "delta"),
        ("delta", 1, False, CPU, "direct"),
        ("delta", 0, False, CPU, "direct"),
        ("delta", 4, True, CPU, "direct"),
        ("auto", 2, False, REPLICA, "delta"),
        ("auto", 1, False, REPLICA, "delta"),
        ("auto", 2, False, SHARED, "direct"),
    ],
)
def test_only_a_person_or_a_copy_on_a_device_chooses_delta(
    given: str, procs: int, is_fused: bool, placement: str, exchange: str
) -> None:
    text = f"model: {{class_path: a.B}}\ndata: {{train: {{class_path: a.C}}}}\ntrain: {{exchange: {given}}}\n"
    job = load_job(Path("job.yaml"), source_text=text)
    assert exchange_of(job, procs, fused=is_fused, placement=placement) == exchange
