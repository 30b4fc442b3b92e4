"""A GPU as one process sees it: CUDA, simulated, pinned memory, and the discovery of what is there."""
