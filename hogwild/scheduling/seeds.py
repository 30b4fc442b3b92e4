"""Seeds: every random draw of a job is a pure function of its seed and of what is drawn for."""

_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """One well-spread 63-bit seed from several integers (splitmix64's finaliser, applied to each in turn;
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    state = 0
    for value in values:
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def permutation_seed(seed: int, epoch: int) -> int:
    """Seeds the generator that draws the permutation of one epoch."""
    return mix(seed, epoch, -1)


def item_seed(seed: int, index: int) -> int:
    """Seeds the default generator before an item of a data set is read: it is the same, whoever reads it."""
    return mix(seed, index, -3)


def transform_seed(seed: int, epoch: int, first_position: int) -> int:
    """Seeds the default generator before a batch is transformed: other numbers than those that its layers draw."""
    return mix(seed, epoch, first_position, -4)


def batch_seed(seed: int, epoch: int, first_position: int) -> int:
    """Seeds the default generator before a batch: dropout does not depend on which worker, or incarnation, runs it."""
    return mix(seed, epoch, first_position)
