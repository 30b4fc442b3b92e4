"""Check of row numbers in data before a kernel uses them as indices: kernels check nothing."""

import numpy as np

from hogwild.errors import ModelError


def require_ids(what: str, ids: np.ndarray, count: int) -> None:
    """Raise ModelError unless all `ids` (…) are in [0, count); `what` is the name of the model's argument."""
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise ModelError(
            f"the data has {what} {ids.min()} to {ids.max()}, but the model has {count:,}; remove {what} from "
            "model.init_args to count them",
            code="model/unlike-data",
        )
