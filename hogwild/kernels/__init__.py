"""Compiled, lock-free inner loops over the shared flats, and what a model offers to bring its own.

    fused.py       what a fused update is, and what it is asked (`FusedUpdate`, `Chunk`, `Tally`); no numba
    compiling.py   the `kernel` decorator, and a cache of compiled code that a crash cannot poison
    rng.py       random numbers inside a kernel
    hot_rows.py         private copies of the rows that everybody writes
    simd.py       vectors of 16 numbers, for inner loops that LLVM does not vectorise well by itself
    linear.py …    the rules of our own model families

This package imports none of them: numba is an extra, and only a worker that runs a kernel needs it."""
