"""A GPU as one process sees it: CUDA, simulated, pinned memory, and device discovery."""
