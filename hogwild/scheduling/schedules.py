"""The schedule of training data that is in memory."""

from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.grid_schedule import GridSchedule
from hogwild.scheduling.lane_schedule import LaneSchedule
from hogwild.scheduling.leases import Limits
from hogwild.scheduling.range_schedule import LeaseSchedule


def schedule_for(plan: EpochPlan, limits: Limits, seed: int) -> LeaseSchedule | None:
    """Return the schedule: over a grid no two workers hold parts of one row block; a lane belongs to one worker. None:
    the queue's own, any ranges."""
    if isinstance(plan, GridPlan):
        return GridSchedule(plan, limits, seed=seed)
    return LaneSchedule(plan, limits) if plan.lanes is not None else None
