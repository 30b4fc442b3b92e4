"""Seeds: every random draw of a job is a pure function of the job's seed and of the draw's purpose."""

_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """Return one well-spread 63-bit seed from several integers (splitmix64's finaliser, applied to each in turn;
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    state = 0
    for value in values:
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def permutation_seed(seed: int, epoch: int) -> int:
    """Return the seed of the generator that draws the permutation of one epoch."""
    return mix(seed, epoch, -1)


def item_seed(seed: int, index: int) -> int:
    """Return the seed of the default generator for reading one item of a data set: the same in every process."""
    return mix(seed, index, -3)


def transform_seed(seed: int, epoch: int, first_position: int) -> int:
    """Return the seed of the default generator for transforming a batch; differs from the seed of the layers' draws."""
    return mix(seed, epoch, first_position, -4)


def rollout_seed(seed: int, epoch: int, position: int) -> int:
    """Return the seed of the generator that a rollout draws from: a position that is played again draws the same."""
    return mix(seed, epoch, position, -5)


def batch_seed(seed: int, epoch: int, first_position: int) -> int:
    """Return the seed of the default generator for a batch: dropout does not depend on worker or incarnation."""
    return mix(seed, epoch, first_position)
