"""A job up to the start of its workers (`--dry-run`)."""

from typing import Any

from hogwild import host
from hogwild.feeds.materialise import InTurn
from hogwild.job.build import planned_updates
from hogwild.monitoring.tensorboard import check_wanted
from hogwild.planning.cpu_plan import Plan
from hogwild.planning.device_placement import with_devices
from hogwild.training.without_dynamo import sparing_the_compiler
from workers.prepare import check_lanes, check_memory
from workers.request import Request


@sparing_the_compiler()
def dry(request: Request, planned: Plan) -> dict[str, Any]:
    """Do everything up to starting workers; leave nothing behind. Return what would be done."""
    planned = with_devices(planned, request.job)
    check_wanted(request.job.log.tensorboard)
    check_lanes(request.job, planned)
    with host.raising_on_signals():
        parts = request.make_parts(InTurn(request.job.seed))
    needed = check_memory(request.job, parts, planned)
    answer = {
        "state": "dry-run",
        "plan": planned.reason,
        "warning": planned.warning,
        "procs": planned.procs,
        "threads": planned.threads,
        "samples": parts.train.plan.samples,
        "batches": parts.train.plan.batches,
        "planned_updates": planned_updates(request.job, parts.train.plan) or None,
        "shared_memory_bytes": needed,
        "notes": parts.notes,
    }
    return {key: value for key, value in answer.items() if value not in ("", [])}
