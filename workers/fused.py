"""A model's own kernel, bound to one worker's view of the shared memory and ready to run."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from hogwild.errors import ModelError
from hogwild.kernels.fused import Chunk, Fusable, FusedUpdate
from hogwild.packed import PackedSpec
from hogwild.scoreboard import Row
from hogwild.shm import Region
from hogwild.worker_model import WorkerModel

if TYPE_CHECKING:
    from hogwild.kernels.hot import HotRows
    from workers.chunks import Fused
    from workers.kit import Kit


def make_fused(kit: "Kit", model: WorkerModel, region: Region, row: Row, lifeline: int | None) -> "tuple[Fused, str]":
    """The update, and how its kernels came to be there. What needs numba is imported here: few jobs do."""
    from workers.chunks import Fused
    from workers.compiling import make_ready

    update = cast(Fusable, model.model).fused(model.loss, model.optimizer)
    if isinstance(update, str):
        raise ModelError(f"the model has no fused update in a worker, and had one before: {update}", code="model/fused")
    assert isinstance(kit.train.data, PackedSpec), "a fused update reads packed data"
    data = kit.train.data.attach(region)
    hot = hot_rows(model, update, kit.fused or {})
    update.bind(model.model, model.optimizer, data.arrays(), hot)
    fused = Fused(update, kit.train.plan, data.order(kit.train.order, kit.seed), [*hot.values()], model.state.count)
    nothing = Chunk(np.empty(0, np.int64), 0)

    def run() -> None:
        update.run(nothing)
        fused.refresh()
        fused.flush()

    return fused, make_ready(update.name, run, row, lifeline)


def hot_rows(model: WorkerModel, update: FusedUpdate, chosen: Mapping[str, np.ndarray]) -> "dict[str, HotRows]":
    """Private copies of the chosen rows: of each parameter of the side, under its name, and of what the rule keeps
    beside them, under `name.key`."""
    if not chosen:
        return {}
    from hogwild.kernels.hot import HotRows

    found: dict[str, HotRows] = {}
    for side in update.sides:
        for name in side.params if side.array in chosen else ():
            for key, array in _beside(model, name):
                found[key] = HotRows(array, chosen[side.array])
    return found


def _beside(model: WorkerModel, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array (R, …)) of a parameter and of its state."""
    param = model.model.get_parameter(name)
    yield name, param.detach().numpy()
    for key, value in model.optimizer.state.get(param, {}).items():
        if getattr(value, "ndim", 0) and len(value) == len(param):
            yield f"{name}.{key}", value.numpy()
