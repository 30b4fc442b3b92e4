"""A GPU as one process sees it: CUDA, pinned memory, and the discovery of devices."""
