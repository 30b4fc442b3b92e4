"""The inner loop, compiled at its first call and kept on disk."""

import numpy as np

from hogwild.kernels import is_finite, kernel


@kernel
def apply(rows, station, degrees, mean, lr):
    loss, applied = 0.0, 0
    for row in rows:
        error = mean[station[row]] - degrees[row]
        if is_finite(error):  # what the gradient is multiplied by
            loss += error * error
            applied += 1
            mean[station[row]] -= lr * np.float32(2) * error
    return loss, applied
