"""Checks of row numbers in data before a kernel uses them as indices: kernels check nothing."""

from collections.abc import Mapping

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


def require_csr(arrays: Mapping[str, np.ndarray], features: int) -> None:
    """Raise ModelError unless these are sparse rows of at most `features` features."""
    if "indices" not in arrays:
        found = ", ".join(f"{key} {value.dtype} {value.shape}" for key, value in arrays.items())
        raise ModelError(
            f"this model needs sparse rows (hogwild.data.LibSvm); the data has {found}", code="model/unlike-data"
        )
    require_ids("features", arrays["indices"], features)
